//! Administration over HTTP, compatible with existing tools (`/_synapse/admin/…`), one file for
//! each section. A request becomes an [`Act`] like those of the command line, and is carried out in
//! the same place (`ops::admin`). The code here translates between both.
//!
//! Every endpoint that changes something takes `reason`, in the query or in the body, which is
//! recorded, and `?dry_run=true`, which reports the effect without changing anything.
//!
//! [`Act`]: logcabin_ops::admin::act::Act

mod acts;
pub(super) mod changes;
mod events;
mod features;
mod federation;
mod media;
mod notices;
mod parts;
mod purges;
mod redactions;
mod reports;
mod rooms;
mod settings;
mod shadow_bans;
mod statistics;
mod tasks;
mod tokens;
mod users;

use ruma::api::auth_scheme::NoAccessToken;
use serde_json::json;

use super::{answer::json as to_json, bodies::ADMIN_USER, server::Server};
use crate::http::{ApiError, Class, Cx, Json, Policy, Table, endpoint, limited};

/// Only for administrators. Nobody else learns anything.
const ADMINISTRATORS: Policy = limited(Class::Admin).administrators();

/// Every endpoint of administration, by section.
pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .on(server_version, limited(Class::Admin))
        .on(changes::changes, ADMINISTRATORS.scope_of_changes())
        // Users
        .on(users::list, ADMINISTRATORS)
        .on(users::list_v3, ADMINISTRATORS)
        .on(users::get, ADMINISTRATORS)
        .on(users::put, ADMINISTRATORS.objects(ADMIN_USER))
        .on(users::is_admin, ADMINISTRATORS)
        .on(users::set_admin, ADMINISTRATORS)
        .on(users::deactivate, ADMINISTRATORS.body_optional())
        .on(users::password, ADMINISTRATORS)
        .on(users::suspend, ADMINISTRATORS)
        .on(shadow_bans::ban, ADMINISTRATORS.body_optional())
        .on(shadow_bans::lift, ADMINISTRATORS)
        .on(users::whois, ADMINISTRATORS)
        .on(users::log_in, ADMINISTRATORS.body_optional())
        .on(users::joined_rooms, ADMINISTRATORS)
        .on(users::parts, ADMINISTRATORS)
        .on(users::devices, ADMINISTRATORS)
        .on(users::create_device, ADMINISTRATORS)
        .on(users::device, ADMINISTRATORS)
        .on(users::rename_device, ADMINISTRATORS)
        .on(users::delete_device, ADMINISTRATORS)
        .on(users::delete_devices, ADMINISTRATORS)
        .on(users::permit_reset, ADMINISTRATORS.body_optional())
        .on(users::is_free, ADMINISTRATORS)
        .on(users::by_link, ADMINISTRATORS)
        .on(users::by_threepid, ADMINISTRATORS)
        .on(settings::pushers, ADMINISTRATORS)
        .on(settings::account_data, ADMINISTRATORS)
        .on(features::get, ADMINISTRATORS)
        .on(features::put, ADMINISTRATORS)
        .on(statistics::invites, ADMINISTRATORS)
        .on(statistics::joins, ADMINISTRATORS)
        .on(redactions::redact, ADMINISTRATORS)
        .on(redactions::status, ADMINISTRATORS)
        // Rooms
        .on(rooms::list, ADMINISTRATORS)
        .on(rooms::get, ADMINISTRATORS)
        .on(rooms::members, ADMINISTRATORS)
        .on(rooms::state, ADMINISTRATORS)
        .on(rooms::messages, ADMINISTRATORS)
        .on(rooms::hierarchy, ADMINISTRATORS)
        .on(rooms::is_blocked, ADMINISTRATORS)
        .on(rooms::block, ADMINISTRATORS)
        .on(rooms::delete, ADMINISTRATORS.body_required())
        .on(rooms::begin_delete, ADMINISTRATORS.body_required())
        .on(rooms::status_of_room, ADMINISTRATORS)
        .on(rooms::status, ADMINISTRATORS)
        .on(rooms::make_admin, ADMINISTRATORS.body_optional())
        .on(rooms::join, ADMINISTRATORS)
        .on(purges::purge, ADMINISTRATORS)
        .on(purges::purge_to, ADMINISTRATORS.body_optional())
        .on(purges::status, ADMINISTRATORS)
        .on(events::fetch, ADMINISTRATORS)
        .on(events::context, ADMINISTRATORS)
        .on(events::closest, ADMINISTRATORS)
        .on(events::extremities, ADMINISTRATORS)
        .on(statistics::rooms, ADMINISTRATORS)
        // Other homeservers
        .on(federation::list, ADMINISTRATORS)
        .on(federation::get, ADMINISTRATORS)
        .on(federation::rooms, ADMINISTRATORS)
        .on(federation::retry, ADMINISTRATORS.body_optional())
        .on(tasks::list, ADMINISTRATORS)
        // Registration tokens
        .on(tokens::list, ADMINISTRATORS)
        .on(tokens::create, ADMINISTRATORS)
        .on(tokens::get, ADMINISTRATORS)
        .on(tokens::update, ADMINISTRATORS)
        .on(tokens::delete, ADMINISTRATORS)
        // Server notices
        .on(notices::send, ADMINISTRATORS)
        .on(notices::send_once, ADMINISTRATORS)
        // Media
        .on(media::get, ADMINISTRATORS)
        .on(media::delete, ADMINISTRATORS)
        .on(media::delete_old, ADMINISTRATORS.body_optional())
        .on(media::purge_cache, ADMINISTRATORS.body_optional())
        .on(media::delete_of_user, ADMINISTRATORS)
        .on(media::of_room, ADMINISTRATORS)
        .on(media::of_user, ADMINISTRATORS)
        .on(media::quarantine, ADMINISTRATORS.body_optional())
        .on(media::unquarantine, ADMINISTRATORS.body_optional())
        .on(media::quarantine_room, ADMINISTRATORS.body_optional())
        .on(media::quarantine_user, ADMINISTRATORS.body_optional())
        .on(media::protect, ADMINISTRATORS.body_optional())
        .on(media::unprotect, ADMINISTRATORS.body_optional())
        .on(media::statistics, ADMINISTRATORS)
        // Reports
        .on(reports::list, ADMINISTRATORS)
        .on(reports::get, ADMINISTRATORS)
        .on(reports::delete, ADMINISTRATORS)
        .on(reports::list_of_users, ADMINISTRATORS)
        .on(reports::get_of_user, ADMINISTRATORS)
        .on(reports::delete_of_user, ADMINISTRATORS)
        // What Synapse has no endpoint for
        .on(acts::list, ADMINISTRATORS)
        .on(acts::perform, ADMINISTRATORS)
}

endpoint! {
    /// The version of the server.
    struct ServerVersion = GET "/_synapse/admin/v1/server_version";
    for NoAccessToken;
    {}
}

async fn server_version(_: Cx<Server, ()>, _: ServerVersion) -> Result<Json, ApiError> {
    let version = concat!("logcabin ", env!("CARGO_PKG_VERSION"));
    to_json(&json!({ "server_version": version }))
}
