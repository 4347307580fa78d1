//! The buttons on a report. Each is an act that also the command line has, with what is known
//! filled in.

use maud::{Markup, html};
use ruma::{MxcUri, OwnedMxcUri, ServerName, UserId};

use super::place::Place;
use crate::api::{
    console::lists::{CLEAN_UP, clean_up},
    server::Server,
};
use logcabin_ops::admin::reports::ReportSummary;

/// What can be decided on a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Redact,
    Warn,
    Suspend,
    Ban,
    CleanUp,
    Quarantine,
    Ignore,
}

pub(super) struct Button {
    pub(super) decision: Decision,
    /// Its name in forms.
    pub(super) name: &'static str,
    pub(super) key: char,
    pub(super) title: &'static str,
    /// What is recorded when the report is closed.
    pub(super) decided: &'static str,
    pub(super) is_for_several: bool,
}

const fn button(
    decision: Decision,
    (name, key): (&'static str, char),
    title: &'static str,
    decided: &'static str,
    is_for_several: bool,
) -> Button {
    Button { decision, name, key, title, decided, is_for_several }
}

pub(super) const BUTTONS: [Button; 7] = [
    button(Decision::Redact, ("redact", 'r'), "Redact the message", "message redacted", true),
    button(Decision::Warn, ("warn", 'w'), "Warn by a notice", "warned by a notice", false),
    button(Decision::Suspend, ("suspend", 's'), "Suspend the user", "user suspended", true),
    button(Decision::Ban, ("ban", 'b'), "Ban from this room", "banned from the room", false),
    button(Decision::CleanUp, ("clean-up", 'e'), CLEAN_UP, "stopped, and cleaned up after", false),
    button(
        Decision::Quarantine,
        ("quarantine", 'q'),
        "Quarantine all their uploads",
        "files quarantined",
        false,
    ),
    button(Decision::Ignore, ("ignore", 'i'), "Close without action", "no action", true),
];

impl Button {
    /// Its title for a step, which may be about less than the button is in general.
    pub(super) fn title_of(&self, step: Option<&Step>) -> &'static str {
        step.and_then(Step::file).map_or(self.title, |_| "Quarantine the file of the message")
    }
}

/// An act, as its form would be filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) act: &'static str,
    pub(super) given: Vec<(&'static str, String)>,
}

impl Step {
    fn new<const N: usize>(act: &'static str, given: [(&'static str, &str); N]) -> Self {
        Self { act, given: given.map(|(name, value)| (name, value.to_owned())).to_vec() }
    }

    /// What is quarantined: the address of a file, or a user.
    fn quarantined(&self) -> Option<&str> {
        let of = self.given.iter().find(|(name, _)| *name == "of");
        of.filter(|_| self.act == "quarantine-media").map(|(_, of)| &**of)
    }

    /// The one file that is quarantined.
    pub(super) fn file(&self) -> Option<&MxcUri> {
        self.quarantined().map(<&MxcUri>::from).filter(|address| address.is_valid())
    }

    /// The user whose files are all quarantined.
    pub(super) fn uploader(&self) -> Option<&UserId> {
        <&UserId>::try_from(self.quarantined()?).ok()
    }
}

impl Decision {
    /// The act on what this report is about; none if it does not apply. `text` is for the user.
    pub(super) fn step(self, app: &Server, report: &ReportSummary, text: &str) -> Option<Step> {
        let user = report.about().map(|user_id| user_id.as_str());
        let accounts = &app.engine.state().accounts;
        let here = report.about().filter(|user_id| accounts.contains(user_id));
        let local = here.filter(|user_id| !accounts.is_deactivated(user_id));
        let local = local.map(|user_id| user_id.as_str());
        let room = report.room_id.as_ref();
        let room = room.filter(|room_id| app.engine.state().rooms.get(room_id).is_some());
        let room = room.map(|room_id| room_id.as_str());
        match self {
            Self::Redact => {
                // Without a sender, the event is not there any more.
                report.sender.as_ref()?;
                let event = report.event_id.as_ref()?.as_str();
                Some(Step::new("redact-event", [("room", room?), ("event", event)]))
            }
            Self::Warn => {
                let notices = &app.context.notices;
                notices.sender(&app.config.server.name)?;
                Some(Step::new("send-notice", [("user", local?), ("content/body", text)]))
            }
            Self::Suspend => {
                Some(Step::new("set-status", [("user", local?), ("suspended", "yes")]))
            }
            Self::Ban => {
                let given = [("user", user?), ("change", "ban"), ("rooms", room?)];
                Some(Step::new("change-member", given))
            }
            Self::CleanUp => {
                // They are closed with what was decided.
                let given = clean_up(user?, local.is_some(), false).into_iter();
                let given = given.map(|(name, value)| (name, value.to_owned())).collect();
                Some(Step { act: "clean-up", given })
            }
            Self::Quarantine => {
                // Of a user of another homeserver, only what was reported is known.
                let of = here.map(ToString::to_string).or_else(|| file(app, report))?;
                let given = [("of", &*of), ("quarantined", "yes")];
                Some(Step::new("quarantine-media", given))
            }
            Self::Ignore => None,
        }
    }
}

/// The address of the file in the reported event, if its sender can have uploaded it.
fn file(app: &Server, report: &ReportSummary) -> Option<String> {
    let (state, events) = (app.engine.state(), app.engine.events());
    let event = events.find_shown(&state, report.event_id.as_ref()?).ok()??;
    let Content { url } = event.content_as().ok()?;
    let own_name = &app.config.server.name;
    is_of_sender(&url, event.sender.server_name(), own_name).then(|| url.to_string())
}

#[derive(serde::Deserialize)]
struct Content {
    url: OwnedMxcUri,
}

/// Whether a file is on the sender's homeserver. Whoever is elsewhere may name the files of others,
/// also ours, to have them quarantined.
fn is_of_sender(address: &MxcUri, of: &ServerName, own_name: &ServerName) -> bool {
    let parts = address.parts();
    parts.is_ok_and(|(server, id)| server == of && server != own_name && !id.is_empty())
}

/// The buttons that apply to a report. Each leads to a page that says what would happen.
pub(super) fn of_report(app: &Server, place: &Place, report: &ReportSummary) -> Markup {
    let title = |button: &Button| {
        let step = button.decision.step(app, report, "");
        let applies = step.is_some() || button.decision == Decision::Ignore;
        applies.then(|| button.title_of(step.as_ref()))
    };
    html! {
        form.decide method="post" action="/_logcabin/console/reports/decide" {
            (place.hidden())
            input type="hidden" name="reports" value=(report.id);
            @for (button, title) in BUTTONS.iter().filter_map(|one| Some((one, title(one)?))) {
                button.second name="decision" value=(button.name) data-key=(button.key) {
                    (title) " " kbd hidden { (button.key) }
                }
            }
        }
        p.note { "Each says first what would happen." }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_senders_homeserver_are_theirs() {
        let name = |text| <&ServerName>::try_from(text).unwrap();
        let (own, spam) = (name("our.example"), name("spam.example"));
        let is_theirs = |address: &str, of| is_of_sender(address.into(), of, own);
        assert!(is_theirs("mxc://spam.example/picture", spam));
        for address in [
            "mxc://our.example/face",
            "mxc://other.example/face",
            "mxc://spam.example/",
            "mxc://spam.example/one mxc://our.example/face",
            "mxc://spam.example/one face",
            "https://spam.example/picture",
        ] {
            assert!(!is_theirs(address, spam), "{address}");
        }
        assert!(!is_theirs("mxc://our.example/face", own));
    }

    #[test]
    fn a_step_says_which_files_it_is_about() {
        let of = |of| Step::new("quarantine-media", [("of", of), ("quarantined", "yes")]);
        let (file, user) = (of("mxc://spam.example/picture"), of("@eve:our.example"));
        assert!(file.file().is_some() && file.uploader().is_none());
        assert!(user.file().is_none() && user.uploader().is_some());
        assert!(Step::new("clean-up", [("of", "@eve:our.example")]).uploader().is_none());
        let button = BUTTONS.iter().find(|one| one.decision == Decision::Quarantine).unwrap();
        assert_ne!(button.title_of(Some(&file)), button.title_of(Some(&user)));
    }
}
