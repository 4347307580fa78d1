//! The policy lists that the server applies, the rules that wait, and what was kept away.

use maud::{Markup, html};

use crate::{
    api::{
        console::{
            acts::button,
            parts::{acts, at_second, long, record, room, table},
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_ops::admin::policies::{
    KeptLine, PolicyList, PolicyMatch, WaitingRule, kept_away, lists, test,
};
use logcabin_record::command::PolicyArea;

endpoint! {
    pub(in super::super) struct Policies = GET "/_logcabin/console/policies";
    for ConsoleLogin;
    { entity: Option<String> = parameter }
}

pub(in super::super) async fn list(
    cx: Cx<Server, Visitor>,
    request: Policies,
) -> Result<Reply, ApiError> {
    show(&cx, ("Policy lists", "policies"), |app| {
        let entity = request.entity.as_deref().map(str::trim).filter(|text| !text.is_empty());
        let found = entity.map(|entity| test(&app.context, entity));
        let lists = lists(&app.context)?;
        Ok(html! {
            (all(&lists))
            @for list in lists.iter().filter(|list| list.waiting > 0) {
                (waiting(list))
            }
            h2 { "Test" }
            form method="get" {
                div {
                    label for="entity" { "A user, a room, an alias or a homeserver" }
                    input id="entity" name="entity" value=[entity] autocapitalize="none"
                        spellcheck="false";
                }
                button type="submit" { "Test" }
            }
            @match found {
                Some(Ok(matches)) => (tested(&matches)),
                Some(Err(error)) => p.bad role="alert" { (error) },
                None => {}
            }
            h2 { "Kept away since this server started" }
            (kept(&kept_away(&app.context)?, &lists))
        })
    })
    .await
}

fn names(areas: &[PolicyArea]) -> String {
    areas.iter().map(|area| area.name()).collect::<Vec<_>>().join(", ")
}

fn all(lists: &[PolicyList]) -> Markup {
    let rows: Vec<_> = lists
        .iter()
        .map(|list| {
            let id = list.room_id.as_str();
            vec![
                room(id, list.name.as_deref().unwrap_or(id)),
                html! {
                    (list.users) " users, " (list.rooms) " rooms, " (list.servers) " homeservers"
                    @if list.unusable > 0 { ", " (list.unusable) " that cannot be used" }
                },
                html! { (names(&list.areas)) },
                html! {
                    @if list.waiting > 0 { (list.waiting) " wait for approval" }
                    @else if !list.is_joined { "nobody of this server is in the room" }
                    @else { "applied" }
                },
                record(list.record),
                acts(&["subscribe-policy-list", "unsubscribe-policy-list"], &[("room", id)]),
            ]
        })
        .collect();
    html! {
        (table(
            &["List", "Rules", "Applied to", "State", "Since", "Acts"],
            &rows,
            "No policy list is applied.",
        ))
        (acts(&["subscribe-policy-list"], &[]))
    }
}

fn waiting(list: &PolicyList) -> Markup {
    let id = list.room_id.as_str();
    let row = |rule: &WaitingRule| {
        vec![
            html! { bdi { (long(rule.entity.as_deref().unwrap_or("–"))) } },
            html! { (rule.hits) },
            html! { bdi { (long(rule.reason.as_deref().unwrap_or("–"))) } },
            record(rule.record),
            acts(&["approve-policy-rules"], &[("room", id), ("rules", rule.event_id.as_str())]),
        ]
    };
    let rows: Vec<_> = list.waiting_rules.iter().map(row).collect();
    let shown: Vec<_> = list.waiting_rules.iter().map(|rule| rule.event_id.as_str()).collect();
    html! {
        h2 { "Rules that wait in " bdi { (list.name.as_deref().unwrap_or(id)) } }
        p { "They would hit more users and rooms of this server than the list may without approval." }
        (table(&["About", "Would hit", "Reason", "Record", "Acts"], &rows, "None waits."))
        p { "All that are shown:" }
        (acts(&["approve-policy-rules"], &[("room", id), ("rules", &shown.join(" "))]))
    }
}

fn tested(matches: &[PolicyMatch]) -> Markup {
    let row = |found: &PolicyMatch| {
        vec![
            html! { (found.outcome) },
            html! { bdi { (long(found.rule.as_deref().unwrap_or("a hash"))) } },
            html! { bdi { (long(&found.recommendation)) } },
            html! { bdi { (long(found.reason.as_deref().unwrap_or("–"))) } },
            room(found.list.as_str(), found.list.as_str()),
            html! { (names(&found.areas)) },
            record(found.record),
        ]
    };
    let rows: Vec<_> = matches.iter().map(row).collect();
    let heads = ["Outcome", "Rule", "Recommends", "Reason", "List", "Applied to", "Record"];
    table(&heads, &rows, "No rule matches.")
}

fn kept(kept: &[KeptLine], lists: &[PolicyList]) -> Markup {
    let row = |kept: &KeptLine| {
        vec![
            html! { @if let Some(ms) = kept.last_ts { (at_second(ms)) } },
            html! { (kept.area) },
            html! { bdi { (long(&kept.name)) } },
            html! { @if kept.refused { "refused" } @else { "noted" } },
            html! { (kept.times) },
            html! {
                @if let Some(rule) = kept.rule { (record(rule)) }
                @if let Some(setting) = &kept.setting { code { (setting) } }
            },
            except(kept, lists),
        ]
    };
    let rows: Vec<_> = kept.iter().map(row).collect();
    let columns = ["Last", "Of", "Who or what", "Outcome", "Times", "Rule", "Acts"];
    table(&columns, &rows, "Nothing.")
}

/// Has the list left as it is, but for this user, homeserver or room.
fn except(kept: &KeptLine, lists: &[PolicyList]) -> Markup {
    let list = lists.iter().find(|list| Some(&list.room_id) == kept.list.as_ref());
    let is_excepted = |list: &PolicyList| list.except.contains(&kept.name);
    // Such a name would except others, too.
    let is_pattern = kept.name.contains(|of: char| of.is_whitespace() || "*?".contains(of));
    let list = list.filter(|list| !is_excepted(list) && !is_pattern);
    let Some(list) = list else { return Markup::default() };
    let areas: Vec<_> = list.areas.iter().map(|area| area.name()).collect();
    let except: Vec<_> = list.except.iter().chain([&kept.name]).map(String::as_str).collect();
    let given = [
        ("room", list.room_id.as_str()),
        ("areas", &areas.join(" ")),
        ("order", &list.order.to_string()),
        ("except", &except.join(" ")),
        ("takedowns", if list.takedowns { "yes" } else { "no" }),
        ("hold_above", &list.hold_above.to_string()),
    ];
    button("Except", "subscribe-policy-list", &given)
}
