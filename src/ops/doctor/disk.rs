//! How much room is left, and for how long.

use super::{Finding, Level, Subject, unknown};
use crate::history::terminal::bytes;
use logcabin_base::{disk, limits};
use logcabin_log::store::log_dir;
use logcabin_service::{
    growth::{Sizes, days_left},
    observe::Directories,
    samples::Samples,
};

const CHECK: &str = "disk";

/// The state of the disks.
#[derive(Clone, Debug)]
struct Room {
    /// The free bytes on the disk of the log, or why they are not known.
    free: Result<u64, String>,
    /// Below this the server refuses writes.
    reserve: u64,
    /// The bytes by which the data grows each day; none before it is known.
    daily: Option<f64>,
    /// The free bytes on the disk of the archive, if that is elsewhere.
    archive: Option<u64>,
}

pub(super) fn findings(of: &Subject<'_>) -> Vec<Finding> {
    judge(&gather(of))
}

fn gather(of: &Subject<'_>) -> Room {
    let directories = Directories::configured(of.config);
    let log = log_dir(&directories.data);
    let place = if log.is_dir() { &log } else { &directories.data };
    let free = disk::free_bytes(place).map_err(|error| error.to_string());
    let mut now = Sizes { at_ms: of.now_ms, free: free.clone().unwrap_or(0), ..Sizes::default() };
    // The sizes come in the order in which they are noted.
    for (to, (_, size)) in now.used.iter_mut().zip(directories.sizes()) {
        *to = size;
    }
    let daily = Samples::of(&directories.data).growth().daily(&now);
    let archive = directories.archive.filter(|dir| !dir.starts_with(&directories.data));
    Room {
        free,
        reserve: of.config.log.min_free_bytes,
        daily,
        archive: archive.and_then(|dir| disk::free_bytes(&dir).ok()),
    }
}

fn judge(of: &Room) -> Vec<Finding> {
    let mut found = vec![log_disk(of)];
    if let Some(free) = of.archive.filter(|free| *free <= of.reserve) {
        found.push(Finding::new(
            CHECK,
            Level::Warning,
            format!("The disk of the archive has {} left.", bytes(free)),
            "When it is full, the archive falls behind the log and no longer protects it.",
            "Make room there, or set log.archive_dir to a larger disk.",
        ));
    }
    found
}

const MAKE_ROOM: &str = "Make room or enlarge the disk; logcabin du shows what takes it.";

fn log_disk(of: &Room) -> Finding {
    let free = match &of.free {
        Ok(free) => *free,
        Err(reason) => return unknown(CHECK, "The free space", reason, MAKE_ROOM),
    };
    let left = format!("{} are free", bytes(free));
    if free <= of.reserve {
        return Finding::new(
            CHECK,
            Level::Error,
            format!("The disk is full: {left}, and {} are kept in reserve.", bytes(of.reserve)),
            "The server refuses everything that writes: messages, logins, joins.",
            MAKE_ROOM,
        );
    }
    if free <= of.reserve.saturating_mul(2) {
        return Finding::new(
            CHECK,
            Level::Error,
            format!("The disk is almost full: {left}."),
            "Uploads are refused already, and soon all writes are.",
            MAKE_ROOM,
        );
    }
    let Some(daily) = of.daily else {
        let what = format!("{left}. How fast the disk fills is known after two days.");
        return Finding::ok(CHECK, what);
    };
    let Some(days) = days_left(free, of.reserve, daily) else {
        return Finding::ok(CHECK, format!("{left}, and the data does not grow."));
    };
    let what = format!("{left}, which is enough for about {days:.0} days.");
    let [warn, err] = limits::DISK_DAYS;
    if days >= warn {
        return Finding::ok(CHECK, what);
    }
    let level = if days < err { Level::Error } else { Level::Warning };
    let why = "When the disk is full, the server refuses everything that writes.";
    Finding::new(CHECK, level, what, why, MAKE_ROOM)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn of(free: u64, daily: Option<f64>) -> Level {
        let room = Room { free: Ok(free), reserve: 100 * MB, daily, archive: None };
        judge(&room)[0].level
    }

    #[test]
    fn a_disk_that_is_full_or_soon_will_be_is_found() {
        assert_eq!(of(50 * MB, None), Level::Error);
        assert_eq!(of(150 * MB, None), Level::Error);
        assert_eq!(of(1_100 * MB, None), Level::Ok);
        assert_eq!(of(1_100 * MB, Some(0.0)), Level::Ok);
        assert_eq!(of(1_100 * MB, Some(10e6)), Level::Ok);
        assert_eq!(of(1_100 * MB, Some(50e6)), Level::Warning);
        assert_eq!(of(1_100 * MB, Some(500e6)), Level::Error);
    }

    #[test]
    fn the_disk_of_the_archive_counts_too_and_nothing_is_well_unseen() {
        let room = Room {
            free: Err("no".to_owned()),
            reserve: 100 * MB,
            daily: None,
            archive: Some(50 * MB),
        };
        let levels: Vec<_> = judge(&room).iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Unknown, Level::Warning]);
    }
}
