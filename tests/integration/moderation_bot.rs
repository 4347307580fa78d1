//! A bot for moderation on a framework that nobody here wrote: matrix-bot-sdk, on which Draupnir
//! is built. The program (`tests/e2e/moderation_bot.mjs`) does what Draupnir does, and judges for
//! itself; the server subscribes to the list that the bot writes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::administration::{command, done, user_command};
use crate::harness::tools::{node, programs};
use crate::harness::{TestServer, skip};

const PASSWORD: &str = "a password that is long enough";

/// What the program wants done on the command line, which it has no access to: it says so in a
/// line of JSON with `order`, and goes on at the next line of its input.
fn obey(server: &TestServer, line: &Value) -> Option<Value> {
    let room = || line["room_id"].as_str().expect("a room");
    match line["order"].as_str()? {
        "subscribe" => {
            let arguments = format!("subscribe {} --hold-above 10", room());
            done(command("policy", server.data_dir(), &arguments, ""));
            Some(json!({}))
        }
        other => panic!("no order {other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moderation_bot_does_its_work() {
    if let Err(missing) = node("@vector-im/matrix-bot-sdk") {
        return skip("moderation_bot", &missing);
    }
    let server = TestServer::start().await;
    done(user_command(server.data_dir(), "create moderator --admin", PASSWORD));
    let mut program = Command::new("node");
    program.arg(programs().join("moderation_bot.mjs")).arg(server.base());
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = program.spawn().expect("node can be started");
    let mut answers = child.stdin.take().expect("stdin is piped");
    let said = BufReader::new(child.stdout.take().expect("stdout is piped"));
    let serve = || {
        let mut all = String::new();
        for line in said.lines().map_while(Result::ok) {
            println!("{line}");
            all.push_str(&line);
            all.push('\n');
            let order = serde_json::from_str::<Value>(&line).ok();
            if let Some(answer) = order.and_then(|line| obey(&server, &line)) {
                writeln!(answers, "{answer}").expect("the program reads");
            }
        }
        all
    };
    let all = tokio::task::block_in_place(serve);
    let status = child.wait().expect("the program ends");
    assert!(status.success() && all.contains("all went well"), "{status}:\n{all}");
}
