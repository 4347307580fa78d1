//! One order, from the account to the certificate.

use std::time::Duration;

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Identifier, NewAccount,
    NewOrder, Order, OrderStatus, RetryPolicy,
};
use serde::{Deserialize, Serialize};

use super::{Acme, AcmeError, Customer, client::Asking, nodes::Told};
use logcabin_base::limits;
use logcabin_config::AcmeChallenge;

/// The account at an authority, as it is kept.
#[derive(Serialize, Deserialize)]
struct StoredAccount {
    contact: Vec<String>,
    credentials: AccountCredentials,
}

/// How often an order is looked at until it is through.
const POLLING: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(500))
    .backoff(1.5)
    .timeout(limits::ACME_PATIENCE);

impl Acme {
    pub(super) async fn order(&self) -> Result<(), AcmeError> {
        // What the library waits for by itself is bounded, but for a nonce here and there.
        let patience = 3 * limits::ACME_PATIENCE;
        let ordered = tokio::time::timeout(patience, self.order_once()).await;
        let ordered = ordered.map_err(|_| AcmeError::Late(patience)).flatten();
        // Stored before others are told, which takes time: a certificate that is lost counts
        // against the limits of the authority.
        let stored = ordered.and_then(|(key, chain)| self.store(&key, &chain));
        let told = self.tell(&Told::Over).await;
        stored.and(told)
    }

    async fn order_once(&self) -> Result<(String, String), AcmeError> {
        let account = self.account().await?;
        let names: Vec<_> = self.domains.iter().cloned().map(Identifier::Dns).collect();
        let mut order = account.new_order(&NewOrder::new(&names)).await?;
        self.answer(&mut order).await?;
        match order.poll_ready(&POLLING).await {
            Ok(OrderStatus::Ready) => {}
            Ok(_) => return Err(reasons(&mut order, None).await),
            Err(instant_acme::Error::Api(problem)) => {
                let error = AcmeError::from(instant_acme::Error::Api(problem));
                return Err(match error.is_problem("badNonce") {
                    true => error,
                    false => reasons(&mut order, Some(error)).await,
                });
            }
            Err(error) => return Err(error.into()),
        }
        let key = order.finalize().await?;
        Ok((key, order.poll_certificate(&POLLING).await?))
    }

    /// Answers the challenges that are open, and says so.
    async fn answer(&self, order: &mut Order) -> Result<(), AcmeError> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status != AuthorizationStatus::Pending {
                continue;
            }
            let name = authorization.identifier().to_string();
            let kind = match self.challenge {
                AcmeChallenge::Http01 => ChallengeType::Http01,
                AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
            };
            let Some(mut challenge) = authorization.challenge(kind) else {
                return Err(AcmeError::NotOffered { challenge: self.challenge, name });
            };
            let answer = challenge.key_authorization();
            let told = match self.challenge {
                AcmeChallenge::Http01 => {
                    let (token, answer) = (challenge.token.clone(), answer.as_str().to_owned());
                    Told::Http { token, answer }
                }
                AcmeChallenge::TlsAlpn01 => {
                    Told::Tls { name, digest: answer.digest().as_ref().to_vec() }
                }
            };
            self.tell(&told).await?;
            challenge.set_ready().await?;
        }
        Ok(())
    }

    /// The account at the authority; a new one if there is none.
    async fn account(&self) -> Result<Account, AcmeError> {
        let builder = Account::builder_with_http(Box::new(Asking(self.client.clone())));
        let contact: Vec<_> = self.contact.iter().map(String::as_str).collect();
        if let Some(StoredAccount { contact: before, credentials }) = self.stored_account() {
            let account = builder.from_credentials(credentials).await?;
            if before != self.contact {
                account.update_contacts(&contact).await?;
                if let Some(stored) = self.stored_account() {
                    self.store_account(stored.credentials)?;
                }
            }
            return Ok(account);
        }
        let new = NewAccount {
            contact: &contact,
            // The documentation of `acme.enabled` says so.
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let key = self.customer.as_ref().map(Customer::key);
        let created = builder.create(&new, self.authority.clone(), key.as_ref()).await;
        let (account, credentials) = created.map_err(|error| {
            let error = AcmeError::from(error);
            match key.is_none() && error.is_problem("externalAccountRequired") {
                true => AcmeError::NeedsKey(error.to_string()),
                false => error,
            }
        })?;
        self.store_account(credentials)?;
        Ok(account)
    }

    fn store_account(&self, credentials: AccountCredentials) -> Result<(), AcmeError> {
        let stored = StoredAccount { contact: self.contact.clone(), credentials };
        let json = serde_json::to_vec(&stored).map_err(instant_acme::Error::from)?;
        self.write(&self.account_file(), &json)
    }

    fn stored_account(&self) -> Option<StoredAccount> {
        let json = std::fs::read(self.directory.join(self.account_file())).ok()?;
        serde_json::from_slice(&json).ok()
    }

    /// So that the next order begins with a new one.
    pub(super) async fn forget_account(&self) {
        // If it stays, the authority refuses it again, and this is tried again.
        let _ = std::fs::remove_file(self.directory.join(self.account_file()));
        self.forget_shared_account().await;
    }

    /// Whether these are the contents of such a file.
    pub(super) fn is_account(json: &[u8]) -> bool {
        serde_json::from_slice::<StoredAccount>(json).is_ok()
    }

    /// One for each authority: who tries another comes back to the first.
    pub(super) fn account_file(&self) -> String {
        let authority = blake3::hash(self.authority.as_bytes()).to_hex();
        format!("account-{}.json", &authority[..16])
    }
}

/// Why the authority found an order invalid, in its words.
async fn reasons(order: &mut Order, error: Option<AcmeError>) -> AcmeError {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let name = authorization.identifier().to_string();
        let Ok(state) = authorization.refresh().await else { continue };
        let problems = state.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
        let details = problems.filter_map(|problem| problem.detail.clone());
        reasons.extend(details.map(|detail| format!("{name}: {detail}")));
    }
    match error {
        Some(error) if reasons.is_empty() => error,
        _ => AcmeError::Invalid(match reasons.is_empty() {
            true => "the names, and does not say why".to_owned(),
            false => reasons.join("; "),
        }),
    }
}
