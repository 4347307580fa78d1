//! Files and directories that are in their place whole or not at all, also after a power cut.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// What ends the name of a file that is not finished.
const UNFINISHED: &str = "new";

/// Makes durable which names are in a directory.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir)?.sync_all()
}

/// Renames what is durable itself to `path`, in the stead of what is there, and makes that durable.
pub(crate) fn put_in_place(made: &Path, path: &Path) -> io::Result<()> {
    fs::rename(made, path)?;
    sync_dir(path.parent().unwrap_or(path))
}

/// Gives each of two directories beside each other the name of the other, and makes that durable:
/// in one step where the file system has one, and otherwise by way of the name `aside`. As long as
/// something has that name, [`finish_exchange`] is to be called before anything else is done with
/// the two.
pub(crate) fn exchange(one: &Path, other: &Path, aside: &Path) -> io::Result<()> {
    let (cwd, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
    if rustix::fs::renameat_with(cwd, one, cwd, other, flags).is_ok() {
        return sync_dir(one.parent().unwrap_or(one));
    }
    put_in_place(one, aside)?;
    finish_exchange(one, other, aside)
}

/// Brings an exchange that was interrupted to its end; does nothing if there was none.
pub(crate) fn finish_exchange(one: &Path, other: &Path, aside: &Path) -> io::Result<()> {
    if !aside.exists() {
        return Ok(());
    }
    if !one.exists() {
        if !other.exists() {
            // Somebody took it away: then the first gets its name back.
            return put_in_place(aside, one);
        }
        put_in_place(other, one)?;
    }
    put_in_place(aside, other)
}

/// Writes a file that its owner alone can read, in the stead of what is there.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut partial = OsString::from(path);
    partial.push(".");
    partial.push(UNFINISHED);
    write_aside(partial.as_ref(), path, bytes)
}

/// As [`write_whole`], by way of `partial`, which is on the same disk.
pub(crate) fn write_aside(partial: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    put_in_place(partial, path)
}

/// Takes from everyone but their owner what they may do with `dir` and all that is in it. Gives
/// with how many files and directories there was something to take. Links are left alone.
pub(crate) fn make_private(dir: &Path) -> io::Result<u64> {
    let mut changed = 0;
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let about = match fs::symlink_metadata(&path) {
            // It went while others were looked at.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            about => about?,
        };
        if about.is_symlink() {
            continue;
        }
        let mode = about.permissions().mode();
        if mode & 0o077 != 0 {
            match fs::set_permissions(&path, fs::Permissions::from_mode(mode & !0o077)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                done => done?,
            }
            changed += 1;
        }
        if about.is_dir() {
            left.extend(entries(&path)?);
        }
    }
    Ok(changed)
}

/// What is in `dir`, in no order. One that is not there has nothing.
pub(crate) fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Removes from `dir`, if it is there, the files that were not finished. To be called by the only
/// one who writes there.
pub(crate) fn remove_unfinished(dir: &Path) -> io::Result<()> {
    for path in entries(dir)? {
        if path.extension().is_some_and(|extension| extension == UNFINISHED) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_directories_change_names_whether_in_one_step_or_interrupted_at_any() {
        // How many steps without an exchange are done before the end.
        for done in 0..=3 {
            let dir = tempfile::tempdir().unwrap();
            let [one, other, aside] = ["one", "other", "aside"].map(|name| dir.path().join(name));
            for (path, text) in [(&one, "old"), (&other, "new")] {
                fs::create_dir(path).unwrap();
                fs::write(path.join("file"), text).unwrap();
            }
            let steps = [(&one, &aside), (&other, &one), (&aside, &other)];
            match done {
                0 => exchange(&one, &other, &aside).unwrap(),
                _ => steps[..done].iter().for_each(|(from, to)| fs::rename(from, to).unwrap()),
            }
            finish_exchange(&one, &other, &aside).unwrap();
            finish_exchange(&one, &other, &aside).unwrap();
            let held = |path: &Path| fs::read_to_string(path.join("file")).unwrap();
            assert_eq!((held(&one), held(&other)), ("new".into(), "old".into()), "{done}");
            assert!(!aside.exists());
        }
        // Without the one that was to take the name, all is as it was.
        let dir = tempfile::tempdir().unwrap();
        let [one, other, aside] = ["one", "other", "aside"].map(|name| dir.path().join(name));
        fs::create_dir(&aside).unwrap();
        finish_exchange(&one, &other, &aside).unwrap();
        assert!(one.is_dir() && !aside.exists());
    }

    #[test]
    fn what_is_written_takes_the_place_of_what_was_there_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("note.json");
        for text in ["first", "second"] {
            write_whole(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::write(dir.path().join("half.new"), "half").unwrap();
        remove_unfinished(dir.path()).unwrap();
        let left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["note.json"]);
        remove_unfinished(&dir.path().join("none")).unwrap();
    }
}
