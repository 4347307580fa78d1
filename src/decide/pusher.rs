//! Pushers (client-server API, "Push notifications", `/pushers/set`), and their delivery positions.

use ruma::{OwnedUserId, UserId};

use super::{Commit, Proposal, Refusal};
use logcabin_base::limits;
use logcabin_record::{
    Stream,
    pusher::{
        PusherAdvance, PusherEnd, PusherIds, PusherKind, PusherMail, PusherRemove, PusherSet,
    },
    threepid::{Medium, Threepid},
};

/// Create or change a pusher.
#[derive(Clone, Debug)]
pub struct SetPusher {
    pub pusher: PusherSet,
    /// Whether other users keep their pushers with the same ids.
    pub append: bool,
    /// Whether the user's pusher with these ids stays that of the device that set it: another one
    /// only turns it on or off (MSC3881).
    pub keep_device: bool,
}

impl Proposal for SetPusher {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::pusher(&self.pusher.ids)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let PusherSet { user_id, device_id, ids, .. } = &self.pusher;
        let state = &commit.env.state;
        commit.rests_on(Stream::user(user_id));
        let account = state.accounts.get(user_id).ok_or_else(super::account::no_account)?;
        // A user who was logged out meanwhile would leave a pusher that nothing removes.
        let is_gone = {
            let account = account.read();
            let logged_out = |device_id| account.device(device_id).is_none();
            account.standing.deactivated.is_some() || device_id.as_deref().is_some_and(logged_out)
        };
        if is_gone {
            return Err(Refusal::UnknownToken);
        }
        // Mail is only sent to validated addresses of the user.
        if self.pusher.kind == PusherKind::Email {
            let address = Threepid { medium: Medium::Email, address: ids.pushkey.clone() };
            commit.rests_on(Stream::threepid(&address));
            if state.threepids.owner(&address).as_ref() != Some(user_id) {
                return Err(Refusal::ThreepidNotFound);
            }
        }
        let (own, others): (Vec<_>, Vec<_>) =
            state.pushers.of_ids(ids).into_iter().partition(|held| held.body.user_id == *user_id);
        if own.is_empty() && state.pushers.of_user(user_id).len() >= limits::PUSHERS {
            let most = limits::PUSHERS;
            return Err(Refusal::InvalidParam(format!(
                "You have {most} pushers, the most there may be."
            )));
        }
        if !self.append {
            for other in others {
                remove(commit, &other.body.user_id, ids, PusherEnd::Moved);
            }
        }
        let mut pusher = self.pusher.clone();
        if let Some(own) = own.first().filter(|_| self.keep_device) {
            pusher.device_id.clone_from(&own.body.device_id);
        }
        // What came while it was off is not told.
        if own.iter().any(|own| own.body.disabled) && !pusher.disabled {
            remove(commit, user_id, ids, PusherEnd::Asked);
        }
        // Clients set their pushers at each start.
        if own.iter().all(|own| own.body != pusher) {
            commit.append(self.stream(), pusher);
        }
        Ok(())
    }
}

/// Remove a pusher.
#[derive(Clone, Debug)]
pub struct RemovePusher {
    pub user_id: OwnedUserId,
    pub ids: PusherIds,
    /// The reason.
    pub because: PusherEnd,
}

impl Proposal for RemovePusher {
    /// Whether there was one.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::pusher(&self.ids)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        commit.rests_on(Stream::user(&self.user_id));
        let held = commit.env.state.pushers.of_ids(&self.ids);
        let is_there = held.iter().any(|held| held.body.user_id == self.user_id);
        if is_there {
            remove(commit, &self.user_id, &self.ids, self.because);
        }
        Ok(is_there)
    }
}

fn remove(commit: &mut Commit<'_>, user_id: &UserId, ids: &PusherIds, because: PusherEnd) {
    let (user_id, ids) = (user_id.to_owned(), ids.clone());
    commit.append(Stream::pusher(&ids), PusherRemove { user_id, ids, because });
}

/// Record the delivery positions of pushers.
#[derive(Clone, Debug)]
pub struct NoteTold(pub PusherAdvance);

impl Proposal for NoteTold {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::delivery("pushers")
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let before = commit.env.state.pushers.told();
        if before.as_ref() == Some(&self.0) {
            return Ok(());
        }
        // A position never moves back.
        if before.is_some_and(|before| before.done > self.0.done) {
            return Err(Refusal::BadState("A later position is recorded already.".to_owned()));
        }
        commit.append(self.stream(), self.0.clone());
        Ok(())
    }
}

/// Record that a mail was handed over for a pusher.
#[derive(Clone, Debug)]
pub struct NoteMailed(pub PusherMail);

impl Proposal for NoteMailed {
    /// Whether the pusher is still there.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::user(&self.0.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let pusher = commit.env.state.pushers.get(self.0.pusher);
        let is_there = pusher.is_some_and(|pusher| pusher.body.user_id == self.0.user_id);
        if is_there {
            commit.append(self.stream(), self.0.clone());
        }
        Ok(is_there)
    }
}
