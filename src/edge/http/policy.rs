//! Who may call an endpoint, how often, whether what it takes may leave the server, and what is
//! checked of its body: stated where the endpoint is registered, as the second argument of
//! [`Table::on`](super::Table::on).

use super::{
    Class, OpenTo,
    audience::Audience,
    decode::{Amend, Checks, Precheck},
    objects::JsonPath,
    shadow::Shadow,
};
use logcabin_config::HookPoint;

/// The terms on which an endpoint is served.
///
/// Restricted accounts may call nothing that does not say so. The exception is that suspended users
/// may call whatever only reads (`GET`).
#[derive(Clone, Copy)]
pub struct Policy {
    pub(super) rate: Rate,
    pub(super) open_to: OpenTo,
    pub(super) reach: Audience,
    pub(super) checks: Checks,
    /// Whether it is answered even if this node of a cluster lags behind.
    pub(super) at_once: bool,
    /// Whether its answers may be large, so that those in progress are bounded together.
    pub(super) is_large: bool,
    /// Whether a missing body counts as `{}`; by default only for `DELETE`.
    pub(super) may_lack_body: Option<bool>,
    /// As what the operator's checks see a request, before it is answered.
    pub(super) screened: Option<HookPoint>,
    /// What becomes of requests of users who are shadow-banned.
    pub(super) shadow: Shadow,
}

/// How often an endpoint may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rate {
    /// As often as a class of endpoints together.
    Of(Class),
    /// At any rate, for this reason, though it writes or the Matrix specification marks it as
    /// rate-limited.
    Unlimited(&'static str),
    /// At any rate: it reads little.
    Cheap,
}

/// Limited together with the others of `class`.
pub const fn limited(class: Class) -> Policy {
    Policy::new(Rate::Of(class))
}

/// Not limited, for this reason, although it writes or the specification marks it as rate-limited.
pub const fn unlimited(reason: &'static str) -> Policy {
    Policy::new(Rate::Unlimited(reason))
}

/// Not limited, because it only reads, and little. The table refuses writes with this policy.
pub const fn cheap() -> Policy {
    Policy::new(Rate::Cheap)
}

impl Policy {
    const fn new(rate: Rate) -> Self {
        Self {
            rate,
            open_to: OpenTo::UNRESTRICTED,
            reach: Audience::Others,
            checks: Checks::NONE,
            at_once: false,
            is_large: false,
            may_lack_body: None,
            screened: None,
            shadow: Shadow::Done,
        }
    }

    /// The operator's checks may refuse it, as something of this kind.
    #[must_use]
    pub(crate) const fn screened(mut self, point: HookPoint) -> Self {
        self.screened = Some(point);
        self
    }

    /// Guests may call it, too (client-server API, "Guest Access").
    #[must_use]
    pub(crate) const fn guests(mut self) -> Self {
        self.open_to.guests = true;
        self
    }

    /// Suspended users may call it, too (client-server API, "Account suspension").
    #[must_use]
    pub(crate) const fn suspended(mut self) -> Self {
        self.open_to.suspended = true;
        self
    }

    /// Users whose account is locked may call it, too (client-server API, "Account locking").
    #[must_use]
    pub(crate) const fn locked(mut self) -> Self {
        self.open_to.locked = true;
        self
    }

    /// Only the administrators of the server may call it.
    #[must_use]
    pub(crate) const fn administrators(mut self) -> Self {
        self.open_to.administrators_only = true;
        self
    }

    /// Administrators' logins with the scope of the feed of changes may call it, too.
    #[must_use]
    pub(crate) const fn scope_of_changes(mut self) -> Self {
        self.open_to.scope_of_changes = true;
        self
    }

    /// Its answers may be large: it is refused while other homeservers have not read enough of
    /// what they were answered.
    #[must_use]
    pub(crate) const fn large(mut self) -> Self {
        self.is_large = true;
        self
    }

    /// In a cluster, it does not wait until this node has caught up.
    #[must_use]
    pub(crate) const fn at_once(mut self) -> Self {
        self.at_once = true;
        self
    }

    /// A missing body counts as `{}`: no harm is done if it got lost, or clients send none.
    #[must_use]
    pub(crate) const fn body_optional(mut self) -> Self {
        self.may_lack_body = Some(true);
        self
    }

    /// A missing body is refused although the endpoint deletes: the body may say what to keep.
    #[must_use]
    pub(crate) const fn body_required(mut self) -> Self {
        self.may_lack_body = Some(false);
        self
    }

    /// The body has events of a room, whose version decides which numbers may be in them.
    #[must_use]
    pub(crate) const fn of_room(mut self) -> Self {
        self.reach = Audience::Room;
        self
    }

    /// What is in the body never leaves this server, for this reason: numbers that other
    /// homeservers refuse may be in it.
    #[must_use]
    pub(crate) const fn stays(mut self, reason: &'static str) -> Self {
        self.reach = Audience::Own(reason);
        self
    }

    /// What becomes of it if the user is shadow-banned, so that nobody else learns of it.
    #[must_use]
    pub(crate) const fn shadowed(mut self, shadow: Shadow) -> Self {
        self.shadow = shadow;
        self
    }

    /// The body has objects at these places, where serde would read arrays as well.
    #[must_use]
    pub(crate) const fn objects(mut self, places: &'static [JsonPath]) -> Self {
        self.checks.objects = places;
        self
    }

    /// The body is checked before it is decoded.
    #[must_use]
    pub(crate) const fn checked(mut self, before: Precheck) -> Self {
        self.checks.before = Some(before);
        self
    }

    /// A body that cannot be decoded is decoded once more with these changes.
    #[must_use]
    pub(crate) const fn amended(mut self, amend: Amend) -> Self {
        self.checks.amend = Some(amend);
        self
    }
}
