//! Discovery: the documents under `/.well-known`, and the versions.

use serde_json::{Value, json};

use super::{PASSWORD, anonymous, server, user};
use crate::harness::{Answer, TestServer, User};

async fn well_known(server: &TestServer, name: &str, document: &str) -> Answer {
    let path = format!("/.well-known/{name}/{document}");
    server.http().request("GET", &path, None, None).await
}

/// What the answer to a login says of where the server is.
async fn told_at_login(user: &User) -> Value {
    let body = json!({
        "type": "m.login.password", "password": PASSWORD,
        "identifier": { "type": "m.id.user", "user": user.user_id },
    });
    anonymous(&user.http, "POST", "/login", Some(&body)).await.ok()["well_known"].clone()
}

#[tokio::test]
async fn the_document_names_an_address_at_which_the_server_is() {
    let server = server().await;
    for name in ["svc", "matrix"] {
        let document = well_known(&server, name, "client").await.ok();
        let base = document["m.homeserver"]["base_url"].as_str().unwrap_or_default();
        assert!(base.starts_with("http://") && !base.ends_with('/'), "{document}");
        let http = crate::harness::Http::new(base);
        let versions = http.request("GET", "/_svc/client/versions", None, None).await.ok();
        assert!(versions["versions"].is_array(), "{versions}");
        assert!(document.get("m.identity_server").is_none(), "{document}");
        // Whatever else it holds has a name of someone's own.
        for key in document.as_object().into_iter().flatten().map(|(key, _)| key) {
            assert!(key == "m.homeserver" || !key.starts_with("m.") && key.contains('.'), "{key}");
        }
    }
}

#[tokio::test]
async fn the_address_and_the_identity_server_are_those_that_are_configured() {
    let server = TestServer::start_with(&[
        ("LOGCABIN_SERVER_PUBLIC_URL", "https://matrix.example.org/"),
        ("LOGCABIN_SERVER_IDENTITY_SERVER", "https://identity.example.org/"),
        ("LOGCABIN_REGISTRATION_OPEN", "true"),
    ])
    .await;
    let expected = json!({
        "m.homeserver": { "base_url": "https://matrix.example.org" },
        "m.identity_server": { "base_url": "https://identity.example.org" },
    });
    let authentication = json!({
        "account": "https://matrix.example.org/_matrix/oauth2/account",
        "issuer": "https://matrix.example.org/_matrix/oauth2",
    });
    for name in ["svc", "matrix"] {
        let mut told = well_known(&server, name, "client").await.ok();
        let before = told["org.matrix.msc2965.authentication"].take();
        assert_eq!(before, authentication);
        told.as_object_mut().expect("an object").remove("org.matrix.msc2965.authentication");
        assert_eq!(told, expected);
    }
    assert_eq!(told_at_login(&user(&server, "ann").await).await, expected);
}

#[tokio::test]
async fn a_server_that_is_to_say_nothing_says_nothing() {
    let server = TestServer::start_with(&[("LOGCABIN_SERVER_DISCOVERY", "false")]).await;
    for name in ["svc", "matrix"] {
        well_known(&server, name, "client").await.refused(404, "M_NOT_FOUND");
        well_known(&server, name, "support").await.refused(404, "M_NOT_FOUND");
    }
    assert_eq!(told_at_login(&user(&server, "ann").await).await, Value::Null);
}

#[tokio::test]
async fn a_server_that_others_reach_is_told_only_by_its_public_address() {
    crate::harness::nodes::one_server!("every cluster of the tests has a public address");
    // Behind a proxy, as with the address 0.0.0.0, its own is of no use to clients.
    let settings =
        [("LOGCABIN_SERVER_TRUST_FORWARDED_FOR", "true"), ("LOGCABIN_REGISTRATION_OPEN", "true")];
    let server = TestServer::start_with(&settings).await;
    for name in ["svc", "matrix"] {
        well_known(&server, name, "client").await.refused(404, "M_NOT_FOUND");
    }
    assert_eq!(told_at_login(&user(&server, "ann").await).await, Value::Null);
    assert!(server.output().contains("server.public_url"), "{}", server.output());
}

#[tokio::test]
async fn whoever_runs_the_server_is_told_as_configured() {
    for (contact, expected) in [
        (
            "mailto:help@example.org",
            json!({ "contacts": [
                { "role": "m.role.admin", "email_address": "help@example.org" },
            ]}),
        ),
        (
            "@help:example.org",
            json!({ "contacts": [{ "role": "m.role.admin", "matrix_id": "@help:example.org" }] }),
        ),
        ("https://example.org/help", json!({ "support_page": "https://example.org/help" })),
    ] {
        let server = TestServer::start_with(&[("LOGCABIN_SERVER_ADMIN_CONTACT", contact)]).await;
        assert_eq!(well_known(&server, "matrix", "support").await.ok(), expected);
        assert_eq!(well_known(&server, "svc", "support").await.ok(), expected);
    }
}

#[tokio::test]
async fn versions_have_their_form_and_features_are_yes_or_no() {
    let server = server().await;
    let http = server.http();
    let answer = http.request("GET", "/_svc/client/versions", None, None).await.ok();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let versions = answer["versions"].as_array().into_iter().flatten();
    let versions: Vec<_> = versions.filter_map(Value::as_str).collect();
    assert!(versions.contains(&"v1.1") && versions.contains(&"v1.4"), "{answer}");
    for version in versions {
        let parts: Vec<_> = version[1..].split('.').collect();
        let count = match &version[..1] {
            "v" => 2,
            "r" => 3,
            _ => 0,
        };
        assert!(parts.len() == count && parts.iter().all(|part| is_number(part)), "{version}");
    }
    let features = answer["unstable_features"].as_object();
    assert!(features.is_some_and(|features| !features.is_empty()), "{answer}");
    for (name, value) in features.into_iter().flatten() {
        assert!(value.is_boolean() && name.contains('.'), "{name}: {value}");
    }
}

#[tokio::test]
async fn element_web_finds_the_features_that_it_looks_for_by_their_old_names() {
    let server = server().await;
    let answer = server.http().request("GET", "/_svc/client/versions", None, None).await.ok();
    for name in ["org.matrix.e2e_cross_signing", "org.matrix.msc3827.stable"] {
        assert_eq!(answer["unstable_features"][name], true, "{name}");
    }
}

#[tokio::test]
async fn the_key_of_a_policy_server_is_told_if_there_is_one() {
    let none = server().await;
    well_known(&none, "matrix", "policy_server").await.refused(404, "M_NOT_FOUND");
    let key = "6yhHGKhCiXTSEN2ksjV7kXAN6rBQZ3XbAM7LlC6NSAs";
    let server = TestServer::start_with(&[("LOGCABIN_SERVER_POLICY_SERVER_KEY", key)]).await;
    for name in ["svc", "matrix"] {
        let told = well_known(&server, name, "policy_server").await.ok();
        assert_eq!(told, json!({ "public_keys": { "ed25519": key } }));
    }
}

/// The flags in a section of the chapter on proposals.
fn flags(section: &str) -> Vec<String> {
    let chapter = include_str!("../../../docs/proposals.md");
    let section = chapter.split("\n## ").find(|part| part.starts_with(section));
    let rows = section.expect("a section").lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn the_chapter_on_proposals_names_what_is_announced_and_what_is_not() {
    let server = server().await;
    let told = server.http().request("GET", "/_matrix/client/versions", None, None).await.ok();
    let told = told["unstable_features"].as_object().expect("an object").clone();
    let named = flags("Announced");
    for flag in told.keys() {
        assert!(named.contains(flag), "{flag} is not in the chapter");
    }
    for flag in &named {
        // Some depend on the configuration.
        assert!(told.get(flag).is_some_and(Value::is_boolean), "{flag} is not announced");
    }
    let absent = flags("Not announced");
    assert!(!absent.is_empty());
    for flag in absent {
        assert!(!told.contains_key(&flag), "{flag} is announced");
    }
}

#[tokio::test]
async fn what_is_not_served_is_really_absent() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let unstable = "/_matrix/client/unstable";
    for (method, path) in [
        ("PUT", "/io.element.msc4306/rooms/!r:x/thread/$e/subscription"),
        ("GET", "/io.element.msc4308/thread_subscriptions?dir=b"),
        ("POST", "/org.matrix.msc4194/rooms/!r:x/redact/user/@a:x"),
        ("POST", "/org.matrix.msc3575/sync"),
        ("POST", "/com.beeper.hungry/x"),
    ] {
        let path = format!("{unstable}{path}");
        let body = json!({});
        let answer = ann.http.request(method, &path, Some(&ann.access_token), Some(&body)).await;
        answer.refused(404, "M_UNRECOGNIZED");
    }
    let simplified = format!("{unstable}/org.matrix.simplified_msc3575/sync");
    let body = json!({ "extensions": {
        "io.element.msc4308.thread_subscriptions": { "enabled": true },
        "org.matrix.msc4354.sticky_events": { "enabled": true },
    } });
    let token = Some(&*ann.access_token);
    let answer = ann.http.request("POST", &simplified, token, Some(&body)).await.ok();
    for name in ["io.element.msc4308.thread_subscriptions", "org.matrix.msc4354.sticky_events"] {
        assert!(answer["extensions"].get(name).is_none(), "{answer}");
    }
}
