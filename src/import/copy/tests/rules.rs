//! What is left of a source, and that a check says so before.

use super::*;
use crate::{
    check::check,
    compare::{Extent, NOT_COMPARED, compare},
};

/// Of a user who is not there, or whose id cannot be one, and what is odd by itself.
fn odd(ann: &str) -> Vec<(Section, Fact)> {
    let gone = format!("@gone:{OWN}");
    let (room_id, device_id) = (ROOM.to_owned(), "GONE".to_owned());
    let value = json!("x");
    let data = |user_id: &str, event_type: &str| {
        Fact::AccountData(facts::AccountData {
            user_id: user_id.to_owned(),
            room_id: None,
            event_type: event_type.to_owned(),
            content: raw(&json!({})),
        })
    };
    let threepid = |user_id: &str, address: &str| {
        Fact::Threepid(facts::Threepid {
            user_id: user_id.to_owned(),
            medium: "email".to_owned(),
            address: address.to_owned(),
            validated_ms: 1,
            added_ms: 1,
        })
    };
    let pusher = |user_id: &str, kind: &str| {
        Fact::Pusher(facts::Pusher {
            user_id: user_id.to_owned(),
            device_id: None,
            kind: kind.to_owned(),
            app_id: "app".to_owned(),
            pushkey: "key".to_owned(),
            app_display_name: String::new(),
            device_display_name: String::new(),
            profile_tag: None,
            lang: None,
            data: None,
            enabled: true,
            created_ms: 1,
            told_up_to: None,
            succeeded_ms: None,
            failing_since_ms: None,
        })
    };
    let receipt = |event_id: &str| {
        Fact::Receipt(facts::Receipt {
            room_id: ROOM.to_owned(),
            user_id: ann.to_owned(),
            receipt_type: "m.read".to_owned(),
            event_id: event_id.to_owned(),
            thread_id: None,
            ts_ms: 5,
            stream: 1,
        })
    };
    let alias = |alias: &str| {
        let (alias, room_id) = (alias.to_owned(), ROOM.to_owned());
        Fact::Alias(facts::Alias { alias, room_id, creator: None })
    };
    let media = facts::Media {
        media_id: "unused".to_owned(),
        user_id: Some(ann.to_owned()),
        created_ms: 1,
        content_type: None,
        name: None,
        size: None,
        used_ms: None,
        quarantined_by: None,
        protected: false,
        authenticated: false,
        sha256: None,
        path: "local_content/un/us/ed".to_owned(),
    };
    let keys = facts::DeviceKeys {
        user_id: ann.to_owned(),
        device_id: device_id.clone(),
        keys: raw(&json!({})),
        uploaded_ms: None,
    };
    let one_time = facts::OneTimeKey {
        user_id: ann.to_owned(),
        device_id: device_id.clone(),
        key_id: "signed_curve25519:A".to_owned(),
        key: raw(&json!({})),
        uploaded_ms: None,
    };
    let message = facts::ToDevice {
        user_id: ann.to_owned(),
        device_id,
        stream: 1,
        message: raw(&json!({ "sender": ann, "type": "m.x", "content": {} })),
    };
    let profile = facts::Profile { user_id: gone.clone(), field: "displayname".to_owned(), value };
    let filter = facts::Filter { user_id: gone.clone(), filter_id: 0, filter: raw(&json!({})) };
    let (provider, subject) = ("oidc-x".to_owned(), "s".to_owned());
    let external = facts::ExternalId { user_id: gone.clone(), provider, subject };
    let delayed = facts::DelayedEvent {
        delay_id: "d".to_owned(),
        user_id: ann.to_owned(),
        device_id: None,
        delay_ms: 1,
        send_ms: 2,
        room_id,
        event_type: "m.x".to_owned(),
        state_key: None,
        origin_ms: None,
        content: raw(&json!({})),
        is_processed: true,
    };
    let rule = facts::PushRule {
        user_id: ann.to_owned(),
        kind: "room".to_owned(),
        rule_id: "no room".to_owned(),
        priority: 1,
        conditions: raw(&json!([])),
        actions: raw(&json!([])),
        enabled: true,
    };
    let peer_key = facts::PeerKey {
        server_name: "b.example".to_owned(),
        key_id: "ed25519:1".to_owned(),
        from_server: "b.example".to_owned(),
        added_ms: None,
        valid_until_ms: None,
        document: None,
        public: None,
    };
    vec![
        (Section::Accounts, account("@bob:b.example")),
        (Section::Accounts, account("nobody")),
        (Section::Profiles, Fact::Profile(profile)),
        (Section::AccountData, data(&gone, "m.x")),
        (Section::AccountData, data(ann, "m.push_rules")),
        (Section::AccountData, data(ann, "m.tag")),
        (Section::Filters, Fact::Filter(filter)),
        (Section::Threepids, threepid(&gone, "gone@example.org")),
        (Section::Threepids, threepid(ann, "no address")),
        (Section::ExternalIds, Fact::ExternalId(external)),
        (Section::Pushers, pusher(&gone, "http")),
        (Section::Pushers, pusher(ann, "pigeon")),
        (Section::DeviceKeys, Fact::DeviceKeys(keys)),
        (Section::OneTimeKeys, Fact::OneTimeKey(one_time)),
        (Section::ToDevice, Fact::ToDevice(message)),
        (Section::Receipts, receipt("$unknown")),
        (Section::Aliases, alias("#x:b.example")),
        (Section::Aliases, alias("#x:a.example")),
        (Section::DelayedEvents, Fact::DelayedEvent(delayed)),
        (Section::PushRules, Fact::PushRule(rule)),
        (Section::PeerKeys, Fact::PeerKey(peer_key)),
        (Section::Media, Fact::Media(media)),
    ]
}

#[test]
fn a_check_leaves_what_a_copy_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, ..) = made(&[]);
    let ann = format!("@ann:{OWN}");
    source.tell(Section::Accounts, account(&ann));
    log_in(&mut source, &ann, "D");
    // The same device again, with an older token.
    let older = source.sections[&Section::AccessTokens][0].fact.clone();
    let Fact::AccessToken(older) = older else { panic!("no token") };
    let token = facts::Token::Plain(facts::Secret("an older token".to_owned()));
    let used_ms = Some(-1);
    source.tell(
        Section::AccessTokens,
        Fact::AccessToken(facts::AccessToken { token, used_ms, ..older }),
    );
    let odd = odd(&ann);
    let count = odd.len() as u64 + 1;
    for (section, fact) in odd {
        source.tell(section, fact);
    }
    let report = check(&mut source, dir.path()).unwrap();
    let faults: Vec<_> = report.faults.iter().map(ToString::to_string).collect();
    assert_eq!(report.faults_in_all, count, "{faults:#?}");
    copy_in(dir.path(), &mut source).unwrap();
    let finished = finish_in(dir.path(), &mut source).unwrap();
    let left = &finished.copied.left;
    assert_eq!(left.iter().map(|left| left.count).sum::<u64>(), count, "{left:#?}");
    for left in left {
        let said = report.faults.iter().filter(|bad| bad.why.starts_with(&*left.reason)).count();
        assert!(said > 0, "{}: {faults:#?}", left.reason);
    }
    // Nothing of them is in the log.
    for (kind, expected) in [
        ("user.register", 1),
        ("profile.set", 0),
        ("account_data.set", 1),
        ("filter.create", 0),
        ("threepid.add", 0),
        ("sso.link", 0),
        ("pusher.set", 0),
        ("keys.upload", 1),
        ("to_device.send", 0),
    ] {
        assert_eq!(payloads(dir.path(), kind).len(), expected, "{kind}");
    }
}

#[test]
fn a_source_that_is_being_upgraded_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, ..) = made(&[]);
    source.unready = vec!["an_update".to_owned()];
    assert!(check(&mut source, dir.path()).unwrap().refused.is_some());
    for refused in [
        copy_in(dir.path(), &mut source).unwrap_err(),
        finish_in(dir.path(), &mut source).unwrap_err(),
    ] {
        assert!(refused.to_string().contains("an_update"), "{refused}");
    }
    source.unready.clear();
    assert!(check(&mut source, dir.path()).unwrap().refused.is_none());
    finish_in(dir.path(), &mut source).unwrap();
}

#[test]
fn all_that_comes_along_is_compared_or_said_not_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, ..) = made(&[]);
    finish_in(dir.path(), &mut source).unwrap();
    source.read.clear();
    compare(&mut source, None, dir.path(), Extent::default()).unwrap();
    let said = NOT_COMPARED.iter().flat_map(|(sections, _)| sections.iter().copied());
    let said: BTreeSet<Section> = said.collect();
    let both: Vec<_> = said.intersection(&source.read).collect();
    assert!(both.is_empty(), "{both:?} are compared");
    let all = sections::ALL.iter().copied();
    let unsaid: Vec<_> = all.filter(|of| !said.contains(of) && !source.read.contains(of)).collect();
    assert!(unsaid.is_empty(), "nobody says that {unsaid:?} are not compared");
}

#[test]
fn a_room_that_becomes_partial_while_the_source_is_followed_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let steps: Vec<_> = (0..5).map(|number| (8, 0, number, number)).collect();
    let (mut source, ..) = made(&steps);
    source.up_to = Some(3);
    copy_in(dir.path(), &mut source).unwrap();
    (source.up_to, source.partial) = (Some(5), Some(vec![ROOM.to_owned()]));
    let copied = copy_in(dir.path(), &mut source).unwrap();
    let left: Vec<_> = copied.left.iter().map(|left| (&*left.reason, left.count)).collect();
    assert_eq!(left, [(super::super::rules::PARTIAL, 2)]);
    // What it lacks of the room stays missing, so the room does.
    (source.up_to, source.partial) = (None, Some(Vec::new()));
    let finished = finish_in(dir.path(), &mut source).unwrap();
    let left = finished.copied.left.iter().filter(|left| left.table == "rows");
    assert_eq!(left.map(|left| left.count).sum::<u64>(), 5, "{:?}", finished.copied.left);
}
