//! Which processes on this machine are of a Synapse with a given configuration.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

/// Programs of Synapse, as they are in command lines. Workers are among them.
const PROGRAMS: [&str; 3] = ["synapse.app.", "synapse_homeserver", "synapse_worker"];

/// The processes of a Synapse that were given this configuration, the main one and workers. It may
/// be in a container, where the file has another path.
pub(super) fn using(config: &Path) -> Vec<u32> {
    under(Path::new("/proc"), config)
}

fn under(proc: &Path, config: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(proc) else { return Vec::new() };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut found: Vec<u32> =
        ids.filter(|id: &u32| uses(&proc.join(id.to_string()), config)).collect();
    found.sort_unstable();
    found
}

/// Whether the process in this directory is one. Who ends meanwhile is none.
fn uses(process: &Path, config: &Path) -> bool {
    let Ok(line) = fs::read(process.join("cmdline")) else { return false };
    let text = String::from_utf8_lossy(&line);
    if !PROGRAMS.iter().any(|program| text.contains(program)) {
        return false;
    }
    line.split(|byte| *byte == 0).any(|argument| {
        // `-c FILE`, or `--config-path=FILE`.
        let value = argument.iter().position(|byte| *byte == b'=').map(|at| &argument[at + 1..]);
        [Some(argument), value].into_iter().flatten().any(|path| {
            !path.is_empty() && is_file(process, Path::new(OsStr::from_bytes(path)), config)
        })
    })
}

/// Whether a path of a process is this file.
fn is_file(process: &Path, path: &Path, config: &Path) -> bool {
    let seen: PathBuf = match path.strip_prefix("/") {
        Ok(path) => process.join("root").join(path),
        Err(_) => process.join("cwd").join(path),
    };
    match (fs::metadata(seen), fs::metadata(config)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        // Only its own user and root may look at its directories.
        (Err(error), _) if error.kind() == io::ErrorKind::PermissionDenied => {
            path == config || (path.is_relative() && path.file_name() == config.file_name())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn processes_are_found_by_the_file_that_they_were_given() {
        let dir = tempfile::tempdir().unwrap();
        let [proc, etc, container] = ["proc", "etc", "container"].map(|name| dir.path().join(name));
        for path in [&proc, &etc, &container.join("data")] {
            fs::create_dir_all(path).unwrap();
        }
        let config = etc.join("homeserver.yaml");
        fs::write(&config, "a").unwrap();
        fs::hard_link(&config, container.join("data/homeserver.yaml")).unwrap();
        fs::write(etc.join("other.yaml"), "a").unwrap();
        let run = |id: &str, root: &Path, line: &str| {
            let process = proc.join(id);
            fs::create_dir(&process).unwrap();
            fs::write(process.join("cmdline"), line.replace(' ', "\0")).unwrap();
            symlink(root, process.join("root")).unwrap();
            symlink(&etc, process.join("cwd")).unwrap();
        };
        let (here, absolute) = (Path::new("/"), config.display().to_string());
        let main = format!("python -m synapse.app.homeserver --config-path={absolute}");
        let worker = format!("python -m synapse.app.generic_worker -c {absolute} -c worker.yaml");
        run("12", here, &main);
        run("9", here, &worker);
        run("13", here, "/opt/bin/synapse_homeserver -c homeserver.yaml");
        run("14", &container, "python -m synapse.app.homeserver -c /data/homeserver.yaml");
        // Another server, an editor, and one that has ended.
        run("20", here, "python -m synapse.app.homeserver -c other.yaml");
        run("21", here, &format!("vim {absolute}"));
        run("22", here, "");
        fs::create_dir(proc.join("23")).unwrap();
        fs::create_dir(proc.join("self")).unwrap();
        assert_eq!(under(&proc, &config), [9, 12, 13, 14]);
        assert_eq!(under(&dir.path().join("none"), &config), Vec::<u32>::new());
    }
}
