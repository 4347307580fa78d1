//! The table of memberships: what becomes of each under each join rule, by endpoint and by state
//! event.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{server, user};
use crate::harness::{Answer, TestServer, User, encode};

/// The join rules. The restricted ones twice: for one who is in the room that they name, and for
/// one who is not.
const RULES: [Rule; 8] = [
    Rule { name: "public", inside: false },
    Rule { name: "invite", inside: false },
    Rule { name: "knock", inside: false },
    Rule { name: "restricted", inside: true },
    Rule { name: "restricted", inside: false },
    Rule { name: "knock_restricted", inside: true },
    Rule { name: "knock_restricted", inside: false },
    Rule { name: "private", inside: false },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    name: &'static str,
    inside: bool,
}

impl Rule {
    fn knocking(self) -> bool {
        self.name.starts_with("knock")
    }

    fn lets_in(self) -> bool {
        self.name == "public" || self.inside
    }
}

/// What is done, and by whom: `ann`, who may do everything, or `bob`, whose membership it is.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// By an endpoint of its own.
    Bob(&'static str),
    Ann(&'static str),
    /// By a member event that is sent as state.
    BobSets(&'static str),
    AnnSets(&'static str),
}

/// What is expected of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// A new event with this membership.
    Becomes(&'static str),
    /// Success, without a new event.
    Stays,
    Forbidden,
    BadState,
}
use Then::{BadState, Becomes, Forbidden, Stays};

/// Forbidden unless.
fn if_so(allowed: bool, then: Then) -> Then {
    if allowed { then } else { Forbidden }
}

struct Stage {
    server: Arc<TestServer>,
    ann: User,
    bob: User,
    club: String,
    other: String,
}

impl Stage {
    async fn new() -> Self {
        let server = server().await;
        let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
        let club = ann.create_room(json!({ "preset": "public_chat" })).await;
        bob.join(&club).await.ok();
        let other = ann.create_room(json!({})).await;
        Self { server, ann, bob, club, other }
    }

    async fn set_rule(&self, room_id: &str, rule: Rule) {
        let condition = if rule.inside { &self.club } else { &self.other };
        let mut content = json!({ "join_rule": rule.name });
        if rule.name.ends_with("restricted") {
            content["allow"] = json!([{ "type": "m.room_membership", "room_id": condition }]);
        }
        self.ann.set_state(room_id, "m.room.join_rules", "", &content).await.ok();
    }

    /// A room in which bob's membership is `from` and the rule is `rule`.
    async fn room(&self, from: &str, rule: Rule) -> String {
        let first = if from == "knock" { "knock" } else { "public" };
        let room_id = self
            .ann
            .create_room(json!({ "initial_state": [
                { "type": "m.room.join_rules", "content": { "join_rule": first } },
            ]}))
            .await;
        let steps: &[Act] = match from {
            "none" => &[],
            "leave" => &[Act::Bob("join"), Act::Bob("leave")],
            "join" => &[Act::Bob("join")],
            "knock" => &[Act::Bob("knock")],
            "invite" => &[Act::Ann("invite")],
            "ban" => &[Act::Ann("ban")],
            other => panic!("there is no membership {other}"),
        };
        for step in steps {
            self.act(&room_id, *step).await.ok();
        }
        self.set_rule(&room_id, rule).await;
        room_id
    }

    async fn act(&self, room_id: &str, act: Act) -> Answer {
        let room = encode(room_id);
        let set = |membership: &str| json!({ "membership": membership });
        let bob = &self.bob.user_id;
        match act {
            Act::Bob("knock") => self.bob.post(&format!("/knock/{room}"), json!({})).await,
            Act::Bob(action) => self.bob.act(room_id, action, None).await,
            Act::Ann(action) => self.ann.act(room_id, action, Some(&self.bob)).await,
            Act::BobSets(to) => self.bob.set_state(room_id, "m.room.member", bob, &set(to)).await,
            Act::AnnSets(to) => self.ann.set_state(room_id, "m.room.member", bob, &set(to)).await,
        }
    }

    async fn member(&self, room_id: &str) -> Value {
        let key = encode(&self.bob.user_id);
        let path = format!("/state/m.room.member/{key}?format=event");
        let answer = self.ann.get_room(room_id, &path).await;
        if answer.status == 404 { Value::Null } else { answer.ok() }
    }

    async fn check(&self, from: &str, rule: Rule, act: Act, then: Then) {
        let cell = format!("{from} under {rule:?}: {act:?}");
        let room_id = self.room(from, rule).await;
        let before = self.member(&room_id).await;
        let answer = self.act(&room_id, act).await;
        let after = self.member(&room_id).await;
        match then {
            Becomes(membership) => {
                assert_eq!(answer.status, 200, "{cell}: {answer}");
                assert_eq!(after["content"]["membership"], membership, "{cell}");
                assert_ne!(after["event_id"], before["event_id"], "{cell}: {answer}");
            }
            Stays => assert_eq!(answer.status, 200, "{cell}: {answer}"),
            Forbidden | BadState => {
                let code = if then == BadState { "M_BAD_STATE" } else { "M_FORBIDDEN" };
                assert_eq!(answer.status, 403, "{cell}: {answer}");
                assert_eq!(answer.body["errcode"], code, "{cell}");
            }
        }
        if !matches!(then, Becomes(_)) {
            assert_eq!(after["event_id"], before["event_id"], "{cell}: {answer}");
        }
    }

    /// Each act under each rule, with what the function expects of it.
    async fn check_all(&self, from: &str, expected: impl Fn(Rule) -> Vec<(Act, Then)>) {
        for rule in RULES {
            for (act, then) in expected(rule) {
                self.check(from, rule, act, then).await;
            }
        }
    }
}

/// Nobody makes another join or knock, and nobody invites or bans themselves.
const NEVER: [(Act, Then); 4] = [
    (Act::AnnSets("join"), Forbidden),
    (Act::AnnSets("knock"), Forbidden),
    (Act::BobSets("invite"), Forbidden),
    (Act::BobSets("ban"), Forbidden),
];

/// What becomes of the acts if Bob has not been in the room, or is no longer.
fn outside(rule: Rule, leaving: Then) -> Vec<(Act, Then)> {
    let mut acts = vec![
        (Act::Bob("join"), if_so(rule.lets_in(), Becomes("join"))),
        (Act::BobSets("join"), if_so(rule.lets_in(), Becomes("join"))),
        (Act::Bob("knock"), if_so(rule.knocking(), Becomes("knock"))),
        (Act::BobSets("knock"), if_so(rule.knocking(), Becomes("knock"))),
        (Act::Bob("leave"), leaving),
        (Act::BobSets("leave"), leaving),
        (Act::Ann("invite"), Becomes("invite")),
        (Act::AnnSets("invite"), Becomes("invite")),
        (Act::Ann("kick"), Forbidden),
        (Act::Ann("ban"), Becomes("ban")),
        (Act::AnnSets("ban"), Becomes("ban")),
        (Act::Ann("unban"), BadState),
    ];
    acts.extend(NEVER);
    acts
}

#[tokio::test]
async fn a_stranger_joins_or_knocks_as_the_rule_says_and_is_invited_or_banned() {
    let stage = Stage::new().await;
    stage.check_all("none", |rule| outside(rule, Forbidden)).await;
}

#[tokio::test]
async fn one_who_left_is_as_a_stranger_and_leaves_no_second_time() {
    let stage = Stage::new().await;
    stage.check_all("leave", |rule| outside(rule, Stays)).await;
}

#[tokio::test]
async fn one_who_is_invited_joins_unless_the_rule_is_private_rejects_is_revoked_or_banned() {
    let stage = Stage::new().await;
    let expected = |rule: Rule| {
        let open = rule.name != "private";
        let mut acts = vec![
            (Act::Bob("join"), if_so(open, Becomes("join"))),
            (Act::BobSets("join"), if_so(open, Becomes("join"))),
            // The rules of every room version refuse it, whatever the table of memberships says.
            (Act::Bob("knock"), Forbidden),
            (Act::BobSets("knock"), Forbidden),
            (Act::Bob("leave"), Becomes("leave")),
            (Act::BobSets("leave"), Becomes("leave")),
            (Act::Ann("invite"), Stays),
            (Act::Ann("kick"), Becomes("leave")),
            (Act::AnnSets("leave"), Becomes("leave")),
            (Act::Ann("ban"), Becomes("ban")),
            (Act::AnnSets("ban"), Becomes("ban")),
            (Act::Ann("unban"), BadState),
        ];
        acts.extend(NEVER);
        acts
    };
    stage.check_all("invite", expected).await;
}

#[tokio::test]
async fn one_who_is_in_the_room_leaves_is_kicked_or_banned_and_nothing_else() {
    let stage = Stage::new().await;
    let expected = |rule: Rule| {
        let open = rule.name != "private";
        let mut acts = vec![
            (Act::Bob("join"), Stays),
            // Another profile: there is none in this content.
            (Act::BobSets("join"), if_so(open, Becomes("join"))),
            (Act::Bob("knock"), Forbidden),
            (Act::BobSets("knock"), Forbidden),
            (Act::Bob("leave"), Becomes("leave")),
            (Act::BobSets("leave"), Becomes("leave")),
            (Act::Ann("invite"), Forbidden),
            (Act::AnnSets("invite"), Forbidden),
            (Act::Ann("kick"), Becomes("leave")),
            (Act::AnnSets("leave"), Becomes("leave")),
            (Act::Ann("ban"), Becomes("ban")),
            (Act::AnnSets("ban"), Becomes("ban")),
            (Act::Ann("unban"), BadState),
        ];
        acts.extend(NEVER);
        acts
    };
    stage.check_all("join", expected).await;
}

#[tokio::test]
async fn one_who_is_banned_is_unbanned_and_nothing_else() {
    let stage = Stage::new().await;
    let expected = |_| {
        let mut acts = vec![
            (Act::Bob("join"), Forbidden),
            (Act::BobSets("join"), Forbidden),
            (Act::Bob("knock"), Forbidden),
            (Act::BobSets("knock"), Forbidden),
            (Act::Bob("leave"), Forbidden),
            (Act::BobSets("leave"), Forbidden),
            (Act::Ann("invite"), Forbidden),
            (Act::AnnSets("invite"), Forbidden),
            (Act::Ann("kick"), Forbidden),
            (Act::Ann("ban"), Stays),
            (Act::AnnSets("ban"), Stays),
            (Act::Ann("unban"), Becomes("leave")),
            (Act::AnnSets("leave"), Becomes("leave")),
        ];
        acts.extend(NEVER);
        acts
    };
    stage.check_all("ban", expected).await;
}

#[tokio::test]
async fn one_who_knocks_is_accepted_denied_banned_or_takes_it_back() {
    let stage = Stage::new().await;
    let expected = |rule: Rule| {
        let mut acts = vec![
            // A knock opens no door, and closes none.
            (Act::Bob("join"), if_so(rule.lets_in(), Becomes("join"))),
            (Act::BobSets("join"), if_so(rule.lets_in(), Becomes("join"))),
            (Act::Bob("knock"), Stays),
            (Act::Bob("leave"), Becomes("leave")),
            (Act::BobSets("leave"), Becomes("leave")),
            (Act::Ann("invite"), Becomes("invite")),
            (Act::AnnSets("invite"), Becomes("invite")),
            (Act::Ann("kick"), Becomes("leave")),
            (Act::AnnSets("leave"), Becomes("leave")),
            (Act::Ann("ban"), Becomes("ban")),
            (Act::AnnSets("ban"), Becomes("ban")),
            (Act::Ann("unban"), BadState),
        ];
        acts.extend(NEVER);
        acts
    };
    stage.check_all("knock", expected).await;
}

#[tokio::test]
async fn what_is_so_already_is_still_not_for_everyone_to_ask() {
    let stage = Stage::new().await;
    let cas = user(&stage.server, "cas").await;
    for (from, action) in [
        ("ban", "ban"),
        ("invite", "invite"),
        ("leave", "kick"),
        ("ban", "kick"),
        ("join", "unban"),
    ] {
        let room_id = stage.room(from, RULES[0]).await;
        // A stranger is not even told what is so.
        cas.act(&room_id, action, Some(&stage.bob)).await.refused(403, "M_FORBIDDEN");
        cas.join(&room_id).await.ok();
        if matches!(action, "ban" | "kick") {
            cas.act(&room_id, action, Some(&stage.bob)).await.refused(403, "M_FORBIDDEN");
        }
    }
}

#[tokio::test]
async fn a_new_reason_is_news() {
    let stage = Stage::new().await;
    for (from, action) in [("ban", "ban"), ("invite", "invite")] {
        let room_id = stage.room(from, RULES[0]).await;
        let before = stage.member(&room_id).await;
        let path = format!("/rooms/{}/{action}", encode(&room_id));
        let body = json!({ "user_id": stage.bob.user_id, "reason": "this" });
        stage.ann.post(&path, body.clone()).await.ok();
        let after = stage.member(&room_id).await;
        assert_ne!(before["event_id"], after["event_id"], "{action}");
        assert_eq!(after["content"]["reason"], "this");
        assert_eq!(after["content"]["membership"], before["content"]["membership"]);
        stage.ann.post(&path, body).await.ok();
        assert_eq!(stage.member(&room_id).await["event_id"], after["event_id"], "{action}");
    }
}

#[tokio::test]
async fn a_membership_that_matrix_lacks_is_refused() {
    let stage = Stage::new().await;
    let room_id = stage.room("join", RULES[0]).await;
    let member = "m.room.member";
    for content in [json!({}), json!({ "membership": 3 }), json!({ "membership": "nonsense" })] {
        let answer = stage.bob.set_state(&room_id, member, &stage.bob.user_id, &content).await;
        assert!(matches!(answer.status, 400 | 403), "{answer}");
    }
    let content = json!({ "membership": "invite" });
    let answer = stage.ann.set_state(&room_id, member, "nobody", &content).await;
    assert!(matches!(answer.status, 400 | 403), "{answer}");
}
