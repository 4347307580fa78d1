//! What `logcabin doctor` learns from other homeservers.

use serde_json::Value;

use super::{Federated, authority};
use crate::administration::command;
use crate::harness::free_address;

/// The level and the text of the only finding of this check.
#[track_caller]
fn found(cabin: &Federated, check: &str) -> (String, String) {
    let output = command("doctor", cabin.server.data_dir(), "--json", "");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let all = report["findings"].as_array().expect("findings").iter();
    let these: Vec<_> = all.filter(|finding| finding["check"] == check).collect();
    assert_eq!(these.len(), 1, "{check}: {report:#}");
    let text = |field: &str| these[0][field].as_str().expect("a text").to_owned();
    (text("level"), text("what"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_notary_can_tell_that_a_homeserver_is_reached() {
    let Some(authority) = authority("doctor") else { return };
    let notary = Federated::start(&authority).await;
    // Nobody is there to ask.
    let alone = Federated::start(&authority).await;
    assert_eq!(found(&alone, "reachability").0, "unknown");
    assert_eq!(found(&alone, "clock").0, "unknown");
    assert_eq!(found(&alone, "dns").0, "ok");

    let settings = [("LOGCABIN_FEDERATION_NOTARIES", &*notary.name)];
    let cabin = Federated::start_with(&authority, &settings).await;
    let (level, what) = found(&cabin, "reachability");
    assert!(level == "ok" && what.contains(&notary.name), "{level}: {what}");
    assert_eq!(found(&cabin, "clock").0, "ok");
    let (level, what) = found(&cabin, "certificate");
    assert!(level != "error" && what.contains("is good for"), "{level}: {what}");

    // It listens elsewhere than its name says.
    let elsewhere = free_address().to_string();
    let settings = [settings[0], (crate::harness::nodes::FEDERATION_BIND, elsewhere.as_str())];
    let lost = Federated::start_with(&authority, &settings).await;
    let (level, what) = found(&lost, "reachability");
    assert!(level == "error" && what.contains("does not reach"), "{level}: {what}");
    assert_eq!(found(&lost, "certificate").0, "error");
    // A notary that is gone says nothing.
    drop(notary);
    assert_eq!(found(&cabin, "reachability").0, "unknown");
}
