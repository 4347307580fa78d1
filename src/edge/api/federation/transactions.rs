//! Receives events and EDUs from other homeservers (server-server API, "Transactions").

use std::{collections::BTreeMap, fmt, sync::Arc};

use ruma::OwnedServerName;
use ruma::api::federation::transactions::send_transaction_message::v1 as send_transaction_message;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, SeqAccess, Visitor},
};
use tracing::debug;

use crate::{
    api::server::Server,
    http::{ApiError, Cx, Homeserver},
};
use logcabin_base::{
    limits,
    metrics::{PduOutcome, metrics},
};
use logcabin_decide::federation::ReceiveOutcome;
use logcabin_service::federation::{Budget, PduError};

/// Refuses too many items before they are decoded: decoded, each takes many times its size.
pub(super) fn is_bounded(body: &[u8]) -> Result<(), ApiError> {
    #[derive(Deserialize)]
    struct ItemCounts {
        #[serde(default, rename = "pdus")]
        _pdus: AtMost<{ limits::TRANSACTION_PDUS }>,
        #[serde(default, rename = "edus")]
        _edus: AtMost<{ limits::TRANSACTION_EDUS }>,
    }
    match serde_json::from_slice::<ItemCounts>(body) {
        Err(error) if error.to_string().contains(TOO_MANY) => {
            Err(ApiError::too_large("This is too much for one transaction."))
        }
        // Other errors are reported by the decoder.
        _ => Ok(()),
    }
}

/// The error for a list of too many items.
const TOO_MANY: &str = "too many items";

/// A list whose items are only counted, at most `MOST` of them.
#[derive(Default)]
struct AtMost<const MOST: usize>;

impl<'de, const MOST: usize> Deserialize<'de> for AtMost<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<const MOST: usize>;

        impl<'de, const MOST: usize> Visitor<'de> for Items<MOST> {
            type Value = AtMost<MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<AtMost<MOST>, A::Error> {
                let mut count = 0;
                while items.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                    if count > MOST {
                        return Err(A::Error::custom(TOO_MANY));
                    }
                }
                Ok(AtMost)
            }
        }

        deserializer.deserialize_seq(Items::<MOST>)
    }
}

pub(super) async fn send(
    cx: Cx<Server, Homeserver>,
    request: send_transaction_message::Request,
) -> Result<send_transaction_message::Response, ApiError> {
    let Homeserver(origin) = &cx.caller;
    let send_transaction_message::Request { pdus, edus, .. } = request;
    if pdus.len() > limits::TRANSACTION_PDUS || edus.len() > limits::TRANSACTION_EDUS {
        return Err(ApiError::too_large("This is too much for one transaction."));
    }
    let receiving = cx.app.receiving()?;
    metrics().federation_transactions.inc();
    metrics().federation_edus.inc_by(edus.len() as u64);
    let presence_places =
        receiving.admit(origin, &pdus, &edus).map_err(ApiError::limit_exceeded)?;
    let mut budget = Budget::full();
    let mut outcomes = BTreeMap::new();
    for pdu in pdus {
        let (event_id, received) = match Box::pin(receiving.take(origin, &pdu, &mut budget)).await {
            Ok((event_id, received)) => (Some(event_id), received),
            Err(error) => (None, Err(error)),
        };
        count(&received.as_ref());
        let outcome = match received {
            Ok(ReceiveOutcome::Rejected(reason)) => Err(reason),
            Ok(_) => Ok(()),
            // The homeserver resends the whole transaction. The events before this one are known
            // then.
            Err(PduError::NotRecorded(error)) if error.is_for_now() => {
                debug!(%origin, ?event_id, %error, "a transaction is refused temporarily");
                return Err(error.into());
            }
            Err(error) => {
                debug!(%origin, ?event_id, %error, "an event is dropped");
                Err(error.to_string())
            }
        };
        // An event has no id here if it cannot be read or this homeserver does not know its room,
        // whose version determines the id.
        outcomes.extend(event_id.map(|event_id| (event_id, outcome)));
    }
    let is_presence = |place: usize| presence_places.contains(&place);
    for (_, edu) in edus.iter().enumerate().filter(|(place, _)| !is_presence(*place)) {
        receiving.take_edu(origin, edu.json()).await?;
    }
    let presence = edus.iter().enumerate().filter(|(place, _)| is_presence(*place));
    receiving.take_presences(origin, presence.map(|(_, edu)| edu.json())).await?;
    fetch_outdated_devices(&cx, origin);
    Ok(send_transaction_message::Response::new(outcomes))
}

/// Counts the outcome of an event.
fn count(received: &Result<&ReceiveOutcome, &PduError>) {
    let outcome = match received {
        Ok(ReceiveOutcome::Accepted) => PduOutcome::Accepted,
        Ok(ReceiveOutcome::Known | ReceiveOutcome::Outlier) => PduOutcome::Known,
        Ok(ReceiveOutcome::SoftFailed(_)) => PduOutcome::SoftFailed,
        Ok(ReceiveOutcome::Rejected(_)) | Err(PduError::Taken) => PduOutcome::Rejected,
        Ok(
            ReceiveOutcome::Missing { .. }
            | ReceiveOutcome::Unresolved
            | ReceiveOutcome::Disputed
            | ReceiveOutcome::Unprepared,
        )
        | Err(PduError::Missing) => PduOutcome::Missing,
        Err(PduError::Form(_) | PduError::OtherEvent | PduError::Version(_)) => PduOutcome::Form,
        Err(PduError::NoRoom | PduError::NotInRoom) => PduOutcome::Room,
        Err(PduError::AccessControl) => PduOutcome::AccessControl,
        Err(PduError::Key(_) | PduError::Late | PduError::Signatures(_) | PduError::Altered) => {
            PduOutcome::Signature
        }
        Err(PduError::NotRecorded(_)) => PduOutcome::Failed,
    };
    metrics().federation_pdus.of_value(outcome).inc();
}

/// Fetches the outdated device lists of `origin`'s users in the background, unless that is under
/// way.
fn fetch_outdated_devices(cx: &Cx<Server, Homeserver>, origin: &OwnedServerName) {
    let Some(federation) = &cx.app.outside.federation else { return };
    if cx.app.engine.state().device_lists.outdated(origin, 1).is_empty()
        || !federation.fetching_devices.lock().insert(origin.clone())
    {
        return;
    }
    let (app, origin) = (Arc::clone(&cx.app), origin.clone());
    tokio::spawn(async move {
        if let Ok(receiving) = app.receiving() {
            receiving.fetch_outdated(&origin).await;
        }
        if let Some(federation) = &app.outside.federation {
            federation.fetching_devices.lock().remove(&origin);
        }
    });
}
