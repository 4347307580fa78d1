//! Acts by how bad they are: plain words that lead to the forms, with what is known filled in.

use maud::{Markup, html};

use super::parts::encoded;

/// How bad an act is for whom it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Mild,
    Undoable,
    Final,
}

impl Severity {
    const ALL: [Self; 3] = [Self::Mild, Self::Undoable, Self::Final];

    const fn title(self) -> &'static str {
        match self {
            Self::Mild => "Look, and speak",
            Self::Undoable => "Can be undone",
            Self::Final => "Cannot be undone",
        }
    }

    const fn class(self) -> &'static str {
        match self {
            Self::Mild => "mild",
            Self::Undoable => "undoable",
            Self::Final => "final",
        }
    }
}

/// Words that lead to something.
pub(super) struct Choice {
    severity: Severity,
    words: &'static str,
    path: String,
}

impl Choice {
    /// Leads to a page.
    pub(super) fn page(severity: Severity, words: &'static str, path: String) -> Self {
        Self { severity, words, path }
    }

    /// Leads to the form of an act.
    pub(super) fn act(
        severity: Severity,
        words: &'static str,
        name: &str,
        given: &[(&str, &str)],
    ) -> Self {
        let given: Vec<_> =
            given.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let path = format!("/_logcabin/console/act/{name}?{}", given.join("&"));
        Self { severity, words, path }
    }
}

/// The choices, the mildest first.
pub(super) fn choices(all: &[Choice]) -> Markup {
    html! {
        div.severities {
            @for severity in Severity::ALL {
                @let of: Vec<_> = all.iter().filter(|of| of.severity == severity).collect();
                @if !of.is_empty() {
                    div class=(severity.class()) {
                        h3 { (severity.title()) }
                        ul { @for choice in of { li { a href=(choice.path) { (choice.words) } } } }
                    }
                }
            }
        }
        p.note { "Each says first what it would do. Nothing happens before you confirm." }
    }
}
