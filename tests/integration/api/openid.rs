//! OpenID: a user shows another service who they are.

use serde_json::json;

use super::{server, user};
use crate::harness::{Answer, Http, TestServer, User, encode};

async fn token(of: &User) -> String {
    let path = format!("/user/{}/openid/request_token", encode(&of.user_id));
    let given = of.post(&path, json!({})).await.ok();
    assert_eq!(given["token_type"], "Bearer", "{given}");
    assert_eq!(given["matrix_server_name"], "e2e.test", "{given}");
    assert_eq!(given["expires_in"], 3600, "{given}");
    given["access_token"].as_str().expect("a token").to_owned()
}

async fn userinfo(http: &Http, prefix: &str, token: &str) -> Answer {
    let path = format!("{prefix}/federation/v1/openid/userinfo?access_token={}", encode(token));
    http.request("GET", &path, None, None).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_learns_whose_a_token_is_and_nothing_else_can_be_done_with_it() {
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let (first, second) = (token(&ann).await, token(&ann).await);
    assert_ne!(first, second);
    for prefix in ["/_matrix", "/_svc"] {
        let told = userinfo(&ann.http, prefix, &first).await.ok();
        assert_eq!(told, json!({ "sub": ann.user_id }));
    }
    // It opens nothing here.
    let whoami = "/_matrix/client/v3/account/whoami";
    let tried = ann.http.request("GET", whoami, Some(&first), None).await;
    tried.refused(401, "M_UNKNOWN_TOKEN");
    server.restart().await;
    let http = server.http();
    assert_eq!(userinfo(&http, "/_matrix", &first).await.ok(), json!({ "sub": ann.user_id }));
}

#[tokio::test]
async fn an_unknown_token_or_one_of_a_deactivated_user_is_invalid() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let path = format!("/user/{}/openid/request_token", encode(&bob.user_id));
    ann.post(&path, json!({})).await.refused(403, "M_FORBIDDEN");
    let good = token(&ann).await;
    let http = server.http();
    for bad in [ann.access_token.as_str(), "nonsense", &good[1..], &good[..good.len() - 2]] {
        userinfo(&http, "/_matrix", bad).await.refused(401, "M_UNKNOWN_TOKEN");
    }
    let path = "/_matrix/federation/v1/openid/userinfo";
    http.request("GET", path, None, None).await.refused(401, "M_MISSING_TOKEN");
    let body = json!({ "auth": {
        "type": "m.login.password", "password": super::PASSWORD,
        "identifier": { "type": "m.id.user", "user": ann.user_id },
    }});
    ann.post("/account/deactivate", body).await.ok();
    userinfo(&http, "/_matrix", &good).await.refused(401, "M_UNKNOWN_TOKEN");
}
