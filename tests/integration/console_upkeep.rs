//! The pages of the console about what keeps the data (backups, snapshots, proofs, erasures, the
//! cluster), about unread counts, and about what takes the server long, there and in the terminal.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use logcabin::log::store::{SledLog, SledOptions};
use logcabin::log::{Batch, Log, StreamHeads};
use logcabin::record::{Class, NewRecord, Origin, Stream};
use serde_json::{Value, json};

use crate::administration::{command, done, done_json, user_command};
use crate::console::{CONSOLE, PASSWORD, cookie, get, log_in, status, text};
use crate::harness::{RawAnswer, TestServer, User, encode, program, until_ok, without_settings};
use crate::proofs::verified;

/// A server with the console, an administrator, and their cookie.
async fn server(more: &[(&str, &str)]) -> (TestServer, User, String) {
    let settings = [&[("LOGCABIN_CONSOLE_ENABLED", "true")], more].concat();
    let server = TestServer::start_with(&settings).await;
    let admin = server.register("admin").await;
    done(user_command(server.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    let mine = cookie(&log_in(&server, "admin", PASSWORD, &[]).await);
    (server, admin, mine)
}

/// A page that must be there, without anything that others may have put into it as markup.
async fn see(server: &TestServer, path: &str, mine: &str) -> String {
    let answer = get(server, path, mine).await;
    let page = text(&answer);
    assert_eq!(status(&answer), 200, "{path}: {page}");
    assert!(!page.contains("<img") && !page.contains('\u{202e}'), "{path}: {page}");
    page
}

/// What has come of an act that was ordered by its form.
async fn order(server: &TestServer, name: &str, body: &str, mine: &str) -> RawAnswer {
    let form = ("content-type", "application/x-www-form-urlencoded");
    let headers = [form, ("cookie", mine)];
    server.http().raw("POST", &format!("{CONSOLE}/act/{name}"), &headers, body.to_owned()).await
}

#[track_caller]
fn has(page: &str, present: &[&str], absent: &[&str]) {
    for words in present {
        assert!(page.contains(words), "no `{words}` in {page}");
    }
    for words in absent {
        assert!(!page.contains(words), "`{words}` is in {page}");
    }
}

/// What follows each occurrence of `before` in a page, up to a quotation mark.
fn after<'a>(page: &'a str, before: &str) -> Vec<&'a str> {
    page.split(before).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backups_snapshots_and_the_cluster_are_shown_as_the_commands_show_them() {
    let (server, admin, mine) = server(&[]).await;
    let see = async |path: &str| see(&server, path, &mine).await;
    let room_id = admin.create_room(json!({ "name": "Cabin" })).await;
    has(&see("/backups").await, &["The log knows of no backup.", "logcabin backup"], &[" ago"]);
    let place = tempfile::tempdir().expect("a directory");
    let place = place.path().join("<img\u{202e}>");
    let backup = command("backup", server.data_dir(), &place.display().to_string(), "");
    assert!(backup.status.success(), "{backup:?}");
    let listed = done_json(command("backups", server.data_dir(), "--json", ""));
    let made = &listed["backups"][0];
    assert_eq!(made["destination"], json!(place), "{listed}");
    let upto = made["offset"].as_u64().expect("a record");
    for number in 0..3 {
        admin.send_text(&room_id, &number.to_string(), "since").await;
    }
    let page = see("/backups").await;
    has(&page, &["0 s ago", "&lt;img", "1 in all", "Records since"], &["knows of no backup"]);
    assert!(page.contains(&format!(">{upto}<")), "not up to {upto}: {page}");
    let manifest = made["manifest"].as_str().expect("a hash");
    assert!(page.contains(manifest), "{page}");
    has(&see("/backups?from=1").await, &["1 in all", " ago"], &[manifest]);

    has(&see("/snapshots").await, &["None yet.", "write-snapshot", "not yet"], &["role=\"alert\""]);
    let written = order(&server, "write-snapshot", "confirmed=yes&reason=now", &mine).await;
    assert_eq!(status(&written), 200, "{}", text(&written));
    let listed = done_json(command("snapshot", server.data_dir(), "list --json", ""));
    let newest = &listed["snapshots"][0];
    let (offset, bytes) = (newest["offset"].as_u64(), newest["bytes"].as_u64());
    assert!(offset > Some(upto) && bytes > Some(8192), "{listed}");
    let page = see("/snapshots").await;
    let link = format!("/log/{}\"", offset.expect("a record"));
    has(&page, &[&link, " kB", env!("CARGO_PKG_VERSION")], &["None yet."]);
    // One that is damaged is listed as such.
    let damaged = server.data_dir().join("snapshots/00000000000000000001.snapshot");
    std::fs::write(damaged, "nothing").expect("it can be written");
    has(&see("/snapshots").await, &[&link, "cannot be read"], &[]);
    let compared = order(&server, "compare-snapshots", "confirmed=yes", &mine).await;
    assert_eq!(status(&compared), 200, "{}", text(&compared));
    has(&see("/snapshots").await, &["up to record"], &["not yet", "role=\"alert\""]);

    has(
        &see("/cluster").await,
        &["This server is alone", "logcabin cluster move-in"],
        &["Replica"],
    );
    let refused = command("cluster", server.data_dir(), "status", "");
    assert!(!refused.status.success(), "{refused:?}");
    for path in
        ["/backups?from=x", "/proofs?before=x", "/erasures?step=x", "/erasures?step=1&passed=x"]
    {
        assert_eq!(status(&get(&server, path, &mine).await), 400, "{path}");
    }
    let ann = server.register("ann").await;
    let as_ann = format!("logcabin_console={}", ann.access_token);
    for path in ["/backups", "/snapshots", "/proofs", "/cluster", "/erasures", "/erasures/1"] {
        assert_eq!(status(&get(&server, path, "").await), 303, "{path}");
        assert_eq!(status(&get(&server, path, &as_ann).await), 403, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_that_the_console_makes_holds_for_others() {
    let (server, admin, mine) = server(&[]).await;
    let room_id = admin.create_room(json!({ "name": "Cabin" })).await;
    admin.send_text(&room_id, "1", "</pre><img src=x>").await;
    let newest = text(&get(&server, "/log", &mine).await);
    let newest = after(&newest, "<a href=\"/_logcabin/console/log/")[0].to_owned();
    let record = see(&server, &format!("/log/{newest}"), &mine).await;
    let link = after(&record, "/_logcabin/console/act/prove?")[0].replace("&amp;", "&");
    let form = see(&server, &format!("/act/prove?{link}"), &mine).await;
    has(&form, &[&format!("value=\"{newest}\""), "name=\"inclusion/offset\""], &[]);
    let filled = format!("inclusion%2Foffset={newest}&inclusion%2Fpayload=yes");
    // Nothing is signed before that is confirmed.
    let signed = || done_json(command("checkpoints", server.data_dir(), "--json", ""));
    let before = signed();
    let asked = order(&server, "prove", &filled, &mine).await;
    assert_eq!(status(&asked), 200, "{}", text(&asked));
    assert_eq!(signed()["total"], before["total"]);
    let made = order(&server, "prove", &format!("{filled}&confirmed=yes"), &mine).await;
    let page = text(&made);
    assert_eq!(status(&made), 200, "{page}");
    assert!(!page.contains("<img"), "{page}");
    let file = after(&page, "data:application/json;base64,")[0];
    let file = STANDARD.decode(file.replace("&#43;", "+")).expect("base64");
    let proof: Value = serde_json::from_slice(&file).expect("the proof");
    let after_it = signed();
    let key = after_it["key"]["public_key"].as_str().expect("a key");
    let shown = verified(key, &proof).expect("it holds");
    assert!(shown.contains(&format!("record {newest},")) && shown.contains("with this payload"));
    let page = see(&server, "/proofs", &mine).await;
    let checkpoint = after_it["checkpoints"][0]["record"].to_string();
    has(&page, &[key, &admin.user_id, &format!("/log/{checkpoint}\"")], &["None yet."]);
    let earlier = see(&server, &format!("/proofs?before={checkpoint}"), &mine).await;
    has(
        &earlier,
        &[key],
        &[&format!("<td data-label=\"Record\"><a href=\"/_logcabin/console/log/{checkpoint}\"")],
    );
    for (wrong, expected, why) in [
        ("inclusion%2Foffset=1&inclusion%2Fpayload=yes&confirmed=yes", 400, "holds a secret"),
        ("inclusion%2Foffset=999999&confirmed=yes", 404, "there is no record 999999"),
        ("inclusion%2Foffset=x&confirmed=yes", 400, "`Record` is missing"),
    ] {
        let refused = order(&server, "prove", wrong, &mine).await;
        let page = text(&refused);
        assert_eq!(status(&refused), expected, "{wrong}: {page}");
        assert!(page.contains(why), "{wrong}: {page}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_erasure_is_listed_with_what_it_covers_and_how_far_it_is() {
    let sweeps =
        [("LOGCABIN_ERASURE_REDACTED_AFTER_SECONDS", "0"), ("LOGCABIN_ERASURE_SWEEP_SECONDS", "1")];
    let (server, admin, mine) = server(&sweeps).await;
    let see = async |path: &str| see(&server, path, &mine).await;
    let room_id = admin.create_room(json!({ "name": "Cabin" })).await;
    has(&see("/erasures").await, &["Erased", "Records to be erased now"], &["Older erasures"]);
    let (mut events, path) = (Vec::new(), format!("/rooms/{}/redact", encode(&room_id)));
    for number in 0..105 {
        events.push(admin.send_text(&room_id, &format!("m{number}"), "to be gone").await);
    }
    for (number, event) in events.iter().enumerate() {
        let path = format!("{path}/{}/r{number}", encode(event));
        let why = json!({ "reason": "<img src=x>\u{202e}" });
        admin.request("PUT", &path, Some(&why)).await.ok();
    }
    // All causes are found by following the links, each with its record.
    let causes = async || {
        let (mut path, mut found) = ("/erasures".to_owned(), BTreeSet::new());
        loop {
            let page = see(&path).await;
            let rows = after(&page, "<a href=\"/_logcabin/console/erasures/");
            assert!(rows.len() <= 100, "{} rows on one page", rows.len());
            found.extend(rows.into_iter().map(str::to_owned));
            let Some((before, _)) = page.split_once("\">Older erasures") else { return found };
            let query = before.rsplit_once("href=\"").expect("a link").1.replace("&amp;", "&");
            path = format!("/erasures{query}");
        }
    };
    let found = until_ok("everything is erased", async || {
        let found = causes().await;
        if found.len() >= 105 { Ok(found) } else { Err(found.len()) }
    })
    .await;
    let listed = done_json(command("erasure", server.data_dir(), "list --last 1000 --json", ""));
    let listed: BTreeSet<_> = listed["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| row["because"].to_string())
        .filter(|because| because != "0")
        .collect();
    assert_eq!(found, listed);
    let cause = found.first().expect("one").clone();
    let page = until_ok("it has left the files", async || {
        let page = see(&format!("/erasures/{cause}")).await;
        let is_gone = page.contains("room.event") && !page.contains("not yet gone");
        if is_gone { Ok(page) } else { Err(page) }
    })
    .await;
    has(&page, &[&admin.user_id, "1 records", "None that the log knows of."], &["begins within"]);

    // A backup is named by the erasures that it holds the content of.
    let other = admin.create_room(json!({ "name": "Shed" })).await;
    for number in 0..20 {
        admin.send_text(&other, &format!("s{number}"), "to be purged").await;
    }
    let place = tempfile::tempdir().expect("a directory");
    let backup = command("backup", server.data_dir(), &place.path().display().to_string(), "");
    assert!(backup.status.success(), "{backup:?}");
    let filled = format!("room={}&force=yes&confirmed=yes", encode(&other));
    let purged = order(&server, "purge-room", &filled, &mine).await;
    assert_eq!(status(&purged), 200, "{}", text(&purged));
    let log = text(&get(&server, "/log?kind=room.purge", &mine).await);
    let purge = after(&log, "<a href=\"/_logcabin/console/log/")[0].to_owned();
    let page = until_ok("the room is gone", async || {
        let page = see(&format!("/erasures/{purge}")).await;
        if page.contains("not yet gone") { Err(page) } else { Ok(page) }
    })
    .await;
    let place = place.path().canonicalize().expect("it is there").display().to_string();
    has(&page, &["room.event", &place, "nothing"], &["begins within"]);
    for (wrong, expected) in [
        ("/erasures/999999", 404),
        ("/erasures/x", 404),
        ("/erasures/1", 400),
        ("/erasures/0", 404),
    ] {
        assert_eq!(status(&get(&server, wrong, &mine).await), expected, "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unread_count_leads_to_the_receipt_the_events_and_the_rules_behind_it() {
    let (server, _, mine) = server(&[]).await;
    let see = async |path: &str| see(&server, path, &mine).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat", "name": "<img>Den" })).await;
    bob.join(&room_id).await.ok();
    ann.send_text(&room_id, "own", "what ann said").await;
    let mut events = Vec::new();
    for number in 0..4 {
        events.push(bob.send_text(&room_id, &number.to_string(), &format!("early {number}")).await);
    }
    let newest = async || {
        let page = text(&get(&server, "/log?kind=room.event", &mine).await);
        after(&page, "<a href=\"/_logcabin/console/log/")[0].to_owned()
    };
    let early = newest().await;
    let receipt = format!("/rooms/{}/receipt/m.read/{}", encode(&room_id), encode(&events[3]));
    ann.request("POST", &receipt, Some(&json!({}))).await.ok();
    bob.send_text(&room_id, "5", "@ann: <img src=x>\u{202e} for you").await;
    bob.send_text(&room_id, "6", "ann, are you there?").await;
    bob.send_text(&room_id, "7", "nobody knows").await;
    let user = encode(&ann.user_id);
    let mine_of_ann = see(&format!("/users/{user}")).await;
    has(&mine_of_ann, &["/unread\">Unread counts"], &[]);
    let counts = |page: &str| -> Vec<String> {
        let cells = ["Unread", "Highlighted"].map(|name| format!("data-label=\"{name}\">"));
        let cell = |name: &String| page.split_once(&**name).map(|(_, rest)| rest);
        let number = |rest: &str| rest.split('<').next().unwrap_or_default().to_owned();
        cells.iter().filter_map(|name| cell(name).map(number)).collect()
    };
    let now = see(&format!("/users/{user}/unread")).await;
    has(&now, &["&lt;img&gt;Den", "1 in all"], &["More rooms"]);
    assert_eq!(counts(&now), ["3", "2"], "{now}");
    let sync = ann.sync(None, 0, None).await;
    let told = &sync["rooms"]["join"][&room_id]["unread_notifications"];
    assert_eq!((&told["notification_count"], &told["highlight_count"]), (&json!(3), &json!(2)));
    let then = see(&format!("/users/{user}/unread?at={early}")).await;
    assert_eq!(counts(&then), ["4", "0"], "{then}");

    let why = after(&now, "href=\"/_logcabin/console/why?")[0].replace("&amp;", "&");
    let why = see(&format!("/why?{why}")).await;
    has(
        &why,
        &[
            "room.receipt",
            ".m.rule.room_one_to_one",
            "counts and is highlighted by the rule `.m.rule.contains_display_name`",
            "for you",
            "nobody knows",
            "what ann said",
        ],
        &["early", "were examined"],
    );
    let why = after(&then, "href=\"/_logcabin/console/why?")[0].replace("&amp;", "&");
    let why = see(&format!("/why?{why}")).await;
    has(&why, &["early 0", "early 3", "what ann said"], &["room.receipt", "for you"]);
    let read = see(&format!("/why?of={}", encode(&format!("room {room_id} read ann")))).await;
    has(&read, &["room.receipt"], &["were examined"]);
    // Many events are shown page by page.
    for number in 0..130 {
        bob.send_text(&room_id, &format!("many{number}"), &format!("flood {number}.")).await;
    }
    let words = encode(&format!("room {room_id} unread {}", ann.user_id));
    let page = see(&format!("/why?of={words}")).await;
    has(&page, &["flood 129.", "flood 31."], &["flood 2.", "nobody knows"]);
    let earlier = after(&page, "<a href=\"?of=")[0].replace("&amp;", "&");
    has(&see(&format!("/why?of={earlier}")).await, &["flood 2.", "nobody knows"], &["flood 31."]);
    // Nobody has a log replayed by a wrong name.
    let wrong = format!("/why?of={}&at=5", encode("room nowhere unread ann"));
    assert_eq!(status(&get(&server, &wrong, &mine).await), 404);
    for (wrong, expected) in
        [("/users/nobody/unread", 404), (&format!("/users/{user}/unread?at=soon") as &str, 400)]
    {
        assert_eq!(status(&get(&server, wrong, &mine).await), expected, "{wrong}");
    }
}

/// Many records of no consequence, so that what reads them takes a while.
async fn lengthen(data_dir: &std::path::Path, count: usize) {
    let log = SledLog::open(SledOptions::new(data_dir)).expect("the log can be opened");
    let log: Arc<dyn Log> = Arc::new(log);
    log.start(StreamHeads::new(), Box::new(|_| ()));
    let room_id = "!nowhere:e2e.test";
    let payload = json!({ "user_id": "@nobody:e2e.test", "room_id": room_id }).to_string();
    let record = || NewRecord {
        stream: Stream::from_name(&format!("room/{room_id}")),
        kind: "room.forget",
        version: 1,
        class: Class::Rewindable,
        ephemeral: false,
        origin: Origin::server(),
        payload: payload.clone().into(),
    };
    for _ in 0..count.div_ceil(1000) {
        let records = (0..1000).map(|_| record()).collect();
        log.append(Batch { expect: vec![], records }).await.expect("they are written");
    }
    log.close();
}

/// How many records the log has where work is to take long enough to be seen.
const LENGTH: usize = 150_000;

/// Has a command run in a terminal, and waits until the console and `logcabin work` show what it
/// has the server do, with an estimate. Gives what the terminal showed.
async fn in_terminal(server: &TestServer, mine: &str, arguments: &str, what: &str) -> String {
    let dir = server.data_dir().display();
    let line = format!("{} {arguments} --data-dir {dir}", program().display());
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    terminal.env("TERM", "xterm").stdin(Stdio::null()).stdout(Stdio::piped());
    let terminal = without_settings(&mut terminal).spawn().expect("script runs");
    // At the same time: whichever is first must not wait for the other.
    let what_the_page_shows = format!("the page shows: {what}");
    let on_the_page = until_ok(&what_the_page_shows, async || {
        let page = see(server, "/work", mine).await;
        let is_shown = page.contains(what) && !page.contains("not known yet");
        if is_shown { Ok(page) } else { Err(page) }
    });
    let what_is_listed = format!("it is listed: {what}");
    let listed = until_ok(&what_is_listed, async || {
        let dir = server.data_dir().to_owned();
        let listed = tokio::task::spawn_blocking(move || command("work", &dir, "--json", ""));
        let listed = done_json(listed.await.expect("no panic"));
        let work = listed["work"][0].clone();
        let is_estimated = work["left_ms"].is_u64() && work["done"].as_u64() > Some(0);
        if work["what"] == what && is_estimated { Ok(work) } else { Err(listed) }
    });
    let (page, work) = tokio::join!(on_the_page, listed);
    has(&page, &["<progress", "of 150,"], &["There is no long-running work."]);
    assert!(work["total"].as_u64() > Some(LENGTH as u64), "{work}");
    let output = terminal.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    has(&said, &[what, " left"], &[]);
    let after_it = done_json(command("work", server.data_dir(), "--json", ""));
    assert_eq!(after_it["work"], json!([]));
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_work_shows_its_progress_in_the_console_and_in_the_terminal() {
    // The snapshot that the server would write by itself would leave the command nothing to do.
    let by_itself = ("LOGCABIN_SNAPSHOTS_EVERY_RECORDS", "1000000000");
    let (mut server, admin, mine) = server(&[by_itself]).await;
    let room_id = admin.create_room(json!({ "name": "Cabin" })).await;
    server.stop();
    lengthen(server.data_dir(), LENGTH).await;
    server.restart().await;
    // The search index is built at first.
    until_ok("nothing takes long", async || {
        let page = see(&server, "/work", &mine).await;
        let is_idle =
            page.contains("There is no long-running work.") && !page.contains("<progress");
        if is_idle { Ok(()) } else { Err(page) }
    })
    .await;
    let run =
        async |arguments: &str, what: &str| in_terminal(&server, &mine, arguments, what).await;
    let said = run("snapshot write", "Writes a snapshot").await;
    has(&said, &["wrote a snapshot"], &[]);
    let said = run("snapshot compare", "Replays the log to compare its projections").await;
    has(&said, &["the log is intact"], &[]);
    let purge = format!("room purge {room_id} --dry-run");
    let said = run(&purge, "Searches the log for what a purge takes").await;
    has(&said, &[&format!("purge takes {room_id}"), "is purged, with"], &[]);
}
