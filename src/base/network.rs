//! Tells addresses of the public internet from those of private networks.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// A range of addresses: a single address, or all addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    first: IpAddr,
    bits: u8,
}

impl Range {
    pub fn contains(&self, address: IpAddr) -> bool {
        let (all, first, address) = match (self.first, address.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                (32, u128::from(u32::from(first)), u128::from(u32::from(address)))
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                (128, u128::from(first), u128::from(address))
            }
            _ => return false,
        };
        // A shift by all bits is not allowed.
        let shift = u32::from(all - self.bits);
        first.checked_shr(shift).unwrap_or(0) == address.checked_shr(shift).unwrap_or(0)
    }
}

/// Whether an address is in one of these ranges.
pub fn contains(ranges: &[Range], address: IpAddr) -> bool {
    ranges.iter().any(|range| range.contains(address))
}

impl FromStr for Range {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (first, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let first: IpAddr = first.parse().map_err(|_| ())?;
        let all = if first.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(all), str::parse).map_err(|_| ())?;
        if bits > all { Err(()) } else { Ok(Self { first, bits }) }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

/// Whether this is an address of the public internet: not of this machine, of a local network, or
/// reserved (the IANA registries of special-purpose addresses).
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(a == 0
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        // Carrier-grade NAT.
        || a == 100 && b & 0xc0 == 64
        // Protocol assignments, and relays.
        || a == 192 && b == 0 && c == 0
        || a == 192 && b == 88 && c == 99
        // Benchmarking.
        || a == 198 && b & 0xfe == 18
        // Reserved, and the broadcast address.
        || a >= 240)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    // Public addresses are in 2000::/3. The loopback address, local networks, multicast and forms
    // that embed an IPv4 address are not.
    a & 0xe000 == 0x2000
        // Protocol assignments, among them Teredo, which embeds an IPv4 address.
        && !(a == 0x2001 && b < 0x0200)
        // Documentation.
        && !(a == 0x2001 && b == 0x0db8)
        && !(a == 0x3fff && b < 0x1000)
        // 6to4, which embeds an IPv4 address.
        && a != 0x2002
}

/// Domains that are not of the public internet (RFC 6761, RFC 6762, RFC 8375, RFC 9476, and those
/// that ICANN delegates to nobody), besides names without a dot.
const PRIVATE_DOMAINS: [&str; 12] = [
    "corp",
    "home",
    "home.arpa",
    "internal",
    "intranet",
    "invalid",
    "lan",
    "local",
    "localdomain",
    "localhost",
    "mail",
    "private",
];

/// Whether a name, which another machine is to resolve, may be one of a private network: it is in a
/// domain for these, has no dot, or ends with a number, as addresses in unusual forms do.
pub fn is_private_name(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let Some((_, last)) = name.rsplit_once('.') else { return true };
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    let is_in = |domain: &&str| {
        name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    last.is_empty() || is_number || PRIVATE_DOMAINS.iter().any(is_in)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_recognised_in_every_form() {
        for private in [
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
    }

    #[test]
    fn public_addresses_are_public() {
        for public in [
            "1.1.1.1",
            "9.9.9.9",
            "100.63.0.1",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "::ffff:1.1.1.1",
            "2606:4700:4700::1111",
            "2a00:1450::1",
            "2001:4860::8888",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn ranges_contain_addresses_with_their_prefix() {
        let range = |text: &str| text.parse::<Range>();
        let within = |text, address: &str| range(text).unwrap().contains(address.parse().unwrap());
        assert!(within("10.0.0.0/8", "10.255.0.1") && !within("10.0.0.0/8", "11.0.0.1"));
        assert!(within("127.0.0.1", "127.0.0.1") && !within("127.0.0.1", "127.0.0.2"));
        assert!(within("127.0.0.1", "::ffff:127.0.0.1"));
        assert!(within("0.0.0.0/0", "9.9.9.9") && !within("0.0.0.0/0", "::1"));
        assert!(within("::/0", "::1") && within("fd00::/8", "fdff::1"));
        for bad in
            ["", "10.0.0.0/33", "::/129", "10.0.0/8", "example.org", "10.0.0.0/", "1.1.1.1/-1"]
        {
            assert!(range(bad).is_err(), "{bad}");
        }
        assert_eq!(range("fd00::/8").unwrap().to_string(), "fd00::/8");
    }

    #[test]
    fn names_of_private_networks_are_recognised() {
        for private in [
            "localhost",
            "a.localhost",
            "router",
            "printer.local.",
            "Metadata.Google.Internal",
            "nas.home.arpa",
            "a.lan",
            "127.1",
            "0x7f.1",
            "1.0x7f",
            "",
            ".",
        ] {
            assert!(is_private_name(private), "{private}");
        }
        for public in ["example.org", "a.example.org.", "local.example.org", "notlocal.org"] {
            assert!(!is_private_name(public), "{public}");
        }
        assert!(!is_private_name("a.notlocal"), "another domain");
    }
}
