//! An application service that behaves, and misbehaves, as a test says.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::stand_in::{News, Reply, Service, reply_json};
use super::{Answer, Asked, Http, TestServer, encode, free_address};

/// How a service answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// As it should.
    Fine,
    /// With this status.
    Status(u16),
    /// After this time.
    Slow(Duration),
    /// Not at all: it hangs up once it has read the request.
    Dies,
    /// Like a service from before the paths had a version.
    Old,
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) method: String,
    /// With the query.
    pub(crate) path: String,
    pub(crate) authorization: String,
    pub(crate) body: Value,
    /// Whether it was answered as it should be.
    pub(crate) answered: bool,
}

struct Inner {
    mood: Mood,
    arrived: Vec<Arrived>,
    /// The paths that exist, with what is done before the answer.
    known: Vec<(String, Make)>,
    /// The answers for these paths.
    said: Vec<(String, Value)>,
}

type Make = Arc<dyn Fn() -> futures_util::future::BoxFuture<'static, ()> + Send + Sync>;

/// A service with its registration file.
pub(crate) struct Bridge {
    directory: TempDir,
    pub(crate) id: String,
    address: SocketAddr,
    inner: Arc<Mutex<Inner>>,
    news: News,
    serving: Option<Service>,
}

impl Bridge {
    /// A service that owns `@_<id>_.*` and `#_<id>_.*`, and listens. `more` is added to its file.
    pub(crate) async fn start(id: &str, more: &str) -> Self {
        let inner =
            Inner { mood: Mood::Fine, arrived: Vec::new(), known: Vec::new(), said: Vec::new() };
        let mut bridge = Self {
            directory: TempDir::new().expect("a temporary directory"),
            id: id.to_owned(),
            address: free_address(),
            inner: Arc::new(Mutex::new(inner)),
            news: News::default(),
            serving: None,
        };
        bridge.listen().await;
        let text = format!(
            "id: {id}\nurl: http://{address}\nas_token: as-{id}\nhs_token: hs-{id}\n\
             sender_localpart: {id}bot\nnamespaces:\n  users:\n  - exclusive: true\n    \
             regex: '@_{id}_.*'\n  aliases:\n  - exclusive: true\n    regex: '#_{id}_.*'\n{more}\n",
            address = bridge.address,
        );
        std::fs::write(bridge.file(), text).expect("a file can be written");
        bridge
    }

    /// The registration file.
    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("registration.yaml")
    }

    /// Listens, always on the same port.
    pub(crate) async fn listen(&mut self) {
        let listener = self.bound().await;
        let (inner, news) = (Arc::clone(&self.inner), self.news.clone());
        let answered = move |asked| answer(asked, Arc::clone(&inner), news.clone());
        self.serving = Some(Service::on(listener, answered));
    }

    /// The listener. Programs that other tests start inherit the sockets of this process until they
    /// run, so the port of a closed one may stay taken for a moment.
    async fn bound(&self) -> TcpListener {
        let begun = Instant::now();
        loop {
            match TcpListener::bind(self.address).await {
                Ok(listener) => return listener,
                Err(error)
                    if error.kind() == ErrorKind::AddrInUse
                        && begun.elapsed() < Duration::from_secs(10) =>
                {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(error) => panic!("{} cannot be listened on: {error}", self.address),
            }
        }
    }

    /// Goes away, with all its connections, until [`Bridge::listen`].
    pub(crate) async fn vanish(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.stop().await;
        }
    }

    pub(crate) fn is(&self, mood: Mood) {
        self.inner.lock().expect("no panic").mood = mood;
    }

    /// Makes this path (without its prefix) exist: `make` is done before the answer.
    pub(crate) fn knows<F>(&self, path: &str, make: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let make: Make = Arc::new(move || Box::pin(make()));
        self.inner.lock().expect("no panic").known.push((path.to_owned(), make));
    }

    /// Gives this answer for this path (without its prefix).
    pub(crate) fn says(&self, path: &str, body: Value) {
        self.knows(path, || async {});
        self.inner.lock().expect("no panic").said.push((path.to_owned(), body));
    }

    /// Everything that arrived.
    pub(crate) fn arrived(&self) -> Vec<Arrived> {
        self.inner.lock().expect("no panic").arrived.clone()
    }

    /// The transactions that arrived, answered or not: id and body.
    pub(crate) fn transactions(&self) -> Vec<(String, Value, bool)> {
        let arrived = self.arrived().into_iter();
        let transactions = arrived.filter_map(|arrived| {
            let (_, id) = arrived.path.split_once("/transactions/")?;
            Some((id.to_owned(), arrived.body, arrived.answered))
        });
        transactions.collect()
    }

    /// The items of this list of all transactions, without repetitions, which must be identical.
    #[track_caller]
    pub(crate) fn told(&self, list: &str) -> Vec<Value> {
        let mut last: Option<(String, Value)> = None;
        let mut seen = std::collections::BTreeSet::new();
        let mut told = Vec::new();
        for (id, body, _) in self.transactions() {
            if let Some((last_id, last_body)) = &last
                && *last_id == id
            {
                assert_eq!(*last_body, body, "transaction {id} is not the same again");
                continue;
            }
            assert!(seen.insert(id.clone()), "transaction {id} comes again after another one");
            told.extend(body[list].as_array().cloned().unwrap_or_default());
            last = Some((id, body));
        }
        told
    }

    /// The texts of the messages that it was told of.
    #[track_caller]
    pub(crate) fn texts(&self) -> Vec<String> {
        let told = self.told("events").into_iter();
        told.filter_map(|event| Some(event["content"]["body"].as_str()?.to_owned())).collect()
    }

    /// Waits until this holds.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let came = self.news.until(|| holds(self)).await;
        assert!(came, "it never came to this: {what}; arrived: {:#?}", self.arrived());
    }

    /// A request of this service to the server, as one of its users.
    pub(crate) async fn request(
        &self,
        server: &TestServer,
        method: &str,
        path: &str,
        user_id: Option<&str>,
        body: Option<&Value>,
    ) -> Answer {
        self.request_by(&server.http(), method, path, user_id, body).await
    }

    /// Like [`Self::request`], over this client.
    pub(crate) async fn request_by(
        &self,
        http: &Http,
        method: &str,
        path: &str,
        user_id: Option<&str>,
        body: Option<&Value>,
    ) -> Answer {
        let joint = if path.contains('?') { '&' } else { '?' };
        let user = user_id.map(|user_id| format!("{joint}user_id={}", encode(user_id)));
        let path = format!("/_matrix/client{path}{}", user.unwrap_or_default());
        http.request(method, &path, Some(&format!("as-{}", self.id)), body).await
    }

    /// Registers a user `@_<id>_<name>` and returns its id.
    pub(crate) async fn ghost(&self, server: &TestServer, name: &str) -> String {
        let username = format!("_{}_{name}", self.id);
        let body = json!({
            "type": "m.login.application_service", "username": username, "inhibit_login": true,
        });
        self.request(server, "POST", "/v3/register", None, Some(&body)).await.ok_string("user_id")
    }
}

async fn answer(asked: Asked, inner: Arc<Mutex<Inner>>, news: News) -> Reply {
    let Asked { method, path, headers, body, .. } = asked;
    let authorization = headers.get("authorization");
    let authorization = authorization.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let authorization = authorization.to_owned();
    let mood = inner.lock().expect("no panic").mood;
    if let Mood::Slow(wait) = mood {
        tokio::time::sleep(wait).await;
    }
    let short = path.strip_prefix("/_matrix/app/v1");
    let (status, make, said) = {
        let inner = inner.lock().expect("no panic");
        let known = inner.known.iter().find(|(known, _)| short.unwrap_or(&path) == known);
        let (is_question, make) = (method == "GET", known.map(|(_, make)| Arc::clone(make)));
        let said = inner.said.iter().find(|(known, _)| short == Some(known));
        let said = said.map_or_else(|| json!({}), |(_, said)| said.clone());
        match mood {
            Mood::Status(status) => (status, None, said),
            Mood::Old if short.is_some() => (404, None, said),
            _ if is_question && make.is_none() => (404, None, said),
            _ => (200, make, said),
        }
    };
    if let Some(make) = make {
        make().await;
    }
    let answered = status == 200 && mood != Mood::Dies;
    let arrived = Arrived { method, path, authorization, body, answered };
    inner.lock().expect("no panic").arrived.push(arrived);
    news.tell();
    if mood == Mood::Dies {
        return None;
    }
    let body = match status {
        200 => said,
        // An old service sends no `errcode`.
        404 if mood != Mood::Old => json!({ "errcode": "M_NOT_FOUND", "error": "not here" }),
        _ => json!({ "error": "no" }),
    };
    reply_json(status, &body)
}
