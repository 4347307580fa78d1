//! The service manager that started the process, if it is systemd or speaks as that does: it is
//! told when the server is ready and when it stops, and that it is alive (sd_notify(3)).

use std::time::Duration;

use sd_notify::{NotifyState, notify, watchdog_enabled};
use tokio::task::JoinHandle;
use tracing::warn;

use logcabin_base::shutdown::Shutdown;

/// How often a manager is asked for more time while the server starts, and for how long each time.
/// A long log takes minutes to replay.
const MORE_TIME_EVERY: Duration = Duration::from_secs(10);
const MORE_TIME_S: u32 = 60;

/// The service manager. Without one, nothing is told.
pub(super) struct Manager {
    /// Asks for time.
    starting: JoinHandle<()>,
}

impl Manager {
    /// The server begins to start. Must be called within a tokio runtime.
    pub(super) fn starting() -> Self {
        let starting = tokio::spawn(async {
            loop {
                tell(&[
                    NotifyState::Status("starting"),
                    NotifyState::ExtendTimeoutUsec(MORE_TIME_S * 1_000_000),
                ]);
                tokio::time::sleep(MORE_TIME_EVERY).await;
            }
        });
        Self { starting }
    }

    /// The server is ready. From now on the manager's watchdog is told that it is alive, until the
    /// shutdown, of which the manager is told, too.
    pub(super) fn serving(self, shutdown: &Shutdown) {
        self.starting.abort();
        tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
        let shutdown = shutdown.clone();
        tokio::spawn(async move {
            // A manager expects a sign within its time; twice as many leave room for one that is
            // late.
            if let Some(within) = watchdog_enabled() {
                let mut every = tokio::time::interval(within / 2);
                loop {
                    tokio::select! {
                        _ = every.tick() => tell(&[NotifyState::Watchdog]),
                        () = shutdown.given() => break,
                    }
                }
            }
            shutdown.given().await;
            tell(&[
                NotifyState::Stopping,
                NotifyState::Status("finishing the requests in progress"),
            ]);
        });
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.starting.abort();
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = notify(states) {
        warn!(%error, "the service manager could not be told");
    }
}
