//! Admission: whether a caller's account may use an endpoint with this policy. Guests, locked and
//! suspended users may call nothing whose policy does not say so; suspended users also whatever
//! merely reads.

use ruma::UserId;

use crate::{
    api::{
        auth::grants::{check_scope, may_administer},
        error::awaiting_approval,
    },
    http::{ApiError, ErrorCode, OpenTo, Session},
};
use logcabin_engine::Engine;
use logcabin_state::AccountStatus;

/// Refuses callers to whom the endpoint is not open.
pub(crate) fn admit(engine: &Engine, session: &Session, open_to: OpenTo) -> Result<(), ApiError> {
    // An application service may act for a user who has no account (yet).
    let standing = engine.state().accounts.standing(&session.user_id).unwrap_or_default();
    check_scope(engine, session, open_to)?;
    match standing {
        AccountStatus { deactivated: Some(_), .. } => Err(deactivated()),
        AccountStatus { locked: true, .. } if !open_to.locked => Err(locked()),
        AccountStatus { waiting: Some(_), .. } if !open_to.locked => Err(awaiting_approval()),
        AccountStatus { suspended: true, .. } if !open_to.suspended => Err(suspended()),
        AccountStatus { guest: true, .. } if !open_to.guests => Err(ApiError::new(
            ErrorCode::GuestAccessForbidden,
            "Guests may not do this: register an account first.",
        )),
        AccountStatus { admin: false, .. } if open_to.administrators_only => {
            Err(ApiError::forbidden("You do not administer this server."))
        }
        _ if open_to.administrators_only && !may_administer(engine, session, open_to) => {
            Err(ApiError::forbidden("The scope of this login lacks the server's administration."))
        }
        _ => Ok(()),
    }
}

/// Refuses users who may have no session: their account is deactivated, locked or not approved.
pub(crate) fn may_log_in(engine: &Engine, user_id: &UserId) -> Result<(), ApiError> {
    match engine.state().accounts.standing(user_id).unwrap_or_default() {
        AccountStatus { deactivated: Some(_), .. } => Err(deactivated()),
        AccountStatus { locked: true, .. } => Err(locked()),
        AccountStatus { waiting: Some(_), .. } => Err(awaiting_approval()),
        _ => Ok(()),
    }
}

/// Refuses users who may not take part in anything: besides those who may have no session, the
/// suspended ones.
pub(in crate::api) fn may_take_part(engine: &Engine, user_id: &UserId) -> Result<(), ApiError> {
    may_log_in(engine, user_id)?;
    let standing = engine.state().accounts.standing(user_id).unwrap_or_default();
    if standing.suspended { Err(suspended()) } else { Ok(()) }
}

fn deactivated() -> ApiError {
    ApiError::new(ErrorCode::UserDeactivated, "This account has been deactivated.")
}

/// What a user is told whose account is locked.
pub(crate) fn locked() -> ApiError {
    ApiError::new(ErrorCode::UserLocked, "This account has been locked.")
}

/// What a suspended user is told.
pub(crate) fn suspended() -> ApiError {
    ApiError::new(ErrorCode::UserSuspended, "You cannot do this while your account is suspended.")
}

#[cfg(test)]
mod tests {
    use http::Method;

    use crate::http::{Access, OpenTo, Shadow};
    use logcabin_config::Server;

    /// An endpoint without its prefix and version, with each parameter as `{}`.
    fn name(method: &Method, path: &str) -> String {
        let path = path.strip_prefix("/_matrix/client").unwrap_or(path).trim_end_matches('/');
        let mut segments: Vec<&str> = path.split('/').skip(1).collect();
        // `/versions` has no version.
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

    /// The endpoints of the client-server API that look at who is calling and that are open to
    /// some of the callers.
    fn open(to: impl Fn(OpenTo) -> bool) -> Vec<String> {
        let table = crate::api::endpoints(&Server::default().prefixes);
        let served = table.list().into_iter().filter(|served| {
            served.path.starts_with("/_matrix/client/")
                && matches!(served.access, Access::Required | Access::Optional)
                && to(served.open_to)
        });
        let mut names: Vec<_> = served.map(|served| name(&served.method, &served.path)).collect();
        names.sort();
        names.dedup();
        names
    }

    fn sorted(names: &[&str]) -> Vec<String> {
        let mut names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn guests_may_call_what_the_specification_lists() {
        assert_eq!(open(|open_to| open_to.guests), sorted(GUESTS));
    }

    #[test]
    fn suspended_users_may_do_these_things_besides_reading() {
        let mut writes = open(|open_to| open_to.suspended);
        writes.retain(|name| !name.starts_with("GET "));
        assert_eq!(writes, sorted(SUSPENDED));
    }

    #[test]
    fn shadow_banned_users_only_seem_to_do_these_things() {
        let table = crate::api::endpoints(&Server::default().prefixes).list().into_iter();
        let seeming = table.filter(|served| {
            served.shadow != Shadow::Done && served.path.starts_with("/_matrix/client/")
        });
        let mut names: Vec<_> = seeming.map(|served| name(&served.method, &served.path)).collect();
        names.sort();
        names.dedup();
        assert_eq!(names, sorted(SHADOWED));
    }

    #[test]
    fn locked_users_may_log_out() {
        assert_eq!(open(|open_to| open_to.locked), ["POST /logout", "POST /logout/all"]);
    }

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
        // Their own account: of the profile, the display name alone (`account::profile`).
        "PUT /profile/{}/{}",
        "GET /devices",
        "GET /devices/{}",
        "PUT /devices/{}",
        "GET /account/whoami",
        // End-to-end encryption
        "POST /keys/upload",
        "POST /keys/query",
        "POST /keys/claim",
        // Calls (MSC4195)
        "POST /rtc/livekit/get_token",
        "POST /io.element.msc4195/rtc/livekit/get_token",
        // Not in the specification's list: the pictures in what they read, what anyone may call
        // without a token, and the end of a session.
        "GET /media/download/{}/{}",
        "GET /media/download/{}/{}/{}",
        "GET /media/thumbnail/{}/{}",
        "GET /versions",
        "GET /room_summary/{}",
        "GET /im.nheko.summary/summary/{}",
        "POST /logout",
        "POST /logout/all",
        // The same by other paths.
        "GET /im.nheko.summary/rooms/{}/summary",
        "GET /org.matrix.msc3916/media/download/{}/{}",
        "GET /org.matrix.msc3916/media/download/{}/{}/{}",
        "GET /org.matrix.msc3916/media/thumbnail/{}/{}",
        "GET /rooms/{}/state/{}",
        "PUT /rooms/{}/state/{}",
        "PUT /uk.tcpip.msc4133/profile/{}/{}",
    ];

    /// What others would learn of, or what is done in another way.
    const SHADOWED: &[&str] = &[
        "POST /createRoom",
        "POST /rooms/{}/upgrade",
        "POST /rooms/{}/join",
        "POST /join/{}",
        "POST /knock/{}",
        "POST /xyz.amorgan.knock/knock/{}",
        "POST /rooms/{}/leave",
        "POST /rooms/{}/invite",
        "POST /rooms/{}/kick",
        "POST /rooms/{}/ban",
        "POST /rooms/{}/unban",
        "POST /rooms/{}/send/{}",
        "PUT /rooms/{}/send/{}/{}",
        "PUT /rooms/{}/state/{}",
        "PUT /rooms/{}/state/{}/{}",
        "POST /rooms/{}/redact/{}",
        "PUT /rooms/{}/redact/{}/{}",
        "PUT /org.matrix.msc4140/rooms/{}/delayed_event/{}/{}",
        "POST /org.matrix.msc4140/delayed_events/{}",
        "POST /org.matrix.msc4140/delayed_events/{}/{}",
        "PUT /rooms/{}/typing/{}",
        "PUT /directory/list/room/{}",
        "PUT /directory/room/{}",
        "DELETE /directory/room/{}",
        "PUT /presence/{}/status",
        "PUT /profile/{}/{}",
        "DELETE /profile/{}/{}",
        "PUT /uk.tcpip.msc4133/profile/{}/{}",
        "DELETE /uk.tcpip.msc4133/profile/{}/{}",
    ];

    /// Client-server API, "Account suspension": what a suspended user may do besides reading. They
    /// see what there is, manage their devices and keys, keep notes for themselves, and leave.
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
        // Leaving; redacting one's own events (`room::send` looks whose they are); reports
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
        // One's own notes: how far one has read, account data (which holds secrets), push rules;
        // and where one is told of what others write
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
}
