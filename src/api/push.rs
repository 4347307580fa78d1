//! Push rules, as far as clients need them to start: the server's default rules.

use ruma::{api::client::push::get_pushrules_all::v3 as get_pushrules_all, push::Ruleset};

use super::Server;
use crate::http::{ApiError, Cx};

pub(super) async fn rules(
    cx: Cx<Server>,
    _: get_pushrules_all::Request,
) -> Result<get_pushrules_all::Response, ApiError> {
    Ok(get_pushrules_all::Response::new(Ruleset::server_default(&cx.caller.user_id)))
}
