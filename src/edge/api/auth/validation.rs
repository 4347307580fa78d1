//! Validation of email addresses and phone numbers: the `requestToken` endpoints, and the endpoint
//! to which the token is returned.
//!
//! The token comes back to one address in one of two ways. An app posts it, as to an identity
//! server (identity service API, `POST /validate/email/submitToken`). A person opens the link in a
//! mail: that shows a page with a button, and only the button confirms, so that a program that
//! scans mail does not.

use std::{net::IpAddr, sync::Arc, time::Instant};

use http::{HeaderValue, StatusCode, header};
use maud::{Markup, html};
use ruma::{
    OwnedClientSecret, OwnedSessionId, ServerName, UInt,
    api::{
        auth_scheme::NoAccessToken,
        client::account::{
            request_3pid_management_token_via_email::v3 as add_email,
            request_3pid_management_token_via_msisdn::v3 as add_msisdn,
            request_password_change_token_via_email::v3 as password_email,
            request_password_change_token_via_msisdn::v3 as password_msisdn,
            request_registration_token_via_email::v3 as register_email,
            request_registration_token_via_msisdn::v3 as register_msisdn,
        },
    },
};
use serde::Deserialize;
use tracing::warn;
use url::Url;

use crate::{
    api::{
        browser::page::{AnyBrowser, Page, refusal},
        server::Server,
        server::node_message::NodeMessage,
    },
    http::{ApiError, Body, Cx, ErrorCode, Reply, endpoint, read_query},
};
use logcabin_base::{
    clock::{random_bytes, random_letters, random_token},
    glob::Glob,
    limits, traces,
};
use logcabin_config as config;
use logcabin_decide::threepid::{
    CompleteValidation, NoteSent, RequestValidation, Requested, Validated,
};
use logcabin_engine::Engine;
use logcabin_outside::mail::{Proof, SendError, Topic};
use logcabin_record::{
    Origin,
    address::{self as threepid, Invalid, is_allowed, is_opaque_id},
    command::TokenHash,
    threepid::{Medium, Purpose, Threepid},
};
use logcabin_state::validations::token_hash;

/// The path to which tokens are returned.
const SUBMIT: &str = "/_matrix/client/unstable/logcabin/validate";

endpoint! {
    /// The page of the link in a mail.
    pub(super) struct ValidationPage = GET "/_matrix/client/unstable/logcabin/validate";
    for AnyBrowser;
    {}
}

endpoint! {
    /// A token: from the page's form, or as JSON from an app.
    pub(super) struct SubmitToken = POST "/_matrix/client/unstable/logcabin/validate";
    for NoAccessToken;
    body Body::Short(limits::ANONYMOUS_BODY_BYTES);
    {}
}

impl From<Invalid> for ApiError {
    fn from(invalid: Invalid) -> Self {
        Self::invalid_param(invalid.to_string())
    }
}

/// A client's request.
struct TokenRequest {
    client: IpAddr,
    purpose: Purpose,
    threepid: Threepid,
    client_secret: OwnedClientSecret,
    send_attempt: UInt,
    next_link: Option<String>,
}

macro_rules! request_token {
    ($($name:ident: $api:ident, $purpose:ident;)+; $($phone:ident: $phone_api:ident, $phone_purpose:ident;)+) => {
        $(pub(super) async fn $name(
            cx: Cx<Server, ()>,
            request: $api::Request,
        ) -> Result<$api::Response, ApiError> {
            let threepid = threepid::email(&request.email);
            let $api::Request { client_secret, send_attempt, next_link, .. } = request;
            let purpose = Purpose::$purpose;
            check_offered(&cx.app, purpose, Medium::Email)?;
            let threepid = threepid?;
            let client = cx.client;
            let asked = TokenRequest { client, purpose, threepid, client_secret, send_attempt, next_link };
            Ok($api::Response::new(request_validation(&cx.app, cx.origin(), asked).await?))
        })+
        $(pub(super) async fn $phone(
            cx: Cx<Server, ()>,
            request: $phone_api::Request,
        ) -> Result<$phone_api::Response, ApiError> {
            let threepid = threepid::phone(&request.country, &request.phone_number);
            let $phone_api::Request { client_secret, send_attempt, next_link, .. } = request;
            let purpose = Purpose::$phone_purpose;
            check_offered(&cx.app, purpose, Medium::Msisdn)?;
            let threepid = threepid?;
            let client = cx.client;
            let asked = TokenRequest { client, purpose, threepid, client_secret, send_attempt, next_link };
            let mut response = $phone_api::Response::new(request_validation(&cx.app, cx.origin(), asked).await?);
            // A code is typed into the app, which submits it here.
            response.submit_url = Some(submit_url(&cx.app.config.server));
            Ok(response)
        })+
    };
}

request_token! {
    by_email_to_register: register_email, Register;
    by_email_for_password: password_email, Account;
    by_email_to_add: add_email, Add;
    ;
    by_msisdn_to_register: register_msisdn, Register;
    by_msisdn_for_password: password_msisdn, Account;
    by_msisdn_to_add: add_msisdn, Add;
}

/// Refuses a validation that is not configured.
fn check_offered(app: &Server, purpose: Purpose, medium: Medium) -> Result<(), ApiError> {
    if !app.outside.messages.reach(medium) {
        let what = match medium {
            Medium::Email => "This server sends no e-mail.",
            Medium::Msisdn => "This server sends no text messages.",
        };
        return Err(ApiError::new(ErrorCode::ThreepidMediumNotSupported, what));
    }
    match purpose {
        Purpose::Register if !app.is_registration_open() => {
            Err(ApiError::forbidden("Registration is closed on this server."))
        }
        Purpose::Add if !app.config.accounts.third_party_ids => {
            Err(ApiError::forbidden("Addresses of accounts cannot be changed on this server."))
        }
        Purpose::Add | Purpose::Register | Purpose::Account => Ok(()),
    }
}

async fn request_validation(
    app: &Arc<Server>,
    origin: Origin,
    asked: TokenRequest,
) -> Result<OwnedSessionId, ApiError> {
    let app = Arc::clone(app);
    if asked.purpose != Purpose::Account {
        check_allowed(&app.config.threepids, &asked.threepid)?;
    }
    if let Some(link) = &asked.next_link {
        check_next_link(&app.config.server, &app.config.threepids, link)?;
    }
    let owner = app.engine.state().threepids.owner(&asked.threepid);
    let (in_use, reveal) = (owner.is_some(), app.config.threepids.reveal);
    match asked.purpose {
        Purpose::Register if in_use && reveal => return Err(threepid_in_use()),
        Purpose::Add if in_use => return Err(threepid_in_use()),
        Purpose::Account if !in_use && reveal => {
            let why = "No account here has this address.";
            return Err(ApiError::new(ErrorCode::ThreepidNotFound, why));
        }
        _ => {}
    }
    // A client that hangs up does not cancel the request.
    let delivered = tokio::spawn(async move { deliver(&app, origin, asked).await });
    let sid = delivered.await.map_err(ApiError::internal)??;
    OwnedSessionId::try_from(sid).map_err(|error| ApiError::internal(error.to_string()))
}

/// Requests a message to an address, for a page that acts for a client.
pub(in crate::api) async fn request_for_page(
    cx: &Cx<Server, ()>,
    purpose: Purpose,
    threepid: Threepid,
    client_secret: &str,
) -> Result<String, ApiError> {
    check_offered(&cx.app, purpose, threepid.medium)?;
    let client_secret = OwnedClientSecret::try_from(client_secret)
        .map_err(|error| ApiError::internal(error.to_string()))?;
    let send_attempt = UInt::from(1_u32);
    let client = cx.client;
    let asked =
        TokenRequest { client, purpose, threepid, client_secret, send_attempt, next_link: None };
    Ok(request_validation(&cx.app, cx.origin(), asked).await?.to_string())
}

/// Records the request and sends the message once that is durable. Returns the validation's session
/// id.
async fn deliver(app: &Server, origin: Origin, asked: TokenRequest) -> Result<String, ApiError> {
    let TokenRequest { client, purpose, threepid, client_secret, send_attempt, next_link } = asked;
    let (client_secret, send_attempt) = (client_secret.as_str(), u64::from(send_attempt));
    let secret = TokenHash::of(client_secret);
    let lock = app.auth.deliveries.lock((threepid.clone(), purpose, secret));
    let _alone = lock.lock().await;

    let owner = app.engine.state().threepids.owner(&threepid);
    // Whether there is anything to confirm. If not, the message says so, and nobody else learns of
    // it.
    let genuine = match purpose {
        Purpose::Register | Purpose::Add => owner.is_none(),
        Purpose::Account => owner.is_some(),
    };
    let token = match threepid.medium {
        Medium::Email => random_token(),
        Medium::Msisdn => random_code(),
    };
    let now_ms = app.engine.clock().now_ms();
    let config = &app.config.threepids;
    let proposal = RequestValidation {
        sid: random_letters(16),
        purpose,
        threepid: threepid.clone(),
        client_secret: secret,
        token: genuine.then(|| token_hash(client_secret, &token)),
        send_attempt,
        expires_ms: now_ms.saturating_add(config.validation_seconds.saturating_mul(1000)),
        now_ms,
        most_messages: config.messages_per_address,
    };
    // Before it is recorded, so that excessive requests do not fill the log. No concurrent decision
    // affects this validation.
    if proposal.sends(&app.engine.state()) {
        app.notices.count(client).map_err(ApiError::limit_exceeded)?;
        app.tell_others(&NodeMessage::Notice { client });
    }
    let requested = app.engine.propose(origin.clone(), proposal).await?.into_inner();
    let Requested { sid, send } = requested;
    if !send {
        return Ok(sid);
    }
    let proof = || match threepid.medium {
        Medium::Email => {
            Proof::Link(link(&app.config.server, &sid, client_secret, &token, next_link.as_deref()))
        }
        Medium::Msisdn => Proof::Code(token.clone()),
    };
    let topic = match (purpose, owner) {
        (Purpose::Register, None) => Topic::Register { proof: proof() },
        (Purpose::Account, Some(user_id)) => Topic::Account { proof: proof(), user_id },
        (Purpose::Account, None) => Topic::HasNoAccount,
        (Purpose::Add, None) => Topic::Add { proof: proof() },
        (Purpose::Register | Purpose::Add, Some(user_id)) => Topic::HasAccount { user_id },
    };
    let began = Instant::now();
    let sent = app.outside.messages.send(&threepid, &topic).await;
    if let Some(traced) = traces::traced(&origin.request) {
        let name = match threepid.medium {
            Medium::Email => "mail",
            Medium::Msisdn => "text message",
        };
        traces::stage(traced, name, began);
    }
    if let Err(error) = sent {
        warn!(%error, medium = threepid.medium.as_str(), "a message could not be sent");
        return Err(not_sent(error));
    }
    let sent = NoteSent { threepid, sid: sid.clone(), send_attempt };
    app.engine.propose(origin, sent).await?.into_inner();
    Ok(sid)
}

fn not_sent(error: SendError) -> ApiError {
    match error {
        SendError::Recipient(_) => {
            ApiError::bad_request("The mail server takes no mail for this address.")
        }
        _ => ApiError::unavailable("The message could not be sent; try again later."),
    }
}

/// Six digits.
fn random_code() -> String {
    // The modulo bias is less than one in 10^13.
    format!("{:06}", u64::from_be_bytes(random_bytes()) % 1_000_000)
}

pub(crate) fn threepid_in_use() -> ApiError {
    ApiError::new(ErrorCode::ThreepidInUse, "An account here has this address already.")
}

/// Refuses identifiers that this server does not accept.
pub(crate) fn check_allowed(
    threepids: &config::Threepids,
    threepid: &Threepid,
) -> Result<(), ApiError> {
    if is_allowed(threepid, &threepids.allow, &threepids.deny) {
        return Ok(());
    }
    Err(ApiError::new(ErrorCode::ThreepidDenied, "This server does not take this address."))
}

/// Where a browser goes after a confirmation: a web address on an allowed host.
fn check_next_link(
    server: &config::Server,
    threepids: &config::Threepids,
    link: &str,
) -> Result<Url, ApiError> {
    let refused = |why: &'static str| ApiError::invalid_param(why);
    if link.len() > limits::NEXT_LINK_BYTES {
        return Err(refused("`next_link` is too long."));
    }
    let url = Url::parse(link).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let url = url.ok_or_else(|| refused("`next_link` is not an address of the web."))?;
    let own = Url::parse(&server.url()).ok();
    let allowed = url.host_str().is_some_and(|host| {
        let is = |pattern: &String| Glob::new(pattern).is_some_and(|glob| glob.is(host));
        own.as_ref().and_then(Url::host_str) == Some(host)
            || threepids.next_link_hosts.iter().any(is)
    });
    let plain = url.username().is_empty() && url.password().is_none();
    (allowed && plain)
        .then_some(url)
        .ok_or_else(|| refused("`next_link` leads to a host that this server does not allow."))
}

fn submit_url(server: &config::Server) -> String {
    let prefix = server.prefixes.first().map_or_else(String::new, ToString::to_string);
    format!("{}{}", server.url(), SUBMIT.replacen("/_matrix", &prefix, 1))
}

/// The link in a mail. It contains the address to go to afterwards, which may contain secrets of
/// the client and must therefore not be in the log.
fn link(
    server: &config::Server,
    sid: &str,
    client_secret: &str,
    token: &str,
    next_link: Option<&str>,
) -> String {
    let pairs = [("sid", sid), ("client_secret", client_secret), ("token", token)];
    let pairs = pairs.into_iter().chain(next_link.map(|link| ("next_link", link)));
    let query: Vec<(&str, &str)> = pairs.collect();
    format!("{}?{}", submit_url(server), serde_html_form::to_string(query).unwrap_or_default())
}

/// A submitted token.
#[derive(Debug, Deserialize)]
struct Submitted {
    sid: String,
    client_secret: String,
    token: String,
    #[serde(default)]
    next_link: Option<String>,
}

/// The page of the link in a mail.
pub(super) async fn page(cx: Cx<Server, ()>, _: ValidationPage) -> Result<Reply, ApiError> {
    let Ok(submitted) = read_query::<Submitted>(&cx.uri) else {
        return Ok(useless_link(&cx.app.config.server.name));
    };
    // The token is not checked here, so that the page reveals nothing to someone who guesses
    // tokens.
    let Some(validation) = find(&cx.app.engine, &submitted.sid, &submitted.client_secret) else {
        return Ok(useless_link(&cx.app.config.server.name));
    };
    let server = &cx.app.config.server.name;
    let what_for = match validation.purpose {
        Purpose::Register => "to register an account with it",
        Purpose::Account => "to set a new password, or to change something else that is protected",
        Purpose::Add => "to add it to your account",
    };
    let next = submitted.next_link.as_deref().and_then(|link| {
        check_next_link(&cx.app.config.server, &cx.app.config.threepids, link).ok()
    });
    let body = html! {
        p {
            "Please confirm that " strong { (validation.threepid.to_string()) } " is yours, "
            (what_for) " on " (server) "."
        }
        form method="post" action=(cx.uri.path()) {
            input type="hidden" name="sid" value=(submitted.sid);
            input type="hidden" name="client_secret" value=(submitted.client_secret);
            input type="hidden" name="token" value=(submitted.token);
            @if let Some(next) = &next { input type="hidden" name="next_link" value=(next); }
            button type="submit" autofocus { "Confirm" }
        }
        p.note { "If you did not ask for this, close this page: nothing happens then." }
    };
    let mut page = Page::new("Is this your address?", body);
    if let Some(next) = next {
        page = page.leads_to(next.origin().ascii_serialization());
    }
    Ok(page.reply())
}

/// Accepts a token: from the page's form, or as JSON from an app.
pub(super) async fn submit(cx: Cx<Server, ()>, _: SubmitToken) -> Result<Reply, ApiError> {
    if cx.body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{') {
        let submitted: Submitted = serde_json::from_slice(&cx.body).map_err(|error| {
            if error.is_data() {
                ApiError::missing_param(error.to_string())
            } else {
                ApiError::not_json("The body is not JSON.")
            }
        })?;
        let success = complete(&cx, &submitted).await?;
        return Ok(Reply::json(serde_json::json!({ "success": success }).to_string()));
    }
    let Ok(submitted) = serde_html_form::from_bytes::<Submitted>(&cx.body) else {
        return Ok(useless_link(&cx.app.config.server.name));
    };
    if !complete(&cx, &submitted).await.map_err(|error| error.shown_by(refusal))? {
        return Ok(useless_link(&cx.app.config.server.name));
    }
    let next = submitted.next_link.as_deref().and_then(|link| {
        check_next_link(&cx.app.config.server, &cx.app.config.threepids, link).ok()
    });
    if let Some(to) = next.and_then(|next| HeaderValue::from_str(next.as_str()).ok()) {
        return Ok(Page::new("Your address is confirmed", Markup::default())
            .status(StatusCode::SEE_OTHER)
            .reply()
            .with_header(header::LOCATION, to));
    }
    let body = html! {
        p.good role="status" { "Thank you." }
        p { "You can close this page and go back to your app." }
    };
    Ok(Page::new("Your address is confirmed", body).reply())
}

fn useless_link(own: &ServerName) -> Reply {
    let body = html! {
        p role="alert" {
            "This link of " (own) " has been used already, has become too old, or \
             is not whole."
        }
        p { "Go back to your app and ask for another message." }
    };
    Page::new("This link cannot be used", body).status(StatusCode::BAD_REQUEST).reply()
}

/// The validation, for a client that knows its secret.
fn find(
    engine: &Engine,
    sid: &str,
    client_secret: &str,
) -> Option<logcabin_state::validations::Validation> {
    let now_ms = engine.clock().now_ms();
    let found = engine.state().validations.get(sid, now_ms)?;
    (found.client_secret == TokenHash::of(client_secret)).then_some(found)
}

async fn complete(cx: &Cx<Server, ()>, submitted: &Submitted) -> Result<bool, ApiError> {
    let Submitted { sid, client_secret, token, .. } = submitted;
    show_token(cx, sid, client_secret, token).await
}

/// Submits the token of a message. Returns whether it is correct.
pub(in crate::api) async fn show_token(
    cx: &Cx<Server, ()>,
    sid: &str,
    client_secret: &str,
    token: &str,
) -> Result<bool, ApiError> {
    if !is_opaque_id(sid) || !is_opaque_id(client_secret) {
        return Err(ApiError::invalid_param(
            "`sid` and `client_secret` have 1 to 255 of 0-9a-zA-Z.=_-",
        ));
    }
    let Some(found) = find(&cx.app.engine, sid, client_secret) else { return Ok(false) };
    let proposal = CompleteValidation {
        threepid: found.threepid,
        sid: sid.to_owned(),
        client_secret: found.client_secret,
        token: token_hash(client_secret, token.trim()),
        now_ms: cx.app.engine.clock().now_ms(),
    };
    Ok(cx.propose(proposal).await?.into_inner())
}

/// The identifier that a client's user has validated for this purpose, if there is one.
pub(crate) fn validated(
    engine: &Engine,
    purpose: Purpose,
    sid: &str,
    client_secret: &str,
) -> Option<Validated> {
    let found = find(engine, sid, client_secret)?;
    let done = found.purpose == purpose && found.validated_ms.is_some();
    let now_ms = engine.clock().now_ms();
    done.then_some(Validated { sid: found.sid, purpose, threepid: found.threepid, now_ms })
}
