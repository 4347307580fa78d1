//! The nodes of the cluster, or that there is none.

use std::sync::Arc;

use maud::{Markup, html};

use crate::{
    api::{
        console::{
            parts::{facts, long, record, table, text},
            visitor::{ConsoleLogin, Visitor},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_cluster::{Node, Status, Work};
use logcabin_engine::Engine;
use logcabin_ops::{
    admin::{
        act::{Order, Outcome},
        cluster::ClusterStatus,
    },
    history::terminal::{bytes, duration, grouped},
};

endpoint! {
    pub(in super::super) struct ClusterPage = GET "/_logcabin/console/cluster";
    for ConsoleLogin;
    {}
}

pub(in super::super) async fn page(
    cx: Cx<Server, Visitor>,
    _: ClusterPage,
) -> Result<Reply, ApiError> {
    let (visitor, app) = (cx.caller.clone(), Arc::clone(&cx.app));
    let body = if cx.app.cluster.is_none() {
        alone(&cx.app.engine)
    } else {
        let origin = cx.called_by(visitor.browser_session().clone()).origin();
        match Order::from(ClusterStatus {}).carry_out(&app.context, origin).await {
            Ok(Outcome::Done(status)) => several(&status, app.engine.clock().now_ms()),
            Ok(Outcome::WouldDo(_)) => html! {},
            // While the stream does not answer, the page says so.
            Err(error) => html! { p.bad role="alert" { (long(&error.to_string())) } },
        }
    };
    Ok(visitor.page(&app, ("Cluster", "cluster"), body).reply())
}

fn alone(engine: &Engine) -> Markup {
    html! {
        p { "This server is alone: its log is in its own data directory, and it does all work." }
        (facts(&[
            ("The last record", record(engine.head().offset())),
            ("Version", html! { (env!("CARGO_PKG_VERSION")) }),
        ]))
        p.note { "A server with its data moves into a cluster by a command, while it is stopped:" }
        pre tabindex="0" { "logcabin cluster move-in" }
    }
}

fn several(status: &Status, now_ms: u64) -> Markup {
    let Status { nodes, work, stream } = status;
    let node = |node: &Node| {
        let lag = stream.last.saturating_sub(node.sequence);
        let up = now_ms.saturating_sub(node.started_ms) / 1000;
        vec![
            html! { (text(&node.name)) @if node.is_this { " (this)" } },
            html! { (grouped(node.offset.get())) },
            html! { (grouped(lag)) },
            html! { (duration(up)) },
            text(&node.version),
            text(&node.bind.join(", ")),
            html! { code { (text(node.chain.get(..16).unwrap_or(&node.chain))) } },
        ]
    };
    let nodes: Vec<_> = nodes.iter().map(node).collect();
    let columns = ["Node", "Last record", "Lag", "Up for", "Version", "Addresses", "Chain"];
    let work: Vec<_> =
        work.iter().map(|Work { name, node }| vec![text(name), text(node)]).collect();
    let kept = match stream.first > stream.last {
        true => "none".to_owned(),
        false => format!("{} to {}", grouped(stream.first), grouped(stream.last)),
    };
    let leader = match &stream.leader {
        Some(leader) => text(leader),
        None if stream.replicas.is_empty() => html! { "on one server" },
        None => html! { strong { "none: writes are refused" } },
    };
    let replicas: Vec<_> = stream
        .replicas
        .iter()
        .map(|replica| {
            let state = match (replica.is_offline, replica.is_current) {
                (true, _) => "does not answer",
                (false, true) => "has everything",
                (false, false) => "lags behind",
            };
            vec![text(&replica.name), html! { (state) }, html! { (grouped(replica.lag)) }]
        })
        .collect();
    html! {
        h2 { "Nodes" }
        (table(&columns, &nodes, "None is known."))
        p.note { "The lag is the number of messages of the stream that a node has not taken." }
        h2 { "Work that one node does at a time" }
        (table(&["Work", "Node"], &work, "Nobody holds a lease."))
        h2 { "Stream" }
        (facts(&[
            ("Stream", text(&stream.name)),
            ("Messages", html! { (kept) }),
            ("Size", html! { (bytes(stream.bytes)) }),
            ("Leader", leader),
        ]))
        (table(&["Replica", "State", "Lag"], &replicas, "The stream has no other replicas."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_cluster::{Replica, StreamStatus};
    use logcabin_record::Offset;

    #[test]
    fn a_cluster_is_shown_with_what_is_behind() {
        let node = |name: &str, sequence| Node {
            name: name.to_owned(),
            is_this: name == "<a>",
            version: "0.1.0".to_owned(),
            bind: vec!["127.0.0.1:1".to_owned()],
            sequence,
            offset: Offset::new(12_345),
            chain: "ab".repeat(32),
            started_ms: 0,
            tag: 0,
            id: String::new(),
        };
        let replica = |name: &str, is_current, is_offline| Replica {
            name: name.to_owned(),
            is_current,
            is_offline,
            lag: 3,
        };
        let stream = StreamStatus {
            name: "logcabin".to_owned(),
            first: 1,
            last: 2_000,
            bytes: 2_048,
            leader: None,
            replicas: vec![replica("n2", false, false), replica("n3", false, true)],
        };
        let work = vec![Work { name: "pushers".to_owned(), node: "b".to_owned() }];
        let status = Status { nodes: vec![node("<a>", 2_000), node("b", 500)], work, stream };
        let shown = several(&status, 3_700_000).into_string();
        for part in [
            "&lt;a&gt;",
            "(this)",
            "12,345",
            "1,500",
            "1 h 1 min",
            "pushers",
            "1 to 2,000",
            "writes are refused",
            "lags behind",
            "does not answer",
        ] {
            assert!(shown.contains(part), "no `{part}` in {shown}");
        }
        assert!(!shown.contains("<a>"), "{shown}");
    }
}
