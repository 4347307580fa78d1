//! File descriptors: the limit of the process, and who may use the last of them.
//!
//! The operating system gives out the lowest free number. So a new descriptor's number says how
//! many are open at least, and nothing has to be counted. What clients can make many of, such as
//! connections, stops below the limit; the log, the search index and the listeners never ask.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limits;

/// The limit of the process; it is unknown before [`raise`], and then everybody may open more.
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

/// What a descriptor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A connection that somebody opened to this server.
    Connection,
    /// A file or a connection that a request needs.
    Request,
}

/// Raises the soft limit of the process to its hard one, and returns the limit.
///
/// # Errors
/// When the limit cannot be raised; it stays as it is, and counts.
pub fn raise() -> (u64, Result<(), io::Error>) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let most = maximum.unwrap_or(u64::MAX).min(limits::DESCRIPTORS);
    let raised = match current {
        Some(current) if current < most => {
            setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum })
        }
        _ => Ok(()),
    };
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    LIMIT.store(limit, Ordering::Relaxed);
    (limit, raised.map_err(io::Error::from))
}

/// How many of `limit` descriptors are kept from connections.
pub fn kept(limit: u64) -> u64 {
    let (least, most) = limits::DESCRIPTORS_KEPT;
    (limit / 4).clamp(least, most)
}

/// As many of `wanted` as the limit of the process leaves room for, and at least one.
pub fn scaled(wanted: usize) -> usize {
    let room = LIMIT.load(Ordering::Relaxed) / 16;
    wanted.min(usize::try_from(room).unwrap_or(usize::MAX)).max(1)
}

/// Whether the descriptor that was just opened leaves enough for what never waits.
pub fn is_spare(opened: &impl HasDescriptor, purpose: Purpose) -> bool {
    is_below(opened.number(), LIMIT.load(Ordering::Relaxed), purpose)
}

/// Whether one more descriptor would leave enough; `open` is any that is open.
pub fn has_spare(open: &impl HasDescriptor, purpose: Purpose) -> bool {
    let next = open.next_number();
    next.is_some_and(|next| is_below(next, LIMIT.load(Ordering::Relaxed), purpose))
}

/// Something that was opened.
pub trait HasDescriptor {
    fn number(&self) -> u64;

    /// The number that one more would have, if there can be one more.
    fn next_number(&self) -> Option<u64>;
}

#[cfg(not(feature = "simulate"))]
impl<T: std::os::fd::AsFd> HasDescriptor for T {
    fn number(&self) -> u64 {
        use std::os::fd::AsRawFd as _;
        u64::try_from(self.as_fd().as_raw_fd()).unwrap_or_default()
    }

    fn next_number(&self) -> Option<u64> {
        rustix::io::fcntl_dupfd_cloexec(self, 0).ok().map(|copy| copy.number())
    }
}

/// The connections of a simulation have no descriptors.
#[cfg(feature = "simulate")]
impl<T> HasDescriptor for T {
    fn number(&self) -> u64 {
        0
    }

    fn next_number(&self) -> Option<u64> {
        Some(0)
    }
}

fn is_below(number: u64, limit: u64, purpose: Purpose) -> bool {
    let kept = match purpose {
        Purpose::Connection => kept(limit),
        Purpose::Request => kept(limit) / 2,
    };
    number < limit.saturating_sub(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_descriptors_are_not_for_connections() {
        for (number, connection, request) in
            [(3, true, true), (191, true, true), (192, false, true), (224, false, false)]
        {
            assert_eq!(is_below(number, 256, Purpose::Connection), connection, "{number}");
            assert_eq!(is_below(number, 256, Purpose::Request), request, "{number}");
        }
        assert_eq!([kept(64), kept(1024), kept(1 << 20)], [32, 256, 1024]);
        assert!(!is_below(0, 16, Purpose::Connection), "with next to nothing, none is spare");
    }

    #[test]
    fn the_number_of_a_copy_says_whether_there_are_more() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(has_spare(&file, Purpose::Connection) && has_spare(&file, Purpose::Request));
    }
}
