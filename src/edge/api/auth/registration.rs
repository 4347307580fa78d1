//! Registration.

use std::net::IpAddr;

use ruma::{
    OwnedDeviceId, OwnedServerName, OwnedUserId, UserId,
    api::client::{
        account::{
            check_registration_token_validity::v1 as check_token,
            get_username_availability::v3 as get_username_availability,
            register::{LoginType, RegistrationKind, v3 as register_v3},
        },
        uiaa::{AuthData, AuthType},
    },
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    credentials::{NewTokens, check_password},
    session, uiaa,
};
use crate::{
    api::{
        answer::json, appservice::services as appservice, auth::grants::legacy_is_off,
        error::awaiting_approval, server::Server,
    },
    http::{ApiError, Appservice, Cx, ErrorCode, Json, read_body},
};
use logcabin_base::clock::{millis, random_bytes};
use logcabin_decide::{
    Refusal,
    account::{Login, MetRequirements, Register, UpgradeGuest, Wait},
};
use logcabin_engine::ProposeError;
use logcabin_outside::appservice::Service;
use logcabin_read::policy_lists::Subject;
use logcabin_record::{
    Origin,
    command::{AccountKind, PolicyArea, Secret, TokenHash},
};
use logcabin_service::{
    accounts::names::{device_id_or_new, is_registration_token, new_user_id_of, short_name},
    uiaa::{Authenticated, Binding, Denied, Parameters, Proof, RequestFacts},
};

type Caller = Cx<Server, Option<Appservice>>;

pub(super) async fn register(cx: Caller, request: register_v3::Request) -> Result<Json, ApiError> {
    if request.login_type == Some(LoginType::ApplicationService) {
        return register_for_service(&cx, request).await;
    }
    match &request.kind {
        RegistrationKind::User => register_user(&cx, request).await,
        RegistrationKind::Guest => register_guest(&cx, request).await,
        _ => Err(ApiError::invalid_param("`kind` is `user` or `guest`.")),
    }
}

async fn register_user(cx: &Caller, mut request: register_v3::Request) -> Result<Json, ApiError> {
    if !cx.app.config.login.legacy {
        return Err(legacy_is_off());
    }
    must_be_open(&cx.app)?;
    let parameters = recall(cx, &mut request).await?;
    // So that the client does not go through stages in vain.
    let env = cx.app.engine.env();
    env.accounts.check(&env.state.accounts)?;
    if cx.app.approves() {
        env.accounts.check_waiting(&env.state.accounts)?;
    }
    let upgraded = match &request.guest_access_token {
        Some(token) => Some(guest(&cx.app, token, request.username.as_deref()).await?),
        None => None,
    };
    // An invalid account is refused before anyone has to prove anything.
    let asked = match &request.username {
        Some(username) if upgraded.is_none() => Some(newcomers_id(&cx.app, username)?),
        _ => None,
    };
    device_id_or_new(request.device_id.clone())?;
    short_name(request.initial_device_display_name.clone())?;
    if let Some(password) = &request.password {
        let localpart = upgraded.as_ref().or(asked.as_ref()).map_or("", |id| id.localpart());
        check_password(&cx.app.config.passwords, localpart, password)?;
    }

    let offer = cx.app.auth.stages.of_registration(cx.app.approves());
    let facts = RequestFacts { user_id: upgraded.clone(), registers: true, client: cx.client };
    let auth = request.auth.as_ref();
    let authenticated =
        uiaa::authenticate(&cx.app, "register", Binding::Endpoint(parameters), auth, offer, facts)
            .await?;

    if request.password.is_none() && request.inhibit_login {
        return Err(ApiError::missing_param(
            "Without a password and without a login, nobody could ever use the account.",
        ));
    }
    let user_id = match (&upgraded, asked) {
        (Some(user_id), _) => user_id.clone(),
        (None, Some(user_id)) => {
            check_name(&cx.app, &user_id, None)?;
            user_id
        }
        (None, None) => new_user_id(&cx.app)?,
    };
    let wants_login = !request.inhibit_login;
    let AccountSetup { password, login, session } = beginning(&cx.app, &user_id, request).await?;
    let met = met(&cx.app, &authenticated, cx.client);
    let waits = met.wait.is_some();
    let outcome = if upgraded.is_some() {
        let proposal = UpgradeGuest { user_id: user_id.clone(), password, login, met };
        cx.app.engine.propose(cx.origin(), proposal).await
    } else {
        let proposal = new_account(&user_id, password, login, met);
        cx.app.engine.propose(cx.origin(), proposal).await
    };
    match outcome {
        Ok(registered) => registered.into_inner(),
        // The token was used up while this client completed other stages.
        Err(ProposeError::Refused(Refusal::RegistrationToken)) => {
            let (stage, denied) = (AuthType::RegistrationToken, Denied::RegistrationToken);
            return Err(cx.app.auth.uiaa.take_back(authenticated, &stage, denied).into());
        }
        Err(error) => return Err(error.into()),
    }
    match (waits, wants_login) {
        (false, _) => answer(cx, user_id, session).await,
        // The account is made, but nobody is logged in.
        (true, true) => Err(awaiting_approval()),
        (true, false) => answer(cx, user_id, None).await,
    }
}

/// Fills in parameters that the attempt leaves out from those that its session remembers, and
/// returns all parameters. Some clients begin with an empty body, others complete a stage with
/// `auth` alone.
async fn recall(cx: &Caller, request: &mut register_v3::Request) -> Result<Parameters, ApiError> {
    const NAMES: [&str; 7] = [
        "device_id",
        "guest_access_token",
        "inhibit_login",
        "initial_device_display_name",
        "password",
        "refresh_token",
        "username",
    ];
    let mut given: Map<String, Value> = read_body(&cx.body)?;
    given.retain(|name, value| NAMES.contains(&name.as_str()) && !value.is_null());
    let session = request.auth.as_ref().and_then(AuthData::session);
    let mut parameters = match session {
        Some(id) => cx.app.auth.uiaa.parameters(id, cx.app.engine.clock().now_ms()).await,
        None => Parameters::default(),
    };
    parameters.0.extend(given);
    let text = |name| parameters.0.get(name).and_then(Value::as_str).map(str::to_owned);
    let says_yes = |name| parameters.0.get(name).and_then(Value::as_bool).unwrap_or_default();
    request.device_id = text("device_id").map(OwnedDeviceId::from);
    request.guest_access_token = text("guest_access_token");
    request.inhibit_login = says_yes("inhibit_login");
    request.initial_device_display_name = text("initial_device_display_name");
    request.password = text("password");
    request.refresh_token = says_yes("refresh_token");
    request.username = text("username");
    Ok(parameters)
}

/// An application service creates an account in its namespace. No other proof is needed.
async fn register_for_service(
    cx: &Caller,
    request: register_v3::Request,
) -> Result<Json, ApiError> {
    let service = appservice::registering(cx.caller.as_ref())?;
    let username = request.username.as_deref();
    let username = username.ok_or_else(|| ApiError::missing_param("`username` is missing."))?;
    let user_id = free_user_id(&cx.app, username, Some(&service))?;
    if let Some(password) = &request.password {
        check_password(&cx.app.config.passwords, user_id.localpart(), password)?;
    }
    let AccountSetup { password, login, session } = beginning(&cx.app, &user_id, request).await?;
    cx.propose(new_account(&user_id, password, login, MetRequirements::default()))
        .await?
        .into_inner();
    answer(cx, user_id, session).await
}

/// The initial data of an account, and the response about it.
struct AccountSetup {
    password: Option<Secret>,
    login: Option<Login>,
    session: Option<(NewTokens, OwnedDeviceId)>,
}

async fn beginning(
    app: &Server,
    user_id: &UserId,
    request: register_v3::Request,
) -> Result<AccountSetup, ApiError> {
    let password = match request.password {
        Some(password) => Some(app.auth.passwords.hash(password).await?),
        None => None,
    };
    if request.inhibit_login {
        return Ok(AccountSetup { password, login: None, session: None });
    }
    let tokens = NewTokens::make(app, request.refresh_token);
    let device_id = device_id_or_new(request.device_id)?;
    let login = Login {
        user_id: user_id.to_owned(),
        device_id: device_id.clone(),
        display_name: short_name(request.initial_device_display_name)?,
        tokens: tokens.hashes(),
        verified: None,
    };
    Ok(AccountSetup { password, login: Some(login), session: Some((tokens, device_id)) })
}

fn new_account(
    user_id: &UserId,
    password: Option<Secret>,
    login: Option<Login>,
    met: MetRequirements,
) -> Register {
    Register {
        user_id: user_id.to_owned(),
        kind: AccountKind::User,
        password,
        display_name: Some(user_id.localpart().to_owned()),
        login,
        met,
    }
}

/// A guest account needs no stages, and only the device name of the body is used.
async fn register_guest(cx: &Caller, request: register_v3::Request) -> Result<Json, ApiError> {
    if !cx.app.registration.load().guests || !cx.app.config.login.legacy {
        let code = ErrorCode::GuestAccessForbidden;
        return Err(ApiError::new(code, "This server has no guest accounts."));
    }
    let display_name = short_name(request.initial_device_display_name)?;
    let (user_id, device_id) = (new_user_id(&cx.app)?, device_id_or_new(None)?);
    let tokens = NewTokens::make(&cx.app, false);
    let login = Login {
        user_id: user_id.clone(),
        device_id: device_id.clone(),
        display_name,
        tokens: tokens.hashes(),
        verified: None,
    };
    let proposal = Register {
        user_id: user_id.clone(),
        kind: AccountKind::Guest,
        password: None,
        display_name: Some(user_id.localpart().to_owned()),
        login: Some(login),
        met: MetRequirements::default(),
    };
    cx.propose(proposal).await?.into_inner();
    answer(cx, user_id, Some((tokens, device_id))).await
}

/// The guest who becomes a full user (client-server API, "Guest Access"): the owner of this access
/// token, with a matching name.
async fn guest(app: &Server, token: &str, username: Option<&str>) -> Result<OwnedUserId, ApiError> {
    let forbidden = |error: ApiError| match error.code() {
        ErrorCode::UnknownToken { .. } => {
            ApiError::forbidden("This is not a guest's access token.")
        }
        _ => error,
    };
    let user_id = session::of_token(app, token).await.map_err(forbidden)?.user_id;
    let account = app.engine.state().accounts.get(&user_id);
    if !account.is_some_and(|account| account.read().kind == AccountKind::Guest) {
        return Err(ApiError::forbidden("This is not a guest's access token."));
    }
    match username {
        Some(username) if username == user_id.localpart() => Ok(user_id),
        Some(_) => Err(ApiError::new(
            ErrorCode::InvalidUsername,
            "A guest's account keeps its name: `username` must be the same.",
        )),
        None => Err(ApiError::missing_param("`username` must be the guest's.")),
    }
}

fn must_be_open(app: &Server) -> Result<(), ApiError> {
    if app.is_registration_open() {
        Ok(())
    } else {
        Err(ApiError::forbidden("Registration is closed on this server."))
    }
}

/// The proofs that are kept with the account.
fn met(app: &Server, authenticated: &Authenticated, client: IpAddr) -> MetRequirements {
    let now_ms = app.engine.clock().now_ms();
    let wait = app.approves().then_some(Wait { answer: None, address: Some(client) });
    let mut met = MetRequirements { now_ms, wait, ..MetRequirements::default() };
    for proof in authenticated.proofs() {
        match proof {
            Proof::Token(token) => met.requirements.registration_token = Some(*token),
            Proof::Terms(versions) => met.requirements.terms.clone_from(versions),
            Proof::Threepid(validated) => met.threepids.push(validated.clone()),
            Proof::Answer(answer) => {
                if let Some(wait) = &mut met.wait {
                    wait.answer = Some(answer.clone());
                }
            }
            Proof::Done | Proof::User(_) => {}
        }
    }
    met
}

async fn answer(
    cx: &Caller,
    user_id: OwnedUserId,
    login: Option<(NewTokens, OwnedDeviceId)>,
) -> Result<Json, ApiError> {
    let session = match login {
        Some((tokens, device_id)) => {
            let tokens = tokens.told(&cx.app);
            session::begun(&cx.app, &tokens.access, cx.client).await;
            Some(NewSession {
                access_token: tokens.access,
                device_id,
                refresh_token: tokens.refresh,
                expires_in_ms: tokens.expires_in.map(millis),
            })
        }
        None => None,
    };
    json(&Registered { user_id, home_server: cx.app.config.server.name.clone(), session })
}

/// The response. Not ruma's, which has `null` for a device that was not requested.
#[derive(Serialize)]
struct Registered {
    user_id: OwnedUserId,
    /// Deprecated: it is part of the user id.
    home_server: OwnedServerName,
    #[serde(flatten)]
    session: Option<NewSession>,
}

#[derive(Serialize)]
struct NewSession {
    access_token: String,
    device_id: OwnedDeviceId,
    #[serde(skip_serializing_if = "Option::is_none")]
    refresh_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_ms: Option<u64>,
}

/// Creates an account with a password, once its stages are completed.
pub(in crate::api) async fn create(
    app: &Server,
    (origin, client): (Origin, IpAddr),
    user_id: &UserId,
    password: String,
    authenticated: Authenticated,
) -> Result<(), ApiError> {
    must_be_open(app)?;
    let password = app.auth.passwords.hash(password).await?;
    let met = met(app, &authenticated, client);
    let proposal = new_account(user_id, Some(password), None, met);
    match app.engine.propose(origin, proposal).await {
        Ok(registered) => {
            registered.into_inner();
            Ok(())
        }
        Err(ProposeError::Refused(Refusal::RegistrationToken)) => {
            let why = "This registration token is no longer valid.";
            Err(ApiError::new(ErrorCode::Unauthorized, why))
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether a registration token is valid now. It may not be by the time it is used.
pub(super) async fn token_validity(
    cx: Cx<Server, ()>,
    request: check_token::Request,
) -> Result<check_token::Response, ApiError> {
    must_be_open(&cx.app)?;
    let token = &request.token;
    let known = cx.app.engine.state().registration_tokens.get(&TokenHash::of(token));
    let now_ms = cx.app.engine.clock().now_ms();
    let valid = is_registration_token(token) && known.is_some_and(|known| known.is_good(now_ms));
    Ok(check_token::Response::new(valid))
}

pub(super) async fn available(
    cx: Cx<Server, ()>,
    request: get_username_availability::Request,
) -> Result<get_username_availability::Response, ApiError> {
    newcomers_id(&cx.app, &request.username)?;
    Ok(get_username_availability::Response::new(true))
}

/// The user id for `username`, if somebody who registers for themselves may have it: the rules of
/// policy lists are against some.
pub(crate) fn newcomers_id(app: &Server, username: &str) -> Result<OwnedUserId, ApiError> {
    let user_id = free_user_id(app, username, None)?;
    let subject = Subject::of_user(&user_id);
    match app.engine.refused_by_policy(PolicyArea::Registration, subject) {
        None => Ok(user_id),
        Some(_) => {
            let why = "This server does not allow this user name. Choose another one.";
            Err(ApiError::new(ErrorCode::InvalidUsername, why))
        }
    }
}

/// The user id for `username`, if it is valid and `caller` may have it.
pub(crate) fn free_user_id(
    app: &Server,
    username: &str,
    caller: Option<&Service>,
) -> Result<OwnedUserId, ApiError> {
    let user_id = new_user_id_of(&app.config.server.name, username)?;
    check_name(app, &user_id, caller)?;
    Ok(user_id)
}

/// Whether `caller` (`None`: anyone) may register this name: it is free, and not in another's
/// exclusive namespace. Checked before authentication and again after it.
///
/// # Errors
/// `M_EXCLUSIVE`, `M_USER_IN_USE`.
pub(super) fn check_name(
    app: &Server,
    user_id: &UserId,
    caller: Option<&Service>,
) -> Result<(), ApiError> {
    appservice::check_name(&app.outside.services, user_id, caller)?;
    if app.config.server_notices.is_sender(user_id) {
        let why = "This user name is the one of the server's notices.";
        return Err(ApiError::new(ErrorCode::Exclusive, why));
    }
    if app.engine.state().accounts.contains(user_id) {
        return Err(ApiError::new(ErrorCode::UserInUse, "This user name is taken."));
    }
    Ok(())
}

/// A free user id for a registration without a name. It resembles no word, and cannot be confused
/// with another.
fn new_user_id(app: &Server) -> Result<OwnedUserId, ApiError> {
    // No vowels, and no characters that look like others in some fonts.
    const LETTERS: &[u8; 24] = b"bcdfghjkmnpqrstvwxz23456";
    const TRIES: usize = 100;
    let name = || {
        let letters = random_bytes::<14>().map(|byte| LETTERS[usize::from(byte) % LETTERS.len()]);
        letters.map(char::from).iter().collect::<String>()
    };
    for _ in 0..TRIES {
        let user_id = new_user_id_of(&app.config.server.name, &name())?;
        if check_name(app, &user_id, None).is_ok() {
            return Ok(user_id);
        }
    }
    Err(ApiError::internal("no name that was made up is free"))
}
