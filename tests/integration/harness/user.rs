//! A user with one device, and the requests tests make in their name.

use serde_json::{Value, json};

use super::http::encode;
use super::{Answer, Http, Unreachable};

/// Which way `/messages` is read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Direction {
    /// From new to old.
    Back,
    /// From old to new.
    Forward,
}

/// A logged-in user. Survives a restart of the server: it holds an address and a token only.
#[derive(Clone)]
pub(crate) struct User {
    pub(crate) http: Http,
    pub(crate) user_id: String,
    pub(crate) access_token: String,
    pub(crate) device_id: String,
}

impl User {
    /// Registers through user-interactive authentication: asks first, then completes
    /// `m.login.dummy`.
    pub(crate) async fn register(http: &Http, username: &str, password: &str) -> Self {
        let path = "/_matrix/client/v3/register";
        let mut body = json!({ "username": username, "password": password });
        let asked = http.request("POST", path, None, Some(&body)).await;
        assert!(asked.status == 401, "expected the flows of the registration, got {asked}");
        let Some(session) = asked.body["session"].as_str() else {
            panic!("expected a session in {asked}")
        };
        body["auth"] = json!({ "type": "m.login.dummy", "session": session });
        Self::of(http, http.request("POST", path, None, Some(&body)).await)
    }

    /// Logs in with a password, as a new device.
    pub(crate) async fn login(http: &Http, username: &str, password: &str) -> Self {
        let body = json!({
            "type": "m.login.password",
            "identifier": { "type": "m.id.user", "user": username },
            "password": password,
        });
        Self::of(http, http.request("POST", "/_matrix/client/v3/login", None, Some(&body)).await)
    }

    #[track_caller]
    pub(crate) fn of(http: &Http, answer: Answer) -> Self {
        let shown = answer.to_string();
        let body = answer.ok();
        let string = |key: &str| match body[key].as_str() {
            Some(value) => value.to_owned(),
            None => panic!("expected a string `{key}` in {shown}"),
        };
        Self {
            http: http.clone(),
            user_id: string("user_id"),
            access_token: string("access_token"),
            device_id: string("device_id"),
        }
    }

    /// The part of the user's id before the colon.
    pub(crate) fn localpart(&self) -> &str {
        let name = self.user_id.trim_start_matches('@');
        name.split_once(':').map_or(name, |(localpart, _)| localpart)
    }

    /// A request with this user's token, to `path` under `/_matrix/client/v3`.
    pub(crate) async fn try_request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, Unreachable> {
        let path = format!("/_matrix/client/v3{path}");
        self.http.try_request(method, &path, Some(&self.access_token), body).await
    }

    /// Like [`Self::try_request`], to a server that is expected to answer.
    pub(crate) async fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        match self.try_request(method, path, body).await {
            Ok(answer) => answer,
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// Creates a room and returns its id.
    pub(crate) async fn create_room(&self, options: Value) -> String {
        self.request("POST", "/createRoom", Some(&options)).await.ok_string("room_id")
    }

    /// Joins a room by id or alias.
    pub(crate) async fn join(&self, room: &str) -> Answer {
        self.request("POST", &format!("/join/{}", encode(room)), Some(&json!({}))).await
    }

    /// A membership action of this user on a room: `leave`, `forget`, or with a target `invite`,
    /// `kick`, `ban`, `unban`.
    pub(crate) async fn act(&self, room_id: &str, action: &str, target: Option<&Self>) -> Answer {
        let body = target.map_or_else(|| json!({}), |target| json!({ "user_id": target.user_id }));
        let path = format!("/rooms/{}/{action}", encode(room_id));
        self.request("POST", &path, Some(&body)).await
    }

    /// Sends an event of any type under a transaction id.
    pub(crate) async fn send(
        &self,
        room_id: &str,
        event_type: &str,
        txn_id: &str,
        content: &Value,
    ) -> Answer {
        let room_id = encode(room_id);
        let event_type = encode(event_type);
        let path = format!("/rooms/{room_id}/send/{event_type}/{}", encode(txn_id));
        self.request("PUT", &path, Some(content)).await
    }

    /// Sends a text under a transaction id.
    pub(crate) async fn try_send_text(
        &self,
        room_id: &str,
        txn_id: &str,
        body: &str,
    ) -> Result<Answer, Unreachable> {
        let path = format!("/rooms/{}/send/m.room.message/{txn_id}", encode(room_id));
        let content = json!({ "msgtype": "m.text", "body": body });
        self.try_request("PUT", &path, Some(&content)).await
    }

    /// Like [`Self::try_send_text`], to a server that is expected to take it; returns the event id.
    pub(crate) async fn send_text(&self, room_id: &str, txn_id: &str, body: &str) -> String {
        match self.try_send_text(room_id, txn_id, body).await {
            Ok(answer) => answer.ok_string("event_id"),
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// The content of one state event.
    pub(crate) async fn state(&self, room_id: &str, event_type: &str, state_key: &str) -> Answer {
        self.request("GET", &state_path(room_id, event_type, state_key), None).await
    }

    pub(crate) async fn set_state(
        &self,
        room_id: &str,
        event_type: &str,
        state_key: &str,
        content: &Value,
    ) -> Answer {
        self.request("PUT", &state_path(room_id, event_type, state_key), Some(content)).await
    }

    /// One `/sync`; `filter` is a filter's id or its JSON.
    pub(crate) async fn try_sync(
        &self,
        since: Option<&str>,
        timeout_ms: u64,
        filter: Option<&str>,
    ) -> Result<Answer, Unreachable> {
        // Offline, so that changes of presence do not mix with what the test is about.
        let mut path = format!("/sync?set_presence=offline&timeout={timeout_ms}");
        if let Some(since) = since {
            path.push_str(&format!("&since={}", encode(since)));
        }
        if let Some(filter) = filter {
            path.push_str(&format!("&filter={}", encode(filter)));
        }
        self.try_request("GET", &path, None).await
    }

    /// Like [`Self::try_sync`], to a server that is expected to answer well.
    pub(crate) async fn sync(
        &self,
        since: Option<&str>,
        timeout_ms: u64,
        filter: Option<&str>,
    ) -> Value {
        match self.try_sync(since, timeout_ms, filter).await {
            Ok(answer) => answer.ok(),
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// One page of a room's history.
    pub(crate) async fn try_messages(
        &self,
        room_id: &str,
        from: Option<&str>,
        to: Option<&str>,
        direction: Direction,
        limit: u32,
    ) -> Result<Answer, Unreachable> {
        let direction = match direction {
            Direction::Back => 'b',
            Direction::Forward => 'f',
        };
        let mut path = format!("/rooms/{}/messages?dir={direction}&limit={limit}", encode(room_id));
        if let Some(from) = from {
            path.push_str(&format!("&from={}", encode(from)));
        }
        if let Some(to) = to {
            path.push_str(&format!("&to={}", encode(to)));
        }
        self.try_request("GET", &path, None).await
    }

    /// Like [`Self::try_messages`], to a server that is expected to answer well.
    pub(crate) async fn messages(
        &self,
        room_id: &str,
        from: Option<&str>,
        to: Option<&str>,
        direction: Direction,
        limit: u32,
    ) -> Value {
        match self.try_messages(room_id, from, to, direction, limit).await {
            Ok(answer) => answer.ok(),
            Err(error) => panic!("no answer: {error}"),
        }
    }
}

fn state_path(room_id: &str, event_type: &str, state_key: &str) -> String {
    format!("/rooms/{}/state/{}/{}", encode(room_id), encode(event_type), encode(state_key))
}
