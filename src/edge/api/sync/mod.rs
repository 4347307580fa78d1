//! Synchronisation: `/sync`, sliding sync, the older endpoints, filters and presence.

pub(crate) mod classic;
pub(crate) mod filter;
pub(crate) mod old_sync;
pub(crate) mod presence;
pub(crate) mod sliding;

use super::{bodies, server::Server};
use crate::http::{Class, Shadow, Table, cheap, limited, unlimited};

const FILTERS_HAVE_QUOTAS: &str = "filters are never deleted, so `quotas.filters` and \
    `quotas.filter_bytes` bound all that it ever writes";
const ONLY_READS: &str = "it only reads, although its method is POST";

pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .on(filter::create, unlimited(FILTERS_HAVE_QUOTAS).suspended().objects(bodies::FILTER))
        .on(filter::get, cheap())
        .on(classic::sync, cheap().guests())
        .on(presence::set, limited(Class::Ephemeral).shadowed(Shadow::Nothing))
        .on(presence::get, cheap())
        .on(sliding::sync, unlimited(ONLY_READS).suspended().objects(bodies::SLIDING_SYNC))
        .on(old_sync::initial_sync, limited(Class::Reads))
        .on(old_sync::room_initial_sync, limited(Class::Reads).guests())
        .on(old_sync::events, cheap().guests())
        .on(old_sync::event, cheap())
}
