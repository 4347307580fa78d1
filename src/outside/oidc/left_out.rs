//! What stands in for a provider in a program without single sign-on.

use std::path::Path;

use ruma::OwnedMxcUri;

use super::{OidcError, Person};
use crate::outbound::Outbound;

/// There are none.
#[derive(Clone, Copy, Debug)]
pub enum Provider {}

impl Provider {
    pub(super) fn load(_: &Path, _: &str, _: &Outbound) -> Result<Self, String> {
        Err("this program was built without the feature `sso`; remove it from `sso.providers`, or \
             build the program with that feature"
            .to_owned())
    }

    pub const fn id(&self) -> &str {
        match *self {}
    }

    pub const fn name(&self) -> &str {
        match *self {}
    }

    pub const fn icon(&self) -> Option<&OwnedMxcUri> {
        match *self {}
    }

    pub const fn brand(&self) -> Option<&str> {
        match *self {}
    }

    pub const fn allows_registration(&self) -> bool {
        match *self {}
    }

    pub const fn allows_existing_users(&self) -> bool {
        match *self {}
    }

    pub async fn begin(&self, _: String, _: String, _: String) -> Result<url::Url, OidcError> {
        match *self {}
    }

    pub async fn finish(&self, _: String, _: String, _: String) -> Result<Person, OidcError> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oidc::Providers;
    use logcabin_config::{Config, FilePath, Sso};

    #[test]
    fn a_configured_provider_is_refused() {
        let budget = logcabin_base::bodies::BodyBudget::new(Config::default().body_shares());
        let outbound = Outbound::new(&logcabin_config::Outbound::default(), &budget).unwrap();
        let mut sso = Sso::default();
        assert!(Providers::load(&sso, "http://localhost", &outbound).unwrap().all().is_empty());
        sso.providers.0.push(FilePath("provider.toml".into()));
        let error = Providers::load(&sso, "http://localhost", &outbound).unwrap_err().to_string();
        assert!(error.contains("the feature `sso`") && error.contains("provider.toml"), "{error}");
    }
}
