//! Commands of OAuth 2.0, in words.

use super::{ActorAndText, Describe, joined};
use crate::history::moment::Time;
use logcabin_record::{
    Record,
    command::{
        BrowserSignIn, BrowserSignOut, GrantEnd, KeysPermitReset, OauthClient, OauthClientRemove,
        OauthCode, OauthConfirm, OauthDeviceAnswer, OauthDeviceRequest, OauthEnd, OauthGrant,
        OauthKey, OauthRefresh, SignedInBy,
    },
};

impl Describe for OauthClient {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let name = self.metadata.in_language("client_name", &[]).unwrap_or("without a name");
        let text = format!(
            "registered the client {} ({name}, {})",
            self.client_id, self.metadata.client_uri
        );
        (who, text)
    }
}

impl Describe for OauthClientRemove {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("removed clients without a grant: {}", joined(self.clients)))
    }
}

impl Describe for OauthCode {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let Self { user_id, client_id, scope, code, .. } = self;
        let text = format!("allowed the client {client_id}: {scope} (code {}…)", code.start());
        (user_id.to_string(), text)
    }
}

impl Describe for OauthDeviceRequest {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let Self { client_id, scope, device_code, expires_ms, .. } = self;
        let (code, until) = (device_code.start(), Time(expires_ms));
        (who, format!("the client {client_id} asks until {until} for: {scope} (code {code}…)"))
    }
}

impl Describe for OauthDeviceAnswer {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let does = if self.allowed { "allowed" } else { "denied" };
        let text = format!("{does} what was asked for with code {}…", self.device_code.start());
        (self.user_id.to_string(), text)
    }
}

impl Describe for OauthGrant {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let Self { grant_id, user_id, client_id, scope, device_id, code, .. } = self;
        let device = device_id.map_or_else(String::new, |id| format!(" on the device {id}"));
        let code = code.start();
        let text = format!(
            "granted the client {client_id}{device}: {scope} (grant {grant_id}, code {code}…)"
        );
        (user_id.to_string(), text)
    }
}

impl Describe for OauthRefresh {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("new tokens for the grant {}", self.grant_id))
    }
}

impl Describe for OauthConfirm {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("the new tokens of the grant {} are in use", self.grant_id))
    }
}

impl Describe for OauthEnd {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let because = match self.because {
            GrantEnd::Revoked => "its tokens were revoked",
            GrantEnd::CodeReused => "its code was used a second time",
            GrantEnd::RefreshReused => "an old refresh token was used again",
            GrantEnd::ByUser => "the user ended it",
            GrantEnd::LoggedOut => "the user was logged out everywhere",
        };
        let grants = joined(self.grants);
        (self.user_id.to_string(), format!("no longer grants {grants}: {because}"))
    }
}

impl Describe for OauthKey {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let until = Time(self.until_ms);
        (who, format!("publishes the key {} for ID tokens until {until}", self.kid))
    }
}

impl Describe for BrowserSignIn {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let by = match self.by {
            SignedInBy::Password => "with the password".to_owned(),
            SignedInBy::Sso(provider) => format!("with {provider}"),
            SignedInBy::Registration => "with a new account".to_owned(),
        };
        let from = self.address.map_or_else(String::new, |address| format!(" from {address}"));
        let browser = self.browser.start();
        (self.user_id.to_string(), format!("signed in {by}{from} (browser {browser}…)"))
    }
}

impl Describe for BrowserSignOut {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let browsers = self.browsers.iter().map(|browser| format!("{}…", browser.start()));
        let text = format!("is signed out of the browsers {}", joined(browsers.collect()));
        (self.user_id.to_string(), text)
    }
}

impl Describe for KeysPermitReset {
    fn describe(self, record: &Record, who: String) -> ActorAndText {
        let until = Time(self.until_ms);
        let user_id = self.user_id.to_string();
        if who == user_id || record.header.origin.import().is_some() {
            let text = format!("allows clients to replace the cross-signing keys until {until}");
            return (user_id, text);
        }
        let text =
            format!("allows clients of {user_id} to replace the cross-signing keys until {until}");
        (who, text)
    }
}
