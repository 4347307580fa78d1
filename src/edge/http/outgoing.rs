//! Responses until the client has read them: how much memory they take for each caller, and whether
//! the client reads on.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes};
use dashmap::DashMap;
use parking_lot::Mutex;
use ruma::OwnedUserId;
use tokio::{
    sync::Notify,
    time::{Instant, Sleep, sleep, sleep_until},
};

use super::ApiError;
use logcabin_base::limits;

/// Who a response is for.
#[derive(Clone, Debug)]
pub(super) struct Recipient {
    pub(super) user: Option<OwnedUserId>,
    pub(super) address: IpAddr,
}

/// How many bytes of responses all callers hold in memory. Small responses do not count.
#[derive(Debug)]
pub(super) struct Outgoing {
    users: DashMap<OwnedUserId, u64>,
    addresses: DashMap<IpAddr, u64>,
    total: AtomicU64,
    of_user: u64,
    of_address: u64,
    of_all: u64,
}

impl Outgoing {
    /// Bounds what one user, and everyone at one address, may hold.
    pub(super) fn new(of_user: u64, of_address: u64) -> Self {
        Self {
            users: DashMap::new(),
            addresses: DashMap::new(),
            total: AtomicU64::new(0),
            of_user,
            of_address,
            of_all: u64::MAX,
        }
    }

    /// The same bounds, and one for all together.
    pub(super) fn bounded(&self, of_all: u64) -> Self {
        Self { of_all, ..Self::new(self.of_user, self.of_address) }
    }

    /// Refuses a recipient who has not read enough of what was answered before.
    pub(crate) fn check(&self, recipient: &Recipient) -> Result<(), ApiError> {
        // Nearly always nobody holds anything.
        if self.total.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let user = recipient.user.as_ref().and_then(|user| self.users.get(user).map(|held| *held));
        let address = self.addresses.get(&recipient.address).map(|held| *held);
        let is_full = user.is_some_and(|held| held >= self.of_user)
            || address.is_some_and(|held| held >= self.of_address);
        if is_full { Err(ApiError::limit_exceeded(Duration::from_secs(1))) } else { Ok(()) }
    }

    /// Refuses a recipient while too much is unread by all together: first those with an unread
    /// large answer, and at twice as much everybody.
    pub(super) fn check_all(&self, recipient: &Recipient) -> Result<(), ApiError> {
        let total = self.total.load(Ordering::Relaxed);
        let is_full = total >= self.of_all
            && (total >= self.of_all.saturating_mul(2)
                || self.addresses.contains_key(&recipient.address));
        if is_full { Err(ApiError::limit_exceeded(Duration::from_secs(1))) } else { Ok(()) }
    }

    /// Counts a response of `bytes`, as long as the result lives.
    pub(super) fn hold(
        self: &Arc<Self>,
        recipient: Recipient,
        bytes: usize,
    ) -> Option<Arc<CountedResponse>> {
        if bytes < limits::HELD_FROM {
            return None;
        }
        let bytes = bytes as u64;
        self.total.fetch_add(bytes, Ordering::Relaxed);
        if let Some(user) = &recipient.user {
            *self.users.entry(user.clone()).or_default() += bytes;
        }
        *self.addresses.entry(recipient.address).or_default() += bytes;
        Some(Arc::new(CountedResponse { outgoing: Arc::clone(self), recipient, bytes }))
    }

    /// As [`Outgoing::hold`], but refuses the response as [`Outgoing::check`] does: others may have
    /// been made since.
    pub(super) fn hold_if_room(
        self: &Arc<Self>,
        recipient: Recipient,
        bytes: usize,
    ) -> Result<Option<Arc<CountedResponse>>, ApiError> {
        if bytes >= limits::HELD_FROM {
            self.check(&recipient)?;
        }
        Ok(self.hold(recipient, bytes))
    }
}

/// A response that counts as long as this lives.
#[derive(Debug)]
pub(super) struct CountedResponse {
    outgoing: Arc<Outgoing>,
    recipient: Recipient,
    bytes: u64,
}

impl Drop for CountedResponse {
    fn drop(&mut self) {
        fn release<K: Eq + std::hash::Hash>(held: &DashMap<K, u64>, key: &K, bytes: u64) {
            if let Some(mut held) = held.get_mut(key) {
                *held = held.saturating_sub(bytes);
            }
            held.remove_if(key, |_, held| *held == 0);
        }
        if let Some(user) = &self.recipient.user {
            release(&self.outgoing.users, user, self.bytes);
        }
        release(&self.outgoing.addresses, &self.recipient.address, self.bytes);
        self.outgoing.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A piece of a response's body on its way to the client. hyper and the kernel's buffers aside, the
/// response is in memory as long as one of its pieces is.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) bytes: Bytes,
    pub(super) _held: Option<Arc<CountedResponse>>,
    pub(super) _stream: Option<Arc<StreamGuard>>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

/// The responses that are being written to the streams of an HTTP/2 connection.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// When the client last took a part of each.
    moved: Mutex<HashMap<u64, Instant>>,
    next: AtomicU64,
    begun: Notify,
}

impl Streams {
    /// Registers a response.
    pub(super) fn begin(self: &Arc<Self>) -> Arc<StreamGuard> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.moved.lock().insert(number, Instant::now());
        self.begun.notify_one();
        Arc::new(StreamGuard { streams: Arc::clone(self), number })
    }

    /// Waits until the client has taken nothing of a response for `limit`.
    pub(super) async fn stalled(&self, limit: Duration) {
        loop {
            let oldest = self.moved.lock().values().min().copied();
            match oldest {
                None => self.begun.notified().await,
                Some(oldest) if oldest.elapsed() >= limit => return,
                Some(oldest) => sleep_until(oldest + limit).await,
            }
        }
    }
}

/// One response of [`Streams`].
#[derive(Debug)]
pub(super) struct StreamGuard {
    streams: Arc<Streams>,
    number: u64,
}

impl StreamGuard {
    /// Notes that the client has made room for more.
    pub(super) fn moves(&self) {
        self.streams.moved.lock().insert(self.number, Instant::now());
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.streams.moved.lock().remove(&self.number);
    }
}

/// Ends a connection that takes nothing of what is written to it.
#[derive(Debug)]
pub(super) struct Stall {
    limit: Duration,
    /// Runs while the connection takes nothing.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    pub(super) const fn new(limit: Duration) -> Self {
        Self { limit, sleep: None }
    }

    /// To be called with the result of each attempt to write.
    pub(super) fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.sleep = None;
            return written;
        }
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        match sleep.as_mut().poll(cx) {
            Poll::Ready(()) => {
                let why = "the client does not read the response";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Counts by address, with a bound for each.
#[derive(Debug)]
pub(super) struct ConnectionsByAddress {
    most: usize,
    count: DashMap<IpAddr, usize>,
}

impl ConnectionsByAddress {
    /// Admits up to `most` of each address.
    pub(super) fn new(most: usize) -> Self {
        Self { most, count: DashMap::new() }
    }

    /// Counts one more for `address` as long as the result lives; `None` if that is too many.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionPermit> {
        let mut count = self.count.entry(address).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        drop(count);
        Some(ConnectionPermit { all: Arc::clone(self), address })
    }
}

/// Counts for its address until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    all: Arc<ConnectionsByAddress>,
    address: IpAddr,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let Some(mut count) = self.all.count.get_mut(&self.address) {
            *count = count.saturating_sub(1);
        }
        self.all.count.remove_if(&self.address, |_, count| *count == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn recipient(user: Option<&str>, address: IpAddr) -> Recipient {
        let user = user.map(|name| format!("@{name}:test").try_into().expect("a user id"));
        Recipient { user, address }
    }

    #[test]
    fn only_a_caller_who_does_not_read_is_refused() {
        let outgoing = Arc::new(Outgoing::new(100_000, 250_000));
        let (ann, bob) = (recipient(Some("ann"), HERE), recipient(Some("bob"), HERE));
        let hold = |recipient: &Recipient, bytes| outgoing.hold_if_room(recipient.clone(), bytes);
        let first = hold(&ann, 60_000).expect("nothing is held").expect("it counts");
        let second = hold(&ann, 60_000).expect("there is room").expect("it counts");
        assert!(hold(&ann, 60_000).is_err() && outgoing.check(&ann).is_err());
        outgoing.check(&bob).expect("another user");
        let third = hold(&bob, 140_000).expect("another user").expect("it counts");
        // All of them are at one address.
        assert!(outgoing.check(&recipient(None, HERE)).is_err());
        outgoing.check(&recipient(Some("cat"), THERE)).expect("another address");
        drop((first, third));
        outgoing.check(&ann).expect("the first was read");
        let effect = outgoing.hold(ann.clone(), 60_000).expect("it counts");
        let effect = (effect, outgoing.hold(ann.clone(), 60_000).expect("it is not refused"));
        drop((second, effect));
        assert!(outgoing.users.is_empty() && outgoing.addresses.is_empty());
        assert_eq!(outgoing.total.load(Ordering::Relaxed), 0);
        assert!(hold(&ann, limits::HELD_FROM - 1).expect("always").is_none(), "a small one counts");
    }

    #[test]
    fn all_together_hold_a_bounded_amount_and_those_who_read_come_first() {
        let outgoing = Arc::new(Outgoing::new(1 << 20, 1 << 20).bounded(100_000));
        let (here, there) = (recipient(None, HERE), recipient(None, THERE));
        let first = outgoing.hold(here.clone(), 60_000);
        outgoing.check_all(&here).expect("it is little");
        let second = outgoing.hold(here.clone(), 60_000);
        assert!(outgoing.check_all(&here).is_err());
        outgoing.check_all(&there).expect("it has read what it got");
        let third = outgoing.hold(here.clone(), 80_000);
        assert!(outgoing.check_all(&there).is_err());
        outgoing.check(&there).expect("small answers are not concerned");
        drop((first, second, third));
        outgoing.check_all(&here).expect("all was read");
    }

    #[test]
    fn an_address_has_a_limited_number_of_places_and_gets_them_back() {
        let connections = Arc::new(ConnectionsByAddress::new(2));
        let places = [HERE, HERE].map(|address| connections.admit(address));
        assert!(places.iter().all(Option::is_some) && connections.admit(HERE).is_none());
        assert!(connections.admit(THERE).is_some());
        drop(places);
        assert!(connections.admit(HERE).is_some());
        assert!(connections.count.is_empty());
    }

    #[tokio::test]
    async fn an_unread_response_stalls_its_connection_and_others_do_not() {
        let streams = Arc::new(Streams::default());
        let limit = Duration::from_millis(500);
        let mut stalled = Box::pin(streams.stalled(limit));
        let one = streams.begin();
        let other = streams.begin();
        for _ in 0..10 {
            assert!(futures_util::poll!(&mut stalled).is_pending());
            sleep(Duration::from_millis(100)).await;
            one.moves();
            other.moves();
        }
        // Nothing more is taken of one of the two.
        while futures_util::poll!(&mut stalled).is_pending() {
            one.moves();
            sleep(Duration::from_millis(10)).await;
        }
        drop((one, other));
        assert!(streams.moved.lock().is_empty());
    }
}
