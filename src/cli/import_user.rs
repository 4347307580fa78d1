//! `logcabin import-user`: creates an account from the export of a user.

use std::{path::PathBuf, process::ExitCode};

use super::act::Common;
use logcabin_log::store::has_log;
use logcabin_ops::{
    admin::users,
    export::{self, ImportedUser},
    history::terminal::{clean, grouped},
};

/// Create an account from the export of a user
///
/// The account gets the profile, the account data, the push rules, the backup of room keys and the
/// uploaded files. It is locked and has no password. Rooms are not imported, because their history
/// belongs to them; the user sets up devices, keys and addresses again.
#[derive(Debug, clap::Args)]
pub(super) struct ImportUser {
    /// The directory that `logcabin export --user` wrote
    #[arg(value_name = "SRC")]
    src: PathBuf,

    /// The user name [default: the exported one]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    common: Common,
}

impl ImportUser {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let src = self.src.canonicalize()?;
        export::check_export(&src)?;
        let data_dir = self.common.data_dir()?;
        if !has_log(&data_dir) {
            return Err(format!("there is no server in {}", data_dir.display()).into());
        }
        export::place_files(&src, &data_dir)?;
        self.common.run(users::ImportUser { src, user: self.name }, text)
    }
}

fn text(imported: &ImportedUser) -> String {
    let ImportedUser { user_id, exported, profile, account_data, files, room_keys, left_out } =
        imported;
    let mut text = format!(
        "Created {user_id} from {exported}: {} profile fields, {} pieces of account data, \
         {} files, {} backed-up room keys.\n",
        grouped(*profile),
        grouped(*account_data),
        grouped(*files),
        grouped(*room_keys)
    );
    for left in left_out {
        text += &format!("Left out {}\n", clean(left));
    }
    let name = user_id.localpart();
    text + &format!(
        "It is locked, and in no room. To hand it over:\n  \
         logcabin user reset-password {name} && logcabin user unlock {name}\n"
    )
}
