//! TCP: that of the operating system, or that of a simulation.

use std::io;

#[cfg(not(feature = "simulate"))]
pub use tokio::net::{TcpListener, TcpStream, lookup_host};
#[cfg(feature = "simulate")]
pub use turmoil::net::{TcpListener, TcpStream, lookup_host};

/// Has the kernel free the buffers of a connection as soon as it is dropped.
#[cfg(not(feature = "simulate"))]
pub fn reset_when_dropped(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Does nothing: a simulation has no kernel.
#[cfg(feature = "simulate")]
pub const fn reset_when_dropped(_: &TcpStream) {}

/// As [`TcpStream::peek`], which borrows the stream in one way here and in another there.
pub async fn peek(stream: &mut TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
    stream.peek(bytes).await
}

/// A listener that was opened by somebody else, and does not block.
#[cfg(not(feature = "simulate"))]
pub fn from_std(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    TcpListener::from_std(listener)
}

/// # Errors
/// Always: sockets of the operating system lead out of the simulation.
#[cfg(feature = "simulate")]
pub fn from_std(_: std::net::TcpListener) -> io::Result<TcpListener> {
    Err(io::ErrorKind::Unsupported.into())
}
