//! A new password for users who have forgotten theirs, by an address of their account.

use http::HeaderMap;
use maud::html;

use super::{
    addresses::{ReturnPath, path},
    availability::must_be_offered,
    browser::{self, NewSignIn, Visitor},
    message::Sent,
    page_parts,
    parameters::Parameters,
};
use crate::{
    api::{
        auth::{
            claim::{auth_failed, find_account},
            credentials::check_password,
        },
        browser::page::{AnyBrowser, Page},
        server::Server,
    },
    http::{ApiError, Body, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_decide::{
    account::{DeviceSet, SetPassword},
    threepid::ResetPassword,
};
use logcabin_record::{
    command::SignedInBy,
    threepid::{Medium, Purpose},
};

endpoint! {
    pub(super) struct RecoverPage = GET "/_matrix/oauth2/recover";
    for AnyBrowser;
    { headers: HeaderMap = headers }
}

endpoint! {
    /// Its forms: for the address, and for the new password.
    pub(super) struct RecoverForm = POST "/_matrix/oauth2/recover";
    for AnyBrowser;
    body Body::Short(limits::FORM_BYTES);
    { headers: HeaderMap = headers }
}

/// What the forms are about.
const ABOUT: &str = "recover";

/// Whether a password can be recovered.
pub(super) fn is_possible(app: &Server) -> bool {
    let reached = [Medium::Email, Medium::Msisdn].map(|medium| app.outside.messages.reach(medium));
    app.config.login.password && app.config.accounts.change_password && reached.contains(&true)
}

pub(super) async fn page(cx: Cx<Server, ()>, request: RecoverPage) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    must_be_offered(app)?;
    let next = ReturnPath::of(cx.query("next")?.as_deref());
    let visitor = Visitor::of(&app.engine, &app.config.server, &request.headers);
    visitor.keep(&app.config.server, ask(app, &visitor, &next, None).reply())
}

/// The page that asks for the address.
fn ask(app: &Server, visitor: &Visitor, next: &ReturnPath, wrong: Option<&str>) -> Page {
    let possible = is_possible(app);
    let by_phone = app.outside.messages.reach(Medium::Msisdn);
    let body = html! {
        (page_parts::alert(wrong))
        @if possible {
            p { "You will get a message at an address that your account has." }
            form method="post" action={ (path(&app.config.server)) "/recover" } {
                (page_parts::proof(&app.signing.signer, visitor, ABOUT))
                input type="hidden" name="next" value=(next.as_str());
                label for="address" {
                    @if by_phone { "E-mail address, or phone number beginning with +" }
                    @else { "E-mail address" }
                }
                input type="text" id="address" name="address" required maxlength="254"
                    autocomplete="email" autocapitalize="none" spellcheck="false" autofocus
                    aria-describedby="wrong";
                button type="submit" { "Send the message" }
            }
        } @else {
            p { "Passwords cannot be reset here. Ask the administrator of this server." }
        }
        p { a href=(next.by(&app.config.server, "sign_in")) { "Back to signing in" } }
    };
    Page::new("Forgot your password?", body)
}

/// The page that waits for the message, and asks for the new password.
fn waiting(
    app: &Server,
    visitor: &Visitor,
    next: &ReturnPath,
    sent: &Sent,
    wrong: Option<&str>,
) -> Page {
    let body = html! {
        p {
            @if sent.has_code() { "Enter the code from the message that was sent to you." }
            @else { "Open the link in the message that was sent to you, then continue here." }
        }
        (page_parts::alert(wrong))
        form method="post" action={ (path(&app.config.server)) "/recover" } {
            (page_parts::proof(&app.signing.signer, visitor, ABOUT))
            input type="hidden" name="next" value=(next.as_str());
            (sent.fields())
            (page_parts::new_password(&app.config.passwords, "New password"))
            label.check {
                input type="checkbox" name="everywhere" value="yes" checked;
                " Sign out all devices. Those that stay signed in keep the keys of encrypted rooms."
            }
            button type="submit" { "Set the password" }
        }
    };
    Page::new("A message is on its way", body)
}

pub(super) async fn submit(cx: Cx<Server, ()>, request: RecoverForm) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    must_be_offered(app)?;
    let fields = Parameters::of_form(&cx.body)?;
    let next = ReturnPath::of(fields.get("next"));
    let visitor = Visitor::of(&app.engine, &app.config.server, &request.headers);
    visitor.check(&app.signing.signer, &request.headers, ABOUT, &fields)?;
    if !is_possible(app) {
        return Err(ApiError::forbidden("Passwords cannot be reset here."));
    }
    if fields.get("sid").is_none() {
        return Ok(send(&cx, &visitor, &next, fields.text("address")).await);
    }
    let sent = Sent::of(&fields);
    match set(&cx, &sent, &fields, &request.headers).await {
        Ok(cookie) => browser::go_on(&app.config.server, &next, cookie),
        Err(error) if error.status().is_client_error() => {
            let page = waiting(app, &visitor, &next, &sent, Some(error.message()));
            Ok(page.status(error.status()).reply())
        }
        Err(error) => Err(error),
    }
}

async fn send(cx: &Cx<Server, ()>, visitor: &Visitor, next: &ReturnPath, address: &str) -> Reply {
    let page = match Sent::to(address, Purpose::Account, cx).await {
        Ok(sent) => waiting(&cx.app, visitor, next, &sent, None),
        Err(error) => ask(&cx.app, visitor, next, Some(error.message())).status(error.status()),
    };
    page.reply()
}

async fn set(
    cx: &Cx<Server, ()>,
    sent: &Sent,
    fields: &Parameters,
    headers: &HeaderMap,
) -> Result<http::HeaderValue, ApiError> {
    let app = &*cx.app;
    let password = fields.new_password()?.to_owned();
    check_password(&app.config.passwords, "", &password)?;
    let proof = sent.proof(Purpose::Account, cx, fields).await?;
    let user_id = find_account(&app.engine, &proof.threepid).ok_or_else(auth_failed)?;
    check_password(&app.config.passwords, user_id.localpart(), &password)?;
    let password = app.auth.passwords.hash(password).await?;
    let log_out = fields.get("everywhere").map(|_| DeviceSet::All);
    let set = SetPassword { user_id: user_id.clone(), password, log_out };
    cx.propose(ResetPassword { set, proof }).await?.into_inner();
    let arrival = NewSignIn::of(cx, headers, user_id, SignedInBy::Password);
    browser::sign_in(app, arrival).await
}
