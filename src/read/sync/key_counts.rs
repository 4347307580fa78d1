//! Counts the remaining keys of the syncing device (client-server API, "Key management API",
//! "Extensions to /sync").

use std::collections::BTreeMap;

use serde::Serialize;

use crate::view::View;
use logcabin_record::Offset;

/// The remaining one-time and fallback keys of a device.
#[derive(Debug, Default, Serialize)]
pub(super) struct KeyCounts {
    device_one_time_keys_count: BTreeMap<String, u64>,
    device_unused_fallback_key_types: Vec<String>,
    /// Whether they have changed.
    #[serde(skip)]
    pub(super) changed: bool,
}

impl KeyCounts {
    /// The counts of the viewer's device, which knows them as of `since`.
    pub(super) fn of(view: &View<'_>, since: Offset) -> Self {
        let (user_id, device_id) = (view.user_id(), view.viewer.device_id);
        let found = view.state.keys.of_device(user_id, device_id, |keys| Self {
            device_one_time_keys_count: keys.counts(),
            device_unused_fallback_key_types: keys.unused_fallback(),
            // Changes after this response's offset belong to the next one.
            changed: keys.counts_changed > since && keys.counts_changed <= view.at(),
        });
        found.unwrap_or_default()
    }
}
