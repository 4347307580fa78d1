//! `logcabin work`, and the progress bar of acts that take long.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{act::Common, columns};
use logcabin_base::{clock::millis, progress::Progress};
use logcabin_ops::{
    admin::work::{ListWork, WorkList},
    history::terminal::{clean, duration, grouped},
};

/// The time between two requests for the progress.
const EVERY: Duration = Duration::from_millis(200);

/// Show the long-running work of the server: its progress and the estimated time left
#[derive(Debug, clap::Args)]
pub(super) struct Work {
    #[command(flatten)]
    common: Common,
}

impl Work {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        self.common.run(ListWork {}, text)
    }
}

fn text(all: &WorkList) -> String {
    if all.work.is_empty() {
        return "There is no long-running work.\n".to_owned();
    }
    let heading = ["WORK", "DONE", "OF", "FOR", "LEFT, ABOUT"].map(str::to_owned);
    let row = |work: &Progress| {
        [
            named(work),
            grouped(work.done),
            grouped(work.total),
            duration(work.taken_ms / 1000),
            work.left_ms.map_or_else(|| "not known yet".to_owned(), |left| duration(left / 1000)),
        ]
    };
    columns(&std::iter::once(heading).chain(all.work.iter().map(row)).collect::<Vec<_>>())
}

fn named(work: &Progress) -> String {
    clean(format!("{} {}", work.what, work.about).trim_end())
}

/// Runs `act` and shows its progress on standard error, if that is a terminal. `under_way` returns
/// the running work, or `None` to stop asking.
pub(super) fn watched<T>(
    mut under_way: impl FnMut() -> Option<Vec<Progress>> + Send,
    act: impl FnOnce() -> T,
) -> T {
    if !io::stderr().is_terminal() {
        return act();
    }
    let began = Instant::now();
    thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        scope.spawn(move || {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = "{prefix} {bar:32} {human_pos} of {human_len}{msg}";
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style);
            }
            while is_done.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let Some(work) = under_way() else { break };
                show(&bar, &work, began.elapsed());
            }
            bar.finish_and_clear();
        });
        let made = act();
        drop(done);
        made
    })
}

/// Shows the newest work, if it began after the act did, `elapsed` ago.
fn show(bar: &ProgressBar, work: &[Progress], elapsed: Duration) {
    let own = work.last().filter(|work| work.taken_ms <= millis(elapsed));
    let Some(work) = own else { return };
    bar.set_prefix(named(work));
    bar.set_length(work.total);
    bar.set_position(work.done);
    let left = work.left_ms.map(|left| format!(", {} left", duration(left / 1000)));
    bar.set_message(left.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_work_is_listed_with_the_time_left() {
        let work = |about: &str, left_ms| Progress {
            what: "Purges a room".to_owned(),
            about: about.to_owned(),
            done: 1_000,
            total: 4_000,
            taken_ms: 1_500,
            left_ms,
        };
        let work = vec![work("!a\u{202e}:b", Some(3_700_000)), work("", None)];
        let shown = text(&WorkList { work });
        let lines: Vec<_> = shown.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "WORK                 DONE   OF     FOR  LEFT, ABOUT",
                "Purges a room !a·:b  1,000  4,000  1 s  1 h 1 min",
                "Purges a room        1,000  4,000  1 s  not known yet",
            ]
        );
    }
}
