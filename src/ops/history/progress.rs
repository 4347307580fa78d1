//! A progress bar on standard error, where that is a terminal.

use std::{
    io::{self, IsTerminal as _},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use logcabin_record::Offset;

/// Shorter work needs no progress bar.
const PATIENCE: Duration = Duration::from_millis(500);

/// The progress of a walk through a log. The bar disappears when this is dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    begun: Instant,
    shown: bool,
}

impl Progress {
    /// Starts a walk to `end`.
    pub fn begin(end: Offset) -> Self {
        let bar = ProgressBar::with_draw_target(Some(end.get()), ProgressDrawTarget::hidden());
        let style = "{bar:32} {human_pos} of {human_len} records, {per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        Self { bar, begun: Instant::now(), shown: !io::stderr().is_terminal() }
    }

    /// The walk has reached `offset`.
    pub fn at(&mut self, offset: Offset) {
        // Reading the clock costs more than most records do.
        if offset.get().is_multiple_of(256) {
            if !self.shown && self.begun.elapsed() > PATIENCE {
                self.bar.set_draw_target(ProgressDrawTarget::stderr());
                self.shown = true;
            }
            self.bar.set_position(offset.get());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
