//! Administration through the client-server API: locking, suspending, listing a user's sessions
//! ("Account locking", "Account suspension", "Server Administration").

use ruma::{
    MilliSecondsSinceUnixEpoch, UInt, UserId,
    api::client::admin::{
        get_user_info::v3::{self as get_user_info, ConnectionInfo, DeviceInfo, SessionInfo},
        is_user_locked::v1 as is_user_locked,
        is_user_suspended::v1 as is_user_suspended,
        lock_user::v1 as lock_user,
        suspend_user::v1 as suspend_user,
    },
};

use crate::{
    api::{auth::grants::may_administer, server::Server},
    http::{ApiError, Cx, OpenTo},
};
use logcabin_decide::status::SetStatus;
use logcabin_state::AccountStatus;

impl Cx<Server> {
    /// Whether the caller is an administrator.
    pub(crate) fn is_admin(&self) -> bool {
        let standing = self.app.engine.state().accounts.standing(&self.caller.user_id);
        standing.is_some_and(|standing| standing.admin)
            && may_administer(&self.app.engine, &self.caller, OpenTo::ADMINISTRATORS)
    }

    pub(crate) fn must_be_admin(&self) -> Result<(), ApiError> {
        if self.is_admin() {
            Ok(())
        } else {
            Err(ApiError::forbidden("You do not administer this server."))
        }
    }

    /// The account that an administrator may moderate: local, not deactivated, and not itself an
    /// administrator. The caller is checked before the account, so that nobody else learns which
    /// accounts exist.
    fn moderated(&self, user_id: &UserId) -> Result<AccountStatus, ApiError> {
        self.must_be_admin()?;
        if user_id.server_name() != self.app.config.server.name {
            return Err(ApiError::invalid_param("This user is not of this server."));
        }
        let standing = self.app.engine.state().accounts.standing(user_id);
        match standing {
            None | Some(AccountStatus { deactivated: Some(_), .. }) => {
                Err(ApiError::not_found("There is no such user."))
            }
            Some(AccountStatus { admin: true, .. }) => {
                Err(ApiError::forbidden("This user administers the server."))
            }
            Some(standing) => Ok(standing),
        }
    }

    async fn moderate(
        &self,
        user_id: &UserId,
        locked: Option<bool>,
        suspended: Option<bool>,
    ) -> Result<(), ApiError> {
        self.moderated(user_id)?;
        let user_id = user_id.to_owned();
        let (admin, shadow_banned, reason) = (None, None, None);
        let change = SetStatus { user_id, admin, locked, suspended, shadow_banned, reason };
        let _: bool = self.propose(change).await?.into_inner();
        Ok(())
    }
}

pub(super) async fn is_locked(
    cx: Cx<Server>,
    request: is_user_locked::Request,
) -> Result<is_user_locked::Response, ApiError> {
    Ok(is_user_locked::Response::new(cx.moderated(&request.user_id)?.locked))
}

pub(super) async fn lock(
    cx: Cx<Server>,
    request: lock_user::Request,
) -> Result<lock_user::Response, ApiError> {
    cx.moderate(&request.user_id, Some(request.locked), None).await?;
    Ok(lock_user::Response::new(request.locked))
}

pub(super) async fn is_suspended(
    cx: Cx<Server>,
    request: is_user_suspended::Request,
) -> Result<is_user_suspended::Response, ApiError> {
    Ok(is_user_suspended::Response::new(cx.moderated(&request.user_id)?.suspended))
}

pub(super) async fn suspend(
    cx: Cx<Server>,
    request: suspend_user::Request,
) -> Result<suspend_user::Response, ApiError> {
    cx.moderate(&request.user_id, None, Some(request.suspended)).await?;
    Ok(suspend_user::Response::new(request.suspended))
}

/// The devices of a user, and where each was last used.
pub(crate) async fn whois(
    cx: Cx<Server>,
    request: get_user_info::Request,
) -> Result<get_user_info::Response, ApiError> {
    if request.user_id != cx.caller.user_id {
        cx.must_be_admin()?;
    }
    if request.user_id.server_name() != cx.app.config.server.name {
        return Err(ApiError::invalid_param("This user is not of this server."));
    }
    let account = cx.app.engine.state().accounts.get(&request.user_id);
    let account = account.ok_or_else(|| ApiError::not_found("There is no such user."))?;
    let mut response = get_user_info::Response::new();
    for (device_id, device) in account.read().active_devices() {
        let seen = cx.app.last_seen.of(&cx.app.engine.state(), &request.user_id, device_id, device);
        let connection = seen.map(|seen| {
            let mut connection = ConnectionInfo::new();
            connection.ip = Some(seen.address.to_string());
            let ms = UInt::try_from(seen.seen_ms).ok();
            connection.last_seen = ms.map(MilliSecondsSinceUnixEpoch);
            connection.user_agent = seen.agent;
            connection
        });
        let mut session = SessionInfo::new();
        session.connections = connection.into_iter().collect();
        let mut device = DeviceInfo::new();
        device.sessions = vec![session];
        response.devices.insert(device_id.to_string(), device);
    }
    response.user_id = Some(request.user_id);
    Ok(response)
}
