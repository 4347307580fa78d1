//! Reports of content, rooms and users to administrators, who read them with `logcabin report`,
//! `logcabin history` or over HTTP.

use ruma::api::client::{
    reporting::report_user::v3 as report_user,
    room::{report_content::v3 as report_content, report_room::v3 as report_room},
};
use serde::Deserialize;

use super::reading::visible_event;
use crate::{
    api::server::Server,
    http::{ApiError, Cx},
};
use logcabin_decide::report::{Report, Subject};
use logcabin_record::Offset;

pub(super) async fn event(
    cx: Cx<Server>,
    request: report_content::Request,
) -> Result<report_content::Response, ApiError> {
    // Not in ruma's type, because it is deprecated.
    #[derive(Deserialize)]
    struct Body {
        score: Option<serde_json::Number>,
    }
    let body: Body = serde_json::from_slice(&cx.body)
        .map_err(|_| ApiError::bad_json("`score` is not a number."))?;
    let out_of_range = || ApiError::invalid_param("`score` is a whole number from -100 to 0.");
    let score = body.score.map(|score| {
        let score = score.as_i64().and_then(|score| i8::try_from(score).ok());
        score.ok_or_else(out_of_range)
    });
    let score = score.transpose()?;
    {
        let view = cx.view();
        let absent = || ApiError::not_found("There is no such event, or you are not in its room.");
        let room = view.state.rooms.get(&request.room_id);
        let room = room.filter(|room| room.is_joined(view.user_id(), Offset::MAX));
        let room = room.ok_or_else(absent)?;
        visible_event(&view, &room, &request.event_id)?;
    }
    let subject = Subject::Event(request.room_id, request.event_id);
    report(&cx, subject, request.reason, score).await?;
    Ok(report_content::Response::new())
}

pub(super) async fn room(
    cx: Cx<Server>,
    request: report_room::Request,
) -> Result<report_room::Response, ApiError> {
    report(&cx, Subject::Room(request.room_id), Some(request.reason), None).await?;
    Ok(report_room::Response::new())
}

pub(super) async fn user(
    cx: Cx<Server>,
    request: report_user::Request,
) -> Result<report_user::Response, ApiError> {
    report(&cx, Subject::User(request.user_id), Some(request.reason), None).await?;
    Ok(report_user::Response::new())
}

async fn report(
    cx: &Cx<Server>,
    subject: Subject,
    reason: Option<String>,
    score: Option<i8>,
) -> Result<(), ApiError> {
    let reporter = cx.caller.user_id.clone();
    let reason = reason.filter(|reason| !reason.is_empty());
    cx.propose(Report { reporter, subject, reason, score }).await?.into_inner();
    Ok(())
}
