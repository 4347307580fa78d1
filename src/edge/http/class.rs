//! Which endpoints are limited in rate, and together with which others: said here for all of them.

use http::Method;

use crate::{base::rate::Rate, config::RateLimits};

macro_rules! classes {
    ($($(#[$doc:meta])* $class:ident = $setting:ident;)+) => {
        /// Endpoints that share a limit of their own, besides the one on all that a caller does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Class {
            $($(#[$doc])* $class,)+
            /// Limited, and not in a class of its own.
            Other,
        }

        impl Class {
            /// The classes with a limit of their own, each with it.
            pub(super) fn rates(config: &RateLimits) -> Vec<(Self, Rate)> {
                vec![$((Self::$class, config.$setting)),+]
            }
        }
    };
}

classes! {
    /// Logging in. What fails is also counted by account, see `passwords::Guesses`.
    Login = login;
    /// Exchanging refresh tokens. These requests have no session, so they count by address.
    Refresh = refresh;
    /// Making an account: each stage of its authentication is a request.
    Registration = registration;
    /// Changing what an account is held by, and managing its devices.
    Account = account;
    /// Making and upgrading rooms.
    Rooms = rooms;
    /// Joining and knocking.
    Joins = joins;
    /// Inviting.
    Invites = invites;
    /// Sending events. Kicks, bans and leaves are events, too.
    Messages = messages;
    /// What passes: receipts, typing, presence, messages to devices.
    Ephemeral = ephemeral;
    /// Keys of end-to-end encryption.
    Keys = keys;
    /// Room key backups. Separate from [`Class::Keys`], because a client that starts a backup sends
    /// hundreds of requests and must still be able to claim keys meanwhile.
    KeyBackups = key_backups;
    /// Changing profiles. Each change is sent to every room that the user is in.
    Profile = profile;
    /// Account data, tags, push rules and pushers.
    Settings = settings;
    /// Aliases and the public room directory.
    Directory = directory;
    /// Looking through rooms, users and messages.
    Search = search;
    /// Reading a room.
    Reads = reads;
    /// Files.
    Media = media;
    /// Reporting to those who run the server.
    Reports = reports;
    /// Administration over HTTP.
    Admin = admin;
}

/// Writes that are not rate-limited, by method and name, with the reason for each.
const UNLIMITED: &[(&str, &str)] = &[
    // Part 1 of the specification, "Endpoints", "Summary" says "No" in the column "Rate-limited"
    // for all of these, and "Limits" says that rate limiting "applies to endpoints marked Yes in
    // the endpoint summary". What they store is bounded in other ways. A logout needs a login
    // before it, which is limited.
    ("POST", "logout"),
    ("POST", "logout/all"),
    // These write a record only when they send a message. Messages are limited by requester
    // (`api::notices`) and by recipient (`decide::threepid`).
    ("POST", "register/email/requestToken"),
    ("POST", "register/msisdn/requestToken"),
    ("POST", "account/password/email/requestToken"),
    ("POST", "account/password/msisdn/requestToken"),
    ("POST", "account/3pid/email/requestToken"),
    ("POST", "account/3pid/msisdn/requestToken"),
    // `limits::THREEPIDS` bounds how many an account has, and adding one again takes an endpoint
    // that is limited.
    ("POST", "account/3pid"),
    ("POST", "account/3pid/delete"),
    ("POST", "account/3pid/unbind"),
    // Part 2, "Endpoints": "Rate limiting: none of the endpoints below is rate-limited." Filters
    // are never deleted, so `quotas.filters` and `quotas.filter_bytes` bound everything that this
    // endpoint ever writes.
    ("POST", "user/{user_id}/filter"),
    // Sliding sync only reads, although its method is POST.
    ("POST", "sync"),
];

impl Class {
    /// The class of an endpoint by its newest path, if it is limited. `marked`: whether the
    /// Matrix specification marks it so.
    ///
    /// Every write is limited unless it is in [`UNLIMITED`]. That includes writes that the Matrix
    /// specification does not mark, since any endpoint may answer 429, and writes that
    /// [`Class::named`] does not know. Reads are limited if they are marked or expensive.
    pub(crate) fn of(method: &Method, path: &str, marked: bool) -> Option<Self> {
        let name = name(path);
        if UNLIMITED.contains(&(method.as_str(), name)) {
            return None;
        }
        let class = Self::named(method, path);
        let class = class.or_else(|| is_write(method).then_some(Self::Settings));
        class.or_else(|| marked.then_some(Self::Other))
    }

    /// The class assigned to an endpoint by name.
    fn named(method: &Method, path: &str) -> Option<Self> {
        if path.starts_with("/_matrix/media/") {
            return Some(Self::Media);
        }
        if path == "/_synapse/admin/v1/register" {
            return Some(Self::Registration);
        }
        if path.starts_with("/_synapse/admin/") {
            return Some(Self::Admin);
        }
        if path == "/_matrix/federation/v1/3pid/onbind" {
            return Some(Self::Invites);
        }
        let class = match (method.as_str(), name(path)) {
            ("POST", "login" | "login/get_token" | "login/sso/account" | "sso/link/{idp_id}")
            | ("POST", "auth/{auth_type}/fallback/web") => Self::Login,
            ("POST", "refresh") => Self::Refresh,
            // Providers are asked, and pages are made.
            (
                "GET",
                "login/sso/redirect" | "login/sso/redirect/{idp_id}" | "login/sso/callback",
            ) => Self::Other,
            ("POST", "register")
            | ("GET", "register/available" | "register/m.login.registration_token/validity") => {
                Self::Registration
            }
            (
                "POST",
                "account/password" | "account/deactivate" | "account/3pid/add"
                | "account/3pid/bind" | "delete_devices" | "validate" | "unsubscribe",
            )
            | ("PUT" | "DELETE", "devices/{device_id}") => Self::Account,
            ("POST", "createRoom" | "rooms/{room_id}/upgrade") => Self::Rooms,
            ("POST", "join/{room_id_or_alias}" | "rooms/{room_id}/join")
            | ("POST", "knock/{room_id_or_alias}") => Self::Joins,
            ("POST", "rooms/{room_id}/invite") => Self::Invites,
            (
                "PUT",
                "rooms/{room_id}/send/{event_type}/{txn_id}"
                | "rooms/{room_id}/state/{event_type}/{state_key}"
                | "rooms/{room_id}/redact/{event_id}/{txn_id}"
                | "rooms/{room_id}/delayed_event/{event_type}/{txn_id}",
            )
            | (
                "POST",
                "rooms/{room_id}/kick"
                | "rooms/{room_id}/ban"
                | "rooms/{room_id}/unban"
                | "rooms/{room_id}/leave"
                | "rooms/{room_id}/forget"
                | "rooms/{room_id}/send/{event_type}"
                | "rooms/{room_id}/redact/{event_id}",
            ) => Self::Messages,
            (
                "POST",
                "rooms/{room_id}/receipt/{receipt_type}/{event_id}"
                | "rooms/{room_id}/read_markers"
                // Clients in a call restart a delayed event every few seconds.
                | "delayed_events/{delay_id}"
                | "delayed_events/{delay_id}/{action}"
                // These tokens are signed, not stored.
                | "user/{user_id}/openid/request_token",
            )
            | (
                "PUT",
                "rooms/{room_id}/typing/{user_id}"
                | "presence/{user_id}/status"
                | "sendToDevice/{event_type}/{txn_id}",
            )
            // These live in memory for a few minutes.
            | ("POST", "rendezvous")
            | ("PUT" | "DELETE", "rendezvous/{id}" | "rendezvous/{id}/{txn_id}") => Self::Ephemeral,
            (
                "POST",
                "keys/upload"
                | "keys/query"
                | "keys/claim"
                | "keys/device_signing/upload"
                | "keys/signatures/upload",
            )
            | ("GET", "keys/changes") => Self::Keys,
            (_, "dehydrated_device" | "dehydrated_device/{device_id}/events") => Self::Keys,
            ("POST" | "PUT" | "DELETE", name) if name.starts_with("room_keys/") => Self::KeyBackups,
            ("PUT" | "DELETE", "profile/{user_id}/{field}") => Self::Profile,
            (
                "PUT" | "DELETE",
                "user/{user_id}/account_data/{event_type}"
                | "user/{user_id}/account_data/{type}"
                | "user/{user_id}/rooms/{room_id}/account_data/{event_type}"
                | "user/{user_id}/rooms/{room_id}/account_data/{type}"
                | "user/{user_id}/rooms/{room_id}/tags/{tag}",
            )
            | ("POST", "pushers/set") => Self::Settings,
            ("PUT" | "DELETE", name) if name.starts_with("pushrules/") => Self::Settings,
            ("PUT" | "DELETE", "directory/room/{room_alias}")
            | ("PUT", "directory/list/room/{room_id}") => Self::Directory,
            ("POST", "search" | "user_directory/search")
            | ("GET" | "POST", "publicRooms")
            | (
                "GET",
                "rooms/{room_id}/hierarchy"
                | "rooms/{room_id}/timestamp_to_event"
                | "mutual_rooms"
                | "user/mutual_rooms"
                | "room_summary/{room_id_or_alias}"
                | "summary/{room_id_or_alias}",
            ) => Self::Search,
            (
                "GET",
                "rooms/{room_id}/messages"
                | "rooms/{room_id}/members"
                | "rooms/{room_id}/joined_members"
                | "rooms/{room_id}/state"
                | "rooms/{room_id}/threads"
                | "rooms/{room_id}/relations/{event_id}"
                | "rooms/{room_id}/relations/{event_id}/{rel_type}"
                | "rooms/{room_id}/relations/{event_id}/{rel_type}/{event_type}"
                | "rooms/{room_id}/initialSync"
                | "initialSync",
            ) => Self::Reads,
            ("POST", "rooms/{room_id}/report" | "rooms/{room_id}/report/{event_id}")
            | ("POST", "users/{user_id}/report") => Self::Reports,
            (_, name) if name.starts_with("media/") => Self::Media,
            (_, name) if name.starts_with("admin/") => Self::Admin,
            // Only application services can call these.
            ("POST", "appservice/{appservice_id}/ping")
            | ("PUT", "directory/list/appservice/{network_id}/{room_id}") => Self::Admin,
            _ => return None,
        };
        Some(class)
    }

    /// Whether a write has been given a class, or a reason not to have one.
    #[cfg(test)]
    pub(crate) fn is_decided(method: &Method, path: &str) -> bool {
        UNLIMITED.contains(&(method.as_str(), name(path))) || Self::named(method, path).is_some()
    }

    /// Whether the class has a rate of its own.
    #[cfg(test)]
    pub(crate) fn has_rate(self) -> bool {
        Self::rates(&RateLimits::default()).iter().any(|(class, _)| *class == self)
    }

    /// Whether request bodies of this class end up in the log. Those of searches do not, and
    /// uploads have a quota of their own.
    pub(super) const fn writes_bodies(self) -> bool {
        !matches!(self, Self::Search | Self::Reads | Self::Media)
    }
}

/// The name of an endpoint without its version, the same for stable and unstable ones.
fn name(path: &str) -> &str {
    let rest = path.strip_prefix("/_matrix/client/").and_then(|path| path.split_once('/'));
    let (version, name) = rest.unwrap_or_default();
    match (version, name.split_once('/')) {
        // Of an endpoint that is not stable yet, the name comes after that of its proposal.
        ("unstable", Some((_, rest))) => rest,
        _ => name,
    }
}

/// Whether requests with this method may write.
pub(super) fn is_write(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_of_a_class_is_that_of_one_class() {
        let rates = Class::rates(&RateLimits::default());
        let unique: std::collections::HashSet<_> = rates.iter().map(|(class, _)| class).collect();
        assert_eq!(unique.len(), rates.len());
    }

    #[test]
    fn a_write_without_a_named_class_is_still_limited() {
        let path = "/_matrix/client/v1/something/{new}";
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
            assert_eq!(Class::of(&method, path, false), Some(Class::Settings));
            assert!(!Class::is_decided(&method, path));
        }
        assert_eq!(Class::of(&Method::GET, path, false), None);
        assert_eq!(Class::of(&Method::GET, path, true), Some(Class::Other));
    }

    #[test]
    fn kicks_bans_and_leaves_count_as_messages() {
        for path in ["ban", "unban", "kick", "leave"] {
            let path = format!("/_matrix/client/v3/rooms/{{room_id}}/{path}");
            assert_eq!(Class::of(&Method::POST, &path, false), Some(Class::Messages), "{path}");
        }
    }

    #[test]
    fn endpoints_that_the_specification_leaves_unlimited_have_no_class() {
        for path in [
            "register/email/requestToken",
            "register/msisdn/requestToken",
            "account/password/email/requestToken",
            "account/password/msisdn/requestToken",
            "account/3pid/email/requestToken",
            "account/3pid/msisdn/requestToken",
            "logout",
            "logout/all",
            "account/3pid/delete",
            "account/3pid/unbind",
            "user/{user_id}/filter",
        ] {
            let path = format!("/_matrix/client/v3/{path}");
            assert_eq!(Class::of(&Method::POST, &path, false), None, "{path}");
        }
        // However it is served.
        let path = "/_matrix/client/v3/account/3pid";
        assert_eq!(Class::of(&Method::POST, path, true), None);
    }

    #[test]
    fn an_endpoint_that_is_not_stable_is_in_the_class_of_the_stable_one() {
        let path = "/_matrix/client/unstable/im.nheko.summary/summary/{room_id_or_alias}";
        assert_eq!(Class::of(&Method::GET, path, false), Some(Class::Search));
    }
}
