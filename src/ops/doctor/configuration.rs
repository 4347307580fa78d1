//! Settings that contradict each other, or that are dangerous together.

use super::{Finding, Level, Subject};
use logcabin_config::{
    Bind, Config, OpenRegistration, PublicUrl, Requirement, SharedSecret, value::RegistrationStage,
};

pub(super) fn findings(of: &Subject<'_>) -> Vec<Finding> {
    let tokens = of.context.ok().map(|context| {
        let all = context.engine.state().registration_tokens.all();
        all.iter().filter(|(_, token)| token.is_good(of.now_ms)).count()
    });
    judge(of.config, tokens)
}

/// `tokens` is the number of registration tokens that can be used; none if it is not known.
fn judge(config: &Config, tokens: Option<usize>) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(registration(config, tokens));
    found.extend(addresses(config));
    found.extend(federation(config));
    found.extend(others(config));
    if found.is_empty() {
        found.push(Finding::ok("configuration", "The settings do not contradict each other."));
    }
    found
}

fn finding(level: Level, what: &str, why: &str, mend: &str) -> Finding {
    Finding::new("configuration", level, what, why, mend)
}

/// Whether people beyond this machine are meant to reach the server.
pub(super) fn is_public(config: &Config) -> bool {
    let server = &config.server;
    server.is_proxied()
        || server.public_url != PublicUrl::Auto
        || config.has_tls()
        || !server.bind.iter().all(is_local)
}

/// Whether only this machine reaches what listens there.
fn is_local(bind: &Bind) -> bool {
    bind.address().is_none_or(|address| address.ip().is_loopback())
}

/// Whether everybody must pass one of these stages.
fn demands(config: &Config, wanted: &[RegistrationStage]) -> bool {
    let all_wanted =
        |Requirement(choices): &Requirement| choices.iter().all(|stage| wanted.contains(stage));
    config.registration.require.iter().any(all_wanted)
}

fn registration(config: &Config, tokens: Option<usize>) -> Option<Finding> {
    use RegistrationStage::{Captcha, Email, Msisdn, Token};
    if !config.registration.is_open(&config.server) {
        return None;
    }
    if demands(config, &[Token]) && tokens == Some(0) {
        return Some(Finding::new(
            "registration",
            Level::Error,
            "Registration requires a token, and there is no token that can be used.",
            "Nobody can create an account.",
            "logcabin registration-token create",
        ));
    }
    let is_guarded =
        config.registration.approval || demands(config, &[Token, Captcha, Email, Msisdn]);
    if is_public(config) && !is_guarded {
        return Some(Finding::new(
            "registration",
            Level::Error,
            "Anyone on the internet can create accounts: registration is open and requires \
             nothing.",
            "Open servers are found and used for spam within days, and then other homeservers block \
             them.",
            "registration.open = \"false\", registration.require = [\"token\"] or [\"captcha\"], or \
             registration.approval = true",
        ));
    }
    None
}

fn addresses(config: &Config) -> Vec<Finding> {
    let server = &config.server;
    let mut found = Vec::new();
    let only_loopback = server.bind.iter().all(is_local);
    let address = match &server.public_url {
        PublicUrl::Auto => None,
        PublicUrl::Url(url) => Some(url.to_string()),
    };
    if let Some(address) = &address
        && address.starts_with("http:")
        && !is_here(address)
    {
        found.push(finding(
            Level::Error,
            "server.public_url is an address without TLS.",
            "Passwords, tokens and messages can be read by everybody on the way, and most clients \
             refuse such a server.",
            "server.public_url = \"https://…\", with `[tls]`, `[acme]`, or a proxy that serves HTTPS",
        ));
    }
    if let Some(address) = &address
        && only_loopback
        && !config.has_tls()
        && !server.is_proxied()
        && !is_here(address)
    {
        found.push(finding(
            Level::Warning,
            "The server seems to be behind a proxy, but does not trust the addresses that it tells.",
            "All clients have the proxy's address: they share its rate limits, and logs and devices \
             show the wrong address.",
            "server.trust_forwarded_for = true, if the proxy sets X-Forwarded-For, or \
             server.proxy_protocol = true, if it sends PROXY headers",
        ));
    }
    if server.trust_forwarded_for && !only_loopback {
        found.push(finding(
            Level::Warning,
            "X-Forwarded-For is trusted, and the server also listens on addresses of the network.",
            "Whoever reaches the server past the proxy can claim any address, and so evade rate \
             limits.",
            "Let server.bind name loopback addresses only, or have a firewall admit the proxy alone.",
        ));
    }
    if server.discovery && server.announced_url().is_none() {
        found.push(finding(
            Level::Warning,
            "Clients are not told the server's address, because it is not known which they use.",
            "Clients find the server only if users type its address, and cannot log in with OAuth \
             2.0.",
            "server.public_url = \"https://…\"",
        ));
    }
    found
}

/// Whether an address leads to this machine.
fn is_here(address: &str) -> bool {
    let host = address.split_once("://").map_or(address, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or_default();
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_loopback = |address: std::net::IpAddr| address.to_canonical().is_loopback();
    host == "localhost" || host.ends_with(".localhost") || host.parse().is_ok_and(is_loopback)
}

fn federation(config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    let (federation, name) = (&config.federation, config.server.name.host());
    if !federation.enabled {
        if federation.delegate.is_some() {
            found.push(finding(
                Level::Warning,
                "federation.delegate is set, but federation is off.",
                "Other homeservers are told where to find this one, and get no answer there.",
                "federation.enabled = true, or federation.delegate = \"off\"",
            ));
        }
        return found;
    }
    if name == "localhost" || name.ends_with(".localhost") {
        found.push(finding(
            Level::Error,
            "Federation is on, and the name of the server is localhost.",
            "Every machine has this name: no other homeserver can find this one.",
            "server.name cannot be changed after the first start: start with a new data directory \
             and a name of your own, or set federation.enabled = false.",
        ));
    }
    let only_loopback = federation.bind.iter().all(is_local);
    if federation.certificate.is_none() && !config.has_tls() && !only_loopback {
        found.push(finding(
            Level::Warning,
            "The listener for other homeservers is open to the network and has no certificate.",
            "Other homeservers speak TLS only: without a proxy in front, none can connect.",
            "federation.certificate and federation.certificate_key, or federation.bind = \
             [\"127.0.0.1:8448\"] behind a proxy",
        ));
    }
    found
}

fn others(config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    if !config.rate_limits.enabled && is_public(config) {
        found.push(finding(
            Level::Warning,
            "Rate limits are off on a server that others can reach.",
            "One client can take all of the server's time, and passwords can be guessed quickly.",
            "rate_limits.enabled = true",
        ));
    }
    if config.registration.shared_secret.as_ref().is_some_and(SharedSecret::is_short) {
        found.push(finding(
            Level::Warning,
            "registration.shared_secret has fewer than 16 characters.",
            "Whoever guesses it can make administrators.",
            "LOGCABIN_REGISTRATION_SHARED_SECRET, with a random text such as that of: openssl rand \
             -hex 32",
        ));
    }
    if !config.turn.uris.is_empty() && config.turn.shared_secret.is_none() {
        found.push(finding(
            Level::Warning,
            "turn.uris names servers, but there is no turn.shared_secret.",
            "Clients get no credentials for them, and calls between networks fail.",
            "LOGCABIN_TURN_SHARED_SECRET, the static-auth-secret of the TURN server",
        ));
    }
    let is_closed = config.registration.open == OpenRegistration::No;
    if is_closed && config.registration.guests {
        found.push(finding(
            Level::Warning,
            "Registration is closed, but guests are welcome.",
            "Guests have no accounts to keep: they get in without any of the stages.",
            "registration.guests = false",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_config::Effective;

    fn of(settings: &[(&str, &str)], tokens: Option<usize>) -> Vec<Finding> {
        let set =
            settings.iter().map(|(name, value)| (format!("LOGCABIN_{name}"), (*value).to_owned()));
        judge(&Effective::load(None, set, &[]).unwrap().config, tokens)
    }

    #[track_caller]
    fn finds(settings: &[(&str, &str)], tokens: Option<usize>, level: Level, words: &str) {
        let found = of(settings, tokens);
        let it = found.iter().find(|finding| finding.what.contains(words));
        assert_eq!(it.map(|it| it.level), Some(level), "{settings:?}: {found:?}");
        assert!(it.is_some_and(|it| !it.why.is_empty() && !it.mend.is_empty()), "{found:?}");
    }

    #[track_caller]
    fn is_well(settings: &[(&str, &str)], tokens: Option<usize>) {
        let found = of(settings, tokens);
        assert!(found.iter().all(|of| of.level == Level::Ok), "{settings:?}: {found:?}");
    }

    const PUBLIC: [(&str, &str); 2] =
        [("SERVER_PUBLIC_URL", "https://m.example"), ("SERVER_TRUST_FORWARDED_FOR", "true")];

    fn public<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        [&PUBLIC, more].concat()
    }

    #[test]
    fn a_token_that_nobody_has_keeps_everybody_out() {
        let token = [("REGISTRATION_REQUIRE", "token")];
        finds(&token, Some(0), Level::Error, "no token");
        is_well(&token, Some(1));
        is_well(&token, None);
        is_well(&[("REGISTRATION_REQUIRE", "token"), ("REGISTRATION_OPEN", "false")], Some(0));
    }

    #[test]
    fn open_registration_is_for_private_servers() {
        let open = ("REGISTRATION_OPEN", "true");
        finds(&public(&[open]), Some(0), Level::Error, "Anyone on the internet");
        is_well(&public(&[open, ("REGISTRATION_REQUIRE", "token")]), Some(1));
        is_well(&public(&[]), Some(0));
        is_well(&[], Some(0));
    }

    #[test]
    fn addresses_must_fit() {
        let plain = [("SERVER_PUBLIC_URL", "http://m.example"), PUBLIC[1]];
        finds(&plain, None, Level::Error, "without TLS");
        finds(&PUBLIC[..1], None, Level::Warning, "behind a proxy");
        is_well(&[("SERVER_PUBLIC_URL", "http://localhost:8008")], None);
        is_well(&[("SERVER_PUBLIC_URL", "http://[::1]:8008")], None);
        is_well(&[PUBLIC[0], ("SERVER_PROXY_PROTOCOL", "true")], None);
        let open = [PUBLIC[0], PUBLIC[1], ("SERVER_BIND", "0.0.0.0:8008")];
        finds(&open, None, Level::Warning, "X-Forwarded-For");
        finds(&PUBLIC[1..], None, Level::Warning, "not told the server's address");
    }

    #[test]
    fn federation_needs_a_name_and_a_certificate() {
        let on = ("FEDERATION_ENABLED", "true");
        let behind = ("FEDERATION_BIND", "127.0.0.1:8448");
        finds(&[on, behind], None, Level::Error, "localhost");
        let named = ("SERVER_NAME", "m.example");
        finds(&[on, named], None, Level::Warning, "no certificate");
        is_well(&[on, named, behind], None);
        let delegate = ("FEDERATION_DELEGATE", "m.example:443");
        finds(&[named, delegate], None, Level::Warning, "federation is off");
    }

    #[test]
    fn what_is_dangerous_is_told() {
        finds(&public(&[("RATE_LIMITS_ENABLED", "false")]), None, Level::Warning, "Rate limits");
        is_well(&[("RATE_LIMITS_ENABLED", "false")], None);
        finds(&[("REGISTRATION_SHARED_SECRET", "short")], None, Level::Warning, "fewer than 16");
        finds(&[("TURN_URIS", "turn:t.example")], None, Level::Warning, "turn.shared_secret");
        let guests = [("REGISTRATION_OPEN", "false"), ("REGISTRATION_GUESTS", "true")];
        finds(&guests, None, Level::Warning, "guests");
    }
}
