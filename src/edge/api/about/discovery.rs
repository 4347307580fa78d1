//! Discovery: versions, the well-known documents. What this server can do:
//! [`capabilities`](crate::api::auth::capabilities).

use ruma::api::{
    client::discovery::{
        discover_homeserver, discover_policy_server,
        discover_support::{self, Contact, ContactRole},
        get_supported_versions,
    },
    federation::discovery::discover_homeserver as discover_homeserver_for_servers,
};

use serde_json::{Map, Value, json};

use super::voip;
use crate::{
    api::{
        addresses::{self, base_url, identity_server},
        answer::json,
        server::Server,
    },
    http::{ApiError, Cx, Json, Session},
};
use logcabin_config::{AdminContact, Config, PublicKey};

/// The supported versions of the specification: every endpoint of each is served
/// (`tests/specification/endpoints.md`).
const VERSIONS: [&str; 21] = [
    "r0.6.0", "r0.6.1", "v1.1", "v1.2", "v1.3", "v1.4", "v1.5", "v1.6", "v1.7", "v1.8", "v1.9",
    "v1.10", "v1.11", "v1.12", "v1.13", "v1.14", "v1.15", "v1.16", "v1.17", "v1.18", "v1.19",
];

/// Served features that are in no version of the specification yet, or that clients still look for
/// here.
const UNSTABLE_FEATURES: [&str; 26] = [
    // Cross-signing (v1.1). Without this Element Web creates no cross-signing keys.
    "org.matrix.e2e_cross_signing",
    // Room types in the directory (v1.4). Without this Element Web does not list public spaces
    // there.
    "org.matrix.msc3827.stable",
    // Sliding sync, on its unstable path alone (`api::sync::sliding`).
    "org.matrix.simplified_msc3575",
    // Dehydrated devices.
    "org.matrix.msc3814.v1",
    // Deleting account data.
    "org.matrix.msc3391",
    // Intentional mentions (v1.7).
    "org.matrix.msc3952_intentional_mentions",
    // Recursive relations (v1.10).
    "org.matrix.msc3981",
    // Asynchronous uploads (v1.7).
    "fi.mau.msc2246",
    // Authenticated media (v1.11).
    "org.matrix.msc3916.stable",
    // Custom profile fields (v1.16).
    "uk.tcpip.msc4133",
    "uk.tcpip.msc4133.stable",
    // Redactions by the ordinary send endpoint (v1.18).
    "com.beeper.msc4169",
    // Blocking invites (v1.18).
    "org.matrix.msc4380.stable",
    // Rules for invites.
    "org.matrix.msc4155",
    // Redactions by a kick or a ban.
    "org.matrix.msc4293",
    // Suspending and locking accounts (v1.18).
    "uk.timedout.msc4323",
    // Redactions of what relates to an event.
    "org.matrix.msc3912",
    // What was redacted, for moderators.
    "fi.mau.msc2815",
    // Filters by the relation of an event.
    "org.matrix.msc3874",
    // Fully-read markers that move backward.
    "com.beeper.msc4446",
    // Pushers that are turned on and off, pushers without counts, and a rule that pushes all
    // encrypted events.
    "org.matrix.msc3881",
    "org.matrix.msc4076",
    "org.matrix.msc4028",
    // Message retention.
    "org.matrix.msc1763",
    // Mutual rooms (v1.19).
    "uk.half-shot.msc2666.query_mutual_rooms",
    "uk.half-shot.msc2666.query_mutual_rooms.stable",
];

/// Features that depend on the configuration.
fn configured(config: &Config) -> [(&'static str, bool); 4] {
    let rendezvous = &config.rendezvous;
    [
        // Delayed events.
        ("org.matrix.msc4140", config.delayed_events.max_delay_seconds > 0),
        // Group calls.
        ("org.matrix.msc4143", config.rtc.has_calls()),
        // Rendezvous of devices, present and former version.
        ("io.element.msc4388", rendezvous.enabled),
        ("org.matrix.msc4108", rendezvous.enabled && rendezvous.for_anyone),
    ]
}

pub(super) async fn versions(
    cx: Cx<Server, Option<Session>>,
    _: get_supported_versions::Request,
) -> Result<get_supported_versions::Response, ApiError> {
    let versions = VERSIONS.iter().map(ToString::to_string).collect();
    let mut response = get_supported_versions::Response::new(versions);
    let features = UNSTABLE_FEATURES.into_iter().map(|feature| (feature, true));
    let features = features.chain(configured(&cx.app.config));
    let features = features.map(|(feature, is_there)| (feature.to_owned(), is_there));
    response.unstable_features.extend(features);
    Ok(response)
}

pub(super) async fn well_known(
    cx: Cx<Server, ()>,
    _: discover_homeserver::Request,
) -> Result<Json, ApiError> {
    let config = &cx.app.config;
    let url = base_url(&config.server)
        .ok_or_else(|| ApiError::not_found("This server does not say where it is."))?;
    let mut document = Map::new();
    let mut tell = |name: &str, value: Value| document.insert(name.to_owned(), value);
    tell("m.homeserver", json!({ "base_url": url }));
    if let Some(url) = identity_server(&config.server) {
        tell("m.identity_server", json!({ "base_url": url }));
    }
    if addresses::is_offered(&config.oauth, &config.server) {
        // For clients that do not know `auth_metadata` yet.
        let (issuer, account) =
            (addresses::issuer(&config.server), addresses::account_url(&config.server));
        let told = json!({ "issuer": issuer, "account": account });
        tell("org.matrix.msc2965.authentication", told);
    }
    // The earlier place of the information in `/rtc/transports`.
    let services = voip::livekit(config);
    if !services.is_empty() {
        tell("org.matrix.msc4143.rtc_foci", services.into());
    }
    json(&document)
}

/// The key of the policy server with this server's name (client-server API, "Policy Servers").
pub(super) async fn policy_server(
    cx: Cx<Server, ()>,
    _: discover_policy_server::Request,
) -> Result<Json, ApiError> {
    match &cx.app.config.server.policy_server_key {
        PublicKey::Key(key) => json(&json!({ "public_keys": { "ed25519": key } })),
        PublicKey::None => Err(ApiError::not_found("There is no policy server of this name.")),
    }
}

/// Where other homeservers find this one (server-server API, "Resolving server names").
pub(crate) async fn delegation(
    cx: Cx<Server, ()>,
    _: discover_homeserver_for_servers::Request,
) -> Result<Json, ApiError> {
    let federation = &cx.app.config.federation;
    match federation.delegate.as_ref().filter(|_| federation.enabled) {
        Some(server) => json(&json!({ "m.server": server })),
        None => Err(ApiError::not_found("This server delegates to no other name.")),
    }
}

pub(super) async fn support(
    cx: Cx<Server, ()>,
    _: discover_support::Request,
) -> Result<discover_support::Response, ApiError> {
    let admin = |contact: Contact| discover_support::Response::with_contacts(vec![contact]);
    Ok(match &cx.app.config.server.admin_contact {
        AdminContact::None => {
            return Err(ApiError::not_found("This server does not say who runs it."));
        }
        AdminContact::Mail(address) => {
            admin(Contact::with_email_address(ContactRole::Admin, address.to_string()))
        }
        AdminContact::User(user_id) => {
            admin(Contact::with_matrix_id(ContactRole::Admin, user_id.clone()))
        }
        AdminContact::Page(page) => discover_support::Response::with_support_page(page.to_string()),
    })
}
