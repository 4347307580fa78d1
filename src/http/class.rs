//! Which endpoints are limited in rate, and together with which others: said here for all of them.

use http::Method;

use crate::{config::RateLimits, rate::Rate};

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
    /// Exchanging a refresh token. Whoever does has no session yet, so it is counted by address.
    Refresh = refresh;
    /// Making an account: each stage of its authentication is a request.
    Registration = registration;
    /// Changing what an account is held by, and its devices.
    Account = account;
    /// Making and upgrading rooms.
    Rooms = rooms;
    /// Joining and knocking.
    Joins = joins;
    /// Inviting.
    Invites = invites;
    /// Sending events, including those that a kick, a ban or a leave is.
    Messages = messages;
    /// What passes: receipts, typing, presence, messages to devices.
    Ephemeral = ephemeral;
    /// Keys of end-to-end encryption.
    Keys = keys;
    /// Backups of room keys. A class of its own: a client that begins a backup sends hundreds of requests,
    /// and must still be able to claim keys meanwhile.
    KeyBackups = key_backups;
    /// Profiles. A change is an event in each of the user's rooms.
    Profile = profile;
    /// What users keep for themselves: account data, tags, push rules, pushers.
    Settings = settings;
    /// Aliases, and which rooms the directory lists.
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

/// Writes that are not limited in rate, by method and name, each with the reason.
const UNLIMITED: &[(&str, &str)] = &[
    // Part 1 of the specification, "Endpoints", "Summary": the column "Rate-limited" says "No" for these, and
    // "Limits" says: "Applies to endpoints marked Yes in the endpoint summary". What they leave behind is bounded
    // instead. A logout ends what a login, which is limited, began.
    ("POST", "logout"),
    ("POST", "logout/all"),
    // Each message that one of these sends, and so each record, is counted by who asks for it (`api::notices`) and
    // by whom it is sent to (`decide::threepid`).
    ("POST", "register/email/requestToken"),
    ("POST", "register/msisdn/requestToken"),
    ("POST", "account/password/email/requestToken"),
    ("POST", "account/password/msisdn/requestToken"),
    ("POST", "account/3pid/email/requestToken"),
    ("POST", "account/3pid/msisdn/requestToken"),
    // An account has `limits::THREEPIDS` of them, and to have one again takes a message or an endpoint that is
    // limited. (`account/3pid` acts as `account/3pid/bind`, which is limited.)
    ("POST", "account/3pid"),
    ("POST", "account/3pid/delete"),
    ("POST", "account/3pid/unbind"),
    // Part 2, "Endpoints": "Rate limiting: none of the endpoints below is rate-limited." A filter is written once,
    // and `quotas.filters` and `quotas.filter_bytes` bound how many there ever are, as none is deleted.
    ("POST", "user/{user_id}/filter"),
    // Sliding sync writes nothing: it is a `GET` in all but its method.
    ("POST", "sync"),
];

impl Class {
    /// The class of an endpoint by its newest path, if it is limited. `marked`: whether the
    /// Matrix specification marks it so.
    ///
    /// Whatever writes is limited unless [`UNLIMITED`] says otherwise: also what the specification does not
    /// mark, as any endpoint may answer 429, and also what nobody has named in [`Class::named`]. Of what
    /// reads, that is limited which costs much to answer, or is marked.
    pub(crate) fn of(method: &Method, path: &str, marked: bool) -> Option<Self> {
        let name = name(path);
        if UNLIMITED.contains(&(method.as_str(), name)) {
            return None;
        }
        let class = Self::named(method, path);
        let class = class.or_else(|| is_write(method).then_some(Self::Settings));
        class.or_else(|| marked.then_some(Self::Other))
    }

    /// The class that an endpoint was given here by name.
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
                | "rooms/{room_id}/forget",
            ) => Self::Messages,
            (
                "POST",
                "rooms/{room_id}/receipt/{receipt_type}/{event_id}"
                | "rooms/{room_id}/read_markers"
                // Calls put off their end every few seconds.
                | "delayed_events/{delay_id}"
                | "delayed_events/{delay_id}/{action}"
                // Signed, and not stored.
                | "user/{user_id}/openid/request_token",
            )
            | (
                "PUT",
                "rooms/{room_id}/typing/{user_id}"
                | "presence/{user_id}/status"
                | "sendToDevice/{event_type}/{txn_id}",
            )
            // In memory for some minutes.
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
            // For application services alone.
            ("POST", "appservice/{appservice_id}/ping")
            | ("PUT", "directory/list/appservice/{network_id}/{room_id}") => Self::Admin,
            _ => return None,
        };
        Some(class)
    }

    /// Whether somebody who adds a write has said how it is limited: by naming its class, or why it has none.
    #[cfg(test)]
    pub(crate) fn is_said(method: &Method, path: &str) -> bool {
        UNLIMITED.contains(&(method.as_str(), name(path))) || Self::named(method, path).is_some()
    }

    /// Whether the class has a rate of its own.
    #[cfg(test)]
    pub(crate) fn has_rate(self) -> bool {
        Self::rates(&RateLimits::default()).iter().any(|(class, _)| *class == self)
    }

    /// Whether the bodies of writes of this class end up in the log: those of searches do not, and files are
    /// counted where they are kept.
    pub(super) const fn writes_bodies(self) -> bool {
        !matches!(self, Self::Search | Self::Reads | Self::Media)
    }
}

/// What an endpoint of the Matrix API is called in every version, stable or not.
fn name(path: &str) -> &str {
    let rest = path.strip_prefix("/_matrix/client/").and_then(|path| path.split_once('/'));
    let (version, name) = rest.unwrap_or_default();
    match (version, name.split_once('/')) {
        // Of an endpoint that is not stable yet, the name comes after that of its proposal.
        ("unstable", Some((_, rest))) => rest,
        _ => name,
    }
}

/// Whether requests of this method may change anything.
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
    fn a_write_that_nobody_has_named_is_limited() {
        let path = "/_matrix/client/v1/something/{new}";
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
            assert_eq!(Class::of(&method, path, false), Some(Class::Settings));
            assert!(!Class::is_said(&method, path));
        }
        assert_eq!(Class::of(&Method::GET, path, false), None);
        assert_eq!(Class::of(&Method::GET, path, true), Some(Class::Other));
    }

    #[test]
    fn what_is_an_event_counts_as_a_message_however_it_is_sent() {
        for path in ["ban", "unban", "kick", "leave"] {
            let path = format!("/_matrix/client/v3/rooms/{{room_id}}/{path}");
            assert_eq!(Class::of(&Method::POST, &path, false), Some(Class::Messages), "{path}");
        }
    }

    #[test]
    fn what_the_specification_says_is_not_limited_is_not() {
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
