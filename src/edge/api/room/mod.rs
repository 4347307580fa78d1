//! Rooms: creating, joining, sending, reading, directory and reports.

pub(crate) mod address_invite;
pub(crate) mod as_of;
pub(crate) mod context;
pub(crate) mod create_room;
pub(crate) mod delayed;
pub(crate) mod directory;
pub(crate) mod membership;
pub(crate) mod past;
pub(in crate::api) mod reading;
pub(crate) mod receipt;
pub(crate) mod relations;
pub(crate) mod remote_rooms;
pub(crate) mod report;
pub(crate) mod retention;
pub(crate) mod room_state;
pub(crate) mod search;
pub(crate) mod send;
pub(crate) mod space;
pub(crate) mod timeline;
pub(crate) mod timestamp;
pub(crate) mod typing;
pub(crate) mod upgrade;

use super::{bodies, server::Server};
use crate::http::{Class, Shadow, Table, cheap, limited};
use logcabin_config::HookPoint;

pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .on(
            create_room::create_room,
            limited(Class::Rooms)
                .objects(bodies::CREATE_ROOM)
                .checked(bodies::room_version_is_one)
                .screened(HookPoint::CreateRoom)
                .of_room()
                .shadowed(Shadow::Alone),
        )
        .on(
            upgrade::upgrade,
            limited(Class::Rooms)
                .checked(bodies::room_version_is_one)
                .screened(HookPoint::CreateRoom)
                .shadowed(Shadow::Replacement),
        )
        .on(
            membership::join,
            limited(Class::Joins)
                .guests()
                .objects(bodies::SIGNED_JOIN)
                .screened(HookPoint::Join)
                .body_optional()
                .shadowed(Shadow::Silently),
        )
        .on(
            membership::join_by_id_or_alias,
            limited(Class::Joins)
                .guests()
                .objects(bodies::SIGNED_JOIN)
                .screened(HookPoint::Join)
                .body_optional()
                .shadowed(Shadow::Silently),
        )
        .on(
            membership::knock,
            limited(Class::Joins)
                .screened(HookPoint::Join)
                .body_optional()
                .shadowed(Shadow::Silently),
        )
        .on(
            membership::leave,
            limited(Class::Messages)
                .guests()
                .suspended()
                .body_optional()
                .shadowed(Shadow::Silently),
        )
        .on(membership::forget, limited(Class::Messages).suspended().body_optional())
        .on(
            membership::invite,
            limited(Class::Invites).screened(HookPoint::Invite).shadowed(Shadow::Nothing),
        )
        .on(address_invite::bound, limited(Class::Invites))
        .on(membership::kick, limited(Class::Messages).shadowed(Shadow::Nothing))
        .on(membership::ban, limited(Class::Messages).shadowed(Shadow::Nothing))
        .on(membership::unban, limited(Class::Messages).shadowed(Shadow::Nothing))
        .on(membership::joined_rooms, cheap())
        .on(membership::joined_members, limited(Class::Reads))
        .on(membership::members, limited(Class::Reads).guests())
        .on(
            send::message,
            limited(Class::Messages)
                .guests()
                .screened(HookPoint::Message)
                .of_room()
                .shadowed(Shadow::Event),
        )
        .on(
            send::state,
            limited(Class::Messages)
                .guests()
                .screened(HookPoint::Message)
                .of_room()
                .shadowed(Shadow::State),
        )
        .on(
            send::redact,
            limited(Class::Messages)
                .suspended()
                .body_optional()
                .screened(HookPoint::Message)
                .shadowed(Shadow::Event),
        )
        .on(
            send::message_without_transaction,
            limited(Class::Messages)
                .guests()
                .screened(HookPoint::Message)
                .of_room()
                .shadowed(Shadow::Event),
        )
        .on(
            send::redact_without_transaction,
            limited(Class::Messages)
                .suspended()
                .body_optional()
                .screened(HookPoint::Message)
                .shadowed(Shadow::Event),
        )
        .on(
            delayed::put,
            limited(Class::Messages)
                .screened(HookPoint::Message)
                .of_room()
                .shadowed(Shadow::Delayed),
        )
        .on(delayed::list, limited(Class::Other))
        .on(delayed::get, limited(Class::Other))
        .on(delayed::act, limited(Class::Ephemeral).shadowed(Shadow::Nothing))
        .on(
            delayed::act_by_path,
            limited(Class::Ephemeral).body_optional().shadowed(Shadow::Nothing),
        )
        .on(receipt::receipt, limited(Class::Ephemeral).suspended().body_optional())
        .on(receipt::read_markers, limited(Class::Ephemeral).suspended())
        .on(typing::typing, limited(Class::Ephemeral).shadowed(Shadow::Nothing))
        .on(room_state::all, limited(Class::Reads).guests())
        .on(room_state::one, cheap().guests())
        .on(timeline::messages, limited(Class::Reads).guests())
        .on(timeline::event, cheap().guests())
        .on(context::context, cheap().guests())
        .on(relations::all, limited(Class::Reads))
        .on(relations::of_rel_type, limited(Class::Reads))
        .on(relations::of_rel_type_and_event_type, limited(Class::Reads))
        .on(relations::threads, limited(Class::Reads))
        .on(space::hierarchy, limited(Class::Search))
        .on(space::summary, limited(Class::Search).guests())
        .on(space::early_summary, limited(Class::Search).guests())
        .on(timestamp::timestamp_to_event, limited(Class::Search))
        .on(search::search, limited(Class::Search).suspended().objects(bodies::SEARCH))
        .on(report::event, limited(Class::Reports).suspended())
        .on(report::room, limited(Class::Reports).suspended())
        .on(report::user, limited(Class::Reports).suspended())
        .on(directory::create_alias, limited(Class::Directory).shadowed(Shadow::Nothing))
        .on(directory::get_alias, cheap())
        .on(directory::delete_alias, limited(Class::Directory).shadowed(Shadow::Nothing))
        .on(directory::room_aliases, limited(Class::Other))
        .on(directory::get_visibility, cheap())
        .on(directory::set_visibility, limited(Class::Directory).shadowed(Shadow::Nothing))
        .on(directory::public_rooms, limited(Class::Search))
        .on(
            directory::public_rooms_filtered,
            limited(Class::Search).suspended().objects(bodies::PUBLIC_ROOMS).body_optional(),
        )
        .on(retention::configuration, limited(Class::Other))
        .on(directory::set_network_visibility, limited(Class::Admin))
}
