//! Transactions: deliveries to a service (application service API, "Pushing events").

use std::{sync::Arc, time::Duration};

use http::{Method, StatusCode};
use tokio::sync::Notify;

use super::{
    QueryClient, Service,
    interest::{Interest, ServiceContent},
    query::Request,
    transaction::{self, Parcel},
};
use crate::delivery::{DeliveryFailure, Receiver};
use logcabin_base::{limits, text::beginning};
use logcabin_decide::to_device::Acknowledge;
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_record::{Offset, Origin, Record};

/// Delivers to one service.
pub struct Transactions {
    name: String,
    service: Arc<Service>,
    interest: Interest,
    engine: Arc<Engine>,
    appservice_queries: Arc<QueryClient>,
    timeout: Duration,
    is_back: Arc<Notify>,
}

impl Transactions {
    /// For this service, with this timeout.
    pub fn new(
        service: &Arc<Service>,
        engine: &Arc<Engine>,
        appservice_queries: &Arc<QueryClient>,
        timeout: Duration,
    ) -> Self {
        Self {
            name: format!("appservice/{}", service.id),
            service: Arc::clone(service),
            interest: Interest::of(Arc::clone(service)),
            engine: Arc::clone(engine),
            appservice_queries: Arc::clone(appservice_queries),
            timeout,
            is_back: appservice_queries.is_back(service),
        }
    }
}

impl Receiver for Transactions {
    type Content = ServiceContent;
    type Parcel = Parcel;

    const TRACED_AS: &'static str = "transaction";

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self, record: &Record, found: &mut ServiceContent) -> Result<bool, ReadError> {
        self.interest.read(&self.engine.state(), record, found)
    }

    fn is_empty(found: &ServiceContent) -> bool {
        found.is_empty()
    }

    fn is_full(found: &ServiceContent) -> bool {
        found.is_full()
    }

    fn restart(&mut self) {
        self.interest.restart();
    }

    fn pack(&self, found: ServiceContent, up_to: Offset) -> Result<Parcel, ReadError> {
        let now_ms = self.engine.clock().now_ms();
        transaction::pack(&self.engine.env(), &self.service, found, up_to, now_ms)
    }

    async fn hand_over(&self, id: &str, parcel: &Parcel) -> Result<(), DeliveryFailure> {
        let request = Request {
            method: Method::PUT,
            path: &["transactions", id],
            query: &[],
            body: parcel.body.clone(),
            timeout: self.timeout,
        };
        let answer = self.appservice_queries.ask(&self.service, request).await;
        let answer = answer.map_err(|error| DeliveryFailure::Failed(error.to_string()))?;
        if matches!(answer.status, StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE) {
            let said = String::from_utf8_lossy(&answer.body);
            let said = beginning(&said, limits::SET_ASIDE_REASON_BYTES).to_owned();
            return Err(DeliveryFailure::Refused(answer.status.as_u16(), said));
        }
        if !answer.status.is_success() {
            return Err(DeliveryFailure::Failed(format!("it answers {}", answer.status)));
        }
        if self.service.encryption {
            self.acknowledge(parcel).await;
        }
        Ok(())
    }

    fn is_back(&self) -> &Notify {
        &self.is_back
    }
}

impl Transactions {
    /// Marks messages as received by the service's devices. Only for a service that receives them
    /// this way: other services' devices sync.
    async fn acknowledge(&self, parcel: &Parcel) {
        for (user_id, device_id, up_to) in parcel.received.clone() {
            let acknowledge = Acknowledge { user_id, device_id, up_to };
            if let Err(error) = self.engine.propose(Origin::server(), acknowledge).await {
                tracing::warn!(%error, "messages to a device could not be marked as received");
            }
        }
    }
}
