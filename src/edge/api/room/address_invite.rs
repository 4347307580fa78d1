//! Invitations by email address or phone number (client-server API, "Third-party Invites").
//!
//! A trusted identity server tells whose address it is. If it belongs to a user, that user is
//! invited. Otherwise the identity server stores the invitation, and the room gets an
//! `m.room.third_party_invite` with the keys of the identity server. Once the address is bound, the
//! identity server notifies the server of its owner ([`bound`]), which turns the invitation into a
//! membership. If that server is not in the room, it has the server of the one who invited do that
//! (server-server API, "Third-party invites").

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::future::join_all;
use http::{Method, StatusCode, header::AUTHORIZATION};
use ruma::api::auth_scheme::NoAccessToken;
use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, OwnedRoomId, OwnedUserId, RoomId,
    api::client::membership::Invite3pid,
    events::{StateEventType, TimelineEventType},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};
use sha2::{Digest as _, Sha256};
use tracing::{info, warn};

use crate::{
    api::{outgoing::AskedServer, server::Server},
    http::{ApiError, Cx, ErrorCode, Json, endpoint},
};
use logcabin_base::limits;
use logcabin_config::IdentityServer;
use logcabin_decide::{
    canonical,
    membership::{AcceptAddressInvite, Changed},
    send::SendEvent,
};
use logcabin_outside::outbound::{OutboundRequest, OutboundResponse};
use logcabin_read::events::to_raw;
use logcabin_record::{Offset, address as threepid, threepid::Threepid};
use logcabin_service::accounts::identity::{self, handed_on, unusable};

endpoint! {
    /// A report of an identity server that an address was bound (server-server API, `PUT
    /// …/3pid/onbind`).
    pub(in crate::api) struct OnBind = PUT "/_matrix/federation/v1/3pid/onbind";
    for NoAccessToken;
    { body: BindNotice = json }
}

/// The user to whom an address was bound, and the invitations for the address.
#[derive(Deserialize)]
pub(in crate::api) struct BindNotice {
    mxid: OwnedUserId,
    invites: Vec<BoundInvite>,
}

#[derive(Deserialize)]
struct BoundInvite {
    mxid: OwnedUserId,
    room_id: OwnedRoomId,
    /// Who invited the address.
    #[serde(default)]
    sender: Option<OwnedUserId>,
    signed: Box<RawValue>,
}

/// The owner of an address, who is looked up at an identity server.
pub(super) struct Addressee {
    server: IdentityServer,
    /// The inviting user's access token for the identity server.
    access_token: String,
    threepid: Threepid,
}

/// An identity server's response for a stored invitation.
#[derive(Debug, Deserialize)]
struct StoreInviteResponse {
    token: String,
    public_keys: Vec<PublicKey>,
    display_name: String,
}

#[derive(Debug, Deserialize, Serialize)]
struct PublicKey {
    public_key: String,
    key_validity_url: String,
}

impl Addressee {
    /// The addressee in a client's request.
    ///
    /// # Errors
    /// When the identity server is not trusted, the medium is unknown, or the address is invalid.
    pub(super) fn read(app: &Server, invite: &Invite3pid) -> Result<Self, ApiError> {
        let medium = invite.medium.as_str();
        if !matches!(medium, "email" | "msisdn") {
            let why = "Addresses of this kind cannot be invited.";
            return Err(ApiError::new(ErrorCode::ThreepidMediumNotSupported, why));
        }
        let server = identity::trusted(app.identity_servers(), &invite.id_server)?;
        let threepid = threepid::parse(medium, &invite.address)
            .map_err(|error| ApiError::invalid_param(error.to_string()))?;
        Ok(Self { server, access_token: invite.id_access_token.clone(), threepid })
    }

    /// The user with the address, if the identity server knows one.
    ///
    /// # Errors
    /// When the identity server refuses or cannot be reached.
    pub(super) async fn user(&self, app: &Server) -> Result<Option<OwnedUserId>, ApiError> {
        #[derive(Deserialize)]
        struct Details {
            algorithms: Vec<String>,
            lookup_pepper: String,
        }
        #[derive(Deserialize)]
        struct LookupResponse {
            mappings: Map<String, Value>,
        }
        let details = self.ask(app, Method::GET, "/identity/v2/hash_details", None).await?;
        let Details { algorithms, lookup_pepper } =
            details.json().map_err(|_| unusable(&details))?;
        if !algorithms.iter().any(|algorithm| algorithm == "sha256") {
            return Err(unusable(&details).into());
        }
        let Threepid { medium, address } = &self.threepid;
        let hashed = Sha256::digest(format!("{address} {} {lookup_pepper}", medium.as_str()));
        let hashed = URL_SAFE_NO_PAD.encode(hashed);
        let question =
            json!({ "algorithm": "sha256", "pepper": lookup_pepper, "addresses": [hashed] });
        let answer = self.ask(app, Method::POST, "/identity/v2/lookup", Some(&question)).await?;
        let LookupResponse { mappings } = answer.json().map_err(|_| unusable(&answer))?;
        // Some identity servers write null for unknown values.
        let user_id = mappings.get(&hashed).filter(|user_id| !user_id.is_null());
        let Some(user_id) = user_id else { return Ok(None) };
        let user_id = user_id.as_str().and_then(|user_id| OwnedUserId::try_from(user_id).ok());
        user_id.map(Some).ok_or_else(|| unusable(&answer).into())
    }

    /// Stores an invitation at the identity server, and adds it to the room in the caller's name.
    ///
    /// # Errors
    /// When the identity server refuses or cannot be reached, or the room refuses.
    pub(super) async fn invite(&self, cx: &Cx<Server>, room_id: &RoomId) -> Result<(), ApiError> {
        let described = self.described(cx, room_id)?;
        let path = "/identity/v2/store-invite";
        let answer = self.ask(&cx.app, Method::POST, path, Some(&described)).await?;
        let kept: StoreInviteResponse = answer.json().map_err(|_| unusable(&answer))?;
        let Some(first) = kept.public_keys.first() else { return Err(unusable(&answer).into()) };
        if !threepid::is_opaque_id(&kept.token) {
            return Err(unusable(&answer).into());
        }
        let content = json!({
            "display_name": kept.display_name,
            "key_validity_url": first.key_validity_url,
            "public_key": first.public_key,
            "public_keys": kept.public_keys,
        });
        let proposal = SendEvent {
            room_id: room_id.to_owned(),
            sender: cx.caller.user_id.clone(),
            event_type: TimelineEventType::RoomThirdPartyInvite,
            state_key: Some(kept.token),
            content: canonical(&to_raw(&content))?.into(),
            redacts: None,
            transaction: None,
            ts: cx.app.now(),
        };
        drop(cx.propose(proposal).await?.into_inner());
        Ok(())
    }

    /// What the identity server may mention about the room and the caller in its message.
    fn described(&self, cx: &Cx<Server>, room_id: &RoomId) -> Result<Value, ApiError> {
        let engine = &cx.app.engine;
        let (state, events) = (engine.state(), engine.events());
        let room = cx.app.room(room_id)?;
        let user_id = &cx.caller.user_id;
        let mut described = json!({
            "medium": self.threepid.medium.as_str(),
            "address": self.threepid.address,
            "room_id": room_id,
            "sender": user_id,
        });
        let texts = [
            ("room_name", StateEventType::RoomName, "name"),
            ("room_alias", StateEventType::RoomCanonicalAlias, "alias"),
            ("room_avatar_url", StateEventType::RoomAvatar, "url"),
            ("room_join_rules", StateEventType::RoomJoinRules, "join_rule"),
            ("room_type", StateEventType::RoomCreate, "type"),
        ];
        for (name, kind, field) in texts {
            if let Some(text) = events.state_text(&room, &kind, field, Offset::MAX)? {
                described[name] = text.into();
            }
        }
        if let Some(account) = state.accounts.get(user_id) {
            let account = account.read();
            let fields =
                [("sender_display_name", "displayname"), ("sender_avatar_url", "avatar_url")];
            for (name, field) in fields {
                if let Some(value) = account.profile_field(field).and_then(Value::as_str) {
                    described[name] = value.into();
                }
            }
        }
        Ok(described)
    }

    async fn ask(
        &self,
        app: &Server,
        method: Method,
        path: &str,
        question: Option<&Value>,
    ) -> Result<OutboundResponse, ApiError> {
        let bearer = format!("Bearer {}", self.access_token);
        let make = |_: &str, ask: OutboundRequest| {
            let ask = ask.header(AUTHORIZATION, &bearer);
            if let Some(question) = question { ask.json(question) } else { ask }
        };
        let answer =
            identity::ask(app.identity_servers(), &self.server, method, path, make).await?;
        if answer.status != StatusCode::OK {
            return Err(handed_on(&answer).unwrap_or_else(|| unusable(&answer)).into());
        }
        Ok(answer)
    }
}

/// `PUT …/3pid/onbind`: an address with invitations was bound to a user of this server. Anyone can
/// send this request, so each invitation must be signed with a key that the room has for it.
pub(in crate::api) async fn bound(cx: Cx<Server, ()>, request: OnBind) -> Result<Json, ApiError> {
    let BindNotice { mxid, invites } = request.body;
    if invites.len() > limits::ADDRESS_INVITES {
        return Err(ApiError::too_large("There are too many invites for one request."));
    }
    let own = invites.into_iter().filter(|invite| invite.mxid == mxid);
    let turned = own.map(|invite| async {
        let room_id = invite.room_id.clone();
        // The response reveals nothing about rooms and users.
        match turn(&cx, invite).await {
            Ok(true) => info!(%room_id, "an invitation by address became a membership"),
            Ok(false) => {}
            Err(error) => warn!(%room_id, %error, "an invitation by address could not be accepted"),
        }
    });
    join_all(turned).await;
    crate::api::answer::json(&json!({}))
}

/// Turns the invitation of an address into an invite of the user to whom it was bound. Returns
/// whether that changed anything.
async fn turn(cx: &Cx<Server, ()>, invite: BoundInvite) -> Result<bool, ApiError> {
    let BoundInvite { mxid: user_id, room_id, sender, signed } = invite;
    let signed: CanonicalJsonObject = canonical(&signed)?;
    let app = Arc::clone(&cx.app);
    let room = app.engine.state().rooms.get(&room_id);
    let room = room.filter(|room| room.has_server(&app.config.server.name));
    let is_from_elsewhere = match &room {
        // Of a room that this server is in, the room says who invited the address.
        Some(room) => {
            let token = signed.get("token").and_then(CanonicalJsonValue::as_str);
            let kind = StateEventType::RoomThirdPartyInvite;
            let found = room.state_event(&kind, token.unwrap_or_default(), Offset::MAX);
            let found = found.map_or(Ok(None), |offset| app.engine.events().get(offset))?;
            found.is_some_and(|found| cx.is_remote(found.sender.server_name()))
        }
        None => sender.as_ref().is_some_and(|sender| cx.is_remote(sender.server_name())),
    };
    if !is_from_elsewhere {
        let ts = cx.app.now();
        let accept = AcceptAddressInvite { room_id, user_id, signed, ts };
        let changed = cx.propose(accept).await?.into_inner();
        return Ok(matches!(changed, Changed::To(_)));
    }
    let names_user = signed.get("mxid").and_then(CanonicalJsonValue::as_str);
    if names_user != Some(user_id.as_str()) || !app.engine.state().accounts.contains(&user_id) {
        return Err(ApiError::not_found("There is no such user."));
    }
    if room.is_none() {
        cx.may_ask()?;
    }
    // It continues if the identity server hangs up: other homeservers may have recorded it already.
    let inviting = tokio::spawn(async move {
        let receiving = app.receiving()?;
        match (room, sender) {
            (None, Some(sender)) => {
                let asked = receiving.ask_for_invite(&room_id, &sender, &user_id, &signed).await;
                asked.map_err(|error| AskedServer::OfInviter.failed(error))?;
                Ok(true)
            }
            _ => {
                let invited = receiving.invite_by_address(&room_id, &user_id, &signed).await;
                invited.map_err(|error| AskedServer::OfInvited.failed(error))
            }
        }
    });
    inviting.await.map_err(ApiError::internal)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_record::threepid::Medium;

    /// The example of the identity service API, "Hashes".
    #[test]
    fn addresses_are_hashed_as_in_the_specification() {
        let hash = |address: &str, medium: Medium| {
            let text = format!("{address} {} matrixrocks", medium.as_str());
            URL_SAFE_NO_PAD.encode(Sha256::digest(text))
        };
        let email = hash("alice@example.com", Medium::Email);
        assert_eq!(email, "4kenr7N9drpCJ4AfalmlGQVsOn3o2RHjkADUpXJWZUc");
        let phone = hash("18005552067", Medium::Msisdn);
        assert_eq!(phone, "nlo35_T5fzSGZzJApqu8lgIudJvmOQtDaHtr-I4rU7I");
    }
}
