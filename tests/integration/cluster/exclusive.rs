//! What may happen once happens once, whichever nodes are asked at the same moment.

use std::ffi::OsStr;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::fleet::{Fleet, Plan};
use crate::harness::{Http, run_logcabin};

const REGISTER: &str = "/_matrix/client/v3/register";

/// How many tokens are used, each for the last time.
const TOKENS: usize = 8;

/// How many newcomers try each.
const NEWCOMERS: usize = 9;

fn new_token(fleet: &Fleet) -> String {
    let arguments =
        ["registration-token", "create", "--uses", "1", "--json", "--data-dir"].map(OsStr::new);
    let data_dir = fleet.nodes[0].data_dir.as_os_str();
    let output = run_logcabin(arguments.into_iter().chain([data_dir]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let created: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    created["token"].as_str().expect("a token").to_owned()
}

/// Begins a registration: its body, without the stage.
async fn begin(http: &Http, name: &str) -> Value {
    let mut body = json!({ "username": name, "password": format!("correct horse {name}") });
    let asked = http.request("POST", REGISTER, None, Some(&body)).await;
    assert_eq!(asked.status, 401, "{asked}");
    body["auth"] = json!({
        "type": "m.login.registration_token",
        "session": asked.body["session"],
    });
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_use_of_a_registration_token_lets_one_newcomer_in_across_all_nodes() {
    let test = "cluster: the last use of a registration token";
    let required = ("LOGCABIN_REGISTRATION_REQUIRE".to_owned(), "token".to_owned());
    let plan = Plan { settings: vec![required], ..Plan::default() };
    let Some(fleet) = Fleet::start(test, 3, plan).await else { return };
    for round in 0..TOKENS {
        let token = new_token(&fleet);
        let nodes: Vec<_> = (0..NEWCOMERS).map(|n| fleet.nodes[n % 3].http()).collect();
        let begun = nodes.iter().enumerate().map(async |(number, http)| {
            let mut body = begin(http, &format!("u{round}-{number}")).await;
            body["auth"]["token"] = json!(token);
            body
        });
        let bodies = join_all(begun).await;
        let tried = nodes.iter().zip(&bodies);
        let tried = tried.map(|(http, body)| http.request("POST", REGISTER, None, Some(body)));
        let statuses: Vec<_> = join_all(tried).await.iter().map(|answer| answer.status).collect();
        let let_in = statuses.iter().filter(|status| **status == 200).count();
        assert_eq!(let_in, 1, "round {round}: {statuses:?}");
    }
}
