//! Ports for programs that are told where to listen.

use std::collections::HashSet;
use std::env;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::Mutex;

/// Below the ports that systems give to outgoing connections: such a port could be taken while the
/// program that it was chosen for starts or restarts.
const PORTS: Range<u16> = 18_000..32_000;

/// The ports of this process: `LOGCABIN_E2E_PORTS` has one half for each of two that run at once.
fn ports() -> Range<u16> {
    let middle = PORTS.start.midpoint(PORTS.end);
    match env::var("LOGCABIN_E2E_PORTS").as_deref() {
        Ok("lower") => PORTS.start..middle,
        Ok("upper") => middle..PORTS.end,
        _ => PORTS,
    }
}

static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// An address on the loopback interface where nobody listens, and that no other test of this
/// process gets.
pub(crate) fn free_address() -> SocketAddr {
    let mut given = GIVEN.lock().expect("no panic");
    let given = given.get_or_insert_default();
    let ports = ports();
    for _ in 0..1000 {
        let random = getrandom::u32().expect("the system gives random bytes");
        let port = ports.start + (random % u32::from(ports.end - ports.start)) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if !given.contains(&port) && TcpListener::bind(address).is_ok() {
            given.insert(port);
            return address;
        }
    }
    panic!("no free port among {ports:?}");
}
