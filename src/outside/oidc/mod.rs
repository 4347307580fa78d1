//! Single sign-on by OpenID Connect: the configured providers, and the two steps of a login:
//! sending the browser to a provider, and identifying the user when it comes back.
//!
//! A provider is asked only when somebody logs in with it. Its metadata is cached for an hour, and
//! longer while it does not answer. A provider that is down delays only the users who chose it.
//!
//! Without the feature `sso` there are no providers, and a configuration with one is refused.

#[cfg(not(feature = "sso"))]
mod left_out;
#[cfg(feature = "sso")]
mod provider;

use std::path::PathBuf;

use thiserror::Error;

#[cfg(not(feature = "sso"))]
pub use self::left_out::Provider;
#[cfg(feature = "sso")]
pub use self::provider::Provider;
use crate::outbound::Outbound;
use logcabin_config::Sso;

/// A provider's configuration is not usable.
#[derive(Debug, Error)]
#[error("the provider of single sign-on in {path} cannot be used: {reason}")]
pub struct ProviderError {
    path: PathBuf,
    reason: String,
}

/// Why a step with a provider failed.
#[derive(Debug, Error)]
pub enum OidcError {
    /// It does not answer, or not as the protocol says.
    #[error("it does not answer as it should: {0}")]
    Unavailable(String),
    /// It rejects the code that the browser brought.
    #[error("it does not accept the login: {0}")]
    Refused(String),
    /// Its statement about the user is not signed, or not about this login.
    #[error("what it says is not to be trusted: {0}")]
    Untrusted(String),
}

/// A user whom a provider has authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// The subject: the provider's identifier for this user, which never changes hands.
    pub subject: String,
    /// The suggested user name.
    pub localpart: Option<String>,
    /// The suggested display name.
    pub display_name: Option<String>,
    /// The user's e-mail address, if the provider has verified it and new accounts are to have it.
    pub email: Option<String>,
}

/// All configured providers, in the order of the configuration.
#[derive(Debug, Default)]
pub struct Providers(Vec<Provider>);

impl Providers {
    /// Reads the files that the configuration names.
    pub fn load(sso: &Sso, callback: &str, outbound: &Outbound) -> Result<Self, ProviderError> {
        let mut providers: Vec<Provider> = Vec::new();
        for path in &sso.providers.0 {
            let path = path.0.as_path();
            let provider = Provider::load(path, callback, outbound);
            let wrong = |reason| ProviderError { path: path.to_owned(), reason };
            let provider = provider.map_err(wrong)?;
            if providers.iter().any(|other| other.id() == provider.id()) {
                return Err(wrong(format!("there is another one with the id `{}`", provider.id())));
            }
            providers.push(provider);
        }
        Ok(Self(providers))
    }

    /// The provider with this id.
    pub fn get(&self, id: &str) -> Option<&Provider> {
        self.0.iter().find(|provider| provider.id() == id)
    }

    /// All of them.
    pub fn all(&self) -> &[Provider] {
        &self.0
    }
}
