//! All settings but for where the server listens and who logs users in.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::draft::Draft;

/// With `has_service`, another service logs the users in.
pub(super) fn translate(draft: &mut Draft<'_>, has_service: bool) {
    server(draft);
    registration(draft);
    accounts(draft);
    if has_service {
        draft.get("matrix_authentication_service");
        draft.get("experimental_features.msc3861");
        if draft.get("password_config").is_some() {
            draft.leave("password_config", "matrix-authentication-service has the passwords");
        }
    } else {
        passwords(draft);
    }
    rooms(draft);
    media(draft);
    email(draft);
    calls(draft);
    federation(draft);
    appservices(draft);
    notices(draft);
}

fn server(draft: &mut Draft<'_>) {
    let name = draft.text("server_name").map(str::to_owned);
    if let Some(name) = &name {
        draft.set("server", "name", &json!(name), "server_name");
    }
    match (draft.text("public_baseurl"), &name) {
        (Some(url), _) => {
            let url = url.trim_end_matches('/');
            draft.set("server", "public_url", &json!(url), "public_baseurl");
        }
        (None, Some(name)) => {
            let comment = "Synapse took this for the address, as none is set.".to_owned();
            draft.set_as("server", "public_url", &json!(format!("https://{name}")), comment);
        }
        (None, None) => {}
    }
    draft.copy("admin_contact", "server", "admin_contact");
    draft.copy("default_identity_server", "server", "identity_server");
}

fn registration(draft: &mut Draft<'_>) {
    let is_open = draft.flag("enable_registration").unwrap_or(false);
    let is_disabled = draft.flag("disable_registration").unwrap_or(false);
    draft.set("registration", "open", &json!(is_open && !is_disabled), "enable_registration");
    let mut stages = Vec::new();
    if draft.flag("registration_requires_token") == Some(true) {
        stages.push("token");
    }
    if draft.flag("enable_registration_captcha") == Some(true) {
        stages.push("captcha");
    }
    let required = draft.texts("registrations_require_3pid");
    if required.iter().any(|medium| medium == "email") {
        stages.push("email");
    }
    if required.iter().any(|medium| medium == "msisdn") {
        stages.push("msisdn");
    }
    // Without it, Synapse does not start with an open registration that asks for nothing.
    draft.flag("enable_registration_without_verification");
    draft.flag("disable_msisdn_registration");
    if !stages.is_empty() {
        let comment = "What somebody who registers must have or do.".to_owned();
        draft.set_as("registration", "require", &json!(stages), comment);
    }
    draft.copy("allow_guest_access", "registration", "guests");
    draft.copy("recaptcha_public_key", "captcha", "public_key");
    draft.copy("recaptcha_siteverify_api", "captcha", "verify_url");
    if let Some(key) = draft.text("recaptcha_private_key").map(str::to_owned) {
        let path = draft.file("recaptcha.key", key);
        let path = json!(path.display().to_string());
        draft.set("captcha", "secret_key_file", &path, "recaptcha_private_key");
    }
    draft.copy("recaptcha_private_key_path", "captcha", "secret_key_file");
    draft.copy("registration_shared_secret", "registration", "shared_secret");
    by_file(draft, "registration_shared_secret_path", "registration", "shared_secret");
    if draft.flag("inhibit_user_in_use_error") == Some(true) {
        draft.leave("inhibit_user_in_use_error", "who registers is told that a name is taken");
    }
    if let Some(reveals) = draft.flag("request_token_inhibit_3pid_errors") {
        let from = "request_token_inhibit_3pid_errors";
        draft.set("threepids", "reveal", &json!(!reveals), from);
    }
    if let Some(hosts) = draft.get("next_link_domain_whitelist") {
        draft.set("threepids", "next_link_hosts", hosts, "next_link_domain_whitelist");
    }
}

/// A secret of which homeserver.yaml names the file, where this server takes it as a value. Whoever
/// runs this may not be able to read the file, so it is not tried.
fn by_file(draft: &mut Draft<'_>, path: &str, section: &str, key: &str) {
    if let Some(file) = draft.text(path) {
        let why = format!("set {section}.{key}, best in the environment, to what is in {file}");
        draft.leave(path, &why);
    }
}

fn accounts(draft: &mut Draft<'_>) {
    draft.copy("enable_set_displayname", "accounts", "set_displayname");
    draft.copy("enable_set_avatar_url", "accounts", "set_avatar_url");
    draft.copy("enable_3pid_changes", "accounts", "third_party_ids");
    draft.copy("forget_rooms_on_leave", "accounts", "forget_on_leave");
    draft.copy("user_directory.search_all_users", "user_directory", "all_users");
    draft.flag("user_directory.enabled");
    draft.copy_seconds("session_lifetime", "tokens", "session_lifetime_seconds");
    draft.copy_seconds("refreshable_access_token_lifetime", "tokens", "access_lifetime_seconds");
    draft.copy_seconds("refresh_token_lifetime", "tokens", "refresh_lifetime_seconds");
    let unrefreshable = ("tokens", "unrefreshable_lifetime_seconds");
    let from = "nonrefreshable_access_token_lifetime";
    draft.copy_seconds(from, unrefreshable.0, unrefreshable.1);
    let presence = draft.flag("presence.enabled").or_else(|| draft.flag("use_presence"));
    match presence {
        Some(is_on) => draft.set("presence", "enabled", &json!(is_on), "presence.enabled"),
        // It can also be a word, such as `untracked`.
        None if draft.get("presence.enabled").is_some() => {
            draft.set("presence", "enabled", &json!(false), "presence.enabled");
        }
        None => {}
    }
    match draft.flag("login_via_existing_session.enabled") {
        Some(is_on) => {
            draft.set("login", "get_token", &json!(is_on), "login_via_existing_session.enabled");
        }
        None => {
            let comment = "Synapse has it off unless `login_via_existing_session` says otherwise.";
            draft.set_as("login", "get_token", &json!(false), comment.to_owned());
        }
    }
    let from = "login_via_existing_session.token_timeout";
    draft.copy_seconds(from, "login", "get_token_seconds");
}

fn passwords(draft: &mut Draft<'_>) {
    // It may also say `only_for_reauth`.
    if let Some(is_on) = draft.flag("password_config.enabled") {
        draft.set("login", "password", &json!(is_on), "password_config.enabled");
    }
    if draft.flag("password_config.localdb_enabled") == Some(false) {
        let from = "password_config.localdb_enabled";
        draft.set("login", "password", &json!(false), from);
    }
    if let Some(pepper) = draft.text("password_config.pepper").map(str::to_owned) {
        let pepper = pepper_line(pepper.as_bytes());
        let path = json!(draft.file("password.pepper", pepper).display().to_string());
        let comment = "From `password_config.pepper`: without it, nobody's password is right until \
                       it is set again.";
        draft.set_as("passwords", "imported_pepper_file", &path, comment.to_owned());
    }
    // Below it, the rules hold only if it is on.
    let is_on = draft.flag("password_config.policy.enabled").unwrap_or(false);
    for (rule, key) in [
        ("minimum_length", "min_length"),
        ("require_digit", "require_digit"),
        ("require_symbol", "require_symbol"),
        ("require_lowercase", "require_lowercase"),
        ("require_uppercase", "require_uppercase"),
    ] {
        let path = format!("password_config.policy.{rule}");
        if let Some(value) = draft.get(&path).filter(|_| is_on) {
            draft.set("passwords", key, value, &path);
        }
    }
}

/// A pepper as its file has it: a line of text, or in base64.
pub(super) fn pepper_line(pepper: &[u8]) -> String {
    match std::str::from_utf8(pepper) {
        Ok(text)
            if !text.is_empty()
                && !text.starts_with("base64:")
                && !text.chars().any(char::is_control) =>
        {
            text.to_owned()
        }
        _ => format!("base64:{}", STANDARD.encode(pepper)),
    }
}

fn rooms(draft: &mut Draft<'_>) {
    // YAML reads a version without quotes as a number.
    if let Some(version) = draft.get("default_room_version") {
        let text = version.as_str().map_or_else(|| version.to_string(), str::to_owned);
        draft.set("rooms", "default_version", &json!(text), "default_room_version");
    }
    let from = "redaction_retention_period";
    if let Some(seconds) = draft.seconds(from) {
        draft.set("erasure", "redacted_after_seconds", &json!(seconds), from);
    } else if draft.is_null(from) {
        draft.set("erasure", "redacted_after_seconds", &json!("off"), from);
    }
    if draft.flag("retention.enabled") == Some(true) {
        draft.copy_seconds("retention.default_policy.max_lifetime", "retention", "default_seconds");
        draft.copy_seconds("retention.allowed_lifetime_min", "retention", "lowest_seconds");
        draft.copy_seconds("retention.allowed_lifetime_max", "retention", "highest_seconds");
        if draft.get("retention.default_policy.min_lifetime").is_some() {
            let why = "events have no shortest lifetime";
            draft.leave("retention.default_policy.min_lifetime", why);
        }
        // Sweeps are by erasure.sweep_seconds.
        draft.get("retention.purge_jobs");
    } else if draft.get("retention").is_some() {
        let comment = "From `retention`, which is not enabled.".to_owned();
        draft.set_as("retention", "rooms_say", &json!(false), comment);
    } else {
        let comment = "Synapse does not let rooms say it unless `retention` is enabled.".to_owned();
        draft.set_as("retention", "rooms_say", &json!(false), comment);
    }
    if let Some(seconds) = draft.seconds("max_event_delay_duration") {
        draft.leave(
            "max_event_delay_duration",
            &format!("set delayed_events.max_delay_seconds to {seconds}"),
        );
    }
    let transports = draft.get("matrix_rtc.transports").and_then(Value::as_array);
    let urls: Vec<_> = transports
        .into_iter()
        .flatten()
        .filter_map(|transport| transport.get("livekit_service_url")?.as_str())
        .collect();
    if !urls.is_empty() {
        draft.set("rtc", "service_urls", &json!(urls), "matrix_rtc.transports");
    }
}

fn media(draft: &mut Draft<'_>) {
    if let Some(bytes) = draft.bytes("max_upload_size") {
        draft.set("media", "max_upload_bytes", &json!(bytes), "max_upload_size");
        // Its limit held for both.
        draft.set("media", "remote_file_bytes", &json!(bytes), "max_upload_size");
    } else {
        let comment = "What Synapse allows unless `max_upload_size` says more.".to_owned();
        draft.set_as("media", "max_upload_bytes", &json!(50 << 20), comment);
    }
    let previews = draft.flag("url_preview_enabled").unwrap_or(false);
    draft.set("media", "url_previews", &json!(previews), "url_preview_enabled");
    draft.copy("url_preview_ip_range_whitelist", "media", "preview_allowed_ranges");
    if draft.get("url_preview_ip_range_blacklist").is_some() {
        let why = "all addresses but public ones are refused";
        draft.leave("url_preview_ip_range_blacklist", why);
    }
    if draft.get("url_preview_url_blacklist").is_some() {
        let why = "see media.preview_denied_urls, whose patterns are other ones";
        draft.leave("url_preview_url_blacklist", why);
    }
    if draft.get("url_preview_accept_language").is_some() {
        draft.leave("url_preview_accept_language", "pages are asked for in no language");
    }
    draft.copy("max_pending_media_uploads", "media", "unused_ids");
    draft.copy_seconds("unused_expiration_time", "media", "unused_seconds");
    draft.copy_seconds("media_retention.local_media_lifetime", "media", "lifetime_seconds");
    if draft.get("media_retention.remote_media_lifetime").is_some() {
        let why = "see media.remote_cache_bytes, which limits their size";
        draft.leave("media_retention.remote_media_lifetime", why);
    }
}

fn email(draft: &mut Draft<'_>) {
    if !draft.has("email") {
        return;
    }
    let host = draft.text("email.smtp_host").unwrap_or("localhost").to_owned();
    draft.set("email", "host", &json!(host), "email.smtp_host");
    let port = draft.get("email.smtp_port").and_then(Value::as_u64);
    let is_tls = draft.flag("email.force_tls").unwrap_or(false);
    // Without `force_tls`, Synapse's default is the port of unencrypted mail.
    let port = port.unwrap_or(if is_tls { 465 } else { 25 });
    draft.set("email", "port", &json!(port), "email.smtp_port");
    let is_required = draft.flag("email.require_transport_security").unwrap_or(false);
    // Without it, Synapse may send mails in the clear, which is only possible to this machine here.
    draft.flag("email.enable_tls");
    let is_here = ["localhost", "127.0.0.1", "::1"].contains(&host.as_str());
    let (security, comment) = match (is_tls, is_required || !is_here) {
        (true, _) => ("tls", "From `email.force_tls`."),
        (false, true) => ("starttls", "The mail server must offer TLS, as mails hold secrets."),
        (false, false) => ("none", "The mail server is on this machine."),
    };
    draft.set_as("email", "security", &json!(security), comment.to_owned());
    draft.copy("email.smtp_user", "email", "user");
    draft.copy("email.smtp_pass", "email", "password");
    draft.copy("email.smtp_pass_path", "email", "password_file");
    let app = draft.text("email.app_name").unwrap_or("Matrix").to_owned();
    if let Some(from) = draft.text("email.notif_from") {
        let from = json!(from.replace("%(app)s", &app));
        draft.set("email", "from", &from, "email.notif_from");
    }
    draft.copy_seconds("email.validation_token_lifetime", "threepids", "validation_seconds");
    draft.copy_seconds("email.notif_delay_before_mail", "push", "email_delay_seconds");
    if draft.flag("email.enable_notifs") == Some(false) {
        let why = "users who want mails about missed messages get them";
        draft.leave("email.enable_notifs", why);
    }
}

fn calls(draft: &mut Draft<'_>) {
    // One is written without a list, too.
    match draft.get("turn_uris") {
        Some(Value::String(uri)) => draft.set("turn", "uris", &json!([uri]), "turn_uris"),
        Some(uris) => draft.set("turn", "uris", uris, "turn_uris"),
        None => {}
    }
    draft.copy("turn_shared_secret", "turn", "shared_secret");
    by_file(draft, "turn_shared_secret_path", "turn", "shared_secret");
    draft.copy_seconds("turn_user_lifetime", "turn", "ttl_seconds");
    for path in ["turn_username", "turn_password"] {
        if draft.get(path).is_some() {
            draft.leave(path, "each user has credentials of their own: see turn.shared_secret");
        }
    }
    if draft.flag("turn_allow_guests") == Some(false) {
        draft.leave("turn_allow_guests", "guests may use it");
    }
}

fn federation(draft: &mut Draft<'_>) {
    if let Some(allowed) = draft.get("federation_domain_whitelist") {
        let from = "federation_domain_whitelist";
        match allowed.as_array().is_some_and(Vec::is_empty) {
            // Synapse then federates with nobody.
            true => draft.set("federation", "enabled", &json!(false), from),
            false => draft.set("federation", "allow", allowed, from),
        }
    }
    let authorities = draft.texts("federation_custom_ca_list");
    if let Some(first) = authorities.first() {
        draft.set("federation", "ca", &json!(first), "federation_custom_ca_list");
        if authorities.len() > 1 {
            let why = "put the certificates of all into the one file of federation.ca";
            draft.leave("federation_custom_ca_list", why);
        }
        // It trusts them for all that it asks.
        let all = json!(authorities);
        draft.set("outbound", "certificates", &all, "federation_custom_ca_list");
    }
    if let Some(ranges) = draft.get("ip_range_whitelist") {
        draft.set("federation", "allowed_networks", ranges, "ip_range_whitelist");
        draft.set("push", "allowed_networks", ranges, "ip_range_whitelist");
    }
    let servers = match draft.get("trusted_key_servers").and_then(Value::as_array) {
        Some(servers) => {
            let names = servers.iter().filter_map(|server| server.get("server_name")?.as_str());
            names.map(str::to_owned).collect()
        }
        None => vec!["matrix.org".to_owned()],
    };
    draft.set("federation", "notaries", &json!(servers), "trusted_key_servers");
    if draft.get("perspectives").is_some() {
        draft.leave("perspectives", "name the servers in federation.notaries");
    }
    if draft.flag("serve_server_wellknown") == Some(true)
        && let Some(name) = draft.text("server_name").map(str::to_owned)
    {
        let to = json!(format!("{name}:443"));
        draft.set("federation", "delegate", &to, "serve_server_wellknown");
    }
    if let Some(hosts) = draft.get("no_proxy_hosts") {
        draft.set("outbound", "no_proxy", hosts, "no_proxy_hosts");
    }
}

fn appservices(draft: &mut Draft<'_>) {
    draft.copy("app_service_config_files", "appservices", "files");
    draft.copy("use_appservice_legacy_authorization", "appservices", "token_in_query");
}

fn notices(draft: &mut Draft<'_>) {
    if let Some(user) = draft.text("server_notices.system_mxid_localpart").map(str::to_owned) {
        let from = "server_notices.system_mxid_localpart";
        draft.set("server_notices", "localpart", &json!(user), from);
    }
    let name = "server_notices.system_mxid_display_name";
    draft.copy(name, "server_notices", "display_name");
    draft.copy("server_notices.system_mxid_avatar_url", "server_notices", "avatar_url");
    draft.copy("server_notices.room_name", "server_notices", "room_name");
}
