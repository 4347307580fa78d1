//! A push gateway that behaves, and misbehaves, as a test says.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::stand_in::{News, Reply, Service, reply_json};
use super::{Asked, Mood, TestServer, User};

#[derive(Default)]
struct Inner {
    mood: Option<Mood>,
    rejected: Vec<String>,
    /// What was asked, and whether it was answered as it should be.
    arrived: Vec<(Value, bool)>,
}

/// A gateway that listens.
pub(crate) struct Gateway {
    inner: Arc<Mutex<Inner>>,
    news: News,
    service: Service,
}

impl Gateway {
    pub(crate) async fn start() -> Self {
        let (inner, news) = (Arc::<Mutex<Inner>>::default(), News::default());
        let (hears, tells) = (Arc::clone(&inner), news.clone());
        let answered = move |asked| answer(asked, Arc::clone(&hears), tells.clone());
        Self { inner, news, service: Service::start(answered).await }
    }

    /// A server that asks gateways on this machine.
    pub(crate) async fn server(more: &[(&str, &str)]) -> TestServer {
        let mut settings = vec![
            ("LOGCABIN_PUSH_ALLOW_HTTP", "true"),
            ("LOGCABIN_PUSH_ALLOWED_NETWORKS", "127.0.0.0/8"),
        ];
        settings.extend(more);
        TestServer::start_with(&settings).await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/_matrix/push/v1/notify", self.service.address)
    }

    /// The body that sets a pusher with this key.
    pub(crate) fn pusher(&self, pushkey: &str) -> Value {
        json!({
            "app_id": "org.example.app", "pushkey": pushkey, "kind": "http", "lang": "en",
            "app_display_name": "App", "device_display_name": "Phone",
            "data": { "url": self.url(), "brand": "b" },
        })
    }

    /// Has the user's notifications sent here.
    pub(crate) async fn serves(&self, user: &User, pushkey: &str) {
        user.request("POST", "/pushers/set", Some(&self.pusher(pushkey))).await.ok();
    }

    pub(crate) fn is(&self, mood: Mood) {
        self.inner.lock().expect("no panic").mood = Some(mood);
    }

    /// Rejects this key from now on.
    pub(crate) fn rejects(&self, pushkey: &str) {
        self.inner.lock().expect("no panic").rejected.push(pushkey.to_owned());
    }

    /// Everything that was asked for this key, answered or not.
    pub(crate) fn asked(&self, pushkey: &str) -> Vec<(Value, bool)> {
        let inner = self.inner.lock().expect("no panic");
        let is_for = |body: &Value| body["notification"]["devices"][0]["pushkey"] == pushkey;
        let of_key = inner.arrived.iter().filter(|(body, _)| is_for(body));
        of_key.map(|(body, answered)| (body["notification"].clone(), *answered)).collect()
    }

    /// The notifications that it took for this key, in order.
    pub(crate) fn took(&self, pushkey: &str) -> Vec<Value> {
        let asked = self.asked(pushkey).into_iter();
        asked.filter(|(_, answered)| *answered).map(|(notification, _)| notification).collect()
    }

    /// The ids of the events that it was notified of for this key, in order.
    pub(crate) fn events(&self, pushkey: &str) -> Vec<String> {
        let took = self.took(pushkey);
        took.iter().filter_map(|told| told["event_id"].as_str().map(str::to_owned)).collect()
    }

    /// The counts in notifications without an event for this key, in order.
    pub(crate) fn counts(&self, pushkey: &str) -> Vec<u64> {
        let took = self.took(pushkey).into_iter();
        let alone = took.filter(|told| told.get("event_id").is_none());
        alone.map(|told| told["counts"]["unread"].as_u64().expect("a count")).collect()
    }

    /// Waits until this holds.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        if !self.news.until(|| holds(self)).await {
            let inner = self.inner.lock().expect("no panic");
            let last = inner.arrived.iter().rev().take(5).collect::<Vec<_>>();
            panic!("never came: {what}; of {} requests the last: {last:#?}", inner.arrived.len());
        }
    }

    /// Waits until these events, and no others, arrived for this key, in this order.
    pub(crate) async fn until_events(&self, pushkey: &str, events: &[String]) {
        self.until(&format!("{} events for {pushkey}", events.len()), |gateway| {
            gateway.events(pushkey).len() >= events.len()
        })
        .await;
        assert_eq!(self.events(pushkey), events, "for {pushkey}");
    }
}

async fn answer(asked: Asked, inner: Arc<Mutex<Inner>>, news: News) -> Reply {
    let fits = asked.method == "POST" && asked.path == "/_matrix/push/v1/notify";
    let mood = inner.lock().expect("no panic").mood.unwrap_or(Mood::Fine);
    if let Mood::Slow(wait) = mood {
        tokio::time::sleep(wait).await;
    }
    let status = match mood {
        Mood::Status(status) => status,
        _ if !fits => 404,
        _ => 200,
    };
    let rejected = {
        let mut inner = inner.lock().expect("no panic");
        inner.arrived.push((asked.body, status == 200 && mood != Mood::Dies));
        inner.rejected.clone()
    };
    news.tell();
    if mood == Mood::Dies {
        return None;
    }
    reply_json(status, &json!({ "rejected": rejected }))
}
