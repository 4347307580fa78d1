//! The application services' own users, and the delivery of events to the services.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;

use logcabin_base::shutdown::Shutdown;
use logcabin_decide::account::Register;
use logcabin_engine::{Engine, ProposeError};
use logcabin_outside::{
    appservice::{QueryClient, Services, Transactions},
    delivery,
};
use logcabin_record::Origin;

/// Creates the services' own users that do not exist yet.
pub async fn register_senders(engine: &Engine, services: &Services) -> Result<(), ProposeError> {
    for service in services.iter() {
        let user_id = service.sender.clone();
        if engine.state().accounts.contains(&user_id) {
            continue;
        }
        let register = Register {
            display_name: Some(user_id.localpart().to_owned()),
            ..Register::user(user_id)
        };
        engine.propose(Origin::server(), register).await?.into_inner();
    }
    Ok(())
}

/// Delivers events to the services, until the server shuts down.
pub async fn deliver(
    engine: &Arc<Engine>,
    services: &Services,
    appservice_queries: &Arc<QueryClient>,
    timeout: Duration,
    shutdown: &Shutdown,
) {
    let mut deliveries = JoinSet::new();
    for service in services.iter().filter(|service| service.url.is_some()) {
        let push = Transactions::new(service, engine, appservice_queries, timeout);
        deliveries.spawn(delivery::keep(push, Arc::clone(engine), shutdown.clone()));
    }
    while deliveries.join_next().await.is_some() {}
}
