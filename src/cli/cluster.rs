//! `logcabin cluster`: the nodes of a cluster.

use std::process::ExitCode;

use super::{act::Common, columns};
use logcabin_base::clock::Clock;
use logcabin_cluster::Status;
#[cfg(feature = "nats")]
use logcabin_ops::cluster::{self, MovedLog};
use logcabin_ops::{
    admin::cluster::ClusterStatus,
    history::terminal::{bytes, duration, grouped},
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
    #[cfg(feature = "nats")]
    MoveIn(MoveIn),
    #[cfg(feature = "nats")]
    Join(Join),
    #[cfg(feature = "nats")]
    MoveOut(MoveOut),
}

/// Show the nodes, their lag, the work that each does, and the replicas of the stream
///
/// Asks the node that runs on this data directory.
#[derive(Debug, clap::Args)]
struct Ask {
    #[command(flatten)]
    common: Common,
}

/// The data directory of a node, and the NATS servers of its cluster.
#[cfg(feature = "nats")]
#[derive(Debug, clap::Args)]
struct NodeLocation {
    #[command(flatten)]
    at: super::DataDir,

    /// The NATS servers of the cluster, such as nats://n1,n2,n3, unless the settings name them
    #[arg(long, value_name = "SERVERS")]
    log: Option<String>,
}

#[cfg(feature = "nats")]
impl NodeLocation {
    fn load(&self) -> Result<logcabin_config::Config, logcabin_config::ConfigError> {
        self.at.load_with(self.log.clone())
    }
}

/// Turn the stopped server in the data directory into a cluster
///
/// Its log becomes the cluster's log, and the server its first node. Tokens, sessions and offsets
/// stay valid. Afterwards, start it with `--log`; other nodes can start with empty data
/// directories.
#[cfg(feature = "nats")]
#[derive(Debug, clap::Args)]
struct MoveIn {
    #[command(flatten)]
    place: NodeLocation,
}

/// Build the log of a new node without starting the node
///
/// A node that starts with an empty data directory does the same. With `--from`, the records come
/// from SOURCE, and only the rest from other nodes.
#[cfg(feature = "nats")]
#[derive(Debug, clap::Args)]
struct Join {
    #[command(flatten)]
    place: NodeLocation,

    /// A directory of backups, an archive, or the data directory of another node on this machine
    #[arg(long, value_name = "SOURCE")]
    from: Option<std::path::PathBuf>,
}

/// Turn the last node of a cluster into a server with an embedded log, and remove the cluster
///
/// All nodes must be stopped, and this one must have every record: stop it last. Tokens, sessions
/// and offsets stay valid.
#[cfg(feature = "nats")]
#[derive(Debug, clap::Args)]
struct MoveOut {
    #[command(flatten)]
    place: NodeLocation,
}

#[cfg(feature = "nats")]
fn block_on<T>(
    future: impl Future<Output = Result<T, cluster::ClusterError>>,
) -> Result<T, Box<dyn std::error::Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on(future)?)
}

#[cfg(feature = "nats")]
impl MoveIn {
    fn run(&self) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        let MovedLog { last, files } = block_on(cluster::move_in(&self.place.load()?))?;
        Ok(format!(
            "The cluster begins with {} records and {} uploaded files. Start this node with `--log`.\n",
            grouped(last.get()),
            grouped(files)
        ))
    }
}

#[cfg(feature = "nats")]
impl Join {
    fn run(&self) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        let began = std::time::Instant::now();
        let config = self.place.load()?;
        let MovedLog { last, .. } =
            block_on(cluster::join(&config.log, &config.server, self.from.as_deref()))?;
        Ok(format!(
            "The node has all {} records, after {:.1} s. Start it with `--log`.\n",
            grouped(last.get()),
            began.elapsed().as_secs_f64()
        ))
    }
}

#[cfg(feature = "nats")]
impl MoveOut {
    fn run(&self) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        let MovedLog { last, files } = block_on(cluster::move_out(&self.place.load()?))?;
        Ok(format!(
            "The log, of {} records, is now embedded; {} uploaded files were fetched. Start the \
             server without `--log`.\n",
            grouped(last.get()),
            grouped(files)
        ))
    }
}

impl Cluster {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        match self.command {
            Command::Status(Ask { common }) => {
                let now_ms = Clock::system().now_ms();
                common.run(ClusterStatus {}, |status| status_text(status, now_ms))
            }
            #[cfg(feature = "nats")]
            Command::MoveIn(command) => say(command.run()),
            #[cfg(feature = "nats")]
            Command::Join(command) => say(command.run()),
            #[cfg(feature = "nats")]
            Command::MoveOut(command) => say(command.run()),
        }
    }
}

#[cfg(feature = "nats")]
fn say(
    text: Result<String, Box<dyn std::error::Error + Send + Sync>>,
) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
    super::print(&text?)?;
    Ok(ExitCode::SUCCESS)
}

fn status_text(status: &Status, now_ms: u64) -> String {
    let heading = ["NODE", "RECORD", "LAG", "UP", "VERSION", "ADDRESS"].map(str::to_owned);
    let node = |node: &logcabin_cluster::Node| {
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
            (false, false) => format!("lags by {} messages", grouped(replica.lag)),
        };
        text += &format!("  replica {}: {state}\n", replica.name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_cluster::{Node, Replica, StreamStatus, Work};
    use logcabin_record::Offset;

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
