//! `logcabin undo`.

use std::process::ExitCode;

use super::act::ActOptions;
use logcabin_ops::{admin::undo, history::terminal::clean};
use logcabin_record::Offset;

/// Undo what a record did
///
/// Takes the number of a record (`logcabin history tail` shows them) and makes the opposite change.
/// It can undo suspending, locking and making administrators; bans and invites; state of rooms,
/// such as power levels, names and avatars; blocking a room and listing it; aliases; quarantine;
/// closed reports; and changes of profiles. It refuses if a later record has changed the same
/// thing. Undoing is a record, too, and can itself be undone.
#[derive(Debug, clap::Args)]
pub(super) struct Undo {
    /// The number of the record
    #[arg(value_name = "RECORD")]
    record: u64,

    #[command(flatten)]
    options: ActOptions,
}

impl Undo {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let act = undo::Undo { record: Offset::new(self.record) };
        self.options
            .run(act, |done| format!("Undid record {}: {}.\n", done.record, clean(&done.now)))
    }
}
