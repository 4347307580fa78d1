//! The server's messages to people: e-mail and text messages.
//!
//! [`letter`] and [`digest`] have the texts, [`smtp`] and [`sms`] send them. Each way is limited in
//! time and number, so that a mail server that never answers delays only its own recipients.

mod digest;
mod frame;
mod letter;
mod sms;
mod smtp;

use std::{sync::Arc, time::Duration};

use ruma::ServerName;
use thiserror::Error;
use tokio::sync::Semaphore;

pub(crate) use digest::{
    Digest, DigestMessage, InviteDigest, MessageText, RoomDigest, RoomTitle, cut,
};
pub use letter::{Proof, Topic};

use crate::outbound::{Outbound, OutboundError};
use logcabin_config::{Email, Sms};
use logcabin_record::threepid::{Medium, Threepid};

/// Why the configured ways are not usable.
#[derive(Debug, Error)]
pub enum SetupError {
    /// A setting is not usable.
    #[error("`{setting}`: {reason}")]
    Setting {
        /// Its key.
        setting: &'static str,
        reason: String,
    },
}

/// Why a message was not sent.
#[derive(Debug, Error)]
pub enum SendError {
    /// No way is configured for this medium.
    #[error("it is not configured")]
    NotConfigured,
    /// It took too long, or too many others were waiting.
    #[error("it took too long")]
    Late,
    /// The message cannot be built.
    #[error("it cannot be written: {0}")]
    Letter(String),
    /// The mail server is not reached through the proxy.
    #[error("the mail server: {0}")]
    Unreachable(String),
    /// The mail server did not accept it.
    #[error("the mail server: {0}")]
    Mail(#[from] lettre::transport::smtp::Error),
    /// The mail server rejects the recipient.
    #[error("the mail server refuses the recipient: {0}")]
    Recipient(lettre::transport::smtp::Error),
    /// The gateway could not be reached.
    #[error("the gateway: {0}")]
    Gateway(#[from] OutboundError),
    /// The gateway did not accept it.
    #[error("the gateway answered with {0}")]
    Refused(http::StatusCode),
}

impl SendError {
    /// Whether the mail server says that a retry is pointless.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(self, Self::Mail(error) | Self::Recipient(error) if error.is_permanent())
    }
}

/// The configured ways to send messages.
#[derive(Debug)]
pub struct Messages {
    server: String,
    mail: Option<Lane<smtp::Mailer>>,
    sms: Option<Lane<sms::Gateway>>,
}

/// One way, with its limits.
#[derive(Debug)]
struct Lane<T> {
    way: T,
    slots: Arc<Semaphore>,
    timeout: Duration,
}

impl<T> Lane<T> {
    async fn within<'a, F>(&'a self, send: impl FnOnce(&'a T) -> F) -> Result<(), SendError>
    where
        F: Future<Output = Result<(), SendError>>,
    {
        let sent = async {
            let _slot = self.slots.acquire().await.map_err(|_| SendError::Late)?;
            send(&self.way).await
        };
        tokio::time::timeout(self.timeout, sent).await.unwrap_or(Err(SendError::Late))
    }
}

impl Messages {
    /// The ways that are configured.
    pub fn new(
        email: &Email,
        sms: &Sms,
        server: &ServerName,
        outbound: &Outbound,
    ) -> Result<Self, SetupError> {
        let host = email.host.as_ref();
        let mailer = host
            .map(|host| smtp::Mailer::new(email, host, server, outbound.router()))
            .transpose()?;
        let mail = mailer.map(|way| Lane {
            way,
            slots: Arc::new(Semaphore::new(email.concurrent)),
            timeout: Duration::from_secs(email.timeout_seconds),
        });
        let sms = sms::Gateway::new(sms, outbound)?.map(|way| Lane {
            way,
            slots: Arc::new(Semaphore::new(sms.concurrent)),
            timeout: Duration::from_secs(sms.timeout_seconds),
        });
        Ok(Self { server: server.to_string(), mail, sms })
    }

    /// Whether something can be sent to identifiers of this medium.
    pub const fn reach(&self, medium: Medium) -> bool {
        match medium {
            Medium::Email => self.mail.is_some(),
            Medium::Msisdn => self.sms.is_some(),
        }
    }

    /// Logs in to the mail server and leaves again, without a mail.
    ///
    /// # Errors
    /// When no mail could be sent now.
    pub async fn log_in_for_mail(&self) -> Result<(), SendError> {
        let mail = self.mail.as_ref().ok_or(SendError::NotConfigured)?;
        mail.within(|way| way.log_in()).await
    }

    /// Sends a letter. Returns when it was handed over.
    ///
    /// # Errors
    /// When it was not handed over, as far as is known.
    pub async fn send(&self, to: &Threepid, topic: &Topic) -> Result<(), SendError> {
        let letter = topic.letter(&self.server);
        match to.medium {
            Medium::Email => {
                let mail = self.mail.as_ref().ok_or(SendError::NotConfigured)?;
                let letter = letter.mail(&self.server);
                mail.within(|way| way.send(&to.address, &letter)).await
            }
            Medium::Msisdn => {
                let sms = self.sms.as_ref().ok_or(SendError::NotConfigured)?;
                sms.within(|way| way.send(&to.address, &letter.short, &self.server)).await
            }
        }
    }

    /// Sends a mail about missed messages. Returns when it was handed over.
    ///
    /// # Errors
    /// When it was not handed over, as far as is known.
    pub(crate) async fn send_digest(&self, to: &str, digest: &Digest) -> Result<(), SendError> {
        let mail = self.mail.as_ref().ok_or(SendError::NotConfigured)?;
        let digest = digest.mail(&self.server);
        mail.within(|way| way.send(to, &digest)).await
    }
}
