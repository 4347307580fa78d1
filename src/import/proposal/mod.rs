//! A `logcabin.toml` that does what a `homeserver.yaml` did, and what the `mas.yaml` of a service
//! beside it did, as far as there are settings for it.
//! What has none is named in it, each with what that means.
//!
//! It is a proposal: whoever runs the server reads it, and keeps what is right.

mod draft;
mod listeners;
mod mas;
mod providers;
mod reasons;
mod settings;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::mas::Settings;
use draft::{Draft, From};
use logcabin_config::{ConfigError, Effective, SettingSource};

pub(crate) use draft::milliseconds;
pub use listeners::{Addresses, addresses};

/// What is proposed.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// The configuration.
    pub text: String,
    /// Files that it names and that were part of the other one. They hold secrets.
    pub files: Vec<ProposedFile>,
}

/// A file beside the configuration.
#[derive(Clone, Debug)]
pub struct ProposedFile {
    pub path: PathBuf,
    pub text: String,
}

/// How many lines may be taken back because the server would not take them.
const CORRECTIONS: usize = 100;

/// Proposes the configuration of a server with this data directory. `folder` is where the files are
/// put that the configuration names.
pub fn propose(
    yaml: &Value,
    service: Option<&Settings>,
    data_dir: &Path,
    folder: &Path,
) -> Proposal {
    let mut draft = Draft::new(yaml, folder);
    draft.set("server", "data_dir", &data_dir.display().to_string().into(), "");
    settings::translate(&mut draft, service.is_some());
    listeners::translate(&mut draft);
    providers::translate(&mut draft);
    if let Some(service) = service {
        draft.turn_to(From::Mas, &service.yaml);
        mas::translate(&mut draft, service);
    }
    let (text, files) = draft.finish();
    Proposal { text: settled(text), files }
}

/// The text, with each line as a comment that the server would refuse. Where homeserver.yaml allows
/// more than this server does, one value must not keep the others from being used.
fn settled(mut text: String) -> String {
    for _ in 0..CORRECTIONS {
        let file = (PathBuf::from("logcabin.toml"), text.clone());
        let refused = match Effective::load(Some(file), [], &[]) {
            Ok(effective) => {
                if let Err(contradiction) = effective.config.settled().check() {
                    text = format!("# NOT USABLE YET: {contradiction}.\n{text}");
                }
                return text;
            }
            Err(refused) => refused,
        };
        let (line, why) = match &refused {
            ConfigError::Bad { place: SettingSource::File(_, line), allowed, .. } => {
                (*line, format!("not taken: allowed is {allowed}"))
            }
            ConfigError::Unknown { place: SettingSource::File(_, line), .. } => {
                (*line, "not taken: there is no such setting".to_owned())
            }
            ConfigError::Syntax { place: SettingSource::File(_, line), .. } => {
                (*line, "not taken: it cannot be written in TOML".to_owned())
            }
            _ => return text,
        };
        text = commented(&text, line, &why);
    }
    text
}

/// The text with this line, counted from 1, as a comment. The value may be a secret, and is left
/// out.
fn commented(text: &str, number: usize, why: &str) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if let Some(line) = number.checked_sub(1).and_then(|at| lines.get_mut(at)) {
        let key = line.split('=').next().unwrap_or_default().trim().trim_start_matches('#');
        *line = format!("# {key}: {why}");
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn proposed(yaml: &Value) -> (String, logcabin_config::Config) {
        let proposal = propose(yaml, None, Path::new("/srv/logcabin"), Path::new("/srv/proposed"));
        let file = (PathBuf::from("x.toml"), proposal.text.clone());
        let effective = Effective::load(Some(file), [], &[]).expect("it can be read");
        (proposal.text, effective.config)
    }

    #[test]
    fn a_usual_configuration_becomes_one_that_the_server_takes() {
        let (text, config) = proposed(&json!({
            "server_name": "example.org",
            "public_baseurl": "https://matrix.example.org/",
            "listeners": [{
                "port": 8008, "tls": false, "type": "http", "x_forwarded": true,
                "bind_addresses": ["::1", "127.0.0.1"],
                "resources": [{ "names": ["client", "federation"], "compress": false }],
            }],
            "database": { "name": "psycopg2", "args": { "password": "hidden" } },
            "signing_key_path": "/etc/matrix-synapse/signing.key",
            "registration_shared_secret": "a long secret of letters",
            "enable_registration": false,
            "max_upload_size": "50M",
            "turn_uris": ["turn:turn.example.org"],
            "turn_shared_secret": "another long secret of letters",
            "turn_user_lifetime": "1h",
            "trusted_key_servers": [{ "server_name": "matrix.org" }],
            "redaction_retention_period": "7d",
            "retention": { "enabled": true, "default_policy": { "max_lifetime": "1y" } },
            "user_directory": { "enabled": true, "search_all_users": true },
            "password_config": {
                "pepper": "pepper", "policy": { "enabled": true, "minimum_length": 12 },
            },
            "account_validity": { "enabled": true },
            "modules": [{ "module": "some.Module" }],
        }));
        config.clone().settled().check().expect("it is consistent");
        assert_eq!(config.server.name, "example.org");
        assert_eq!(config.server.url(), "https://matrix.example.org");
        assert!(config.server.trust_forwarded_for && config.federation.enabled);
        assert!(config.federation.at_client_addresses && config.federation.bind.is_empty());
        assert_eq!(config.server.bind.len(), 2);
        assert_eq!(config.media.max_upload_bytes, 50 * 1024 * 1024);
        assert_eq!(config.turn.ttl_seconds, 3600);
        assert_eq!(config.federation.notaries.len(), 1);
        assert!(config.user_directory.all_users);
        assert_eq!(config.passwords.min_length, 12);
        for left in ["account_validity", "modules"] {
            assert!(text.contains(&format!("# {left}: ")), "{left} in {text}");
        }
        // What belongs to the database is no setting, and no secret of it is shown.
        assert!(!text.contains("hidden"), "{text}");
    }

    #[test]
    fn nothing_is_opened_that_was_closed() {
        let provider = |id: &str, requirements: Value| {
            json!({
                "idp_id": id, "idp_name": id, "issuer": "https://id.example.org/",
                "client_id": "id", "attribute_requirements": requirements,
            })
        };
        let group = json!([{ "attribute": "group", "value": "staff" }]);
        let yaml = |login: Value, listens_for: &str| {
            json!({
                "server_name": "example.org",
                "listeners": [{
                    "port": 8008, "tls": false, "type": "http",
                    "resources": [{ "names": [listens_for] }],
                }],
                "instance_map": { "main": { "host": "localhost", "port": 8034 } },
                "oidc_providers": [provider("staff", group.clone()), provider("all", json!([]))],
                "login_via_existing_session": login,
            })
        };
        let (text, config) = proposed(&yaml(Value::Null, "client"));
        let files = config.sso.providers.iter().map(|path| path.0.display().to_string());
        assert_eq!(files.collect::<Vec<_>>(), ["/srv/proposed/sso-all.toml"], "{text}");
        assert!(text.contains("# oidc_providers (staff): NOT USABLE YET"), "{text}");
        assert!(!config.login.get_token && !config.federation.enabled, "{text}");
        assert!(text.contains("# listeners (of workers): "), "{text}");
        let (text, config) = proposed(&yaml(json!({ "enabled": true }), "federation"));
        assert!(config.login.get_token && config.federation.enabled, "{text}");
        assert!(!text.contains("(of workers)"), "{text}");
    }

    #[test]
    fn what_the_server_does_not_take_is_a_comment() {
        let (text, config) = proposed(&json!({
            "server_name": "example.org",
            "turn_uris": ["nonsense"],
            "default_room_version": "org.example.unknown",
            "max_upload_size": "50M",
        }));
        assert!(config.turn.uris.is_empty());
        assert_eq!(config.media.max_upload_bytes, 50 * 1024 * 1024);
        assert!(text.contains("# uris: not taken"), "{text}");
        assert!(text.contains("# default_version: not taken"), "{text}");
    }

    #[test]
    fn every_setting_that_was_not_used_is_named() {
        let (text, _) = proposed(&json!({
            "server_name": "example.org",
            "a_setting_of_the_future": 1,
            "email": { "smtp_host": "localhost", "future": true },
            "redis": { "enabled": true },
        }));
        for left in ["a_setting_of_the_future: ", "email.future: ", "redis\n"] {
            assert!(text.contains(&format!("# {left}")), "{left} in {text}");
        }
    }

    #[test]
    fn nothing_in_a_file_breaks_the_translation() {
        for odd in [json!(null), json!([]), json!("text"), json!({ "listeners": 5, "email": [] })] {
            let (_, config) = proposed(&odd);
            assert_eq!(config.server.data_dir, Path::new("/srv/logcabin"));
        }
    }
}
