//! The console's page about the cluster.

use super::fleet::{Fleet, Plan};
use crate::console::CONSOLE;
use crate::harness::{User, run_logcabin, until_ok};

const PASSWORD: &str = "a password that is long enough";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_of_a_node_shows_the_others_and_the_replicas_of_the_stream() {
    let settings = vec![("LOGCABIN_CONSOLE_ENABLED".to_owned(), "true".to_owned())];
    let plan = Plan { settings, ..Plan::default() };
    let Some(mut fleet) = Fleet::start("cluster: console", 2, plan).await else { return };
    let http = fleet.nodes[1].http();
    let admin = User::register(&http, "admin", PASSWORD).await;
    let dir = fleet.nodes[1].data_dir.to_str().expect("a path in Unicode").to_owned();
    let made = run_logcabin(["user", "set-admin", &admin.user_id, "--data-dir", &dir]);
    assert!(made.status.success(), "{made:?}");
    let cookie = format!("logcabin_console={}", admin.access_token);
    let page = async || {
        let path = format!("{CONSOLE}/cluster");
        let answer = http.raw("GET", &path, &[("cookie", &cookie)], "").await;
        let page = String::from_utf8_lossy(&answer.bytes).into_owned();
        assert_eq!(answer.parts.status.as_u16(), 200, "{page}");
        let main = page.split_once("<main").and_then(|(_, rest)| rest.split_once("</main>"));
        main.expect("the part with the content").0.to_owned()
    };
    fleet.until_equal().await;
    let shown = page().await;
    for part in ["node-0", "node-1", "(this)", "has everything", "Leader", "1 to "] {
        assert!(shown.contains(part), "no `{part}` in {shown}");
    }
    assert!(
        !shown.contains("does not answer") && !shown.contains("This server is alone"),
        "{shown}"
    );
    for work in fleet.status(1)["work"].as_array().expect("work") {
        let name = work["name"].as_str().expect("a name");
        assert!(shown.contains(name), "no `{name}` in {shown}");
    }
    let leader = fleet.leader().expect("a leader");
    let other = (0..3).find(|server| *server != leader).expect("another");
    fleet.nats.kill(other);
    until_ok("a replica is missed", async || {
        let shown = page().await;
        let is_missed = ["does not answer", "lags behind"].iter().any(|is| shown.contains(is));
        if is_missed { Ok(()) } else { Err(shown) }
    })
    .await;
    fleet.nodes[0].stop();
    until_ok("a node is missed", async || {
        let shown = page().await;
        if shown.contains("node-0</bdi></td>") { Err(shown) } else { Ok(()) }
    })
    .await;
}
