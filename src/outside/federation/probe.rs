//! How this homeserver looks from outside: what `logcabin doctor` asks of names, of itself and of
//! others. Nothing here is cached or recorded.

use std::{collections::BTreeMap, net::IpAddr};

use http::header::DATE;
use ruma::{CanonicalJsonObject, OwnedServerName, ServerName};
use serde::Deserialize;
use tokio::time;

use super::{
    FederationClient, FederationRequest, FederationResponse, Unreachable, connect::expires_ms,
    keys::verified, whole,
};
use logcabin_base::{clock::Clock, limits, text::encoded};

/// What a notary says of this homeserver's keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vouched {
    /// The keys, in base64 by their ids, and until when they are valid, in milliseconds since the
    /// Unix epoch; none if the notary does not know this homeserver.
    pub keys: Option<(BTreeMap<String, String>, u64)>,
    /// How far the notary's clock is ahead of the one here, in milliseconds.
    pub ahead_ms: Option<i64>,
}

/// The certificate that others find at this homeserver's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnCertificate {
    /// In milliseconds since the Unix epoch.
    pub expires_ms: Option<u64>,
}

#[derive(Deserialize)]
struct Documents {
    server_keys: Vec<CanonicalJsonObject>,
}

impl FederationClient {
    /// The addresses of a host, as other homeservers may use them.
    pub async fn addresses_of(&self, host: &str) -> Result<Vec<IpAddr>, Unreachable> {
        let found = Box::pin(self.names.dialer.addresses(host, 0)).await?;
        Ok(found.into_iter().map(|address| address.ip()).collect())
    }

    /// The hosts and ports in the SRV records of a host for federation.
    pub async fn services_of(&self, host: &str) -> Result<Vec<(String, u16)>, Unreachable> {
        let service = format!("_matrix-fed._tcp.{host}");
        Box::pin(self.names.dialer.services(&service)).await
    }

    /// What `/.well-known/matrix/server` of this homeserver's name says now.
    pub async fn own_delegation(&self) -> Result<OwnedServerName, Unreachable> {
        let asked = Box::pin(self.names.ask(self.own_name().host())).await;
        asked.map(|(server, _)| server)
    }

    /// Connects to this homeserver as others do: by its name, with a certificate that they accept.
    pub async fn own_certificate(&self) -> Result<OwnCertificate, Unreachable> {
        let target = Box::pin(self.names.target(self.own_name())).await?;
        let connection = Box::pin(self.names.dialer.connect(&target)).await?;
        Ok(OwnCertificate { expires_ms: expires_ms(connection.stream()) })
    }

    /// Asks a notary for the keys of this homeserver that are valid until a time. It must fetch
    /// them if it has only older ones.
    pub async fn vouched_by(
        &self,
        notary: &ServerName,
        until_ms: u64,
    ) -> Result<Vouched, Unreachable> {
        let own = encoded(self.own_name().as_str());
        let path = format!("/_matrix/key/v2/query/{own}?minimum_valid_until_ts={until_ms}");
        let (answer, ahead_ms) = self.dated(notary, path).await?;
        let now_ms = Clock::system().now_ms();
        let mut last = None;
        for object in answer.json::<Documents>()?.server_keys.into_iter().take(2) {
            match verified(self.own_name(), object, now_ms) {
                Ok(of) => {
                    return Ok(Vouched { keys: Some((of.keys, of.valid_until_ms)), ahead_ms });
                }
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) => Err(Unreachable::Unexpected(error)),
            None => Ok(Vouched { keys: None, ahead_ms }),
        }
    }

    /// How far the clock of another homeserver is ahead of the one here, in milliseconds.
    pub async fn clock_of(&self, server: &ServerName) -> Result<i64, Unreachable> {
        let (_, ahead_ms) = self.dated(server, "/_matrix/federation/v1/version".to_owned()).await?;
        ahead_ms.ok_or_else(|| Unreachable::Unexpected("it does not say the time".to_owned()))
    }

    /// The answer to an unsigned request, and how far the clock of whoever gave it is ahead.
    async fn dated(
        &self,
        server: &ServerName,
        path: String,
    ) -> Result<(FederationResponse, Option<i64>), Unreachable> {
        if server == self.own.name {
            return Err(Unreachable::Own);
        }
        if !self.permits(server) {
            return Err(Unreachable::Denied);
        }
        let mut question = FederationRequest::get(path).unsigned();
        question.max_bytes = 2 * limits::PEER_KEYS_BYTES;
        question.timeout = limits::DOCTOR_TIME;
        let (max_bytes, until) = (question.max_bytes, time::Instant::now() + question.timeout);
        let account = self.account(server, &question);
        let asked_ms = Clock::system().now_ms();
        let begun = time::timeout_at(until, Box::pin(self.begin(server, question))).await;
        let (head, incoming) = begun.unwrap_or(Err(Unreachable::Late))?.into_parts();
        let answered_ms = Clock::system().now_ms();
        let date = head.headers.get(DATE).and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
        let date = date.and_then(|date| date.duration_since(std::time::UNIX_EPOCH).ok());
        // The header has whole seconds; the answer was made between the two readings.
        let ahead_ms = date.and_then(|date| {
            let there = i64::try_from(date.as_millis()).ok()?.checked_add(500)?;
            there.checked_sub(i64::try_from(asked_ms.midpoint(answered_ms)).ok()?)
        });
        let body = whole(incoming, account, max_bytes, until).await?;
        Ok((FederationResponse { status: head.status, body }, ahead_ms))
    }
}
