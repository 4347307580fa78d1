//! What is taken back from an account, or from a file, after the copy.

use super::*;

fn set(source: &mut Memory, change: impl Fn(&mut facts::Account)) {
    for told in source.sections.get_mut(&Section::Accounts).unwrap() {
        if let Fact::Account(fact) = &mut told.fact {
            change(fact);
        }
    }
}

fn password(hash: &str) -> Option<facts::Password> {
    Some(facts::Password::Bcrypt {
        hash: facts::Secret(hash.to_owned()),
        preparation: facts::Preparation::Nfkc,
        peppered: false,
    })
}

/// The state of an account after an import, during which it was changed.
fn imported(
    before: impl Fn(&mut facts::Account),
    after: impl Fn(&mut facts::Account),
) -> (bool, bool, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, ..) = made(&[]);
    let ann = format!("@ann:{OWN}");
    source.tell(Section::Accounts, account(&ann));
    set(&mut source, before);
    copy_in(dir.path(), &mut source).unwrap();
    set(&mut source, after);
    finish_in(dir.path(), &mut source).unwrap();
    let (_, records) = records(dir.path());
    let state = State::default();
    for record in &records {
        state.apply(record).unwrap();
    }
    let status = state.accounts.standing(<&ruma::UserId>::try_from(&*ann).unwrap()).unwrap();
    let passwords = ["user.register", "user.password"];
    let passwords = passwords.iter().flat_map(|kind| payloads(dir.path(), kind));
    let passwords = passwords.filter_map(|of| of["password"].as_str().map(str::to_owned));
    (status.guest, status.deactivated.is_some(), passwords.collect())
}

#[test]
fn what_is_taken_back_from_an_account_after_the_copy_does_not_come_along() {
    let none = |_: &mut facts::Account| ();
    let deactivated = |fact: &mut facts::Account| fact.deactivated = true;
    let active = |fact: &mut facts::Account| fact.deactivated = false;
    assert_eq!(imported(deactivated, none), (false, true, vec![]));
    assert_eq!(imported(deactivated, active), (false, false, vec![]));
    let guest = |fact: &mut facts::Account| fact.guest = true;
    let upgraded = |fact: &mut facts::Account| fact.guest = false;
    assert!(imported(guest, none).0);
    assert!(!imported(guest, upgraded).0);
    let old = |fact: &mut facts::Account| fact.password = password("$2b$12$old");
    let new = |fact: &mut facts::Account| fact.password = password("$2b$12$new");
    let gone = |fact: &mut facts::Account| fact.password = None;
    assert_eq!(imported(old, gone).2, Vec::<String>::new());
    assert_eq!(imported(old, new).2, ["{nfkc}$2b$12$new"]);
}

#[test]
fn a_file_that_was_released_after_the_copy_is_not_in_quarantine() {
    for is_released in [false, true] {
        let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(files.path().join("picture"), b"a picture").unwrap();
        let (mut source, ..) = made(&[]);
        let ann = format!("@ann:{OWN}");
        source.tell(Section::Accounts, account(&ann));
        let mut media = facts::Media {
            media_id: "PICTURE".to_owned(),
            user_id: Some(ann),
            created_ms: 5,
            content_type: None,
            name: None,
            size: Some(9),
            used_ms: None,
            quarantined_by: Some("@root:a.example".to_owned()),
            protected: true,
            authenticated: true,
            sha256: None,
            path: "picture".to_owned(),
        };
        source.tell(Section::Media, Fact::Media(media.clone()));
        let (from, stop) = (Some(files.path()), AtomicBool::new(false));
        let options = options(dir.path());
        copy(&mut source, from, &options, &stop, &mut |_| ()).unwrap();
        if is_released {
            (media.quarantined_by, media.protected) = (None, false);
            source.sections.remove(&Section::Media);
            source.tell(Section::Media, Fact::Media(media));
        }
        finish(&mut source, from, &options, &stop, &mut |_| ()).unwrap();
        assert_eq!(payloads(dir.path(), "media.upload").len(), 1);
        for kind in ["media.quarantine", "media.protect"] {
            assert_eq!(payloads(dir.path(), kind).is_empty(), is_released, "{kind}");
        }
    }
}
