//! matrix-rust-sdk, its room list and its encryption, made to do what a test says: see
//! `../README.md` for the protocol.

mod encryption;
mod oauth;

use std::{collections::HashMap, env, fs, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use eyeball_im::Vector;
use futures_util::{StreamExt as _, pin_mut};
use matrix_sdk::{
    Client, Room,
    authentication::matrix::MatrixSession,
    config::RequestConfig,
    encryption::verification::SasVerification,
    ruma::{
        OwnedRoomId, RoomId, UserId,
        api::client::{
            account::register::v3::Request as Register, room::create_room::v3::Request as Create,
            uiaa,
        },
        events::{
            InitialStateEvent,
            room::{encryption::RoomEncryptionEventContent, message::RoomMessageEventContent},
        },
    },
};
use matrix_sdk_ui::{
    room_list_service::{RoomListItem, State as ListState, filters::new_filter_non_left},
    sync_service::{State, SyncService},
    timeline::{RoomExt as _, Timeline, TimelineItem},
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};

const PASSWORD: &str = "a password that is long enough";

/// Tells the test something.
fn tell(line: &Value) {
    println!("{line}");
}

struct Driver {
    client: Client,
    sync: Option<Arc<SyncService>>,
    timelines: HashMap<OwnedRoomId, Arc<Timeline>>,
    /// Comparisons of emoji under way, by the id of their verification.
    comparisons: HashMap<String, SasVerification>,
    /// A login with a QR code under way.
    qr: Option<oauth::Qr>,
    /// Where everything is kept, if it is to be.
    store: Option<PathBuf>,
}

impl Driver {
    async fn new(address: &str, store: Option<PathBuf>) -> Result<Self> {
        let mut builder = Client::builder()
            .homeserver_url(address)
            .sliding_sync_version_builder(matrix_sdk::sliding_sync::VersionBuilder::DiscoverNative)
            // A server that restarts is to be met as it is, not waited for in here.
            .request_config(RequestConfig::new().retry_limit(1));
        if let Some(store) = &store {
            builder = builder.sqlite_store(store, None);
        }
        let client = builder.build().await?;
        let (timelines, comparisons) = (HashMap::new(), HashMap::new());
        Ok(Self { client, sync: None, timelines, comparisons, qr: None, store })
    }

    async fn run(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let text = |key: &str| {
            arguments[key].as_str().map(str::to_owned).ok_or_else(|| anyhow!("no `{key}`"))
        };
        match command {
            "register" => self.register(&text("user")?).await,
            "login" => {
                let auth = self.client.matrix_auth();
                auth.login_username(text("user")?, PASSWORD).send().await?;
                self.keep_session()?;
                self.who_am_i()
            }
            "restore" => {
                let kept = fs::read(self.session_file().context("there is no store")?)?;
                let session: MatrixSession = serde_json::from_slice(&kept)?;
                self.client.restore_session(session).await?;
                self.who_am_i()
            }
            "start" => self.start().await,
            "create_room" => self.create_room(&text("name")?, arguments).await,
            "join" => {
                self.client.join_room_by_id(&RoomId::parse(text("room_id")?)?).await?;
                Ok(json!({}))
            }
            "leave" => {
                self.room(&text("room_id")?)?.leave().await?;
                Ok(json!({}))
            }
            "send" => {
                let content = RoomMessageEventContent::text_plain(text("body")?);
                let sent = self.room(&text("room_id")?)?.send(content).await?;
                Ok(json!({ "event_id": sent.response.event_id }))
            }
            "room_named" => {
                let name = text("name")?;
                let mut rooms = self.client.rooms().into_iter();
                let room = rooms.find(|room| room.name().as_deref() == Some(&*name));
                Ok(json!({ "room_id": room.context("no such room")?.room_id() }))
            }
            "subscribe" => self.subscribe(&text("room_id")?).await,
            "page_back" => self.page_back(&text("room_id")?).await,
            "pause" | "stop" => {
                if let Some(sync) = &self.sync {
                    sync.stop().await;
                }
                Ok(json!({}))
            }
            "resume" => {
                self.sync.as_ref().context("not started")?.start().await;
                Ok(json!({}))
            }
            "oauth_begin" | "oauth_finish" | "oauth_refresh" | "account" | "qr_show"
            | "qr_scan" | "qr_enter" | "qr_next" | "knows_secrets" => {
                self.run_oauth(command, arguments).await
            }
            other => self.run_encryption(other, arguments).await,
        }
    }

    fn room(&self, room_id: &str) -> Result<Room> {
        let room_id = RoomId::parse(room_id)?;
        self.client.get_room(&room_id).context("the client does not know this room")
    }

    /// The SDK leaves it to the program to keep the tokens.
    fn session_file(&self) -> Option<PathBuf> {
        self.store.as_ref().map(|store| store.join("session.json"))
    }

    fn keep_session(&self) -> Result<()> {
        let Some(file) = self.session_file() else { return Ok(()) };
        let session = self.client.matrix_auth().session().context("not logged in")?;
        Ok(fs::write(file, serde_json::to_vec(&session)?)?)
    }

    fn who_am_i(&self) -> Result<Value> {
        let user_id = self.client.user_id().context("not logged in")?;
        Ok(json!({ "user_id": user_id, "device_id": self.client.device_id() }))
    }

    async fn register(&self, user: &str) -> Result<Value> {
        let mut request = Register::new();
        request.username = Some(user.to_owned());
        request.password = Some(PASSWORD.to_owned());
        request.auth = Some(uiaa::AuthData::Dummy(uiaa::Dummy::new()));
        self.client.matrix_auth().register(request).await?;
        self.keep_session()?;
        self.who_am_i()
    }

    async fn create_room(&self, name: &str, arguments: &Value) -> Result<Value> {
        let mut request = Create::new();
        request.name = Some(name.to_owned());
        let invited = arguments["invite"].as_array().into_iter().flatten();
        request.invite = invited
            .map(|id| Ok(UserId::parse(id.as_str().unwrap_or_default())?))
            .collect::<Result<_>>()?;
        request.is_direct = request.invite.len() == 1;
        if arguments["encrypted"] == true {
            let content = RoomEncryptionEventContent::with_recommended_defaults();
            let event = InitialStateEvent::with_empty_state_key(content);
            request.initial_state.push(event.to_raw_any());
        }
        let room = self.client.create_room(request).await?;
        Ok(json!({ "room_id": room.room_id() }))
    }

    /// Starts to sync, and tells the rooms of the list whenever they change, in its order.
    async fn start(&mut self) -> Result<Value> {
        let sync = Arc::new(SyncService::builder(self.client.clone()).build().await?);
        let rooms = sync.room_list_service();
        tokio::spawn(async move {
            let rooms = match rooms.all_rooms().await {
                Ok(rooms) => rooms,
                Err(error) => {
                    return tell(&json!({ "event": "no_rooms", "error": error.to_string() }));
                }
            };
            let (changes, controller) = rooms.entries_with_dynamic_adapters(100);
            controller.set_filter(Box::new(new_filter_non_left()));
            pin_mut!(changes);
            let mut shown: Vector<RoomListItem> = Vector::new();
            let mut told = Value::Null;
            while let Some(changes) = changes.next().await {
                for change in changes {
                    change.apply(&mut shown);
                }
                let rooms: Vec<Value> = shown.iter().map(|room| {
                    let name = room.cached_display_name().map(|name| name.to_string());
                    json!({ "name": name, "state": format!("{:?}", room.state()).to_lowercase() })
                }).collect();
                let rooms = Value::from(rooms);
                if rooms != told {
                    tell(&json!({ "event": "rooms", "rooms": &rooms }));
                    told = rooms;
                }
            }
        });
        let syncing = Arc::clone(&sync);
        let mut states = sync.state();
        tokio::spawn(async move {
            while let Some(state) = states.next().await {
                if let State::Error(error) = state {
                    let error = format!("{error:?}");
                    let unknown_pos = error.contains("UnknownPos");
                    tell(&json!({
                        "event": "sync_error", "unknown_pos": unknown_pos, "error": error,
                    }));
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    syncing.start().await;
                }
            }
        });
        let mut begun = sync.room_list_service().state();
        sync.start().await;
        // Answered when the first sync is over.
        while matches!(begun.get(), ListState::Init | ListState::Error { .. }) {
            begun.next().await.context("the room list ended")?;
        }
        self.sync = Some(sync);
        Ok(json!({}))
    }

    /// Subscribes to a room and tells the texts of its timeline whenever they change.
    async fn subscribe(&mut self, room_id: &str) -> Result<Value> {
        let room = self.room(room_id)?;
        let sync = self.sync.as_ref().context("not started")?;
        sync.room_list_service().subscribe_to_rooms(&[room.room_id()]).await;
        let timeline = Arc::new(room.timeline().await?);
        let (mut items, mut changes) = timeline.subscribe().await;
        let id = room.room_id().to_owned();
        let tell_all = move |items: &Vector<Arc<TimelineItem>>| {
            tell(&json!({ "event": "timeline", "room_id": id, "bodies": bodies(items) }));
        };
        tell_all(&items);
        tokio::spawn(async move {
            while let Some(changes) = changes.next().await {
                for change in changes {
                    change.apply(&mut items);
                }
                tell_all(&items);
            }
        });
        self.timelines.insert(room.room_id().to_owned(), timeline);
        Ok(json!({}))
    }

    /// Pages back to the beginning of a room that was subscribed to.
    async fn page_back(&self, room_id: &str) -> Result<Value> {
        let timeline = self.timelines.get(&RoomId::parse(room_id)?).context("not subscribed")?;
        while !timeline.paginate_backwards(20).await? {}
        Ok(json!({ "bodies": bodies(&timeline.items().await) }))
    }
}

/// The texts of the messages of a timeline.
fn bodies(items: &Vector<Arc<TimelineItem>>) -> Vec<String> {
    let messages = items.iter().filter_map(|item| item.as_event()?.content().as_message());
    messages.map(|message| message.body().to_owned()).collect()
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let address = env::args().nth(1).context("the first argument is the server's address")?;
    let mut driver = Driver::new(&address, env::args_os().nth(2).map(PathBuf::from)).await?;
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let arguments: Value = serde_json::from_str(&line)?;
        let command = arguments["do"].as_str().unwrap_or_default();
        let answer = match driver.run(command, &arguments).await {
            Ok(answer) => json!({ "id": arguments["id"], "ok": answer }),
            Err(error) => {
                let error = json!({ "errcode": null, "error": format!("{error:?}") });
                json!({ "id": arguments["id"], "error": error })
            }
        };
        tell(&answer);
        if command == "stop" {
            break;
        }
    }
    Ok(())
}
