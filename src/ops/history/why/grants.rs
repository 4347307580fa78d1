//! What OAuth clients were granted, record by record, to explain the grants of a client or a user.

use std::collections::{BTreeMap, BTreeSet};

use ruma::{DeviceId, OwnedDeviceId, OwnedUserId, UserId};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Affects, Answer, Chain, Change};
use logcabin_record::command::{
    DeviceConfirm, DeviceLogin, DeviceRefresh, DeviceRemove, OauthClient, OauthClientRemove,
    OauthCode, OauthConfirm, OauthDeviceAnswer, OauthDeviceRequest, OauthEnd, OauthGrant,
    OauthRefresh, TokenHash, UserDeactivate, topic,
};

/// Whose grants are in question.
pub(super) enum GrantOwner<'a> {
    /// Those of the client with this id.
    Client(&'a str),
    /// Those of this user.
    User(&'a str),
}

impl GrantOwner<'_> {
    fn is_client(&self, client_id: &str) -> bool {
        matches!(self, Self::Client(id) if *id == client_id)
    }

    fn is_user(&self, user_id: &UserId) -> bool {
        matches!(self, Self::User(id) if *id == user_id.as_str())
    }
}

/// The grants as of some record.
#[derive(Default)]
pub(super) struct Grants {
    client: Option<Value>,
    grants: BTreeMap<String, Grant>,
    /// The codes of device requests of the client in question.
    requests: BTreeSet<TokenHash>,
}

#[derive(Serialize)]
struct Grant {
    user_id: OwnedUserId,
    client_id: String,
    device_id: Option<OwnedDeviceId>,
    scope: String,
}

impl Grant {
    fn is_of_device(&self, user_id: &UserId, device_id: &DeviceId) -> bool {
        self.user_id == user_id && self.device_id.as_deref() == Some(device_id)
    }
}

impl Grants {
    fn value(&self, whose: &GrantOwner<'_>) -> Change {
        match (whose, &self.client) {
            (GrantOwner::Client(_), None) if self.grants.is_empty() => Change::Ends,
            (GrantOwner::Client(_), client) => {
                Change::Becomes(json!({ "client": client, "grants": self.grants }))
            }
            (GrantOwner::User(_), _) => Change::Becomes(json!(self.grants)),
        }
    }

    /// Says that nothing changes, if the record is about one of the grants.
    fn stay(&self, is_it: impl Fn(&Grant) -> bool) -> Answer {
        Ok(self.grants.values().any(is_it).then_some(Change::Stays))
    }

    /// Ends some of the grants, if there are any.
    fn end(&mut self, whose: &GrantOwner<'_>, ends: impl Fn(&str, &Grant) -> bool) -> Answer {
        let before = self.grants.len();
        self.grants.retain(|id, grant| !ends(id, grant));
        Ok((self.grants.len() < before).then(|| self.value(whose)))
    }
}

impl Affects<topic::Grants> for OauthClient {
    fn change(&self, chain: &mut Chain<'_>, shown: &Value) -> Answer {
        let (grants, whose) = chain.grants();
        if !whose.is_client(&self.client_id) {
            return Ok(None);
        }
        let names = ["client_name", "client_uri", "application_type", "redirect_uris"];
        let told = names.map(|name| (name.to_owned(), shown["metadata"][name].clone()));
        grants.client = Some(Value::Object(told.into_iter().collect()));
        Ok(Some(grants.value(&whose)))
    }
}

impl Affects<topic::Grants> for OauthClientRemove {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let (grants, whose) = chain.grants();
        if !self.clients.iter().any(|gone| whose.is_client(gone)) {
            return Ok(None);
        }
        grants.client = None;
        Ok(Some(grants.value(&whose)))
    }
}

impl Affects<topic::Grants> for OauthCode {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let (_, whose) = chain.grants();
        let is_it = whose.is_client(&self.client_id) || whose.is_user(&self.user_id);
        Ok(is_it.then_some(Change::Stays))
    }
}

impl Affects<topic::Grants> for OauthDeviceRequest {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let (grants, whose) = chain.grants();
        if !whose.is_client(&self.client_id) {
            return Ok(None);
        }
        grants.requests.insert(self.device_code);
        Ok(Some(Change::Stays))
    }
}

impl Affects<topic::Grants> for OauthDeviceAnswer {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let (grants, whose) = chain.grants();
        let is_it = whose.is_user(&self.user_id) || grants.requests.contains(&self.device_code);
        Ok(is_it.then_some(Change::Stays))
    }
}

impl Affects<topic::Grants> for OauthGrant {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let (grants, whose) = chain.grants();
        if !whose.is_client(&self.client_id) && !whose.is_user(&self.user_id) {
            return Ok(None);
        }
        let Self { grant_id, user_id, client_id, device_id, scope, .. } = self.clone();
        grants.grants.insert(grant_id, Grant { user_id, client_id, device_id, scope });
        Ok(Some(grants.value(&whose)))
    }
}

impl Affects<topic::Grants> for OauthRefresh {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(chain.grants.grants.contains_key(&self.grant_id).then_some(Change::Stays))
    }
}

impl Affects<topic::Grants> for OauthConfirm {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(chain.grants.grants.contains_key(&self.grant_id).then_some(Change::Stays))
    }
}

impl Affects<topic::Grants> for OauthEnd {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let (grants, whose) = chain.grants();
        grants.end(&whose, |id, _| self.grants.iter().any(|ended| ended == id))
    }
}

impl Affects<topic::Grants> for DeviceRefresh {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        chain.grants.stay(|grant| grant.is_of_device(&self.user_id, &self.device_id))
    }
}

impl Affects<topic::Grants> for DeviceConfirm {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        chain.grants.stay(|grant| grant.is_of_device(&self.user_id, &self.device_id))
    }
}

impl Affects<topic::Grants> for DeviceLogin {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let (grants, whose) = chain.grants();
        grants.end(&whose, |_, grant| grant.is_of_device(&self.user_id, &self.device_id))
    }
}

impl Affects<topic::Grants> for DeviceRemove {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let (grants, whose) = chain.grants();
        let is_gone = |grant: &Grant| {
            self.devices.iter().any(|device_id| grant.is_of_device(&self.user_id, device_id))
        };
        grants.end(&whose, |_, grant| is_gone(grant))
    }
}

impl Affects<topic::Grants> for UserDeactivate {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let (grants, whose) = chain.grants();
        grants.end(&whose, |_, grant| grant.user_id == self.user_id)
    }
}
