//! Administration over HTTP, in the form that existing tools speak it (`/_synapse/admin/…`): one
//! file for each of its sections. What is asked for is an [`Act`] like those of the command line,
//! and is done in the same place ([`Office`]); here are the words of the tools for it.
//!
//! Every endpoint that changes something takes `reason`, in the query or in the body, which is
//! recorded with it, and `?dry_run=true`, which has it say what it would come to and do nothing.

mod media;
mod notices;
mod reports;
mod rooms;
mod tokens;
mod users;

use std::sync::Arc;

use http::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{Server, json as to_json};
use crate::{
    edge::http::{Access, ApiError, Cx, ErrorCode, RawRequest, Reply, Session, Table},
    ops::admin::{Act, Done, office::ActError},
};

const GET: Method = Method::GET;
const PUT: Method = Method::PUT;
const POST: Method = Method::POST;
const DELETE: Method = Method::DELETE;
const REQUIRED: Access = Access::Required;

/// Things on one page when the tool does not say how many.
const PAGE: usize = 100;

/// The most on one page.
const LARGEST_PAGE: usize = 1000;

type Caller = Cx<Server, Option<Session>>;

/// Every endpoint of administration, section by section.
pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .raw_json(GET, "/_synapse/admin/v1/server_version", Access::None, server_version)
        // Users
        .raw_json(GET, "/_synapse/admin/v2/users", REQUIRED, users::list)
        .raw_json(GET, "/_synapse/admin/v3/users", REQUIRED, users::list_v3)
        .raw_json(GET, "/_synapse/admin/v2/users/{user_id}", REQUIRED, users::get)
        .raw_json(PUT, "/_synapse/admin/v2/users/{user_id}", REQUIRED, users::put)
        .raw_json(GET, "/_synapse/admin/v1/users/{user_id}/admin", REQUIRED, users::is_admin)
        .raw_json(PUT, "/_synapse/admin/v1/users/{user_id}/admin", REQUIRED, users::set_admin)
        .raw_json(POST, "/_synapse/admin/v1/deactivate/{user_id}", REQUIRED, users::deactivate)
        .raw_json(POST, "/_synapse/admin/v1/reset_password/{user_id}", REQUIRED, users::password)
        .raw_json(PUT, "/_synapse/admin/v1/suspend/{user_id}", REQUIRED, users::suspend)
        .raw_json(GET, "/_synapse/admin/v1/whois/{user_id}", REQUIRED, users::whois)
        .raw_json(POST, "/_synapse/admin/v1/users/{user_id}/login", REQUIRED, users::log_in)
        .raw_json(GET, users::JOINED_ROOMS, REQUIRED, users::joined_rooms)
        .raw_json(GET, "/_synapse/admin/v1/users/{user_id}/memberships", REQUIRED, users::parts)
        .raw_json(GET, "/_synapse/admin/v2/users/{user_id}/devices", REQUIRED, users::devices)
        .raw_json(GET, users::DEVICE, REQUIRED, users::device)
        .raw_json(PUT, users::DEVICE, REQUIRED, users::rename_device)
        .raw_json(DELETE, users::DEVICE, REQUIRED, users::delete_device)
        .raw_json(POST, users::DELETE_DEVICES, REQUIRED, users::delete_devices)
        .raw_json(GET, "/_synapse/admin/v1/username_available", REQUIRED, users::is_free)
        .raw_json(GET, users::BY_LINK, REQUIRED, users::by_link)
        .raw_json(GET, users::BY_THREEPID, REQUIRED, users::by_threepid)
        // Rooms
        .raw_json(GET, "/_synapse/admin/v1/rooms", REQUIRED, rooms::list)
        .raw_json(GET, "/_synapse/admin/v1/rooms/{room_id}", REQUIRED, rooms::get)
        .raw_json(GET, "/_synapse/admin/v1/rooms/{room_id}/members", REQUIRED, rooms::members)
        .raw_json(GET, "/_synapse/admin/v1/rooms/{room_id}/state", REQUIRED, rooms::state)
        .raw_json(GET, "/_synapse/admin/v1/rooms/{room_id}/messages", REQUIRED, rooms::messages)
        .raw_json(GET, "/_synapse/admin/v1/rooms/{room_id}/block", REQUIRED, rooms::is_blocked)
        .raw_json(PUT, "/_synapse/admin/v1/rooms/{room_id}/block", REQUIRED, rooms::block)
        .raw_json(DELETE, "/_synapse/admin/v1/rooms/{room_id}", REQUIRED, rooms::delete)
        .raw_json(DELETE, "/_synapse/admin/v2/rooms/{room_id}", REQUIRED, rooms::begin_delete)
        .raw_json(GET, rooms::STATUS_OF_ROOM, REQUIRED, rooms::status_of_room)
        .raw_json(GET, rooms::STATUS, REQUIRED, rooms::status)
        .raw_json(POST, rooms::MAKE_ADMIN, REQUIRED, rooms::make_admin)
        .raw_json(POST, "/_synapse/admin/v1/join/{room_id}", REQUIRED, rooms::join)
        // Registration tokens
        .raw_json(GET, "/_synapse/admin/v1/registration_tokens", REQUIRED, tokens::list)
        .raw_json(POST, "/_synapse/admin/v1/registration_tokens/new", REQUIRED, tokens::create)
        .raw_json(GET, tokens::ONE, REQUIRED, tokens::get)
        .raw_json(PUT, tokens::ONE, REQUIRED, tokens::update)
        .raw_json(DELETE, tokens::ONE, REQUIRED, tokens::delete)
        // Server notices
        .raw_json(POST, "/_synapse/admin/v1/send_server_notice", REQUIRED, notices::send)
        .raw_json(PUT, "/_synapse/admin/v1/send_server_notice/{txn_id}", REQUIRED, notices::send)
        // Media
        .raw_json(GET, media::ONE, REQUIRED, media::get)
        .raw_json(DELETE, media::ONE, REQUIRED, media::delete)
        .raw_json(POST, media::DELETE_OLD, REQUIRED, media::delete_old)
        .raw_json(DELETE, media::OF_USER, REQUIRED, media::delete_of_user)
        .raw_json(GET, "/_synapse/admin/v1/room/{room_id}/media", REQUIRED, media::of_room)
        .raw_json(GET, media::OF_USER, REQUIRED, media::of_user)
        .raw_json(POST, media::QUARANTINE, REQUIRED, media::quarantine)
        .raw_json(POST, media::UNQUARANTINE, REQUIRED, media::unquarantine)
        .raw_json(POST, media::QUARANTINE_ROOM, REQUIRED, media::quarantine_room)
        .raw_json(POST, media::QUARANTINE_USER, REQUIRED, media::quarantine_user)
        .raw_json(POST, "/_synapse/admin/v1/media/protect/{media_id}", REQUIRED, media::protect)
        .raw_json(POST, "/_synapse/admin/v1/media/unprotect/{media_id}", REQUIRED, media::unprotect)
        .raw_json(GET, "/_synapse/admin/v1/statistics/users/media", REQUIRED, media::statistics)
        // Reports
        .raw_json(GET, "/_synapse/admin/v1/event_reports", REQUIRED, reports::list)
        .raw_json(GET, "/_synapse/admin/v1/event_reports/{report_id}", REQUIRED, reports::get)
        .raw_json(DELETE, "/_synapse/admin/v1/event_reports/{report_id}", REQUIRED, reports::delete)
}

async fn server_version(_: Caller, _: RawRequest) -> Result<Reply, ApiError> {
    let version = concat!("logcabin ", env!("CARGO_PKG_VERSION"));
    reply(&json!({ "server_version": version }))
}

/// An administrator's request.
struct Desk {
    cx: Cx<Server>,
    args: Vec<String>,
    body: Map<String, Value>,
}

impl Desk {
    /// Of a caller who administers the server. Nobody else learns anything.
    fn open(cx: Caller, request: RawRequest) -> Result<Self, ApiError> {
        let cx = cx.with_session()?;
        cx.must_be_admin()?;
        let body = if cx.body.is_empty() { Map::new() } else { super::body(&cx.body)? };
        Ok(Self { cx, args: request.args, body })
    }

    /// A parameter of the path.
    fn arg(&self, index: usize) -> Result<&str, ApiError> {
        self.args.get(index).map(String::as_str).ok_or_else(ApiError::no_such_endpoint)
    }

    /// A member of the body; none if it is missing or null.
    fn field<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ApiError> {
        Ok(self.nullable(name)?.flatten())
    }

    /// A member of the body that must be there.
    fn required<T: DeserializeOwned>(&self, name: &str) -> Result<T, ApiError> {
        let field = self.field(name)?;
        field.ok_or_else(|| ApiError::missing_param(format!("`{name}` is missing.")))
    }

    /// A member of the body, of which it matters whether it is missing or null.
    fn nullable<T: DeserializeOwned>(&self, name: &str) -> Result<Option<Option<T>>, ApiError> {
        let value = self.body.get(name).cloned();
        let wrong = |error| ApiError::bad_json(format!("`{name}`: {error}"));
        value.map(|value| serde_json::from_value(value).map_err(wrong)).transpose()
    }

    /// A number of the query.
    fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let number = self.cx.query(name)?.map(|text| text.parse());
        number.transpose().map_err(|_| ApiError::invalid_param(format!("`{name}` is a number.")))
    }

    /// A number of the query that is a place in a list.
    fn index(&self, name: &str) -> Result<Option<usize>, ApiError> {
        Ok(self.number(name)?.map(|number| usize::try_from(number).unwrap_or(usize::MAX)))
    }

    /// Where a page begins, and how much is on it.
    fn page(&self) -> Result<(usize, usize), ApiError> {
        let limit = self.index("limit")?.unwrap_or(PAGE);
        if limit == 0 {
            return Err(ApiError::invalid_param("`limit` is greater than 0."));
        }
        Ok((self.index("from")?.unwrap_or(0), limit.min(LARGEST_PAGE)))
    }

    /// A truth value of the query.
    fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        // Of tools in Python, some write it as that does.
        match self.cx.query(name)?.map(|text| text.to_ascii_lowercase()).as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(ApiError::invalid_param(format!("`{name}` is true or false."))),
        }
    }

    /// Whether a list is to be the other way round; `None` if the query does not say.
    fn backwards(&self) -> Result<Option<bool>, ApiError> {
        match self.cx.query("dir")?.as_deref() {
            None => Ok(None),
            Some("f") => Ok(Some(false)),
            Some("b") => Ok(Some(true)),
            Some(_) => Err(ApiError::invalid_param("`dir` is `f` or `b`.")),
        }
    }

    /// Does all of it in the caller's name, one after the other, and gives what was done; with
    /// `?dry_run=true`, what it would come to instead.
    ///
    /// In a task of its own: it is done whole, also when the caller hangs up.
    async fn carry_out(&self, acts: Vec<Act>) -> Result<Vec<Done>, ApiError> {
        let dry = self.flag("dry_run")?.unwrap_or(false);
        let reason = match self.cx.query("reason")? {
            Some(reason) => Some(reason),
            None => self.field("reason")?,
        };
        let (office, origin) = (Arc::clone(&self.cx.app.office), self.cx.origin());
        let doing = tokio::spawn(async move {
            let mut all = Vec::with_capacity(acts.len());
            for act in acts {
                let act = match reason.clone() {
                    Some(reason) => Act::Because { reason, of: Box::new(act) },
                    None => act,
                };
                let act = if dry { Act::DryRun { of: Box::new(act) } } else { act };
                all.push(office.perform(act, origin.clone()).await?);
            }
            Ok(all)
        });
        doing.await.map_err(ApiError::internal)?.map_err(|error: ActError| error.into())
    }

    /// Does it, and answers in the words of `shape`; with `?dry_run=true`, what it would come to.
    async fn act(&self, act: Act, shape: impl FnOnce(Done) -> Value) -> Result<Reply, ApiError> {
        let mut done = self.carry_out(vec![act]).await?;
        match done.pop() {
            Some(Done::WouldDo { effect }) => reply(&would_do(effect)),
            Some(done) => reply(&shape(done)),
            None => Err(ApiError::internal("what was done was lost")),
        }
    }
}

fn would_do(effect: Vec<String>) -> Value {
    json!({ "dry_run": true, "effect": effect })
}

/// For acts of which there is nothing to say but that they are done.
fn nothing(_: Done) -> Value {
    json!({})
}

fn reply(value: &impl serde::Serialize) -> Result<Reply, ApiError> {
    Ok(Reply::json(to_json(value)?))
}

/// A page of a list that is there whole, and where the next one begins.
fn page_of<T>(all: Vec<T>, from: usize, limit: usize) -> (Vec<T>, Option<usize>) {
    let next = from.saturating_add(limit);
    let more = next < all.len();
    (all.into_iter().skip(from).take(limit).collect(), more.then_some(next))
}

impl From<ActError> for ApiError {
    fn from(error: ActError) -> Self {
        let text = error.to_string();
        match error {
            ActError::NoUser(_)
            | ActError::NoRoom(_)
            | ActError::NoMedia(_)
            | ActError::NoReport(_)
            | ActError::NoToken => Self::not_found(text),
            ActError::Taken(_) => Self::new(ErrorCode::UserInUse, text),
            ActError::Deactivated(_) => {
                Self::new(ErrorCode::UserDeactivated, text).with_status(StatusCode::BAD_REQUEST)
            }
            ActError::Invalid(_) => Self::invalid_param(text),
            ActError::Unfit(error) => error.into(),
            ActError::Rejected(rejected) => rejected.into(),
            ActError::Read(error) => error.into(),
            other => Self::internal(other.to_string()),
        }
    }
}
