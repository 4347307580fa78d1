//! The signal that the server is going down, for everything that waits: the accept loops, and
//! long-polls, which answer early with what they have.

use tokio::sync::watch;

/// Says whether the server is going down. Cheap to clone; all clones see the same signal.
#[derive(Clone, Debug)]
pub(crate) struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// A signal that is given when `cause` completes. Must be called within a tokio runtime.
    pub(crate) fn when(cause: impl Future<Output = ()> + Send + 'static) -> Self {
        let (sender, receiver) = watch::channel(false);
        tokio::spawn(async move {
            cause.await;
            // Nobody left to hear it: then there is nothing to shut down.
            let _ = sender.send(true);
        });
        Self(receiver)
    }

    /// Whether the signal has been given.
    pub(crate) fn is_given(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the signal is given.
    pub(crate) async fn given(&self) {
        let mut receiver = self.0.clone();
        // Without a sender (its task died with the runtime) it can no longer be given otherwise.
        let _ = receiver.wait_for(|given| *given).await;
    }
}
