//! The lifetimes of events, for clients to show (MSC1763). [`logcabin_engine`] enforces them.

use ruma::api::auth_scheme::AccessToken;
use serde_json::{Map, Value, json};

use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_record::Offset;
use logcabin_service::policies;
use logcabin_state::lifetimes::RoomRetention;

endpoint! {
    /// The path that clients use, and the proposed one.
    pub(super) struct Configuration = GET
        "/_matrix/client/unstable/org.matrix.msc1763/retention/configuration"
        "/_matrix/client/v3/retention/configuration";
    for AccessToken;
    {}
}

/// The policies of the server: the default as `*`, those of the user's rooms, and the limits for
/// rooms' own policies. All in milliseconds.
pub(super) async fn configuration(cx: Cx<Server>, _: Configuration) -> Result<Json, ApiError> {
    let retention = policies::retention(&cx.app.config.retention);
    let mut policies = Map::new();
    let lives = |lifetime_ms: Option<u64>| match lifetime_ms {
        Some(lifetime_ms) => json!({ "max_lifetime": lifetime_ms }),
        None => json!({}),
    };
    let default = retention.lifetime_ms(None, "m.room.message", RoomRetention::default());
    policies.insert("*".to_owned(), lives(default));
    for room_id in retention.rooms() {
        let room = cx.app.engine.state().rooms.get(room_id);
        let is_in = |user_id| room.is_some_and(|room| room.is_joined(user_id, Offset::MAX));
        if is_in(&cx.caller.user_id) {
            let lifetime =
                retention.lifetime_ms(Some(room_id), "m.room.message", RoomRetention::default());
            policies.insert(room_id.to_string(), lives(lifetime));
        }
    }
    let mut limits = Map::new();
    if retention.rooms_say {
        let mut bounds = Map::from_iter([("min".to_owned(), Value::from(retention.lowest_ms))]);
        bounds.extend(retention.highest_ms.map(|ms| ("max".to_owned(), Value::from(ms))));
        limits.insert("max_lifetime".to_owned(), bounds.into());
    }
    to_json(&json!({ "policies": policies, "limits": limits }))
}
