//! Pushers (client-server API, "Push notifications"): notifications through push gateways and by
//! mail.

use ruma::api::{auth_scheme::AccessToken, client::push::get_pushers::v3 as get_pushers};
use serde_json::{Map, Value, json};
use url::Url;

use crate::{
    api::{answer::json, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_base::limits;
use logcabin_config::Push;
use logcabin_decide::pusher::{RemovePusher, SetPusher};
use logcabin_outside::{
    outbound::Outbound,
    pushers::{EVENT_ID_ONLY, NOTIFY_PATH},
};
use logcabin_record::{
    address as threepid,
    pusher::{PusherEnd, PusherIds, PusherKind, PusherSet},
    threepid::Medium,
};
use logcabin_state::Pusher;

/// Whether a pusher notifies, and the device that it notifies (MSC3881).
const ENABLED: &str = "org.matrix.msc3881.enabled";
const DEVICE_ID: &str = "org.matrix.msc3881.device_id";

/// The `app_id` of mail pushers.
const MAIL_APP_ID: &str = "m.email";

endpoint! {
    /// Sets a pusher. ruma's type for this request does not distinguish missing from wrong members.
    pub(super) struct Set = POST
        "/_matrix/client/r0/pushers/set"
        "/_matrix/client/v3/pushers/set";
    for AccessToken;
    { body: Map<String, Value> = json }
}

pub(super) async fn list(cx: Cx<Server>, _: get_pushers::Request) -> Result<Json, ApiError> {
    let pushers = cx.app.engine.state().pushers.of_user(&cx.caller.user_id);
    let pushers: Vec<_> = pushers.iter().map(|pusher| shown(pusher)).collect();
    json(&json!({ "pushers": pushers }))
}

/// A pusher in the format of `GET /pushers`.
pub(in crate::api) fn shown(pusher: &Pusher) -> Value {
    let PusherSet {
        user_id: _,
        device_id,
        ids: PusherIds { app_id, pushkey },
        kind,
        app_display_name,
        device_display_name,
        profile_tag,
        lang,
        data,
        disabled,
    } = &pusher.body;
    let mut shown = json!({
        "app_id": app_id,
        "pushkey": pushkey,
        "kind": kind,
        "app_display_name": app_display_name,
        "device_display_name": device_display_name,
        "lang": lang,
        "data": data,
        ENABLED: !disabled,
    });
    if let Some(device_id) = device_id {
        shown[DEVICE_ID] = device_id.as_str().into();
    }
    if let Some(tag) = profile_tag {
        shown["profile_tag"] = tag.as_str().into();
    }
    shown
}

pub(super) async fn set(cx: Cx<Server>, request: Set) -> Result<Json, ApiError> {
    let body = Body(request.body);
    body.require(&["kind", "app_id", "pushkey"])?;
    let mut ids = PusherIds { app_id: body.text("app_id")?, pushkey: body.text("pushkey")? };
    // Different spellings of an address are the same pusher.
    if ids.app_id == MAIL_APP_ID
        && let Ok(address) = threepid::email(&ids.pushkey)
    {
        ids.pushkey = address.address;
    }
    let app_id_chars = ids.app_id.chars().count();
    if app_id_chars == 0 || app_id_chars > limits::APP_ID_CHARS {
        return Err(invalid(format!("`app_id` has 1 to {} characters.", limits::APP_ID_CHARS)));
    }
    if ids.pushkey.is_empty() || ids.pushkey.len() > limits::PUSHKEY_BYTES {
        return Err(invalid(format!("`pushkey` has 1 to {} bytes.", limits::PUSHKEY_BYTES)));
    }
    let user_id = cx.caller.user_id.clone();
    match body.0.get("kind") {
        Some(Value::Null) => {
            let remove = RemovePusher { user_id, ids, because: PusherEnd::Asked };
            cx.propose(remove).await?.into_inner();
        }
        Some(Value::String(kind)) if kind == "http" => {
            let pusher = http_pusher(&cx, &body, ids)?;
            set_one(&cx, &body, pusher).await?;
        }
        Some(Value::String(kind)) if kind == "email" => {
            let pusher = mail_pusher(&cx, &body, ids)?;
            set_one(&cx, &body, pusher).await?;
        }
        Some(Value::String(_)) => return Err(invalid("There are no pushers of this kind.")),
        _ => return Err(ApiError::bad_json("`kind` is a text or null.")),
    }
    Ok("{}".into())
}

async fn set_one(cx: &Cx<Server>, body: &Body, pusher: PusherSet) -> Result<(), ApiError> {
    let append = body.flag("append", false)?;
    // Another device's pusher is turned on or off by all that `GET /pushers` says of it.
    let device_id = body.0.get(DEVICE_ID).and_then(Value::as_str);
    let keep_device =
        body.0.contains_key(ENABLED) && device_id != Some(cx.caller.device_id.as_str());
    cx.propose(SetPusher { pusher, append, keep_device }).await?.into_inner();
    Ok(())
}

fn http_pusher(cx: &Cx<Server>, body: &Body, ids: PusherIds) -> Result<PusherSet, ApiError> {
    let pusher = pusher(cx, body, ids, PusherKind::Http)?;
    check_url(&cx.app.config.push, pusher.data.get("url"))?;
    match pusher.data.get("format") {
        None | Some(Value::Null) => {}
        Some(format) if format == EVENT_ID_ONLY => {}
        Some(_) => return Err(invalid("The only `format` there is is `event_id_only`.")),
    }
    let device_id = Some(cx.caller.device_id.clone()).filter(|id| !id.as_str().is_empty());
    Ok(PusherSet { device_id, ..pusher })
}

/// Whether the address belongs to the account is decided when the pusher is set.
fn mail_pusher(cx: &Cx<Server>, body: &Body, ids: PusherIds) -> Result<PusherSet, ApiError> {
    let pusher = pusher(cx, body, ids, PusherKind::Email)?;
    if !cx.app.outside.messages.reach(Medium::Email) {
        return Err(invalid("This server sends no mail."));
    }
    if pusher.ids.app_id != MAIL_APP_ID {
        return Err(invalid(format!("The `app_id` of mail is `{MAIL_APP_ID}`.")));
    }
    if threepid::email(&pusher.ids.pushkey).is_err() {
        return Err(invalid("The `pushkey` of mail is an e-mail address."));
    }
    Ok(pusher)
}

/// The common parts of both kinds of pushers.
fn pusher(
    cx: &Cx<Server>,
    body: &Body,
    ids: PusherIds,
    kind: PusherKind,
) -> Result<PusherSet, ApiError> {
    body.require(&["app_display_name", "device_display_name", "lang", "data"])?;
    let data = match body.0.get("data") {
        Some(Value::Object(data)) => data.clone(),
        _ => return Err(ApiError::bad_json("`data` is an object.")),
    };
    let size = serde_json::to_vec(&data).map_err(ApiError::internal)?.len();
    if size > limits::PUSHER_DATA_BYTES {
        return Err(invalid(format!("`data` has {} bytes at most.", limits::PUSHER_DATA_BYTES)));
    }
    let profile_tag = match body.0.get("profile_tag") {
        None | Some(Value::Null) => None,
        Some(_) => Some(body.text("profile_tag")?),
    };
    if profile_tag.as_ref().is_some_and(|tag| tag.len() > limits::PUSHER_TEXT_BYTES) {
        return Err(too_long("profile_tag"));
    }
    Ok(PusherSet {
        user_id: cx.caller.user_id.clone(),
        device_id: None,
        ids,
        kind,
        app_display_name: body.name("app_display_name")?,
        device_display_name: body.name("device_display_name")?,
        profile_tag,
        lang: body.name("lang")?,
        data,
        disabled: !body.flag(ENABLED, true)?,
    })
}

/// Refuses an address that is not a valid push gateway, or that this server must not contact.
fn check_url(push: &Push, url: Option<&Value>) -> Result<(), ApiError> {
    let url = match url {
        None | Some(Value::Null) => return Err(ApiError::missing_param("Missing: data.url")),
        Some(Value::String(url)) => url,
        Some(_) => return Err(ApiError::bad_json("`url` is a text.")),
    };
    let url: Url = url.parse().map_err(|_| invalid("`url` is not an address."))?;
    let by_http = push.allow_http && url.scheme() == "http";
    if url.scheme() != "https" && !by_http {
        return Err(invalid("The `url` of a push gateway begins with https."));
    }
    if url.path() != NOTIFY_PATH {
        return Err(invalid(format!("The path of `url` must be {NOTIFY_PATH}.")));
    }
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err(invalid("`url` has neither a user nor a fragment."));
    }
    // A host name may resolve to anything by the time of the request; it is checked again then.
    Outbound::may_be_public(&url, &push.allowed_networks)
        .map_err(|error| invalid(format!("`url`: {error}.")))
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> ApiError {
    ApiError::invalid_param(message)
}

fn too_long(name: &str) -> ApiError {
    invalid(format!("`{name}` has {} bytes at most.", limits::PUSHER_TEXT_BYTES))
}

/// The body of a request.
struct Body(Map<String, Value>);

impl Body {
    /// Refuses a body without any of these members. `null` counts as missing.
    fn require(&self, names: &[&str]) -> Result<(), ApiError> {
        let is_missing = |name: &&&str| match self.0.get(**name) {
            None => true,
            Some(value) => value.is_null() && **name != "kind",
        };
        let missing: Vec<_> = names.iter().filter(is_missing).copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(ApiError::missing_param(format!("Missing: {}", missing.join(", "))))
    }

    fn text(&self, name: &str) -> Result<String, ApiError> {
        let text = self.0.get(name).and_then(Value::as_str);
        text.map(str::to_owned).ok_or_else(|| ApiError::bad_json(format!("`{name}` is a text.")))
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool, ApiError> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(given)) => Ok(*given),
            Some(_) => Err(ApiError::bad_json(format!("`{name}` is true or false."))),
        }
    }

    fn name(&self, name: &str) -> Result<String, ApiError> {
        let text = self.text(name)?;
        if text.len() > limits::PUSHER_TEXT_BYTES { Err(too_long(name)) } else { Ok(text) }
    }
}
