//! The devices of users of other homeservers.

use ruma::{OwnedServerName, OwnedUserId};

use crate::{Commit, Proposal, Refusal};
use logcabin_base::limits;
use logcabin_record::{
    Offset, Stream,
    command::{DeviceList, PeerDevices},
};

/// Record a homeserver's news of its users' devices.
#[derive(Clone, Debug)]
pub struct NoteDevices {
    pub server: OwnedServerName,
    pub users: Vec<DeviceListUpdate>,
}

/// A homeserver's news of a user's devices.
#[derive(Clone, Debug)]
pub struct DeviceListUpdate {
    /// The user, of that homeserver.
    pub user_id: OwnedUserId,
    /// Whether the homeserver says that something changed.
    pub changed: bool,
    /// The user's devices. Without them, the known ones are stale.
    pub list: Option<DeviceList>,
    /// For a list: the offset when it was requested. If there was news of the user's devices after
    /// that, the list may lack it, and is not recorded.
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
        for DeviceListUpdate { user_id, changed, list, as_of } in &self.users {
            let known = commit.env.state.device_lists.get(user_id);
            let is_late = list.is_some() && known.is_some_and(|known| known.last > *as_of);
            if is_late {
                all = false;
                continue;
            }
            let list = list.clone().filter(|list| list.bytes() <= limits::DEVICE_LIST_BYTES);
            // A request that returned no usable list is not recorded.
            if list.is_none() && !changed {
                continue;
            }
            let before = known.filter(|_| !changed).map(|known| known.changed);
            let body = PeerDevices {
                user_id: user_id.clone(),
                changed: *changed,
                changed_at: before.filter(|before| *before != Offset::ZERO),
                list,
            };
            commit.append(self.stream(), body);
        }
        Ok(all)
    }
}
