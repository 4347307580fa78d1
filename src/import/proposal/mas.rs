//! Settings of matrix-authentication-service: who may register, how people log in, and by which
//! providers and clients.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::{
    draft::{Draft, From},
    providers::file_of,
    settings::pepper_line,
};
use crate::mas::{self, Settings};
use logcabin_record::client::ClientMetadata;

pub(super) fn translate(draft: &mut Draft<'_>, service: &Settings) {
    captcha(draft);
    account(draft);
    passwords(draft, service);
    email(draft);
    providers(draft, service);
    clients(draft, service);
}

fn account(draft: &mut Draft<'_>) {
    let by_password = draft.flag("passwords.enabled").unwrap_or(true);
    draft.set("login", "password", &json!(by_password), "passwords.enabled");
    let is_open = draft.flag("account.password_registration_enabled").unwrap_or(false);
    let from = "account.password_registration_enabled";
    draft.set("registration", "open", &json!(is_open && by_password), from);
    let mut stages = Vec::new();
    let by_token = ["password_registration_token_required", "registration_token_required"]
        .map(|name| draft.flag(&format!("account.{name}")) == Some(true));
    if by_token.contains(&true) {
        stages.push("token");
    }
    if draft.get("captcha.service").is_some() {
        stages.push("captcha");
    }
    if draft.flag("account.password_registration_email_required").unwrap_or(true) {
        stages.push("email");
    }
    if is_open && !stages.is_empty() {
        let comment = "What somebody who registers must have or do.".to_owned();
        draft.set_as("registration", "require", &json!(stages), comment);
    }
    draft.copy("account.displayname_change_allowed", "accounts", "set_displayname");
    draft.copy("account.email_change_allowed", "accounts", "third_party_ids");
    for (name, allowed, otherwise) in [
        ("password_change_allowed", true, "users may change their passwords"),
        ("password_recovery_enabled", true, "who owns an address of an account may recover it"),
        ("account_deactivation_allowed", true, "users may deactivate their accounts"),
        ("login_with_email_allowed", true, "people may log in with an address of their account"),
    ] {
        let path = format!("account.{name}");
        if draft.flag(&path).is_some_and(|is_on| is_on != allowed) {
            draft.leave(&path, otherwise);
        }
    }
}

fn captcha(draft: &mut Draft<'_>) {
    match draft.text("captcha.service") {
        Some("recaptcha_v2") => {
            draft.copy("captcha.site_key", "captcha", "public_key");
            if let Some(key) = draft.text("captcha.secret_key").map(str::to_owned) {
                let path = draft.file("mas-captcha.key", key).display().to_string();
                draft.set("captcha", "secret_key_file", &json!(path), "captcha.secret_key");
            }
        }
        Some(_) => {
            let why = "captchas are those of reCAPTCHA 2, or of a service that is compatible with \
                       it: see captcha.script_url and captcha.verify_url";
            draft.leave("captcha", why);
        }
        None => {}
    }
}

fn passwords(draft: &mut Draft<'_>, service: &Settings) {
    if draft.get("passwords.minimum_complexity").is_some() {
        let why = "see passwords.min_length and passwords.deny_common";
        draft.leave("passwords.minimum_complexity", why);
    }
    let schemes = draft.get("passwords.schemes").and_then(Value::as_array);
    let mut lines: Vec<String> = Vec::new();
    for scheme in schemes.into_iter().flatten() {
        let is_set = |name: &str| scheme[name].as_str().is_some_and(|text| !text.is_empty());
        match mas::secret(&service.path, scheme, "secret") {
            Some(secret) if !secret.is_empty() => {
                let line = pepper_line(&secret);
                if !lines.contains(&line) {
                    lines.push(line);
                }
            }
            _ if is_set("secret_file") => {
                let why = format!(
                    "add what is in {} to passwords.imported_pepper_file: it cannot be read",
                    scheme["secret_file"].as_str().unwrap_or_default()
                );
                draft.leave("passwords.schemes (secret_file)", &why);
            }
            _ => {}
        }
    }
    if !lines.is_empty() {
        let path = draft.file("mas-password.pepper", lines.join("\n") + "\n").display().to_string();
        let comment = "From `passwords.schemes` of mas.yaml: without it, nobody's password is right \
                       until it is set again.";
        draft.set_as("passwords", "imported_pepper_file", &json!(path), comment.to_owned());
    }
}

fn email(draft: &mut Draft<'_>) {
    match draft.text("email.transport") {
        Some("smtp") => {}
        Some("sendmail") => {
            draft.leave("email", "mails go to a mail server: set email.host");
            return;
        }
        _ => return,
    }
    draft.copy("email.hostname", "email", "host");
    let (security, port) = match draft.text("email.mode") {
        Some("tls") => ("tls", 465),
        Some("plain") => ("none", 25),
        _ => ("starttls", 587),
    };
    draft.set("email", "security", &json!(security), "email.mode");
    let port = draft.get("email.port").and_then(Value::as_u64).unwrap_or(port);
    draft.set("email", "port", &json!(port), "email.port");
    draft.copy("email.username", "email", "user");
    draft.copy("email.password", "email", "password");
    draft.copy("email.password_file", "email", "password_file");
    draft.copy("email.from", "email", "from");
    let (from, to) = (draft.text("email.from"), draft.text("email.reply_to"));
    if to.is_some() && to != from {
        draft.leave("email.reply_to", "answers go to email.from");
    }
}

fn providers(draft: &mut Draft<'_>, service: &Settings) {
    draft.get("upstream_oauth2");
    let mut files = Vec::new();
    for provider in mas::providers(&service.yaml) {
        let Some(id) = mas::provider_id(provider) else { continue };
        let of = format!("upstream_oauth2 ({id})");
        if provider["enabled"].as_bool() == Some(false) {
            draft.leave(&of, "it is switched off");
            continue;
        }
        let by = provider["token_endpoint_auth_method"].as_str().unwrap_or_default();
        if !["none", "client_secret_basic", "client_secret_post"].contains(&by) {
            let why = format!(
                "clients prove who they are by a secret, and not by {by}: nobody can log in by it"
            );
            draft.leave(&of, &why);
            continue;
        }
        let (text, differences) = file_of(&id, &as_synapse_has_it(provider, service), From::Mas);
        for difference in differences.into_iter().chain(further(provider)) {
            draft.leave(&of, &difference);
        }
        let path = draft.file(&format!("sso-{id}.toml"), text).display().to_string();
        files.push(json!(path));
    }
    if !files.is_empty() {
        let comment = "Register the other redirect URI at each provider: see docs/sso.md.";
        draft.set_as("sso", "providers", &json!(files), comment.to_owned());
    }
}

/// A provider by the names that homeserver.yaml has for the same.
fn as_synapse_has_it(provider: &Value, service: &Settings) -> Value {
    let imports = &provider["claims_imports"];
    let template = |claim: &str| imports[claim]["template"].clone();
    let text = |name: &str| provider[name].as_str();
    let secret_file = text("client_secret_file");
    let secret_file = secret_file.map(|file| mas::find(&service.path, file).display().to_string());
    let name = text("human_name").or_else(|| text("brand_name")).or_else(|| text("issuer"));
    let brand = text("brand_name").filter(|brand| {
        ["google", "github", "gitlab", "apple", "facebook", "twitter"].contains(brand)
    });
    let on_conflict = imports["localpart"]["on_conflict"].as_str().unwrap_or("fail");
    let email = imports["email"]["action"].as_str().unwrap_or("ignore");
    let scopes: Vec<&str> = text("scope").unwrap_or_default().split_whitespace().collect();
    json!({
        "idp_name": name.unwrap_or("OpenID Connect"),
        "idp_brand": brand,
        "issuer": provider["issuer"],
        "client_id": provider["client_id"],
        "client_secret": provider["client_secret"],
        "client_secret_path": secret_file,
        "allow_existing_users": (on_conflict != "fail").then_some(true),
        "add_email": (email != "ignore").then_some(true),
        "scopes": scopes,
        "discover": provider["discovery_mode"] != "disabled",
        "authorization_endpoint": provider["authorization_endpoint"],
        "token_endpoint": provider["token_endpoint"],
        "jwks_uri": provider["jwks_uri"],
        "userinfo_endpoint": provider["userinfo_endpoint"],
        "user_mapping_provider": { "config": {
            "subject_template": template("subject"),
            "localpart_template": template("localpart"),
            "display_name_template": template("displayname"),
            "email_template": template("email"),
        } },
    })
}

/// What of a provider has no equivalent.
fn further(provider: &Value) -> Vec<String> {
    let unused = [
        "additional_authorization_parameters",
        "forward_login_hint",
        "on_backchannel_logout",
        "registration_token_required",
        "response_mode",
        "userinfo_signed_response_alg",
    ];
    let is_set = |name: &&str| {
        let value = &provider[*name];
        !value.is_null() && *value != json!(false) && *value != "do_nothing" && *value != "query"
    };
    unused
        .iter()
        .filter(|name| is_set(name))
        .map(|name| format!("{name} has no equivalent"))
        .collect()
}

/// Clients that need not register: each becomes a file, if it can be one here.
fn clients(draft: &mut Draft<'_>, service: &Settings) {
    let Some(list) = draft.get("clients").and_then(Value::as_array) else { return };
    let mut files = Vec::new();
    for client in list {
        let id = client["client_id"].as_str().unwrap_or_default();
        match client_file(client, service) {
            Ok(text) => {
                let name = format!("oauth-{}.toml", id.to_ascii_lowercase());
                files.push(json!(draft.file(&name, text).display().to_string()));
            }
            Err(why) => draft.leave(&format!("clients ({id})"), &why),
        }
    }
    if !files.is_empty() {
        draft.set("oauth", "clients", &json!(files), "clients");
    }
}

/// The error is why the client has no file.
fn client_file(client: &Value, service: &Settings) -> Result<String, String> {
    let id = client["client_id"].as_str().ok_or("it has no id")?;
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_id {
        return Err("its id cannot be one here".to_owned());
    }
    let redirects = client["redirect_uris"].as_array().map_or(&[][..], Vec::as_slice);
    let first = redirects.first().and_then(Value::as_str);
    let first = first.ok_or("it acts for itself, and no user logs in with it")?;
    // Here, a client has a page; the host of what it has stands for that.
    let origin = first.split('/').take(3).collect::<Vec<_>>().join("/") + "/";
    let uri = client["client_uri"].as_str().unwrap_or(&origin);
    let mut metadata = Map::new();
    metadata.insert("client_uri".to_owned(), json!(uri));
    metadata.insert("redirect_uris".to_owned(), json!(redirects));
    metadata.insert("token_endpoint_auth_method".to_owned(), client["client_auth_method"].clone());
    if let Some(name) = client["client_name"].as_str() {
        metadata.insert("client_name".to_owned(), json!(name));
    }
    let parsed = ClientMetadata::parse(&metadata);
    parsed.map_err(|why| why.to_string().trim_end_matches('.').to_owned())?;
    let secret = mas::secret(&service.path, client, "client_secret");
    let secret = secret.and_then(|bytes| String::from_utf8(bytes).ok());
    let secret = secret.map(|text| text.trim().to_owned());
    let needs_secret = client["client_auth_method"] != "none";
    let mut text =
        String::from("# Made from mas.yaml by `logcabin import-synapse`. It must use PKCE.\n");
    let mut set = |key: &str, value: &Value| {
        let _ = writeln!(text, "{key} = {}", value.to_string().replace('\u{7f}', "\\u007f"));
    };
    set("client_id", &json!(id));
    match secret {
        Some(secret) if needs_secret && secret.len() >= 16 => set("client_secret", &json!(secret)),
        Some(_) if needs_secret => return Err("its secret has fewer than 16 characters".to_owned()),
        None if needs_secret => return Err("its secret cannot be read".to_owned()),
        _ => {}
    }
    for (key, value) in &metadata {
        set(key, value);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::proposal::{Proposal, propose};
    use logcabin_config::{Config, Effective};

    const HOMESERVER: &str = r#"{
        "server_name": "a.example",
        "matrix_authentication_service": { "enabled": true, "endpoint": "http://localhost:8080" },
        "password_config": { "pepper": "former" }
    }"#;

    fn proposed(text: &str) -> (Proposal, Config) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("mas.yaml");
        std::fs::write(&path, format!("matrix: {{homeserver: a.example}}\n{text}"))
            .expect("a file");
        std::fs::write(directory.path().join("pepper"), "salt\n").expect("a file");
        let service = Settings::read(&path, "a.example").unwrap_or_else(|error| panic!("{error}"));
        let yaml = serde_json::from_str(HOMESERVER).expect("JSON");
        let folder = Path::new("/srv/proposed");
        let proposal = propose(&yaml, Some(&service), Path::new("/srv/logcabin"), folder);
        let file = (PathBuf::from("x.toml"), proposal.text.clone());
        let config = Effective::load(Some(file), [], &[]).expect("it can be read").config;
        (proposal, config)
    }

    fn file<'a>(proposal: &'a Proposal, name: &str) -> &'a str {
        let found = proposal.files.iter().find(|file| file.path.ends_with(name));
        &found.unwrap_or_else(|| panic!("{name} in {:?}", proposal.files)).text
    }

    #[test]
    fn the_service_decides_who_registers_and_how_people_log_in() {
        let (proposal, config) = proposed(
            "account: {password_registration_enabled: true, displayname_change_allowed: false,\n\
               registration_token_required: true, login_with_email_allowed: false}\n\
             captcha: {service: recaptcha_v2, site_key: site, secret_key: hidden}\n\
             passwords: {minimum_complexity: 3, schemes: [\
               {version: 1, algorithm: bcrypt, secret: pfeffer},\
               {version: 2, algorithm: argon2id, secret_file: pepper}]}\n\
             email: {from: '\"A\" <a@a.example>', transport: smtp, mode: tls, hostname: mail.example}\n\
             policy: {data: {}}\nsecrets: {encryption: hidden}\nunheard_of: 1\n",
        );
        assert!(config.login.password && proposal.text.contains("\nopen = true\n"));
        assert!(!config.accounts.set_displayname);
        assert_eq!(config.captcha.public_key.as_deref(), Some("site"));
        assert_eq!(config.email.host.as_deref(), Some("mail.example"));
        assert_eq!(file(&proposal, "mas-password.pepper"), "pfeffer\nbase64:c2FsdAo=\n");
        assert!(!proposal.files.iter().any(|file| file.path.ends_with("password.pepper")
            && !file.path.ends_with("mas-password.pepper")));
        let text = &proposal.text;
        assert!(text.contains("require = [\"token\",\"captcha\",\"email\"]"), "{text}");
        for left in [
            "# account.login_with_email_allowed: people may log in",
            "# passwords.minimum_complexity: see",
            "# policy: there are no policies",
            "# unheard_of: there is no such setting here",
            "# What mas.yaml says",
            "# password_config: matrix-authentication-service has the passwords",
        ] {
            assert!(text.contains(left), "{left} in {text}");
        }
        assert!(!text.contains("hidden") && text.contains("# secrets\n"), "{text}");
    }

    #[test]
    fn providers_become_files_under_the_ids_that_accounts_are_linked_by() {
        let (proposal, config) = proposed(
            "upstream_oauth2: {providers: [\
               {id: 01HENBZ12TMNVTTFB84J0T5MFA, synapse_idp_id: oidc-google, human_name: Google,\
                 issuer: 'https://accounts.google.com', client_id: id, client_secret: 'a secret',\
                 token_endpoint_auth_method: client_secret_post, scope: 'openid email',\
                 response_mode: form_post,\
                 claims_imports: {localpart: {action: require, on_conflict: set,\
                   template: '{{ user.nickname }}'}, email: {action: force}}},\
               {id: 01HENBZ12TMNVTTFB84J0T5MFB, issuer: 'https://appleid.apple.com', client_id: id,\
                 token_endpoint_auth_method: sign_in_with_apple}]}\n",
        );
        assert_eq!(config.sso.providers.iter().count(), 1);
        let text = file(&proposal, "sso-google.toml");
        for line in [
            "id = \"google\"",
            "name = \"Google\"",
            "scopes = [\"email\"]",
            "allow_existing_users = true",
            "add_email = true",
            "localpart = \"nickname\"",
        ] {
            assert!(text.lines().any(|of| of == line), "{line} in {text}");
        }
        let text = &proposal.text;
        assert!(text.contains("# upstream_oauth2 (google): response_mode has no"), "{text}");
        let apple = "# upstream_oauth2 (01henbz12tmnvttfb84j0t5mfb): clients prove";
        assert!(text.contains(apple), "{text}");
    }

    #[test]
    fn clients_that_users_log_in_with_become_files() {
        let (proposal, config) = proposed(
            "clients: [\
               {client_id: 01HENBZ12TMNVTTFB84J0T5MFA, client_auth_method: client_secret_basic,\
                 client_secret: a long secret of letters, redirect_uris: ['https://b.example/cb']},\
               {client_id: 0000000000000000000SYNAPSE, client_auth_method: client_secret_basic,\
                 client_secret: a long secret of letters},\
               {client_id: 01HENBZ12TMNVTTFB84J0T5MFB, client_auth_method: private_key_jwt,\
                 redirect_uris: ['https://c.example/cb']}]\n",
        );
        assert_eq!(config.oauth.clients.iter().count(), 1);
        let text = file(&proposal, "oauth-01henbz12tmnvttfb84j0t5mfa.toml");
        assert!(text.contains("client_uri = \"https://b.example/\"\n"), "{text}");
        let text = &proposal.text;
        assert!(
            text.contains("# clients (0000000000000000000SYNAPSE): it acts for itself"),
            "{text}"
        );
        assert!(text.contains("# clients (01HENBZ12TMNVTTFB84J0T5MFB): "), "{text}");
    }
}
