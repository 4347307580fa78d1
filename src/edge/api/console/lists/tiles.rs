//! Files as tiles: a picture of each, blurred until asked for, and what is known of it.

use maud::{Markup, html};
use ruma::UserId;

use crate::{
    api::{
        console::{
            frame::HOME,
            parts::{at_second, encoded, short, user},
            pictures::{is_drawn, kind, picture},
        },
        server::Server,
    },
    http::ApiError,
};
use logcabin_base::text::fold;
use logcabin_ops::{
    admin::{
        context::ActError,
        media::{MediaOf, MediaSummary, list as describe},
    },
    history::terminal::bytes,
};
use logcabin_record::Offset;

/// How many files are on one page of the console.
pub(super) const FILES: usize = 60;

/// How many files are examined for one page.
const LOOK: usize = 1000;

/// Which files are wanted.
#[derive(Default)]
pub(super) struct Wanted<'a> {
    pub(super) user_id: Option<&'a UserId>,
    /// A part of their name.
    pub(super) name: Option<String>,
    pub(super) only: Only,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Only {
    #[default]
    All,
    Pictures,
    Others,
    Quarantined,
    Exempt,
}

impl Only {
    pub(super) const NAMES: [(&'static str, &'static str, Self); 5] = [
        ("", "all", Self::All),
        ("pictures", "pictures", Self::Pictures),
        ("others", "other files", Self::Others),
        ("quarantined", "in quarantine", Self::Quarantined),
        ("exempt", "exempt from quarantine", Self::Exempt),
    ];

    fn takes(self, file: &MediaSummary) -> bool {
        let is_picture = is_drawn(file.media_type.as_deref());
        match self {
            Self::All => true,
            Self::Pictures => is_picture,
            Self::Others => !is_picture,
            Self::Quarantined => file.quarantined_by.is_some(),
            Self::Exempt => file.safe_from_quarantine,
        }
    }
}

/// Files with the records of their uploads, the newest first.
pub(super) struct Files {
    files: Vec<(Offset, MediaSummary)>,
    /// The record before which more may be.
    pub(super) left: Option<Offset>,
}

impl Files {
    pub(super) const fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The newest that are wanted, up to `limit`, among a bounded number before a record.
    pub(super) fn newest(
        app: &Server,
        wanted: &Wanted<'_>,
        before: Offset,
        limit: usize,
    ) -> Result<Self, ApiError> {
        let name = wanted.name.as_deref().map(fold);
        let is_named = |file: &MediaSummary| {
            let Some(name) = &name else { return true };
            let texts = [Some(&*file.media_id), file.upload_name.as_deref()];
            texts.into_iter().flatten().any(|text| fold(text).contains(&**name))
        };
        let there = app.engine.state().media.newest(before, LOOK, wanted.user_id);
        let (mut files, mut last) = (Vec::new(), None);
        for (offset, media_id) in &there {
            if files.len() >= limit {
                return Ok(Self { files, left: last });
            }
            last = Some(*offset);
            let file = match describe(&app.context, &MediaOf::Id(media_id.to_string())) {
                Ok(found) => found.media.into_iter().next(),
                // It was deleted meanwhile.
                Err(ActError::NoMedia(_)) => None,
                Err(error) => return Err(error.into()),
            };
            let wanted = file.filter(|file| wanted.only.takes(file) && is_named(file));
            files.extend(wanted.map(|file| (*offset, file)));
        }
        let left = last.filter(|_| there.len() >= LOOK);
        Ok(Self { files, left })
    }

    /// The tiles. With `is_choice`, each has a box to tick.
    pub(super) fn tiles(&self, app: &Server, is_choice: bool) -> Markup {
        html! {
            ul.tiles {
                @for (record, file) in &self.files { li { (tile(app, *record, file, is_choice)) } }
            }
        }
    }
}

fn tile(app: &Server, record: Offset, file: &MediaSummary, is_choice: bool) -> Markup {
    let id = file.media_id.as_str();
    let given_name = file.upload_name.as_deref().map(str::trim).filter(|name| !name.is_empty());
    let name = given_name.unwrap_or(id);
    let content_type = file.media_type.as_deref();
    let is_bad = file.quarantined_by.is_some();
    let act = |name: &str, given: &str, words: &str| {
        html! { li { a href={ (HOME) "/act/" (name) "?" (given) (encoded(id)) } { (words) } } }
    };
    html! {
        @if is_choice {
            input type="checkbox" name="of" value=(id) aria-label={ "Choose " (short(name)) };
        }
        @if is_drawn(content_type) {
            (picture(&app.media.mxc(id), name))
        } @else {
            p.kind { (kind(content_type)) }
        }
        p.name { a href={ (HOME) "/log/" (record) } { bdi { (short(name)) } } }
        p.note {
            (bytes(file.media_length)) ", " (at_second(file.created_ts))
            @if let Some(content_type) = content_type { br; bdi { (short(content_type)) } }
        }
        @if is_choice {
            p.note {
                @match &file.user_id {
                    Some(user_id) => (user(user_id.as_str())),
                    None => "fetched by the server",
                }
            }
        }
        @if let Some(by) = &file.quarantined_by {
            p.badge.bad { "In quarantine, by " bdi { (short(by)) } }
        }
        @if file.safe_from_quarantine { p.badge { "Exempt from quarantine" } }
        ul.acts {
            @if is_bad {
                (act("quarantine-media", "quarantined=no&of=", "Release"))
            } @else if !file.safe_from_quarantine {
                (act("quarantine-media", "quarantined=yes&of=", "Quarantine"))
            }
            @if file.safe_from_quarantine {
                (act("protect-media", "protected=no&media=", "Do not exempt"))
            } @else {
                (act("protect-media", "protected=yes&media=", "Exempt"))
            }
            (act("delete-media", "of=", "Delete"))
        }
    }
}
