//! Registration tokens.

use serde_json::{Value, json};

use super::{admin, dry_run};
use crate::administration::history;
use crate::harness::TestServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registration_tokens_are_made_listed_changed_and_removed() {
    let settings = [("LOGCABIN_REGISTRATION_OPEN", "true")];
    let mut server = TestServer::start_with(&settings).await;
    let mut admin = admin(&server).await;
    let new = "/v1/registration_tokens/new";
    let said = dry_run(&server, &admin, "POST", new, json!({})).await;
    assert_eq!(said, ["a registration token is created"]);
    let far = 4_102_444_800_000_u64;
    let body = json!({ "token": "given", "uses_allowed": 2, "expiry_time": far, "reason": "club" });
    let made = admin.administer("POST", new, Some(body.clone())).await.ok();
    for (field, value) in [
        ("token", json!("given")),
        ("uses_allowed", json!(2)),
        ("pending", json!(0)),
        ("completed", json!(0)),
        ("expiry_time", json!(far)),
    ] {
        assert_eq!(made[field], value, "{field} in {made}");
    }
    admin.administer("POST", new, Some(body)).await.refused(400, "M_INVALID_PARAM");
    let long = admin.administer("POST", new, Some(json!({ "length": 40 }))).await.ok();
    assert_eq!(long["token"].as_str().map(str::len), Some(40), "{long}");
    assert_eq!(long["uses_allowed"], Value::Null);
    for bad in [
        json!({ "length": 65 }),
        json!({ "length": 0 }),
        json!({ "expiry_time": 1000 }),
        json!({ "token": "x".repeat(65) }),
    ] {
        admin.administer("POST", new, Some(bad)).await.refused(400, "M_INVALID_PARAM");
    }

    let list = async |admin: &crate::harness::User, query: &str| {
        let path = format!("/v1/registration_tokens{query}");
        let listed = admin.administer("GET", &path, None).await.ok();
        listed["registration_tokens"].as_array().expect("a list").len()
    };
    assert_eq!((list(&admin, "").await, list(&admin, "?valid=false").await), (2, 0));
    let one = "/v1/registration_tokens/given";
    let body = json!({ "uses_allowed": 0, "expiry_time": null });
    let changed = admin.administer("PUT", one, Some(body)).await.ok();
    assert_eq!((&changed["uses_allowed"], &changed["expiry_time"]), (&json!(0), &Value::Null));
    let same = admin.administer("PUT", one, Some(json!({}))).await.ok();
    assert_eq!(same["uses_allowed"], 0, "what is not named stays: {same}");
    assert_eq!((list(&admin, "?valid=true").await, list(&admin, "?valid=false").await), (1, 1));

    server.restart().await;
    admin.http = server.http();
    let known = admin.administer("GET", one, None).await.ok();
    assert_eq!(known["uses_allowed"], 0);
    let id = known["token"].as_str().expect("an id").to_owned();
    let by_id = format!("/v1/registration_tokens/{id}");
    assert_eq!(admin.administer("GET", &by_id, None).await.ok(), known);
    admin.administer("DELETE", one, None).await.ok();
    admin.administer("DELETE", one, None).await.refused(404, "M_NOT_FOUND");
    assert_eq!(list(&admin, "").await, 1);
    server.stop();
    let words = history(server.data_dir());
    let by = &admin.user_id;
    assert!(words.contains(&format!("{by} set the registration token {id}…")), "{words}");
    assert!(words.contains(&format!("{by} did so because: club")), "{words}");
    assert!(words.contains(&format!("{by} removed the registration token {id}…")), "{words}");
    assert!(!words.contains("given"), "{words}");
}
