//! What a button on reports does: it says what would happen, and then it is done, the reports are
//! closed, and the next one opens.

use std::{collections::BTreeSet, sync::Arc};

use http::{HeaderValue, StatusCode};
use maud::{Markup, html};
use serde_json::Value;

use super::{
    buttons::{BUTTONS, Button, Decision, Step},
    decided::sentence,
    deciding::Deciding,
    place::{Place, number},
};
use crate::{
    api::{
        console::{
            lists::tiles::{Files, Wanted},
            parts::{acts, long, short, user},
            pictures::{is_here, picture},
            visitor::{ConsoleLogin, Visitor},
        },
        server::Server,
    },
    http::{ApiError, Body, Cx, Reply, endpoint},
};
use logcabin_base::{background::at_length, limits};
use logcabin_log::ReadError;
use logcabin_ops::admin::{
    act::{Order, Outcome},
    context::{ActContext, ActError},
    registry,
    reports::{
        DecidedReport, RemoveReport, ReportSummary, about, decision_on, details, next_line,
        of_same_line,
    },
};
use logcabin_record::{Offset, Origin};

/// How many of the files are shown that would be quarantined.
const FILES: usize = 12;

/// The longest reason that still fits behind what was decided, in bytes.
const REASON_BYTES: usize = 1900;

/// What a user is told who is warned, unless somebody writes something else.
const WARNING: &str = "Something that you sent was reported to the administrators of this server. \
    It is against the rules of the server. Please do not send such things.";

endpoint! {
    /// What was chosen; with `confirmed`, the order.
    pub(in crate::api::console) struct Decide = POST "/_logcabin/console/reports/decide";
    for ConsoleLogin;
    body Body::Short(limits::FORM_BYTES);
    {}
}

/// What the form says.
struct Asked {
    button: &'static Button,
    reports: Vec<Offset>,
    is_confirmed: bool,
    close: bool,
    reason: String,
    text: String,
    place: Place,
}

impl Asked {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let fields: Vec<(String, String)> = serde_html_form::from_bytes(body)
            .map_err(|error| ApiError::bad_request("The form cannot be read.").with_cause(error))?;
        let all = |name: &'static str| {
            fields.iter().filter(move |(of, _)| of == name).map(|(_, value)| value.trim())
        };
        let one = |name| all(name).next().filter(|value| !value.is_empty()).map(ToOwned::to_owned);
        let name = one("decision").unwrap_or_default();
        let button = BUTTONS.iter().find(|button| button.name == name);
        let button = button.ok_or_else(|| ApiError::bad_request("There is no such button."))?;
        let reports = all("reports").flat_map(str::split_whitespace).map(number);
        let mut reports = reports.collect::<Result<Vec<_>, _>>()?;
        reports.sort_unstable();
        reports.dedup();
        if reports.len() > limits::CONSOLE_ROWS {
            return Err(ApiError::bad_request("These are too many reports at once."));
        }
        let reason = one("reason").unwrap_or_default();
        if reason.len() > REASON_BYTES {
            let why = format!("A reason has at most {REASON_BYTES} bytes here.");
            return Err(ApiError::bad_request(why));
        }
        let text = all("text").next().unwrap_or(WARNING);
        if button.decision == Decision::Warn && text.is_empty() {
            return Err(ApiError::bad_request("Say what the user is to be told."));
        }
        Ok(Self {
            button,
            reports,
            is_confirmed: one("confirmed").as_deref() == Some("yes"),
            close: one("close").as_deref() == Some("yes"),
            reason,
            text: text.to_owned(),
            place: Place { of: one("of"), order: one("order") },
        })
    }

    fn reason(&self) -> Option<String> {
        (!self.reason.is_empty()).then(|| self.reason.clone())
    }

    /// What is recorded when a report is closed.
    fn decided(&self) -> String {
        let decided = self.button.decided;
        match &*self.reason {
            "" => decided.to_owned(),
            reason => format!("{decided}: {reason}"),
        }
    }
}

/// The reports about one thing, and the act on it.
struct Line {
    newest: ReportSummary,
    /// What is closed with it. After a clean-up, that is all about the user.
    ids: Vec<Offset>,
    /// Its place in the plan; none if there is nothing to do.
    step: Option<usize>,
}

/// What is to be done.
#[derive(Default)]
struct Plan {
    lines: Vec<Line>,
    /// Each once, also if several lines are about it.
    steps: Vec<Step>,
    /// What others have closed meanwhile.
    gone: Vec<DecidedReport>,
}

impl Plan {
    fn make(app: &Server, asked: &Asked) -> Result<Self, ApiError> {
        let mut plan = Self::default();
        for id in &asked.reports {
            let newest = match details(&app.context, *id) {
                Ok(details) => details.summary,
                Err(ActError::NoReport(_)) => {
                    plan.gone.extend(decision_on(&app.context, *id)?);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let step = asked.button.decision.step(app, &newest, &asked.text);
            let step = step.map(|step| plan.place_of(step));
            let ids = closed_with(&app.context, asked.button.decision, &newest)?;
            plan.lines.push(Line { newest, ids, step });
        }
        Ok(plan)
    }

    /// All reports that would be closed, each once.
    fn closed(&self, is_ignored: bool) -> BTreeSet<Offset> {
        let lines = self.lines.iter().filter(|line| is_ignored || line.step.is_some());
        lines.flat_map(|line| line.ids.iter().copied()).collect()
    }

    fn place_of(&mut self, step: Step) -> usize {
        let known = self.steps.iter().position(|known| *known == step);
        known.unwrap_or_else(|| {
            self.steps.push(step);
            self.steps.len() - 1
        })
    }
}

/// The reports that are closed with one: those about the same and, after a clean-up, all about the
/// user.
fn closed_with(
    context: &ActContext,
    decision: Decision,
    newest: &ReportSummary,
) -> Result<Vec<Offset>, ReadError> {
    let mut ids = of_same_line(context, newest.id);
    if let Some(user_id) = newest.about().filter(|_| decision == Decision::CleanUp) {
        let others = about(context, user_id)?.into_iter();
        let others: Vec<_> = others.filter(|id| !ids.contains(id)).collect();
        ids.extend(others);
    }
    Ok(ids)
}

pub(in crate::api::console) async fn submit(
    cx: Cx<Server, Visitor>,
    _: Decide,
) -> Result<Reply, ApiError> {
    let (visitor, app) = (cx.caller.clone(), Arc::clone(&cx.app));
    let asked = Asked::read(&cx.body)?;
    let origin = cx.called_by(visitor.browser_session().clone()).origin();
    let mut plan = at_length(|| Plan::make(&app, &asked))?;
    let title = asked.button.title_of(plan.steps.first());
    let shown = |body| visitor.page(&app, (title, "reports"), body);
    // Of two at the same moment, the second is told so before anything is done twice.
    let deciding = asked.is_confirmed.then(|| Deciding::begin(plan.closed(true)));
    let is_taken = deciding.as_ref().is_some_and(Option::is_none);
    if asked.is_confirmed && !is_taken {
        plan = at_length(|| Plan::make(&app, &asked))?;
    }
    if plan.lines.is_empty() || is_taken {
        return Ok(shown(too_late(&asked, &plan)).status(StatusCode::CONFLICT).reply());
    }
    if asked.is_confirmed {
        let work = carry_out(Arc::clone(&app.context), origin, asked, plan);
        // To its end, even if the browser goes away.
        let work = async move {
            let done = work.await;
            drop(deciding);
            done
        };
        let done = tokio::spawn(work).await.map_err(ApiError::internal)??;
        return match done.next {
            Some(next) => {
                let next = HeaderValue::try_from(next).map_err(ApiError::internal)?;
                Ok(Reply::see_other(next))
            }
            None => Ok(shown(done.page()).reply()),
        };
    }
    let mut effects = Vec::new();
    for step in &plan.steps {
        effects.push(order(step, &asked, true, &app.context, &origin).await);
    }
    let files = at_length(|| files(&app, &plan))?;
    Ok(shown(preview(&asked, &plan, &effects, &files)).reply())
}

/// Carries out a step. Gives what would happen, or what could not be done.
async fn order(
    step: &Step,
    asked: &Asked,
    dry_run: bool,
    context: &ActContext,
    origin: &Origin,
) -> Result<Vec<String>, ActError> {
    let no_form = || ActError::Invalid("This act has no form.".to_owned());
    let form = registry::form(step.act).ok_or_else(no_form)?;
    let given = |name: &str| {
        let found = step.given.iter().find(|(of, _)| *of == name);
        found.map(|(_, value)| value.clone())
    };
    let act = form.act(given).map_err(|unfit| ActError::Invalid(unfit.to_string()))?;
    let order = Order { act, reason: asked.reason(), dry_run };
    match registry::carry_out(step.act, order, context, origin.clone()).await? {
        Outcome::WouldDo(effect) => Ok(effect),
        Outcome::Done(result) => Ok(failed(&result)),
    }
}

/// What an act says it could not do.
fn failed(result: &Value) -> Vec<String> {
    match &result["failed"] {
        Value::Array(all) => all.iter().filter_map(|why| Some(why.as_str()?.to_owned())).collect(),
        Value::Object(all) => all
            .iter()
            .map(|(name, why)| format!("{name}: {}", why.as_str().unwrap_or_default()))
            .collect(),
        _ => Vec::new(),
    }
}

/// What became of an order.
struct Done {
    /// Where to go on, if everything was done.
    next: Option<String>,
    address: String,
    title: &'static str,
    failures: Vec<String>,
    closed: usize,
}

async fn carry_out(
    context: Arc<ActContext>,
    origin: Origin,
    asked: Asked,
    plan: Plan,
) -> Result<Done, ApiError> {
    let last = plan.lines.last().map_or(Offset::ZERO, |line| line.newest.id);
    let next = next_line(&context, asked.place.inbox(), last);
    let (mut failures, mut is_done) = (Vec::new(), Vec::new());
    for step in &plan.steps {
        let failed = order(step, &asked, false, &context, &origin).await;
        let failed = failed.unwrap_or_else(|error| vec![error.to_string()]);
        is_done.push(failed.is_empty());
        failures.extend(failed);
    }
    let is_ignored = asked.button.decision == Decision::Ignore;
    for line in plan.lines.iter().filter(|line| line.step.is_none() && !is_ignored) {
        failures.push(format!("it does not apply to report {} any more", line.newest.id));
    }
    let mut closed = Vec::new();
    for line in plan.lines.iter().filter(|_| asked.close) {
        let is_done = line.step.and_then(|step| is_done.get(step)).copied();
        if is_done.unwrap_or(is_ignored) {
            match close(&context, &origin, &asked, line).await {
                Ok(()) => closed.push(line.newest.id.to_string()),
                Err(error) => failures.push(error.to_string()),
            }
        }
    }
    let address = asked.place.address();
    let is_over = asked.close && failures.is_empty();
    let goes_on = is_over.then(|| {
        let reports = &context.engine.state().reports;
        let is_open = |id: &Offset| reports.get(*id).is_some();
        let first = || next_line(&context, asked.place.inbox(), Offset::ZERO);
        // Whoever decides on several at once has chosen them in the list.
        let next = (plan.lines.len() == 1).then(|| next.filter(is_open).or_else(first)).flatten();
        let next = next.map(|id| format!("report={id}&")).unwrap_or_default();
        format!("{address}{next}closed={}", closed.join("+"))
    });
    let (title, closed) = (asked.button.title_of(plan.steps.first()), closed.len());
    Ok(Done { next: goes_on, address, title, failures, closed })
}

/// Closes the reports of a line.
async fn close(
    context: &ActContext,
    origin: &Origin,
    asked: &Asked,
    line: &Line,
) -> Result<(), ActError> {
    for id in line.ids.iter().copied() {
        let act = RemoveReport { id, tell: None };
        let order = Order { act, reason: Some(asked.decided()), dry_run: false };
        if let Err(error) = order.carry_out(context, origin.clone()).await {
            // Somebody else may have closed it.
            if context.engine.state().reports.get(id).is_some() {
                return Err(error);
            }
        }
    }
    Ok(())
}

impl Done {
    fn page(&self) -> Markup {
        html! {
            @if self.failures.is_empty() {
                p.good role="status" { "This was done: " (self.title) ". The reports stay open." }
            } @else {
                p.bad role="alert" {
                    "This could not be done" @if self.closed > 0 { ", but the rest was" } ":"
                }
                ul { @for why in &self.failures { li { bdi { (long(why)) } } } }
                p { "The reports about it stay open." }
            }
            p { a href=(self.address) { "All open reports" } }
        }
    }
}

/// Somebody else was faster, or nothing was ticked.
fn too_late(asked: &Asked, plan: &Plan) -> Markup {
    html! {
        p.bad role="alert" {
            @if asked.reports.is_empty() {
                "No report was ticked."
            } @else if plan.lines.is_empty() {
                "Somebody has dealt with this meanwhile. Nothing was done now."
            } @else {
                "Somebody else is deciding on this at this moment. Nothing was done now."
            }
        }
        ul {
            @for of in &plan.gone {
                li { "Report " (of.id) " was " (sentence(&of.decision)) "." }
            }
        }
        @for of in plan.gone.iter().take(1) {
            (acts(&["undo"], &[("record", &of.decision.record.to_string())]))
        }
        p { a href=(asked.place.address()) { "All open reports" } }
    }
}

type Effect = Result<Vec<String>, ActError>;

/// The files that would be quarantined, and whose they are.
fn files(app: &Server, plan: &Plan) -> Result<Markup, ApiError> {
    let mut shown = html! {};
    for step in &plan.steps {
        if let Some(address) = step.file() {
            shown = html! {
                (shown)
                p { "It is the file " bdi { (short(address.as_str())) } " of the message." }
                @if is_here(app, address) { (picture(address, "The file of the message")) }
            };
        } else if let Some(user_id) = step.uploader() {
            let wanted = Wanted { user_id: Some(user_id), ..Wanted::default() };
            let newest = Files::newest(app, &wanted, Offset::MAX, FILES)?;
            shown = html! {
                (shown)
                p {
                    "These are all files that " (user(user_id.as_str())) " uploaded to this "
                    "server, not only what was reported. The newest:"
                }
                (newest.tiles(app, false))
            };
        }
    }
    Ok(shown)
}

/// What would happen, and the button for it.
fn preview(asked: &Asked, plan: &Plan, effects: &[Effect], files: &Markup) -> Markup {
    let Asked { button, place, .. } = asked;
    let is_ignored = button.decision == Decision::Ignore;
    let without = |line: &&Line| line.step.is_none() && !is_ignored;
    let is_of_user = button.decision == Decision::CleanUp;
    let all = plan.closed(is_ignored).len();
    let title = button.title_of(plan.steps.first());
    let is_final = |step: &Step| registry::form(step.act).is_some_and(|form| form.is_final);
    let is_possible = is_ignored || effects.iter().any(Result::is_ok);
    html! {
        @for of in &plan.gone {
            p.note { "Report " (of.id) " was " (sentence(&of.decision)) ". It is left out." }
        }
        ul id="effect" {
            @for effect in effects {
                @match effect {
                    Ok(sentences) if sentences.is_empty() => {
                        li { "Nothing would change: this has been done already." }
                    }
                    Ok(sentences) => {
                        @for sentence in sentences { li { bdi { (long(sentence)) } } }
                    }
                    Err(error) => {
                        li.bad { "This cannot be done: " bdi { (long(&error.to_string())) } }
                    }
                }
            }
            @for line in plan.lines.iter().filter(without) {
                li.bad { "It does not apply to report " (line.newest.id) ", which stays open." }
            }
            @if is_ignored {
                li { (all) " report(s) are closed. Nothing else happens." }
            }
            @for line in &plan.lines {
                li {
                    "Report " (line.newest.id)
                    @if line.ids.len() > 1 {
                        ", and " (line.ids.len() - 1) " about the same"
                        @if is_of_user { " user" }
                    }
                    @if let Some(id) = line.newest.about() { ", about " (user(id.as_str())) }
                }
            }
        }
        (files)
        @if plan.steps.iter().any(is_final) { p.bad { strong { "This cannot be undone." } } }
        @if is_possible {
            form.act method="post" {
                (place.hidden())
                input type="hidden" name="decision" value=(button.name);
                @for line in plan.lines.iter().filter(|line| !without(line)) {
                    input type="hidden" name="reports" value=(line.newest.id);
                }
                @if button.decision == Decision::Warn {
                    label for="text" { "What the user is told" }
                    textarea id="text" name="text" rows="4" required { (asked.text) }
                }
                label for="reason" { "Reason, which is recorded" }
                input type="text" id="reason" name="reason" value=(asked.reason)
                    maxlength=(REASON_BYTES);
                @if is_ignored { input type="hidden" name="close" value="yes"; } @else {
                    label.also {
                        input type="checkbox" name="close" value="yes" checked;
                        " and close "
                        @if all == 1 {
                            "this report"
                        } @else if is_of_user {
                            "all " (all) " reports about the user"
                        } @else {
                            "these reports"
                        }
                    }
                }
                button type="submit" name="confirmed" value="yes" autofocus
                    aria-describedby="effect" { (title) }
            }
        }
        @let back = match &*plan.lines {
            [line] => format!("{}report={}", place.address(), line.newest.id),
            _ => place.address(),
        };
        p { a href=(back) { "Do nothing" } }
    }
}
