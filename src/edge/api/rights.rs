//! What those may call whose account is restricted: guests, locked and suspended users. Whatever is
//! not named here they may not, so that an endpoint which is added later is closed to them until
//! someone decides otherwise; only what merely reads is open to the suspended without being named.
//!
//! An endpoint is named by its method and its path without prefix and version.

use http::Method;
use ruma::UserId;

use super::Server;
use crate::{
    edge::http::{ApiError, ErrorCode, OpenTo, Session},
    state::Standing,
};

/// Client-server API, "Guest Access".
const GUESTS: &[&str] = &[
    // Retrieving events
    "GET /rooms/{}/state",
    "GET /rooms/{}/context/{}",
    "GET /rooms/{}/event/{}",
    "GET /rooms/{}/state/{}/{}",
    "GET /rooms/{}/messages",
    "GET /rooms/{}/members",
    "GET /rooms/{}/initialSync",
    "GET /sync",
    "GET /events",
    // Sending events. Clients join by the second path, too.
    "POST /rooms/{}/join",
    "POST /join/{}",
    "POST /rooms/{}/leave",
    "POST /rooms/{}/send/{}",
    "PUT /rooms/{}/send/{}/{}",
    "PUT /rooms/{}/state/{}/{}",
    "PUT /sendToDevice/{}/{}",
    // Their own account: of the profile, the display name alone (`api::profile`).
    "PUT /profile/{}/{}",
    "GET /devices",
    "GET /devices/{}",
    "PUT /devices/{}",
    "GET /account/whoami",
    // End-to-end encryption
    "POST /keys/upload",
    "POST /keys/query",
    "POST /keys/claim",
    // Not in the specification's list: the pictures in what they read, what anyone may call without
    // a token, and the end of a session.
    "GET /media/download/{}/{}",
    "GET /media/download/{}/{}/{}",
    "GET /media/thumbnail/{}/{}",
    "GET /versions",
    "GET /room_summary/{}",
    "GET /im.nheko.summary/summary/{}",
    "POST /logout",
    "POST /logout/all",
];

/// Client-server API, "Account suspension": what a suspended user may do besides reading. They see
/// what there is, manage their devices and keys, keep notes for themselves, and leave.
const SUSPENDED: &[&str] = &[
    // Sessions and the account
    "POST /logout",
    "POST /logout/all",
    "POST /login/get_token",
    "POST /org.matrix.msc3882/login/get_token",
    "POST /account/password",
    "POST /account/deactivate",
    "POST /account/3pid",
    "POST /account/3pid/add",
    "POST /account/3pid/bind",
    "POST /account/3pid/unbind",
    "POST /account/3pid/delete",
    "POST /org.logcabin/sso/link/{}",
    "PUT /devices/{}",
    "DELETE /devices/{}",
    "POST /delete_devices",
    // Verification, cross-signing, key backup
    "POST /keys/upload",
    "POST /keys/query",
    "POST /keys/claim",
    "POST /keys/device_signing/upload",
    "POST /keys/signatures/upload",
    "PUT /sendToDevice/{}/{}",
    "POST /room_keys/version",
    "PUT /room_keys/version/{}",
    "DELETE /room_keys/version/{}",
    "PUT /room_keys/keys",
    "PUT /room_keys/keys/{}",
    "PUT /room_keys/keys/{}/{}",
    "DELETE /room_keys/keys",
    "DELETE /room_keys/keys/{}",
    "DELETE /room_keys/keys/{}/{}",
    "PUT /org.matrix.msc3814.v1/dehydrated_device",
    "DELETE /org.matrix.msc3814.v1/dehydrated_device",
    "POST /org.matrix.msc3814.v1/dehydrated_device/{}/events",
    // Signing another device in
    "POST /io.element.msc4388/rendezvous",
    // Leaving; redacting one's own events (`api::send` looks whose they are); reports
    "POST /rooms/{}/leave",
    "POST /rooms/{}/forget",
    "POST /rooms/{}/redact/{}",
    "PUT /rooms/{}/redact/{}/{}",
    "POST /rooms/{}/report",
    "POST /rooms/{}/report/{}",
    "POST /users/{}/report",
    "POST /org.matrix.msc4151/rooms/{}/report",
    "POST /org.matrix.msc4260/users/{}/report",
    // What reads by another method than GET
    "POST /org.matrix.simplified_msc3575/sync",
    "POST /user/{}/filter",
    "POST /search",
    "POST /publicRooms",
    "POST /user_directory/search",
    // One's own notes: how far one has read, account data (which holds secrets), push rules; and
    // where one is told of what others write
    "POST /rooms/{}/receipt/{}/{}",
    "POST /rooms/{}/read_markers",
    "PUT /user/{}/account_data/{}",
    "DELETE /org.matrix.msc3391/user/{}/account_data/{}",
    "PUT /user/{}/rooms/{}/account_data/{}",
    "DELETE /org.matrix.msc3391/user/{}/rooms/{}/account_data/{}",
    "PUT /user/{}/rooms/{}/tags/{}",
    "DELETE /user/{}/rooms/{}/tags/{}",
    "PUT /pushrules/global/{}/{}",
    "DELETE /pushrules/global/{}/{}",
    "PUT /pushrules/global/{}/{}/actions",
    "PUT /pushrules/global/{}/{}/enabled",
    "POST /pushers/set",
];

/// Client-server API, "Account locking".
const LOCKED: &[&str] = &["POST /logout", "POST /logout/all"];

/// To whom the endpoint of this method and path is open.
pub(super) fn of(method: &Method, path: &str) -> OpenTo {
    let name = name(method, path);
    let named = |list: &[&str]| list.contains(&name.as_str());
    OpenTo {
        guests: named(GUESTS),
        suspended: method == Method::GET || named(SUSPENDED),
        locked: named(LOCKED),
    }
}

/// The name of an endpoint in the lists above.
fn name(method: &Method, path: &str) -> String {
    let path = path.strip_prefix("/_matrix/client").unwrap_or(path).trim_end_matches('/');
    let mut segments: Vec<&str> = path.split('/').skip(1).collect();
    // The version; `/versions` has none.
    if segments.len() > 1 && ["r0", "v1", "v3", "unstable"].contains(&segments[0]) {
        segments.remove(0);
    }
    for segment in &mut segments {
        if segment.starts_with('{') {
            *segment = "{}";
        }
    }
    format!("{method} /{}", segments.join("/"))
}

/// Refuses whoever may not call an endpoint that is open to these.
pub(super) fn admit(app: &Server, session: &Session, open_to: OpenTo) -> Result<(), ApiError> {
    // An application service may act for a user who has no account (yet).
    let standing = app.engine.state().accounts.standing(&session.user_id).unwrap_or_default();
    match standing {
        Standing { deactivated: Some(_), .. } => Err(deactivated()),
        Standing { locked: true, .. } if !open_to.locked => Err(locked()),
        Standing { suspended: true, .. } if !open_to.suspended => Err(suspended()),
        Standing { guest: true, .. } if !open_to.guests => Err(ApiError::new(
            ErrorCode::GuestAccessForbidden,
            "Guests may not do this: register an account first.",
        )),
        _ => Ok(()),
    }
}

/// Refuses one who may have no session: whose account is closed or locked.
pub(super) fn may_log_in(app: &Server, user_id: &UserId) -> Result<(), ApiError> {
    match app.engine.state().accounts.standing(user_id).unwrap_or_default() {
        Standing { deactivated: Some(_), .. } => Err(deactivated()),
        Standing { locked: true, .. } => Err(locked()),
        _ => Ok(()),
    }
}

fn deactivated() -> ApiError {
    ApiError::new(ErrorCode::UserDeactivated, "This account has been deactivated.")
}

/// What a user is told whose account is locked.
pub(super) fn locked() -> ApiError {
    ApiError::new(ErrorCode::UserLocked, "This account has been locked.")
}

/// What a suspended user is told.
pub(super) fn suspended() -> ApiError {
    ApiError::new(ErrorCode::UserSuspended, "You cannot do this while your account is suspended.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_named_alike_whatever_their_version() {
        for path in
            ["r0", "v3", "unstable"].map(|v| format!("/_matrix/client/{v}/rooms/{{a}}/leave"))
        {
            assert_eq!(name(&Method::POST, &path), "POST /rooms/{}/leave");
        }
        assert_eq!(name(&Method::GET, "/_matrix/client/versions"), "GET /versions");
    }

    /// What guests may not do, as the specification's list does not have it.
    const CLOSED_TO_GUESTS: &[&str] = &[
        "POST /account/3pid",
        "POST /account/3pid/add",
        "POST /account/3pid/bind",
        "POST /account/3pid/delete",
        "POST /account/3pid/unbind",
        "POST /account/deactivate",
        "POST /account/password",
        "PUT /admin/lock/{}",
        "PUT /admin/suspend/{}",
        "POST /createRoom",
        "POST /delete_devices",
        "DELETE /devices/{}",
        "PUT /directory/list/room/{}",
        "DELETE /directory/room/{}",
        "PUT /directory/room/{}",
        "POST /keys/device_signing/upload",
        "POST /keys/signatures/upload",
        "POST /io.element.msc4388/rendezvous",
        "DELETE /org.matrix.msc3814.v1/dehydrated_device",
        "PUT /org.matrix.msc3814.v1/dehydrated_device",
        "POST /org.matrix.msc3814.v1/dehydrated_device/{}/events",
        "POST /user/{}/openid/request_token",
        "POST /knock/{}",
        "POST /login/get_token",
        "POST /org.logcabin/sso/link/{}",
        "DELETE /org.matrix.msc3391/user/{}/account_data/{}",
        "DELETE /org.matrix.msc3391/user/{}/rooms/{}/account_data/{}",
        "POST /org.matrix.msc3882/login/get_token",
        "POST /org.matrix.msc4140/delayed_events/{}",
        "POST /org.matrix.msc4140/delayed_events/{}/{}",
        "PUT /org.matrix.msc4140/rooms/{}/delayed_event/{}/{}",
        "POST /org.matrix.msc4151/rooms/{}/report",
        "POST /org.matrix.msc4260/users/{}/report",
        "POST /org.matrix.simplified_msc3575/sync",
        "PUT /presence/{}/status",
        "DELETE /profile/{}/{}",
        "POST /publicRooms",
        "POST /pushers/set",
        "DELETE /pushrules/global/{}/{}",
        "PUT /pushrules/global/{}/{}",
        "PUT /pushrules/global/{}/{}/actions",
        "PUT /pushrules/global/{}/{}/enabled",
        "DELETE /room_keys/keys",
        "PUT /room_keys/keys",
        "DELETE /room_keys/keys/{}",
        "PUT /room_keys/keys/{}",
        "DELETE /room_keys/keys/{}/{}",
        "PUT /room_keys/keys/{}/{}",
        "POST /room_keys/version",
        "DELETE /room_keys/version/{}",
        "PUT /room_keys/version/{}",
        "POST /rooms/{}/ban",
        "POST /rooms/{}/forget",
        "POST /rooms/{}/invite",
        "POST /rooms/{}/kick",
        "POST /rooms/{}/read_markers",
        "POST /rooms/{}/receipt/{}/{}",
        "POST /rooms/{}/redact/{}",
        "PUT /rooms/{}/redact/{}/{}",
        "POST /rooms/{}/report",
        "POST /rooms/{}/report/{}",
        "PUT /rooms/{}/state/{}",
        "PUT /rooms/{}/typing/{}",
        "POST /rooms/{}/unban",
        "POST /rooms/{}/upgrade",
        "POST /search",
        "DELETE /uk.tcpip.msc4133/profile/{}/{}",
        "PUT /uk.tcpip.msc4133/profile/{}/{}",
        "PUT /uk.timedout.msc4323/admin/lock/{}",
        "PUT /uk.timedout.msc4323/admin/suspend/{}",
        "PUT /user/{}/account_data/{}",
        "POST /user/{}/filter",
        "PUT /user/{}/rooms/{}/account_data/{}",
        "DELETE /user/{}/rooms/{}/tags/{}",
        "PUT /user/{}/rooms/{}/tags/{}",
        "POST /user_directory/search",
        "POST /users/{}/report",
        "POST /xyz.amorgan.knock/knock/{}",
    ];

    /// What suspended users may not do: whatever others see, and the administration of others.
    const CLOSED_TO_SUSPENDED: &[&str] = &[
        "PUT /admin/lock/{}",
        "PUT /admin/suspend/{}",
        "POST /createRoom",
        "PUT /directory/list/room/{}",
        "DELETE /directory/room/{}",
        "PUT /directory/room/{}",
        "POST /join/{}",
        "POST /user/{}/openid/request_token",
        "POST /knock/{}",
        "POST /org.matrix.msc4140/delayed_events/{}",
        "POST /org.matrix.msc4140/delayed_events/{}/{}",
        "PUT /org.matrix.msc4140/rooms/{}/delayed_event/{}/{}",
        "PUT /presence/{}/status",
        "DELETE /profile/{}/{}",
        "PUT /profile/{}/{}",
        "POST /rooms/{}/ban",
        "POST /rooms/{}/invite",
        "POST /rooms/{}/join",
        "POST /rooms/{}/kick",
        "POST /rooms/{}/send/{}",
        "PUT /rooms/{}/send/{}/{}",
        "PUT /rooms/{}/state/{}",
        "PUT /rooms/{}/state/{}/{}",
        "PUT /rooms/{}/typing/{}",
        "POST /rooms/{}/unban",
        "POST /rooms/{}/upgrade",
        "DELETE /uk.tcpip.msc4133/profile/{}/{}",
        "PUT /uk.tcpip.msc4133/profile/{}/{}",
        "PUT /uk.timedout.msc4323/admin/lock/{}",
        "PUT /uk.timedout.msc4323/admin/suspend/{}",
        "POST /xyz.amorgan.knock/knock/{}",
    ];

    /// The endpoints that look at who is calling, by method and name.
    fn served() -> Vec<(Method, String)> {
        let table = super::super::endpoints(&crate::config::Config::default());
        let by_session = |access| {
            matches!(
                access,
                crate::edge::http::Access::Required | crate::edge::http::Access::Optional
            )
        };
        // Under the other prefixes there is the same.
        let served = table.list().into_iter();
        let served = served.filter(|served| served.path.starts_with("/_matrix/client/"));
        let served = served.filter(|served| by_session(served.access));
        served.map(|served| (served.method.clone(), name(&served.method, &served.path))).collect()
    }

    #[test]
    fn every_endpoint_that_is_named_is_served() {
        let served = served();
        let mut named = [GUESTS, SUSPENDED, LOCKED, CLOSED_TO_GUESTS, CLOSED_TO_SUSPENDED].concat();
        named.retain(|name| !served.iter().any(|(_, served)| served == name));
        assert!(named.is_empty(), "nothing of this name is served: {named:#?}");
    }

    #[test]
    fn of_every_endpoint_that_changes_something_it_is_decided_who_may_call_it() {
        for (whom, open, closed) in [
            ("guests", GUESTS, CLOSED_TO_GUESTS),
            ("the suspended", SUSPENDED, CLOSED_TO_SUSPENDED),
        ] {
            let mut undecided = Vec::new();
            for (method, name) in served() {
                let (open, closed) = (open.contains(&&*name), closed.contains(&&*name));
                assert!(!(open && closed), "{name} is both open and closed to {whom}");
                if method != Method::GET && !open && !closed {
                    undecided.push(name);
                }
            }
            undecided.dedup();
            assert!(undecided.is_empty(), "undecided for {whom}: {undecided:#?}");
        }
    }
}
