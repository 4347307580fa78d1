//! The users of a generated Synapse, and what they keep.

use rusqlite::params;
use serde_json::json;

use super::{BEGIN_MS, Kept, OWN, Rows, own};

const USERS: [&str; 3] = ["ann", "bob", "cid"];

impl Rows {
    pub(super) fn people(&mut self) {
        for (user, is_admin) in USERS.iter().zip([true, false, false]) {
            let sql =
                "INSERT INTO users (name, password_hash, creation_ts, admin) VALUES (?, ?, ?, ?)";
            self.run(sql, params![own(user), "$2b$04$abc", BEGIN_MS / 1000, is_admin]);
            let sql = "INSERT INTO profiles (user_id, displayname, fields) VALUES (?, ?, ?)";
            self.run(sql, params![user, format!("{user} \u{1f980}"), r#"{"m.tz":"Europe/Oslo"}"#]);
            self.log_in(user);
        }
    }

    fn log_in(&mut self, user: &str) {
        let (number, user_id) = (self.next_number(), own(user));
        let device_id = format!("DEVICE{number}");
        let sql =
            "INSERT INTO devices (user_id, device_id, display_name, last_seen) VALUES (?, ?, ?, ?)";
        self.run(sql, params![user_id, device_id, "Phone", BEGIN_MS + number]);
        let sql = "INSERT INTO access_tokens (id, user_id, device_id, token, used) VALUES (?, ?, ?, ?, 1)";
        self.run(sql, params![number, user_id, device_id, format!("syt_{number}")]);
        let keys = json!({ "user_id": user_id, "device_id": device_id, "algorithms": [],
            "keys": { format!("ed25519:{device_id}"): "k" }, "signatures": {} });
        let values = params![user_id, device_id, BEGIN_MS, keys.to_string()];
        self.run("INSERT INTO e2e_device_keys_json VALUES (?, ?, ?, ?)", values);
        for key in 0..self.random.below(4) {
            let key_id = format!("AAAA{key}");
            let values = params![
                user_id,
                device_id,
                "signed_curve25519",
                key_id,
                BEGIN_MS,
                r#"{"key":"x"}"#
            ];
            let sql = "INSERT INTO e2e_one_time_keys_json VALUES (?, ?, ?, ?, ?, ?)";
            self.run(sql, values);
        }
        if self.random.one_in(2) {
            let values = params![user_id, device_id, "signed_curve25519", "F", r#"{"key":"f"}"#];
            let sql = "INSERT INTO e2e_fallback_keys_json VALUES (?, ?, ?, ?, ?, 0)";
            self.run(sql, values);
        }
        let message = json!({ "sender": own("ann"), "type": "org.example.message",
            "content": { "number": number } });
        let values = params![user_id, device_id, number, message.to_string()];
        self.run("INSERT INTO device_inbox VALUES (?, ?, ?, ?)", values);
    }

    /// One more row of what users keep for themselves.
    pub(super) fn something_personal(&mut self) {
        let user = *self.random.of(&USERS);
        let (user_id, number) = (own(user), self.next_number());
        let room = self.random.below(self.rooms.len());
        let room_id = self.rooms[room].room_id.clone();
        let content = json!({ "number": number, "text": "\u{0}\u{1f980}" }).to_string();
        match self.random.below(9) {
            0 => self.log_in(user),
            1 => {
                let kind = format!("org.example.{}", self.random.below(4));
                let sql = "DELETE FROM account_data WHERE user_id = ? AND account_data_type = ?";
                self.run(sql, params![user_id, kind]);
                let values = params![user_id, kind, number, content];
                self.run("INSERT INTO account_data VALUES (?, ?, ?, ?)", values);
            }
            2 => {
                let kind = format!("org.example.room.{number}");
                let values = params![user_id, room_id, kind, number, content];
                self.run("INSERT INTO room_account_data VALUES (?, ?, ?, ?, ?)", values);
            }
            3 => {
                let values =
                    params![user_id, room_id, format!("u.tag{number}"), r#"{"order":0.5}"#];
                self.run("INSERT INTO room_tags VALUES (?, ?, ?, ?)", values);
            }
            4 => self.push_rule(&user_id, number),
            5 => {
                let values = params![user, number, r#"{"room":{"timeline":{"limit":7}}}"#];
                self.run("INSERT INTO user_filters VALUES (?, ?, ?)", values);
            }
            6 => self.back_up(&user_id, &room_id, number),
            _ => self.receipt(room, number),
        }
    }

    fn push_rule(&mut self, user_id: &str, number: i64) {
        let (kind, class, conditions) = match self.random.below(3) {
            0 => ("override", 5, json!([{ "kind": "event_match", "key": "type", "pattern": "x" }])),
            1 => ("underride", 1, json!([])),
            _ => (
                "content",
                4,
                json!([{ "kind": "event_match", "key": "content.body",
                "pattern": format!("word{number}") }]),
            ),
        };
        let name = format!("global/{kind}/rule{number}");
        let values =
            params![number, user_id, name, class, number, conditions.to_string(), r#"["notify"]"#];
        self.run("INSERT INTO push_rules VALUES (?, ?, ?, ?, ?, ?, ?)", values);
        if self.random.one_in(3) {
            let values = params![number, user_id, name];
            self.run("INSERT INTO push_rules_enable VALUES (?, ?, ?, 0)", values);
        }
        if self.random.one_in(3) {
            let name = "global/override/.m.rule.master";
            let sql = "DELETE FROM push_rules_enable WHERE user_name = ? AND rule_id = ?";
            self.run(sql, params![user_id, name]);
            let values = params![number + 1_000_000, user_id, name, number % 2];
            self.run("INSERT INTO push_rules_enable VALUES (?, ?, ?, ?)", values);
        }
    }

    fn back_up(&mut self, user_id: &str, room_id: &str, number: i64) {
        let sql = "DELETE FROM e2e_room_keys_versions WHERE user_id = ?";
        self.run(sql, [user_id]);
        let values = params![user_id, number];
        let sql = "INSERT INTO e2e_room_keys_versions VALUES
            (?, 1, 'm.megolm_backup.v1.curve25519-aes-sha2', '{\"public_key\":\"p\"}', 0, ?)";
        self.run(sql, values);
        let values = params![user_id, room_id, format!("session{number}"), r#"{"c":"x"}"#];
        let sql = "INSERT INTO e2e_room_keys VALUES (?, ?, ?, 1, 0, 0, 1, ?)";
        self.run(sql, values);
    }

    fn receipt(&mut self, room: usize, number: i64) {
        let of = &self.rooms[room];
        let read: Vec<&str> = of
            .events
            .iter()
            .filter(|event| matches!(event.kept, Kept::Timeline))
            .map(|event| &*event.event_id)
            .collect();
        if read.is_empty() {
            return;
        }
        let event_id = (*self.random.of(&read)).to_owned();
        let room_id = of.room_id.clone();
        let user_id = match self.random.below(4) {
            0 => "@eve:e.example".to_owned(),
            at => format!("@{}:{OWN}", USERS[at % USERS.len()]),
        };
        let kind = if self.random.one_in(3) { "m.read.private" } else { "m.read" };
        let thread_id = self.random.one_in(3).then_some("main");
        let sql = "DELETE FROM receipts_linearized
            WHERE room_id = ? AND receipt_type = ? AND user_id = ? AND thread_id IS ?";
        self.run(sql, params![room_id, kind, user_id, thread_id]);
        let data = json!({ "ts": BEGIN_MS + number }).to_string();
        let values = params![number, room_id, kind, user_id, event_id, thread_id, data];
        self.run("INSERT INTO receipts_linearized VALUES (?, ?, ?, ?, ?, ?, ?)", values);
    }
}
