//! Tells systemd, or a service manager that speaks its protocol (sd_notify(3)), when the server is
//! ready, that it is alive, and when it stops.

use std::time::Duration;

use sd_notify::{NotifyState, notify, watchdog_enabled};
use tokio::task::JoinHandle;
use tracing::warn;

use logcabin_base::shutdown::Shutdown;

/// How often a manager is asked for more time while the server starts, and how much each time. A
/// long log takes minutes to replay.
const MORE_TIME_EVERY: Duration = Duration::from_secs(10);
const MORE_TIME_S: u32 = 60;

/// Does nothing without a service manager.
pub(super) struct Manager {
    /// Asks for more time.
    starting: JoinHandle<()>,
}

impl Manager {
    /// Must be called within a tokio runtime.
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

    /// Reports that the server is ready, then feeds the manager's watchdog until the shutdown, and
    /// reports that.
    pub(super) fn serving(self, shutdown: &Shutdown) {
        self.starting.abort();
        tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
        let shutdown = shutdown.clone();
        tokio::spawn(async move {
            // Twice as often as the watchdog demands, so that a late sign is not fatal.
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

/// Reports that the configuration is being read again.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now, NotifyState::Status("reloading")]),
        Err(error) => warn!(%error, "the service manager could not be told"),
    }
}

/// Reports that it was.
pub(super) fn reloaded() {
    tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
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
