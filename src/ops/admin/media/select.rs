//! Which files an order is about.

use std::collections::{BTreeSet, HashSet};

use ruma::{MxcUri, OwnedMxcUri};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::admin::context::{ActContext, ActError};
use logcabin_base::background;
use logcabin_record::Offset;
use logcabin_service::erasure;
use logcabin_state::media::Item;

/// How many events of a room are read at once.
const EVENTS: usize = 500;

/// The fields of an event that can hold the address of a file.
const POINTERS: [&str; 6] = [
    "/url",
    "/avatar_url",
    "/file/url",
    "/info/thumbnail_url",
    "/info/thumbnail_file/url",
    "/m.new_content/url",
];

/// A selection of files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MediaOf {
    /// The one with this id or address, which may be one of another homeserver.
    Id(String),
    /// All that a user uploaded.
    User(String),
    /// All that the unencrypted events of a room name.
    Room(String),
    /// Those with these ids.
    Ids(Vec<String>),
    /// All that were uploaded before a time.
    Before {
        /// When, in milliseconds since the Unix epoch.
        before_ms: u64,
        /// Only those with more bytes.
        larger_than: u64,
        /// Whether to include the avatars of users and rooms.
        pictures: bool,
    },
}

/// The id of the file that an id or an address names.
pub(super) fn media_id(context: &ActContext, name: &str) -> Result<String, ActError> {
    let id = match <&MxcUri>::from(name).parts() {
        Ok((server, id)) if *server == context.engine.env().server.name => id,
        Ok(_) => return Err(ActError::NoMedia(name.to_owned())),
        Err(_) => name,
    };
    match context.engine.state().media.get(id) {
        Some(Item::Stored(_)) => Ok(id.to_owned()),
        _ => Err(ActError::NoMedia(name.to_owned())),
    }
}

/// The address, if it is one of a file of another homeserver.
fn remote(context: &ActContext, name: &str) -> Option<OwnedMxcUri> {
    let address = OwnedMxcUri::from(name);
    let (server, _) = address.parts().ok()?;
    (*server != context.engine.env().server.name).then_some(address)
}

/// The ids of files of this server, and the addresses of those of others.
pub(super) fn ids(
    context: &ActContext,
    of: &MediaOf,
) -> Result<(Vec<String>, Vec<OwnedMxcUri>), ActError> {
    match of {
        MediaOf::Id(id) => match remote(context, id) {
            Some(address) => Ok((Vec::new(), vec![address])),
            None => Ok((vec![media_id(context, id)?], Vec::new())),
        },
        MediaOf::User(user) => {
            let own = context.engine.state().media.of_user(&context.user_id(user)?);
            Ok((own.into_iter().map(|(id, _)| id.into()).collect(), Vec::new()))
        }
        MediaOf::Ids(ids) => {
            let there = ids.iter().map(|id| media_id(context, id));
            Ok((there.collect::<Result<_, _>>()?, Vec::new()))
        }
        MediaOf::Before { before_ms, larger_than, pictures } => {
            let shown =
                if *pictures { HashSet::new() } else { erasure::pictures(&context.engine)? };
            let all = context.engine.state().media.all().into_iter();
            let old = all.filter(|(id, stored)| {
                stored.time_ms < *before_ms && stored.size > *larger_than && !shown.contains(&**id)
            });
            Ok((old.map(|(id, _)| id.to_string()).collect(), Vec::new()))
        }
        MediaOf::Room(room) => {
            let found = background::at_length(|| addresses_in(context, room))?;
            let own_name = &context.engine.env().server.name;
            let (mut own, mut remote) = (Vec::new(), Vec::new());
            for address in found {
                match address.parts() {
                    Ok((server, id)) if server == own_name => own.push(id.to_owned()),
                    Ok(_) => remote.push(address),
                    Err(_) => {}
                }
            }
            let media = &context.engine.state().media;
            own.retain(|id| matches!(media.get(id), Some(Item::Stored(_))));
            Ok((own, remote))
        }
    }
}

/// The addresses that the unencrypted events of a room name.
fn addresses_in(context: &ActContext, room: &str) -> Result<BTreeSet<OwnedMxcUri>, ActError> {
    let room = context.room(room)?;
    let mut found = BTreeSet::new();
    let mut after = Offset::ZERO;
    loop {
        let offsets = room.events_forward(after, Offset::MAX, EVENTS);
        let Some(last) = offsets.last() else { return Ok(found) };
        after = *last;
        for event in context.engine.events().get_all(&offsets)? {
            let content: Value = event.content_as().unwrap_or_default();
            let texts = POINTERS.iter().filter_map(|at| content.pointer(at)?.as_str());
            found.extend(texts.map(OwnedMxcUri::from).filter(|address| address.is_valid()));
        }
    }
}
