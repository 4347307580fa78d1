//! Push notifications: rules, pushers, and the unsubscribe page.

pub(crate) mod pushers;
pub(crate) mod rules;
pub(crate) mod unsubscribe;

use super::{bodies, server::Server};
use crate::http::{Class, Table, cheap, limited};

pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .on(rules::all, cheap())
        .on(rules::global, cheap())
        .on(rules::get, cheap())
        .on(rules::put, limited(Class::Settings).suspended().objects(bodies::PUSH_RULE))
        .on(rules::delete, limited(Class::Settings).suspended())
        .on(rules::get_actions, cheap())
        .on(rules::set_actions, limited(Class::Settings).suspended())
        .on(rules::get_enabled, cheap())
        .on(rules::set_enabled, limited(Class::Settings).suspended())
        .on(rules::notifications, cheap())
        .on(pushers::list, cheap())
        .on(pushers::set, limited(Class::Settings).suspended().objects(bodies::PUSHER))
        .on(unsubscribe::page, cheap())
        .on(unsubscribe::submit, limited(Class::Account))
}
