//! Where the other server listened, and where this one is to.

use serde_json::{Value, json};

use super::draft::Draft;

/// Where a Synapse with this configuration answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Its own listeners, as this machine reaches them.
    pub here: Vec<String>,
    /// Where others reach it. Another server may be there.
    pub public: Vec<String>,
}

/// One listener for HTTP.
#[derive(Debug)]
struct HttpListener {
    /// Addresses with ports, or one Unix socket.
    binds: Vec<String>,
    port: Option<u64>,
    has_tls: bool,
    is_behind_proxy: bool,
    for_clients: bool,
    for_servers: bool,
}

/// The addresses at which a Synapse with this configuration may be asked whether it is there.
pub fn addresses(yaml: &Value) -> Addresses {
    let mut found = Addresses::default();
    let name = yaml["server_name"].as_str().unwrap_or_default();
    // The name may have a port, which is for homeservers.
    let host = match name.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => name,
    };
    for listener in http_listeners(yaml) {
        let scheme = if listener.has_tls { "https" } else { "http" };
        for bind in listener.binds.iter().filter(|bind| !bind.starts_with("unix:")) {
            // One of all addresses may have only those of IPv4.
            let reached = bind.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "127.0.0.1:");
            found.here.push(format!("{scheme}://{reached}"));
            if bind.starts_with("[::]:") {
                found.here.push(format!("{scheme}://{}", bind.replace("[::]:", "[::1]:")));
            }
        }
        // A certificate is for a name, and not for an address of this machine.
        if let (true, Some(port)) = (listener.has_tls && !host.is_empty(), listener.port) {
            found.here.push(format!("https://{host}:{port}"));
        }
    }
    found.here.sort();
    found.here.dedup();
    if let Some(url) = yaml["public_baseurl"].as_str() {
        found.public.push(url.trim_end_matches('/').to_owned());
    }
    if !name.is_empty() {
        found.public.push(format!("https://{host}"));
        found.public.push(match name == host {
            true => format!("https://{name}:8448"),
            false => format!("https://{name}"),
        });
    }
    found.public.dedup();
    found
}

pub(super) fn translate(draft: &mut Draft<'_>) {
    let Some(listeners) = draft.get("listeners").cloned() else { return };
    let yaml = json!({ "listeners": listeners });
    let all = http_listeners(&yaml);
    let mut is_served = false;
    let (mut plain, mut secure, mut servers) = (Vec::new(), Vec::new(), Vec::new());
    let mut servers_have_tls = false;
    for listener in &all {
        let to = match (listener.for_clients, listener.has_tls) {
            (true, false) => &mut plain,
            (true, true) => &mut secure,
            (false, _) if listener.for_servers => &mut servers,
            (false, _) => continue,
        };
        to.extend(listener.binds.iter().map(|bind| json!(bind)));
        servers_have_tls |= !listener.for_clients && listener.has_tls;
        if listener.for_clients && listener.for_servers {
            let comment = "Homeservers and clients came to the same listener.".to_owned();
            draft.set_as("federation", "at_client_addresses", &json!(true), comment);
        }
        if listener.is_behind_proxy && listener.for_clients {
            let comment = "From `x_forwarded`: the proxy must set X-Forwarded-For.".to_owned();
            draft.set_as("server", "trust_forwarded_for", &json!(true), comment);
        }
        is_served |= listener.for_servers;
    }
    if !plain.is_empty() {
        draft.set("server", "bind", &json!(plain), "listeners");
    }
    let certificate = draft.get("tls_certificate_path").cloned();
    let key = draft.get("tls_private_key_path").cloned();
    if let (Some(certificate), Some(key)) = (&certificate, &key) {
        if !secure.is_empty() {
            draft.set("tls", "bind", &json!(secure), "listeners");
            draft.set("tls", "certificate", certificate, "tls_certificate_path");
            draft.set("tls", "certificate_key", key, "tls_private_key_path");
        } else if servers_have_tls {
            draft.set("federation", "certificate", certificate, "tls_certificate_path");
            draft.set("federation", "certificate_key", key, "tls_private_key_path");
        }
    }
    // A list of those who are allowed may have said no already.
    if is_served && draft.get("federation_domain_whitelist").is_none_or(|list| *list != json!([])) {
        draft.set("federation", "enabled", &json!(true), "listeners");
        draft.set("federation", "bind", &json!(servers), "listeners");
    }
    if !is_served && ["instance_map", "stream_writers"].iter().any(|name| draft.has(name)) {
        let why = "homeserver.yaml has no listener for other homeservers, and the files of workers \
                   are not read: if one has it, set federation.enabled and federation.bind";
        draft.leave("listeners (of workers)", why);
    }
    others(draft, &listeners);
}

/// What is no listener for HTTP.
fn others(draft: &mut Draft<'_>, listeners: &Value) {
    for listener in listeners.as_array().into_iter().flatten() {
        let kind = listener["type"].as_str().unwrap_or("http");
        match kind {
            "http" => {}
            "metrics" => {
                if let Some(bind) = binds(listener).first() {
                    draft.set("metrics", "bind", &json!(bind), "listeners");
                }
            }
            other => draft.leave(&format!("listeners ({other})"), "there is no such listener"),
        }
    }
}

fn http_listeners(yaml: &Value) -> Vec<HttpListener> {
    let listeners = yaml["listeners"].as_array().map_or(&[][..], Vec::as_slice);
    let http = listeners.iter().filter(|one| one["type"].as_str().unwrap_or("http") == "http");
    let read = |listener: &Value| {
        let resources = listener["resources"].as_array().map_or(&[][..], Vec::as_slice);
        // `names` is a list, or one name.
        let has = |wanted: &[&str]| {
            resources.iter().any(|resource| match &resource["names"] {
                Value::String(name) => wanted.contains(&name.as_str()),
                Value::Array(names) => {
                    names.iter().any(|name| name.as_str().is_some_and(|it| wanted.contains(&it)))
                }
                _ => false,
            })
        };
        HttpListener {
            binds: binds(listener),
            port: listener["port"].as_u64(),
            has_tls: listener["tls"].as_bool().unwrap_or(false),
            is_behind_proxy: listener["x_forwarded"].as_bool().unwrap_or(false),
            for_clients: has(&["client"]),
            for_servers: has(&["federation", "keys"]),
        }
    };
    http.map(read).collect()
}

/// Where a listener listens.
fn binds(listener: &Value) -> Vec<String> {
    if let Some(path) = listener["path"].as_str() {
        return vec![format!("unix:{path}")];
    }
    let Some(port) = listener["port"].as_u64() else { return Vec::new() };
    let mut hosts: Vec<&str> = match (&listener["bind_addresses"], &listener["bind_address"]) {
        (Value::Array(hosts), _) if !hosts.is_empty() => {
            hosts.iter().filter_map(Value::as_str).collect()
        }
        (_, Value::String(host)) if !host.is_empty() => vec![host],
        _ => vec!["::", "0.0.0.0"],
    };
    // One of all IPv6 addresses takes those of IPv4, too.
    if hosts.contains(&"::") {
        hosts.retain(|host| *host != "0.0.0.0");
    }
    let at = |host: &str| match host {
        "localhost" => format!("127.0.0.1:{port}"),
        host if host.contains(':') => format!("[{host}]:{port}"),
        host => format!("{host}:{port}"),
    };
    hosts.into_iter().map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_for_at_its_listeners_and_at_its_names() {
        let yaml = json!({
            "server_name": "example.org",
            "public_baseurl": "https://matrix.example.org/",
            "listeners": [
                { "port": 8008, "type": "http", "resources": [{ "names": "client" }] },
                { "port": 8448, "tls": true, "bind_addresses": ["0.0.0.0"], "resources": [] },
                { "path": "/run/synapse.sock", "type": "http", "resources": [] },
                { "port": 9000, "type": "manhole" },
            ],
        });
        assert_eq!(
            addresses(&yaml),
            Addresses {
                here: [
                    "http://127.0.0.1:8008",
                    "http://[::1]:8008",
                    "https://127.0.0.1:8448",
                    "https://example.org:8448",
                ]
                .map(str::to_owned)
                .into(),
                public: [
                    "https://matrix.example.org",
                    "https://example.org",
                    "https://example.org:8448",
                ]
                .map(str::to_owned)
                .into(),
            }
        );
        let yaml = json!({ "server_name": "localhost:8449" });
        let expected = ["https://localhost", "https://localhost:8449"].map(str::to_owned);
        assert_eq!(addresses(&yaml).public, expected);
    }
}
