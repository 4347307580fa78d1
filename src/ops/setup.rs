//! Makes a new server: its configuration file, and its log with the first administrator.
//!
//! Everything is built aside, in the directory `setup` of the data directory and in a file beside
//! the configuration, and takes its name at the end. Whatever fails or is interrupted before that
//! leaves neither a configuration nor a log. Nothing that exists is overwritten.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown},
    path::{Path, PathBuf},
};

use nix::unistd::{User, geteuid};
use ruma::OwnedUserId;
use thiserror::Error;
use tokio::runtime::Runtime;

use crate::admin::{
    act::{Order, Outcome},
    context::ActError,
    offline,
    users::{CreateUser, Created},
};
use logcabin_base::disk;
use logcabin_config::{ArchiveDir, Config, MediaDir};
use logcabin_log::store::log_dir;
use logcabin_record::command::Secret;

/// The user that packages run the server as.
const SERVICE_USER: &str = "logcabin";

/// A file that the server may read and others may not, if its group is the server's.
const CONFIG_MODE: u32 = 0o640;

/// What a new server is made from. All of it was checked.
#[derive(Clone, Debug)]
pub struct NewServer {
    /// Where the configuration is written.
    pub file: PathBuf,
    /// The configuration as a file.
    pub text: String,
    /// The same, read.
    pub config: Config,
    /// The name of the first administrator.
    pub admin: String,
    pub password: Secret,
}

/// Why no server was made.
#[derive(Debug, Error)]
pub enum SetupError {
    #[error(
        "there is a configuration at {}, which is not overwritten: change it with an editor, or name another file with --config",
        .0.display()
    )]
    FileExists(PathBuf),
    #[error(
        "the data directory {} is not empty, and is not overwritten: name another one with --data-dir. If a server uses it, `logcabin user create NAME --admin` makes an administrator",
        .0.display()
    )]
    DataExists(PathBuf),
    /// The administrator's account cannot be made.
    #[error(transparent)]
    Act(#[from] ActError),
    #[error("interrupted: nothing was made")]
    Interrupted,
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl SetupError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

/// Refuses a place where there is a server already. A configuration file with nothing but comments,
/// as a package may install it, is none.
pub fn must_be_new(file: &Path, data_dir: &Path) -> Result<(), SetupError> {
    match fs::read_to_string(file) {
        Ok(text) if is_empty(&text) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        _ => return Err(SetupError::FileExists(file.to_owned())),
    }
    let left = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name != STAGING && name != "lost+found"
    };
    match disk::entries(data_dir).map_err(SetupError::io(data_dir))?.iter().any(left) {
        true => Err(SetupError::DataExists(data_dir.to_owned())),
        false => Ok(()),
    }
}

fn is_empty(text: &str) -> bool {
    text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#'))
}

/// The directory in the data directory where the log is built.
const STAGING: &str = "setup";

/// Makes a server. `actor` is who is recorded as its maker.
///
/// # Errors
/// When there is one, or the administrator cannot have this name or password. Nothing is left then.
pub fn make(runtime: &Runtime, new: &NewServer, actor: &str) -> Result<OwnedUserId, SetupError> {
    let data_dir = &new.config.server.data_dir;
    must_be_new(&new.file, data_dir)?;
    let mut made = Made::default();
    let owner = owner_of(data_dir);
    made.directory(data_dir)?;
    let staging = data_dir.join(STAGING);
    remove_dir(&staging)?;
    made.staging = Some(staging.clone());
    disk::make_private_dir(&staging).map_err(SetupError::io(&staging))?;
    let user_id = build(runtime, new, &staging, actor)?;
    if let Some(parent) = new.file.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        made.directory(parent)?;
    }
    let aside = made.write_config(new, owner)?;
    give(&log_dir(&staging), owner)?;
    // From here on, both are there but for their names.
    let log = log_dir(data_dir);
    put_config(&aside, &new.file)?;
    if let Err(error) = disk::put_in_place(&log_dir(&staging), &log) {
        let _ = fs::remove_file(&new.file);
        return Err(SetupError::io(&log)(error));
    }
    remove_dir(&staging)?;
    give(data_dir, owner)?;
    made.keep();
    Ok(user_id)
}

/// Builds the log with the administrator's account in a data directory of its own.
fn build(
    runtime: &Runtime,
    new: &NewServer,
    staging: &Path,
    actor: &str,
) -> Result<OwnedUserId, SetupError> {
    let mut config = new.config.clone();
    config.server.data_dir = staging.to_owned();
    config.log.archive_dir = ArchiveDir::Off;
    config.media.dir = MediaDir::Auto;
    let order = Order::from(CreateUser {
        user: new.admin.clone(),
        password: Some(new.password.clone()),
        display_name: None,
        admin: true,
    });
    let made = runtime.block_on(async {
        tokio::select! {
            made = offline::begin(&config, &order, actor) => Ok(made?),
            _ = tokio::signal::ctrl_c() => Err(SetupError::Interrupted),
        }
    });
    match made? {
        Outcome::Done(Created { user_id }) => Ok(user_id),
        Outcome::WouldDo(_) => {
            Err(ActError::Invalid("the account was not made, only described".to_owned()).into())
        }
    }
}

/// What was made and is removed again, unless all of it is kept.
#[derive(Default)]
struct Made {
    directories: Vec<PathBuf>,
    staging: Option<PathBuf>,
    config: Option<PathBuf>,
}

impl Made {
    /// Creates a directory, if it is missing, that others may only enter if they are its owner.
    fn directory(&mut self, path: &Path) -> Result<(), SetupError> {
        if !path.is_dir() {
            let missing =
                path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.is_dir());
            let missing: Vec<_> = missing.map(Path::to_owned).collect();
            disk::make_private_dir(path).map_err(SetupError::io(path))?;
            self.directories.extend(missing);
        }
        Ok(())
    }

    /// Writes the configuration beside its place.
    fn write_config(&mut self, new: &NewServer, owner: Owner) -> Result<PathBuf, SetupError> {
        let name = new.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let aside = new.file.with_file_name(format!(".{name}.new"));
        let written = || {
            match fs::remove_file(&aside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&aside)?;
            file.write_all(new.text.as_bytes())?;
            if let Some((_, group)) = owner {
                // The server reads it and cannot change it.
                lchown(&aside, None, Some(group))?;
            }
            file.set_permissions(fs::Permissions::from_mode(CONFIG_MODE))?;
            file.sync_all()
        };
        self.config = Some(aside.clone());
        written().map_err(SetupError::io(&aside))?;
        // The server's user has to reach it.
        if let (Some((_, group)), Some(parent)) = (owner, new.file.parent())
            && self.directories.iter().any(|made| made == parent)
        {
            let opened = lchown(parent, None, Some(group))
                .and_then(|()| fs::set_permissions(parent, fs::Permissions::from_mode(0o750)));
            opened.map_err(SetupError::io(parent))?;
        }
        Ok(aside)
    }

    fn keep(&mut self) {
        self.directories.clear();
        (self.staging, self.config) = (None, None);
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(staging) = &self.staging {
            let _ = fs::remove_dir_all(staging);
        }
        if let Some(config) = &self.config {
            let _ = fs::remove_file(config);
        }
        // The deepest ones first. One that is in use is not empty.
        for directory in &self.directories {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Gives the configuration its name, unless a configuration has it.
fn put_config(aside: &Path, file: &Path) -> Result<(), SetupError> {
    if fs::read_to_string(file).is_ok_and(|text| is_empty(&text)) {
        return disk::put_in_place(aside, file).map_err(SetupError::io(file));
    }
    match fs::hard_link(aside, file) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(SetupError::FileExists(file.to_owned()));
        }
        linked => linked.map_err(SetupError::io(file))?,
    }
    fs::remove_file(aside).map_err(SetupError::io(aside))
}

fn remove_dir(dir: &Path) -> Result<(), SetupError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(SetupError::io(dir)(error)),
        _ => Ok(()),
    }
}

/// The user and the group to whom files are given; none if they stay with this user.
type Owner = Option<(u32, u32)>;

/// To whom root gives the data: to the owner of the directory or, for a new one, to the user of the
/// package, if there is one.
fn owner_of(data_dir: &Path) -> Owner {
    if !geteuid().is_root() {
        return None;
    }
    match fs::metadata(data_dir) {
        Ok(about) => Some((about.uid(), about.gid())),
        Err(_) => {
            let user = User::from_name(SERVICE_USER).ok().flatten()?;
            Some((user.uid.as_raw(), user.gid.as_raw()))
        }
    }
}

fn give(path: &Path, owner: Owner) -> Result<(), SetupError> {
    let Some((user, group)) = owner else { return Ok(()) };
    disk::give(path, user, group).map_err(SetupError::io(path))
}

/// Gives what root made in the data directory of another user to that user, who could not use it
/// otherwise. Does nothing for others than root.
pub fn give_to_owner(data_dir: &Path) {
    if !geteuid().is_root() {
        return;
    }
    let given = fs::metadata(data_dir).and_then(|about| match about.uid() {
        0 => Ok(()),
        user => disk::give(data_dir, user, about.gid()),
    });
    if let Err(error) = given {
        let path = data_dir.display();
        tracing::warn!(%path, %error, "files in the data directory belong to root");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_place_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let (file, data) = (dir.path().join("logcabin.toml"), dir.path().join("data"));
        must_be_new(&file, &data).unwrap();
        fs::create_dir_all(data.join(STAGING)).unwrap();
        fs::write(&file, "# Run `logcabin setup`.\n\n").unwrap();
        must_be_new(&file, &data).unwrap();
        fs::write(&file, "[server]\n").unwrap();
        assert!(matches!(must_be_new(&file, &data), Err(SetupError::FileExists(_))));
        fs::remove_file(&file).unwrap();
        fs::create_dir(data.join("log")).unwrap();
        assert!(matches!(must_be_new(&file, &data), Err(SetupError::DataExists(_))));
    }

    #[test]
    fn what_is_not_kept_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("new/data");
        let mut made = Made::default();
        made.directory(&data).unwrap();
        made.staging = Some(data.join(STAGING));
        fs::create_dir(data.join(STAGING)).unwrap();
        drop(made);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
