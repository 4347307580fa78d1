//! Commands about other homeservers, in words.

use super::{Describe, Description};
use crate::record::{
    Record,
    command::{PeerKeys, ServerKey},
};

impl Describe for ServerKey {
    fn describe(self, _: &Record, who: String) -> Description {
        (who, format!("signs with {} for other homeservers", self.key_id))
    }
}

impl Describe for PeerKeys {
    fn describe(self, _: &Record, who: String) -> Description {
        let ids: Vec<_> = self.keys.keys().map(String::as_str).collect();
        (who, format!("learned that {} signs with {}", self.server_name, ids.join(", ")))
    }
}
