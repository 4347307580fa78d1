//! Work that blocks, beside the threads that answer requests.
//!
//! A simulation has one thread: there, such work is done when its turn comes, so that a seed
//! decides the order of everything.

use std::io;

use tokio::task::JoinHandle;

/// Does `work` on a thread where it may block.
#[cfg(not(feature = "simulate"))]
pub fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}

/// Does `work` as a task.
#[cfg(feature = "simulate")]
pub fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(async move { work() })
}

/// Does `work` on a thread of its own, which nobody waits for.
///
/// # Errors
/// When the operating system gives no thread.
#[cfg(not(feature = "simulate"))]
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Does `work` as a task.
#[cfg(feature = "simulate")]
pub fn spawn(_: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    tokio::spawn(async move { work() });
    Ok(())
}
