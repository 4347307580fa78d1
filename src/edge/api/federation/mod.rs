//! The server-server API, in a table of its own. The listeners of `federation.bind` serve this
//! table only.

mod events;
mod invites;
mod keys;
mod memberships;
mod older;
mod queries;
pub(super) mod signed;
mod transactions;

use ruma::api::federation::discovery::get_server_version::v1 as get_server_version;

use super::{
    about::discovery,
    account::openid,
    e2ee::keys as encryption,
    media::files,
    room::{address_invite, directory, space},
    rtc::tokens,
    server::Server,
};
use crate::http::{ApiError, Class, Cx, Table, cheap, limited};
use logcabin_config::HookPoint;
use logcabin_service::federation::PduReceiver;

/// Every endpoint for other homeservers.
pub fn endpoints() -> Table<Server> {
    Table::new(&["/_matrix"])
        .on(version, cheap())
        .on(keys::own, cheap())
        .on(keys::own_key, cheap())
        .on(keys::query_one, limited(Class::Federation))
        .on(keys::key_of_one, limited(Class::Federation))
        .on(keys::query, limited(Class::Federation))
        .on(queries::profile, limited(Class::Federation))
        .on(queries::directory, limited(Class::Federation))
        .on(directory::public_rooms_for_server, limited(Class::Federation))
        .on(directory::public_rooms_filtered_for_server, limited(Class::Federation))
        .on(encryption::query_for_server, limited(Class::Federation).large())
        .on(encryption::claim_for_server, limited(Class::Federation))
        .on(encryption::devices_for_server, limited(Class::Federation).large())
        .on(space::for_server::hierarchy_for_server, limited(Class::Federation).large())
        .on(files::download_for_server, limited(Class::Federation))
        .on(files::thumbnail_for_server, limited(Class::Federation))
        .on(events::event, limited(Class::Federation))
        .on(events::state, limited(Class::Federation).large())
        .on(events::state_ids, limited(Class::Federation).large())
        .on(events::event_auth, limited(Class::Federation).large())
        .on(events::backfill, limited(Class::Federation).large())
        .on(events::missing_events, limited(Class::Federation).large())
        .on(events::timestamp_to_event, limited(Class::Federation))
        .on(memberships::make_join, limited(Class::Federation))
        .on(memberships::send_join, limited(Class::Federation).large())
        .on(older::send_join, limited(Class::Federation).large())
        .on(memberships::make_knock, limited(Class::Federation))
        .on(memberships::send_knock, limited(Class::Federation))
        .on(memberships::make_leave, limited(Class::Federation))
        .on(memberships::send_leave, limited(Class::Federation))
        .on(older::send_leave, limited(Class::Federation))
        .on(invites::invite, limited(Class::Federation).screened(HookPoint::Invite))
        .on(older::invite, limited(Class::Federation).screened(HookPoint::Invite))
        .on(invites::exchange, limited(Class::Federation).screened(HookPoint::Invite))
        .on(address_invite::bound, limited(Class::Invites))
        .on(transactions::send, limited(Class::Federation).checked(transactions::is_bounded))
        .on(tokens::get_for_server, limited(Class::Federation))
        .on(discovery::delegation, cheap())
        .on(openid::userinfo, cheap())
}

impl Server {
    /// Handles events of other homeservers.
    pub(super) fn receiving(&self) -> Result<PduReceiver<'_>, ApiError> {
        let federation = self.outside.federation.as_deref();
        let federation =
            federation.ok_or_else(|| ApiError::forbidden("This server does not federate."))?;
        Ok(PduReceiver::new(&self.engine, federation, &self.typing))
    }
}

async fn version(
    _: Cx<Server, ()>,
    _: get_server_version::Request,
) -> Result<get_server_version::Response, ApiError> {
    let mut server = get_server_version::Server::new();
    server.name = Some("Logcabin".to_owned());
    server.version = Some(env!("CARGO_PKG_VERSION").to_owned());
    let mut response = get_server_version::Response::new();
    response.server = Some(server);
    Ok(response)
}
