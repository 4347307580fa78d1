//! Long-running work as a table, and progress as a bar.

use maud::{Markup, html};

use super::parts::{room, table};
use logcabin_base::progress::{self, Progress};
use logcabin_ops::history::terminal::{duration, grouped};

/// What is under way of these kinds; nothing if nothing is.
pub(super) fn progress_of(kinds: &[&str]) -> Markup {
    let mut work = progress::under_way();
    work.retain(|work| kinds.contains(&&*work.what));
    html! { @if !work.is_empty() { (under_way(&work)) } }
}

pub(super) fn under_way(work: &[Progress]) -> Markup {
    let row = |work: &Progress| {
        let left = work.left_ms.map(|left| duration(left / 1000));
        vec![
            html! {
                (work.what)
                @if !work.about.is_empty() { " " (room(&work.about, &work.about)) }
            },
            bar(&work.what, work.done, work.total),
            html! { (duration(work.taken_ms / 1000)) },
            html! { (left.as_deref().unwrap_or("not known yet")) },
        ]
    };
    let rows: Vec<_> = work.iter().map(row).collect();
    table(&["What", "Progress", "For", "Left, about"], &rows, "There is no long-running work.")
}

/// How much of something is done.
pub(super) fn bar(what: &str, done: u64, total: u64) -> Markup {
    let text = format!("{} of {}", grouped(done), grouped(total));
    html! {
        progress value=(done) max=(total.max(1)) aria-label=(what) { (text) } " " (text)
    }
}
