//! Whether DNS and `/.well-known` lead others to this server.

use ruma::OwnedServerName;
use serde_json::Value;

use super::{Finding, Level, failing, reach::Names};

pub(super) fn judge(names: &Names) -> Vec<Finding> {
    let mut found: Vec<_> =
        names.addresses.iter().filter_map(|(host, found)| address(host, found)).collect();
    found.extend(service(names));
    if found.is_empty() {
        let hosts: Vec<_> = names.addresses.iter().map(|(host, _)| &**host).collect();
        found.push(Finding::ok("dns", format!("DNS knows {}.", hosts.join(" and "))));
    }
    // Steps 1 and 2 of the resolution: an address or a port needs no delegation.
    if !names.name.is_ip_literal() && names.name.port().is_none() {
        found.push(delegation(names.delegate.as_ref(), &names.delegation));
    }
    found
}

fn address(host: &str, found: &Result<Vec<std::net::IpAddr>, String>) -> Option<Finding> {
    let Err(reason) = found else { return None };
    Some(Finding::new(
        "dns",
        Level::Error,
        format!("Other homeservers cannot use the address of {host}: {}.", failing(reason)),
        "They cannot connect, and nothing that is written there arrives here.",
        format!(
            "An A or AAAA record of {host} with the public address of this server; or, for a \
             network of your own, federation.allowed_networks"
        ),
    ))
}

fn service(names: &Names) -> Option<Finding> {
    let name = names.name.host();
    match &names.services {
        Ok(services) if !services.is_empty() && names.delegate.is_some() => Some(Finding::new(
            "dns",
            Level::Warning,
            format!("There is an SRV record _matrix-fed._tcp.{name} besides federation.delegate."),
            "Homeservers that cannot read /.well-known go where the record leads.",
            format!(
                "Remove the record, or make it lead to the same place: dig SRV _matrix-fed._tcp.{name}"
            ),
        )),
        Ok(_) => None,
        Err(reason) => Some(Finding::new(
            "dns",
            Level::Warning,
            format!("The SRV records of {name} cannot be looked up: {}.", failing(reason)),
            "Other homeservers may give up when DNS fails.",
            format!("dig SRV _matrix-fed._tcp.{name}; the name servers of the domain must answer"),
        )),
    }
}

fn delegation(
    delegate: Option<&OwnedServerName>,
    found: &Result<OwnedServerName, String>,
) -> Finding {
    const CHECK: &str = "well-known-server";
    let mend = "Have the proxy of the server's name pass /.well-known/matrix/ to this server, or \
                serve {\"m.server\": \"HOST:PORT\"} there; and set federation.delegate to the same.";
    match (delegate, found) {
        (Some(wanted), Ok(found)) if wanted == found => {
            Finding::ok(CHECK, format!("/.well-known/matrix/server leads to {found}."))
        }
        (Some(wanted), Ok(found)) => Finding::new(
            CHECK,
            Level::Error,
            format!(
                "/.well-known/matrix/server leads to {found}, and federation.delegate is {wanted}."
            ),
            "Other homeservers go to the wrong place.",
            mend,
        ),
        (Some(wanted), Err(reason)) => Finding::new(
            CHECK,
            Level::Error,
            format!("/.well-known/matrix/server does not lead to {wanted}: {}.", failing(reason)),
            "Other homeservers try port 8448 of the server's name instead.",
            mend,
        ),
        (None, Ok(found)) => Finding::new(
            CHECK,
            Level::Warning,
            format!(
                "/.well-known/matrix/server leads to {found}, of which this server knows nothing."
            ),
            "If that is not this server, other homeservers go to the wrong place.",
            format!("federation.delegate = \"{found}\", or remove the document"),
        ),
        (None, Err(_)) => {
            Finding::ok(CHECK, "The server's name leads to it without /.well-known/matrix/server.")
        }
    }
}

pub(super) fn judge_client(
    announced: &str,
    has_calls: bool,
    document: &Result<Value, String>,
) -> Finding {
    const CHECK: &str = "well-known-client";
    let mend = "Have the proxy of the server's name pass /.well-known/matrix/ to this server, or \
                serve the same document there, with Access-Control-Allow-Origin: *.";
    let document = match document {
        Ok(document) => document,
        Err(reason) => {
            return Finding::new(
                CHECK,
                Level::Warning,
                format!("/.well-known/matrix/client cannot be read: {}.", failing(reason)),
                "Users who type the server's name, or their id, do not find the server.",
                mend,
            );
        }
    };
    let said = document.pointer("/m.homeserver/base_url").and_then(Value::as_str);
    let foci = document.get("org.matrix.msc4143.rtc_foci").and_then(Value::as_array);
    let leads_here = |said: &str| said.trim_end_matches('/') == announced.trim_end_matches('/');
    match said {
        Some(said) if leads_here(said) && has_calls && foci.is_none_or(Vec::is_empty) => {
            Finding::new(
                CHECK,
                Level::Warning,
                "/.well-known/matrix/client does not say where calls are (org.matrix.msc4143.rtc_foci).",
                "Clients that look for it there offer no calls.",
                mend,
            )
        }
        Some(said) if leads_here(said) => {
            Finding::ok(CHECK, format!("/.well-known/matrix/client leads clients to {announced}."))
        }
        said => Finding::new(
            CHECK,
            Level::Error,
            format!(
                "/.well-known/matrix/client leads clients to {}, and server.public_url is \
                 {announced}.",
                said.map_or_else(|| "no address".to_owned(), failing)
            ),
            "Clients go to the wrong place.",
            mend,
        ),
    }
}

#[cfg(test)]
mod tests {
    use ruma::owned_server_name;
    use serde_json::json;

    use super::*;

    fn names() -> Names {
        Names {
            name: owned_server_name!("m.example"),
            delegate: None,
            addresses: vec![("m.example".to_owned(), Ok(vec![[192, 0, 2, 1].into()]))],
            services: Ok(Vec::new()),
            delegation: Err("404".to_owned()),
        }
    }

    fn levels(names: &Names) -> Vec<Level> {
        judge(names).iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn names_that_lead_nowhere_are_found() {
        assert_eq!(levels(&names()), [Level::Ok, Level::Ok]);
        let mut lost = names();
        lost.addresses[0].1 = Err("NXDOMAIN".to_owned());
        assert_eq!(levels(&lost), [Level::Error, Level::Ok]);
        let mut failed = names();
        failed.services = Err("SERVFAIL".to_owned());
        assert_eq!(levels(&failed), [Level::Warning, Level::Ok]);
        let mut twofold = names();
        twofold.delegate = Some(owned_server_name!("n.example:443"));
        twofold.delegation = Ok(owned_server_name!("n.example:443"));
        assert_eq!(levels(&twofold), [Level::Ok, Level::Ok]);
        twofold.services = Ok(vec![("o.example".to_owned(), 8448)]);
        assert_eq!(levels(&twofold), [Level::Warning, Level::Ok]);
        // A port needs no more.
        let with_port = Names { name: owned_server_name!("m.example:1"), ..names() };
        assert_eq!(levels(&with_port), [Level::Ok]);
    }

    #[test]
    fn a_delegation_must_be_the_configured_one() {
        let (one, other) = (owned_server_name!("a.example:1"), owned_server_name!("b.example"));
        let none = || Err("404".to_owned());
        for (delegate, found, level) in [
            (Some(&one), Ok(one.clone()), Level::Ok),
            (Some(&one), Ok(other.clone()), Level::Error),
            (Some(&one), none(), Level::Error),
            (None, Ok(other), Level::Warning),
            (None, none(), Level::Ok),
        ] {
            assert_eq!(delegation(delegate, &found).level, level, "{delegate:?} {found:?}");
        }
    }

    #[test]
    fn clients_must_be_led_to_the_address_of_the_server() {
        let to = |url: &str| Ok(json!({ "m.homeserver": { "base_url": url } }));
        for (document, level) in [
            (to("https://m.example/"), Level::Ok),
            (to("https://n.example"), Level::Error),
            (Ok(json!([])), Level::Error),
            (Err("404".to_owned()), Level::Warning),
        ] {
            let found = judge_client("https://m.example", false, &document);
            assert_eq!(found.level, level, "{document:?}");
        }
    }

    #[test]
    fn clients_must_be_told_where_calls_are_if_there_are_any() {
        let with = |foci: Value| {
            let home = json!({ "base_url": "https://m.example" });
            let said = json!({ "m.homeserver": home, "org.matrix.msc4143.rtc_foci": foci });
            judge_client("https://m.example", true, &Ok(said)).level
        };
        assert_eq!(with(json!([{ "type": "livekit" }])), Level::Ok);
        assert_eq!(with(json!([])), Level::Warning);
        assert_eq!(with(json!(null)), Level::Warning);
    }
}
