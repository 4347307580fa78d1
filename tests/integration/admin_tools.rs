//! The requests that tools for administrators make, which nobody here wrote and which run in
//! browsers: each is made as they make it, and what they read of the answer is there. They are in
//! `admin_tools.json`, in the order in which a day of administration could bring them.
//!
//! A row says which tools make the request (`by`), for what, what is sent, in whose name (`as`),
//! and about the answer: its `status`; of which kind the fields are that the tool reads (`reads`;
//! "?" stands for null or nothing); which fields are exactly `is`; what a list `has`; what to
//! `keep` for later requests. With `until`, it is asked until the answer is that. Places are those
//! of a JSON pointer, with `*` for each of them (there is at least one) and `#` for their number.
//! Values stand in braces; in an address, they are encoded unless there is "=" before.

use std::collections::HashMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::administration::{done, user_command};
use crate::harness::{Http, TestServer, User, encode, until_ok};

const PASSWORD: &str = "a password that is long enough";

/// What is between braces, and the tokens of those in whose name requests are made.
struct Run {
    http: Http,
    values: HashMap<String, Value>,
    tokens: HashMap<&'static str, String>,
}

impl Run {
    async fn on(server: &TestServer) -> Self {
        let mut values = HashMap::from([
            ("password".to_owned(), json!(PASSWORD)),
            ("base".to_owned(), json!(server.base())),
            ("later".to_owned(), json!(now() + 3_600_000)),
        ]);
        let mut tokens = HashMap::new();
        for name in ["admin", "bob", "eve", "ann"] {
            let user = User::register(&server.http(), name, PASSWORD).await;
            values.insert(name.to_owned(), json!(user.user_id));
            tokens.insert(name, user.access_token);
        }
        done(user_command(server.data_dir(), "set-admin admin", ""));
        Self { http: server.http(), values, tokens }
    }

    /// A value, and whether it is to be encoded in an address.
    fn value(&self, name: &str) -> (Value, bool) {
        let (name, encoded) = name.strip_prefix('=').map_or((name, true), |name| (name, false));
        let value = match name {
            "now" => json!(now()),
            _ => self.values.get(name).unwrap_or_else(|| panic!("no value {name}")).clone(),
        };
        (value, encoded)
    }

    fn address(&self, address: &str) -> String {
        let mut filled = String::new();
        let mut parts = address.split('{');
        filled.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let (name, rest) = part.split_once('}').expect("a closing brace");
            let (value, encoded) = self.value(name);
            let value = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
            // Addresses that the server named, for example of OAuth 2.0, are of this server.
            let base = self.values["base"].as_str().expect("a text");
            match value.strip_prefix(base) {
                Some(path) => filled.push_str(path),
                None if encoded => filled.push_str(&encode(&value)),
                None => filled.push_str(&value),
            }
            filled.push_str(rest);
        }
        filled
    }

    fn filled(&self, of: &Value) -> Value {
        match of {
            Value::String(text) => {
                let name = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
                name.map_or_else(|| of.clone(), |name| self.value(name).0)
            }
            Value::Array(all) => all.iter().map(|of| self.filled(of)).collect(),
            Value::Object(all) => {
                let all = all.iter().map(|(name, of)| (name.clone(), self.filled(of)));
                Value::Object(all.collect())
            }
            _ => of.clone(),
        }
    }

    async fn ask(&self, row: &Value) -> Result<Value, String> {
        let sent = text(row, "send").expect("a request");
        let (method, path) = sent.split_once(' ').expect("a method and an address");
        let bearer = match text(row, "as") {
            Some("nobody") => None,
            who => Some(format!("Bearer {}", self.tokens[who.unwrap_or("admin")])),
        };
        let mut headers = vec![("origin", "https://admin.example.org")];
        headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
        let body = match (text(row, "file"), row.get("body")) {
            (Some(file), _) => {
                headers.push(("content-type", "text/plain"));
                file.to_owned()
            }
            (None, Some(body)) => {
                headers.push(("content-type", "application/json"));
                self.filled(body).to_string()
            }
            (None, None) => String::new(),
        };
        let answer = self.http.raw(method, &self.address(path), &headers, body).await;
        let found = serde_json::from_slice(&answer.bytes).unwrap_or(Value::Null);
        let wrong = |what: String| format!("{what}, of {method} {path}: {found}");
        if answer.header("access-control-allow-origin") != "*" {
            return Err(wrong("no page may read this".to_owned()));
        }
        let (status, wanted) = (answer.parts.status.as_u16(), &row["status"]);
        if u64::from(status) != wanted.as_u64().unwrap_or(200) {
            return Err(wrong(format!("status {status}")));
        }
        self.judge(row, &found).map_err(wrong)?;
        Ok(found)
    }

    fn judge(&self, row: &Value, found: &Value) -> Result<(), String> {
        for (place, kind) in entries(row, "reads") {
            let kind = kind.as_str().expect("the name of a kind");
            let values = at(found, place);
            if values.is_empty() || !values.iter().all(|value| is_a(value, kind)) {
                return Err(format!("{place} is no {kind}"));
            }
        }
        for (place, wanted) in entries(row, "is") {
            let (values, wanted) = (at(found, place), self.filled(wanted));
            if values != [wanted] {
                return Err(format!("{place} is {values:?}"));
            }
        }
        for (place, wanted) in entries(row, "has") {
            let list = found.pointer(place).and_then(Value::as_array);
            if !list.is_some_and(|list| list.contains(&self.filled(wanted))) {
                return Err(format!("{place} lacks {wanted}"));
            }
        }
        Ok(())
    }

    async fn make(&mut self, row: &Value) {
        let answer = if row["until"] == true {
            until_ok(&row["for"].to_string(), async || self.ask(row).await).await
        } else {
            let (by, why) = (&row["by"], &row["for"]);
            self.ask(row).await.unwrap_or_else(|wrong| panic!("{by}, {why}: {wrong}"))
        };
        for (name, place) in entries(row, "keep") {
            let place = place.as_str().expect("a place");
            let value = answer.pointer(place);
            let value = value.unwrap_or_else(|| panic!("no {place} in {answer}"));
            self.values.insert(name.clone(), value.clone());
        }
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    u64::try_from(now.as_millis()).expect("a time of this age")
}

fn text<'a>(row: &'a Value, name: &str) -> Option<&'a str> {
    row.get(name).map(|of| of.as_str().expect("a text"))
}

fn entries<'a>(row: &'a Value, name: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    row.get(name).and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

/// The values at a place; null where there is none.
fn at(found: &Value, place: &str) -> Vec<Value> {
    let mut values = vec![found.clone()];
    for part in place.split('/').skip(1) {
        let part = part.replace("~1", "/");
        values = values.into_iter().flat_map(|value| inside(&value, &part)).collect();
    }
    values
}

fn inside(value: &Value, part: &str) -> Vec<Value> {
    match (part, value) {
        ("*", Value::Array(all)) => all.clone(),
        ("*", Value::Object(all)) => all.values().cloned().collect(),
        ("#", Value::Array(all)) => vec![json!(all.len())],
        (_, Value::Array(all)) => {
            let index = part.parse::<usize>().ok();
            vec![index.and_then(|index| all.get(index)).cloned().unwrap_or_default()]
        }
        _ => vec![value.get(part).cloned().unwrap_or_default()],
    }
}

fn is_a(value: &Value, kind: &str) -> bool {
    match kind.strip_suffix('?') {
        Some(_) if value.is_null() => true,
        Some(kind) => is_a(value, kind),
        None => match kind {
            "string" => value.is_string(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "list" => value.is_array(),
            "object" => value.is_object(),
            _ => panic!("no kind {kind}"),
        },
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_in_browsers_administer_the_server() {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/admin_tools.json");
    let table = std::fs::read(table).expect("the table of requests");
    let table: Value = serde_json::from_slice(&table).expect("JSON");
    let server = TestServer::start().await;
    let mut run = Run::on(&server).await;
    let rows = table["requests"].as_array().expect("a list of requests");
    for row in rows {
        run.make(row).await;
    }
    // Before a browser sends what is more than a form, it asks whether it may.
    for method in ["PUT", "POST", "DELETE"] {
        let path = "/_synapse/admin/v1/rooms/!a:b/block";
        let headers = [
            ("origin", "https://admin.example.org"),
            ("access-control-request-method", method),
            ("access-control-request-headers", "authorization,content-type"),
        ];
        let answer = run.http.raw("OPTIONS", path, &headers, "").await;
        assert!(answer.parts.status.is_success(), "{answer:?}");
        assert!(answer.header("access-control-allow-methods").contains(method), "{answer:?}");
        let allowed = answer.header("access-control-allow-headers").to_ascii_lowercase();
        assert!(allowed.contains("authorization") && allowed.contains("content-type"), "{allowed}");
    }
}
