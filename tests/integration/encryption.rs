//! Clients nobody here wrote encrypt for each other through the server: two users on several
//! devices, each a process on matrix-js-sdk or on matrix-rust-sdk, in one scenario for every
//! mixture of the two. What the server has to do for them is all there: device and one-time keys,
//! cross-signing, messages to devices, key backup, secret storage, and that all this is there after
//! a `kill -9`. The commands are in `tests/e2e/README.md`.

use std::collections::{BTreeMap, HashSet};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::clients::{Client, PATIENCE, Tools, assert_every_request_was_known, text};
use crate::harness::{TestServer, User, encode, offline::history, run_logcabin, skip};

/// What a device runs on.
#[derive(Clone, Copy)]
pub(crate) enum Sdk {
    Js,
    Rust,
}

/// What each device runs on.
struct Cast {
    ann: Sdk,
    bob: Sdk,
    /// A second device of bob's, verified by emoji and then deleted.
    second: Sdk,
    /// One that gets all it has from the backup.
    third: Sdk,
    /// One that comes after the restart.
    fourth: Sdk,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matrix_js_sdk_encrypts_verifies_backs_up_and_recovers_after_a_crash() {
    use Sdk::Js;
    encrypt(&Cast { ann: Js, bob: Js, second: Js, third: Js, fourth: Js }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matrix_rust_sdk_encrypts_verifies_backs_up_and_recovers_after_a_crash() {
    use Sdk::Rust;
    encrypt(&Cast { ann: Rust, bob: Rust, second: Rust, third: Rust, fourth: Rust }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matrix_js_sdk_and_matrix_rust_sdk_encrypt_for_and_verify_each_other() {
    use Sdk::{Js, Rust};
    encrypt(&Cast { ann: Js, bob: Rust, second: Js, third: Js, fourth: Rust }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matrix_rust_sdk_and_matrix_js_sdk_encrypt_for_and_verify_each_other() {
    use Sdk::{Js, Rust};
    encrypt(&Cast { ann: Rust, bob: Js, second: Rust, third: Rust, fourth: Js }).await;
}

/// A device under a test's control.
pub(crate) struct Device {
    pub(crate) client: Client,
    pub(crate) user_id: String,
    pub(crate) device_id: String,
}

impl Device {
    /// Registers (`"register"`) or logs in (`"login"`) and begins to sync.
    pub(crate) fn start(sdk: Sdk, base: &str, name: &'static str, how: &str, user: &str) -> Self {
        let client = match sdk {
            Sdk::Js => Client::js_sdk(&Tools::find().expect("they were there"), base, name),
            Sdk::Rust => {
                let program = Client::sdk_program().expect("it was there");
                Client::start(Command::new(program), base, name)
            }
        };
        let answer = client.ok(how, json!({ "user": user }));
        let (user_id, device_id) = (text(&answer, "user_id"), text(&answer, "device_id"));
        client.ok("start", json!({ "encrypt": true }));
        Self { client, user_id, device_id }
    }

    pub(crate) fn ok(&self, command: &str, arguments: Value) -> Value {
        self.client.ok(command, arguments)
    }

    /// Waits until what this device knows of a user's identity and devices is so.
    pub(crate) fn knows(&self, user_id: &str, what: &str, holds: impl Fn(&Value) -> bool) {
        until(&format!("{} knows that {what}", self.client.name), || {
            let known = self.ok("knows", json!({ "user_id": user_id }));
            if holds(&known) { Ok(()) } else { Err(known) }
        });
    }

    /// Waits until this device knows another one, and holds it for verified or not.
    pub(crate) fn knows_device(&self, other: &Self, verified: bool) {
        let what = format!("{} is verified: {verified}", other.client.name);
        self.knows(&other.user_id, &what, |known| {
            let device = &known["devices"][&other.device_id];
            device["verified"] == verified && device["signed"].as_bool() >= Some(verified)
        });
    }

    /// Writes a message that all the `readers` get through their sync and decrypt; gives its id.
    pub(crate) fn says(&self, room_id: &str, body: &str, readers: &[&Self]) -> String {
        let sent = self.ok("send", json!({ "room_id": room_id, "body": body }));
        let event_id = text(&sent, "event_id");
        for reader in readers {
            reader.reads(room_id, &event_id, body);
        }
        event_id
    }

    pub(crate) fn reads(&self, room_id: &str, event_id: &str, body: &str) {
        until(&format!("{} reads `{body}`", self.client.name), || {
            let read = self.ok("read", json!({ "room_id": room_id, "event_id": event_id }));
            if read["body"] == body { Ok(()) } else { Err(read) }
        });
    }

    /// What this device makes of an encrypted event with the keys that it has.
    fn decrypts(&self, event: &Value) -> Value {
        self.ok("decrypt", json!({ "event": event }))["body"].clone()
    }

    /// Compares emoji with `other`, in a room or from device to device; `same` is what this one
    /// says of them.
    pub(crate) fn verifies(&self, other: &Self, room_id: Option<&str>, same: bool) {
        let asked = json!({
            "user_id": other.user_id, "device_id": other.device_id, "room_id": room_id,
        });
        let flow_id = text(&self.ok("verify", asked), "flow_id");
        let flow = |with: &Self| json!({ "user_id": with.user_id, "flow_id": flow_id, "room_id": room_id });
        other.ok("accept", flow(self));
        let pair = [(self, other), (other, self)];
        let shown = pair.map(|(one, with)| (one, one.client.command("emoji", flow(with))));
        let [ours, theirs] = shown.map(|(one, command)| one.client.taken(command, "emoji"));
        println!("{} and {}: {}", self.client.name, other.client.name, ours["emoji"]);
        assert_eq!(ours["emoji"].as_array().map(Vec::len), Some(7), "{ours}");
        assert_eq!(ours, theirs, "the emoji that both see");
        let mut said = [flow(other), flow(self)];
        said[0]["same"] = same.into();
        if same {
            said[1]["same"] = true.into();
        }
        let [ours, theirs] = said;
        let ours = self.client.command("confirm", ours);
        let theirs = other.client.command("confirm", theirs);
        for (one, command) in [(self, ours), (other, theirs)] {
            let end = one.client.taken(command, "confirm");
            assert_eq!(end["verified"], same, "{}: {end}", one.client.name);
        }
    }
}

async fn encrypt(cast: &Cast) {
    if let Err(missing) = Tools::find().and_then(|_| Client::sdk_program()) {
        return skip("encryption", &missing);
    }
    let mut server = TestServer::start().await;
    let ann = Device::start(cast.ann, &server.base(), "ann", "register", "ann");
    let bob = Device::start(cast.bob, &server.base(), "bob", "register", "bob");
    for one in [&ann, &bob] {
        one.ok("cross_sign", json!({}));
    }

    // An encrypted room: what one writes the other reads, and nobody else could.
    let invited = json!({ "name": "secrets", "invite": [bob.user_id], "encrypted": true });
    let room = text(&ann.ok("create_room", invited), "room_id");
    bob.ok("join", json!({ "room_id": room }));
    let first = ann.says(&room, "only for bob", &[&bob]);
    bob.says(&room, "only for ann", &[&ann]);
    let spectator = User::login(&server.http(), "ann", "a password that is long enough").await;
    let wire = async |server: &TestServer, event_id: &str| {
        let spectator = User { http: server.http(), ..spectator.clone() };
        let path = format!("/rooms/{}/event/{}", encode(&room), encode(event_id));
        let event = spectator.request("GET", &path, None).await.ok();
        assert_eq!(event["type"], "m.room.encrypted", "{event}");
        assert!(event["content"]["body"].is_null(), "{event}");
        event
    };
    let first = wire(&server, &first).await;

    // The users compare emoji. Where they differ, nobody is verified; where they do not, both are.
    for (one, other) in [(&ann, &bob), (&bob, &ann)] {
        one.knows(&other.user_id, "the other has cross-signed", |known| {
            known["devices"][&other.device_id]["signed"] == true
        });
    }
    bob.verifies(&ann, Some(&room), false);
    for (one, other) in [(&ann, &bob), (&bob, &ann)] {
        let known = one.ok("knows", json!({ "user_id": other.user_id }));
        assert_eq!(known["verified"], false, "{}: {known}", one.client.name);
    }
    ann.verifies(&bob, Some(&room), true);
    for (one, other) in [(&ann, &bob), (&bob, &ann)] {
        one.knows(&other.user_id, "the other is verified", |known| known["verified"] == true);
        one.knows_device(other, true);
    }

    // A second device of bob's is written to, and verified when it has compared emoji with the
    // first.
    let second = Device::start(cast.second, &server.base(), "bob's second", "login", "bob");
    ann.knows_device(&second, false);
    bob.knows_device(&second, false);
    second.knows(&bob.user_id, "bob's first is there", |known| {
        !known["devices"][&bob.device_id].is_null()
    });
    ann.says(&room, "for both", &[&bob, &second]);
    second.says(&room, "from the second", &[&ann, &bob]);
    second.verifies(&bob, None, true);
    for one in [&ann, &bob, &second] {
        one.knows_device(&second, true);
    }

    // A third gets from the backup what was written before it, and is signed.
    let recovery_key = bob.ok("back_up", json!({}))["recovery_key"].clone();
    let third = Device::start(cast.third, &server.base(), "bob's third", "login", "bob");
    until("the third has the room", || {
        match third.client.asked("decrypt", json!({ "event": first })) {
            Ok(read) if read["body"] == "only for bob" => panic!("it has keys from nowhere"),
            Ok(_) => Ok(()),
            Err(error) if error.to_string().contains("does not know this room") => Err(error),
            Err(_) => Ok(()),
        }
    });
    third.ok("recover", json!({ "recovery_key": recovery_key }));
    until("the third reads the past", || {
        let read = third.client.asked("decrypt", json!({ "event": first }));
        match read {
            Ok(read) if read["body"] == "only for bob" => Ok(()),
            Ok(other) | Err(other) => Err(other),
        }
    });
    ann.knows_device(&third, true);

    // The second is deleted while it is offline. What it had it can read, and nothing that comes
    // later.
    let readers = [&ann, &bob, &second, &third];
    let before = ann.says(&room, "for the second, too", &readers[1..]);
    let bobs_before = bob.says(&room, "the same from bob", &readers);
    second.ok("pause", json!({}));
    bob.ok("delete_device", json!({ "device_id": second.device_id }));
    for one in [&ann, &bob, &third] {
        one.knows(&bob.user_id, "the second is gone", |known| {
            known["devices"][&second.device_id].is_null()
        });
    }
    let after = ann.says(&room, "not for the second", &[&bob, &third]);
    let bobs_after = bob.says(&room, "nor is this", &[&ann, &third]);
    for (old, new, readable) in
        [(before, after, "for the second, too"), (bobs_before, bobs_after, "the same from bob")]
    {
        let (old, new) = (wire(&server, &old).await, wire(&server, &new).await);
        let [of_old, of_new] = [&old, &new].map(|event| text(&event["content"], "session_id"));
        assert_ne!(of_old, of_new, "the sender goes on with a session that the deleted device has");
        assert_eq!(second.decrypts(&old), readable, "what the second had");
        match second.client.asked("decrypt", json!({ "event": new })) {
            Ok(read) => assert!(read["body"].is_null(), "the deleted device reads {read}"),
            Err(error) => println!("the deleted device: {error}"),
        }
    }

    // The server is killed while bob's devices are offline and the keys of a new session wait for
    // them.
    for one in [&bob, &third] {
        one.ok("pause", json!({}));
    }
    ann.ok("rotate", json!({ "room_id": room }));
    let meanwhile = ann.says(&room, "while you were away", &[&ann]);
    let session = text(&wire(&server, &meanwhile).await["content"], "session_id");
    server.restart().await;
    for one in [&bob, &third] {
        one.ok("resume", json!({}));
        one.reads(&room, &meanwhile, "while you were away");
    }
    let back = until("bob can write", || {
        bob.client.asked("send", json!({ "room_id": room, "body": "back again" }))
    });
    let back = text(&back, "event_id");
    for one in [&ann, &third] {
        one.reads(&room, &back, "back again");
    }
    // A device that is new after the restart gets one-time keys that nobody had, and is written to.
    let fourth = Device::start(cast.fourth, &server.base(), "bob's fourth", "login", "bob");
    ann.knows_device(&fourth, false);
    bob.knows_device(&fourth, false);
    third.knows_device(&fourth, false);
    fourth.ok("recover", json!({ "recovery_key": recovery_key }));
    ann.knows_device(&fourth, true);
    for one in [&ann, &bob, &third] {
        one.ok("rotate", json!({ "room_id": room }));
    }
    let last = ann.says(&room, "for all that are left", &[&bob, &third, &fourth]);
    let of_last = text(&wire(&server, &last).await["content"], "session_id");
    assert_ne!(session, of_last, "a new session");
    fourth.says(&room, "from the fourth", &[&ann, &bob, &third]);
    bob.says(&room, "from the first", &[&ann, &third, &fourth]);

    let mut requests = BTreeMap::new();
    for device in [ann, bob, second, third, fourth] {
        device.client.stop(&mut requests);
    }
    assert_every_request_was_known(&requests);
    server.stop();
    assert_no_key_was_given_twice(&history(server.data_dir()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matrix_js_sdk_devices_read_each_other_across_a_restore_to_an_earlier_moment() {
    crate::harness::nodes::one_server!("it restores the log of one server");
    go_on_across_a_restore(Past::Known).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matrix_js_sdk_devices_read_each_other_after_the_log_is_lost_and_a_backup_restored() {
    crate::harness::nodes::one_server!("it restores the log of one server");
    go_on_across_a_restore(Past::Lost).await;
}

/// What is known of the time after the moment that is restored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Past {
    /// All: the log goes back in its place.
    Known,
    /// Nothing: there is only a backup.
    Lost,
}

async fn go_on_across_a_restore(past: Past) {
    if let Err(missing) = Tools::find() {
        return skip("encryption across a restore", &missing);
    }
    let mut server = TestServer::start().await;
    let ann = Device::start(Sdk::Js, &server.base(), "ann", "register", "ann");
    let bob = Device::start(Sdk::Js, &server.base(), "bob", "register", "bob");
    for one in [&ann, &bob] {
        one.ok("cross_sign", json!({}));
    }
    let invited = json!({ "name": "secrets", "invite": [bob.user_id], "encrypted": true });
    let room = text(&ann.ok("create_room", invited), "room_id");
    bob.ok("join", json!({ "room_id": room }));
    ann.says(&room, "before", &[&bob]);
    bob.says(&room, "before, too", &[&ann]);

    // The moment. The devices go on, as they do after any restart.
    let place = tempfile::tempdir().expect("a temporary directory");
    let (dest, aside) = (place.path().join("backup"), place.path().join("lost"));
    let data_dir = server.data_dir().to_owned();
    let mut line = vec!["restore".as_ref(), "--data-dir".as_ref(), data_dir.as_os_str()];
    server.stop();
    let cut = records(&data_dir).to_string();
    match past {
        Past::Known => {
            line.extend(["--in-place", "--to", &cut].map(std::ffi::OsStr::new));
        }
        Past::Lost => {
            done(&[
                "backup".as_ref(),
                dest.as_os_str(),
                "--data-dir".as_ref(),
                data_dir.as_os_str(),
            ]);
            line.extend([std::ffi::OsStr::new("--from"), dest.as_os_str()]);
        }
    }
    server.restart().await;
    let eventually = |one: &Device, body: &str, readers: &[&Device]| {
        let sent = until("it can be sent", || {
            one.client.asked("send", json!({ "room_id": room, "body": body }))
        });
        for reader in readers {
            reader.reads(&room, &text(&sent, "event_id"), body);
        }
    };
    eventually(&ann, "after it", &[&bob]);
    // New sessions, whose keys went out in messages to devices, and one-time keys that were handed
    // out.
    let second = Device::start(Sdk::Js, &server.base(), "bob's second", "login", "bob");
    for one in [&ann, &bob] {
        one.knows_device(&second, false);
        one.ok("rotate", json!({ "room_id": room }));
    }
    eventually(&ann, "to a device that came after it", &[&bob, &second]);
    eventually(&bob, "by a session that came after it", &[&ann, &second]);
    eventually(&second, "from the new device", &[&ann, &bob]);
    // A room that nobody will be in.
    let undone = text(&ann.ok("create_room", json!({ "name": "undone", "invite": [] })), "room_id");
    let is = |membership: &str| {
        until(&format!("the client shows the membership {membership}"), || {
            let shown = ann.ok("membership", json!({ "room_id": undone }));
            if shown["membership"] == membership { Ok(()) } else { Err(shown) }
        });
    };
    is("join");

    server.stop();
    let mut given = history(&data_dir);
    if past == Past::Lost {
        std::fs::rename(&data_dir, &aside).expect("the directory can be moved");
    }
    let said = done(&line);
    let expected = match past {
        Past::Known => "keys.claim",
        Past::Lost => "All one-time keys are dropped",
    };
    assert!(said.contains(expected), "{said}");
    server.restart().await;

    if past == Past::Known {
        is("leave");
    }
    // By the sessions that they have, all of them; the device that logged in after the moment is
    // there if that is known.
    let mut all = vec![&ann, &bob];
    if past == Past::Known {
        all.push(&second);
    }
    let to_all = |all: &[&Device], words: &str| {
        for (number, one) in all.iter().enumerate() {
            let other = |reader: &&Device| reader.device_id != one.device_id;
            let readers: Vec<_> = all.iter().copied().filter(other).collect();
            eventually(one, &format!("{words}, {number}"), &readers);
        }
    };
    to_all(&all, "by an old session");
    // And by new ones, between devices that know each other, and with one that nobody knows yet.
    let third = Device::start(Sdk::Js, &server.base(), "bob's third", "login", "bob");
    for one in &all {
        one.knows_device(&third, false);
        one.ok("rotate", json!({ "room_id": room }));
        one.knows(&bob.user_id, "the second is there if it is", |known| {
            known["devices"][&second.device_id].is_null() == (past == Past::Lost)
        });
    }
    all.push(&third);
    to_all(&all, "a new life");

    if past == Past::Known {
        let mut requests = BTreeMap::new();
        for device in [ann, bob, second, third] {
            device.client.stop(&mut requests);
        }
        assert_every_request_was_known(&requests);
    }
    server.stop();
    let now = history(&data_dir);
    match past {
        // What was given after the moment is in the log as what was carried over.
        Past::Known => given = now,
        // The same device has other keys: what was given in the lost life is not given in the new
        // one.
        Past::Lost => {
            given += now.split_once("dropped all one-time keys").map_or("", |(_, new)| new)
        }
    }
    assert_no_key_was_given_twice(&given);
}

/// Runs the program, which must end well, and gives what it says.
#[track_caller]
fn done(line: &[&std::ffi::OsStr]) -> String {
    let output = run_logcabin(line);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line:?}: {said}{complained}");
    println!("{said}");
    said
}

/// How many records the log of a stopped server has.
fn records(data_dir: &std::path::Path) -> u64 {
    let [replay, at, json] = ["replay", "--data-dir", "--json"].map(std::ffi::OsStr::new);
    let output = run_logcabin([replay, at, data_dir.as_os_str(), json]);
    let said: Value = serde_json::from_slice(&output.stdout).expect("a report in JSON");
    said["records"].as_u64().expect("a number of records")
}

/// Each one-time key was given to one device once, by what the log says.
fn assert_no_key_was_given_twice(history: &str) {
    let mut given = HashSet::new();
    for line in history.lines().filter(|line| line.contains(" was given ")) {
        let payload = line.find('{').and_then(|at| serde_json::from_str(&line[at..]).ok());
        let Some::<Value>(claim) = payload else { continue };
        if claim["fallback"] != true && claim["key_id"].is_string() {
            let key = ["user_id", "device_id", "key_id"].map(|field| text(&claim, field));
            assert!(given.insert(key.clone()), "given twice: {key:?}");
        }
    }
    println!("{} one-time keys were given", given.len());
    // Each of bob's four devices came to write with ann's.
    assert!(given.len() >= 4, "only {} one-time keys were given", given.len());
}

/// Waits until `holds` gives a value, and gives that.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut holds: impl FnMut() -> Result<T, Value>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match holds() {
            Ok(found) => return found,
            Err(instead) if Instant::now() > deadline => panic!("in vain: {what}; it is {instead}"),
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}
