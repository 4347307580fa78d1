//! Identity servers, which publish the addresses of users (identity service API, "Establishing
//! associations"). Only configured servers are contacted.

use http::{Method, StatusCode, header::AUTHORIZATION};
use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, OwnedUserId, UserId,
    api::client::account::ThirdPartyIdRemovalStatus, signatures::sign_json,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::warn;
use url::Url;

use logcabin_config::IdentityServer;
use logcabin_decide::threepid::{NoteBound, NoteUnbound, may_bind};
use logcabin_engine::{Engine, ProposeError};
use logcabin_outside::outbound::{Outbound, OutboundRequest, OutboundResponse};
use logcabin_record::{Origin, address as threepid, threepid::Threepid};

/// Why an identity server did not do something.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The configuration does not name it.
    #[error("This server does not trust this identity server.")]
    NotTrusted,
    /// The ids of a validation are not valid.
    #[error("`sid` and `client_secret` have 1 to 255 of 0-9a-zA-Z.=_-")]
    Ids,
    #[error("The identity server cannot be reached.")]
    Unreachable(String),
    /// It refuses.
    #[error("{message}")]
    Refused {
        /// The status for the client.
        status: StatusCode,
        /// The error code.
        errcode: String,
        message: String,
    },
    /// Its answer, with this status, could not be parsed.
    #[error("The identity server gave an answer that cannot be used.")]
    Unusable(StatusCode),
    /// The change cannot be recorded.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

impl IdentityError {
    /// The error code of the identity server.
    pub fn errcode(&self) -> Option<&str> {
        match self {
            Self::Refused { errcode, .. } => Some(errcode),
            _ => None,
        }
    }
}

/// The path prefixes of identity servers: that of the Matrix specification, and this server's own.
const PREFIXES: [&str; 2] = ["/_matrix", "/_svc"];

/// What is needed to contact identity servers.
#[derive(Clone, Copy, Debug)]
pub struct IdentityServers<'a> {
    pub engine: &'a Engine,
    pub outbound: &'a Outbound,
    pub trusted: &'a [IdentityServer],
}

/// The identity server of this name.
///
/// # Errors
/// `M_SERVER_NOT_TRUSTED` when the configuration does not name it.
pub fn trusted(app: IdentityServers<'_>, name: &str) -> Result<IdentityServer, IdentityError> {
    app.trusted.iter().find_map(|server| server.named(name)).ok_or(IdentityError::NotTrusted)
}

/// A client's credentials for a validation on an identity server.
#[derive(Debug, Deserialize)]
pub struct Credentials {
    pub client_secret: String,
    pub id_server: String,
    pub id_access_token: String,
    pub sid: String,
}

/// Makes an identity server publish a validated address as this user's, and records the server.
///
/// # Errors
/// The identity server's errors are passed on.
pub async fn bind(
    app: IdentityServers<'_>,
    origin: Origin,
    user_id: &UserId,
    credentials: Credentials,
) -> Result<(), IdentityError> {
    let Credentials { client_secret, id_server, id_access_token, sid } = credentials;
    if !threepid::is_opaque_id(&client_secret) || !threepid::is_opaque_id(&sid) {
        return Err(IdentityError::Ids);
    }
    let server = trusted(app, &id_server)?;
    may_bind(&app.engine.state().threepids.bound(user_id)).map_err(ProposeError::Refused)?;
    let body = json!({ "sid": sid, "client_secret": client_secret, "mxid": user_id });
    let answer = ask(app, &server, Method::POST, "/identity/v2/3pid/bind", |_, ask| {
        ask.json(&body).header(AUTHORIZATION, &format!("Bearer {id_access_token}"))
    })
    .await?;
    if answer.status != StatusCode::OK {
        return Err(handed_on(&answer).unwrap_or_else(|| unusable(&answer)));
    }
    #[derive(Deserialize)]
    struct Bound {
        medium: String,
        address: String,
    }
    let Bound { medium, address } = answer.json().map_err(|_| unusable(&answer))?;
    let threepid = threepid::parse(&medium, &address).map_err(|_| unusable(&answer))?;
    let id_server = server.name.to_string();
    let bound = NoteBound { user_id: user_id.to_owned(), threepid, id_server };
    app.engine.propose(origin, bound).await?.into_inner();
    Ok(())
}

/// Makes an identity server withdraw `threepid`: the named server, or those on which it was bound.
///
/// # Errors
/// When a named server is not trusted, cannot be reached, or refuses.
pub async fn unbind(
    app: IdentityServers<'_>,
    origin: &Origin,
    user_id: &UserId,
    threepid: &Threepid,
    id_server: Option<&str>,
) -> Result<ThirdPartyIdRemovalStatus, IdentityError> {
    let servers: Vec<IdentityServer> = match id_server {
        Some(name) => vec![trusted(app, name)?],
        None => {
            let bound = app.engine.state().threepids.bound(user_id);
            let on = bound.iter().filter(|(bound, _)| bound == threepid);
            // A server that is no longer trusted is not contacted.
            match on.map(|(_, name)| trusted(app, name).ok()).collect::<Option<Vec<_>>>() {
                Some(servers) if !servers.is_empty() => servers,
                _ => return Ok(ThirdPartyIdRemovalStatus::NoSupport),
            }
        }
    };
    for server in servers {
        if !unbind_from(app, origin, user_id, threepid, &server).await? {
            return Ok(ThirdPartyIdRemovalStatus::NoSupport);
        }
    }
    Ok(ThirdPartyIdRemovalStatus::Success)
}

/// Makes identity servers withdraw all addresses of this user: the named server, or those on which
/// each was bound. Used when an account is closed, so errors do not stop it. Returns the addresses
/// that remain bound, and where.
pub async fn unbind_all(
    app: IdentityServers<'_>,
    origin: &Origin,
    user_id: &UserId,
    id_server: Option<&str>,
) -> Vec<(Threepid, String)> {
    let state = app.engine.state();
    let bound = state.threepids.bound(user_id);
    let mut wanted = bound.clone();
    if let Some(name) = id_server {
        // At a named server, all addresses of the account; otherwise only the bound ones.
        let own = state.threepids.of_user(user_id).into_iter().map(|(threepid, _)| threepid);
        let all = own.chain(bound.into_iter().map(|(threepid, _)| threepid));
        wanted = all.map(|threepid| (threepid, name.to_owned())).collect();
        wanted.sort_unstable();
        wanted.dedup();
    }
    let (mut left, mut dead) = (Vec::new(), Vec::new());
    for (threepid, name) in wanted {
        let unbound = match trusted(app, &name) {
            // A server that did not answer once is not tried again.
            Ok(server) if !dead.contains(&name) => {
                unbind_from(app, origin, user_id, &threepid, &server).await
            }
            _ => Ok(false),
        };
        let gone = unbound.unwrap_or_else(|error| {
            warn!(%error, id_server = name, "an address could not be unbound");
            dead.push(name.clone());
            false
        });
        if !gone {
            left.push((threepid, name));
        }
    }
    left
}

/// Whether the server has unbound it; false if it does not support that.
async fn unbind_from(
    app: IdentityServers<'_>,
    origin: &Origin,
    user_id: &UserId,
    threepid: &Threepid,
    server: &IdentityServer,
) -> Result<bool, IdentityError> {
    let body = json!({ "mxid": user_id, "threepid": threepid });
    let mut answer = None;
    // Sydent, the usual identity server, verifies a form of its own.
    for addressee in ["destination", "destination_is"] {
        let answered = ask(app, server, Method::POST, "/identity/v2/3pid/unbind", |path, ask| {
            let signature = signature(app, addressee, server, path, &body).unwrap_or_default();
            ask.json(&body).header(AUTHORIZATION, &signature)
        })
        .await?;
        let status = answered.status;
        answer = Some(answered);
        if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            break;
        }
    }
    let Some(answer) = answer else { return Ok(false) };
    if answer.status == StatusCode::OK {
        let (user_id, threepid): (OwnedUserId, _) = (user_id.to_owned(), threepid.clone());
        let unbound = NoteUnbound { user_id, threepid, id_server: server.name.to_string() };
        app.engine.propose(origin.clone(), unbound).await?.into_inner();
        return Ok(true);
    }
    match answer.status {
        _ if errcode(&answer).is_some_and(|code| code != "M_UNRECOGNIZED") => {
            Err(handed_on(&answer).unwrap_or_else(|| unusable(&answer)))
        }
        // Without a Matrix error code, these statuses mean that the path is unknown.
        StatusCode::BAD_REQUEST
        | StatusCode::NOT_FOUND
        | StatusCode::METHOD_NOT_ALLOWED
        | StatusCode::NOT_IMPLEMENTED => Ok(false),
        _ => Err(unusable(&answer)),
    }
}

/// Sends a request to an identity server, with the first prefix that it knows. `make` completes the
/// request for the path.
pub async fn ask(
    app: IdentityServers<'_>,
    server: &IdentityServer,
    method: Method,
    path: &str,
    make: impl Fn(&str, OutboundRequest) -> OutboundRequest,
) -> Result<OutboundResponse, IdentityError> {
    let unreachable = |error: &dyn std::fmt::Display| IdentityError::Unreachable(error.to_string());
    let mut last = None;
    for prefix in PREFIXES {
        let base = server.url.as_str().trim_end_matches('/');
        let url = Url::parse(&format!("{base}{prefix}{path}"));
        let url = url.map_err(|error| unreachable(&error))?;
        let request = make(url.path(), OutboundRequest::new(method.clone(), url.clone()));
        let answer = app.outbound.send(request).await.map_err(|error| unreachable(&error))?;
        let code = errcode(&answer);
        let unknown =
            matches!(answer.status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
                && code.is_none_or(|code| code == "M_UNRECOGNIZED");
        if !unknown {
            return Ok(answer);
        }
        // If no prefix is known, the error of the first one counts.
        last = last.or(Some(answer));
    }
    last.ok_or_else(|| unreachable(&"no prefix"))
}

/// The header that authenticates a request as this server's (server-server API, "Request
/// Authentication").
fn signature(
    app: IdentityServers<'_>,
    addressee: &str,
    server: &IdentityServer,
    path: &str,
    body: &Value,
) -> Option<String> {
    let keys = &app.engine.env().server;
    let (own, name) = (keys.name.as_str(), &*server.name);
    let mut signed = CanonicalJsonObject::new();
    for (key, value) in [("method", "POST"), ("uri", path), ("origin", own), (addressee, name)] {
        signed.insert(key.to_owned(), CanonicalJsonValue::String(value.to_owned()));
    }
    signed.insert("content".to_owned(), body.clone().try_into().ok()?);
    keys.with_current(|pair| sign_json(own, pair, &mut signed)).ok()?;
    let signatures: Value = signed.remove("signatures")?.into();
    let (key, signature) = signatures.get(own)?.as_object()?.iter().next()?;
    let signature = signature.as_str()?;
    Some(format!(
        "X-Matrix origin=\"{own}\",destination=\"{name}\",key=\"{key}\",sig=\"{signature}\""
    ))
}

/// The `errcode` of an error in Matrix's form.
fn errcode(answer: &OutboundResponse) -> Option<String> {
    let body: Value = answer.json().ok()?;
    Some(body.get("errcode")?.as_str()?.to_owned())
}

/// An identity server's refusal, in the form for the client.
pub fn handed_on(answer: &OutboundResponse) -> Option<IdentityError> {
    let code = errcode(answer)?;
    let body: Value = answer.json().ok()?;
    let error = body.get("error").and_then(Value::as_str).unwrap_or("The identity server refused.");
    // A 401, or an unknown token, would make the client believe that its own session has ended.
    let status = match answer.status {
        StatusCode::UNAUTHORIZED => StatusCode::FORBIDDEN,
        status if status.is_client_error() => status,
        _ => StatusCode::BAD_GATEWAY,
    };
    let code = match &*code {
        "M_UNKNOWN_TOKEN" | "M_MISSING_TOKEN" => "M_UNAUTHORIZED".to_owned(),
        _ => code,
    };
    Some(IdentityError::Refused { status, errcode: code, message: error.to_owned() })
}

pub const fn unusable(answer: &OutboundResponse) -> IdentityError {
    IdentityError::Unusable(answer.status)
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    #[test]
    fn what_an_identity_server_refuses_with_ends_no_session_of_the_client() {
        let handed_on = |status, body: &'static str| {
            let (headers, body) = (HeaderMap::new(), body.into());
            match handed_on(&OutboundResponse { status, headers, body }) {
                Some(IdentityError::Refused { status, errcode, .. }) => {
                    Some((status.as_u16(), errcode))
                }
                _ => None,
            }
        };
        let is = |status, code: &str| Some((status, code.to_owned()));
        for code in ["M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_UNAUTHORIZED"] {
            let body = format!("{{\"errcode\":\"{code}\",\"error\":\"no\"}}").leak();
            assert_eq!(handed_on(StatusCode::UNAUTHORIZED, body), is(403, "M_UNAUTHORIZED"));
        }
        let terms = r#"{"errcode":"M_TERMS_NOT_SIGNED"}"#;
        assert_eq!(handed_on(StatusCode::FORBIDDEN, terms), is(403, "M_TERMS_NOT_SIGNED"));
        let broken = r#"{"errcode":"M_UNKNOWN"}"#;
        assert_eq!(handed_on(StatusCode::INTERNAL_SERVER_ERROR, broken), is(502, "M_UNKNOWN"));
        assert_eq!(handed_on(StatusCode::FORBIDDEN, "<html>"), None);
    }
}
