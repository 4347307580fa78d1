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
    /// Making an account: each stage of its authentication is a request.
    Registration = registration;
    /// Changing what an account is held by.
    Account = account;
    /// Making and upgrading rooms.
    Rooms = rooms;
    /// Joining and knocking.
    Joins = joins;
    /// Inviting.
    Invites = invites;
    /// Sending events.
    Messages = messages;
    /// What passes: receipts, typing, presence, messages to devices.
    Ephemeral = ephemeral;
    /// Keys of end-to-end encryption.
    Keys = keys;
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

impl Class {
    /// The class of an endpoint by its newest path, if it is limited. `marked`: whether the
    /// Matrix specification marks it so.
    ///
    /// Part 1 of the specification says for each of its endpoints whether it is limited, and that is
    /// what holds. So the six `requestToken` endpoints are not limited here: what has to be kept
    /// from abuse there is not the request but the message that it may send, and those are counted
    /// where they are sent. Of the rest of the Matrix API, what writes, or costs much to answer, is
    /// limited although the specification does not mark it: any endpoint may answer 429.
    pub(crate) fn of(method: &Method, path: &str, marked: bool) -> Option<Self> {
        if path.starts_with("/_matrix/media/") {
            return Some(Self::Media);
        }
        if path == "/_synapse/admin/v1/register" {
            return Some(Self::Registration);
        }
        if path.starts_with("/_synapse/admin/") {
            return Some(Self::Admin);
        }
        let (version, name) = path
            .strip_prefix("/_matrix/client/")
            .and_then(|path| path.split_once('/'))
            .unwrap_or_default();
        // Of an endpoint that is not stable yet, the name comes after that of its proposal.
        let name = match (version, name.split_once('/')) {
            ("unstable", Some((_, rest))) => rest,
            _ => name,
        };
        let class = match (method.as_str(), name) {
            // As part 1 has it, unlike the endpoint that took its place.
            ("POST", "account/3pid") => return None,
            ("POST", "login" | "login/get_token") | ("POST", "auth/{auth_type}/fallback/web") => {
                Self::Login
            }
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
                | "account/3pid/bind",
            ) => Self::Account,
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
            ) => Self::Messages,
            (
                "POST",
                "rooms/{room_id}/receipt/{receipt_type}/{event_id}"
                | "rooms/{room_id}/read_markers",
            )
            | (
                "PUT",
                "rooms/{room_id}/typing/{user_id}"
                | "presence/{user_id}/status"
                | "sendToDevice/{event_type}/{txn_id}",
            ) => Self::Ephemeral,
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
            _ => return marked.then_some(Self::Other),
        };
        Some(class)
    }
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
    fn what_sends_mail_and_what_ends_sessions_is_not_limited_by_request() {
        for path in [
            "register/email/requestToken",
            "register/msisdn/requestToken",
            "account/password/email/requestToken",
            "account/password/msisdn/requestToken",
            "account/3pid/email/requestToken",
            "account/3pid/msisdn/requestToken",
            "logout",
            "logout/all",
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
