//! One request to another homeserver, within an allowance, and the reading of its answer.

use std::{fmt, marker::PhantomData};

use ruma::ServerName;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, SeqAccess, Visitor},
};
use tracing::debug;

use super::Allowance;
use crate::federation::{PduError, PduReceiver};
use logcabin_base::limits;
use logcabin_outside::federation::{FederationRequest, FederationResponse, Unreachable};

/// The error for events that depend on events that cannot be fetched.
pub(in crate::federation) fn not_fetched(server: &ServerName, error: &Unreachable) -> PduError {
    debug!(%server, %error, "missing events cannot be fetched");
    PduError::Missing
}

/// A list of at most [`limits::STATE_EVENTS`] items. A longer list is not read to its end: an item
/// may be as short as two bytes, and takes many more in memory.
pub(in crate::federation) fn as_many_as_state<'de, D, T>(
    deserializer: D,
) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Items<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {} items", limits::STATE_EVENTS)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(item) = items.next_element()? {
                if all.len() >= limits::STATE_EVENTS {
                    return Err(A::Error::invalid_length(all.len() + 1, &self));
                }
                all.push(item);
            }
            Ok(all)
        }
    }

    deserializer.deserialize_seq(Items(PhantomData))
}

impl PduReceiver<'_> {
    pub(in crate::federation) async fn ask<T: DeserializeOwned>(
        &self,
        server: &ServerName,
        mut question: FederationRequest,
        budget: &mut Allowance,
    ) -> Result<T, PduError> {
        question.max_bytes = budget.bytes;
        let answer = self.answer(server, question, budget).await?;
        let said = answer.json().map_err(|error| not_fetched(server, &error))?;
        let bytes = answer.body.len();
        budget.keep(answer, bytes);
        Ok(said)
    }

    /// An answer of at most the question's size.
    pub(super) async fn answer(
        &self,
        server: &ServerName,
        mut question: FederationRequest,
        budget: &mut Allowance,
    ) -> Result<FederationResponse, PduError> {
        let left = budget.left().ok_or(PduError::Missing)?;
        budget.requests -= 1;
        question.timeout = left.min(question.timeout);
        question.max_bytes = budget.bytes.min(question.max_bytes);
        let answer = self.federation.client.send(server, question).await;
        let answer = answer.map_err(|error| not_fetched(server, &error))?;
        budget.bytes = budget.bytes.saturating_sub(answer.body.len());
        Ok(answer)
    }
}
