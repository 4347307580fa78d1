//! "Disk": what takes how much space, how that grows, and when the disk will be full.
//!
//! Nothing is added up for the page: the records were counted as they came (`service::tally`), the
//! files were measured now and then (`service::growth`), and the projections know the uploads.

use maud::{Markup, html};

use super::{
    acts::button,
    axis::{self, Unit},
    bars::{self, Column, columns},
    marks,
    parts::{encoded, facts, room, table, text, user},
    plot::Plot,
    visitor::{ConsoleLogin, Visitor, show},
};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::metrics::{Disk, Label as _};
use logcabin_ops::history::{
    moment::Time,
    terminal::{bytes, grouped},
};
use logcabin_service::{
    growth::{Sizes, days_left},
    tally::{Amount, Counts, NamedAmounts},
};

/// How many kinds, rooms and users are listed.
const LARGEST: usize = 15;

/// The days that are drawn.
const DAYS: u64 = 60;

const DAY_MS: u64 = 86_400_000;

/// Copies of files of other homeservers that were not used for so many days may be deleted.
const COPIES_DAYS: u64 = 30;

endpoint! {
    pub(super) struct DiskPage = GET "/_logcabin/console/disk";
    for ConsoleLogin;
    {}
}

pub(super) async fn page(cx: Cx<Server, Visitor>, _: DiskPage) -> Result<Reply, ApiError> {
    show(&cx, ("Disk", "disk"), |app| Ok(body(app))).await
}

fn body(app: &Server) -> Markup {
    let now_ms = app.engine.clock().now_ms();
    let head = app.engine.head().offset();
    let media = app.engine.state().media.largest_users(LARGEST);
    html! {
        (growth(app, now_ms))
        (app.tally.look(|counts| html! {
            @if counts.through < head {
                p.note role="status" {
                    "Counted so far: " (grouped(counts.through.get())) " of "
                    (grouped(head.get())) " records."
                }
            }
            (records(counts, now_ms))
            h2 { "Uploads, by user" }
            (uploads(&media))
            (copies(now_ms))
            h2 { "Files that were sent, by room" }
            (named(&counts.files, "files", |id| room(id, id), ("Room", "Files")))
        }))
        p.note {
            "Records are as large as their frames before compression, without what was erased of \
             them. A file counts in a room each time that it was sent there unencrypted, and goes on \
             counting when it is deleted."
        }
    }
}

/// How full the disk is, and will be.
fn growth(app: &Server, now_ms: u64) -> Markup {
    let (growth, now) = (app.samples.growth(), Sizes::take(now_ms));
    let daily = growth.daily(&now);
    let per_day = match daily {
        Some(daily) if daily >= 0.0 => format!("about {}", bytes(daily.round() as u64)),
        Some(daily) => format!("about −{}", bytes(-daily.round() as u64)),
        None => "not known before two days".to_owned(),
    };
    let reserve = app.config.log.min_free_bytes;
    let left = daily.map(|daily| days_left(now.free, reserve, daily));
    let full = match left {
        None => "not known before two days".to_owned(),
        Some(None) => "not at this rate".to_owned(),
        Some(Some(days)) if days > 3650.0 => "not in the next ten years".to_owned(),
        Some(Some(days)) => {
            let at = Time(now_ms.saturating_add((days * DAY_MS as f64) as u64));
            format!("in about {days:.0} days, {}", at.date())
        }
    };
    let all = growth.all();
    let points = all.iter().chain([&now]).map(|of| (of.at_ms, vec![Some(of.all() as f64)]));
    let first_ms = all.front().map_or(now_ms, |first| first.at_ms);
    // Of less than a day there is not much to be drawn.
    let from_ms = first_ms.min(now_ms.saturating_sub(DAY_MS));
    let marks = marks::between(app, from_ms, now_ms);
    let plot = Plot {
        title: "Disk used",
        unit: Unit::Bytes,
        names: &[],
        from_ms,
        to_ms: now_ms,
        points: points.collect(),
        marks: &marks,
    };
    let rows: Vec<_> = Disk::ALL
        .iter()
        .zip(now.used)
        .enumerate()
        .map(|(number, (part, size))| {
            let name = html! { span.key { (bars::key(number)) " " (part.name()) } };
            vec![name, html! { (bytes(size)) }, bars::share(size, now.all())]
        })
        .collect();
    let label = format!("Disk used: {}", bytes(now.all()));
    html! {
        (facts(&[
            ("Used by the server", html! { (bytes(now.all())) }),
            ("Free", html! { (bytes(now.free)) }),
            ("Growth each day", html! { (per_day) }),
            ("Full", html! { (full) }),
        ]))
        p.note {
            "An estimate: the line that fits the last 30 days best, if nothing else fills the disk. \
             It is full when " (bytes(reserve)) " are left: then the server takes no more writes. \
             Media and an archive on other disks count as if they were on that of the log."
        }
        div.pair {
            (plot.draw())
            div {
                (bars::whole(&label, &now.used))
                (table(&["Part", "Size", "Share"], &rows, ""))
            }
        }
    }
}

/// The records, by what they have in common.
fn records(counts: &Counts, now_ms: u64) -> Markup {
    let mut kinds: Vec<_> = counts.kinds.iter().collect();
    kinds.sort_by(|a, b| b.1.bytes.cmp(&a.1.bytes).then_with(|| a.0.cmp(b.0)));
    let most = kinds.first().map_or(0, |(_, amount)| amount.bytes);
    let link = |kind: &str| {
        html! { a href={ "/_logcabin/console/log?kind=" (encoded(kind)) } { (kind) } }
    };
    let rows: Vec<_> =
        kinds.iter().take(LARGEST).map(|(kind, of)| row(link(kind), of, most)).collect();
    let today = now_ms / DAY_MS;
    let first = today.saturating_sub(DAYS - 1);
    let days: Vec<_> = (first..=today)
        .map(|day| Column {
            name: axis::day(day * DAY_MS),
            value: counts.days.get(&day).map_or(0.0, |amount| amount.bytes as f64),
            leads_to: Some(format!(
                "/_logcabin/console/timeline?from={}&to={}",
                day * DAY_MS,
                (day + 1) * DAY_MS
            )),
        })
        .collect();
    let columns_of = ["Kind", "Records", "Size", "Erased", "Share"];
    html! {
        h2 { "Records" }
        p.moment {
            (grouped(counts.all.records)) " records, " (bytes(counts.all.bytes)) "; "
            (bytes(counts.all.erased)) " were erased"
        }
        div.long { (columns("Size of the records by day", Unit::Bytes, &days, 10)) }
        h2 { "By kind" }
        (table(&columns_of, &rows, "No record has been counted yet."))
        @if kinds.len() > LARGEST { p.note { "And " (kinds.len() - LARGEST) " smaller kinds." } }
        h2 { "By room" }
        (named(&counts.rooms, "rooms", |id| room(id, id), ("Room", "Records")))
        h2 { "By user" }
        (named(&counts.users, "users", of_user, ("User", "Records")))
    }
}

/// The causer of records: operators have no page.
fn of_user(name: &str) -> Markup {
    if name.starts_with('@') { user(name) } else { text(name) }
}

fn row(name: Markup, amount: &Amount, most: u64) -> Vec<Markup> {
    vec![
        name,
        html! { (grouped(amount.records)) },
        html! { (bytes(amount.bytes)) },
        html! { (bytes(amount.erased)) },
        bars::share(amount.bytes, most),
    ]
}

fn named(
    all: &NamedAmounts,
    others: &str,
    link: impl Fn(&str) -> Markup,
    (name, counted): (&str, &str),
) -> Markup {
    let (largest, rest) = all.largest(LARGEST);
    let most = largest.first().map_or(0, |(_, amount)| amount.bytes);
    let rows: Vec<_> = largest.iter().map(|(name, of)| row(link(name), of, most)).collect();
    html! {
        (table(&[name, counted, "Size", "Erased", "Share"], &rows, "None yet."))
        @if rest.records > 0 {
            p.note {
                "All other " (others) ": " (grouped(rest.records)) ", " (bytes(rest.bytes)) "."
            }
        }
    }
}

fn uploads(users: &[(Option<ruma::OwnedUserId>, u64)]) -> Markup {
    let most = users.first().map_or(0, |(_, bytes)| *bytes);
    let rows: Vec<_> = users
        .iter()
        .map(|(user_id, size)| {
            let name = match user_id {
                Some(user_id) => user(user_id.as_str()),
                None => html! { "the server itself" },
            };
            let delete = user_id.as_ref().map(|user_id| {
                button("Delete their files", "delete-media", &[("of", user_id.as_str())])
            });
            let delete = delete.unwrap_or_default();
            vec![name, html! { (bytes(*size)) }, bars::share(*size, most), delete]
        })
        .collect();
    table(&["User", "Size", "Share", "Acts"], &rows, "No file has been uploaded.")
}

/// Copies of files of others can be deleted without a loss, as long as the others have them.
fn copies(now_ms: u64) -> Markup {
    let before = now_ms.saturating_sub(COPIES_DAYS * DAY_MS).to_string();
    html! {
        h2 { "Copies of files of other homeservers" }
        p { "They are fetched again when somebody asks for them." }
        @let title = format!("Delete those that were not used for {COPIES_DAYS} days");
        (button(&title, "purge-remote-media", &[("before_ms", &before)]))
    }
}
