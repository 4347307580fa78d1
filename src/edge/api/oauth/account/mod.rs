//! The page on which users manage their account (client-server API, "Account management"). Clients
//! open it for one of its actions.
//!
//! Password, identity and deactivation require a recent proof of who the user is.

mod devices;
mod profile;
mod security;

use http::{HeaderMap, StatusCode, header::SET_COOKIE};
use maud::{Markup, html};
use ruma::OwnedDeviceId;

use super::{
    addresses::{ReturnPath, encoded, path},
    availability::must_be_offered,
    browser::{SignedIn, Visitor, forgotten, see},
    page_parts,
    parameters::Parameters,
};
use crate::{
    api::{
        browser::page::{AnyBrowser, Page},
        server::Server,
    },
    http::{ApiError, Body, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_decide::oauth::SignOut;
use logcabin_record::Origin;

endpoint! {
    pub(super) struct AccountPage = GET "/_matrix/oauth2/account";
    for AnyBrowser;
    { headers: HeaderMap = headers }
}

endpoint! {
    /// Its forms.
    pub(super) struct AccountForm = POST "/_matrix/oauth2/account";
    for AnyBrowser;
    body Body::Short(limits::FORM_BYTES);
    { headers: HeaderMap = headers }
}

/// What the page is opened for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Overview,
    Profile,
    Devices,
    Device(OwnedDeviceId),
    RemoveDevice(OwnedDeviceId),
    Password,
    Reset,
    Deactivate,
}

impl Action {
    /// By its name and its device. An unknown one counts as none, and so does a device that is not
    /// named.
    fn named(name: &str, device_id: Option<String>) -> Self {
        let device_id = device_id.map(OwnedDeviceId::from);
        match name {
            "org.matrix.profile" => Self::Profile,
            "org.matrix.device_view" | "org.matrix.session_view" => {
                device_id.map_or(Self::Devices, Self::Device)
            }
            "org.matrix.device_delete" | "org.matrix.session_end" => {
                device_id.map_or(Self::Devices, Self::RemoveDevice)
            }
            "org.matrix.devices_list" | "org.matrix.sessions_list" => Self::Devices,
            "org.logcabin.password" => Self::Password,
            "org.matrix.cross_signing_reset" => Self::Reset,
            "org.matrix.account_deactivate" => Self::Deactivate,
            _ => Self::Overview,
        }
    }

    /// What leads there.
    fn query(&self) -> String {
        let (name, device_id) = match self {
            Self::Overview => return String::new(),
            Self::Profile => ("org.matrix.profile", None),
            Self::Devices => ("org.matrix.devices_list", None),
            Self::Device(device_id) => ("org.matrix.device_view", Some(device_id)),
            Self::RemoveDevice(device_id) => ("org.matrix.device_delete", Some(device_id)),
            Self::Password => ("org.logcabin.password", None),
            Self::Reset => ("org.matrix.cross_signing_reset", None),
            Self::Deactivate => ("org.matrix.account_deactivate", None),
        };
        let device = device_id.map(|id| format!("&device_id={}", encoded(id.as_str())));
        format!("?action={name}{}", device.unwrap_or_default())
    }

    /// Whether it requires a recent proof of who the user is.
    const fn needs_proof(&self) -> bool {
        matches!(self, Self::Password | Self::Reset | Self::Deactivate)
    }
}

/// A user at the page.
struct Visit<'a> {
    app: &'a Server,
    cx: &'a Cx<Server, ()>,
    visitor: Visitor,
    signed_in: SignedIn,
    headers: &'a HeaderMap,
    action: Action,
}

/// What is said above a page.
enum Banner<'a> {
    Nothing,
    Good(&'a str),
    Bad(&'a str),
}

impl Visit<'_> {
    fn is_fresh(&self) -> bool {
        self.signed_in.is_fresh(self.app.engine.clock(), limits::OAUTH_FRESH)
    }

    fn next(&self) -> ReturnPath {
        ReturnPath::of(Some(&format!("account{}", self.action.query())))
    }

    /// Sends the browser to prove again who the user is.
    fn prove(&self) -> Result<Reply, ApiError> {
        see(&format!("{}&again=1", self.next().by(&self.app.config.server, "sign_in")))
    }

    fn origin(&self) -> Origin {
        self.signed_in.origin(&self.cx.request_id)
    }

    fn href(&self, action: &Action) -> String {
        format!("{}/account{}", path(&self.app.config.server), action.query())
    }

    /// A form for an act, upon something.
    fn form(&self, act: &str, target: &str, fields: Markup) -> Markup {
        html! {
            form method="post" action=(self.href(&self.action)) {
                (page_parts::proof(&self.app.signing.signer, &self.visitor, &about(act, target)))
                input type="hidden" name="act" value=(act);
                @if !target.is_empty() { input type="hidden" name="target" value=(target); }
                (fields)
            }
        }
    }

    /// The page for the action.
    fn page(&self, said: &Banner<'_>) -> Page {
        let (title, body) = match &self.action {
            Action::Overview => ("Your account", self.overview()),
            Action::Profile => ("Your profile", self.profile()),
            Action::Devices => ("Your devices", self.devices()),
            Action::Device(device_id) => ("Your device", self.device(device_id)),
            Action::RemoveDevice(device_id) => {
                ("Sign this device out?", self.remove_device(device_id))
            }
            Action::Password => ("Change your password", self.password()),
            Action::Reset => ("Reset your digital identity?", self.reset()),
            Action::Deactivate => ("Deactivate your account?", self.deactivate()),
        };
        let body = html! {
            @match said {
                Banner::Nothing => {}
                Banner::Good(text) => { p.good role="status" { (text) } }
                Banner::Bad(text) => (page_parts::alert(Some(text))),
            }
            (body)
            @if self.action != Action::Overview {
                p { a href=(self.href(&Action::Overview)) { "Your account" } }
            }
        };
        Page::new(title, body)
    }

    fn overview(&self) -> Markup {
        let config = &self.app.config;
        let mut actions = vec![
            (Action::Profile, "Profile and addresses"),
            (Action::Devices, "Devices and other places where you are signed in"),
        ];
        if config.accounts.change_password && config.login.password {
            actions.push((Action::Password, "Password"));
        }
        actions.push((Action::Reset, "Reset your digital identity"));
        actions.push((Action::Deactivate, "Deactivate the account"));
        html! {
            p { "You are signed in as " strong { (self.signed_in.user_id) } "." }
            ul {
                @for (action, text) in &actions {
                    li { a href=(self.href(action)) { (text) } }
                }
            }
            (self.form("sign_out", "", html! {
                button.second type="submit" { "Sign out of this page" }
            }))
            p {
                a href={ (self.next().by(&config.server, "sign_in")) "&again=1" } {
                    "Use another account"
                }
            }
        }
    }
}

/// What a form is about.
fn about(act: &str, target: &str) -> String {
    format!("account {act} {target}")
}

fn visit<'a>(
    cx: &'a Cx<Server, ()>,
    headers: &'a HeaderMap,
) -> Result<Result<Visit<'a>, Reply>, ApiError> {
    let app = &*cx.app;
    must_be_offered(app)?;
    let action = cx.query("action")?.unwrap_or_default();
    let action = Action::named(&action, cx.query("device_id")?);
    let visitor = Visitor::of(&app.engine, &app.config.server, headers);
    let Some(signed_in) = visitor.signed_in() else {
        let query = cx.uri.query().unwrap_or_default();
        let next = ReturnPath::of(Some(&format!("account?{query}")));
        return Ok(Err(see(&next.by(&app.config.server, "sign_in"))?));
    };
    Ok(Ok(Visit { app, cx, visitor, signed_in, headers, action }))
}

pub(super) async fn page(cx: Cx<Server, ()>, request: AccountPage) -> Result<Reply, ApiError> {
    let visit = match visit(&cx, &request.headers)? {
        Ok(visit) => visit,
        Err(sent) => return Ok(sent),
    };
    if visit.action.needs_proof() && !visit.is_fresh() {
        return visit.prove();
    }
    Ok(visit.page(&Banner::Nothing).reply())
}

/// What an act leads to.
enum Done {
    /// The page of an action, with this above it.
    Page(Action, &'static str),
    /// Another page.
    Reply(Reply),
}

pub(super) async fn submit(cx: Cx<Server, ()>, request: AccountForm) -> Result<Reply, ApiError> {
    let mut visit = match visit(&cx, &request.headers)? {
        Ok(visit) => visit,
        Err(sent) => return Ok(sent),
    };
    let fields = Parameters::of_form(&cx.body)?;
    let (act, target) = (fields.text("act"), fields.text("target"));
    let signer = &visit.app.signing.signer;
    visit.visitor.check(signer, &request.headers, &about(act, target), &fields)?;
    let held = matches!(
        act,
        "password" | "reset" | "deactivate" | "address" | "address_add" | "address_remove"
    );
    if held && !visit.is_fresh() {
        return visit.prove();
    }
    let done = match act {
        "sign_out" => visit.sign_out().await,
        "name" => visit.set_name(&fields).await,
        "address" => visit.ask_address(&fields).await,
        "address_add" => visit.add_address(&fields).await,
        "address_remove" => visit.remove_address(target).await,
        "device_name" => visit.rename_device(target, &fields).await,
        "device_remove" => visit.sign_device_out(target).await,
        "grant_end" => visit.end_grant(target).await,
        "browser_remove" => visit.sign_browser_out(target).await,
        "password" => visit.set_password(&fields).await,
        "reset" => visit.permit_reset().await,
        "deactivate" => visit.close(&fields).await,
        _ => Err(ApiError::bad_request("There is no such form.")),
    };
    match done {
        Ok(Done::Page(action, said)) => {
            visit.action = action;
            Ok(visit.page(&Banner::Good(said)).reply())
        }
        Ok(Done::Reply(reply)) => Ok(reply),
        Err(error) if error.status().is_client_error() => {
            let status = match error.status() {
                StatusCode::UNAUTHORIZED => StatusCode::FORBIDDEN,
                other => other,
            };
            Ok(visit.page(&Banner::Bad(error.message())).status(status).reply())
        }
        Err(error) => Err(error),
    }
}

impl Visit<'_> {
    async fn sign_out(&self) -> Result<Done, ApiError> {
        let user_id = self.signed_in.user_id.clone();
        let proposal = SignOut { user_id, browsers: vec![self.visitor.hash] };
        self.app.engine.propose(self.origin(), proposal).await?.into_inner();
        let reply = see(&ReturnPath::of(None).by(&self.app.config.server, "sign_in"))?;
        Ok(Done::Reply(reply.with_header(SET_COOKIE, forgotten(&self.app.config.server)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::oauth::discovery::ACTIONS;

    #[test]
    fn every_action_that_clients_are_told_of_has_its_page() {
        for name in ACTIONS {
            let action = Action::named(name, Some("A B".to_owned()));
            assert_ne!(action, Action::Overview, "{name}");
            let query = action.query();
            assert!(query.len() > 8 && !query.contains(' '), "{query}");
        }
        assert_eq!(Action::named("org.matrix.device_delete", None), Action::Devices);
        assert_eq!(Action::named("else", None), Action::Overview);
    }
}
