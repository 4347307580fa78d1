//! The devices of users of other homeservers.

use ruma::{OwnedServerName, OwnedUserId};

use crate::{
    base::limits,
    decide::{Commit, Proposal, Refusal},
    record::{
        Offset, Stream,
        command::{DeviceList, PeerDevices},
    },
};

/// Record what a homeserver says of the devices of its users.
#[derive(Clone, Debug)]
pub struct NoteDevices {
    /// The homeserver.
    pub server: OwnedServerName,
    /// Of each user, what it says.
    pub users: Vec<Said>,
}

/// What a homeserver says of a user's devices.
#[derive(Clone, Debug)]
pub struct Said {
    /// The user, of that homeserver.
    pub user_id: OwnedUserId,
    /// The homeserver says that something changed.
    pub changed: bool,
    /// The user's devices. Without them, those that are known are out of date.
    pub list: Option<DeviceList>,
    /// For a list: it is from then. If anything was said of the user's devices after that, the list
    /// may lack it, and is not recorded.
    pub as_of: Offset,
}

impl Proposal for NoteDevices {
    /// Whether all of it was recorded.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::peer(&self.server)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let mut all = true;
        for Said { user_id, changed, list, as_of } in &self.users {
            let known = commit.env.state.device_lists.get(user_id);
            let is_late = list.is_some() && known.is_some_and(|known| known.last > *as_of);
            if is_late {
                all = false;
                continue;
            }
            let list = list.clone().filter(|list| list.bytes() <= limits::DEVICE_LIST_BYTES);
            // That nothing is known of those who are asked for need not be said.
            if list.is_none() && !changed {
                continue;
            }
            let body = PeerDevices { user_id: user_id.clone(), changed: *changed, list };
            commit.append(self.stream(), body);
        }
        Ok(all)
    }
}

impl DeviceList {
    /// How long it is in a record.
    pub(crate) fn bytes(&self) -> usize {
        let Self { stream_id: _, devices, master_key, self_signing_key } = self;
        let devices = devices.iter().map(|(id, keys)| 2 * id.len() + keys.get().len() + 8);
        let keys = [master_key, self_signing_key].into_iter().flatten();
        devices.sum::<usize>() + keys.map(|key| key.get().len()).sum::<usize>()
    }
}
