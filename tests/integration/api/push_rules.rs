//! Every push rule, from the event that matches it to what arrives at a push gateway, once, also
//! over restarts of the server (client-server API, "Predefined rules").

use serde_json::{Value, json};

use super::{PASSWORD, each};
use crate::harness::{Gateway, TestServer, User, encode};

const RULES: &str = "/pushrules/global";

/// Where an event is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A room of three.
    Group,
    /// A room of two.
    Pair,
    /// To a new room, as the invite that comes with it.
    Invite,
}
use Place::{Group, Invite, Pair};

/// A default rule, and an event that it is about.
struct Case {
    /// The rule's kind and id.
    rule: &'static str,
    place: Place,
    event_type: &'static str,
    /// For state events.
    state_key: Option<String>,
    content: Value,
    /// The tweaks at the gateway; none if nothing is to arrive.
    tweaks: Option<Value>,
    /// The same when the rule is disabled. For all but underride rules, one of the user's own takes
    /// then what no other takes.
    disabled: Option<Value>,
}

/// Those who take part. It is ann who is told, of what bob does.
struct Den {
    ann: User,
    bob: User,
    group: String,
    pair: String,
    /// A message of bob's in each of them.
    roots: [String; 2],
}

/// What has happened so far: the events that are to have arrived, and with which tweaks.
#[derive(Default)]
struct Told(Vec<(String, Value)>);

impl Told {
    fn ids(&self) -> Vec<String> {
        self.0.iter().map(|(id, _)| id.clone()).collect()
    }
}

impl Den {
    async fn new(server: &TestServer) -> Self {
        let user = async |name| User::register(&server.http(), name, PASSWORD).await;
        let (ann, bob, cat) = (user("ann").await, user("bob").await, user("cat").await);
        // A name in which that of the account is not.
        let name = format!("/profile/{}/displayname", encode(&ann.user_id));
        ann.put(&name, json!({ "displayname": "Zoe Fir" })).await.ok();
        let room = async |others: &[&User]| {
            let room_id = bob.create_room(json!({ "preset": "public_chat" })).await;
            for other in others {
                other.join(&room_id).await.ok();
            }
            room_id
        };
        let (group, pair) = (room(&[&ann, &cat]).await, room(&[&ann]).await);
        let roots = [
            bob.send_text(&group, "root", "the first").await,
            bob.send_text(&pair, "root", "the first").await,
        ];
        // What was before is read.
        for (room_id, root) in [&group, &pair].into_iter().zip(&roots) {
            let path = format!("/rooms/{}/receipt/m.read/{}", encode(room_id), encode(root));
            ann.post(&path, json!({})).await.ok();
        }
        Self { ann, bob, group, pair, roots }
    }

    /// The default rules of the specification, in its order, with an event for each.
    fn cases(&self) -> Vec<Case> {
        let (ann, bob, root) = (&self.ann.user_id, &self.bob.user_id, &self.roots[0]);
        let text = |body: &str| json!({ "msgtype": "m.text", "body": body });
        let mention = |mentions: Value| json!({ "msgtype": "m.text", "body": "look", "m.mentions": mentions });
        let edit = json!({
            "msgtype": "m.text", "body": "* other",
            "m.new_content": { "msgtype": "m.text", "body": "other" },
            "m.relates_to": { "rel_type": "m.replace", "event_id": root },
        });
        let secret = json!({ "algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "x",
            "session_id": "s", "sender_key": "k", "device_id": "d" });
        let annotation = json!({ "rel_type": "m.annotation", "event_id": root });
        let call = json!({ "call_id": "c", "party_id": "p", "version": "1", "lifetime": 60_000,
            "offer": { "type": "offer", "sdp": "v=0" } });
        let loud = json!({ "sound": "default" });
        let both = json!({ "sound": "default", "highlight": true });
        let (bright, plain) = (json!({ "highlight": true }), json!({}));
        let rest = Some(json!({ "sound": "rest" }));
        let case = |rule, event_type, content: Value, tweaks: Option<&Value>| Case {
            rule,
            place: Group,
            event_type,
            state_key: None,
            content,
            tweaks: tweaks.cloned(),
            disabled: rest.clone(),
        };
        let state = |key: &str, case: Case| Case { state_key: Some(key.to_owned()), ..case };
        let message = "m.room.message";
        let invite =
            case("override/.m.rule.invite_for_me", "m.room.member", json!({}), Some(&loud));
        // Disabled, there is nothing after it, or the rule for rooms of any size.
        let last = |case: Case| Case { disabled: None, ..case };
        let one = |case: Case| Case { place: Pair, disabled: Some(plain.clone()), ..case };
        vec![
            case(
                "override/.m.rule.suppress_notices",
                message,
                json!({ "msgtype": "m.notice", "body": "said by a bot" }),
                None,
            ),
            // Without it, an invite is what any member event is.
            Case { place: Invite, disabled: None, ..invite },
            state(
                bob,
                case(
                    "override/.m.rule.member_event",
                    "m.room.member",
                    json!({ "membership": "join" }),
                    None,
                ),
            ),
            case(
                "override/.m.rule.is_user_mention",
                message,
                mention(json!({ "user_ids": [ann] })),
                Some(&both),
            ),
            case(
                "override/.m.rule.contains_display_name",
                message,
                text("is zoe fir here?"),
                Some(&both),
            ),
            case(
                "override/.m.rule.is_room_mention",
                message,
                mention(json!({ "room": true })),
                Some(&bright),
            ),
            case("override/.m.rule.roomnotif", message, text("hello, @room"), Some(&bright)),
            state(
                "",
                case(
                    "override/.m.rule.tombstone",
                    "m.room.tombstone",
                    json!({ "body": "moved", "replacement_room": "!new:e2e.test" }),
                    Some(&bright),
                ),
            ),
            case(
                "override/.m.rule.reaction",
                "m.reaction",
                json!({ "m.relates_to": annotation }),
                None,
            ),
            state(
                "",
                case(
                    "override/.m.rule.room.server_acl",
                    "m.room.server_acl",
                    json!({ "allow": ["*"] }),
                    None,
                ),
            ),
            case("override/.m.rule.suppress_edits", message, edit, None),
            case("content/.m.rule.contains_user_name", message, text("Ann: well?"), Some(&both)),
            last(case(
                "underride/.m.rule.call",
                "m.call.invite",
                call,
                Some(&json!({ "sound": "ring" })),
            )),
            one(case(
                "underride/.m.rule.encrypted_room_one_to_one",
                "m.room.encrypted",
                secret.clone(),
                Some(&loud),
            )),
            one(case("underride/.m.rule.room_one_to_one", message, text("you"), Some(&loud))),
            last(case("underride/.m.rule.message", message, text("all"), Some(&plain))),
            last(case("underride/.m.rule.encrypted", "m.room.encrypted", secret, Some(&plain))),
        ]
    }

    /// Has the event of a case happen, once more; gives its id.
    async fn happens(&self, case: &Case, round: usize) -> String {
        let room_id = match case.place {
            Group => &self.group,
            Pair => &self.pair,
            Invite => {
                let room_id = self.bob.create_room(json!({ "invite": [self.ann.user_id] })).await;
                let path = format!("/rooms/{}/state", encode(&room_id));
                let state = self.bob.get(&path).await.ok();
                let events = state.as_array().cloned().unwrap_or_default();
                let of_ann = events.iter().find(|event| event["state_key"] == self.ann.user_id);
                return of_ann.expect("an invite")["event_id"].as_str().expect("an id").to_owned();
            }
        };
        let mut content = case.content.clone();
        // No two of them are the same: to set again what is so already is no event.
        if let Some(relation) = content.get_mut("m.relates_to") {
            relation["key"] = round.to_string().into();
        }
        content["round"] = round.into();
        let sent = match &case.state_key {
            Some(key) => self.bob.set_state(room_id, case.event_type, key, &content).await,
            None => {
                let txn_id = format!("{}-{round}", case.rule);
                self.bob.send(room_id, case.event_type, &txn_id, &content).await
            }
        };
        sent.ok_string("event_id")
    }

    /// Has the event of a case happen and looks at the counts of its room.
    async fn happens_and_counts(
        &self,
        case: &Case,
        round: usize,
        tweaks: Option<&Value>,
        told: &mut Told,
    ) {
        let before = self.unread(case.place).await;
        let event_id = self.happens(case, round).await;
        let highlights = tweaks.is_some_and(|tweaks| tweaks["highlight"] == true);
        if case.place != Invite {
            let expected =
                (before.0 + u64::from(tweaks.is_some()), before.1 + u64::from(highlights));
            assert_eq!(self.unread(case.place).await, expected, "{}, round {round}", case.rule);
        }
        if let Some(tweaks) = tweaks {
            told.0.push((event_id, tweaks.clone()));
        }
    }

    /// How many notifications and highlights are unread.
    async fn unread(&self, place: Place) -> (u64, u64) {
        let room_id = match place {
            Group => &self.group,
            Pair => &self.pair,
            Invite => return (0, 0),
        };
        let sync = self.ann.sync(None, 0, None).await;
        let counts = &sync["rooms"]["join"][room_id]["unread_notifications"];
        let count = |name: &str| counts[name].as_u64().expect("a count");
        (count("notification_count"), count("highlight_count"))
    }

    async fn rule(&self, rule: &str, attribute: &str, value: Value) {
        self.ann
            .put(&format!("{RULES}/{rule}/{attribute}"), json!({ attribute: value }))
            .await
            .ok();
    }
}

/// What arrived is what was to arrive, in order, each once, with its tweaks; and it is listed.
async fn assert_told(den: &Den, gateway: &Gateway, told: &Told) {
    gateway.until_events("key", &told.ids()).await;
    let took = gateway.took("key").into_iter().filter(|took| took.get("event_id").is_some());
    for (took, (event_id, tweaks)) in took.zip(&told.0) {
        assert_eq!(&took["devices"][0]["tweaks"], tweaks, "of {event_id}: {took}");
        let is_high = !tweaks.as_object().expect("an object").is_empty();
        let is_high = is_high || took["type"] == "m.room.encrypted";
        assert_eq!(took["prio"], if is_high { "high" } else { "low" }, "of {event_id}: {took}");
    }
    let list = den.ann.get("/notifications?limit=1000").await.ok();
    let mut listed = each(&list["notifications"], "/event/event_id");
    listed.reverse();
    // What came before there was a pusher is listed, too.
    assert_eq!(listed.split_off(listed.len() - told.0.len()), told.ids());
}

#[tokio::test]
async fn every_default_rule_tells_a_gateway_once_what_it_says_changed_or_disabled() {
    let gateway = Gateway::start().await;
    let mut server = Gateway::server(&[]).await;
    let den = Den::new(&server).await;
    gateway.serves(&den.ann, "key").await;
    let cases = den.cases();

    // Every default rule there is has a case, but for the one that is looked at last.
    let rules = den.ann.get("/pushrules/").await.ok()["global"].clone();
    let mut all = Vec::new();
    for kind in ["override", "content", "room", "sender", "underride"] {
        // A kind that has none is left out.
        if rules[kind].is_array() {
            let ids = each(&rules[kind], "/rule_id").into_iter();
            all.extend(ids.map(|id| format!("{kind}/{id}")));
        }
    }
    let named: Vec<_> = cases.iter().map(|case| case.rule).collect();
    assert_eq!(all[0], "override/.m.rule.master");
    assert_eq!(all[1], "override/.org.matrix.msc4028.encrypted_event", "off, and tested elsewhere");
    assert_eq!(all[2..], named);

    let mut told = Told::default();
    for case in &cases {
        den.happens_and_counts(case, 0, case.tweaks.as_ref(), &mut told).await;
    }
    assert_told(&den, &gateway, &told).await;

    server.stop();
    server.restart().await;
    // With other actions: what told nothing tells, and the other way about.
    for case in &cases {
        let (actions, tweaks) = match case.tweaks {
            Some(_) => (json!([]), None),
            None => (
                json!(["notify", { "set_tweak": "sound", "value": "changed" }, { "set_tweak": "highlight" }]),
                Some(json!({ "sound": "changed", "highlight": true })),
            ),
        };
        let own = den.ann.get(&format!("{RULES}/{}/actions", case.rule)).await.ok();
        den.rule(case.rule, "actions", actions).await;
        den.happens_and_counts(case, 1, tweaks.as_ref(), &mut told).await;
        den.rule(case.rule, "actions", own["actions"].clone()).await;
    }
    assert_told(&den, &gateway, &told).await;

    // Disabled, one after the other. The rule of ann's own comes before the default ones of its
    // kind, for which it is disabled.
    let actions = json!(["notify", { "set_tweak": "sound", "value": "rest" }]);
    let body = json!({ "actions": actions, "conditions": [] });
    den.ann.put(&format!("{RULES}/underride/rest"), body).await.ok();
    for case in &cases {
        let has_rest = !case.rule.starts_with("underride/");
        den.rule("underride/rest", "enabled", json!(has_rest)).await;
        den.rule(case.rule, "enabled", json!(false)).await;
        den.happens_and_counts(case, 2, case.disabled.as_ref(), &mut told).await;
        den.rule(case.rule, "enabled", json!(true)).await;
    }
    server.stop();
    server.restart().await;
    assert_told(&den, &gateway, &told).await;

    // The master rule silences all, the user's own included.
    den.rule("underride/rest", "enabled", json!(true)).await;
    den.rule("override/.m.rule.master", "enabled", json!(true)).await;
    for case in &cases {
        den.happens_and_counts(case, 3, None, &mut told).await;
    }
    den.rule("override/.m.rule.master", "enabled", json!(false)).await;
    let last = Case { event_type: "org.example.last", ..den.cases().remove(0) };
    let last = Case { content: json!({}), ..last };
    den.happens_and_counts(&last, 4, Some(&json!({ "sound": "rest" })), &mut told).await;
    assert_told(&den, &gateway, &told).await;
}

#[tokio::test]
async fn rules_of_ones_own_tell_a_gateway_once_the_highest_kind_first() {
    let gateway = Gateway::start().await;
    let mut server = Gateway::server(&[]).await;
    let den = Den::new(&server).await;
    gateway.serves(&den.ann, "key").await;
    let event = Case {
        rule: "own",
        place: Group,
        event_type: "m.room.message",
        state_key: None,
        content: json!({ "msgtype": "m.text", "body": "there is cake" }),
        tweaks: None,
        disabled: None,
    };
    let (room, sender) =
        (format!("room/{}", encode(&den.group)), format!("sender/{}", encode(&den.bob.user_id)));
    let conditions = json!([
        { "kind": "event_match", "key": "content.body", "pattern": "cake" },
        { "kind": "room_member_count", "is": ">2" },
    ]);
    let rules = [
        ("override/own", json!({ "conditions": conditions })),
        ("content/own", json!({ "pattern": "cake" })),
        (&*room, json!({})),
        (&*sender, json!({})),
        ("underride/own", json!({ "conditions": conditions })),
    ];
    let sound = |value: &str| json!([{ "set_tweak": "sound", "value": value }, "notify"]);
    for (rule, body) in &rules {
        let mut body = body.clone();
        body["actions"] = sound(rule);
        den.ann.put(&format!("{RULES}/{rule}"), body).await.ok();
    }
    let mut told = Told::default();
    let mut round = 0;
    let mut says = async |tweaks: Option<Value>, told: &mut Told| {
        round += 1;
        den.happens_and_counts(&event, round, tweaks.as_ref(), told).await;
    };
    for (rule, _) in &rules {
        says(Some(json!({ "sound": rule })), &mut told).await;
        den.rule(rule, "actions", json!([])).await;
        says(None, &mut told).await;
        den.rule(rule, "actions", json!(["notify", { "set_tweak": "highlight" }])).await;
        says(Some(json!({ "highlight": true })), &mut told).await;
        if *rule == room {
            server.stop();
            server.restart().await;
        }
        // The next one is the highest.
        den.rule(rule, "enabled", json!(false)).await;
    }
    // None of them: what the server's rule for messages says.
    says(Some(json!({})), &mut told).await;
    for (rule, _) in rules.iter().rev() {
        den.rule(rule, "actions", sound("again")).await;
        den.rule(rule, "enabled", json!(true)).await;
        says(Some(json!({ "sound": "again" })), &mut told).await;
        den.ann.request("DELETE", &format!("{RULES}/{rule}"), None).await.ok();
        says(Some(json!({})), &mut told).await;
    }
    assert_told(&den, &gateway, &told).await;
    // A rule for another place is none for this one.
    for rule in [format!("room/{}", encode(&den.pair)), "sender/@cat:e2e.test".to_owned()] {
        den.ann.put(&format!("{RULES}/{rule}"), json!({ "actions": [] })).await.ok();
    }
    says(Some(json!({})), &mut told).await;
    server.stop();
    server.restart().await;
    assert_told(&den, &gateway, &told).await;
}
