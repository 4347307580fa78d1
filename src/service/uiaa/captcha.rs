//! The captcha, whose responses are verified by the service that provides it.

use std::{fmt, net::IpAddr};

use serde::Deserialize;
use tracing::warn;
use url::Url;

use logcabin_config as config;
use logcabin_outside::outbound::{Outbound, OutboundRequest};

/// The configured captcha.
pub struct Captcha {
    /// The public key for the page.
    pub public_key: String,
    /// The address of its script.
    pub script_url: Url,
    secret_key: String,
    verify_url: Url,
}

impl fmt::Debug for Captcha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captcha").field("public_key", &self.public_key).finish_non_exhaustive()
    }
}

/// Why a response does not count.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum CaptchaError {
    #[error("The captcha is to be solved.")]
    Missing,
    #[error("The captcha was not solved.")]
    Wrong,
    #[error("The captcha cannot be checked right now.")]
    Unavailable,
}

/// The verdict of the service on a response.
#[derive(Deserialize)]
struct Verdict {
    success: bool,
    #[serde(default, rename = "error-codes")]
    error_codes: Vec<String>,
}

impl Captcha {
    /// The captcha of this configuration, with its keys.
    pub(crate) fn new(
        config: &config::Captcha,
        public_key: &str,
        secret_key: &str,
    ) -> Result<Self, String> {
        let secret_key = secret_key.trim().to_owned();
        if secret_key.is_empty() {
            return Err("the file of its secret key is empty".to_owned());
        }
        Ok(Self {
            public_key: public_key.to_owned(),
            script_url: config.script_url.url()?,
            secret_key,
            verify_url: config.verify_url.url()?,
        })
    }

    /// The origins of scripts and frames of the captcha's page.
    pub fn origins(&self) -> Vec<String> {
        let mut origins = vec![self.script_url.origin().ascii_serialization()];
        if matches!(self.script_url.host_str(), Some("www.google.com" | "www.recaptcha.net")) {
            origins.push("https://www.gstatic.com".to_owned());
            origins.push("https://recaptcha.google.com".to_owned());
        }
        origins
    }

    /// Verifies a response.
    ///
    /// # Errors
    /// When it is wrong, or cannot be verified now.
    pub async fn check(
        &self,
        outbound: &Outbound,
        answer: &str,
        client: IpAddr,
    ) -> Result<(), CaptchaError> {
        if answer.is_empty() {
            return Err(CaptchaError::Missing);
        }
        let client = client.to_string();
        let fields =
            [("secret", self.secret_key.as_str()), ("response", answer), ("remoteip", &client)];
        let ask = OutboundRequest::new(http::Method::POST, self.verify_url.clone()).form(&fields);
        let verdict = match outbound.send(ask).await {
            Ok(answer) if answer.status.is_success() => answer.json::<Verdict>(),
            Ok(answer) => {
                warn!(status = answer.status.as_u16(), "the captcha cannot be checked");
                return Err(CaptchaError::Unavailable);
            }
            Err(error) => Err(error),
        };
        match verdict {
            Ok(verdict) if verdict.success => Ok(()),
            Ok(verdict) => {
                // The administrator must know of these; the client cannot do better.
                if verdict.error_codes.iter().any(|code| code.ends_with("input-secret")) {
                    warn!("the captcha service rejects the secret key");
                    return Err(CaptchaError::Unavailable);
                }
                Err(CaptchaError::Wrong)
            }
            Err(error) => {
                warn!(%error, "the captcha cannot be checked");
                Err(CaptchaError::Unavailable)
            }
        }
    }
}
