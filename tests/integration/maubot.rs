//! maubot, which runs the bots of many rooms: one of its plugins
//! (`tests/e2e/maubot_echo/`) is invited and answers.

use std::fs::File;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{TestServer, encode, skip, tools, until};

/// The bot as a process.
struct Bot(Child);

impl Drop for Bot {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_maubot_plugin_accepts_an_invite_and_answers_over_a_restart() {
    let python = match tools::python("maubot") {
        Ok(python) => python,
        Err(missing) => return skip("maubot", &missing),
    };
    let mut server = TestServer::start().await;
    let (ann, bot) = (server.register("ann").await, server.register("bot").await);
    let directory = TempDir::new().expect("a temporary directory");
    let config = json!({
        "user": {
            "credentials": {
                "id": bot.user_id, "homeserver": server.base(), "access_token": bot.access_token,
                "device_id": null,
            },
            "sync": true, "appservice": false, "autojoin": true, "displayname": "Echo",
            "avatar_url": null, "ignore_initial_sync": true, "ignore_first_sync": false,
        },
        "server": null, "database": "sqlite:bot.db", "database_opts": null, "plugin_config": null,
        "logging": {
            "version": 1, "handlers": { "console": { "class": "logging.StreamHandler" } },
            "root": { "level": "INFO", "handlers": ["console"] },
        },
    });
    // YAML holds JSON.
    let (config_file, log) = (directory.path().join("config.yaml"), directory.path().join("log"));
    std::fs::write(&config_file, config.to_string()).expect("a file");
    let plugin = tools::programs().join("maubot_echo");
    let child = Command::new(python)
        .args(["-m", "maubot.standalone", "--meta"])
        .arg(plugin.join("maubot.yaml"))
        .arg("--config")
        .arg(&config_file)
        .env("PYTHONPATH", &plugin)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).expect("a file"))
        .spawn();
    let _bot = Bot(child.expect("the bot can be started"));
    until("the bot has started", async || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("Startup completed"))
    })
    .await;

    let room_id = ann.create_room(json!({ "invite": [bot.user_id] })).await;
    let members = format!("/rooms/{}/joined_members", encode(&room_id));
    until("the bot has joined", async || {
        let members = ann.request("GET", &members, None).await.ok();
        members["joined"][&bot.user_id]["display_name"] == "Echo"
    })
    .await;
    let page = format!("/rooms/{}/messages?dir=b&limit=10", encode(&room_id));
    for (number, text) in ["before", "after"].into_iter().enumerate() {
        if number > 0 {
            server.restart().await;
        }
        let asked = ann.send_text(&room_id, text, &format!("!echo {text} a restart")).await;
        until("the bot has answered and reacted", async || {
            let page = ann.request("GET", &page, None).await.ok();
            let of_bot = page["chunk"].as_array().expect("events").iter();
            let of_bot = of_bot.filter(|event| event["sender"] == bot.user_id.as_str());
            let contents: Vec<_> = of_bot.map(|event| &event["content"]).collect();
            let answered = contents.iter().any(|said| said["body"] == format!("{text} a restart"));
            answered && contents.iter().any(|said| said["m.relates_to"]["event_id"] == asked)
        })
        .await;
    }
}
