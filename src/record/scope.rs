//! What an OAuth client may do: the scopes of the specification (client-server API, "Scope"), of
//! OpenID Connect, and the administrators' ones, under their stable and their earlier names.

use std::fmt;

use ruma::OwnedDeviceId;
use thiserror::Error;

use logcabin_base::limits;

const API: [&str; 2] = ["urn:matrix:client:api:*", "urn:matrix:org.matrix.msc2967.client:api:*"];
const DEVICE: [&str; 2] =
    ["urn:matrix:client:device:", "urn:matrix:org.matrix.msc2967.client:device:"];
const ADMIN: &str = "urn:synapse:admin:*";
const CHANGES: &str = "urn:logcabin:changes";

/// The scopes that do not name a device, as they are advertised to clients.
pub const SUPPORTED: [&str; 7] = ["openid", "profile", "email", API[0], API[1], ADMIN, CHANGES];

/// Why a scope cannot be granted.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidScope {
    #[error("The scope is too long.")]
    TooLong,
    #[error("The scope has characters that it cannot have.")]
    Characters,
    #[error("The scope has nothing that this server can grant.")]
    Nothing,
    #[error("The scope names more than one device.")]
    SeveralDevices,
    /// The device's id is not one.
    #[error("The scope names a device whose id is empty or too long.")]
    Device,
    /// The API without a device.
    #[error("The scope has the client-server API, but no device.")]
    NoDevice,
    /// A device without the API.
    #[error("The scope has a device, but not the client-server API.")]
    NoApi,
}

/// A scope that can be granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The client-server API.
    pub api: bool,
    /// The device that the client logs in.
    pub device: Option<OwnedDeviceId>,
    /// The administrators' API.
    pub admin: bool,
    /// The feed of changes, which is part of the administrators' API.
    pub changes: bool,
    /// An ID token.
    pub openid: bool,
    /// The display name, in the claims about the user.
    pub profile: bool,
    /// The email address there.
    pub email: bool,
    /// The tokens that it consists of, in the client's order.
    tokens: Vec<String>,
}

impl Scope {
    /// The scope that a client asks for, without what this server does not know (RFC 6749, section
    /// 3.3).
    pub fn parse(asked: &str) -> Result<Self, InvalidScope> {
        if asked.len() > limits::OAUTH_SCOPE_BYTES {
            return Err(InvalidScope::TooLong);
        }
        if !asked.bytes().all(|byte| matches!(byte, b' ' | 0x21 | 0x23..=0x5b | 0x5d..=0x7e)) {
            return Err(InvalidScope::Characters);
        }
        let mut scope = Self::default();
        for token in asked.split(' ').filter(|token| !token.is_empty()) {
            scope.add(token)?;
        }
        let Self { api, admin, changes, openid, .. } = scope;
        match &scope.device {
            None if api && !admin => Err(InvalidScope::NoDevice),
            Some(_) if !api => Err(InvalidScope::NoApi),
            None if !(api || admin || changes || openid) => Err(InvalidScope::Nothing),
            _ => Ok(scope),
        }
    }

    fn add(&mut self, token: &str) -> Result<(), InvalidScope> {
        let named = DEVICE.iter().find_map(|prefix| token.strip_prefix(prefix));
        if let Some(device_id) = named {
            if device_id.is_empty() || device_id.len() > limits::IDENTIFIER_BYTES {
                return Err(InvalidScope::Device);
            }
            // Both names of the scope may name the same device.
            match &self.device {
                Some(other) if other.as_str() != device_id => {
                    return Err(InvalidScope::SeveralDevices);
                }
                _ => self.device = Some(device_id.into()),
            }
        } else {
            match token {
                token if API.contains(&token) => self.api = true,
                ADMIN => self.admin = true,
                CHANGES => self.changes = true,
                "openid" => self.openid = true,
                "profile" => self.profile = true,
                "email" => self.email = true,
                _ => return Ok(()),
            }
        }
        if !self.tokens.iter().any(|known| known == token) {
            self.tokens.push(token.to_owned());
        }
        Ok(())
    }

    /// A recorded scope.
    pub fn recorded(text: &str) -> Self {
        Self::parse(text).unwrap_or_default()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tokens.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_comes_with_one_device_under_either_name() {
        let [stable, unstable] = API;
        let [device, former] = DEVICE;
        for asked in [
            format!("{stable} {device}ABC"),
            format!("openid {unstable} {former}ABC"),
            format!("{stable} {unstable} {device}ABC {former}ABC"),
            format!("{device}ABC  {stable} what:ever {stable}"),
        ] {
            let scope = Scope::parse(&asked).unwrap();
            assert!(scope.api, "{asked}");
            assert_eq!(scope.device.as_ref().unwrap().as_str(), "ABC", "{asked}");
            assert_eq!(Scope::recorded(&scope.to_string()), scope, "{asked}");
            assert!(!scope.to_string().contains("ever"));
        }
        let long = format!("{stable} {device}{}", "x".repeat(256));
        let longer = "x".repeat(limits::OAUTH_SCOPE_BYTES + 1);
        for (asked, wrong) in [
            (stable, InvalidScope::NoDevice),
            (&*format!("{stable} {device}A {former}B"), InvalidScope::SeveralDevices),
            (&*format!("{device}A openid"), InvalidScope::NoApi),
            (&*format!("{stable} {device}"), InvalidScope::Device),
            (&*long, InvalidScope::Device),
            (&*longer, InvalidScope::TooLong),
            (&*format!("{stable} {device}\"A"), InvalidScope::Characters),
            (&*format!("{stable} {device}\u{e4}"), InvalidScope::Characters),
            ("", InvalidScope::Nothing),
            ("profile what:ever", InvalidScope::Nothing),
        ] {
            assert_eq!(Scope::parse(asked), Err(wrong), "{asked}");
        }
    }

    #[test]
    fn administration_needs_no_device() {
        let scope = Scope::parse(&format!("{ADMIN} {}", API[0])).unwrap();
        assert!(scope.admin && scope.api && scope.device.is_none());
    }
}
