//! Where two devices meet, one of which signs the other in.

use serde_json::{Value, json};

use super::{server, user};
use crate::harness::{Answer, Http, TestServer, User};

const PATH: &str = "/_matrix/client/unstable/io.element.msc4388/rendezvous";
const FORMER: &str = "/_matrix/client/unstable/org.matrix.msc4108/rendezvous";

async fn begin(by: &User, data: &str) -> (String, String) {
    let body = json!({ "data": data });
    let begun = by.http.request("POST", PATH, Some(&by.access_token), Some(&body)).await.ok();
    let lasts = begun["expires_in_ms"].as_u64().expect("a time");
    assert!((120_000..=300_000).contains(&lasts), "{begun}");
    let text = |name: &str| begun[name].as_str().expect("a text").to_owned();
    (text("id"), text("sequence_token"))
}

async fn ask(http: &Http, method: &str, path: &str, body: Option<Value>) -> Answer {
    http.request(method, &format!("{PATH}/{path}"), None, body.as_ref()).await
}

fn left(seen: &str, data: &str) -> Option<Value> {
    Some(json!({ "sequence_token": seen, "data": data }))
}

#[tokio::test]
async fn two_devices_leave_texts_for_each_other_by_turns() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (id, first) = begin(&ann, "from the old device").await;
    // The new one has no token.
    let new = server.http();
    let found = ask(&new, "GET", &id, None).await.ok();
    assert_eq!(found["data"], "from the old device", "{found}");
    assert_eq!(found["sequence_token"], first.as_str(), "{found}");
    let written = ask(&new, "PUT", &id, left(&first, "from the new device")).await.ok();
    let second = written["sequence_token"].as_str().expect("a text").to_owned();
    assert_ne!(first, second);
    // What it has not seen it cannot replace.
    let late = ask(&ann.http, "PUT", &id, left(&first, "late")).await;
    late.refused(409, "IO_ELEMENT_MSC4388_CONCURRENT_WRITE");
    let found = ask(&ann.http, "GET", &id, None).await.ok();
    assert_eq!(found["data"], "from the new device", "{found}");
    // With a transaction id the same request has the same outcome.
    let one = format!("{id}/one");
    let third = ask(&ann.http, "PUT", &one, left(&second, "again")).await.ok();
    assert_eq!(ask(&ann.http, "PUT", &one, left(&second, "again")).await.ok(), third);
    assert_eq!(ask(&new, "GET", &id, None).await.ok()["sequence_token"], third["sequence_token"]);
    ask(&new, "DELETE", &id, None).await.ok();
    for method in ["GET", "DELETE"] {
        ask(&new, method, &id, None).await.refused(404, "M_NOT_FOUND");
    }
    ask(&new, "PUT", &id, left("1", "more")).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn meetings_are_begun_by_users_with_short_texts_and_are_no_pages() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let http = server.http();
    let available = |answer: Value| answer["create_available"].clone();
    let token = Some(ann.access_token.as_str());
    assert_eq!(available(http.request("GET", PATH, token, None).await.ok()), true);
    assert_eq!(available(http.request("GET", PATH, None, None).await.ok()), false);
    let body = json!({ "data": "" });
    http.request("POST", PATH, None, Some(&body)).await.refused(403, "M_FORBIDDEN");
    let wrong = http.request("POST", PATH, Some("wrong"), Some(&body)).await;
    wrong.refused(401, "M_UNKNOWN_TOKEN");
    let (id, first) = begin(&ann, &"x".repeat(4096)).await;
    let long = "x".repeat(4097);
    let body = json!({ "data": long });
    http.request("POST", PATH, token, Some(&body)).await.refused(413, "M_TOO_LARGE");
    ask(&http, "PUT", &id, left(&first, &long)).await.refused(413, "M_TOO_LARGE");
    http.request("POST", PATH, token, Some(&json!({}))).await.refused(400, "M_MISSING_PARAM");
    ask(&http, "PUT", &id, Some(json!({ "data": 1, "sequence_token": "1" })))
        .await
        .refused(400, "M_BAD_JSON");
    for header in [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")] {
        let answer = http.raw("GET", &format!("{PATH}/{id}"), &[header], "").await;
        answer.json().refused(403, "M_FORBIDDEN");
    }
    let headers = [("sec-fetch-mode", "cors"), ("sec-fetch-dest", "empty")];
    http.raw("GET", &format!("{PATH}/{id}"), &headers, "").await.json().ok();
    // The former version, where nobody says who they are, is closed.
    let text = [("content-type", "text/plain")];
    http.raw("POST", FORMER, &text, "hello").await.json().refused(404, "M_UNRECOGNIZED");
}

#[tokio::test]
async fn devices_that_speak_the_former_version_meet_by_the_headers_of_http() {
    let server = TestServer::start_with(&[("LOGCABIN_RENDEZVOUS_FOR_ANYONE", "true")]).await;
    let http = server.http();
    let text = ("content-type", "text/plain");
    let begun = http.raw("POST", FORMER, &[text], "hello").await;
    assert_eq!(begun.parts.status, 201);
    let first = begun.header("etag").to_owned();
    for header in ["expires", "last-modified"] {
        assert!(begun.header(header).ends_with(" GMT"), "{begun:?}");
    }
    assert_eq!(begun.header("cache-control"), "no-store");
    assert_eq!(begun.header("access-control-expose-headers"), "ETag");
    let url = begun.json().body["url"].as_str().expect("an address").to_owned();
    let path = url.strip_prefix(&server.base()).expect("an address of this server").to_owned();
    let found = http.raw("GET", &path, &[], "").await;
    assert_eq!((found.bytes.as_ref(), found.header("etag")), (&b"hello"[..], first.as_str()));
    assert_eq!(found.header("content-type"), "text/plain");
    let same = http.raw("GET", &path, &[("if-none-match", &first)], "").await;
    assert_eq!((same.parts.status.as_u16(), same.bytes.len()), (304, 0));
    let put = |tag: String, data: &'static str| {
        let (http, path) = (http.clone(), path.clone());
        async move { http.raw("PUT", &path, &[text, ("if-match", &tag)], data).await }
    };
    let written = put(first.clone(), "hello back").await;
    assert_eq!(written.parts.status, 202);
    let second = written.header("etag").to_owned();
    assert_ne!(first, second);
    put(first, "late").await.json().refused(412, "M_CONCURRENT_WRITE");
    http.raw("PUT", &path, &[text], "who?").await.json().refused(400, "M_MISSING_PARAM");
    let html = [("content-type", "text/html"), ("if-match", second.as_str())];
    http.raw("PUT", &path, &html, "<b>").await.json().refused(400, "M_INVALID_PARAM");
    let long = http.raw("POST", FORMER, &[text], "x".repeat(4097)).await;
    long.json().refused(413, "M_TOO_LARGE");
    // Browsers ask first whether they may send these headers.
    let asked = http.raw("OPTIONS", &path, &[], "").await;
    let allowed = asked.header("access-control-allow-headers");
    assert!(allowed.contains("If-Match") && allowed.contains("If-None-Match"), "{asked:?}");
    assert_eq!(http.raw("DELETE", &path, &[], "").await.parts.status, 204);
    http.raw("GET", &path, &[], "").await.json().refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn there_are_no_meetings_where_there_are_to_be_none() {
    let server = TestServer::start_with(&[("LOGCABIN_RENDEZVOUS_ENABLED", "false")]).await;
    let ann = server.register("ann").await;
    let token = Some(ann.access_token.as_str());
    ann.http.request("GET", PATH, token, None).await.refused(404, "M_UNRECOGNIZED");
    let body = json!({ "data": "" });
    ann.http.request("POST", PATH, token, Some(&body)).await.refused(404, "M_UNRECOGNIZED");
    let versions = ann.http.request("GET", "/_matrix/client/versions", None, None).await.ok();
    assert_eq!(versions["unstable_features"]["io.element.msc4388"], false);
}
