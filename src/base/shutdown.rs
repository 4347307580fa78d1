//! The signal that the server is shutting down, for everything that waits: the accept loops, and
//! long polls, which return early.

use tokio::sync::watch;

/// The shutdown signal. Cheap to clone; all clones see the same signal.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// A signal that is given when `cause` completes. Must be called within a tokio runtime.
    pub fn when(cause: impl Future<Output = ()> + Send + 'static) -> Self {
        let (sender, receiver) = watch::channel(false);
        tokio::spawn(async move {
            cause.await;
            // There are no receivers left.
            let _ = sender.send(true);
        });
        Self(receiver)
    }

    pub fn is_given(&self) -> bool {
        *self.0.borrow()
    }

    pub async fn given(&self) {
        let mut receiver = self.0.clone();
        // Without a sender (its task died with the runtime) the signal cannot be given any more.
        let _ = receiver.wait_for(|given| *given).await;
    }
}
