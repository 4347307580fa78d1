//! Sessions by tokens, and what users granted to OAuth clients.

use std::collections::{BTreeMap, BTreeSet};

use ruma::OwnedUserId;

use logcabin_record::{command::TokenHash, scope::Scope};

use super::{Compared, Imported, Reason, Subject, each, users::id};
use crate::{
    ImportError,
    facts::{Fact, OauthGrant, Section, Source},
};

/// Whose session a token is of.
type Owner = (OwnedUserId, Option<String>);

pub(super) fn sessions(
    source: &mut dyn Source,
    copy: &Imported,
    users: &BTreeSet<String>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    let mut grants = BTreeMap::new();
    each(source, Section::OauthGrants, |fact| {
        if let Fact::OauthGrant(grant) = fact
            && id(users, &grant.user_id).is_some()
        {
            grants.insert(grant.grant_id.clone(), grant);
        }
        Ok(())
    })?;
    // Devices of which a token is known, and one is not.
    let (mut known, mut unknown) = (BTreeSet::new(), Vec::new());
    let mut known_grants = BTreeSet::new();
    let mut note = |is_known: bool, of: Owner, grant_id: Option<String>| match grant_id {
        Some(grant_id) if is_known => {
            known_grants.insert(grant_id);
        }
        // What is missing of a grant is said of the grant.
        Some(_) => {}
        None if is_known => {
            known.insert(of);
        }
        None => unknown.push(of),
    };
    each(source, Section::AccessTokens, |fact| {
        let Fact::AccessToken(token) = fact else { return Ok(()) };
        let Some(user_id) = id(users, &token.user_id) else { return Ok(()) };
        let hash = TokenHash(token.token.sha256());
        let state = &copy.state;
        let is_known = state.accounts.access_token(&hash).is_some()
            || state.oauth.access_token(&hash).is_some();
        let is_of_nothing = token.device_id.is_none() && token.grant_id.is_none();
        if is_known {
            compared.is(Subject::Sessions, user_id.clone(), Ok(()));
        } else if is_of_nothing {
            let because = match token.puppet_of {
                Some(_) => "administrators act as users with tokens of this server",
                None => "a token is of a device",
            };
            let found = Err(Reason::explained("its token is not known", because));
            compared.is(Subject::Sessions, user_id, found);
            return Ok(());
        }
        note(is_known, (user_id, token.device_id), token.grant_id);
        Ok(())
    })?;
    each(source, Section::RefreshTokens, |fact| {
        let Fact::RefreshToken(token) = fact else { return Ok(()) };
        let Some(user_id) = id(users, &token.user_id) else { return Ok(()) };
        let hash = TokenHash(token.token.sha256());
        let state = &copy.state;
        let is_known = state.accounts.refresh_token(&hash).is_some()
            || state.oauth.refresh_token(&hash).is_some();
        // One that was exchanged may have ended with that.
        if is_known || token.next.is_none() {
            note(is_known, (user_id, token.device_id), token.grant_id);
        }
        Ok(())
    })?;
    for of in unknown {
        let found = Err(match known.contains(&of) {
            true => Reason::explained("its older token is not known", "a device has one token"),
            false => match has_grant(copy, &of) {
                true => Reason::explained("its token is not known", "it was granted again since"),
                false => Reason::fault("its token is not known"),
            },
        });
        let (user_id, device_id) = of;
        let of = format!("{user_id} {}", device_id.unwrap_or_default());
        compared.is(Subject::Sessions, of, found);
    }
    for (grant_id, theirs) in grants {
        let found = granted(copy, &theirs, known_grants.contains(&grant_id));
        compared.is(Subject::Grants, format!("{} {grant_id}", theirs.user_id), found);
    }
    Ok(())
}

/// Whether the device began its session by OAuth here.
fn has_grant(copy: &Imported, (user_id, device_id): &Owner) -> bool {
    let grants = copy.state.oauth.grants_of(user_id);
    grants
        .iter()
        .any(|grant| grant.device_id.as_deref().map(|id| id.as_str()) == device_id.as_deref())
}

fn granted(copy: &Imported, theirs: &OauthGrant, has_token: bool) -> Result<(), Reason> {
    let oauth = &copy.state.oauth;
    let Some(ours) = oauth.grant(&theirs.grant_id) else {
        let absent = "it is not there";
        let scope = Scope::parse(&theirs.scope);
        let device = scope.as_ref().ok().and_then(|scope| scope.device.clone());
        let is_later = |device: &ruma::DeviceId| {
            let grants = OwnedUserId::try_from(theirs.user_id.as_str())
                .map(|user_id| oauth.grants_of(&user_id))
                .unwrap_or_default();
            grants.iter().any(|grant| grant.device_id.as_deref() == Some(device))
        };
        return Err(if oauth.client(&theirs.client_id).is_none() {
            Reason::explained(absent, "its client does not come along")
        } else if scope.is_err() {
            Reason::explained(absent, "its scope cannot be granted here")
        } else if device.is_some_and(|device| is_later(&device)) {
            Reason::explained(absent, "a later login as the same device ended it")
        } else if !has_token {
            Reason::explained(absent, "none of its tokens can be used")
        } else {
            Reason::fault(absent)
        });
    };
    if ours.user_id.as_str() != theirs.user_id || ours.client_id != theirs.client_id {
        return Err(Reason::fault("it is another user's or client's"));
    }
    match has_token {
        true => Ok(()),
        false => Err(Reason::fault("none of its tokens is known")),
    }
}
