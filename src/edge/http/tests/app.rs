//! A program of a few endpoints.

use std::time::Duration;

use futures_util::stream;
use ruma::{
    api::{
        auth_scheme::NoAccessToken,
        client::{
            account::whoami,
            alias::get_alias,
            authenticated_media::get_content_as_filename,
            discovery::get_supported_versions,
            media::create_content,
            membership::join_room_by_id,
            message::send_message_event,
            push::get_pushrules_all,
            session::login,
            state::{get_state_event_for_key, send_state_event},
        },
    },
    owned_device_id, owned_event_id, owned_user_id,
};
use tokio::sync::Semaphore;

use crate::http::*;
use logcabin_base::long_work::WorkPermit;
use logcabin_record::Offset;

pub(super) struct Fake;

impl App for Fake {
    fn authenticate<'a>(
        &'a self,
        token: &'a str,
        _: &'a http::Uri,
    ) -> BoxFuture<'a, Result<Session, ApiError>> {
        Box::pin(async move {
            match token {
                "good" => Ok(Session {
                    user_id: owned_user_id!("@ann:example.org"),
                    device_id: owned_device_id!("DEV"),
                    session: Offset::new(7),
                    service: None,
                }),
                "old" => Err(ApiError::unknown_token(true)),
                _ => Err(ApiError::unknown_token(false)),
            }
        })
    }

    /// Somebody else's.
    fn turn<'a>(
        &'a self,
        _: &'a CallerIdentity,
        _: IpAddr,
    ) -> BoxFuture<'a, Result<Option<WorkPermit>, ApiError>> {
        Box::pin(async { Err(ApiError::limit_exceeded(Duration::from_secs(1))) })
    }

    fn admit(&self, _: &Session, open_to: OpenTo) -> Result<(), ApiError> {
        // The user of these tests is a guest.
        if open_to.guests {
            Ok(())
        } else {
            Err(ApiError::new(ErrorCode::GuestAccessForbidden, "Not for guests."))
        }
    }
}

async fn versions(
    _: Cx<Fake, Option<Session>>,
    _: get_supported_versions::Request,
) -> Result<get_supported_versions::Response, ApiError> {
    Ok(get_supported_versions::Response::new(vec!["v1.1".into()]))
}

pub(super) async fn who(
    cx: Cx<Fake>,
    _: whoami::v3::Request,
) -> Result<whoami::v3::Response, ApiError> {
    assert_eq!(&*cx.origin().user, "@ann:example.org");
    assert_eq!(&*cx.origin().device, "DEV");
    assert!(!cx.origin().request.is_empty());
    Ok(whoami::v3::Response::new(cx.caller.user_id, false))
}

async fn join(
    cx: Cx<Fake>,
    request: join_room_by_id::v3::Request,
) -> Result<join_room_by_id::v3::Response, ApiError> {
    assert!(cx.body.starts_with(b"{"));
    Ok(join_room_by_id::v3::Response::new(request.room_id))
}

async fn sign_in(
    _: Cx<Fake, Option<Appservice>>,
    _: login::v3::Request,
) -> Result<login::v3::Response, ApiError> {
    Err(ApiError::forbidden("Wrong password."))
}

pub(super) async fn put_state(
    _: Cx<Fake>,
    request: send_state_event::v3::Request,
) -> Result<Json, ApiError> {
    Ok(format!("{{\"key\":{:?}}}", request.state_key).into())
}

async fn get_state(
    _: Cx<Fake>,
    request: get_state_event_for_key::v3::Request,
) -> Result<Json, ApiError> {
    Ok(format!("{{\"type\":{:?},\"key\":{:?}}}", request.event_type.to_string(), request.state_key)
        .into())
}

async fn alias(_: Cx<Fake, ()>, request: get_alias::v3::Request) -> Result<Json, ApiError> {
    Ok(format!("{{\"alias\":{:?}}}", request.room_alias.as_str()).into())
}

async fn pushrules(_: Cx<Fake>, _: get_pushrules_all::v3::Request) -> Result<Json, ApiError> {
    Ok("{}".into())
}

/// Sleeps for as long as the transaction id says, or until the server goes down or needs the place.
async fn send(
    cx: Cx<Fake>,
    request: send_message_event::v3::Request,
) -> Result<send_message_event::v3::Response, ApiError> {
    match request.txn_id.as_str() {
        "poll" => cx.shutdown.given().await,
        "news" => {
            NEWS_BEGUN.add_permits(1);
            cx.hurry.notified().await;
        }
        "held" => {
            HELD_BEGUN.add_permits(1);
            tokio::time::sleep(Duration::from_secs(59)).await;
        }
        "awaited" => {
            NEWS_AWAITED.add_permits(1);
            cx.hurry.notified().await;
        }
        "panic" => panic!("a handler panics, as a test"),
        millis => {
            tokio::time::sleep(Duration::from_millis(millis.parse().unwrap_or(0))).await;
        }
    }
    Ok(send_message_event::v3::Response::new(owned_event_id!("$e")))
}

async fn upload(
    _: Cx<Fake>,
    Upload { request, file: mut incoming }: Upload<create_content::v3::Request>,
) -> Result<Json, ApiError> {
    assert!(request.file.is_empty());
    let mut length = 0;
    loop {
        match incoming.next().await {
            Ok(Some(piece)) => length += piece.len(),
            Ok(None) => break,
            Err(error) => {
                incoming.drain().await;
                return Err(error);
            }
        }
    }
    Ok(format!("{{\"content_uri\":\"mxc://x/{length}\"}}").into())
}

endpoint! {
    struct Page = GET "/page/{a}/x/{b}";
    for NoAccessToken;
    { a: String = path, b: String = path }
}

endpoint! {
    struct Long = GET "/long/{length}";
    for NoAccessToken;
    { length: String = path }
}

endpoint! {
    struct Wait = GET "/wait/{millis}";
    for NoAccessToken;
    { millis: String = path }
}

endpoint! {
    struct WaitAndSend = POST "/wait/{millis}";
    for NoAccessToken;
    body Body::Bytes;
    { millis: String = path }
}

async fn download(_: Cx<Fake, ()>, request: Page) -> Result<Reply, ApiError> {
    let parts = [request.a, request.b].into_iter().map(|part| Ok(Bytes::from(part + ";")));
    Ok(Reply::stream("text/plain", stream::iter(parts)))
}

/// JSON of as many bytes as the path says.
async fn long(_: Cx<Fake, ()>, request: Long) -> Result<Reply, ApiError> {
    let length: usize = request.length.parse().unwrap();
    Ok(Reply::json(format!("\"{}\"", "x".repeat(length - 2))))
}

/// Waits for as many milliseconds as the path says, or until the server goes down; then says what
/// it was sent.
async fn wait(cx: Cx<Fake, ()>, request: Wait) -> Result<Reply, ApiError> {
    wait_for(&cx, &request.millis).await
}

async fn wait_and_send(cx: Cx<Fake, ()>, request: WaitAndSend) -> Result<Reply, ApiError> {
    wait_for(&cx, &request.millis).await
}

async fn wait_for(cx: &Cx<Fake, ()>, millis: &str) -> Result<Reply, ApiError> {
    struct Waiting;
    impl Drop for Waiting {
        fn drop(&mut self) {
            WAIT_ENDED.notify_one();
        }
    }
    let length = millis.parse().unwrap();
    let _waiting = (length == 60_000).then_some(Waiting);
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(length)) => {}
        () = cx.shutdown.given() => {}
    }
    Ok(Reply::json(format!("{{\"waited\":{length},\"sent\":{}}}", cx.body.len())))
}

/// Each has a permit for each request that began to wait: as "held" without news, and as "news" or
/// "awaited" for news.
pub(super) static HELD_BEGUN: Semaphore = Semaphore::const_new(0);
pub(super) static NEWS_BEGUN: Semaphore = Semaphore::const_new(0);
pub(super) static NEWS_AWAITED: Semaphore = Semaphore::const_new(0);

/// Notified when a wait of a minute ended or was given up.
pub(super) static WAIT_ENDED: Notify = Notify::const_new();

async fn typed_download(
    _: Cx<Fake>,
    _: get_content_as_filename::v1::Request,
) -> Result<get_content_as_filename::v1::Response, ApiError> {
    Err(ApiError::not_found("No such file."))
}

pub(super) fn table() -> Table<Fake> {
    let open = |class| limited(class).guests();
    Table::new(&["/_svc", "/_matrix"])
        .on(versions, cheap().guests())
        .on(who, open(Class::Other))
        .on(join, open(Class::Joins).body_optional())
        .on(sign_in, open(Class::Login))
        .on(send, open(Class::Messages))
        .on(typed_download, open(Class::Media))
        .on(put_state, open(Class::Messages))
        .on(get_state, cheap().guests())
        .on(alias, cheap().guests())
        .on(pushrules, open(Class::Other))
        .on(upload, open(Class::Media))
        .on(download, cheap().guests())
        .on(long, cheap().guests())
        .on(wait, cheap().guests())
        .on(wait_and_send, unlimited("a test sends many").guests())
}
