//! `logcabin cluster`: the nodes of a cluster.

use std::process::ExitCode;

use super::{act::Common, columns};
use crate::{
    base::clock::Clock,
    cluster::Status,
    ops::{
        admin::cluster::ClusterStatus,
        history::look::{bytes, grouped},
    },
};

/// Show the nodes of a cluster, and make this server one of them
#[derive(Debug, clap::Args)]
pub(super) struct Cluster {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Status(Ask),
}

/// Show the nodes, how far each has come, which work each does, and the replicas of the stream
///
/// Asks the node that runs on this data directory.
#[derive(Debug, clap::Args)]
struct Ask {
    #[command(flatten)]
    common: Common,
}

impl Cluster {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        match self.command {
            Command::Status(Ask { common }) => {
                let now_ms = Clock::system().now_ms();
                common.run(ClusterStatus {}, |status| status_text(status, now_ms))
            }
        }
    }
}

fn status_text(status: &Status, now_ms: u64) -> String {
    let heading = ["NODE", "RECORD", "LAG", "UP", "VERSION", "ADDRESS"].map(str::to_owned);
    let node = |node: &crate::cluster::Node| {
        let mark = if node.is_this { " (this)" } else { "" };
        let lag = status.stream.last.saturating_sub(node.sequence);
        [
            format!("{}{mark}", node.name),
            grouped(node.offset.get()),
            grouped(lag),
            duration(now_ms.saturating_sub(node.started_ms) / 1000),
            node.version.clone(),
            node.bind.join(", "),
        ]
    };
    let nodes: Vec<_> = std::iter::once(heading).chain(status.nodes.iter().map(node)).collect();
    let heading = ["WORK", "NODE"].map(str::to_owned);
    let work = status.work.iter().map(|work| [work.name.clone(), work.node.clone()]);
    let work: Vec<_> = std::iter::once(heading).chain(work).collect();
    let stream = &status.stream;
    let kept = if stream.first > stream.last {
        "no messages".to_owned()
    } else {
        format!("messages {} to {}", grouped(stream.first), grouped(stream.last))
    };
    let mut text = format!("{}\n{}\n", columns(&nodes), columns(&work));
    text += &format!("stream {}: {kept}, {}\n", stream.name, bytes(stream.bytes));
    match &stream.leader {
        Some(leader) => text += &format!("  leader {leader}\n"),
        None if stream.replicas.is_empty() => text += "  on one server\n",
        None => text += "  no leader: writes are refused\n",
    }
    for replica in &stream.replicas {
        let state = match (replica.is_offline, replica.is_current) {
            (true, _) => "offline".to_owned(),
            (false, true) => "current".to_owned(),
            (false, false) => format!("lags behind by {} messages", grouped(replica.lag)),
        };
        text += &format!("  replica {}: {state}\n", replica.name);
    }
    text
}

/// A time in its two largest units.
fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{Node, Replica, StreamStatus, Work},
        record::Offset,
    };

    #[test]
    fn the_status_names_nodes_work_and_replicas() {
        let node = |name: &str, sequence| Node {
            name: name.to_owned(),
            is_this: name == "a",
            version: "0.1.0".to_owned(),
            bind: vec!["127.0.0.1:1".to_owned()],
            sequence,
            offset: Offset::new(12_345),
            chain: String::new(),
            started_ms: 0,
            tag: 0,
            id: String::new(),
        };
        let status = Status {
            nodes: vec![node("a", 10), node("b", 7)],
            work: vec![Work { name: "pushers".to_owned(), node: "b".to_owned() }],
            stream: StreamStatus {
                name: "logcabin".to_owned(),
                first: 1,
                last: 10,
                bytes: 2048,
                leader: Some("n1".to_owned()),
                replicas: vec![Replica {
                    name: "n2".to_owned(),
                    is_current: false,
                    is_offline: true,
                    lag: 3,
                }],
            },
        };
        let text = status_text(&status, 3_700_000);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "NODE      RECORD  LAG  UP         VERSION  ADDRESS",
                "a (this)  12,345  0    1 h 1 min  0.1.0    127.0.0.1:1",
                "b         12,345  3    1 h 1 min  0.1.0    127.0.0.1:1",
                "",
                "WORK     NODE",
                "pushers  b",
                "",
                "stream logcabin: messages 1 to 10, 2.0 kB",
                "  leader n1",
                "  replica n2: offline",
            ]
        );
    }
}
