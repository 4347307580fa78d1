//! The console: pages for the administrators of the server, off unless `console.enabled`.
//!
//! Whoever logs in gets a session like any other, whose token is in a cookie that scripts cannot
//! read and that other sites cannot have sent. The pages are complete without scripts; the one
//! script refreshes what changes, shows times in the reader's zone, and the values of plots.

mod account;
mod activity;
mod acts;
mod axis;
mod bars;
mod disk;
mod federation;
mod find;
mod frame;
mod health;
mod lists;
mod log;
mod login;
mod marks;
mod now;
mod parts;
mod past;
mod pictures;
mod plot;
mod progress;
mod recent;
mod relations;
mod severity;
mod timeline;
mod unread;
mod upkeep;
pub(super) mod visitor;
mod why;
mod work;

use super::server::Server;
use crate::http::{Class, Table, limited};

pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .on(login::page, limited(Class::Admin))
        .on(login::submit, limited(Class::Login))
        .on(login::leave, limited(Class::Admin))
        .on(account::set_out, limited(Class::Other))
        .on(account::arrive, limited(Class::Login))
        .on(now::page, limited(Class::Admin))
        .on(find::page, limited(Class::Admin))
        .on(now::part, limited(Class::Admin))
        .on(log::page, limited(Class::Admin))
        .on(log::one, limited(Class::Admin))
        .on(log::live, limited(Class::Admin))
        .on(past::page, limited(Class::Admin))
        .on(why::page, limited(Class::Admin))
        .on(timeline::page, limited(Class::Admin))
        .on(relations::page, limited(Class::Admin))
        .on(disk::page, limited(Class::Admin))
        .on(activity::page, limited(Class::Admin))
        .on(work::page, limited(Class::Admin))
        .on(health::page, limited(Class::Admin))
        .on(health::submit, limited(Class::Admin))
        .on(lists::users::list, limited(Class::Admin))
        .on(lists::user::one, limited(Class::Admin))
        .on(lists::rooms::list, limited(Class::Admin))
        .on(lists::room::one, limited(Class::Admin))
        .on(lists::media::list, limited(Class::Admin))
        .on(pictures::thumbnail, limited(Class::Media))
        .on(lists::reports::list, limited(Class::Admin))
        .on(lists::reports::one, limited(Class::Admin))
        .on(lists::reports::decided, limited(Class::Admin))
        .on(lists::reports::decide::submit, limited(Class::Admin))
        .on(lists::policies::list, limited(Class::Admin))
        .on(lists::waiting::list, limited(Class::Admin))
        .on(lists::tokens::list, limited(Class::Admin))
        .on(unread::page, limited(Class::Admin))
        .on(upkeep::backups::list, limited(Class::Admin))
        .on(upkeep::snapshots::list, limited(Class::Admin))
        .on(upkeep::proofs::list, limited(Class::Admin))
        .on(upkeep::erasures::list, limited(Class::Admin))
        .on(upkeep::erasures::one, limited(Class::Admin))
        .on(upkeep::cluster::page, limited(Class::Admin))
        .on(federation::overview, limited(Class::Admin))
        .on(federation::one, limited(Class::Admin))
        .on(federation::refused, limited(Class::Admin))
        .on(federation::keys, limited(Class::Admin))
        .on(acts::list, limited(Class::Admin))
        .on(acts::form, limited(Class::Admin))
        .on(acts::submit, limited(Class::Admin))
}
