//! Files. Their bytes are in Synapse's directory of media.

use crate::{
    facts::{Fact, Media, RemoteMedia},
    sql::{database::Fault, plan::Plan},
    synapse::context::Context,
};

pub(super) const MEDIA: &[Plan<Context>] = &[Plan {
    from: "local_media_repository m",
    only: "",
    keys: 1,
    columns: &[
        "m.media_id",
        "m.user_id",
        "m.created_ts",
        "m.media_type",
        "m.upload_name",
        "m.media_length",
        "m.last_access_ts",
        "m.quarantined_by",
        "m.safe_from_quarantine",
        "m.authenticated",
        "m.sha256",
        "m.url_cache",
    ],
    shown: 1,
    tell: |row, _, facts| {
        let media_id = row.text("media_id")?;
        let for_preview = row.text_or_none("url_cache")?.is_some();
        let path = if for_preview { preview(&media_id)? } else { local(&media_id)? };
        facts.push(Fact::Media(Media {
            user_id: row.text_or_none("user_id")?.filter(|_| !for_preview),
            created_ms: row.int_or_none("created_ts")?.unwrap_or_default(),
            content_type: row.text_or_none("media_type")?,
            name: row.text_or_none("upload_name")?,
            size: row.int_or_none("media_length")?,
            used_ms: row.int_or_none("last_access_ts")?,
            quarantined_by: row.text_or_none("quarantined_by")?,
            protected: row.flag("safe_from_quarantine")?,
            authenticated: row.flag("authenticated")?,
            sha256: row.text_or_none("sha256")?,
            media_id,
            path,
        }));
        Ok(())
    },
}];

pub(super) const REMOTE_MEDIA: &[Plan<Context>] = &[Plan {
    from: "remote_media_cache m",
    only: "",
    keys: 2,
    columns: &[
        "m.media_origin",
        "m.media_id",
        "m.created_ts",
        "m.media_type",
        "m.upload_name",
        "m.media_length",
        "m.filesystem_id",
        "m.last_access_ts",
        "m.quarantined_by",
        "m.authenticated",
        "m.sha256",
    ],
    shown: 2,
    tell: |row, _, facts| {
        let server_name = row.text("media_origin")?;
        let file = row.text("filesystem_id")?;
        let path = format!("remote_content/{}/{}", plain(&server_name)?, spread(&file)?);
        facts.push(Fact::RemoteMedia(RemoteMedia {
            media_id: row.text("media_id")?,
            created_ms: row.int_or_none("created_ts")?.unwrap_or_default(),
            content_type: row.text_or_none("media_type")?,
            name: row.text_or_none("upload_name")?,
            size: row.int_or_none("media_length")?,
            used_ms: row.int_or_none("last_access_ts")?,
            quarantined_by: row.text_or_none("quarantined_by")?,
            authenticated: row.flag("authenticated")?,
            sha256: row.text_or_none("sha256")?,
            server_name,
            path,
        }));
        Ok(())
    },
}];

fn local(media_id: &str) -> Result<String, Fault> {
    Ok(format!("local_content/{}", spread(media_id)?))
}

/// Files that the server fetched for previews are kept by the day, if their name begins with it.
fn preview(media_id: &str) -> Result<String, Fault> {
    let bytes = media_id.as_bytes();
    let by_day = bytes.len() > 11
        && bytes.iter().take(10).enumerate().all(|(place, byte)| match place {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    if by_day {
        let (day, rest) = media_id.split_at_checked(10).ok_or_else(no_path)?;
        let rest = rest.get(1..).ok_or_else(no_path)?;
        return Ok(format!("url_cache/{day}/{}", plain(rest)?));
    }
    Ok(format!("url_cache/{}", spread(media_id)?))
}

/// Two directories by the first letters of a name.
fn spread(name: &str) -> Result<String, Fault> {
    plain(name)?;
    match (name.get(..2), name.get(2..4), name.get(4..)) {
        (Some(first), Some(second), Some(rest)) if !rest.is_empty() => {
            Ok(format!("{first}/{second}/{rest}"))
        }
        _ => Err(no_path()),
    }
}

/// A name of a file, which leads nowhere else.
fn plain(name: &str) -> Result<&str, Fault> {
    let fits = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0']);
    if fits { Ok(name) } else { Err(no_path()) }
}

fn no_path() -> Fault {
    "its id is no name of a file".to_owned()
}

#[cfg(test)]
mod tests {
    use super::{local, preview, spread};

    #[test]
    fn files_are_where_synapse_puts_them() {
        assert_eq!(local("GerZNDnDZVjsOtar").as_deref(), Ok("local_content/Ge/rZ/NDnDZVjsOtar"));
        let kept = preview("2017-09-28_fxCPmTwQL");
        assert_eq!(kept.as_deref(), Ok("url_cache/2017-09-28/fxCPmTwQL"));
        assert_eq!(preview("GerZNDnDZ").as_deref(), Ok("url_cache/Ge/rZ/NDnDZ"));
    }

    #[test]
    fn no_name_leads_out_of_the_directory() {
        for name in ["", "abcd", "..", "../../etc/passwd", "ab/../../x", "\u{e9}\u{e9}x"] {
            let spread = spread(name);
            assert!(spread.as_ref().map_or(true, |path| !path.contains("..")), "{name}");
        }
        assert!(spread("../../etc/passwd").is_err());
    }
}
