//! Authentication: registration, login, sessions, user-interactive authentication, and access
//! rights.

pub(crate) mod capabilities;
pub(crate) mod claim;
pub(crate) mod credentials;
pub(crate) mod grants;
pub(crate) mod login;
pub(crate) mod login_token;
pub(crate) mod password;
pub(crate) mod registration;
pub(crate) mod rendezvous;
pub(crate) mod rights;
pub(crate) mod session;
pub(crate) mod shared_secret;
pub(crate) mod sso;
pub(crate) mod uiaa;
pub(crate) mod validation;

use super::{bodies, server::Server};
use crate::http::{Class, Table, cheap, limited, unlimited};
use logcabin_config::HookPoint;

const LOGIN_IS_LIMITED: &str = "a logout needs a login before it, which is limited";
const MESSAGES_ARE_LIMITED: &str = "it writes only when it sends a message, and messages are \
    limited by requester (`service::notices`) and by recipient (`decide::threepid`)";

pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .on(
            registration::register,
            limited(Class::Registration)
                .objects(bodies::AUTH)
                .amended(bodies::guest_registration)
                .screened(HookPoint::Registration)
                .body_optional(),
        )
        .on(registration::available, limited(Class::Registration))
        .on(registration::token_validity, limited(Class::Registration))
        .on(uiaa::page, cheap())
        .on(uiaa::submit, limited(Class::Login))
        .on(login::login_types, limited(Class::Other))
        .on(
            login::login,
            limited(Class::Login)
                .objects(bodies::LOGIN)
                .checked(bodies::login_has_type)
                .screened(HookPoint::Login),
        )
        .on(
            login_token::get_token,
            limited(Class::Login).suspended().objects(bodies::AUTH).body_optional(),
        )
        .on(session::refresh, limited(Class::Refresh))
        .on(
            session::logout,
            unlimited(LOGIN_IS_LIMITED).guests().suspended().locked().body_optional(),
        )
        .on(
            session::logout_all,
            unlimited(LOGIN_IS_LIMITED).guests().suspended().locked().body_optional(),
        )
        .on(session::whoami, limited(Class::Other).guests())
        .on(password::change_password, limited(Class::Account).suspended().objects(bodies::AUTH))
        .on(
            validation::by_email_to_register,
            unlimited(MESSAGES_ARE_LIMITED).checked(bodies::secret_is_opaque),
        )
        .on(
            validation::by_msisdn_to_register,
            unlimited(MESSAGES_ARE_LIMITED).checked(bodies::secret_is_opaque),
        )
        .on(
            validation::by_email_for_password,
            unlimited(MESSAGES_ARE_LIMITED).checked(bodies::secret_is_opaque),
        )
        .on(
            validation::by_msisdn_for_password,
            unlimited(MESSAGES_ARE_LIMITED).checked(bodies::secret_is_opaque),
        )
        .on(
            validation::by_email_to_add,
            unlimited(MESSAGES_ARE_LIMITED).checked(bodies::secret_is_opaque),
        )
        .on(
            validation::by_msisdn_to_add,
            unlimited(MESSAGES_ARE_LIMITED).checked(bodies::secret_is_opaque),
        )
        .on(validation::page, cheap())
        .on(validation::submit, limited(Class::Account))
        .on(shared_secret::nonce, limited(Class::Registration))
        .on(shared_secret::register, limited(Class::Registration))
        .on(rendezvous::is_there, limited(Class::Other))
        .on(rendezvous::create, limited(Class::Ephemeral).suspended())
        .on(rendezvous::get, limited(Class::Other))
        .on(rendezvous::put, limited(Class::Ephemeral))
        .on(rendezvous::delete, limited(Class::Ephemeral))
        .on(rendezvous::former_create, limited(Class::Ephemeral))
        .on(rendezvous::former_get, limited(Class::Other))
        .on(rendezvous::former_put, limited(Class::Ephemeral))
        .on(rendezvous::former_delete, limited(Class::Ephemeral))
}
