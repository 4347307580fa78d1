//! Rate limits of requests, checked before a body is read: a token bucket of each caller for the
//! endpoint's [`Class`], and one of each device, user, and address without a login for all of them.
//!
//! The size of a write counts, too. It is taken from a separate bucket of the caller once the body
//! has been read, because limits on the number of requests do not bound how fast the log grows.

use std::{collections::HashMap, net::IpAddr, num::NonZeroU32, time::Duration};

use ruma::{OwnedServerName, OwnedUserId, ServerName};
use serde::{Deserialize, Serialize};

use super::{ApiError, Class, ErrorCode, LoginRefusal, Session, refused_login};
use logcabin_base::{
    metrics::metrics,
    rate::{Limiter, Rate, network_prefix},
};
use logcabin_config::{OwnRate, RateLimits, UserRate};
use logcabin_record::Offset;

/// The rate limiters.
pub(super) struct Throttle(Option<Limiters>);

struct Limiters {
    /// Users with a limit of their own, or (`None`) without any.
    own: HashMap<OwnedUserId, Option<Limiter<()>>>,
    classes: HashMap<Class, Limiter<RateKey>>,
    /// By session, which each device has: looking one up copies no names.
    devices: Limiter<Offset>,
    /// Users and addresses have rates of their own.
    users: Limiter<RateKey>,
    addresses: Limiter<RateKey>,
    /// The size of writes, in units of [`WRITTEN_UNIT`].
    written: Limiter<RateKey>,
    /// The same over days.
    daily: Limiter<RateKey>,
}

/// The unit in which the size of writes is counted, in bytes. Even the smallest write counts as one
/// unit, since a record takes a few hundred bytes besides its content.
const WRITTEN_UNIT: usize = 1024;

/// Whose requests are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RateKey {
    User(OwnedUserId),
    Address(IpAddr),
    Server(OwnedServerName),
}

/// What a request took from the limits of its caller. Each node of a cluster tells the others, so
/// that a caller has one budget on all of them.
#[derive(Serialize, Deserialize)]
pub(super) struct Spent {
    class: Class,
    user: Option<(OwnedUserId, Offset)>,
    client: IpAddr,
    /// The bytes of the body, where those are limited.
    bytes: Option<usize>,
    /// Whether it is a request to a listener for other homeservers, which has limits of its own.
    #[serde(default)]
    for_servers: bool,
    /// The homeserver that has signed it.
    #[serde(default)]
    server: Option<OwnedServerName>,
}

impl Spent {
    pub(super) fn new(class: Class, session: Option<&Session>, client: IpAddr) -> Self {
        let user = session.map(|session| (session.user_id.clone(), session.session));
        Self { class, user, client, bytes: None, for_servers: false, server: None }
    }

    /// What a request that `server` has signed took.
    pub(super) fn of_server(server: &ServerName, client: IpAddr) -> Self {
        Self { server: Some(server.to_owned()), ..Self::new(Class::Federation, None, client) }
    }

    pub(super) const fn on(mut self, for_servers: bool) -> Self {
        self.for_servers = for_servers;
        self
    }

    pub(super) const fn is_for_servers(&self) -> bool {
        self.for_servers
    }

    pub(super) const fn written(mut self, bytes: usize) -> Self {
        self.bytes = Some(bytes);
        self
    }
}

impl Throttle {
    /// Takes from the limits what a request to another node took.
    pub(super) fn take_spent(&self, spent: Spent) {
        let Spent { class, user, client, bytes, for_servers: _, server } = spent;
        if let Some(server) = server {
            let _ = self.check_server(&server);
            return;
        }
        let session = user.map(|(user_id, session)| Session {
            user_id,
            device_id: "".into(),
            session,
            service: None,
        });
        // What exceeds the limits here was allowed there.
        match (bytes, &self.0) {
            (Some(bytes), _) => {
                let _ = self.check_written(class, session.as_ref(), client, bytes);
            }
            (None, Some(limiters)) => {
                let _ = limiters.take(class, session.as_ref(), client);
            }
            (None, None) => {}
        }
    }

    /// The limiters that the configuration asks for.
    pub(super) fn new(config: &RateLimits) -> Self {
        let own = |UserRate { user_id, rate }: &UserRate| {
            let limiter = match rate {
                OwnRate::Unlimited => None,
                OwnRate::Rate(rate) => Some(Limiter::new(*rate)),
            };
            (user_id.clone(), limiter)
        };
        let class = |(class, rate): (Class, Rate)| (class, Limiter::new(rate));
        Self(config.enabled.then(|| Limiters {
            own: config.users.iter().map(own).collect(),
            classes: Class::rates(config).into_iter().map(class).collect(),
            devices: Limiter::new(config.device),
            users: Limiter::new(config.user),
            addresses: Limiter::new(config.address),
            written: Limiter::new(config.written_kilobytes),
            daily: Limiter::new(config.daily_kilobytes),
        }))
    }

    /// Counts one request to an endpoint of `class`; refuses it when the caller has made too many.
    pub(crate) fn check(
        &self,
        class: Class,
        session: Option<&Session>,
        client: IpAddr,
    ) -> Result<(), ApiError> {
        let Some(limiters) = &self.0 else { return Ok(()) };
        limiters.take(class, session, client).map_err(|wait| {
            refused(class);
            if class == Class::Login {
                let user = session.map(|session| session.user_id.as_str());
                refused_login(client, user, LoginRefusal::Rate);
            }
            ApiError::limit_exceeded(wait)
        })
    }

    /// Counts one request of another homeserver; refuses it when that has made too many.
    pub(super) fn check_server(&self, server: &ServerName) -> Result<(), ApiError> {
        let Some(limiters) = &self.0 else { return Ok(()) };
        let class = Class::Federation;
        limiters.take_of_class(class, &RateKey::Server(server.to_owned())).map_err(|wait| {
            refused(class);
            ApiError::limit_exceeded(wait)
        })
    }

    /// Counts the size of a write to an endpoint of `class`, and refuses it if the caller has
    /// written too much.
    pub(super) fn check_written(
        &self,
        class: Class,
        session: Option<&Session>,
        client: IpAddr,
        body_bytes: usize,
    ) -> Result<(), ApiError> {
        let Some(limiters) = &self.0 else { return Ok(()) };
        if !class.writes_bodies() {
            return Ok(());
        }
        limiters.take_written(session, client, body_bytes).map_err(|TooMuch { wait, message }| {
            refused(class);
            ApiError::new(ErrorCode::LimitExceeded { retry_after: Some(wait) }, message)
        })
    }
}

/// Counts a refusal.
fn refused(class: Class) {
    metrics().http_rate_limited.with_label_values(&[class.name()]).inc();
}

/// A write that exceeds what the caller may write.
struct TooMuch {
    /// How long to wait.
    wait: Duration,
    message: &'static str,
}

impl Limiters {
    fn take(
        &self,
        class: Class,
        session: Option<&Session>,
        client: IpAddr,
    ) -> Result<(), Duration> {
        let Some(session) = session else {
            let who = RateKey::Address(network_prefix(client));
            self.addresses.take(&who)?;
            return self.take_of_class(class, &who);
        };
        if let Some(own) = self.own.get(&session.user_id) {
            return own.as_ref().map_or(Ok(()), |limiter| limiter.take(&()));
        }
        // The device first, so a runaway device does not use up the user's limit.
        self.devices.take(&session.session)?;
        let who = RateKey::User(session.user_id.clone());
        self.users.take(&who)?;
        self.take_of_class(class, &who)
    }

    fn take_written(
        &self,
        session: Option<&Session>,
        client: IpAddr,
        body_bytes: usize,
    ) -> Result<(), TooMuch> {
        let who = match session {
            // A limit of their own replaces all others.
            Some(session) if self.own.contains_key(&session.user_id) => return Ok(()),
            Some(session) => RateKey::User(session.user_id.clone()),
            None => RateKey::Address(network_prefix(client)),
        };
        let units = u32::try_from(body_bytes.div_ceil(WRITTEN_UNIT)).unwrap_or(u32::MAX);
        let units = NonZeroU32::new(units).unwrap_or(NonZeroU32::MIN);
        let too_much = |message| move |wait| TooMuch { wait, message };
        self.daily
            .take_many(&who, units)
            .map_err(too_much("You have written as much data as one account may in a day."))?;
        self.written
            .take_many(&who, units)
            .map_err(too_much("You have written too much data in a short time."))
    }

    fn take_of_class(&self, class: Class, who: &RateKey) -> Result<(), Duration> {
        self.classes.get(&class).map_or(Ok(()), |limiter| limiter.take(who))
    }
}

#[cfg(test)]
mod tests {
    use ruma::user_id;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn session(user_id: &ruma::UserId, device_id: &str) -> Session {
        let names = [user_id.localpart(), device_id].concat();
        Session {
            user_id: user_id.to_owned(),
            device_id: device_id.into(),
            session: Offset::new(
                names.bytes().fold(0, |number, byte| number << 8 | u64::from(byte)),
            ),
            service: None,
        }
    }

    /// How many requests of `session` are let through, of 100.
    fn let_through(throttle: &Throttle, class: Class, session: Option<&Session>) -> usize {
        (0..100).filter(|_| throttle.check(class, session, HERE).is_ok()).count()
    }

    fn hourly(burst: u32) -> Rate {
        format!("1/h burst {burst}").parse().unwrap()
    }

    #[test]
    fn device_user_address_and_class_each_have_their_limit() {
        let throttle = Throttle::new(&RateLimits {
            address: hourly(2),
            device: hourly(3),
            user: hourly(5),
            joins: hourly(1),
            ..RateLimits::default()
        });
        let (ann, bob) = (user_id!("@ann:x"), user_id!("@bob:x"));
        assert_eq!(let_through(&throttle, Class::Joins, Some(&session(ann, "A"))), 1);
        // Refused requests count for the device, too: it is a runaway.
        assert_eq!(let_through(&throttle, Class::Other, Some(&session(ann, "A"))), 0);
        assert_eq!(let_through(&throttle, Class::Other, Some(&session(ann, "B"))), 2);
        assert_eq!(let_through(&throttle, Class::Other, Some(&session(bob, "A"))), 3);
        assert_eq!(let_through(&throttle, Class::Login, None), 2);
    }

    #[test]
    fn a_user_may_have_a_limit_of_their_own_or_none() {
        let throttle = Throttle::new(&RateLimits {
            user: hourly(5),
            users: vec!["@bot:x off".parse().unwrap(), "@ann:x 1/h burst 7".parse().unwrap()]
                .into(),
            messages: hourly(1),
            ..RateLimits::default()
        });
        let of = |user_id| let_through(&throttle, Class::Messages, Some(&session(user_id, "A")));
        assert_eq!(of(user_id!("@bot:x")), 100);
        assert_eq!(of(user_id!("@ann:x")), 7);
        assert_eq!(of(user_id!("@bob:x")), 1);
    }

    #[test]
    fn writes_are_limited_by_size() {
        let throttle = Throttle::new(&RateLimits {
            written_kilobytes: hourly(100),
            users: vec!["@bot:x 1/h burst 7".parse().unwrap()].into(),
            ..RateLimits::default()
        });
        // How many of 1000 writes of this size are let through.
        let written = |class, user_id, bytes| {
            let session = session(user_id, "A");
            let write =
                |_: &u32| throttle.check_written(class, Some(&session), HERE, bytes).is_ok();
            (0..1000).filter(write).count()
        };
        assert_eq!(written(Class::Settings, user_id!("@ann:x"), 20 * 1024), 5);
        // Sizes are rounded up, and an empty body counts as one unit.
        assert_eq!(written(Class::Settings, user_id!("@bob:x"), 0), 100);
        assert_eq!(written(Class::Messages, user_id!("@cat:x"), 1025), 50);
        // All classes share one budget.
        assert_eq!(written(Class::Settings, user_id!("@cat:x"), 2), 0);
        // A write larger than the whole burst passes while the bucket is full.
        assert_eq!(written(Class::KeyBackups, user_id!("@dan:x"), 1024 * 1024), 1);
        assert_eq!(written(Class::Search, user_id!("@ann:x"), 1024), 1000);
        assert_eq!(written(Class::Settings, user_id!("@bot:x"), 1024 * 1024), 1000);
        let anonymous = |_: &u32| throttle.check_written(Class::Login, None, HERE, 2048).is_ok();
        assert_eq!((0..1000).filter(anonymous).count(), 50);
    }

    #[test]
    fn a_day_has_a_limit_of_its_own() {
        let throttle = Throttle::new(&RateLimits {
            written_kilobytes: Rate::per_second(1_000_000, 1_000_000),
            daily_kilobytes: hourly(100),
            ..RateLimits::default()
        });
        let ann = session(user_id!("@ann:x"), "A");
        let write = || throttle.check_written(Class::Messages, Some(&ann), HERE, 60 * 1024);
        write().expect("less than the limit");
        let refused = write().expect_err("more than the limit");
        assert!(format!("{refused:?}").contains("in a day"), "{refused:?}");
    }

    #[test]
    fn nothing_is_limited_when_limits_are_off() {
        let config = RateLimits { enabled: false, address: hourly(1), ..RateLimits::default() };
        assert_eq!(let_through(&Throttle::new(&config), Class::Login, None), 100);
    }
}
