//! Which homeservers count as one where shares are given out.

use std::net::IpAddr;

use ruma::ServerName;

use logcabin_base::rate::network_prefix;

/// What homeservers have in common that one operator can have any number of: a host without its
/// port, a domain that was probably registered as a whole, without the names below it, and the
/// network of an address.
///
/// Names are compared by their form. Customers of a provider who have names below one domain are
/// one site: what they share is several times what one homeserver needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Site(Box<str>);

/// Countries register names below these.
const KINDS: [&str; 24] = [
    "ac", "asn", "co", "com", "ed", "edu", "gen", "go", "gob", "gov", "gouv", "govt", "id", "ltd",
    "mil", "ne", "net", "nhs", "nom", "or", "org", "plc", "sch", "web",
];

impl Site {
    pub fn of(server: &ServerName) -> Self {
        let host = server.host();
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        // Nobody else can have names of this machine.
        if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
            return Self(server.as_str().into());
        }
        if let Some(address) = address {
            return Self(network_prefix(address).to_string().into());
        }
        let host = host.to_ascii_lowercase();
        let labels: Vec<&str> = host.trim_end_matches('.').rsplit('.').take(3).collect();
        let kept = match labels[..] {
            [country, kind, _] if country.len() == 2 && KINDS.contains(&kind) => 3,
            _ => 2,
        };
        let kept = &labels[..kept.min(labels.len())];
        Self(kept.iter().rev().copied().collect::<Vec<_>>().join(".").into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_names_below_a_registered_one_are_one_site() {
        let site = |name: &str| Site::of(name.try_into().unwrap()).as_str().to_owned();
        for (name, expected) in [
            ("example.org", "example.org"),
            ("a1.Matrix.example.org:4431", "example.org"),
            ("m.example.co.uk", "example.co.uk"),
            ("matrix.sub.example.gov.br:8448", "example.gov.br"),
            ("a.abc.me", "abc.me"),
            ("localhost:17001", "localhost:17001"),
            ("127.0.0.1:8448", "127.0.0.1:8448"),
            ("192.0.2.1:8448", "192.0.2.1"),
            ("[2001:db8::1]:8448", "2001:db8::"),
            ("[2001:db8::2]", "2001:db8::"),
            ("a.example.org.", "example.org"),
        ] {
            assert_eq!(site(name), expected, "{name}");
        }
    }
}
