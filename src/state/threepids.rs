//! Third-party identifiers: the owner of each, and the identity servers that publish it.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::RwLock;
use ruma::{OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::threepid::{
    Threepid, ThreepidAdd, ThreepidBind, ThreepidRemove, ThreepidUnbind,
};

/// An identifier of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreepidOwner {
    /// The owner.
    pub user_id: OwnedUserId,
    /// When it was validated, in milliseconds since the Unix epoch.
    pub validated_ms: u64,
    /// When it was added to the account, in milliseconds since the Unix epoch.
    pub added_ms: u64,
}

/// All identifiers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Threepids(#[serde(with = "serializers::locked")] RwLock<Inner>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    owners: BTreeMap<Threepid, ThreepidOwner>,
    users: BTreeMap<OwnedUserId, UserThreepids>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct UserThreepids {
    own: BTreeSet<Threepid>,
    /// The user's identifiers on identity servers, with the server's name.
    bound: BTreeSet<(Threepid, String)>,
}

impl Threepids {
    /// The owner of this identifier.
    pub fn owner(&self, threepid: &Threepid) -> Option<OwnedUserId> {
        self.0.read().owners.get(threepid).map(|owned| owned.user_id.clone())
    }

    /// The identifiers of an account, in order.
    pub fn of_user(&self, user_id: &UserId) -> Vec<(Threepid, ThreepidOwner)> {
        let inner = self.0.read();
        let own = inner.users.get(user_id).map(|user| &user.own);
        let owned =
            |threepid: &Threepid| Some((threepid.clone(), inner.owners.get(threepid)?.clone()));
        own.into_iter().flatten().filter_map(owned).collect()
    }

    /// The identifiers of a user on identity servers, in order.
    pub fn bound(&self, user_id: &UserId) -> Vec<(Threepid, String)> {
        let inner = self.0.read();
        inner.users.get(user_id).into_iter().flat_map(|user| user.bound.iter().cloned()).collect()
    }

    pub(super) fn add(&self, body: ThreepidAdd) {
        let ThreepidAdd { user_id, threepid, validated_ms, added_ms } = body;
        let mut inner = self.0.write();
        let owned = ThreepidOwner { user_id: user_id.clone(), validated_ms, added_ms };
        if let Some(before) = inner.owners.insert(threepid.clone(), owned) {
            inner.disown(&before.user_id, &threepid);
        }
        inner.users.entry(user_id).or_default().own.insert(threepid);
    }

    pub(super) fn remove(&self, body: &ThreepidRemove) {
        let mut inner = self.0.write();
        if inner.owners.get(&body.threepid).is_some_and(|owned| owned.user_id == body.user_id) {
            inner.owners.remove(&body.threepid);
            inner.disown(&body.user_id, &body.threepid);
        }
    }

    pub(super) fn bind(&self, body: ThreepidBind) {
        let mut inner = self.0.write();
        let user = inner.users.entry(body.user_id).or_default();
        user.bound.insert((body.threepid, body.id_server));
    }

    pub(super) fn unbind(&self, body: ThreepidUnbind) {
        let mut inner = self.0.write();
        let ThreepidUnbind { user_id, threepid, id_server } = body;
        if let Some(user) = inner.users.get_mut(&user_id) {
            user.bound.remove(&(threepid, id_server));
        }
        inner.tidy(&user_id);
    }

    /// Removes all identifiers of a deactivated user, so that others can add them. Bindings on
    /// identity servers stay known, so that unbinding can be retried.
    pub(super) fn drop_user(&self, user_id: &UserId) {
        let mut inner = self.0.write();
        let own = inner.users.get_mut(user_id).map(|user| std::mem::take(&mut user.own));
        for threepid in own.unwrap_or_default() {
            inner.owners.remove(&threepid);
        }
        inner.tidy(user_id);
    }

    /// Removes all identifiers of an erased user, and their bindings.
    pub(super) fn forget(&self, user_id: &UserId) {
        self.drop_user(user_id);
        self.0.write().users.remove(user_id);
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}

impl Inner {
    fn disown(&mut self, user_id: &UserId, threepid: &Threepid) {
        if let Some(user) = self.users.get_mut(user_id) {
            user.own.remove(threepid);
        }
        self.tidy(user_id);
    }

    fn tidy(&mut self, user_id: &UserId) {
        if self.users.get(user_id).is_some_and(|user| user.own.is_empty() && user.bound.is_empty())
        {
            self.users.remove(user_id);
        }
    }
}
