//! What users can do with their accounts: as it is told, and as it is.

use serde_json::{Value, json};

use super::{PASSWORD, server, user};
use crate::harness::{Answer, TestServer, User, encode, run_logcabin};

async fn capabilities(user: &User) -> Value {
    user.get("/capabilities").await.ok()["capabilities"].clone()
}

async fn set(user: &User, field: &str) -> Answer {
    let path = format!("/profile/{}/{field}", encode(&user.user_id));
    user.put(&path, json!({ field: "mxc://e2e.test/x" })).await
}

async fn remove(user: &User, field: &str) -> Answer {
    let path = format!("/profile/{}/{field}", encode(&user.user_id));
    user.request("DELETE", &path, None).await
}

async fn change_password(user: &User) -> Answer {
    let auth = json!({
        "type": "m.login.password", "password": PASSWORD,
        "identifier": { "type": "m.id.user", "user": user.user_id },
    });
    user.post("/account/password", json!({ "new_password": "a new password", "auth": auth })).await
}

#[tokio::test]
async fn by_default_users_may_do_what_they_can() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let told = capabilities(&ann).await;
    for (capability, enabled) in [
        ("m.change_password", true),
        ("m.set_displayname", true),
        ("m.set_avatar_url", true),
        ("m.profile_fields", true),
        ("m.forget_forced_upon_leave", false),
    ] {
        assert_eq!(told[capability], json!({ "enabled": enabled }), "{capability}");
    }
    let versions = &told["m.room_versions"];
    let default = versions["default"].as_str().expect("a version");
    assert_eq!(versions["available"][default], "stable");
    for field in ["displayname", "avatar_url", "org.example.field"] {
        set(&ann, field).await.ok();
        remove(&ann, field).await.ok();
    }
    change_password(&ann).await.ok();
}

#[tokio::test]
async fn what_is_switched_off_is_told_and_refused() {
    for (setting, capability, field) in [
        ("SET_DISPLAYNAME", "m.set_displayname", "displayname"),
        ("SET_AVATAR_URL", "m.set_avatar_url", "avatar_url"),
        ("PROFILE_FIELDS", "", "org.example.field"),
    ] {
        let setting = format!("LOGCABIN_ACCOUNTS_{setting}");
        let server = TestServer::start_with(&[(&setting, "false")]).await;
        let ann = user(&server, "ann").await;
        let told = capabilities(&ann).await;
        for named in ["m.set_displayname", "m.set_avatar_url"] {
            assert_eq!(told[named]["enabled"], named != capability, "{setting}: {told}");
        }
        let fields = &told["m.profile_fields"];
        if capability.is_empty() {
            let allowed = json!(["displayname", "avatar_url"]);
            assert_eq!(*fields, json!({ "enabled": true, "allowed": allowed }));
        } else {
            assert_eq!(*fields, json!({ "enabled": true, "disallowed": [field] }));
        }
        for other in ["displayname", "avatar_url", "org.example.field"] {
            if other == field {
                set(&ann, field).await.refused(403, "M_FORBIDDEN");
                remove(&ann, field).await.refused(403, "M_FORBIDDEN");
            } else {
                set(&ann, other).await.ok();
            }
        }
    }
}

#[tokio::test]
async fn a_profile_that_cannot_be_changed_at_all_is_told_so() {
    let server = TestServer::start_with(&[
        ("LOGCABIN_ACCOUNTS_SET_DISPLAYNAME", "false"),
        ("LOGCABIN_ACCOUNTS_SET_AVATAR_URL", "false"),
        ("LOGCABIN_ACCOUNTS_PROFILE_FIELDS", "false"),
    ])
    .await;
    let ann = user(&server, "ann").await;
    assert_eq!(capabilities(&ann).await["m.profile_fields"], json!({ "enabled": false }));
}

#[tokio::test]
async fn passwords_that_cannot_be_changed_stay() {
    let server = TestServer::start_with(&[("LOGCABIN_ACCOUNTS_CHANGE_PASSWORD", "false")]).await;
    let ann = user(&server, "ann").await;
    assert_eq!(capabilities(&ann).await["m.change_password"], json!({ "enabled": false }));
    change_password(&ann).await.refused(403, "M_FORBIDDEN");
    ann.another_device().await;
}

#[tokio::test]
async fn a_room_that_is_left_is_forgotten_if_the_server_says_so() {
    for forgets in [false, true] {
        let setting = ("LOGCABIN_ACCOUNTS_FORGET_ON_LEAVE", if forgets { "true" } else { "false" });
        let server = TestServer::start_with(&[setting]).await;
        let ann = user(&server, "ann").await;
        let told = capabilities(&ann).await;
        assert_eq!(told["m.forget_forced_upon_leave"], json!({ "enabled": forgets }));
        let room_id = ann.create_room(json!({})).await;
        ann.post(&format!("/rooms/{}/leave", encode(&room_id)), json!({})).await.ok();
        let history = ann.get_room(&room_id, "/messages?dir=b").await;
        assert_eq!(history.status == 200, !forgets, "{history}");
    }
}

#[tokio::test]
async fn the_version_of_new_rooms_is_a_setting() {
    let server = TestServer::start_with(&[("LOGCABIN_ROOMS_DEFAULT_VERSION", "12")]).await;
    let ann = server.register("ann").await;
    let told = capabilities(&ann).await;
    assert_eq!(told["m.room_versions"]["default"], "12", "{told}");
    let version = async |options: Value| {
        let room_id = ann.create_room(options).await;
        ann.state(&room_id, "m.room.create", "").await.ok()["room_version"].clone()
    };
    assert_eq!(version(json!({})).await, "12");
    assert_eq!(version(json!({ "room_version": "10" })).await, "10");
    // What is no version at all is not supported either.
    let room_id = ann.create_room(json!({})).await;
    let upgrade = format!("/rooms/{}/upgrade", encode(&room_id));
    for bad in ["", "a b", &"1".repeat(33), "99"] {
        let answer =
            ann.request("POST", "/createRoom", Some(&json!({ "room_version": bad }))).await;
        answer.refused(400, "M_UNSUPPORTED_ROOM_VERSION");
        let answer = ann.request("POST", &upgrade, Some(&json!({ "new_version": bad }))).await;
        answer.refused(400, "M_UNSUPPORTED_ROOM_VERSION");
    }
    let directory = tempfile::TempDir::new().expect("a temporary directory");
    for bad in ["1", "2", "13", "x", ""] {
        let file = directory.path().join("logcabin.toml");
        std::fs::write(&file, format!("[rooms]\ndefault_version = \"{bad}\"\n")).expect("a file");
        let output = run_logcabin(["config".as_ref(), "--config".as_ref(), file.as_os_str()]);
        assert!(!output.status.success(), "{bad} is taken");
    }
}
