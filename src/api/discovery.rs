//! Discovery: versions, the well-known documents. What this server can do: [`capabilities`](super::capabilities).

use ruma::api::client::{
    discovery::{
        discover_homeserver::{self, HomeserverInfo, IdentityServerInfo},
        discover_support::{self, Contact, ContactRole},
        get_supported_versions,
    },
    session::login::v3 as login_v3,
};

use super::Server;
use crate::{
    config::{AdminContact, Config},
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
    let config = &cx.app.config;
    if !config.server.discovery {
        return Err(ApiError::not_found("This server does not say where it is."));
    }
    let homeserver = HomeserverInfo::new(config.public_url());
    let mut response = discover_homeserver::Response::new(homeserver);
    response.identity_server =
        identity_server(config).map(|url| IdentityServerInfo::new(url.to_owned()));
    Ok(response)
}

/// What [`well_known`] says, for those who log in.
pub(super) fn discovery_info(config: &Config) -> Option<login_v3::DiscoveryInfo> {
    if !config.server.discovery {
        return None;
    }
    let homeserver = login_v3::HomeserverInfo::new(config.public_url());
    let mut info = login_v3::DiscoveryInfo::new(homeserver);
    info.identity_server =
        identity_server(config).map(|url| login_v3::IdentityServerInfo::new(url.to_owned()));
    Some(info)
}

fn identity_server(config: &Config) -> Option<&str> {
    config.server.identity_server.as_deref()
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
