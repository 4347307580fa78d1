//! TCP: that of the operating system, or that of a simulation.

#[cfg(not(feature = "simulate"))]
mod real {
    use std::io;

    pub use tokio::net::{TcpListener, TcpStream, lookup_host};

    /// Has the kernel free the buffers of a connection as soon as it is dropped.
    pub fn reset_when_dropped(stream: &TcpStream) {
        let _ = stream.set_zero_linger();
    }

    /// As [`TcpStream::peek`].
    pub async fn peek(stream: &mut TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
        stream.peek(bytes).await
    }

    /// A listener that was opened by somebody else.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<TcpListener> {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }
}

#[cfg(feature = "simulate")]
mod real {
    use std::io;

    pub use turmoil::net::{TcpListener, TcpStream, lookup_host};

    pub const fn reset_when_dropped(_: &TcpStream) {}

    pub async fn peek(stream: &mut TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
        stream.peek(bytes).await
    }

    /// # Errors
    /// Always: sockets of the operating system lead out of the simulation.
    pub fn from_std(_: std::net::TcpListener) -> io::Result<TcpListener> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

pub use real::{TcpListener, TcpStream, from_std, lookup_host, peek, reset_when_dropped};
