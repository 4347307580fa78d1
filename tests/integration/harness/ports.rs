//! Ports for programs that are told where to listen.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Mutex;

/// Below the ports that systems give to outgoing connections: such a port could be taken while the
/// program that it was chosen for starts or restarts.
const FROM: u16 = 18_000;
const UP_TO: u16 = 32_000;

static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// An address on the loopback interface where nobody listens, and that no other test of this
/// process gets.
pub(crate) fn free_address() -> SocketAddr {
    let mut given = GIVEN.lock().expect("no panic");
    let given = given.get_or_insert_default();
    for _ in 0..1000 {
        let random = getrandom::u32().expect("the system gives random bytes");
        let port = FROM + (random % u32::from(UP_TO - FROM)) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if !given.contains(&port) && TcpListener::bind(address).is_ok() {
            given.insert(port);
            return address;
        }
    }
    panic!("no free port among {FROM}..{UP_TO}");
}
