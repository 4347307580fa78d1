//! What users have set up for themselves: pushers and account data.

use std::collections::BTreeMap;

use ruma::{OwnedRoomId, api::auth_scheme::AccessToken};
use serde::Serialize;
use serde_json::{json, value::RawValue};

use crate::{
    api::{answer::json as to_json, push::pushers::shown, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_base::background::at_length;
use logcabin_read::{notifications::ruleset, sync::account_data::is_deleted};

endpoint! {
    /// `GET …/users/{user_id}/pushers`
    pub(super) struct Pushers = GET "/_synapse/admin/v1/users/{user_id}/pushers";
    for AccessToken;
    { user: String = path }
}

pub(super) async fn pushers(cx: Cx<Server>, request: Pushers) -> Result<Json, ApiError> {
    let user_id = cx.app.context.user_id(&request.user)?;
    let pushers = cx.app.engine.state().pushers.of_user(&user_id);
    let pushers = pushers.iter().map(|pusher| {
        let mut shown = shown(pusher);
        shown["enabled"] = true.into();
        shown["device_id"] = json!(pusher.body.device_id);
        shown["profile_tag"] = json!(pusher.body.profile_tag);
        shown
    });
    let pushers: Vec<_> = pushers.collect();
    to_json(&json!({ "total": pushers.len(), "pushers": pushers }))
}

endpoint! {
    /// `GET …/users/{user_id}/accountdata`
    pub(super) struct AccountData = GET "/_synapse/admin/v1/users/{user_id}/accountdata";
    for AccessToken;
    { user: String = path }
}

/// A user's account data but for the push rules.
pub(super) async fn account_data(cx: Cx<Server>, request: AccountData) -> Result<Json, ApiError> {
    type Values = BTreeMap<String, Box<RawValue>>;
    #[derive(Default, Serialize)]
    struct Data {
        global: Values,
        rooms: BTreeMap<OwnedRoomId, Values>,
    }
    #[derive(Serialize)]
    struct Answer {
        account_data: Data,
    }
    let (view, user_id) = (cx.view(), cx.app.context.user_id(&request.user)?);
    at_length(|| {
        let account = view.state.accounts.get(&user_id);
        let keys: Vec<_> = account
            .map_or_else(Vec::new, |account| account.read().account_data.keys().cloned().collect());
        let mut data = Data::default();
        for (room_id, event_type) in keys {
            let content = view.events.account_data(
                &view.state,
                &user_id,
                room_id.as_deref(),
                &event_type,
                view.at(),
            )?;
            let Some(content) = content.filter(|content| !is_deleted(content)) else { continue };
            match room_id {
                None if event_type == ruleset::EVENT_TYPE => {}
                None => drop(data.global.insert(event_type, content)),
                Some(room_id) => {
                    data.rooms.entry(room_id).or_default().insert(event_type, content);
                }
            }
        }
        to_json(&Answer { account_data: data })
    })
}
