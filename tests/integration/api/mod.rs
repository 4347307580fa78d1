//! The endpoints, driven over HTTP on the real program. One file for each section of the
//! client-server API; the name of a test is what it shows.

mod accounts;
pub(crate) mod admin;
mod appservice;
mod as_of;
mod capabilities;
mod deactivate;
mod dehydrated;
mod delayed;
mod devices;
mod directory;
mod discovery;
pub(crate) mod encryption;
mod endpoints;
mod errors;
mod filters;
pub(crate) mod guests;
mod hostile;
mod invites;
mod key_backup;
mod limits;
mod login;
mod mail_pushers;
mod media;
mod media_disk;
mod media_memory;
mod membership;
mod old_sync;
mod openid;
mod passwords;
mod powers;
mod presence;
mod preview;
mod profile_account_data;
mod push;
mod push_rules;
mod pushers;
mod quotas;
mod receipts_typing;
mod redacting_bans;
mod registration;
mod relations;
mod rendezvous;
mod reports;
mod restart;
mod rooms_create;
mod search;
mod sending;
mod sessions;
mod shared_secret;
mod sliding;
mod space;
mod state;
mod status;
mod sync;
pub(crate) mod threepids;
mod timeline;
mod timestamp;
mod transitions;
mod transport;
mod uiaa;
mod upgrade;
mod user_directory;
mod voip;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::harness::{Answer, Http, TestServer, User, encode};

/// The password of every user here.
const PASSWORD: &str = "a password that is long enough";

/// A server that the tests which run at the same time share. It ends with the last of them.
async fn server() -> Arc<TestServer> {
    static SHARED: Mutex<Weak<TestServer>> = Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    if let Some(server) = shared.upgrade() {
        return server;
    }
    let server = Arc::new(TestServer::start().await);
    *shared = Arc::downgrade(&server);
    server
}

/// A name that no other test has.
fn unique(name: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A new user.
async fn user(server: &TestServer, name: &str) -> User {
    let body = json!({
        "username": unique(name), "password": PASSWORD, "auth": { "type": "m.login.dummy" },
    });
    let http = server.http();
    let answer = http.request("POST", "/_matrix/client/v3/register", None, Some(&body)).await;
    User::of(&http, answer)
}

/// A request without a token, to `path` under `/_matrix/client/v3`.
async fn anonymous(http: &Http, method: &str, path: &str, body: Option<&Value>) -> Answer {
    http.request(method, &format!("/_matrix/client/v3{path}"), None, body).await
}

/// One racer succeeds, and the others are refused with 400 and this code.
async fn one_wins(racers: Vec<JoinHandle<Answer>>, errcode: &str) {
    let mut won = 0;
    for racer in racers {
        let answer = racer.await.expect("a racer does not panic");
        if answer.status == 200 {
            won += 1;
        } else {
            answer.refused(400, errcode);
        }
    }
    assert_eq!(won, 1);
}

impl User {
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request("GET", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.request("POST", path, Some(&body)).await
    }

    async fn put(&self, path: &str, body: Value) -> Answer {
        self.request("PUT", path, Some(&body)).await
    }

    /// A request to a path under `/rooms/{room}`.
    async fn get_room(&self, room_id: &str, path: &str) -> Answer {
        self.get(&format!("/rooms/{}{path}", encode(room_id))).await
    }

    /// Another device of the same user.
    async fn another_device(&self) -> Self {
        Self::login(&self.http, &self.user_id, PASSWORD).await
    }

    /// What is new since `since`, now.
    async fn news(&self, since: &str) -> Value {
        self.sync(Some(since), 0, None).await
    }

    /// Where the user's sync has got to.
    async fn here(&self) -> String {
        let filter = r#"{"room":{"rooms":[]},"account_data":{"types":[]}}"#;
        next_batch(&self.sync(None, 0, Some(filter)).await)
    }
}

fn next_batch(sync: &Value) -> String {
    string(sync, "next_batch")
}

#[track_caller]
fn string(value: &Value, key: &str) -> String {
    match value[key].as_str() {
        Some(text) => text.to_owned(),
        None => panic!("expected a string `{key}` in {value}"),
    }
}

/// One field of every element of a list.
#[track_caller]
fn each(list: &Value, pointer: &str) -> Vec<String> {
    let Some(list) = list.as_array() else { panic!("expected a list, got {list}") };
    let text = |event: &Value| event.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    list.iter().map(|event| text(event).unwrap_or_default()).collect()
}

/// The texts of a list of messages; other events are left out.
#[track_caller]
fn texts(events: &Value) -> Vec<String> {
    let texts = each(events, "/content/body").into_iter();
    texts.filter(|text| !text.is_empty()).collect()
}

#[track_caller]
fn event_ids(events: &Value) -> Vec<String> {
    each(events, "/event_id")
}
