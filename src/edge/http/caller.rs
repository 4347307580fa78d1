//! Who is calling, as a type: an endpoint's authentication scheme decides at compile time what its
//! handler receives.

use std::{borrow::Cow, sync::Arc};

use http::{HeaderMap, Uri, header::AUTHORIZATION};
use percent_encoding::percent_decode_str;
use ruma::{
    OwnedDeviceId, OwnedServerName, OwnedUserId,
    api::{
        auth_scheme::{
            AccessToken, AccessTokenOptional, AppserviceToken, AppserviceTokenOptional,
            NoAccessToken, NoAuthentication,
        },
        federation::authentication::ServerSignatures,
    },
};

use super::{ApiError, ErrorCode, ErrorRenderer};
use logcabin_outside::appservice::Service;
use logcabin_record::{Offset, Origin};

/// Whom an access token stands for: a client that is logged in, or an application service that acts
/// for one of its users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub(crate) user_id: OwnedUserId,
    /// The device that logged in. Empty for an application service that names none: see
    /// [`Session::device`].
    pub(crate) device_id: OwnedDeviceId,
    /// The offset of the login. It names the session across token refreshes, and with it the scope
    /// of transaction ids. For an application service without a device, that of the registration.
    pub(crate) session: Offset,
    /// The application service that acts for the user.
    pub(crate) service: Option<Arc<Service>>,
}

impl Session {
    /// The device, for requests that need one.
    ///
    /// # Errors
    /// `M_MISSING_PARAM` for an application service that names none.
    pub(crate) fn device(&self) -> Result<&OwnedDeviceId, ApiError> {
        if self.device_id.as_str().is_empty() {
            return Err(ApiError::new(
                ErrorCode::MissingParam,
                "This is done by a device: an application service names it in `device_id`.",
            ));
        }
        Ok(&self.device_id)
    }

    /// Whether its requests are exempt from rate limits.
    pub(crate) fn is_exempt(&self) -> bool {
        self.service
            .as_ref()
            .is_some_and(|service| service.is_exempt_from_rate_limits(&self.user_id))
    }
}

/// The caller of an endpoint that recognises only tokens of application services: the service, or
/// `None` for any other token.
#[derive(Clone, Debug)]
pub struct Appservice(pub(super) Option<Arc<Service>>);

impl Appservice {
    pub(crate) fn service(&self) -> Option<&Arc<Service>> {
        self.0.as_ref()
    }
}

/// Another homeserver, which has signed its request.
#[derive(Clone, Debug)]
pub struct Homeserver(pub(crate) OwnedServerName);

/// Which accounts may call an endpoint, besides those without any restriction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenTo {
    /// Guests (client-server API, "Guest Access").
    pub(crate) guests: bool,
    /// Suspended users (client-server API, "Account suspension").
    pub(crate) suspended: bool,
    /// Users whose account is locked (client-server API, "Account locking").
    pub(crate) locked: bool,
    /// Only those of them who administer the server.
    pub(crate) administrators_only: bool,
    /// Logins with the scope of the feed of changes, too, not only those with the scope of
    /// administration.
    pub(crate) scope_of_changes: bool,
}

impl OpenTo {
    /// Accounts without any restriction.
    pub(crate) const UNRESTRICTED: Self = Self {
        guests: false,
        suspended: false,
        locked: false,
        administrators_only: false,
        scope_of_changes: false,
    };

    pub(crate) const ADMINISTRATORS: Self =
        Self { administrators_only: true, ..Self::UNRESTRICTED };

    /// Administrators, and the logins to which they gave the scope of the feed of changes.
    pub(crate) const FOLLOWERS_OF_CHANGES: Self =
        Self { scope_of_changes: true, ..Self::ADMINISTRATORS };
}

/// The credentials that an endpoint requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A token is ignored.
    None,
    /// A valid token is required.
    Required,
    /// A token may be missing, but not invalid.
    Optional,
    /// Only application services may call.
    Appservice,
    /// Tokens of application services are recognised; all others are ignored.
    AppserviceOptional,
    /// The request is signed by another homeserver.
    Server,
    /// A browser login is required, shown by a cookie. A token is ignored.
    Login,
    /// A valid token is required to read as of an earlier moment (`at` in the query); otherwise a
    /// token is ignored.
    AsOf,
}

/// The scheme of endpoints that anybody may read as of now, but only administrators as of earlier
/// moments.
pub struct AsOf;

/// The authentication scheme of an endpoint: says what to check and what its handler receives.
pub trait Gate {
    /// What the handler learns of the caller.
    type Caller: Caller;
    /// What is checked before the handler runs.
    const ACCESS: Access;
    /// The page that shows a refusal, unless the endpoint has another; `None` for JSON.
    const REFUSAL: Option<ErrorRenderer> = None;
    /// The caller; `None` if the check let through a request that this type does not allow.
    fn caller(who: CallerIdentity) -> Option<Self::Caller>;
}

/// Who sent a request, as far as the endpoint checks it.
#[derive(Clone, Debug, Default)]
pub struct CallerIdentity {
    pub(crate) session: Option<Session>,
    pub(crate) service: Option<Appservice>,
    pub(crate) server: Option<OwnedServerName>,
    /// The session of a browser login.
    pub(crate) visitor: Option<Session>,
}

/// What a handler learns of its caller.
pub trait Caller: Send + 'static {
    fn session(&self) -> Option<&Session>;

    fn server(&self) -> Option<&OwnedServerName> {
        None
    }

    /// The origin of the records that this request causes.
    fn origin(&self, request: &str) -> Origin {
        self.session().map_or_else(
            || Origin { request: request.into(), ..Origin::default() },
            |session| Origin {
                user: session.user_id.as_str().into(),
                device: session.device_id.as_str().into(),
                request: request.into(),
            },
        )
    }
}

impl Caller for () {
    fn session(&self) -> Option<&Session> {
        None
    }
}

impl Caller for Session {
    fn session(&self) -> Option<&Session> {
        Some(self)
    }
}

impl Caller for Homeserver {
    fn session(&self) -> Option<&Session> {
        None
    }

    fn server(&self) -> Option<&OwnedServerName> {
        Some(&self.0)
    }
}

impl Caller for Option<Session> {
    fn session(&self) -> Option<&Session> {
        self.as_ref()
    }
}

impl Caller for Appservice {
    fn session(&self) -> Option<&Session> {
        None
    }
}

impl Caller for Option<Appservice> {
    fn session(&self) -> Option<&Session> {
        None
    }
}

macro_rules! gates {
    ($($scheme:ty => $caller:ty, $access:ident, $make:expr;)+) => {$(
        impl Gate for $scheme {
            type Caller = $caller;
            const ACCESS: Access = Access::$access;
            fn caller(who: CallerIdentity) -> Option<$caller> {
                let make: fn(CallerIdentity) -> Option<$caller> = $make;
                make(who)
            }
        }
    )+};
}

gates! {
    NoAuthentication => (), None, |_| Some(());
    NoAccessToken => (), None, |_| Some(());
    AccessToken => Session, Required, |who| who.session;
    AccessTokenOptional => Option<Session>, Optional, |who| Some(who.session);
    AppserviceToken => Appservice, Appservice, |who| who.service;
    AsOf => Option<Session>, AsOf, |who| Some(who.session);
    ServerSignatures => Homeserver, Server, |who| who.server.map(Homeserver);
    // Clients send the token of an older session along with a login: it must not get in the way.
    AppserviceTokenOptional => Option<Appservice>, AppserviceOptional, |who| Some(who.service);
}

/// The access token of a request: from the `Authorization` header, or else from the query.
pub fn access_token<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<Cow<'a, str>> {
    bearer(headers).map(Cow::Borrowed).or_else(|| query_token(uri)).filter(|t| !t.is_empty())
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn query_token(uri: &Uri) -> Option<Cow<'_, str>> {
    let raw = uri.query()?.split('&').find_map(|pair| pair.strip_prefix("access_token="))?;
    percent_decode_str(raw).decode_utf8().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(header: Option<&str>, uri: &'static str) -> Option<String> {
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(AUTHORIZATION, header.parse().unwrap());
        }
        access_token(&headers, &Uri::from_static(uri)).map(Cow::into_owned)
    }

    #[test]
    fn tokens_come_from_header_or_query() {
        assert_eq!(token(Some("Bearer abc"), "/").as_deref(), Some("abc"));
        assert_eq!(token(Some("bEARER  abc"), "/?access_token=x").as_deref(), Some("abc"));
        assert_eq!(token(None, "/?a=b&access_token=x%2By&c").as_deref(), Some("x+y"));
        assert_eq!(token(Some("Basic abc"), "/"), None);
        assert_eq!(token(Some("Bearer"), "/"), None);
        assert_eq!(token(Some("Bearer "), "/?access_token="), None);
        assert_eq!(token(None, "/?my_access_token=x"), None);
    }
}
