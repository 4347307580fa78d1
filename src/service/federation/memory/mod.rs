//! What federation keeps in memory: how much each homeserver has used of what it may, and which
//! work waits for its turn.

mod device_changes;
mod entries;
mod gaps;
mod origin_limits;
mod rates;
mod site;
mod unplaced;

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;
use ruma::{OwnedServerName, OwnedUserId};
use tokio::sync::Semaphore;

pub(crate) use device_changes::{DeviceChanges, Fetch};
pub(crate) use entries::Entries;
pub(crate) use gaps::{GapFilling, GapMemory};
pub use origin_limits::{Amounts, Kind, OriginLimits, OriginUsage};
pub(crate) use rates::{EphemeralRates, Knocks};
pub use site::Site;
pub(crate) use unplaced::{Trial, UnplacedEvents};

use logcabin_base::{
    bodies::BodyBudget, fair_queue::FairQueue, keyed_semaphore::KeyedSemaphore, limits,
};
use logcabin_config::Config;
use logcabin_engine::{Engine, EventSigner};
use logcabin_outside::federation::{FederationClient, KeyRing, PolicyServers, Sender};
use logcabin_read::policy_lists::Subject;
use logcabin_record::command::PolicyArea;

/// The parts of federation that live as long as the server. There are none while it is off.
pub struct Federation {
    /// Requests to other homeservers.
    pub client: Arc<FederationClient>,
    pub keys: Arc<KeyRing>,
    /// Held while a large batch of events is verified.
    pub(crate) verifying: tokio::sync::Mutex<()>,
    /// Delivers events and EDUs to them.
    pub sender: Arc<Sender>,
    /// Rooms that are being entered.
    pub(crate) entries: Entries,
    /// Gaps in rooms' histories that are being filled.
    pub(crate) gaps: GapFilling,
    /// Policy servers, which sign events of their rooms.
    pub(crate) policy: Arc<PolicyServers>,
    /// The homeservers whose users' devices are being fetched.
    pub fetching_devices: Mutex<HashSet<OwnedServerName>>,
    /// The rate at which their users' devices change.
    pub(crate) device_changes: Arc<DeviceChanges>,
    /// Places for key queries, in all and by user: a user who queries unresponsive homeservers does
    /// not block others.
    pub(crate) key_answers: Semaphore,
    pub(crate) key_askers: Arc<KeyedSemaphore<OwnedUserId>>,
    /// Places for fetches of device lists, for which no user waits.
    pub(crate) device_fetches: Semaphore,
    /// The rates of their typing, receipts and presence.
    pub(crate) ephemeral_rates: EphemeralRates,
    /// How much they may have this server accept.
    pub accounts: OriginLimits,
    /// How often they may knock on rooms.
    pub(crate) knocks: Knocks,
    /// Events that could not be placed when they arrived.
    pub(crate) unplaced: Arc<UnplacedEvents>,
    /// Events that wait until a state is resolved, each in its turn.
    pub resolving: Arc<FairQueue>,
    pub has_presence: bool,
}

impl Federation {
    pub fn new(
        config: &Config,
        engine: &Arc<Engine>,
        bodies: &Arc<BodyBudget>,
    ) -> Result<Self, String> {
        let accounts = OriginLimits::new(engine, config.rate_limits.enabled);
        let (outbound, has_presence) = (&config.outbound, config.presence.enabled);
        let (config, own) = (&config.federation, Arc::clone(&engine.env().server));
        let client = Arc::new(FederationClient::new(config, outbound, own, bodies)?);
        let lists = Arc::clone(engine);
        client.bar(Box::new(move |server| {
            let subject = Subject::of_server(server);
            lists.refused_by_policy(PolicyArea::Federation, subject).is_some()
        }));
        let keys = KeyRing::new(Arc::clone(&client), Arc::clone(engine), &config.notaries);
        let keys = Arc::new(keys);
        let sender = Arc::new(Sender::new(engine, &client));
        let policy = Arc::new(PolicyServers::new(&client));
        engine.set_event_signer(Arc::clone(&policy) as Arc<dyn EventSigner>);
        Ok(Self {
            client,
            keys,
            verifying: tokio::sync::Mutex::default(),
            sender,
            entries: Entries::default(),
            gaps: GapFilling::default(),
            policy,
            fetching_devices: Mutex::default(),
            device_changes: Arc::default(),
            key_answers: Semaphore::new(limits::REMOTE_KEYS_IN_ALL),
            key_askers: Arc::new(KeyedSemaphore::new(limits::REMOTE_KEYS_BY_ONE)),
            device_fetches: Semaphore::new(limits::DEVICE_LISTS_IN_ALL),
            ephemeral_rates: EphemeralRates::default(),
            accounts,
            knocks: Knocks::default(),
            unplaced: Arc::default(),
            resolving: FairQueue::on_half(),
            has_presence,
        })
    }
}
