//! Providers of single sign-on: each becomes a file of its own.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::draft::{Draft, From};

pub(super) fn translate(draft: &mut Draft<'_>) {
    let mut providers: Vec<Value> = Vec::new();
    if let Some(list) = draft.get("oidc_providers").and_then(Value::as_array) {
        providers.extend(list.iter().cloned());
    }
    // The form of earlier versions, for one provider.
    if let Some(one) = draft.get("oidc_config")
        && one["enabled"].as_bool() == Some(true)
    {
        providers.push(one.clone());
    }
    if let Some(clients) = draft.get("sso.client_whitelist") {
        draft.set("sso", "redirects", clients, "sso.client_whitelist");
    }
    let mut files = Vec::new();
    for provider in &providers {
        // Synapse puts `oidc-` before it in its database, where the import takes that away.
        let id = provider["idp_id"].as_str().unwrap_or("oidc");
        let is_name = id.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
        if id.is_empty() || !is_name {
            let why = format!("a provider is called `{id}`, which cannot be an id here");
            draft.leave("oidc_providers (id)", &why);
            continue;
        }
        let (text, differences) = file_of(id, provider, From::Synapse);
        for difference in differences {
            draft.leave(&format!("oidc_providers ({id})"), &difference);
        }
        let path = draft.file(&format!("sso-{id}.toml"), text);
        let requires = provider["attribute_requirements"].as_array();
        if requires.is_some_and(|requires| !requires.is_empty()) {
            // Nothing here looks at attributes: in use, it would let in whom Synapse keeps out.
            let why = format!(
                "NOT USABLE YET: attribute_requirements has no equivalent, and without it everybody \
                 whom the provider knows could log in; {} is not in sso.providers for that reason. \
                 Let the provider itself say who may use this server, and add the file then",
                path.display()
            );
            draft.leave(&format!("oidc_providers ({id})"), &why);
            continue;
        }
        files.push(json!(path.display().to_string()));
    }
    if !files.is_empty() {
        let comment = "Register the other redirect URI at each provider: see docs/sso.md.";
        draft.set_as("sso", "providers", &json!(files), comment.to_owned());
    }
}

/// The file of a provider, and what of it does not come along.
pub(super) fn file_of(id: &str, provider: &Value, from: From) -> (String, Vec<String>) {
    let mut differences = Vec::new();
    let mut text = format!("# Made from {} by `logcabin import-synapse`.\n", from.name());
    let mut set = |key: &str, value: &Value| {
        let _ = writeln!(text, "{key} = {}", value.to_string().replace('\u{7f}', "\\u007f"));
    };
    set("id", &json!(id));
    set("name", &json!(provider["idp_name"].as_str().unwrap_or("OpenID Connect")));
    for (from, key) in [
        ("idp_icon", "icon"),
        ("idp_brand", "brand"),
        ("issuer", "issuer"),
        ("client_id", "client_id"),
        ("client_secret", "client_secret"),
        ("client_secret_path", "client_secret_file"),
        ("allow_existing_users", "allow_existing_users"),
        ("enable_registration", "allow_registration"),
        ("add_email", "add_email"),
    ] {
        if !provider[from].is_null() && !provider[from].is_object() {
            set(key, &provider[from]);
        }
    }
    let scopes = provider["scopes"].as_array().map_or(&[][..], Vec::as_slice);
    // It is always asked for.
    let scopes: Vec<_> = scopes.iter().filter(|scope| scope.as_str() != Some("openid")).collect();
    set("scopes", &json!(scopes));
    let mapping = &provider["user_mapping_provider"];
    let config = &mapping["config"];
    let mut claims = Vec::new();
    for (from, key) in [
        ("localpart_template", "localpart"),
        ("display_name_template", "display_name"),
        ("email_template", "email"),
    ] {
        let Some(template) = config[from].as_str() else { continue };
        match claim(template) {
            Some(claim) => claims.push((key, claim.to_owned())),
            None => differences.push(format!("{from} is more than a claim: see claims.{key}")),
        }
    }
    for from in ["subject_claim", "subject_template"] {
        let subject = config[from].as_str().map(|text| claim(text).unwrap_or(text));
        if subject.is_some_and(|claim| claim != "sub") {
            differences.push(format!(
                "{from} is not `sub`: the provider's users are not recognised, and must be linked \
                 again"
            ));
        }
    }
    let module = mapping["module"].as_str();
    if module.is_some_and(|module| !module.ends_with(".JinjaOidcMappingProvider")) {
        differences.push("it has a module of its own, which does not come along".to_owned());
    }
    for from in ["client_secret_jwt_key", "backchannel_logout_enabled"] {
        if !provider[from].is_null() {
            differences.push(format!("{from} has no equivalent"));
        }
    }
    let has_endpoints = provider["discover"].as_bool() == Some(false);
    if !claims.is_empty() {
        text.push_str("\n[claims]\n");
        for (key, claim) in claims {
            let _ = writeln!(text, "{key} = {}", json!(claim));
        }
    }
    if has_endpoints {
        text.push_str("\n[endpoints]\n");
        for (from, key) in [
            ("authorization_endpoint", "authorization"),
            ("token_endpoint", "token"),
            ("jwks_uri", "jwks"),
            ("userinfo_endpoint", "userinfo"),
        ] {
            if let Some(address) = provider[from].as_str() {
                let _ = writeln!(text, "{key} = {}", json!(address));
            }
        }
    }
    (text, differences)
}

/// The claim of a template such as `{{ user.preferred_username }}`, if that is all of it.
fn claim(template: &str) -> Option<&str> {
    let inside = template.trim().strip_prefix("{{")?.strip_suffix("}}")?.trim();
    let name = inside.strip_prefix("user.")?;
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_name && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_is_a_claim_is_one() {
        assert_eq!(claim("{{ user.preferred_username }}"), Some("preferred_username"));
        assert_eq!(claim("{{user.name}}"), Some("name"));
        let split = "{{ user.email.split('@')[0] }}";
        for more in [split, "{{ user.a }}-{{ user.b }}", "text", "{{ x }}"] {
            assert_eq!(claim(more), None, "{more}");
        }
    }

    #[test]
    fn a_provider_has_the_id_by_which_its_users_are_known() {
        let yaml = json!({ "oidc_providers": [{ "idp_id": "oidc-x", "client_id": "id" }] });
        let mut draft = Draft::new(&yaml, std::path::Path::new("/srv"));
        translate(&mut draft);
        let (_, files) = draft.finish();
        let ids = files.iter().map(|file| file.text.contains("\nid = \"oidc-x\"\n"));
        // In the database, its users are those of `oidc-oidc-x`.
        assert_eq!(ids.collect::<Vec<_>>(), [true]);
    }

    #[test]
    fn a_provider_becomes_a_file_that_says_what_is_missing() {
        let provider = json!({
            "idp_id": "google", "idp_name": "Google", "issuer": "https://accounts.google.com/",
            "client_id": "id", "client_secret": "a \"secret\"",
            "scopes": ["openid", "profile"],
            "user_mapping_provider": { "config": {
                "localpart_template": "{{ user.given_name|lower }}",
                "display_name_template": "{{ user.name }}",
                "subject_claim": "email",
            } },
        });
        let (text, differences) = file_of("google", &provider, From::Synapse);
        for line in [
            "id = \"google\"",
            "client_secret = \"a \\\"secret\\\"\"",
            "scopes = [\"profile\"]",
            "[claims]",
            "display_name = \"name\"",
        ] {
            assert!(text.lines().any(|of| of == line), "{line} in {text}");
        }
        assert_eq!(differences.len(), 2, "{differences:?}");
    }
}
