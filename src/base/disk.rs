//! Atomic replacement of files and directories that survives a power failure.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File, Metadata, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown,
    },
    path::{Path, PathBuf},
};

/// The extension of an unfinished file.
const UNFINISHED: &str = "new";

/// Creates a directory that only its owner can enter, and its parents.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => sync_dir(parent),
        None => Ok(()),
    }
}

/// The bytes that an ordinary user may still write on the disk of `path`.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir)?.sync_all()
}

/// Renames a durable file or directory to `path`, replaces an existing one, and makes that durable.
pub fn put_in_place(made: &Path, path: &Path) -> io::Result<()> {
    fs::rename(made, path)?;
    sync_dir(path.parent().unwrap_or(path))
}

/// Swaps the names of two directories beside each other, and makes that durable. If the file system
/// cannot do it in one step, the name `aside` is used in between. As long as that name exists,
/// [`finish_exchange`] must be called before anything else is done with the two.
pub fn exchange(one: &Path, other: &Path, aside: &Path) -> io::Result<()> {
    let (cwd, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
    if rustix::fs::renameat_with(cwd, one, cwd, other, flags).is_ok() {
        return sync_dir(one.parent().unwrap_or(one));
    }
    put_in_place(one, aside)?;
    finish_exchange(one, other, aside)
}

/// Completes an interrupted exchange; does nothing if there was none.
pub fn finish_exchange(one: &Path, other: &Path, aside: &Path) -> io::Result<()> {
    if !aside.exists() {
        return Ok(());
    }
    if !one.exists() {
        if !other.exists() {
            // The other one was removed: the first gets its name back.
            return put_in_place(aside, one);
        }
        put_in_place(other, one)?;
    }
    put_in_place(aside, other)
}

/// Writes a file that only its owner can read, and replaces an existing one.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut partial = OsString::from(path);
    partial.push(".");
    partial.push(UNFINISHED);
    write_aside(partial.as_ref(), path, bytes)
}

/// Like [`write_whole`], by way of `partial`, which must be on the same disk.
pub fn write_aside(partial: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    put_in_place(partial, path)
}

/// Removes the permissions of everyone but the owner on a file or directory, and not on what is in
/// it. Returns the mode that it had, if that was changed. What is missing, or a link to a file, is
/// left alone.
pub fn make_private_itself(path: &Path) -> io::Result<Option<u32>> {
    let about = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        about => about?,
    };
    let about = match about.is_symlink() {
        // A data directory may be reached by a link.
        true if path.is_dir() => fs::metadata(path)?,
        true => return Ok(None),
        false => about,
    };
    let mode = about.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(None);
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode & !0o077))?;
    Ok(Some(mode & 0o7777))
}

/// Removes the permissions of everyone but the owner on `dir` and everything in it. Returns how
/// many files and directories it changed. Links are left alone.
pub fn make_private(dir: &Path) -> io::Result<u64> {
    let mut changed = 0;
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let about = match fs::symlink_metadata(&path) {
            // It was removed meanwhile.
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

/// Gives `path` and everything in it to a user and a group. Only root can. Links are not followed.
pub fn give(path: &Path, user: u32, group: u32) -> io::Result<()> {
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
        let about = fs::symlink_metadata(&path)?;
        if (about.uid(), about.gid()) != (user, group) {
            lchown(&path, Some(user), Some(group))?;
        }
        if about.is_dir() {
            left.extend(entries(&path)?);
        }
    }
    Ok(())
}

/// The entries of `dir`, unordered. A missing directory has none.
pub fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The size of a file on disk: its blocks, because a sparse file is smaller than its length.
pub fn bytes_of(metadata: &Metadata) -> u64 {
    metadata.blocks() * 512
}

/// The size on disk of the files below `path`.
pub fn tree_bytes(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => tree_bytes(&entry.path()),
            Ok(metadata) => bytes_of(&metadata),
            // It was removed meanwhile.
            Err(_) => 0,
        })
        .sum()
}

/// Removes unfinished files from `dir`, if it exists. Must be called by its only writer.
pub fn remove_unfinished(dir: &Path) -> io::Result<()> {
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
    fn two_directories_swap_names_even_if_interrupted_at_any_step() {
        // How many steps without an exchange were done before the crash.
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
        // If the directory that was to take the name is missing, nothing changes.
        let dir = tempfile::tempdir().unwrap();
        let [one, other, aside] = ["one", "other", "aside"].map(|name| dir.path().join(name));
        fs::create_dir(&aside).unwrap();
        finish_exchange(&one, &other, &aside).unwrap();
        assert!(one.is_dir() && !aside.exists());
    }

    #[test]
    fn what_others_can_read_becomes_private() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        fs::write(&key, "secret").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        for (path, open, private) in [(&*key, 0o644, 0o600), (dir.path(), 0o755, 0o700)] {
            fs::set_permissions(path, fs::Permissions::from_mode(open)).unwrap();
            assert_eq!(make_private_itself(path).unwrap(), Some(open));
            assert_eq!((mode(path), make_private_itself(path).unwrap()), (private, None));
        }
        let (link, none) = (dir.path().join("link"), dir.path().join("none"));
        std::os::unix::fs::symlink(&key, &link).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!((make_private_itself(&link).unwrap(), mode(&key)), (None, 0o644));
        assert_eq!(make_private_itself(&none).unwrap(), None);
    }

    #[test]
    fn a_write_replaces_the_old_file_and_leaves_nothing_else_behind() {
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
