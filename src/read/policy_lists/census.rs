//! Whom rules hit: the users of this server and the rooms that they are in.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use ruma::{OwnedServerName, ServerName, UserId};

use super::{
    EntityKind,
    rule::{Entity, Rule},
    server_names,
    set::RuleSet,
};
use logcabin_base::glob::Glob;
use logcabin_record::Offset;
use logcabin_state::State;

/// As how many users and rooms everybody counts: more than any list may hit.
const EVERYBODY: u64 = 1_000_000;

/// With how many letters and digits a pattern of homeservers and rooms, and one of the part of a
/// user id before the colon, is about some and not about most.
const BROAD_NAME: usize = 4;
const BROAD_USER: usize = 3;

/// How many users and rooms each of the rules hits, by the records of their events; those that hit
/// none are left out. A homeserver counts as the rooms that this server shares with it, and so does
/// a rule about all of its users.
///
/// It looks up each user, room and homeserver under the names that are looked up when rules are
/// applied, so its cost does not depend on the number of rules.
pub(super) fn hits(
    state: &State,
    own: &ServerName,
    rules: &[Arc<Rule>],
    is_spared: &dyn Fn(&UserId) -> bool,
    is_excepted: &dyn Fn(&str) -> bool,
) -> HashMap<Offset, u64> {
    let (mut set, mut everybody, mut of_servers) = (RuleSet::default(), Vec::new(), Vec::new());
    for rule in rules {
        let is_usable = set.add(rule);
        match Reach::of(rule) {
            Reach::Named if is_usable => {}
            Reach::UsersOf(server) if is_usable => of_servers.push((rule.offset, server)),
            // So that a rule which cannot be used yet waits as long as it might be used later.
            _ => everybody.push(rule.offset),
        }
    }
    let mut hits: HashMap<Offset, u64> = HashMap::new();
    // The rules that hit whoever has these names.
    let hitting = |names: &[(EntityKind, &str)]| {
        if names.iter().any(|(_, name)| is_excepted(name)) {
            return Vec::new();
        }
        let mut found: Vec<_> = names
            .iter()
            .flat_map(|(kind, name)| set.all_matching(*kind, name))
            .map(|rule| rule.offset)
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    };
    for user_id in state.accounts.user_ids() {
        if !state.accounts.is_deactivated(&user_id) && !is_spared(&user_id) {
            for rule in hitting(&[(EntityKind::User, user_id.as_str())]) {
                *hits.entry(rule).or_default() += 1;
            }
        }
    }
    let mut servers: BTreeMap<OwnedServerName, u64> = BTreeMap::new();
    for room in state.rooms.all() {
        if !room.has_server(own) {
            continue;
        }
        let aliases = state.aliases.of_room(&room.id, Offset::MAX);
        let mut names = vec![(EntityKind::Room, room.id.as_str())];
        names.extend(aliases.iter().map(|alias| (EntityKind::Room, alias.as_str())));
        for rule in hitting(&names) {
            *hits.entry(rule).or_default() += 1;
        }
        for server in room.servers() {
            *servers.entry(server).or_default() += 1;
        }
    }
    servers.remove(own);
    for (server, rooms) in servers {
        let names: Vec<_> = server_names(&server).map(|name| (EntityKind::Server, name)).collect();
        for rule in hitting(&names) {
            *hits.entry(rule).or_default() += rooms;
        }
        for (rule, of_server) in &of_servers {
            if server_names(&server).any(|name| of_server.is(name) && !is_excepted(name)) {
                *hits.entry(*rule).or_default() += rooms;
            }
        }
    }
    for rule in everybody {
        hits.insert(rule, EVERYBODY);
    }
    hits
}

/// How far a rule reaches beyond those whom it names.
enum Reach {
    Named,
    /// It is about most users of homeservers whose names match.
    UsersOf(Glob),
    Everybody,
}

impl Reach {
    /// By the form of the rule: a pattern with few characters that are not wildcards is about
    /// more than anybody can count.
    fn of(rule: &Rule) -> Self {
        let Entity::Glob(pattern) = &rule.entity else { return Self::Named };
        let has_wildcard = |text: &str| text.contains(['*', '?']);
        let letters = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).count();
        let is_broad = |text: &str| has_wildcard(text) && letters(text) < BROAD_NAME;
        if rule.kind != EntityKind::User {
            return if is_broad(pattern) { Self::Everybody } else { Self::Named };
        }
        let (local, server) = pattern.split_once(':').unwrap_or((pattern, "*"));
        match (has_wildcard(local) && letters(local) < BROAD_USER, Glob::new(server)) {
            (true, _) if is_broad(server) => Self::Everybody,
            (true, None) => Self::Everybody,
            (true, Some(server)) => Self::UsersOf(server),
            (false, _) => Self::Named,
        }
    }
}
