//! Records of redactions of what users sent.

use std::collections::BTreeMap;

use logcabin::record::{
    Command, NewRecord, Origin, Stream,
    command::{UserRedact, UserRedactFinish},
};
use ruma::OwnedUserId;

/// What a user sent is redacted: once to the end, and once not.
pub(super) fn records() -> Vec<NewRecord> {
    let eve: OwnedUserId = "@eve:elsewhere.example".try_into().unwrap();
    let order = |id: &str| UserRedact {
        id: id.to_owned(),
        user_id: eve.clone(),
        rooms: vec!["!room:golden.example".try_into().unwrap()],
        limit: Some(10),
        after_ms: Some(1_760_000_000_000),
        before_ms: None,
        by: Some("@ann:golden.example".try_into().unwrap()),
        say: Some("spam".to_owned()),
    };
    let failed = BTreeMap::from([("$event".try_into().unwrap(), "refused".to_owned())]);
    let (id, user_id) = ("first".to_owned(), eve.clone());
    let finish = UserRedactFinish { id, user_id, redacted: 9, failures: 1, failed };
    [Command::from(order("first")), finish.into(), order("second").into()]
        .map(|command| NewRecord::new(Stream::server(), Origin::server(), &command))
        .into()
}
