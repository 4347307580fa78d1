//! Whether the server can do its work, for load balancers and service managers.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use tokio::sync::watch;

use logcabin_base::shutdown::Shutdown;
use logcabin_cluster::Cluster;
use logcabin_log::{AppendError, LocalLog};

/// How long a node of a cluster may take to find out whether it has caught up.
const CATCH_UP: Duration = Duration::from_secs(1);

/// What health is read from.
#[derive(Debug)]
pub struct Health {
    /// The log on this machine.
    pub log: Arc<dyn LocalLog>,
    /// Why the archive cannot be written, if it cannot; `None` without an archive.
    pub archive: Option<watch::Receiver<Option<String>>>,
    /// The other nodes, if there are any.
    pub cluster: Option<Arc<dyn Cluster>>,
    pub shutdown: Shutdown,
}

/// Something that the server cannot do. Anybody may read it: it names no path, and quotes no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HealthProblem {
    /// The part of the server.
    pub check: &'static str,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl Health {
    /// Why the server should get no requests now. Nothing, if it should.
    pub async fn troubles(&self) -> Vec<HealthProblem> {
        let mut troubles = Vec::new();
        let mut found = |check, reason| troubles.push(HealthProblem { check, reason });
        if self.shutdown.is_given() {
            found("server", "The server is stopping.");
        }
        match self.log.refusal() {
            None | Some(AppendError::Closed) => {}
            Some(AppendError::Full(_)) => {
                found("log", "The disk has too little free space: writes are refused.");
            }
            Some(_) => {
                found("log", "A write to the log failed: writes are refused until a restart.");
            }
        }
        if let Some(cluster) = &self.cluster {
            let is_current = tokio::time::timeout(CATCH_UP, cluster.is_current());
            if !is_current.await.unwrap_or(false) {
                let reason = "This node does not reach the log of its cluster, or lags behind it.";
                found("cluster", reason);
            }
        }
        troubles
    }

    /// What an administrator should look at, although the server does its work.
    pub fn warnings(&self) -> Vec<HealthProblem> {
        let failing = self.archive.as_ref().is_some_and(|failure| failure.borrow().is_some());
        let reason =
            "The archive cannot be written, or has vanished: the log of the server says why.";
        failing.then_some(HealthProblem { check: "archive", reason }).into_iter().collect()
    }
}
