//! The endpoints: each handler turns a typed request into a proposal or a look, and the outcome
//! into a typed response. What the server serves is the list in [`endpoints`].

pub mod about;
pub(crate) mod account;
mod addresses;
mod admin;
mod affinity;
mod answer;
mod app;
pub(crate) mod appservice;
pub(crate) mod auth;
mod bodies;
pub(crate) mod browser;
mod console;
pub(crate) mod e2ee;
mod error;
pub mod federation;
pub(crate) mod media;
pub(crate) mod oauth;
mod outgoing;
pub mod push;
pub mod room;
mod rtc;
mod screening;
mod server;
mod shadow;
mod sso;
pub mod sync;

pub use self::{
    auth::sso::callback as sso_callback,
    push::unsubscribe::url as unsubscribe_url,
    room::delayed::given_up,
    server::{Authentication, Listing, Oauth, Outside, Server, Signing, Synchronisation},
};
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::http::{Edge, Table, listen::Listener, serve as http_serve};
use logcabin_config::PathPrefix;

/// Every endpoint there is, section by section of the client-server API, under these prefixes.
pub fn endpoints(prefixes: &[PathPrefix]) -> Table<Server> {
    let table = Table::new(prefixes);
    let sections = [
        admin::endpoints,
        about::endpoints,
        auth::endpoints,
        sso::endpoints,
        oauth::endpoints,
        account::endpoints,
        sync::endpoints,
        room::endpoints,
        e2ee::endpoints,
        appservice::endpoints,
        media::endpoints,
        push::endpoints,
        rtc::endpoints,
        browser::endpoints,
        console::endpoints,
    ];
    sections.into_iter().fold(table, |table, section| section(table))
}

/// Serves endpoints on every listener: see [`run_with`](http_serve::run_with). The future is boxed,
/// so that it is compiled here and not again in each caller's package.
pub fn serve(
    listeners: Vec<Arc<Listener>>,
    edge: Arc<Edge<Server>>,
    beside: Option<Arc<Edge<Server>>>,
    closed: Box<dyn FnOnce(usize) + Send>,
) -> BoxFuture<'static, ()> {
    Box::pin(http_serve::run_with(listeners, edge, beside, closed))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::http::Class;

    fn prefixes() -> Vec<PathPrefix> {
        logcabin_config::Server::default().prefixes
    }

    /// The name of an endpoint in `docs/limits.md`: its path without what all paths of the
    /// client-server API begin with.
    fn short(path: &str) -> &str {
        match path.strip_prefix("/_matrix/client/").and_then(|path| path.split_once('/')) {
            Some(("unstable", rest)) => rest.split_once('/').map_or(rest, |(_, name)| name),
            Some((_, name)) => name,
            None => path,
        }
    }

    /// The name of the setting that a class has its rate from.
    fn setting(class: Option<Class>) -> String {
        let Some(class) = class else { return "none".to_owned() };
        let mut name = String::new();
        for c in format!("{class:?}").chars() {
            if c.is_ascii_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(c.to_ascii_lowercase());
        }
        name
    }

    /// What stands between backticks.
    fn quoted(text: &str) -> impl Iterator<Item = &str> {
        text.split('`').skip(1).step_by(2)
    }

    #[test]
    fn the_chapter_on_limits_names_every_endpoint_with_its_class_and_nothing_that_is_not_there() {
        let chapter = include_str!("../../../docs/limits.md");
        let (_, table) = chapter.split_once("| Endpoint |").expect("a table of endpoints");
        let mut documented = BTreeMap::new();
        for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [endpoints, class, bound, place] = cells[..] else { panic!("not a row: {row}") };
            assert!(!bound.is_empty() && quoted(place).count() > 0, "without a bound: {row}");
            for endpoint in quoted(endpoints) {
                let before = documented.insert(endpoint.to_owned(), class.to_owned());
                assert_eq!(before, None, "{endpoint} is there twice");
            }
        }
        let served = [endpoints(&prefixes()).list(), federation::endpoints().list()];
        let served: BTreeMap<_, _> = served
            .iter()
            .flatten()
            .map(|one| (format!("{} {}", one.method, short(one.known_as)), setting(one.class)))
            .collect();
        assert!(served.len() > 200, "{}", served.len());
        let difference = |of: &BTreeMap<_, _>, other: &BTreeMap<_, _>| -> BTreeSet<_> {
            let is_missing = |(name, class): &(&String, &String)| other.get(*name) != Some(*class);
            of.iter().filter(is_missing).map(|(name, class)| format!("{name}: {class}")).collect()
        };
        assert_eq!(difference(&served, &documented), BTreeSet::new(), "served otherwise");
        assert_eq!(difference(&documented, &served), BTreeSet::new(), "documented otherwise");

        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut limits = include_str!("../../base/limits.rs").to_owned();
        for file in std::fs::read_dir(root.join("src/base/limits")).unwrap() {
            limits += &std::fs::read_to_string(file.unwrap().path()).unwrap();
        }
        let settings = concat!(
            include_str!("../../config/list.rs"),
            include_str!("../../config/list/usage.rs")
        );
        for name in quoted(chapter) {
            if name.starts_with("src/") {
                assert!(root.join(name).is_file(), "there is no {name}");
            } else if name.len() > 2 && name.chars().all(|c| c.is_ascii_uppercase() || c == '_') {
                let constant = format!("const {name}: ");
                assert!(name.starts_with("M_") || limits.contains(&constant), "no {name}");
            } else if let Some((section, setting)) = name.split_once('.')
                && section.chars().all(|c| c.is_ascii_lowercase() || c == '_')
                && !section.is_empty()
            {
                let setting = setting.split(' ').next().unwrap_or_default();
                assert!(settings.contains(&format!("    {section}: ")), "no section {name}");
                assert!(settings.contains(&format!("        {setting}: ")), "no setting {name}");
            }
        }
    }

    #[test]
    fn of_what_does_not_delete_these_may_lack_a_body() {
        let lenient = [
            "POST /_matrix/media/v1/create",
            "POST /_synapse/admin/v1/deactivate/{user_id}",
            "POST /_synapse/admin/v1/federation/destinations/{destination}/reset_connection",
            "POST /_synapse/admin/v1/media/protect/{media_id}",
            "POST /_synapse/admin/v1/media/quarantine/{server_name}/{media_id}",
            "POST /_synapse/admin/v1/media/unprotect/{media_id}",
            "POST /_synapse/admin/v1/media/unquarantine/{server_name}/{media_id}",
            "POST /_synapse/admin/v1/media/{server_name}/delete",
            "POST /_synapse/admin/v1/purge_history/{room_id}/{event_id}",
            "POST /_synapse/admin/v1/purge_media_cache",
            "POST /_synapse/admin/v1/room/{room_id}/media/quarantine",
            "POST /_synapse/admin/v1/rooms/{room_id}/make_room_admin",
            "POST /_synapse/admin/v1/user/{user_id}/media/quarantine",
            "POST /_synapse/admin/v1/users/{user_id}/\
             _allow_cross_signing_replacement_without_uia",
            "POST /_synapse/admin/v1/users/{user_id}/login",
            "POST /_synapse/admin/v1/users/{user_id}/shadow_ban",
            "POST account/deactivate",
            "POST appservice/{appservice_id}/ping",
            "POST dehydrated_device/{device_id}/events",
            "POST delayed_events/{delay_id}/{action}",
            "POST join/{room_id_or_alias}",
            "POST knock/{room_id_or_alias}",
            "POST login/get_token",
            "POST logout",
            "POST logout/all",
            "POST publicRooms",
            "POST register",
            "POST rooms/{room_id}/forget",
            "POST rooms/{room_id}/join",
            "POST rooms/{room_id}/leave",
            "POST rooms/{room_id}/receipt/{receipt_type}/{event_id}",
            "POST rooms/{room_id}/redact/{event_id}",
            "POST user/{user_id}/openid/request_token",
            "PUT rooms/{room_id}/redact/{event_id}/{txn_id}",
        ];
        let served = endpoints(&prefixes()).list();
        let may =
            served.iter().filter(|one| one.may_lack_body && one.method != http::Method::DELETE);
        let may: BTreeSet<_> =
            may.map(|one| format!("{} {}", one.method, short(one.known_as))).collect();
        assert_eq!(may, lenient.map(ToOwned::to_owned).into());
    }

    #[test]
    fn every_class_of_an_endpoint_has_a_rate_of_its_own_if_it_writes() {
        let served = endpoints(&prefixes()).list();
        let writes = served.iter().filter(|endpoint| endpoint.method != http::Method::GET);
        let other = writes.clone().filter(|write| !write.class.is_none_or(Class::has_rate));
        let other: Vec<_> = other.map(|write| (&write.method, write.known_as)).collect();
        assert!(other.is_empty(), "give these a class: {other:#?}");
        // Guards against a filter above that matches nothing.
        assert!(writes.filter(|endpoint| endpoint.class.is_some()).count() > 200);
    }
}
