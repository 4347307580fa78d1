//! The console's pages of people, rooms and media: what they say, who sees pictures on them, and
//! what can be done about several files at once.

use std::env;
use std::io::Cursor;
use std::process::Command;

use image::{ImageFormat, Rgb, RgbImage};
use serde_json::json;

use crate::administration::{command, done, user_command};
use crate::console::{CONSOLE, PASSWORD, cookie, get, log_in, server, status, text};
use crate::harness::tools::{chromium, judged, node, programs};
use crate::harness::{RawAnswer, TestServer, User, encode, skip};

const HOSTILE: &str = "<img src=x onerror=alert(1)>\u{202e}gnp.exe";

fn picture(width: u32, height: u32, hue: u8) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let colour = |x: u32, y: u32| {
        let part = |at: u32, of: u32| u8::try_from(at * 255 / of.max(1)).unwrap_or(u8::MAX);
        Rgb([hue, part(x, width), part(y, height)])
    };
    let picture = RgbImage::from_fn(width, height, colour);
    picture.write_to(&mut bytes, ImageFormat::Png).expect("a picture is encoded");
    bytes.into_inner()
}

/// Uploads a file, and gives its id.
async fn upload(user: &User, name: &str, content_type: &str, bytes: Vec<u8>) -> String {
    let path = format!("/_matrix/media/v3/upload?filename={}", encode(name));
    let uploaded = user.send_bytes("POST", &path, &[("content-type", content_type)], bytes).await;
    let address = uploaded.json().ok_string("content_uri");
    address.rsplit('/').next().expect("an id").to_owned()
}

/// An administrator, and the cookie of their session in the console.
async fn administrator(server: &TestServer) -> (User, String) {
    let admin = server.register("admin").await;
    done(user_command(server.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    (admin, cookie(&log_in(server, "admin", PASSWORD, &[]).await))
}

async fn page(server: &TestServer, path: &str, mine: &str) -> String {
    let answer = get(server, path, mine).await;
    let page = text(&answer);
    assert_eq!(status(&answer), 200, "{path}: {page}");
    for harm in ["<img src=x", "<script>alert", "\u{202e}"] {
        assert!(!page.contains(harm), "`{harm}` is in {path}: {page}");
    }
    page
}

fn has(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(page.contains(part), "no `{part}` in {page}");
    }
}

async fn order(server: &TestServer, mine: &str, name: &str, body: &str) -> RawAnswer {
    let headers = [("content-type", "application/x-www-form-urlencoded"), ("cookie", mine)];
    server.http().raw("POST", &format!("{CONSOLE}/act/{name}"), &headers, body.to_owned()).await
}

fn server_of(user: &User) -> &str {
    user.user_id.split_once(':').expect("a server").1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_are_for_administrators_and_nothing_that_was_uploaded_is_served_as_it_is() {
    let server = server().await;
    let (_admin, mine) = administrator(&server).await;
    let ann = server.register("ann").await;
    let of = encode(server_of(&ann));
    let mut small = picture(40, 30, 200);
    small.extend(b"<script>alert(1)</script>");
    let small = upload(&ann, "small.png", "image/png", small).await;
    let large = upload(&ann, "large.png", "image/png", picture(900, 700, 90)).await;
    let path = |id: &str, width: &str| format!("/thumbnail/{of}/{id}?width={width}");

    for id in [&small, &large] {
        for width in ["96", "320", "800"] {
            let shown = get(&server, &path(id, width), &mine).await;
            assert_eq!(status(&shown), 200, "{width}: {}", text(&shown));
            let kind = shown.header("content-type");
            assert!(matches!(kind, "image/jpeg" | "image/png"), "{kind}");
            assert_eq!(shown.header("x-content-type-options"), "nosniff");
            assert!(shown.header("content-security-policy").starts_with("sandbox"));
            assert_eq!(shown.header("cross-origin-resource-policy"), "same-origin");
            assert_eq!(shown.header("cache-control"), "no-store");
            let drawn = image::load_from_memory(&shown.bytes).expect("a picture");
            assert!(drawn.width() <= 800 && drawn.height() <= 600, "{width}");
            assert!(!shown.bytes.windows(6).any(|bytes| bytes == b"script"), "{width}");
        }
    }
    // Nobody else sees them, and no page of another site.
    assert_eq!(status(&get(&server, &path(&small, "96"), "").await), 401);
    let as_ann = format!("logcabin_console={}", ann.access_token);
    assert_eq!(status(&get(&server, &path(&small, "96"), &as_ann).await), 403);
    let from_elsewhere = [("cookie", &*mine), ("sec-fetch-site", "cross-site")];
    let whole = format!("{CONSOLE}{}", path(&small, "96"));
    assert_eq!(status(&server.http().raw("GET", &whole, &from_elsewhere, "").await), 403);
    for (wrong, expected) in [
        (path(&small, "97"), 400),
        (format!("/thumbnail/{of}/{small}"), 400),
        (path("nothing", "96"), 404),
        // A file of another homeserver is not fetched.
        (format!("/thumbnail/elsewhere.example/{small}?width=96"), 404),
        (format!("/thumbnail/%20/{small}?width=96"), 404),
    ] {
        assert_eq!(status(&get(&server, &wrong, &mine).await), expected, "{wrong}");
    }
    // What is no picture is not served, whatever it says it is.
    let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\"><script>alert(1)</script></svg>";
    for (kind, bytes) in [
        ("image/png", "<script>alert(1)</script>"),
        ("image/svg+xml", svg),
        ("image/png", svg),
        ("text/html", "<html>"),
    ] {
        let id = upload(&ann, "hostile", kind, bytes.into()).await;
        let refused = get(&server, &path(&id, "320"), &mine).await;
        assert_eq!(status(&refused), 400, "{kind}");
        assert_eq!(refused.header("content-type"), "application/json", "{kind}");
        assert!(!text(&refused).contains('<'), "{}", text(&refused));
    }
    // Whoever moderates sees what is in quarantine, and nobody sees what is deleted.
    done(command("media", server.data_dir(), &format!("quarantine {large}"), ""));
    let place = format!("{}/{large}", server_of(&ann));
    assert_eq!(status(&ann.thumbnail(&place, "width=96&height=96").await), 404);
    assert_eq!(status(&get(&server, &path(&large, "96"), &mine).await), 200);
    done(command("media", server.data_dir(), &format!("delete {large} --yes"), ""));
    assert_eq!(status(&get(&server, &path(&large, "96"), &mine).await), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_files_are_quarantined_released_and_deleted_at_once() {
    let server = server().await;
    let (_admin, mine) = administrator(&server).await;
    let ann = server.register("ann").await;
    let mut ids = Vec::new();
    for number in 0..4 {
        let bytes = picture(50 + number, 40, 9);
        ids.push(upload(&ann, &format!("{number} {HOSTILE}"), "image/png", bytes).await);
    }
    let plans = upload(&ann, "plans.pdf", "application/pdf", b"%PDF-1.7".to_vec()).await;
    let listed = page(&server, "/media", &mine).await;
    for id in &ids {
        has(&listed, &[&format!("type=\"checkbox\" name=\"of\" value=\"{id}\"")]);
        has(&listed, &[&format!("{id}?width=320")]);
    }
    has(&listed, &["<p class=\"kind\">Document</p>", &ann.user_id]);
    assert!(!listed.contains(&format!("{plans}?width")), "{listed}");
    // The lists can be searched.
    for (search, expected) in [
        ("name=plans", 1),
        ("only=pictures", 4),
        ("only=others", 1),
        ("only=quarantined", 0),
        ("user=%40admin%3Anowhere", 0),
    ] {
        let found = page(&server, &format!("/media?{search}"), &mine).await;
        assert_eq!(found.matches("name=\"of\"").count(), expected, "{search}: {found}");
    }
    let some = format!("{} {}", ids[0], ids[1]);
    let ticked = format!("of={}&of={}", ids[0], ids[1]);
    let form = format!("/act/quarantine-media?{ticked}&quarantined=yes");
    has(&page(&server, &form, &mine).await, &[&format!("value=\"{some}\"")]);
    let gone = async |id: &str| {
        let place = format!("{}/{id}", server_of(&ann));
        status(&ann.download(&place).await) == 404
    };
    let body = format!("of={}&quarantined=yes&reason=spam", encode(&some));
    let shown = text(&order(&server, &mine, "quarantine-media", &body).await);
    has(&shown, &["2 file(s) cannot be downloaded any more"]);
    assert!(!gone(&ids[0]).await);
    let body = format!("{body}&confirmed=yes");
    has(&text(&order(&server, &mine, "quarantine-media", &body).await), &["This was done"]);
    assert!(gone(&ids[0]).await && gone(&ids[1]).await && !gone(&ids[2]).await);
    let found = page(&server, "/media?only=quarantined", &mine).await;
    assert_eq!(found.matches("In quarantine, by ").count(), 2, "{found}");
    has(&page(&server, "/log?kind=media.quarantine", &mine).await, &["spam"]);
    let body = format!("of={}&quarantined=no&confirmed=yes", encode(&some));
    has(&text(&order(&server, &mine, "quarantine-media", &body).await), &["This was done"]);
    assert!(!gone(&ids[0]).await);
    let body = format!("of={}", encode(&format!("{some} {plans}")));
    let shown = text(&order(&server, &mine, "delete-media", &body).await);
    has(&shown, &["3 file(s) of", "This cannot be undone"]);
    let done = text(&order(&server, &mine, "delete-media", &format!("{body}&confirmed=yes")).await);
    has(&done, &["This was done"]);
    assert!(gone(&ids[0]).await && gone(&plans).await && !gone(&ids[2]).await);
    let left = page(&server, "/media", &mine).await;
    assert_eq!(left.matches("name=\"of\"").count(), 2, "{left}");
    // One that is not there leaves the others as they are.
    let body = format!("of={}&confirmed=yes", encode(&format!("{} nothing", ids[2])));
    assert_eq!(status(&order(&server, &mine, "delete-media", &body).await), 404);
    assert!(!gone(&ids[2]).await);
}

async fn set_avatar(user: &User, media_id: &str) {
    let path = format!("/profile/{}/avatar_url", encode(&user.user_id));
    let address = format!("mxc://{}/{media_id}", server_of(user));
    user.request("PUT", &path, Some(&json!({ "avatar_url": address }))).await.ok();
}

async fn set_state(user: &User, room_id: &str, kind_and_key: &str, content: serde_json::Value) {
    let path = format!("/rooms/{}/state/{kind_and_key}", encode(room_id));
    user.request("PUT", &path, Some(&content)).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_of_a_user_says_who_they_are_what_they_do_and_what_can_be_done() {
    let server = server().await;
    let (admin, mine) = administrator(&server).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let user = format!("/users/{}", encode(&ann.user_id));
    has(&page(&server, &user, &mine).await, &["in good standing", "nothing that is still here"]);
    let name = format!("/profile/{}/displayname", encode(&ann.user_id));
    ann.request("PUT", &name, Some(&json!({ "displayname": HOSTILE }))).await.ok();
    let face = upload(&ann, "face.png", "image/png", picture(200, 200, 30)).await;
    set_avatar(&ann, &face).await;
    let room_id = ann.create_room(json!({ "name": "Den", "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let seen = page(&server, &user, &mine).await;
    has(&seen, &["<span class=\"avatar\"><img", "Admin (100)", "Den", "face.png", "127.0.0.1"]);
    has(&page(&server, "/users/bob", &mine).await, &["Member (0)"]);
    for (severity, act) in [
        ("undoable", "set-status?user=%40ann%3A"),
        ("undoable", "log-out"),
        ("final", "deactivate"),
        ("final", "erase-user"),
        ("final", "redact-user"),
    ] {
        let part = seen.split(&format!("<div class=\"{severity}\">")).nth(1).expect("the group");
        let part = part.split("</div>").next().expect("its end");
        has(part, &[act]);
    }
    // The avatar of somebody who was reported is blurred.
    let report = format!("/rooms/{}/report", encode(&room_id));
    ann.request("POST", &report, Some(&json!({ "reason": "too quiet" }))).await.ok();
    let said = ann.send_text(&room_id, "1", "buy now").await;
    let report = format!("{report}/{}", encode(&said));
    bob.request("POST", &report, Some(&json!({ "reason": "spam!" }))).await.ok();
    let seen = page(&server, &user, &mine).await;
    has(&seen, &["<details class=\"picture avatar\">", "spam!", "too quiet"]);
    has(&page(&server, "/users/bob", &mine).await, &["spam!", "<span class=\"avatar\" aria"]);
    // The status says who made it so, and why.
    let suspend = format!("user={}&suspended=yes&reason=enough&confirmed=yes", ann.user_id);
    order(&server, &mine, "set-status", &suspend).await;
    let seen = page(&server, &user, &mine).await;
    has(&seen, &["<strong>Suspended</strong> by <a", &admin.user_id, "“<bdi>enough</bdi>”"]);
    has(&seen, &["Lift the suspension", "suspended=no"]);
    let deactivate = format!("user={}&erase=no&confirmed=yes", ann.user_id);
    order(&server, &mine, "deactivate", &deactivate).await;
    let seen = page(&server, &user, &mine).await;
    has(&seen, &["<strong>Deactivated</strong> by <a", "No device is logged in."]);
    assert!(!seen.contains("Deactivate the account"), "{seen}");
    // Users of other homeservers have a page; accounts that are not there have none.
    has(&page(&server, "/users/%40eve%3Aelsewhere.example", &mine).await, &["in 0 room(s)"]);
    assert_eq!(status(&get(&server, "/users/nobody", &mine).await), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_of_a_room_says_what_it_is_who_is_in_it_and_what_is_said() {
    let server = server().await;
    let (_admin, mine) = administrator(&server).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let wanted = json!({ "name": "Den", "preset": "public_chat", "topic": HOSTILE });
    let room_id = ann.create_room(wanted).await;
    bob.join(&room_id).await.ok();
    let view =
        async |room_id: &str| page(&server, &format!("/rooms/{}", encode(room_id)), &mine).await;
    ann.send_text(&room_id, "1", "a quiet evening").await;
    let bad = bob.send_text(&room_id, "2", "words to regret").await;
    let place = upload(&bob, "view.png", "image/png", picture(300, 100, 30)).await;
    let address = format!("mxc://{}/{place}", server_of(&bob));
    let image = json!({ "msgtype": "m.image", "body": "the view", "url": address });
    bob.send(&room_id, "m.room.message", "3", &image).await;
    let seen = view(&room_id).await;
    has(&seen, &["a quiet evening", "words to regret", "the view"]);
    has(&seen, &[&format!("{place}?width=320"), "<details class=\"picture\">"]);
    has(&seen, &["Admin (100)", "Member (0)", "m.room.power_levels", "<h1><bdi>Den</bdi></h1>"]);
    has(&seen, &[server_of(&ann), "last 7 days", "block-room", "purge-room"]);
    // Members with power come first.
    let members = seen.split("id=\"members\"").nth(1).expect("the members");
    assert!(members.find(&ann.user_id) < members.find(&bob.user_id), "{members}");
    let redact = format!("/rooms/{}/redact/{}/gone", encode(&room_id), encode(&bad));
    ann.request("PUT", &redact, Some(&json!({}))).await.ok();
    let seen = view(&room_id).await;
    has(&seen, &["Redacted by <a href=\"/_logcabin/console/users/%40ann"]);
    assert!(!seen.contains("words to regret"), "{seen}");
    // A space that lists itself, and is in one that it lists, is shown two levels deep.
    let space = json!({ "name": "Hills", "creation_content": { "type": "m.space" } });
    let (hills, range) = (ann.create_room(space.clone()).await, ann.create_room(space).await);
    let via = json!({ "via": [server_of(&ann)] });
    for (above, below) in [(&hills, &hills), (&hills, &range), (&range, &hills), (&hills, &room_id)]
    {
        set_state(&ann, above, &format!("m.space.child/{}", encode(below)), via.clone()).await;
    }
    has(&view(&hills).await, &["A space", "Rooms in this space", "In these spaces", ">Den<"]);
    let seen = view(&room_id).await;
    has(&seen, &["In these spaces", ">Hills<"]);
    assert!(!seen.contains("Rooms in this space"), "{seen}");
    // What is said in an encrypted room is not shown; what was said before is.
    let algorithm = json!({ "algorithm": "m.megolm.v1.aes-sha2" });
    set_state(&ann, &room_id, "m.room.encryption/", algorithm).await;
    let secret =
        json!({ "algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "AwgAEnACgAkLmt6qF84" });
    ann.send(&room_id, "m.room.encrypted", "4", &secret).await;
    let seen = view(&room_id).await;
    has(&seen, &["The room is encrypted", "a quiet evening"]);
    assert!(!seen.contains("AwgAEnACgAkLmt6qF84"), "{seen}");
    // It has an avatar, which is blurred once the room is reported, and what replaced it.
    let face = upload(&ann, "den.png", "image/png", picture(100, 100, 30)).await;
    let avatar = json!({ "url": format!("mxc://{}/{face}", server_of(&ann)) });
    set_state(&ann, &room_id, "m.room.avatar/", avatar).await;
    has(&view(&room_id).await, &["<span class=\"avatar\"><img"]);
    let report = format!("/rooms/{}/report", encode(&room_id));
    bob.request("POST", &report, Some(&json!({ "reason": HOSTILE }))).await.ok();
    let upgrade = format!("/rooms/{}/upgrade", encode(&room_id));
    let upgraded = ann.request("POST", &upgrade, Some(&json!({ "new_version": "11" }))).await;
    let next = upgraded.ok_string("replacement_room");
    let seen = view(&room_id).await;
    has(
        &seen,
        &["picture avatar", "<strong>Reported</strong>", "<strong>Replaced</strong>", &next],
    );
    has(&view(&next).await, &["Replaces <a", &room_id]);
    let nameless = ann.create_room(json!({})).await;
    has(&view(&nameless).await, &["<h1><bdi>A room without a name</bdi></h1>"]);
}

/// Has a browser look at the pages, of a server on which people live.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_people_rooms_and_media_can_be_used_on_every_width() {
    let found = node("puppeteer-core").and_then(|()| node("axe-core"));
    let chromium = match found.and_then(|()| chromium()) {
        Ok(chromium) => chromium,
        Err(missing) => return skip("pages of people, rooms and media", &missing),
    };
    let server = server().await;
    let (admin, mine) = administrator(&server).await;
    let names = ["ann", "ben", "cleo", "dora", "emil", "frida", "gus", "hanna", "ivo", "jule"];
    let mut users = Vec::new();
    for (number, name) in (0_u8..).zip(names) {
        let user = server.register(name).await;
        let face = picture(120, 120, number * 25);
        let face = upload(&user, &format!("{name}.png"), "image/png", face).await;
        set_avatar(&user, &face).await;
        users.push(user);
    }
    let (ann, ben) = (&users[0], &users[1]);
    let wanted = json!({ "name": "The kitchen", "preset": "public_chat",
        "topic": "Who cooks, who washes up, and where the good knife is." });
    let room_id = ann.create_room(wanted).await;
    for user in &users[1..] {
        user.join(&room_id).await.ok();
    }
    let face = upload(ann, "kitchen.png", "image/png", picture(150, 150, 77)).await;
    let avatar = json!({ "url": format!("mxc://{}/{face}", server_of(ann)) });
    set_state(ann, &room_id, "m.room.avatar/", avatar).await;
    let lines = ["Soup at seven?", "Yes, with bread.", "The knife is in the shed again.", HOSTILE];
    for (number, line) in lines.iter().cycle().take(24).enumerate() {
        users[number % users.len()].send_text(&room_id, &format!("m{number}"), line).await;
    }
    for (number, (width, height)) in
        [(640, 480), (300, 900), (1200, 200), (64, 64), (800, 800), (500, 333)].iter().enumerate()
    {
        let name = format!("{number} from the {} walk to the lake.png", "long ".repeat(number * 3));
        let hue = u8::try_from(number * 40).unwrap_or_default();
        let id = upload(ben, &name, "image/png", picture(*width, *height, hue)).await;
        let url = format!("mxc://{}/{id}", server_of(ben));
        let content = json!({ "msgtype": "m.image", "body": name, "url": url });
        ben.send(&room_id, "m.room.message", &format!("p{number}"), &content).await;
        if number == 1 {
            done(command("media", server.data_dir(), &format!("quarantine {id}"), ""));
        }
    }
    upload(ben, "plans.pdf", "application/pdf", b"%PDF-1.7".to_vec()).await;
    upload(ben, HOSTILE, "text/html", HOSTILE.into()).await;
    upload(ben, "clip.mp4", "video/mp4", vec![0; 70_000]).await;
    let hills = json!({ "name": "The hut", "creation_content": { "type": "m.space" } });
    let hut = ann.create_room(hills).await;
    let via = json!({ "via": [server_of(ann)] });
    set_state(ann, &hut, &format!("m.space.child/{}", encode(&room_id)), via).await;
    let said = ben.send_text(&room_id, "bad", "buy my knives").await;
    let report = format!("/rooms/{}/report/{}", encode(&room_id), encode(&said));
    ann.request("POST", &report, Some(&json!({ "reason": "advertising" }))).await.ok();
    ann.send_text(&room_id, "last", "Not here, please.").await;
    let suspend = "user=ben&suspended=yes&reason=advertising, again&confirmed=yes";
    order(&server, &mine, "set-status", suspend).await;
    drop(admin);
    let pages = [
        ("media", "/media".to_owned()),
        ("user", format!("/users/{}", encode(&ben.user_id))),
        ("room", format!("/rooms/{}", encode(&room_id))),
        ("space", format!("/rooms/{}", encode(&hut))),
        ("elsewhere", "/users/%40eve%3Aelsewhere.example".to_owned()),
    ];
    let mut node = Command::new("node");
    node.arg(programs().join("console_media.mjs"));
    node.args([&*server.base(), &*chromium, "admin", PASSWORD]);
    node.arg(env::var_os("LOGCABIN_E2E_SCREENSHOTS").unwrap_or_default());
    node.args(pages.iter().map(|(name, path)| format!("{name}={path}")));
    judged("console_media.mjs", node).await;
}
