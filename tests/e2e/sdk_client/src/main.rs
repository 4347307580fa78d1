//! matrix-rust-sdk and its room list, made to do what a test says: see `../README.md` for the protocol.

use std::{collections::HashMap, env, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use eyeball_im::Vector;
use futures_util::{StreamExt as _, pin_mut};
use matrix_sdk::{
    Client, Room,
    config::RequestConfig,
    ruma::{
        OwnedRoomId, RoomId,
        api::client::{
            account::register::v3::Request as Register, room::create_room::v3::Request as Create,
            uiaa,
        },
        events::room::message::RoomMessageEventContent,
    },
};
use matrix_sdk_ui::{
    RoomListService,
    room_list_service::{RoomListItem, filters::new_filter_non_left},
    timeline::{RoomExt as _, Timeline, TimelineItem},
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};

const PASSWORD: &str = "correct horse battery staple";

/// Tells the test something.
fn tell(line: &Value) {
    println!("{line}");
}

struct Driver {
    client: Client,
    list: Option<Arc<RoomListService>>,
    timelines: HashMap<OwnedRoomId, Arc<Timeline>>,
}

impl Driver {
    async fn new(address: &str) -> Result<Self> {
        let client = Client::builder()
            .homeserver_url(address)
            .sliding_sync_version_builder(matrix_sdk::sliding_sync::VersionBuilder::DiscoverNative)
            // A server that restarts is to be met as it is, not waited for in here.
            .request_config(RequestConfig::new().retry_limit(1))
            .build()
            .await?;
        Ok(Self { client, list: None, timelines: HashMap::new() })
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
                self.who_am_i()
            }
            "start" => self.start().await,
            "create_room" => {
                let mut request = Create::new();
                request.name = Some(text("name")?);
                let room = self.client.create_room(request).await?;
                Ok(json!({ "room_id": room.room_id() }))
            }
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
            "stop" => {
                if let Some(list) = &self.list {
                    list.stop_sync()?;
                }
                Ok(json!({}))
            }
            other => Err(anyhow!("no command `{other}`")),
        }
    }

    fn room(&self, room_id: &str) -> Result<Room> {
        let room_id = RoomId::parse(room_id)?;
        self.client.get_room(&room_id).context("the client does not know this room")
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
        self.who_am_i()
    }

    /// Starts the room list: it syncs, and tells its rooms whenever they change, in its order.
    async fn start(&mut self) -> Result<Value> {
        let list = Arc::new(RoomListService::new(self.client.clone()).await?);
        let rooms = list.all_rooms().await?;
        tokio::spawn(async move {
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
        let syncing = Arc::clone(&list);
        tokio::spawn(async move {
            loop {
                let sync = syncing.sync();
                pin_mut!(sync);
                while let Some(result) = sync.next().await {
                    if let Err(error) = result {
                        let error = format!("{error:?}");
                        let unknown_pos = error.contains("UnknownPos");
                        let line = json!({
                            "event": "sync_error", "unknown_pos": unknown_pos, "error": error,
                        });
                        tell(&line);
                        break;
                    }
                }
                if matches!(
                    syncing.state().get(),
                    matrix_sdk_ui::room_list_service::State::Terminated { .. }
                ) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        self.list = Some(list);
        Ok(json!({}))
    }

    /// Subscribes to a room and tells the texts of its timeline whenever they change.
    async fn subscribe(&mut self, room_id: &str) -> Result<Value> {
        let room = self.room(room_id)?;
        let list = self.list.as_ref().context("not started")?;
        list.subscribe_to_rooms(&[room.room_id()]).await;
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
    let address = env::args().nth(1).context("the only argument is the server's address")?;
    let mut driver = Driver::new(&address).await?;
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
