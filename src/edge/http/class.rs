//! The classes of endpoints that are limited in rate together. The policy of each endpoint names
//! its class.

use serde::{Deserialize, Serialize};

use http::Method;

use logcabin_base::rate::Rate;
use logcabin_config::RateLimits;

macro_rules! classes {
    ($($(#[$doc:meta])* $class:ident = $setting:ident;)+) => {
        /// Endpoints that share a rate limit, besides the limit on everything that a caller does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Class {
            $($(#[$doc])* $class,)+
            /// Limited, but without a limit of their own.
            Other,
        }

        impl Class {
            /// The classes with a limit of their own, and those limits.
            pub(super) fn rates(config: &RateLimits) -> Vec<(Self, Rate)> {
                vec![$((Self::$class, config.$setting)),+]
            }

            /// The name of its setting.
            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$class => stringify!($setting),)+
                    Self::Other => "other",
                }
            }
        }
    };
}

classes! {
    /// Logging in. Failed attempts are also counted by account, see `passwords::Guesses`.
    Login = login;
    /// Exchanging refresh tokens. These requests have no session, so they count by address.
    Refresh = refresh;
    /// Making an account: each stage of its authentication is a request.
    Registration = registration;
    /// Registering OAuth clients, and beginning device authorizations. Both write without a login.
    Clients = clients;
    /// Changing an account's credentials, and managing its devices.
    Account = account;
    /// Making and upgrading rooms.
    Rooms = rooms;
    /// Joining and knocking.
    Joins = joins;
    /// Getting into calls.
    Calls = calls;
    /// Inviting.
    Invites = invites;
    /// Sending events. Kicks, bans and leaves are events, too.
    Messages = messages;
    /// Ephemeral events: receipts, typing, presence, to-device messages.
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
    /// Reporting to the administrators.
    Reports = reports;
    /// Administration over HTTP.
    Admin = admin;
    /// Requests of other homeservers, counted by homeserver.
    Federation = federation;
}

impl Class {
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

/// Whether requests with this method may write.
pub(super) fn is_write(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_one_setting() {
        let rates = Class::rates(&RateLimits::default());
        let unique: std::collections::HashSet<_> = rates.iter().map(|(class, _)| class).collect();
        assert_eq!(unique.len(), rates.len());
    }
}
