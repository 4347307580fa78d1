//! Features that other servers turn on for single users. Here each of them is on or off for
//! everyone, so a request that would change one is refused.

use std::collections::BTreeMap;

use ruma::api::auth_scheme::AccessToken;
use serde::Deserialize;
use serde_json::json;

use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};

/// The features that tools know, and whether this server has them: remote control of push
/// notifications, sliding sync, and `state_after` in a sync.
const FEATURES: [(&str, bool); 3] = [("msc3881", false), ("msc3575", true), ("msc4222", true)];

endpoint! {
    /// `GET …/experimental_features/{user_id}`
    pub(super) struct Get = GET "/_synapse/admin/v1/experimental_features/{user_id}";
    for AccessToken;
    { user: String = path }
}

pub(super) async fn get(cx: Cx<Server>, request: Get) -> Result<Json, ApiError> {
    cx.app.context.user_id(&request.user)?;
    to_json(&json!({ "features": BTreeMap::from(FEATURES) }))
}

/// The features to turn on or off.
#[derive(Deserialize)]
pub(super) struct FeaturesBody {
    features: BTreeMap<String, bool>,
}

endpoint! {
    /// `PUT …/experimental_features/{user_id}`
    pub(super) struct Put = PUT "/_synapse/admin/v1/experimental_features/{user_id}";
    for AccessToken;
    { user: String = path, body: FeaturesBody = parameters }
}

/// Accepts only the values that the features have.
pub(super) async fn put(cx: Cx<Server>, request: Put) -> Result<Json, ApiError> {
    let Put { user, body: FeaturesBody { features } } = request;
    cx.app.context.user_id(&user)?;
    let known = BTreeMap::from(FEATURES);
    for (name, wanted) in &features {
        let why = match known.get(name.as_str()) {
            None => "There is no such feature.".to_owned(),
            Some(is_on) if is_on == wanted => continue,
            Some(true) => format!("`{name}` is on for everyone."),
            Some(false) => format!("This server does not have `{name}`."),
        };
        return Err(ApiError::invalid_param(why));
    }
    to_json(&json!({}))
}
