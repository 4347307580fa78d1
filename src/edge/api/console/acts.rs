//! Acts of administration: a form, then what it would do, then what was done. The form comes from
//! the parameters that the act declares, and the act is carried out where those of the command line
//! are.

use std::{collections::HashMap, sync::Arc};

use http::StatusCode;
use maud::{Markup, html};
use serde_json::Value;

use super::{
    parts::{acts, encoded, facts, long, short, text},
    upkeep::proofs,
    visitor::{ConsoleLogin, Visitor},
};
use crate::{
    api::server::Server,
    http::{ApiError, Body, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_ops::admin::{
    act::{Act as _, Order, Outcome},
    context::ActError,
    form::{Field, Form, Kind},
    proofs::Prove,
    registry,
};

type Fields = HashMap<String, String>;

/// The value that stands for a secret while an act only says what it would do.
const NO_SECRET: &str = "not given yet";

endpoint! {
    /// The list of all acts.
    pub(super) struct ActList = GET "/_logcabin/console/act";
    for ConsoleLogin;
    {}
}

endpoint! {
    /// The form of an act. The query fills in what is known.
    pub(super) struct ActForm = GET "/_logcabin/console/act/{name}";
    for ConsoleLogin;
    { name: String = path, given: Vec<(String, String)> = query }
}

endpoint! {
    /// What was filled in; with `confirmed`, the order.
    pub(super) struct ActOrder = POST "/_logcabin/console/act/{name}";
    for ConsoleLogin;
    body Body::Short(limits::FORM_BYTES);
    { name: String = path }
}

fn form_of(name: &str) -> Result<&'static Form, ApiError> {
    registry::form(name).ok_or_else(|| ApiError::not_found("There is no such act."))
}

pub(super) async fn list(cx: Cx<Server, Visitor>, _: ActList) -> Result<Reply, ApiError> {
    let mut forms: Vec<_> = registry::forms().collect();
    forms.sort_unstable_by_key(|(_, form)| form.title);
    let names: Vec<_> = forms.into_iter().map(|(name, _)| name).collect();
    let body = html! {
        p { "Whatever an administrator can order. Each says first what it would do." }
        (acts(&names, &[]))
    };
    Ok(cx.caller.page(&cx.app, ("All acts", "acts"), body).reply())
}

pub(super) async fn form(cx: Cx<Server, Visitor>, request: ActForm) -> Result<Reply, ApiError> {
    let form = form_of(&request.name)?;
    let given = joined(request.given);
    Ok(cx.caller.page(&cx.app, (form.title, "acts"), asked(form, &given, None)).reply())
}

/// What was ticked in a list has one name: a field of words.
fn joined(fields: Vec<(String, String)>) -> Fields {
    let mut given = Fields::new();
    for (name, value) in fields {
        let all = given.entry(name).or_default();
        if !all.is_empty() {
            all.push(' ');
        }
        all.push_str(&value);
    }
    given
}

/// A button for an act with all that it needs: it leads to the page that says what it would do.
pub(super) fn button(title: &str, name: &str, given: &[(&str, &str)]) -> Markup {
    html! {
        form.one method="post" action={ "/_logcabin/console/act/" (name) } {
            @for (name, value) in given { input type="hidden" name=(name) value=(value); }
            button.second type="submit" { (title) }
        }
    }
}

/// The form with what was filled in, and why that was refused.
fn asked(form: &Form, given: &Fields, refused: Option<&str>) -> Markup {
    html! {
        @if let Some(why) = refused { p.bad role="alert" { (long(why)) } }
        form.act method="post" {
            @for field in form.open() { (input(field, given)) }
            (reason(given))
            button type="submit" {
                @if form.foretells { "See what it would do" } @else { "Go on" }
            }
        }
        p.note { "Nothing happens before you confirm." }
    }
}

fn reason(given: &Fields) -> Markup {
    html! {
        label for="reason" { "Reason, which is recorded" }
        input type="text" id="reason" name="reason" value=(value(given, "reason"));
    }
}

fn value<'a>(given: &'a Fields, name: &str) -> &'a str {
    given.get(name).map(String::as_str).unwrap_or_default()
}

fn input(field: &Field, given: &Fields) -> Markup {
    let (name, is) = (field.name, value(given, field.name));
    let choices: &[(&str, &str)] = match field.kind {
        Kind::FlagIfAny => &[("", "as it is"), ("yes", "yes"), ("no", "no")],
        Kind::Flag => &[("no", "no"), ("yes", "yes")],
        _ => &[],
    };
    let texts = match field.kind {
        Kind::OneOf(texts) => texts,
        _ => &[],
    };
    let of_texts = texts.iter().map(|text| (*text, *text));
    let choices: Vec<_> = choices.iter().copied().chain(of_texts).collect();
    html! {
        label for=(name) { (field.label) }
        @if choices.is_empty() {
            input type="text" id=(name) name=(name) value=(is) autocapitalize="none"
                spellcheck="false" required[matches!(field.kind, Kind::Text | Kind::Number)];
        } @else {
            select id=(name) name=(name) {
                @for (value, shown) in choices {
                    option value=(value) selected[value == is] { (shown) }
                }
            }
        }
    }
}

pub(super) async fn submit(cx: Cx<Server, Visitor>, request: ActOrder) -> Result<Reply, ApiError> {
    let (visitor, app) = (cx.caller.clone(), Arc::clone(&cx.app));
    let shown = |title: &str, body| visitor.page(&app, (title, "acts"), body);
    let form = form_of(&request.name)?;
    let name = request.name;
    let fields: Vec<(String, String)> = serde_html_form::from_bytes(&cx.body)
        .map_err(|error| ApiError::bad_request("The form cannot be read.").with_cause(error))?;
    let given = joined(fields);
    let is_confirmed = given.get("confirmed").is_some_and(|value| value == "yes");
    let is_secret = |name: &str| form.secrets().any(|field| field.name == name);
    let act = form.act(|name| match is_confirmed || !is_secret(name) {
        true => given.get(name).cloned(),
        false => Some(NO_SECRET.to_owned()),
    });
    let act = match act {
        Ok(act) => act,
        Err(unfit) => {
            let body = asked(form, &given, Some(&unfit.to_string()));
            return Ok(shown(form.title, body).status(StatusCode::BAD_REQUEST).reply());
        }
    };
    if !is_confirmed && !form.foretells {
        return Ok(shown(form.title, confirm(form, &given, &[], None)).reply());
    }
    let is_proof = name == Prove::NAME;
    let order = Order { act, reason: given.get("reason").cloned(), dry_run: !is_confirmed };
    match carry_out(cx, &visitor, name, order).await? {
        Ok(Outcome::WouldDo(effect)) => {
            Ok(shown(form.title, confirm(form, &given, &effect, None)).reply())
        }
        Ok(Outcome::Done(result)) => {
            let body = match is_proof {
                true => proofs::made(&result),
                false => done(visitor.browser_session().user_id.as_str(), &result),
            };
            Ok(shown(&format!("{}: done", form.title), body).reply())
        }
        Err(error) => {
            let why = error.to_string();
            let error = ApiError::from(error);
            if error.status().is_server_error() {
                return Err(error);
            }
            let body = match is_confirmed {
                true => confirm(form, &given, &[], Some(&why)),
                false => asked(form, &given, Some(&why)),
            };
            Ok(shown(form.title, body).status(error.status()).reply())
        }
    }
}

/// Carries out an order in the visitor's name, to its end even if the browser goes away.
async fn carry_out(
    cx: Cx<Server, Visitor>,
    visitor: &Visitor,
    name: String,
    order: Order<Value>,
) -> Result<Result<Outcome<Value>, ActError>, ApiError> {
    let context = Arc::clone(&cx.app.context);
    let origin = cx.called_by(visitor.browser_session().clone()).origin();
    let work = async move { registry::carry_out(&name, order, &context, origin).await };
    tokio::spawn(work).await.map_err(ApiError::internal)
}

/// What an act would do, and the button for it.
fn confirm(form: &Form, given: &Fields, effect: &[String], refused: Option<&str>) -> Markup {
    html! {
        @if let Some(why) = refused { p.bad role="alert" { (long(why)) } }
        @if !effect.is_empty() {
            p { "This would happen:" }
            ul { @for sentence in effect { li { bdi { (long(sentence)) } } } }
        } @else if refused.is_none() && form.foretells {
            p { "Nothing would change." }
        }
        (facts(&filled(form, given)))
        @if form.is_final { p.bad { strong { "This cannot be undone." } } }
        form.act method="post" {
            @for field in form.open() {
                input type="hidden" name=(field.name) value=(value(given, field.name));
            }
            input type="hidden" name="reason" value=(value(given, "reason"));
            @for field in form.secrets() {
                label for=(field.name) { (field.label) }
                input type="password" id=(field.name) name=(field.name)
                    autocomplete="new-password";
            }
            button type="submit" name="confirmed" value="yes" { (form.title) }
        }
        p { a href="/_logcabin/console" { "Do nothing" } }
    }
}

/// What was filled in, without secrets.
fn filled(form: &Form, given: &Fields) -> Vec<(&'static str, Markup)> {
    let labels = form.open().map(|field| (field.name, field.label));
    let labels = labels.chain([("reason", "Reason")]);
    let there = labels.filter(|(name, _)| !value(given, name).is_empty());
    there.map(|(name, label)| (label, text(value(given, name)))).collect()
}

/// What was done.
fn done(user_id: &str, result: &Value) -> Markup {
    let shown = |value: &Value| match value {
        Value::String(value) => long(value),
        value => long(&value.to_string()),
    };
    let rows: Vec<_> = match result {
        Value::Object(members) => {
            members.iter().map(|(name, value)| (name.replace('_', " "), shown(value))).collect()
        }
        value => vec![("result".to_owned(), shown(value))],
    };
    let rows: Vec<_> = rows.iter().map(|(name, value)| (&**name, text(value))).collect();
    html! {
        p.good role="status" { "This was done." }
        (facts(&rows))
        p {
            a href={ "/_logcabin/console/log?user=" (encoded(user_id)) } {
                "The records of " bdi { (short(user_id)) }
            }
        }
    }
}
