//! Login (client-server API, "Login"): each type proves who logs in, and a device is logged in then.

use ruma::{
    OwnedUserId,
    api::client::{
        session::{
            get_login_types::v3::{
                self as get_login_types, ApplicationServiceLoginType, LoginType, PasswordLoginType,
            },
            login::v3::{self as login_v3, DiscoveryInfo, HomeserverInfo, LoginInfo},
        },
        uiaa::UserIdentifier,
    },
};

use super::{
    Server,
    appservice::by_application_service,
    credentials::{NewTokens, device_id_or_new, short_name},
    password::{named_user, verified},
};
use crate::{
    decide::account::Login,
    http::{ApiError, Appservice, Cx},
    record::command::Secret,
};

pub(super) async fn login_types(
    cx: Cx<Server, ()>,
    _: get_login_types::Request,
) -> Result<get_login_types::Response, ApiError> {
    let mut types = vec![LoginType::Password(PasswordLoginType::new())];
    if cx.app.services.iter().next().is_some() {
        types.push(LoginType::ApplicationService(ApplicationServiceLoginType::new()));
    }
    Ok(get_login_types::Response::new(types))
}

/// Who logs in, and what that rests on.
struct Proven {
    user_id: OwnedUserId,
    /// The password hash that it was verified against.
    password: Option<Secret>,
}

pub(super) async fn login(
    cx: Cx<Server, Option<Appservice>>,
    request: login_v3::Request,
) -> Result<login_v3::Response, ApiError> {
    let device_id = device_id_or_new(request.device_id)?;
    let display_name = short_name(request.initial_device_display_name)?;
    let Proven { user_id, password } = match request.login_info {
        LoginInfo::Password(password) => by_password(&cx.app, password).await?,
        LoginInfo::ApplicationService(info) => {
            let user_id = by_application_service(&cx.app, cx.caller.as_ref(), info)?;
            Proven { user_id, password: None }
        }
        _ => return Err(ApiError::bad_request("This server offers login by password only.")),
    };

    let tokens = NewTokens::make(&cx.app, request.refresh_token);
    let proposal = Login {
        user_id: user_id.clone(),
        device_id: device_id.clone(),
        display_name,
        tokens: tokens.hashes(),
        verified: password,
    };
    cx.propose(proposal).await?.into_inner();

    let mut response = login_v3::Response::new(user_id, tokens.access, device_id);
    response.refresh_token = tokens.refresh;
    response.expires_in = tokens.expires_in;
    response.well_known = Some(DiscoveryInfo::new(HomeserverInfo::new(cx.app.config.public_url())));
    Ok(response)
}

async fn by_password(app: &Server, info: login_v3::Password) -> Result<Proven, ApiError> {
    #[allow(deprecated, reason = "old clients name the user in `user`")]
    let named = match (&info.identifier, &info.user) {
        (Some(UserIdentifier::Matrix(id)), _) => Some(id.user.clone()),
        (Some(_), _) => None,
        (None, user) => user.clone(),
    };
    let user_id = named.and_then(|name| named_user(app, &name));
    let (user_id, password) = verified(app, user_id, info.password).await?;
    Ok(Proven { user_id, password: Some(password) })
}
