//! Discovery: versions, the well-known document, capabilities.

use ruma::api::client::discovery::{
    discover_homeserver::{self, HomeserverInfo},
    get_capabilities::v3::{
        self as get_capabilities, Capabilities, ChangePasswordCapability, GetLoginTokenCapability,
        RoomVersionStability, RoomVersionsCapability, ThirdPartyIdChangesCapability,
    },
    get_supported_versions,
};

use super::Server;
use crate::{
    decide::create_room::{DEFAULT_ROOM_VERSION, ROOM_VERSIONS},
    http::{ApiError, Cx, Session},
};

/// The versions of the specification that clients may count on. Later ones are named once every
/// endpoint that they added is served; until then clients find what there is by trying.
const VERSIONS: [&str; 8] = ["r0.6.0", "r0.6.1", "v1.1", "v1.2", "v1.3", "v1.4", "v1.5", "v1.6"];

/// What is served that is in a later version of the specification, or in none yet.
const UNSTABLE_FEATURES: [&str; 9] = [
    // Sliding sync, on its unstable path alone (`api::sliding`).
    "org.matrix.simplified_msc3575",
    // Deleting account data.
    "org.matrix.msc3391",
    // Mentions that are meant (v1.7).
    "org.matrix.msc3952_intentional_mentions",
    // Relations of relations (v1.10).
    "org.matrix.msc3981",
    // Uploads in two steps (v1.7).
    "fi.mau.msc2246",
    // Media for those who are logged in (v1.11).
    "org.matrix.msc3916.stable",
    // Profile fields of any name (v1.16).
    "uk.tcpip.msc4133",
    "uk.tcpip.msc4133.stable",
    // Rooms that are shared with another user (v1.19).
    "uk.half-shot.msc2666.query_mutual_rooms",
];

pub(super) async fn versions(
    cx: Cx<Server, Option<Session>>,
    _: get_supported_versions::Request,
) -> Result<get_supported_versions::Response, ApiError> {
    let versions = VERSIONS.iter().map(ToString::to_string).collect();
    let mut response = get_supported_versions::Response::new(versions);
    let delays = cx.app.config.delayed_events.max_delay_seconds > 0;
    response.unstable_features.insert("org.matrix.msc4140".to_owned(), delays);
    let features = UNSTABLE_FEATURES.iter().map(|feature| ((*feature).to_owned(), true));
    response.unstable_features.extend(features);
    Ok(response)
}

pub(super) async fn well_known(
    cx: Cx<Server, ()>,
    _: discover_homeserver::Request,
) -> Result<discover_homeserver::Response, ApiError> {
    Ok(discover_homeserver::Response::new(HomeserverInfo::new(cx.app.config.public_url())))
}

pub(super) async fn capabilities(
    _: Cx<Server>,
    _: get_capabilities::Request,
) -> Result<get_capabilities::Response, ApiError> {
    let available =
        ROOM_VERSIONS.iter().map(|version| (version.clone(), RoomVersionStability::Stable));
    let mut capabilities = Capabilities::new();
    capabilities.room_versions =
        RoomVersionsCapability::new(DEFAULT_ROOM_VERSION, available.collect());
    capabilities.change_password = ChangePasswordCapability::new(true);
    capabilities.thirdparty_id_changes = ThirdPartyIdChangesCapability::new(false);
    capabilities.get_login_token = GetLoginTokenCapability::new(false);
    Ok(get_capabilities::Response::new(capabilities))
}
