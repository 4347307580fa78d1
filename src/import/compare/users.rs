//! Users: accounts, sessions, profiles, account data, push rules, keys and their backups, files.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use ruma::{OwnedDeviceId, OwnedRoomId, OwnedUserId, UserId};
use serde_json::Value;

use logcabin_base::limits;
use logcabin_read::notifications::ruleset;
use logcabin_record::{Command, command::AccountKind};

use super::{Compared, Imported, Reason, Subject, each, grants, lost, sample, unread};
use crate::{
    ImportError,
    facts::{Account, AccountData, Fact, KeyUse, Section, Source},
};

/// Default rules of Synapse that the specification does not have, or no longer.
const NO_SUCH_RULE: &str = "the server has the default rules of the specification";

pub(super) fn compare(
    source: &mut dyn Source,
    files: Option<&Path>,
    copy: &Imported,
    number: Option<usize>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    let mut names = Vec::new();
    each(source, Section::Accounts, |fact| {
        if let Fact::Account(account) = fact {
            names.push(account.user_id);
        }
        Ok(())
    })?;
    let users = sample(names, number);
    each(source, Section::Accounts, |fact| {
        if let Fact::Account(theirs) = fact
            && users.contains(&theirs.user_id)
        {
            compared.is(Subject::Accounts, theirs.user_id.clone(), account(copy, &theirs));
        }
        Ok(())
    })?;
    grants::sessions(source, copy, &users, compared)?;
    profiles(source, copy, &users, compared)?;
    data(source, copy, &users, compared)?;
    push_rules(source, copy, &users, compared)?;
    unread::counts(source, copy, &users, compared)?;
    device_keys(source, copy, &users, compared)?;
    one_time_keys(source, copy, &users, compared)?;
    cross_signing(source, copy, &users, compared)?;
    backups(source, copy, &users, compared)?;
    media(source, files, copy, &users, compared)
}

/// A user's id, if today's grammar takes it. That an account is missing is said once.
pub(super) fn id(users: &BTreeSet<String>, user_id: &str) -> Option<OwnedUserId> {
    users.contains(user_id).then(|| OwnedUserId::try_from(user_id).ok()).flatten()
}

fn account(copy: &Imported, theirs: &Account) -> Result<(), Reason> {
    let Ok(user_id) = OwnedUserId::try_from(theirs.user_id.as_str()) else {
        return Err(Reason::explained("it is not there", "no user id may be like that today"));
    };
    let Some(account) = copy.state.accounts.get(&user_id) else {
        return Err(Reason::fault("it is not there"));
    };
    let account = account.read();
    let standing = account.standing;
    // Nobody can use a deactivated account, so whatever else it was does not matter.
    if theirs.deactivated {
        return match standing.deactivated {
            Some(_) => Ok(()),
            None => Err(Reason::fault("it is deactivated there")),
        };
    }
    for (what, there, here) in [
        ("an administrator", theirs.admin, standing.admin),
        ("locked", theirs.locked, standing.locked),
        ("suspended", theirs.suspended, standing.suspended),
        ("shadow-banned", theirs.is_shadow_banned(), standing.shadow_banned),
        ("waiting for approval", !theirs.approved, standing.waiting.is_some()),
        ("deactivated", false, standing.deactivated.is_some_and(|since| since <= copy.at)),
        ("a guest", theirs.guest, account.kind == AccountKind::Guest),
    ] {
        if there != here {
            let not = |is: bool| if is { "" } else { "not " };
            return Err(Reason::fault(format!(
                "it is {}{what} there, and {}{what} here",
                not(there),
                not(here)
            )));
        }
    }
    let has_password = matches!(account.password.latest(), Some(Some(_)));
    match (theirs.password.is_some(), has_password) {
        (true, false) => Err(Reason::fault("it has a password there, and none here")),
        (false, true) => Err(Reason::fault("it has a password here, and none there")),
        _ => Ok(()),
    }
}

fn profiles(
    source: &mut dyn Source,
    copy: &Imported,
    users: &BTreeSet<String>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    each(source, Section::Profiles, |fact| {
        let Fact::Profile(field) = fact else { return Ok(()) };
        let Some(user_id) = id(users, &field.user_id) else { return Ok(()) };
        let Some(account) = copy.state.accounts.get(&user_id) else { return Ok(()) };
        let account = account.read();
        let found = match account.profile_field(&field.field) {
            Some(ours) if *ours == field.value => Ok(()),
            None if field.value.is_null() => Ok(()),
            None if account.standing.deactivated.is_some() => {
                Err(Reason::explained("it is gone", "the account is deactivated"))
            }
            _ => Err(Reason::fault("it is not the same")),
        };
        compared.is(Subject::Profiles, format!("{user_id} {}", field.field), found);
        Ok(())
    })
}

/// Types of account data that Synapse keeps in tables of their own.
const OTHERS: [&str; 2] = [ruleset::EVENT_TYPE, "m.tag"];

/// Whether the import leaves it for its size. It takes more than clients may set.
fn is_too_large(data: &AccountData) -> bool {
    data.content.get().len() > limits::IMPORT_ACCOUNT_DATA_BYTES
}

/// Account data, and tags, which are a kind of it.
fn data(
    source: &mut dyn Source,
    copy: &Imported,
    users: &BTreeSet<String>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    each(source, Section::AccountData, |fact| {
        let Fact::AccountData(theirs) = fact else { return Ok(()) };
        let Some(user_id) = id(users, &theirs.user_id) else { return Ok(()) };
        let room_id = theirs.room_id.as_deref().map(OwnedRoomId::try_from);
        let of_room = theirs.room_id.as_deref().unwrap_or_default();
        let of = format!("{user_id} {of_room} {}", theirs.event_type);
        // One for a room whose id is none is nobody's.
        let Ok(room_id) = room_id.transpose() else { return Ok(()) };
        let ours = stored(copy, &user_id, room_id, &theirs.event_type)?;
        let content: Option<Value> = serde_json::from_str(theirs.content.get()).ok();
        let found = if ours == content {
            Ok(())
        } else if is_too_large(&theirs) {
            Err(Reason::explained("it is not there", "it is larger than account data may be"))
        } else if OTHERS.contains(&theirs.event_type.as_str()) {
            Err(Reason::explained("it is not the same", "other rows say what it is"))
        } else {
            Err(Reason::fault("it is not the same"))
        };
        compared.is(Subject::AccountData, of, found);
        Ok(())
    })?;
    each(source, Section::Tags, |fact| {
        let Fact::Tag(tag) = fact else { return Ok(()) };
        let Some(user_id) = id(users, &tag.user_id) else { return Ok(()) };
        let Ok(room_id) = OwnedRoomId::try_from(tag.room_id.as_str()) else { return Ok(()) };
        let ours = stored(copy, &user_id, Some(room_id), "m.tag")?;
        let ours = ours.as_ref().and_then(|content| content.get("tags")?.get(&tag.tag));
        let theirs: Option<Value> = serde_json::from_str(tag.content.get()).ok();
        let is_same = ours.is_some() && ours == theirs.as_ref();
        let found = if is_same { Ok(()) } else { Err(Reason::fault("the tag is not the same")) };
        compared.is(Subject::AccountData, format!("{user_id} {} {}", tag.room_id, tag.tag), found);
        Ok(())
    })
}

/// Account data as it is stored in the log.
fn stored(
    copy: &Imported,
    user_id: &UserId,
    room_id: Option<OwnedRoomId>,
    event_type: &str,
) -> Result<Option<Value>, ImportError> {
    let room_id = room_id.as_deref();
    let stored = copy.events.account_data(&copy.state, user_id, room_id, event_type, copy.at);
    let stored = stored.map_err(lost)?;
    Ok(stored.and_then(|content| serde_json::from_str(content.get()).ok()))
}

/// The rules of a user, as clients are shown them.
struct ShownRules(Value);

impl ShownRules {
    fn of(copy: &Imported, user_id: &UserId) -> Result<Self, ImportError> {
        let kept =
            copy.events.account_data(&copy.state, user_id, None, ruleset::EVENT_TYPE, copy.at);
        let shown = ruleset::shown_content(user_id, kept.map_err(lost)?.as_deref());
        let content: Value = serde_json::from_str(shown.get()).unwrap_or_default();
        Ok(Self(content["global"].clone()))
    }

    fn rule(&self, kind: &str, rule_id: &str) -> Option<&Value> {
        self.0.get(kind)?.as_array()?.iter().find(|rule| rule["rule_id"] == rule_id)
    }
}

fn push_rules(
    source: &mut dyn Source,
    copy: &Imported,
    users: &BTreeSet<String>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    // The facts come user by user, so that the rules of one are made once.
    let mut shown: Option<(OwnedUserId, ShownRules)> = None;
    let mut rules_of = |user_id: &OwnedUserId| -> Result<_, ImportError> {
        if shown.as_ref().is_none_or(|(of, _)| of != user_id) {
            shown = Some((user_id.clone(), ShownRules::of(copy, user_id)?));
        }
        Ok(shown.as_ref().map(|(_, rules)| rules.0.clone()).unwrap_or_default())
    };
    each(source, Section::PushRules, |fact| {
        let Fact::PushRule(theirs) = fact else { return Ok(()) };
        let Some(user_id) = id(users, &theirs.user_id) else { return Ok(()) };
        let rules = ShownRules(rules_of(&user_id)?);
        let actions: Value = serde_json::from_str(theirs.actions.get()).unwrap_or_default();
        let found = match rules.rule(&theirs.kind, &theirs.rule_id) {
            Some(ours) if same_actions(&ours["actions"], &actions) => Ok(()),
            Some(_) => Err(Reason::fault("its actions are not the same")),
            None if theirs.rule_id.starts_with('.') => {
                Err(Reason::explained("it is not there", NO_SUCH_RULE))
            }
            None => Err(Reason::fault("it is not there")),
        };
        let of = format!("{user_id} {} {}", theirs.kind, theirs.rule_id);
        compared.is(Subject::PushRules, of, found);
        Ok(())
    })?;
    each(source, Section::PushRuleChanges, |fact| {
        let Fact::PushRuleChange(theirs) = fact else { return Ok(()) };
        let Some(user_id) = id(users, &theirs.user_id) else { return Ok(()) };
        let rules = ShownRules(rules_of(&user_id)?);
        let found = match rules.rule(&theirs.kind, &theirs.rule_id) {
            Some(ours) if ours["enabled"] == theirs.enabled => Ok(()),
            Some(_) => Err(Reason::fault("it is on in one, and off in the other")),
            None => Err(Reason::explained("it is not there", NO_SUCH_RULE)),
        };
        let of = format!("{user_id} {} {}", theirs.kind, theirs.rule_id);
        compared.is(Subject::PushRules, of, found);
        Ok(())
    })
}

/// Actions that do nothing, and a tweak's default value, may be left out.
fn same_actions(one: &Value, other: &Value) -> bool {
    let essential = |actions: &Value| -> Vec<Value> {
        let actions = actions.as_array().into_iter().flatten();
        let actions = actions.filter(|action| *action != "dont_notify" && *action != "coalesce");
        let plain = |action: &Value| {
            let mut action = action.clone();
            if action["set_tweak"] == "highlight"
                && action["value"] == true
                && let Some(tweak) = action.as_object_mut()
            {
                tweak.remove("value");
            }
            action
        };
        actions.map(plain).collect()
    };
    essential(one) == essential(other)
}

fn device_keys(
    source: &mut dyn Source,
    copy: &Imported,
    users: &BTreeSet<String>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    each(source, Section::DeviceKeys, |fact| {
        let Fact::DeviceKeys(theirs) = fact else { return Ok(()) };
        let Some(user_id) = id(users, &theirs.user_id) else { return Ok(()) };
        let device_id = OwnedDeviceId::from(theirs.device_id.as_str());
        let record = copy.state.keys.of_device(&user_id, &device_id, |keys| keys.identity);
        let command = match record.flatten() {
            Some(record) => copy.events.command(record).map_err(lost)?,
            None => None,
        };
        let ours = match command {
            Some(Command::KeysUpload(upload)) => upload.device_keys,
            _ => None,
        };
        let ours = ours.and_then(|keys| keys_alone(keys.get()));
        let found = match (ours, keys_alone(theirs.keys.get())) {
            (Some(ours), Some(theirs)) if ours == theirs => Ok(()),
            (_, None) => Err(Reason::explained("it is not there", "it is no object there")),
            (Some(_), _) => Err(Reason::fault("they are not the same")),
            (None, _) => Err(Reason::fault("they are not there")),
        };
        compared.is(Subject::DeviceKeys, format!("{user_id} {device_id}"), found);
        Ok(())
    })
}

/// Keys without what servers add for clients.
fn keys_alone(text: &str) -> Option<Value> {
    let mut keys: Value = serde_json::from_str(text).ok()?;
    keys.as_object_mut()?.remove("unsigned");
    Some(keys)
}

fn one_time_keys(
    source: &mut dyn Source,
    copy: &Imported,
    users: &BTreeSet<String>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    each(source, Section::OneTimeKeys, |fact| {
        let Fact::OneTimeKey(theirs) = fact else { return Ok(()) };
        let Some(user_id) = id(users, &theirs.user_id) else { return Ok(()) };
        let device_id = OwnedDeviceId::from(theirs.device_id.as_str());
        let known = copy.state.keys.of_device(&user_id, &device_id, |keys| {
            (keys.one_time_key(&theirs.key_id).is_some(), keys.was_claimed(&theirs.key_id))
        });
        let found = match known {
            Some((true, _)) => Ok(()),
            Some((false, true)) => {
                Err(Reason::explained("it is gone", "it was handed out here since"))
            }
            _ => Err(Reason::fault("it is not there")),
        };
        let of = format!("{user_id} {device_id} {}", theirs.key_id);
        compared.is(Subject::OneTimeKeys, of, found);
        Ok(())
    })
}

fn cross_signing(
    source: &mut dyn Source,
    copy: &Imported,
    users: &BTreeSet<String>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    each(source, Section::CrossSigningKeys, |fact| {
        let Fact::CrossSigningKey(theirs) = fact else { return Ok(()) };
        let Some(user_id) = id(users, &theirs.user_id) else { return Ok(()) };
        let record = copy.state.keys.get(&user_id).and_then(|keys| {
            let keys = keys.read();
            match theirs.key_use {
                KeyUse::Master => keys.master_key,
                KeyUse::SelfSigning => keys.self_signing_key,
                KeyUse::UserSigning => keys.user_signing_key,
            }
        });
        let command = match record {
            Some(record) => copy.events.command(record).map_err(lost)?,
            None => None,
        };
        let ours = match command {
            Some(Command::KeysCrossSign(keys)) => match theirs.key_use {
                KeyUse::Master => keys.master_key,
                KeyUse::SelfSigning => keys.self_signing_key,
                KeyUse::UserSigning => keys.user_signing_key,
            },
            _ => None,
        };
        // Signatures are kept apart, and may have been added later on either side.
        let public = |text: &str| serde_json::from_str::<Value>(text).ok()?.get("keys").cloned();
        let ours = ours.and_then(|key| public(key.get()));
        let is_same = ours.is_some() && ours == public(theirs.key.get());
        let found = if is_same { Ok(()) } else { Err(Reason::fault("it is not the same")) };
        compared.is(Subject::CrossSigningKeys, format!("{user_id} {:?}", theirs.key_use), found);
        Ok(())
    })
}

fn backups(
    source: &mut dyn Source,
    copy: &Imported,
    users: &BTreeSet<String>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    // By user and version, and only of those that were not deleted.
    let mut counts: BTreeMap<(String, i64), u64> = BTreeMap::new();
    each(source, Section::KeyBackups, |fact| {
        if let Fact::KeyBackup(backup) = fact
            && !backup.deleted
            && users.contains(&backup.user_id)
        {
            counts.insert((backup.user_id, backup.version), 0);
        }
        Ok(())
    })?;
    each(source, Section::BackedUpKeys, |fact| {
        if let Fact::BackedUpKey(key) = fact
            && let Some(count) = counts.get_mut(&(key.user_id, key.version))
        {
            *count += 1;
        }
        Ok(())
    })?;
    for ((of, version), theirs) in counts {
        let Ok(user_id) = OwnedUserId::try_from(of.as_str()) else { continue };
        let ours = copy.state.key_backups.get(&user_id).and_then(|backups| {
            let number = u64::try_from(version).ok()?;
            backups.read().get(number).map(|backup| backup.count)
        });
        let found = match ours {
            Some(ours) if ours == theirs => Ok(()),
            Some(ours) => Err(Reason::fault(format!("{theirs} keys there, {ours} here"))),
            None => Err(Reason::fault("it is not there")),
        };
        compared.is(Subject::KeyBackups, format!("{of} version {version}"), found);
    }
    Ok(())
}

fn media(
    source: &mut dyn Source,
    files: Option<&Path>,
    copy: &Imported,
    users: &BTreeSet<String>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    each(source, Section::Media, |fact| {
        let Fact::Media(theirs) = fact else { return Ok(()) };
        let Some(user_id) = theirs.user_id.as_deref().filter(|of| users.contains(*of)) else {
            return Ok(());
        };
        let found = match copy.state.media.get(&theirs.media_id) {
            Some(_) => Ok(()),
            None if theirs.size.is_none() => {
                Err(Reason::explained("it is not there", "nothing was uploaded"))
            }
            None if files.is_some_and(|files| !files.join(&theirs.path).is_file()) => {
                Err(Reason::explained("it is not there", "its file is missing there"))
            }
            None => Err(Reason::fault("it is not there")),
        };
        compared.is(Subject::Media, format!("{user_id} {}", theirs.media_id), found);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_data_that_the_import_leaves_is_too_large() {
        let of = |bytes: usize| AccountData {
            user_id: "@u:a.example".to_owned(),
            room_id: None,
            event_type: "m.x".to_owned(),
            content: serde_json::value::to_raw_value(&"x".repeat(bytes)).expect("JSON"),
        };
        assert!(!is_too_large(&of(limits::ACCOUNT_DATA_BYTES + 1)));
        assert!(is_too_large(&of(limits::IMPORT_ACCOUNT_DATA_BYTES + 1)));
    }

    #[test]
    fn actions_are_the_same_if_they_do_the_same() {
        let loud = json!(["notify", { "set_tweak": "highlight" }]);
        let in_full = json!(["notify", { "set_tweak": "highlight", "value": true }]);
        assert!(same_actions(&loud, &in_full));
        assert!(same_actions(&json!([]), &json!(["dont_notify"])));
        assert!(!same_actions(&loud, &json!(["notify"])));
        let quiet = json!(["notify", { "set_tweak": "highlight", "value": false }]);
        assert!(!same_actions(&loud, &quiet));
    }
}
