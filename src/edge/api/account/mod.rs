//! Accounts: profile, devices, account data, identifiers, and moderation by the client-server API.

pub(crate) mod account_data;
pub(crate) mod deactivate;
pub(crate) mod device;
pub(crate) mod moderation;
pub(crate) mod openid;
pub(crate) mod profile;
pub(crate) mod threepid;
pub(crate) mod user_directory;

use super::{bodies, server::Server};
use crate::http::{Class, Shadow, Table, cheap, limited, unlimited};
use logcabin_config::HookPoint;

const FEW_ADDRESSES: &str = "`limits::THREEPIDS` bounds how many addresses an account has, and \
    adding one is limited";

const PRIVATE: &str = "only clients of the same user read it; the `order` of a tag is a fraction";

pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .on(threepid::list, cheap())
        .on(
            threepid::old_bind,
            unlimited(FEW_ADDRESSES).suspended().objects(bodies::BIND).screened(HookPoint::Address),
        )
        .on(
            threepid::add,
            limited(Class::Account)
                .suspended()
                .objects(bodies::AUTH)
                .checked(bodies::secret_is_opaque)
                .screened(HookPoint::Address),
        )
        .on(
            threepid::bind,
            limited(Class::Account)
                .suspended()
                .checked(bodies::secret_is_opaque)
                .screened(HookPoint::Address),
        )
        .on(threepid::unbind, unlimited(FEW_ADDRESSES).suspended())
        .on(threepid::delete, unlimited(FEW_ADDRESSES).suspended())
        .on(
            deactivate::deactivate,
            limited(Class::Account).suspended().objects(bodies::AUTH).body_optional(),
        )
        .on(moderation::is_locked, limited(Class::Admin))
        .on(moderation::lock, limited(Class::Admin))
        .on(moderation::is_suspended, limited(Class::Admin))
        .on(moderation::suspend, limited(Class::Admin))
        .on(moderation::whois, limited(Class::Admin))
        .on(device::list, cheap().guests())
        .on(device::get, cheap().guests())
        .on(device::rename, limited(Class::Account).guests().suspended())
        .on(device::delete, limited(Class::Account).suspended().objects(bodies::AUTH))
        .on(device::delete_many, limited(Class::Account).suspended().objects(bodies::AUTH))
        .on(profile::get, cheap())
        .on(profile::get_field, cheap())
        .on(
            profile::set_field,
            limited(Class::Profile)
                .guests()
                .amended(bodies::field_of_profile)
                .screened(HookPoint::Profile)
                .shadowed(Shadow::Nothing),
        )
        .on(
            profile::delete_field,
            limited(Class::Profile).screened(HookPoint::Profile).shadowed(Shadow::Nothing),
        )
        .on(account_data::get_global, cheap())
        .on(account_data::set_global, limited(Class::Settings).suspended().stays(PRIVATE))
        .on(account_data::get_room, cheap())
        .on(account_data::set_room, limited(Class::Settings).suspended().stays(PRIVATE))
        .on(account_data::delete_global, limited(Class::Settings).suspended())
        .on(account_data::delete_of_room, limited(Class::Settings).suspended())
        .on(account_data::tags, cheap())
        .on(account_data::set_tag, limited(Class::Settings).suspended().stays(PRIVATE))
        .on(account_data::delete_tag, limited(Class::Settings).suspended())
        .on(user_directory::search, limited(Class::Search).suspended())
        .on(user_directory::mutual_rooms, limited(Class::Search))
        .on(openid::request_token, limited(Class::Ephemeral).body_optional())
        .on(openid::userinfo, cheap())
}
