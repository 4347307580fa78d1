//! The page of a user: who they are, what they do, what others say of them, and what can be done.
//! Users of other homeservers have one, too, with what the rooms of this server know.

use std::sync::Arc;

use maud::{Markup, html};
use ruma::{OwnedRoomId, UserId, events::StateEventType};
use serde_json::Value;

use super::{
    CLEAN_UP, bans, clean_up,
    members::role,
    tiles::{Files, Wanted},
};
use crate::{
    api::{
        console::{
            frame::HOME,
            parts::{
                acts, at_second, encoded, facts, record, room as room_link, room_of, seconds,
                short, table, text, unanswered, user as user_link, why,
            },
            pictures::{avatar, heading},
            severity::{Choice, Severity, choices},
            visitor::{ConsoleLogin, Visitor, show_headed},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_decide::powers::Powers;
use logcabin_log::ReadError;
use logcabin_ops::{
    admin::{
        reports::{ReportSummary, involving},
        users::{UserDetails, details, rooms_elsewhere},
    },
    history::{
        History, Source,
        nearby::{Bounds, nearby},
        query::RecordView,
        terminal::bytes,
        why::Subject,
    },
};
use logcabin_read::events::as_shown;
use logcabin_record::Offset;
use logcabin_state::{AccountStatus, Membership};

/// How many uploads are shown, and how many reports.
const UPLOADS: usize = 24;
const REPORTS: usize = 10;

endpoint! {
    pub(in super::super) struct OneUser = GET "/_logcabin/console/users/{user}";
    for ConsoleLogin;
    { user: String = path }
}

pub(in super::super) async fn one(
    cx: Cx<Server, Visitor>,
    request: OneUser,
) -> Result<Reply, ApiError> {
    let title = format!("User {}", short(&request.user));
    show_headed(&cx, (&title, "users"), |app| match <&UserId>::try_from(request.user.as_str()) {
        Ok(user_id) if user_id.server_name() != app.config.server.name => {
            of_another_server(app, user_id)
        }
        _ => own(app, &request.user),
    })
    .await
}

fn own(app: &Server, name: &str) -> Result<(Markup, Markup), ApiError> {
    let user = details(&app.context, name)?;
    let user_id = &user.summary.user_id;
    let id = user_id.as_str();
    let (about, by) = involving(&app.context, user_id, REPORTS)?;
    let standing = app.engine.state().accounts.standing(user_id).unwrap_or_default();
    let shown_name = user.summary.display_name.as_deref().unwrap_or_else(|| user_id.localpart());
    let picture = user.summary.avatar_url.as_deref();
    let picture = avatar(app, picture, shown_name, !about.is_empty());
    let below = html! { p.id { bdi { (short(id)) } } };
    let wanted = Wanted { user_id: Some(user_id), ..Wanted::default() };
    let files = Files::newest(app, &wanted, Offset::MAX, UPLOADS)?;
    let memberships = app.engine.state().memberships.of(user_id, Offset::MAX).into_iter();
    let known: Vec<_> = memberships.map(|of| (of.room_id, of.membership, of.offset)).collect();
    let path = |page: &str| format!("{HOME}/{page}={}", encoded(id));
    let body = html! {
        (status(app, &user, &standing)?)
        nav.tools aria-label="More about this user" {
            a href=(path("past?user")) { "Time travel" }
            a href=(path("log?user")) { "Records" }
            a href=(path("media?user")) { "Uploads" }
            a href={ (HOME) "/users/" (encoded(id)) "/unread" } { "Unread counts" }
        }
        (facts(&about_account(app, &user)))
        h2 { "What can be done" }
        (what_to_do(&user, &standing))
        (bans::of(user_id, &known))
        (reports(&about, &by, app.engine.state().reports.count_by(user_id)))
        h2 { "Rooms" }
        (table_of_rooms(app, user_id, known, "This user is in no room.")?)
        h2 { "Uploads" }
        @if files.is_empty() {
            p.note { "This user has uploaded nothing that is still here." }
        } @else {
            (files.tiles(app, false))
            @if user.media_count > UPLOADS {
                p { a href=(path("media?user")) { "All " (user.media_count) " uploads" } }
            }
        }
        h2 { "Devices and sign-ins" }
        (devices(&user))
        h2 { "Addresses" }
        (addresses(&user))
    };
    Ok((heading(&picture, shown_name, &below), body))
}

/// The facts that have no part of their own.
fn about_account(app: &Server, user: &UserDetails) -> Vec<(&'static str, Markup)> {
    let id = user.summary.user_id.as_str();
    let why = |words: &[&str]| why(&[&["user", id], words].concat(), None);
    let name = user.summary.display_name.as_deref().unwrap_or("–");
    let password = if user.has_password { "set" } else { "none" };
    let seen = user.summary.last_seen_ms.map(at_second);
    let records = app.tally.look(|counts| counts.users.get(id));
    let mut rows = vec![
        ("Display name", html! { (text(name)) " " (why(&["profile", "displayname"])) }),
        ("Registered", html! { (at_second(user.created_ms)) }),
        ("Last seen", html! { (seen.unwrap_or_else(|| html! { "not known" })) }),
        ("Password", html! { (password) " " (why(&["password"])) }),
        ("Rooms", html! { (user.joined_rooms) }),
        ("Uploads", html! { (user.media_count) ", " (bytes(user.media_bytes)) }),
    ];
    if let Some(of) = records {
        rows.push(("Records", html! { (of.records) ", " (bytes(of.bytes)) }));
    }
    rows
}

/// What is special about the account, who made it so, when and why.
fn status(app: &Server, user: &UserDetails, standing: &AccountStatus) -> Result<Markup, ApiError> {
    let id = user.summary.user_id.as_str();
    let flags = [
        ("Suspended", "suspended", standing.suspended),
        ("Locked", "locked", standing.locked),
        ("Shadow-banned", "shadow_banned", standing.shadow_banned),
        ("Administrator of the server", "admin", standing.admin),
    ];
    let set: Vec<_> = flags.into_iter().filter(|(.., is_set)| *is_set).collect();
    let changes = if set.is_empty() { Vec::new() } else { changes(app, id)? };
    let of_flag = |field: &str| {
        let set_it =
            |of: &&RecordView| of.payload.as_ref().is_some_and(|payload| payload[field] == true);
        changes.iter().find(set_it)
    };
    let since = |offset: Option<Offset>| {
        Ok::<_, ReadError>(match offset {
            Some(offset) => app.engine.log().get(offset)?.map(|record| RecordView::of(&record)),
            None => None,
        })
    };
    let ends = [
        ("Waiting for approval", standing.waiting),
        ("Deactivated", standing.deactivated),
        ("Erased", standing.erased),
    ];
    let mut lines = Vec::new();
    for (words, offset) in ends.into_iter().filter(|(_, offset)| offset.is_some()) {
        lines.push(line(words, since(offset)?.as_ref(), id, words != "Waiting for approval"));
    }
    for (words, field, _) in set {
        lines.push(line(words, of_flag(field), id, field != "admin"));
    }
    if standing.guest {
        lines.push(html! { li { "Guest account" } });
    }
    Ok(html! {
        ul.lines.status aria-label="Status" {
            @if lines.is_empty() { li { "An ordinary account, in good standing." } }
            @for line in &lines { (line) }
        }
    })
}

fn line(words: &str, because: Option<&RecordView>, id: &str, is_bad: bool) -> Markup {
    let reason = because.and_then(|of| of.payload.as_ref()?["reason"].as_str());
    html! {
        li class=[is_bad.then_some("bad")] {
            strong { (words) }
            @match because {
                Some(of) => {
                    @let who = if of.user.is_empty() { &of.who } else { &of.user };
                    @if who.starts_with('@') { " by " (user_link(who)) }
                    @else if !who.is_empty() { " by " bdi { (short(who)) } }
                    " since " (seconds(of.happened()))
                    @if let Some(reason) = reason { ", because “" bdi { (short(reason)) } "”" }
                    " (record " (record(of.offset)) "). "
                }
                None => {
                    ". The newest " (limits::CONSOLE_LOOK) " records do not say by whom. "
                }
            }
            (why(&["user", id, "account"], None))
        }
    }
}

/// The records among the newest that changed what the account may do, the newest first.
fn changes(app: &Server, id: &str) -> Result<Vec<RecordView>, ApiError> {
    let engine = &app.engine;
    let head = engine.head().offset();
    let source = Source::own(Arc::clone(engine.log()), head);
    let history = History::live(&source, engine.state().share(), head);
    let subject = Subject::of_words(&["user", id, "account"]);
    let subject = subject.map_err(|error| ApiError::invalid_param(error.to_string()))?;
    let bounds = Bounds { steps: limits::CONSOLE_ROWS, examined: limits::CONSOLE_LOOK };
    let steps = nearby(&history, &subject, bounds).map_err(unanswered)?.steps;
    let mut changes = Vec::new();
    for step in steps.iter().rev() {
        let found = engine.log().get(step.offset)?;
        changes.extend(found.map(|record| RecordView::of(&record)));
    }
    Ok(changes)
}

fn what_to_do(user: &UserDetails, standing: &AccountStatus) -> Markup {
    use Severity::{Final, Mild, Undoable};
    let id = user.summary.user_id.as_str();
    let given = [("user", id)];
    let of_flag = |field: &'static str, is_set: bool, set: &'static str, lift: &'static str| {
        let (words, value) = if is_set { (lift, "no") } else { (set, "yes") };
        Choice::act(Undoable, words, "set-status", &[("user", id), (field, value)])
    };
    let mut all = vec![Choice::page(
        Mild,
        "See what they did lately",
        format!("{HOME}/log?user={}", encoded(id)),
    )];
    if standing.waiting.is_some() {
        all.push(Choice::act(Mild, "Approve the registration", "approve-users", &[("users", id)]));
        all.push(Choice::act(Final, "Refuse the registration", "refuse-users", &[("users", id)]));
    }
    if standing.deactivated.is_none() {
        all.extend([
            Choice::act(Mild, "Send a notice or a warning", "send-notice", &given),
            Choice::act(Mild, "Change the profile", "set-profile", &given),
            Choice::act(Mild, "Set a new password", "reset-password", &given),
            Choice::act(Mild, "Make them join a room", "join-room", &given),
            of_flag("suspended", standing.suspended, "Suspend", "Lift the suspension"),
            of_flag("locked", standing.locked, "Lock", "Unlock"),
            of_flag("shadow_banned", standing.shadow_banned, "Shadow-ban", "Lift the shadow ban"),
            of_flag("admin", standing.admin, "Make an administrator", "No longer an administrator"),
            Choice::act(Undoable, "Log out everywhere", "log-out", &given),
        ]);
        all.push(Choice::act(Final, "Deactivate the account", "deactivate", &given));
    }
    all.extend(anywhere(id, standing.deactivated.is_none()));
    all.extend([
        quarantine(id),
        Choice::act(Final, "Delete what they uploaded", "delete-media", &[("of", id)]),
        Choice::act(Final, "Erase the user", "erase-user", &given),
    ]);
    choices(&all)
}

fn quarantine(id: &str) -> Choice {
    let given = [("of", id), ("quarantined", "yes")];
    Choice::act(Severity::Undoable, "Quarantine what they uploaded", "quarantine-media", &given)
}

/// What can be done about users of every homeserver.
fn anywhere(id: &str, is_active: bool) -> [Choice; 5] {
    use Severity::{Final, Undoable};
    let member = |change: &'static str, words| {
        Choice::act(Undoable, words, "change-member", &[("user", id), ("change", change)])
    };
    [
        member("ban", "Ban from their rooms"),
        member("kick", "Kick from their rooms"),
        Choice::act(Final, "Reject the invites that they sent", "reject-invites", &[("from", id)]),
        Choice::act(Final, "Redact what they sent", "redact-user", &[("user", id)]),
        Choice::act(Final, CLEAN_UP, "clean-up", &clean_up(id, is_active, true)),
    ]
}

/// The open reports about the user, and by them.
fn reports(about: &[ReportSummary], by: &[ReportSummary], made: usize) -> Markup {
    let rows = |of: &[ReportSummary], other: &dyn Fn(&ReportSummary) -> Markup| -> Vec<_> {
        of.iter()
            .map(|report| {
                let reason = report.reason.as_deref().filter(|reason| !reason.trim().is_empty());
                vec![
                    html! {
                        a href={ (HOME) "/reports/" (report.id) } {
                            bdi { (short(reason.unwrap_or("no reason given"))) }
                        }
                    },
                    html! { (at_second(report.received_ts)) },
                    other(report),
                    room_of(report),
                ]
            })
            .collect()
    };
    let reporter = |report: &ReportSummary| user_link(report.user_id.as_str());
    let reported = |report: &ReportSummary| {
        report.about().map(|of| user_link(of.as_str())).unwrap_or_default()
    };
    let about = rows(about, &reporter);
    let by = rows(by, &reported);
    html! {
        h2 { "Open reports about this user" }
        (table(&["Report", "Time", "By", "Room"], &about, "There are none."))
        @if about.len() >= REPORTS { p.note { "The newest " (REPORTS) ". There may be more." } }
        h2 { "Open reports by this user" }
        (table(&["Report", "Time", "About", "Room"], &by, "There are none."))
        @if made > by.len() { p.note { "The newest " (by.len()) " of " (made) "." } }
    }
}

/// The rooms with the user's roles in them, joined ones first.
fn table_of_rooms(
    app: &Server,
    user_id: &UserId,
    mut rooms: Vec<(OwnedRoomId, Membership, Offset)>,
    none: &str,
) -> Result<Markup, ApiError> {
    rooms.sort_by_key(|(_, membership, _)| *membership != Membership::Join);
    let events = app.engine.events();
    let mut rows = Vec::new();
    for (room_id, membership, since) in rooms.iter().take(limits::CONSOLE_ROWS) {
        let id = room_id.as_str();
        let known = app.engine.state().rooms.get(room_id);
        let (name, role) = match known {
            Some(room) => {
                let name =
                    events.state_text(&room, &StateEventType::RoomName, "name", Offset::MAX)?;
                let powers = Powers::of_room(&room, events)?;
                let is_in = *membership == Membership::Join;
                (name, if is_in { role(&powers, user_id) } else { String::new() })
            }
            None => (None, String::new()),
        };
        rows.push(vec![
            room_link(id, name.as_deref().unwrap_or(id)),
            html! { (membership.as_str()) },
            html! { (role) },
            record(*since),
            why(&["room", id, "member", user_id.as_str()], None),
        ]);
    }
    let columns = ["Room", "Membership", "Role", "Since record", "Who changed it"];
    Ok(html! {
        (table(&columns, &rows, none))
        @if rooms.len() > rows.len() {
            p.note { "The first " (rows.len()) " of " (rooms.len()) "." }
        }
    })
}

fn devices(user: &UserDetails) -> Markup {
    let id = user.summary.user_id.as_str();
    let shown = user.logged_in.iter().take(limits::CONSOLE_ROWS);
    let rows: Vec<_> = shown
        .map(|(device, shown)| {
            let given = [("user", id), ("devices", device.as_str()), ("device", device.as_str())];
            let seen = shown.seen_ms.map(at_second);
            vec![
                html! {
                    div {
                        (text(shown.display_name.as_deref().unwrap_or("no name")))
                        " " span.note { bdi { (short(device.as_str())) } }
                    }
                },
                html! { (at_second(shown.since_ms)) },
                html! { (seen.unwrap_or_else(|| html! { "not known" })) },
                text(shown.seen_ip.as_deref().unwrap_or("not known")),
                text(shown.seen_agent.as_deref().unwrap_or_default()),
                why(&["user", id, "device", device.as_str()], None),
                acts(&["log-out", "rename-device"], &given),
            ]
        })
        .collect();
    let columns = ["Device", "Logged in", "Last seen", "From", "Program", "Who changed it", "Acts"];
    html! {
        (table(&columns, &rows, "No device is logged in."))
        @if user.logged_in.len() > rows.len() {
            p.note { "The first " (rows.len()) " of " (user.logged_in.len()) "." }
        }
        @if !rows.is_empty() {
            p.note {
                "The server keeps the address and the program of each device's last use, and not of "
                "earlier ones."
            }
        }
    }
}

fn addresses(user: &UserDetails) -> Markup {
    let id = user.summary.user_id.as_str();
    let shown = user.threepids.iter().take(limits::CONSOLE_ROWS);
    let kind = |medium: &str| match medium {
        "email" => "e-mail",
        "msisdn" => "phone",
        _ => "address",
    };
    let mut rows: Vec<_> = shown
        .map(|one| {
            let by = why(&["user", id, "address", &one.address], None);
            vec![html! { (kind(&one.medium)) }, text(&one.address), by]
        })
        .collect();
    let accounts = user.external_ids.iter().take(limits::CONSOLE_ROWS);
    rows.extend(accounts.map(|one| {
        let provider = html! { "single sign-on, " bdi { (short(&one.auth_provider)) } };
        vec![provider, text(&one.external_id), html! {}]
    }));
    table(&["Kind", "Address", "Who changed it"], &rows, "This user has no address.")
}

fn of_another_server(app: &Server, user_id: &UserId) -> Result<(Markup, Markup), ApiError> {
    let known = rooms_elsewhere(&app.context, user_id);
    let (about, by) = involving(&app.context, user_id, REPORTS)?;
    let profile = newest_profile(app, &known)?;
    let name = profile["displayname"].as_str().unwrap_or_else(|| user_id.localpart());
    let picture = avatar(app, profile["avatar_url"].as_str(), name, !about.is_empty());
    let below = html! { p.id { bdi { (short(user_id.as_str())) } } };
    let body = html! {
        (summary_elsewhere(&known))
        nav.tools aria-label="More about this user" {
            a href={ (HOME) "/log?user=" (encoded(user_id.as_str())) } { "Records" }
            a href={
                (HOME) "/federation/server/" (encoded(user_id.server_name().as_str()))
            } { "Their homeserver" }
        }
        h2 { "What can be done" }
        (choices(&anywhere(user_id.as_str(), false)))
        (bans::of(user_id, &known))
        (reports(&about, &by, by.len()))
        h2 { "Rooms" }
        (table_of_rooms(app, user_id, known, "No room of this server knows this user.")?)
    };
    Ok((heading(&picture, name, &below), body))
}

/// The profile that the newest member event has.
fn newest_profile(
    app: &Server,
    known: &[(OwnedRoomId, Membership, Offset)],
) -> Result<Value, ReadError> {
    let Some((room_id, _, changed)) = known.iter().max_by_key(|(.., changed)| *changed) else {
        return Ok(Value::Null);
    };
    let room = app.engine.state().rooms.get(room_id);
    let event = app.engine.events().get(*changed)?;
    let event = room.zip(event).map(|(room, event)| as_shown(&room, event, Offset::MAX));
    Ok(event.and_then(|event| event.content_as().ok()).unwrap_or_default())
}

fn summary_elsewhere(known: &[(OwnedRoomId, Membership, Offset)]) -> Markup {
    let joined = known.iter().filter(|(_, membership, _)| *membership == Membership::Join).count();
    html! {
        p {
            "A user of another homeserver, who is in " (joined) " room(s) of this one, and known in "
            (known.len()) "."
        }
    }
}
