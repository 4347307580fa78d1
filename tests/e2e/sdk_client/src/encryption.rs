//! The commands about encryption: the second table of `../README.md`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use matrix_sdk::{
    deserialized_responses::TimelineEventKind,
    encryption::verification::{
        SasState, SasVerification, Verification, VerificationRequest, VerificationRequestState,
    },
    ruma::{
        RoomId, UserId,
        api::client::uiaa::{AuthData, MatrixUserIdentifier, Password, UserIdentifier},
        events::{
            key::verification::VerificationMethod, room::encrypted::OriginalSyncRoomEncryptedEvent,
        },
        serde::Raw,
    },
};
use matrix_sdk_ui::sync_service::SyncService;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{Driver, PASSWORD};

/// How long anything that others have to do is waited for.
const PATIENCE: Duration = Duration::from_secs(50);

/// Waits until `holds` gives something, and gives that.
async fn until<T>(what: &str, mut holds: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = holds().await? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("in vain: {what}");
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Makes the SDK send what follows from a room's events. It does that only together with its next
/// request for messages to devices, so that each step of a verification in a room would take half a
/// minute.
struct Nudge<'a> {
    sync: &'a SyncService,
    last: Instant,
}

impl<'a> Nudge<'a> {
    fn new(sync: &'a SyncService) -> Self {
        Self { sync, last: Instant::now() }
    }

    async fn now_and_then(&mut self) {
        if self.last.elapsed() > Duration::from_secs(1) {
            self.sync.stop().await;
            self.sync.start().await;
            self.last = Instant::now();
        }
    }
}

impl Driver {
    pub(crate) async fn run_encryption(
        &mut self,
        command: &str,
        arguments: &Value,
    ) -> Result<Value> {
        let text = |key: &str| arguments[key].as_str().ok_or_else(|| anyhow!("no `{key}`"));
        let user = || Ok::<_, anyhow::Error>(UserId::parse(text("user_id")?)?);
        let encryption = self.client.encryption();
        let sync = self.sync.as_ref().context("not started")?;
        match command {
            "cross_sign" => {
                if let Err(error) = encryption.bootstrap_cross_signing(None).await {
                    let asked = error.as_uiaa_response().context("no cross-signing")?;
                    let password = self.password(asked.session.clone())?;
                    encryption.bootstrap_cross_signing(Some(password)).await?;
                }
                Ok(json!({}))
            }
            "knows" => self.knows(&user()?).await,
            "verify" => self.verify(&user()?, arguments).await,
            "accept" => {
                let (user_id, flow_id) = (user()?, text("flow_id")?);
                let request = until("the request arrives", async || {
                    Ok(encryption.get_verification_request(&user_id, flow_id).await)
                });
                let methods = vec![VerificationMethod::SasV1];
                request.await?.accept_with_methods(methods).await?;
                Ok(json!({}))
            }
            "emoji" => {
                let (user_id, flow_id) = (user()?, text("flow_id")?);
                let request = encryption.get_verification_request(&user_id, flow_id).await;
                let (comparison, emoji) =
                    compare(&request.context("no such request")?, sync).await?;
                self.comparisons.insert(flow_id.to_owned(), comparison);
                Ok(json!({ "emoji": emoji }))
            }
            "confirm" => {
                let comparison = self.comparisons.get(text("flow_id")?).context("no emoji")?;
                match arguments["same"].as_bool() {
                    Some(true) => comparison.confirm().await?,
                    Some(false) => comparison.mismatch().await?,
                    None => (),
                }
                let mut nudge = Nudge::new(sync);
                until("the other confirms or cancels", async || {
                    nudge.now_and_then().await;
                    Ok((comparison.is_done() || comparison.is_cancelled()).then_some(()))
                })
                .await?;
                Ok(json!({ "verified": comparison.is_done() }))
            }
            "read" => self.read(text("room_id")?, text("event_id")?).await,
            "decrypt" => self.decrypt(&arguments["event"]).await,
            "rotate" => {
                self.room(text("room_id")?)?.discard_room_key().await?;
                Ok(json!({}))
            }
            "back_up" => {
                let key = encryption.recovery().enable().wait_for_backups_to_upload().await?;
                Ok(json!({ "recovery_key": key }))
            }
            "recover" => {
                // Signs this device, too.
                encryption.recovery().recover(text("recovery_key")?).await?;
                for room in self.client.joined_rooms() {
                    encryption.backups().download_room_keys_for_room(room.room_id()).await?;
                }
                Ok(json!({}))
            }
            "delete_device" => {
                let devices = [text("device_id")?.into()];
                let asked = match self.client.delete_devices(&devices, None).await {
                    Ok(_) => bail!("the server asked for no authentication"),
                    Err(error) => error,
                };
                let asked = asked.as_uiaa_response().context("not deleted")?;
                let password = self.password(asked.session.clone())?;
                self.client.delete_devices(&devices, Some(password)).await?;
                Ok(json!({}))
            }
            other => Err(anyhow!("no command `{other}`")),
        }
    }

    /// The user's password, as a stage of user-interactive authentication.
    fn password(&self, session: Option<String>) -> Result<AuthData> {
        let user_id = self.client.user_id().context("not logged in")?;
        let user = UserIdentifier::Matrix(MatrixUserIdentifier::new(user_id.to_string()));
        let mut password = Password::new(user, PASSWORD.to_owned());
        password.session = session;
        Ok(AuthData::Password(password))
    }

    async fn knows(&self, user_id: &UserId) -> Result<Value> {
        let encryption = self.client.encryption();
        let devices = encryption.get_user_devices(user_id).await?;
        let devices = devices.devices().map(|device| {
            let status = json!({
                "signed": device.is_cross_signed_by_owner(),
                "verified": device.is_verified_with_cross_signing(),
            });
            (device.device_id().to_string(), status)
        });
        let devices: serde_json::Map<_, _> = devices.collect();
        let identity = encryption.get_user_identity(user_id).await?;
        let verified = identity.is_some_and(|identity| identity.is_verified());
        Ok(json!({ "verified": verified, "devices": devices }))
    }

    async fn verify(&self, user_id: &UserId, arguments: &Value) -> Result<Value> {
        let encryption = self.client.encryption();
        let methods = vec![VerificationMethod::SasV1];
        let request = if let Some(room_id) = arguments["room_id"].as_str() {
            // The SDK asks in the direct chat with the other, so this room has to be that.
            let room_id = RoomId::parse(room_id)?;
            let is_direct = || {
                let room = self.client.get_dm_room(user_id);
                room.is_some_and(|room| room.room_id() == room_id)
            };
            if !is_direct() {
                self.room(room_id.as_str())?.set_is_direct(true).await?;
            }
            until("the room is a direct chat", async || Ok(is_direct().then_some(()))).await?;
            let identity = encryption.get_user_identity(user_id).await?;
            let identity = identity.context("the other has no identity")?;
            identity.request_verification_with_methods(methods).await?
        } else {
            let device_id = arguments["device_id"].as_str().context("no `device_id`")?;
            let device = encryption.get_device(user_id, device_id.into()).await?;
            let device = device.context("no such device")?;
            device.request_verification_with_methods(methods).await?
        };
        Ok(json!({ "flow_id": request.flow_id() }))
    }

    /// The text of an event of a room's timeline; the room is subscribed to when it is first read.
    async fn read(&mut self, room_id: &str, event_id: &str) -> Result<Value> {
        let room_id = RoomId::parse(room_id)?;
        // A room that the sync has not brought yet.
        if self.client.get_room(&room_id).is_none() {
            return Ok(json!({ "body": null }));
        }
        if !self.timelines.contains_key(&room_id) {
            self.subscribe(room_id.as_str()).await?;
        }
        let timeline = self.timelines.get(&room_id).context("not subscribed")?;
        let items = timeline.items().await;
        let events = items.iter().filter_map(|item| item.as_event());
        let found = events.filter(|event| event.event_id().is_some_and(|id| id == event_id)).last();
        let message = found.and_then(|event| event.content().as_message());
        Ok(json!({ "body": message.map(|message| message.body()) }))
    }

    /// The text of an event as the server gave it, if the keys that this device has can decrypt it.
    async fn decrypt(&self, event: &Value) -> Result<Value> {
        let room = self.room(event["room_id"].as_str().context("no `room_id`")?)?;
        let raw: Raw<OriginalSyncRoomEncryptedEvent> = Raw::from_json_string(event.to_string())?;
        let body = match room.decrypt_event(&raw, None).await?.kind {
            TimelineEventKind::Decrypted(event) => {
                event.event.deserialize_as_unchecked::<Value>()?["content"]["body"].clone()
            }
            TimelineEventKind::UnableToDecrypt { .. } | TimelineEventKind::PlainText { .. } => {
                Value::Null
            }
        };
        Ok(json!({ "body": body }))
    }
}

/// Begins to compare emoji, or goes along with the other's beginning; gives the emoji.
async fn compare(
    request: &VerificationRequest,
    sync: &SyncService,
) -> Result<(SasVerification, Vec<String>)> {
    let mut nudge = Nudge::new(sync);
    until("there are emoji", async || match request.state() {
        VerificationRequestState::Ready { .. } if request.we_started() => {
            request.start_sas().await?;
            Ok(None)
        }
        VerificationRequestState::Transitioned {
            verification: Verification::SasV1(sas), ..
        } => {
            match sas.state() {
                SasState::Started { .. } if !sas.we_started() => sas.accept().await?,
                SasState::Cancelled(why) => bail!("cancelled: {why:?}"),
                _ => nudge.now_and_then().await,
            }
            let emoji = sas.emoji().map(|emoji| {
                emoji.map(|one| format!("{} {}", one.symbol, one.description)).to_vec()
            });
            Ok(emoji.map(|emoji| (sas, emoji)))
        }
        VerificationRequestState::Cancelled(why) => bail!("cancelled: {why:?}"),
        _ => Ok(None),
    })
    .await
}
