//! What users keep for themselves: account data, tags, and filters.

use ruma::{OwnedRoomId, OwnedUserId};
use serde_json::value::RawValue;

use super::{Commit, Env, Proposal, Refusal, account::no_account};
use logcabin_base::limits;
use logcabin_read::events::to_raw;
use logcabin_record::{
    Offset, Stream,
    command::{AccountDataSet, FilterCreate},
};

/// Set account data.
#[derive(Clone, Debug)]
pub struct SetAccountData {
    pub user_id: OwnedUserId,
    /// The room, for account data of a room.
    pub room_id: Option<OwnedRoomId>,
    pub event_type: String,
    /// The content: a JSON object, or `null` to delete it.
    pub content: Box<RawValue>,
}

impl Proposal for SetAccountData {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let set = AccountDataSet {
            user_id: self.user_id.clone(),
            room_id: self.room_id.clone(),
            event_type: self.event_type.clone(),
            content: self.content.clone(),
        };
        commit.env.quotas.account_data(&commit.env.state, &set)?;
        commit.append(self.stream(), set);
        Ok(())
    }
}

/// Set or remove a tag of a room.
#[derive(Clone, Debug)]
pub struct SetTag {
    pub user_id: OwnedUserId,
    pub room_id: OwnedRoomId,
    pub tag: String,
    /// The tag's content; `None` removes the tag.
    pub info: Option<serde_json::Map<String, serde_json::Value>>,
}

impl Proposal for SetTag {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    // All tags of a room are one piece of account data. They are read within the commit, so that
    // concurrent changes do not undo each other.
    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Env { state, events, .. } = commit.env;
        if !state.accounts.contains(&self.user_id) {
            return Err(no_account());
        }
        let room_id = Some(&*self.room_id);
        let before = events.account_data(state, &self.user_id, room_id, "m.tag", Offset::MAX)?;
        let before: serde_json::Map<String, serde_json::Value> =
            before.and_then(|before| serde_json::from_str(before.get()).ok()).unwrap_or_default();
        let mut content = before.clone();
        // A client may have set any content for this type.
        let tags = content.entry("tags").or_insert_with(|| serde_json::json!({}));
        if !tags.is_object() {
            *tags = serde_json::json!({});
        }
        if let Some(tags) = tags.as_object_mut() {
            let is_new = self.info.is_some() && !tags.contains_key(&self.tag);
            if is_new && tags.len() >= limits::TAGS {
                let most = limits::TAGS;
                let why = format!("A room can have at most {most} tags. Remove one first.");
                return Err(Refusal::OverQuota(why));
            }
            match &self.info {
                Some(info) => tags.insert(self.tag.clone(), info.clone().into()),
                None => tags.remove(&self.tag),
            };
            if self.info.is_none() && tags.is_empty() && !before.contains_key("tags") {
                return Ok(());
            }
        }
        if content == before {
            return Ok(());
        }
        let content = to_raw(&content);
        // Removing a tag always works, even if the content is too large already.
        if self.info.is_some() && content.get().len() > limits::ACCOUNT_DATA_BYTES {
            return Err(Refusal::TooLarge("The room has too many tags.".to_owned()));
        }
        let set = SetAccountData {
            user_id: self.user_id.clone(),
            room_id: Some(self.room_id.clone()),
            event_type: "m.tag".to_owned(),
            content,
        };
        set.decide(commit)
    }
}

/// Store a filter.
#[derive(Clone, Debug)]
pub struct CreateFilter {
    pub user_id: OwnedUserId,
    /// The filter as the client sent it.
    pub filter: Box<RawValue>,
}

impl Proposal for CreateFilter {
    /// The filter's id.
    type Outcome = String;

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<String, Refusal> {
        // The id is a hash of the filter: a client that uploads the same one at each start adds
        // nothing. Hex never begins with `{`.
        let hash = blake3::hash(self.filter.get().as_bytes()).to_hex();
        let filter_id = hash[..16].to_owned();
        let account = commit.env.state.accounts.get(&self.user_id).ok_or_else(no_account)?;
        if !account.read().filters.contains_key(&filter_id) {
            let length = self.filter.get().len();
            commit.env.quotas.filter(&commit.env.state, &self.user_id, length)?;
            commit.append(
                self.stream(),
                FilterCreate {
                    user_id: self.user_id.clone(),
                    filter_id: filter_id.clone(),
                    filter: self.filter.clone(),
                },
            );
        }
        Ok(filter_id)
    }
}
