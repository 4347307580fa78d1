//! The type of an endpoint's requests, which says everything about the endpoint except who may call
//! it and how often: one of ruma's types, a wrapper of one, or, where ruma has none, a type made by
//! [`endpoint!`].

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Uri};
use ruma::api::{IncomingRequest, OutgoingResponse, path_builder::PathBuilder as _};
use serde::de::DeserializeOwned;

use super::{
    ApiError, AsOf, ErrorRenderer, Gate, Incoming, Reply,
    decode::{self, Checks},
};

/// How an endpoint's body is read and checked before the request is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Ignored.
    None,
    /// One JSON object, of at most the configured size.
    Json,
    /// The same, or nothing, which counts as an object without members.
    JsonIfAny,
    /// Any bytes, of at most the configured size.
    Bytes,
    /// Any bytes, of at most this many.
    Short(usize),
    /// A file of at most the configured size, which the handler reads as it arrives.
    File,
}

impl Body {
    pub(super) const fn is_json(self) -> bool {
        matches!(self, Self::Json | Self::JsonIfAny)
    }
}

/// The requests of one endpoint. A handler of the endpoint takes this type, and [`Table::on`] reads
/// from it where and how the endpoint is served.
///
/// [`Table::on`]: super::Table::on
pub trait Endpoint: Send + Sized + 'static {
    /// The credentials that are required, and what the handler learns of the caller.
    type Gate: Gate;
    const METHOD: Method;
    /// Whether the Matrix specification marks it as rate-limited.
    const MARKED: bool = false;
    /// The page that shows a refusal, where that is not shown as JSON.
    const REFUSAL: Option<ErrorRenderer> = <Self::Gate as Gate>::REFUSAL;
    /// The paths, the newest last: that is the one by which the endpoint is known.
    fn paths() -> Vec<&'static str>;
    fn body() -> Body {
        if Self::METHOD == Method::GET { Body::None } else { Body::Json }
    }
    /// Decodes a request.
    fn read(received: Received<'_>) -> Result<Self, ApiError>;
}

/// What was received, for [`Endpoint::read`] to take its parts from.
pub struct Received<'a> {
    pub(super) method: Method,
    pub(crate) uri: &'a Uri,
    pub(super) headers: HeaderMap,
    /// As `body` says: checked to be one JSON object, or any bytes.
    pub(crate) body: &'a Bytes,
    /// The remaining parameters of the path, decoded.
    pub(super) args: &'a [Cow<'a, str>],
    /// The body that is read as it arrives, of an endpoint with [`Body::File`].
    pub(super) incoming: Option<Incoming>,
    pub(super) checks: Checks,
}

/// The parts of a request, by the names that [`endpoint!`] knows them by. Each takes the name of
/// the field that it is for.
impl Received<'_> {
    /// The next parameter of the path.
    pub fn path<T: for<'t> TryFrom<&'t str>>(&mut self, name: &str) -> Result<T, ApiError> {
        let arg = self.next_arg().ok_or_else(ApiError::no_such_endpoint)?;
        T::try_from(arg).map_err(|_| not_of_its_kind(name))
    }

    /// The next parameter of the path, which not all paths of the endpoint have.
    pub(crate) fn path_if_any<T: for<'t> TryFrom<&'t str>>(
        &mut self,
        name: &str,
    ) -> Result<Option<T>, ApiError> {
        let arg = self.next_arg().map(|arg| T::try_from(arg).map_err(|_| not_of_its_kind(name)));
        arg.transpose()
    }

    /// The parameter of the query with the field's name; none if it is missing or empty.
    pub(crate) fn parameter(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        decode::query_parameter(self.uri, name)
    }

    /// The whole query.
    pub fn query<T: DeserializeOwned>(&mut self, _: &str) -> Result<T, ApiError> {
        decode::query(self.uri)
    }

    /// The body, an object in which a missing field is of the wrong shape: `M_BAD_JSON`.
    pub(crate) fn json<T: DeserializeOwned>(&mut self, _: &str) -> Result<T, ApiError> {
        decode::body(self.body)
    }

    /// The body, an object in which a missing field is a missing parameter: `M_MISSING_PARAM`.
    pub(crate) fn parameters<T: DeserializeOwned>(&mut self, _: &str) -> Result<T, ApiError> {
        decode::parameters(self.body)
    }

    pub(crate) fn headers(&mut self, _: &str) -> Result<HeaderMap, ApiError> {
        Ok(std::mem::take(&mut self.headers))
    }

    fn next_arg(&mut self) -> Option<&str> {
        let (arg, rest) = self.args.split_first()?;
        self.args = rest;
        Some(arg)
    }
}

fn not_of_its_kind(name: &str) -> ApiError {
    ApiError::invalid_param(format!("The path has no valid `{name}`."))
}

impl<R> Endpoint for R
where
    R: IncomingRequest + Send + 'static,
    R::Authentication: Gate,
{
    type Gate = R::Authentication;
    const METHOD: Method = R::METHOD;
    const MARKED: bool = R::RATE_LIMITED;

    fn paths() -> Vec<&'static str> {
        // The newest path comes last.
        R::PATH_BUILDER.all_paths().collect()
    }

    fn read(received: Received<'_>) -> Result<Self, ApiError> {
        let Received { method, uri, headers, body, args, checks, .. } = received;
        let mut http = Request::new(&body[..]);
        *http.method_mut() = method;
        *http.uri_mut() = uri.clone();
        *http.headers_mut() = headers;
        decode::request::<R>(http, args, checks)
    }
}

/// A request that anybody may make, but only administrators as of an earlier moment: with `at` in
/// the query, the handler learns who asks.
pub struct AsOfRequest<R>(pub(crate) R);

impl<R> Endpoint for AsOfRequest<R>
where
    R: IncomingRequest + Send + 'static,
    R::Authentication: Gate,
{
    type Gate = AsOf;
    const METHOD: Method = R::METHOD;
    const MARKED: bool = R::RATE_LIMITED;

    fn paths() -> Vec<&'static str> {
        <R as Endpoint>::paths()
    }

    fn read(received: Received<'_>) -> Result<Self, ApiError> {
        R::read(received).map(Self)
    }
}

/// A request whose body is a file, which the handler reads as it arrives.
pub struct Upload<R> {
    /// The request without its body: its own field for the file is empty.
    pub(crate) request: R,
    pub(crate) file: Incoming,
}

impl<R> Endpoint for Upload<R>
where
    R: IncomingRequest + Send + 'static,
    R::Authentication: Gate,
{
    type Gate = R::Authentication;
    const METHOD: Method = R::METHOD;
    const MARKED: bool = R::RATE_LIMITED;

    fn paths() -> Vec<&'static str> {
        <R as Endpoint>::paths()
    }

    fn body() -> Body {
        Body::File
    }

    fn read(mut received: Received<'_>) -> Result<Self, ApiError> {
        let file = received.incoming.take();
        let file = file.ok_or_else(|| ApiError::internal("a body was lost"))?;
        Ok(Self { request: R::read(received)?, file })
    }
}

/// A request for a file, with the headers that say which part of it is wanted, and which version
/// the client has.
pub struct Download<R> {
    pub(crate) request: R,
    pub(crate) headers: HeaderMap,
}

impl<R> Endpoint for Download<R>
where
    R: IncomingRequest + Send + 'static,
    R::Authentication: Gate,
{
    type Gate = R::Authentication;
    const METHOD: Method = R::METHOD;
    const MARKED: bool = R::RATE_LIMITED;

    fn paths() -> Vec<&'static str> {
        <R as Endpoint>::paths()
    }

    fn body() -> Body {
        Body::None
    }

    fn read(received: Received<'_>) -> Result<Self, ApiError> {
        let headers = received.headers.clone();
        Ok(Self { request: R::read(received)?, headers })
    }
}

/// A request with members of the body that its type lacks: those of proposals.
pub struct Extended<R, T> {
    pub(crate) request: R,
    pub(crate) more: T,
}

impl<R, T> Endpoint for Extended<R, T>
where
    R: IncomingRequest + Send + 'static,
    R::Authentication: Gate,
    T: DeserializeOwned + Send + 'static,
{
    type Gate = R::Authentication;
    const METHOD: Method = R::METHOD;
    const MARKED: bool = R::RATE_LIMITED;

    fn paths() -> Vec<&'static str> {
        <R as Endpoint>::paths()
    }

    fn read(received: Received<'_>) -> Result<Self, ApiError> {
        let more = decode::body(received.body)?;
        Ok(Self { request: R::read(received)?, more })
    }
}

/// Makes the type of an endpoint's requests: its method and paths (the newest last), what is known
/// of the caller, and where each field is read from, by the names of [`Received`]'s methods.
///
/// ```ignore
/// endpoint! {
///     /// One network.
///     pub(super) struct Protocol = GET "/_matrix/client/v3/thirdparty/protocol/{protocol}";
///     for AccessToken;
///     { protocol: String = path }
/// }
/// ```
///
/// Before the fields, `body Body::Bytes;` says how the body is read if it is not JSON, and
/// `refusal page::refusal;` by which page a refusal is shown.
#[macro_export]
macro_rules! endpoint {
    (
        $(#[$meta:meta])*
        $vis:vis struct $Name:ident = $method:ident $($path:literal)+;
        for $gate:ty;
        $(body $body:expr;)?
        $(refusal $refusal:expr;)?
        { $($(#[$field_meta:meta])* $field:ident: $Type:ty = $part:ident),* $(,)? }
    ) => {
        $(#[$meta])*
        $vis struct $Name {
            $($(#[$field_meta])* $field: $Type,)*
        }

        impl $crate::http::Endpoint for $Name {
            type Gate = $gate;
            const METHOD: ::http::Method = ::http::Method::$method;
            $(const REFUSAL: Option<$crate::http::ErrorRenderer> = Some($refusal);)?

            fn paths() -> Vec<&'static str> {
                vec![$($path),+]
            }

            $(fn body() -> $crate::http::Body {
                $body
            })?

            #[allow(unused_mut, unused_variables, reason = "some requests have no parts")]
            fn read(
                mut received: $crate::http::Received<'_>,
            ) -> Result<Self, $crate::http::ApiError> {
                Ok(Self { $($field: received.$part(stringify!($field))?),* })
            }
        }
    };
}
pub use endpoint;

/// JSON text that a handler has assembled itself.
pub struct Json(pub(crate) Bytes);

impl<T: Into<Bytes>> From<T> for Json {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

/// What a handler of the requests `R` may answer with: ruma's response to `R`, JSON text, or a
/// reply.
pub trait Answer<R>: Send {
    fn reply(self) -> Result<Reply, ApiError>;
}

impl<R, T> Answer<R> for T
where
    R: IncomingRequest<OutgoingResponse = T>,
    T: OutgoingResponse + Send,
{
    fn reply(self) -> Result<Reply, ApiError> {
        Reply::typed(self)
    }
}

impl<R: Endpoint> Answer<R> for Json {
    fn reply(self) -> Result<Reply, ApiError> {
        Ok(Reply::json(self.0))
    }
}

impl<R: Endpoint> Answer<R> for Reply {
    fn reply(self) -> Result<Reply, ApiError> {
        Ok(self)
    }
}
