//! What OAuth clients were granted, record by record: for the answer to why a client or a user has
//! the grants that it has.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::why::Change;

/// Whose grants are in question.
pub(super) enum Whose<'a> {
    /// Those of the client with this id.
    Client(&'a str),
    /// Those of this user.
    User(&'a str),
}

impl Whose<'_> {
    fn is(&self, payload: &Value) -> bool {
        match self {
            Self::Client(id) => payload["client_id"] == **id,
            Self::User(id) => payload["user_id"] == **id,
        }
    }
}

/// The grants as of some record.
#[derive(Default)]
pub(super) struct Grants {
    client: Option<Value>,
    grants: BTreeMap<String, Value>,
    /// The codes of device requests of the client in question.
    requests: BTreeSet<String>,
}

impl Grants {
    /// The effect of a record with this payload; `None` if it is about something else.
    pub(super) fn change(
        &mut self,
        kind: &str,
        payload: &Value,
        whose: &Whose<'_>,
    ) -> Option<Change> {
        match kind {
            "oauth.client" => {
                whose.is(payload).then_some(())?;
                let metadata = &payload["metadata"];
                let names = ["client_name", "client_uri", "application_type", "redirect_uris"];
                let told = names.map(|name| (name.to_owned(), metadata[name].clone()));
                self.client = Some(Value::Object(told.into_iter().collect()));
            }
            "oauth.client_remove" => {
                let Whose::Client(id) = whose else { return None };
                payload["clients"].as_array()?.iter().any(|gone| gone == *id).then_some(())?;
                self.client = None;
            }
            "oauth.code" => return whose.is(payload).then_some(Change::Stays),
            "oauth.device_request" => {
                whose.is(payload).then_some(())?;
                self.requests.insert(payload["device_code"].as_str()?.to_owned());
                return Some(Change::Stays);
            }
            "oauth.device_answer" => {
                let asked =
                    || self.requests.contains(payload["device_code"].as_str()?).then_some(());
                let is = match whose {
                    Whose::Client(_) => asked().is_some(),
                    Whose::User(_) => whose.is(payload),
                };
                return is.then_some(Change::Stays);
            }
            "oauth.grant" => {
                whose.is(payload).then_some(())?;
                let names = ["user_id", "client_id", "device_id", "scope"];
                let told = names.map(|name| (name.to_owned(), payload[name].clone()));
                let grant_id = payload["grant_id"].as_str()?.to_owned();
                self.grants.insert(grant_id, Value::Object(told.into_iter().collect()));
            }
            "oauth.refresh" | "oauth.confirm" => {
                let known = self.grants.contains_key(payload["grant_id"].as_str()?);
                return known.then_some(Change::Stays);
            }
            "oauth.end" => {
                let ended: Vec<_> = payload["grants"].as_array()?.iter().collect();
                self.end(|id, _| ended.iter().any(|ended| *ended == id)).then_some(())?;
            }
            "device.refresh" | "device.confirm" => {
                let here = |grant: &Value| is_device(grant, payload, &payload["device_id"]);
                return self.grants.values().any(here).then_some(Change::Stays);
            }
            "device.login" => {
                self.end(|_, grant| is_device(grant, payload, &payload["device_id"]))
                    .then_some(())?;
            }
            "device.remove" => {
                let gone = payload["devices"].as_array()?;
                let is_gone = |grant: &Value| gone.iter().any(|id| is_device(grant, payload, id));
                self.end(|_, grant| is_gone(grant)).then_some(())?;
            }
            "user.deactivate" => {
                self.end(|_, grant| grant["user_id"] == payload["user_id"]).then_some(())?;
            }
            _ => return None,
        }
        Some(self.value(whose))
    }

    /// Ends some grants; whether there were any.
    fn end(&mut self, ends: impl Fn(&str, &Value) -> bool) -> bool {
        let before = self.grants.len();
        self.grants.retain(|id, grant| !ends(id, grant));
        self.grants.len() < before
    }

    fn value(&self, whose: &Whose<'_>) -> Change {
        match (whose, &self.client) {
            (Whose::Client(_), None) if self.grants.is_empty() => Change::Ends,
            (Whose::Client(_), client) => {
                Change::Becomes(json!({ "client": client, "grants": self.grants }))
            }
            (Whose::User(_), _) => Change::Becomes(json!(self.grants)),
        }
    }
}

fn is_device(grant: &Value, payload: &Value, device_id: &Value) -> bool {
    grant["user_id"] == payload["user_id"]
        && grant["device_id"] == *device_id
        && !device_id.is_null()
}
