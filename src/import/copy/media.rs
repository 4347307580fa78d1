//! Uploaded files: under their hashes in the data directory, and a record for each.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use ruma::ServerName;
use sha2::{Digest as _, Sha256};

use super::{
    convert::{Made, ms, number, own_user},
    progress::Pass,
    writer::{Left, Writer},
};
use crate::{
    ImportError,
    facts::{Media, Origin, RemoteMedia},
};
use logcabin_base::disk;
use logcabin_media::store;
use logcabin_record::{
    Command, Stream,
    command::{FileHash, MediaCreate, MediaProtect, MediaQuarantine, MediaUpload},
};

/// How long an id that was handed out waits for its file: as in Synapse by default.
const UNUSED_MS: u64 = 24 * 60 * 60 * 1000;

/// Why most copies of files of other servers do not come along.
pub(super) const FETCHED_AGAIN: &str = "copies of files of other servers are fetched again";

/// Until when an id without a file waits for it; `None` if there is a file.
pub(super) fn awaits(fact: &Media, own: &ServerName, now_ms: u64) -> Result<Option<u64>, Left> {
    let user_id = fact.user_id.as_deref().map(|id| own_user(id, own)).transpose()?;
    if fact.size.is_some() {
        return Ok(None);
    }
    let expires_ms = ms(fact.created_ms).saturating_add(UNUSED_MS);
    let why = match (user_id, expires_ms <= now_ms) {
        (Some(_), false) => return Ok(Some(expires_ms)),
        (Some(_), true) => "nothing was uploaded in time",
        (None, _) => "nothing was uploaded",
    };
    Err(("nothing was uploaded", why.to_owned()))
}

/// Where the files are, and where they go.
#[derive(Clone, Debug)]
pub(super) struct MediaPlaces {
    pub(super) from: PathBuf,
    /// The directory of files in the data directory.
    pub(super) to: PathBuf,
}

impl MediaPlaces {
    pub(super) fn new(from: &Path, data_dir: &Path) -> Self {
        Self { from: from.to_owned(), to: store::directory(data_dir) }
    }

    /// Takes a file into the data directory. Returns its hash and length.
    fn take(&self, path: &str, sha256: Option<&str>) -> io::Result<Result<(FileHash, u64), Left>> {
        if Path::new(path).components().any(|part| !matches!(part, std::path::Component::Normal(_)))
        {
            return Ok(Err(("its path leads elsewhere", "its path leads elsewhere".to_owned())));
        }
        let from = self.from.join(path);
        let mut file = match File::open(&from) {
            Ok(file) => file,
            Err(error) => {
                let why = format!("{}: {error}", from.display());
                return Ok(Err(("its file cannot be read", why)));
            }
        };
        let (mut hasher, mut sha, mut length) = (blake3::Hasher::new(), Sha256::new(), 0_u64);
        let mut piece = vec![0; 256 * 1024];
        loop {
            let read = match file.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let why = format!("{}: {error}", from.display());
                    return Ok(Err(("its file cannot be read", why)));
                }
            };
            hasher.update(&piece[..read]);
            if sha256.is_some() {
                sha.update(&piece[..read]);
            }
            length += read as u64;
        }
        if let Some(expected) = sha256 {
            let found: String = sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            if found != expected.to_ascii_lowercase() {
                let why = format!("{} has other bytes than were uploaded", from.display());
                return Ok(Err(("its file is damaged", why)));
            }
        }
        let hash = FileHash::from(hasher.finalize());
        let to = store::place(&self.to, &hash);
        if fs::metadata(&to).is_ok_and(|about| about.len() == length) {
            return Ok(Ok((hash, length)));
        }
        self.put(&from, &to)?;
        Ok(Ok((hash, length)))
    }

    /// Links or copies a file into place, and returns once it is durable. Where the file system can
    /// share the blocks of a copy, they are shared.
    fn put(&self, from: &Path, to: &Path) -> io::Result<()> {
        let parent = to.parent().unwrap_or(&self.to);
        // Each directory's own name must be durable, too.
        for dir in [Some(&*self.to), parent.parent(), Some(parent)].into_iter().flatten() {
            disk::make_private_dir(dir)?;
        }
        // A link belongs to whom the file belongs, who may be another user or group than the
        // server's. What root makes in the data directory is given to the owner of that.
        let owner = |path: &Path| fs::metadata(path).map(|about| (about.uid(), about.gid()));
        let is_own = owner(from)? == owner(self.to.parent().unwrap_or(&self.to))?;
        if is_own && fs::hard_link(from, to).is_ok() {
            return File::open(parent)?.sync_all();
        }
        let partial = to.with_extension("importing");
        fs::copy(from, &partial)?;
        let mut permissions = fs::metadata(&partial)?.permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o600);
        fs::set_permissions(&partial, permissions)?;
        File::open(&partial)?.sync_all()?;
        fs::rename(&partial, to)?;
        File::open(parent)?.sync_all()
    }
}

impl Writer<'_> {
    /// Takes an uploaded file along.
    pub(super) fn media(
        &mut self,
        places: Option<&MediaPlaces>,
        origin: &Origin,
        fact: &Media,
    ) -> Result<(), ImportError> {
        let user_id = match fact.user_id.as_deref().map(|id| own_user(id, &self.own)).transpose() {
            Ok(user_id) => user_id,
            Err((reason, why)) => return self.leave(origin, reason, &why),
        };
        let stream = Stream::media(user_id.as_deref());
        let is_there = self.known.all.media.contains(&*fact.media_id);
        if fact.size.is_none() && !is_there {
            let (user_id, expires_ms) =
                match (user_id, awaits(fact, &self.own, self.progress.now_ms)) {
                    (_, Err((reason, why))) => return self.leave(origin, reason, &why),
                    (Some(user_id), Ok(Some(expires_ms))) => (user_id, expires_ms),
                    (_, Ok(_)) => return Ok(()),
                };
            let media_id = fact.media_id.clone();
            let made = Made::one(stream, MediaCreate { media_id, user_id, expires_ms });
            self.put(origin, Some(fact.created_ms), &made.commands)?;
            return Ok(());
        }
        if !is_there {
            let Some(places) = places else {
                return self.leave(origin, "no directory of files", "no directory is known");
            };
            let taken = places.take(&fact.path, fact.sha256.as_deref());
            let taken = taken.map_err(|source| ImportError::File {
                what: "take along",
                path: places.from.join(&fact.path),
                source,
            })?;
            let (hash, size) = match taken {
                Ok(taken) => taken,
                Err((reason, why)) => return self.leave(origin, reason, &why),
            };
            if fact.size.map(number) != Some(size) {
                let line = format!("{origin}: its file has {size} bytes, and not as many as said");
                self.list.note(&mut self.progress.counts, &line)?;
            }
            let body = MediaUpload {
                media_id: fact.media_id.clone(),
                user_id,
                hash,
                size,
                content_type: fact.content_type.clone(),
                name: fact.name.clone(),
            };
            let commands = [(stream, Command::from(body))];
            if self.put(origin, Some(fact.created_ms), &commands)?.is_none() {
                return Ok(());
            }
        }
        if self.progress.pass != Pass::Finish {
            // An administrator may take back what follows.
            return Ok(());
        }
        let mut more = Made::default();
        let media_id = fact.media_id.clone();
        if fact.protected {
            let body = MediaProtect { media_id: media_id.clone(), protected: true };
            more.commands.push((Stream::quarantine(), body.into()));
        }
        if let Some(by) = &fact.quarantined_by {
            let body = MediaQuarantine {
                media_ids: vec![media_id],
                quarantined: true,
                reason: Some(format!("quarantined by {by}")),
                ..MediaQuarantine::default()
            };
            more.commands.push((Stream::quarantine(), body.into()));
        }
        if !more.commands.is_empty() {
            self.put(origin, None, &more.commands)?;
        }
        Ok(())
    }

    /// A copy of a file of another server is fetched again when somebody wants it; that it is in
    /// quarantine comes along.
    pub(super) fn remote_media(
        &mut self,
        origin: &Origin,
        fact: &RemoteMedia,
    ) -> Result<(), ImportError> {
        let Some(by) = &fact.quarantined_by else {
            // There are many of them, and each for the same reason.
            self.progress.counts.leave(origin, FETCHED_AGAIN);
            return Ok(());
        };
        let uri = format!("mxc://{}/{}", fact.server_name, fact.media_id);
        let body = MediaQuarantine {
            remote: vec![uri.into()],
            quarantined: true,
            reason: Some(format!("quarantined by {by}")),
            ..MediaQuarantine::default()
        };
        self.put(origin, None, &[(Stream::quarantine(), Command::from(body))])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_group_is_not_shared() {
        let (source, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let places = MediaPlaces::new(source.path(), data.path());
        let is_root = fs::metadata(data.path()).unwrap().uid() == 0;
        for (name, group) in [("own", None), ("other", Some(12_345))] {
            let path = source.path().join(name);
            fs::write(&path, name).unwrap();
            // Only root can give a file to any group.
            if group.is_some() && !is_root {
                continue;
            }
            std::os::unix::fs::chown(&path, None, group).unwrap();
            places.take(name, None).unwrap().unwrap();
            let links = fs::metadata(&path).unwrap().nlink();
            assert_eq!(links, if group.is_some() { 1 } else { 2 }, "{name}");
        }
    }

    #[test]
    fn a_file_is_taken_once_and_a_bad_one_is_left() {
        let (source, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let places = MediaPlaces::new(source.path(), data.path());
        fs::create_dir_all(source.path().join("local_content/aa")).unwrap();
        fs::write(source.path().join("local_content/aa/bb"), b"a picture").unwrap();
        let path = "local_content/aa/bb";
        let sha = "02461e56d5bae6a8b1ef1ab5a3ee5ce04eb57e8eb1dd0fee0a5b1c0e4e2c1d4f";
        let damaged = places.take(path, Some(sha)).unwrap().unwrap_err();
        assert_eq!(damaged.0, "its file is damaged");
        let sha: String =
            Sha256::digest(b"a picture").iter().map(|byte| format!("{byte:02x}")).collect();
        for _ in 0..2 {
            let (hash, length) = places.take(path, Some(&sha)).unwrap().unwrap();
            assert_eq!((hash, length), (blake3::hash(b"a picture").into(), 9));
            let kept = store::place(&data.path().join("media"), &hash);
            assert_eq!(fs::read(kept).unwrap(), b"a picture");
        }
        for (path, reason) in [
            ("../etc/passwd", "its path leads elsewhere"),
            ("/etc/passwd", "its path leads elsewhere"),
            ("local_content/none", "its file cannot be read"),
        ] {
            assert_eq!(places.take(path, None).unwrap().unwrap_err().0, reason, "{path}");
        }
    }
}
