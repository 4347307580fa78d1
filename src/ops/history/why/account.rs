//! Facts about accounts: status, password, profile, account data, addresses, pushers.

use serde_json::{Value, json};

use super::{Affects, Answer, Chain, Change};
use logcabin_record::{
    command::{
        AccountDataSet, ProfileSet, UserDeactivate, UserErase, UserPassword, UserRegister,
        UserStatus, UserUpgrade, UserWait, topic,
    },
    pusher::{PusherRemove, PusherSet},
    threepid::{ThreepidAdd, ThreepidBind, ThreepidRemove, ThreepidUnbind},
};

impl Affects<topic::Account> for UserRegister {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let kind = || Change::Becomes(json!({ "kind": self.kind }));
        Ok(chain.is_of(&self.user_id).then(kind))
    }
}

impl Affects<topic::Account> for UserUpgrade {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(chain.is_of(&self.user_id).then(|| Change::Becomes(json!({ "kind": "user" }))))
    }
}

impl Affects<topic::Account> for UserWait {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        if !chain.is_of(&self.user_id) {
            return Ok(None);
        }
        let mut account = chain.so_far();
        account["approved"] = json!(false);
        Ok(Some(Change::Becomes(account)))
    }
}

impl Affects<topic::Account> for UserStatus {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        if !chain.is_of(&self.user_id) {
            return Ok(None);
        }
        let mut account = chain.so_far();
        let Self { admin, locked, suspended, shadow_banned, approved, .. } = self;
        for (name, set) in [
            ("admin", admin),
            ("locked", locked),
            ("suspended", suspended),
            ("shadow_banned", shadow_banned),
            ("approved", approved),
        ] {
            if let Some(set) = set {
                account[name] = json!(set);
            }
        }
        Ok(Some(Change::Becomes(account)))
    }
}

impl Affects<topic::Account> for UserDeactivate {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(chain.is_of(&self.user_id).then_some(Change::Ends))
    }
}

impl Affects<topic::Account> for UserErase {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(chain.is_of(&self.user_id).then_some(Change::Ends))
    }
}

/// The password in a payload, as far as it is shown.
fn password(shown: &Value) -> Change {
    shown.get("password").map_or(Change::Ends, |hash| Change::Becomes(hash.clone()))
}

impl Affects<topic::Password> for UserRegister {
    fn change(&self, chain: &mut Chain<'_>, shown: &Value) -> Answer {
        Ok(chain.is_of(&self.user_id).then(|| password(shown)))
    }
}

impl Affects<topic::Password> for UserUpgrade {
    fn change(&self, chain: &mut Chain<'_>, shown: &Value) -> Answer {
        Ok(chain.is_of(&self.user_id).then(|| password(shown)))
    }
}

impl Affects<topic::Password> for UserPassword {
    fn change(&self, chain: &mut Chain<'_>, shown: &Value) -> Answer {
        Ok(chain.is_of(&self.user_id).then(|| password(shown)))
    }
}

impl Affects<topic::Password> for UserDeactivate {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(chain.is_of(&self.user_id).then_some(Change::Ends))
    }
}

impl Affects<topic::Password> for UserErase {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(chain.is_of(&self.user_id).then_some(Change::Ends))
    }
}

impl Affects<topic::Profile> for ProfileSet {
    fn change(&self, chain: &mut Chain<'_>, shown: &Value) -> Answer {
        let is_it = chain.is_of(&self.user_id) && chain.is_named(&self.field);
        Ok(is_it.then(|| match shown.get("value") {
            Some(value) => Change::Becomes(value.clone()),
            None => Change::Ends,
        }))
    }
}

/// The effect of a deactivation on what is erased with the account.
fn erased_by(deactivate: &UserDeactivate, chain: &Chain<'_>) -> Option<Change> {
    let erases = deactivate.erase && chain.is_of(&deactivate.user_id);
    (erases && chain.value.is_some()).then_some(Change::Ends)
}

impl Affects<topic::Profile> for UserDeactivate {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(erased_by(self, chain))
    }
}

impl Affects<topic::AccountData> for AccountDataSet {
    fn change(&self, chain: &mut Chain<'_>, shown: &Value) -> Answer {
        let is_it = chain.is_of(&self.user_id)
            && chain.is_named(&self.event_type)
            && self.room_id.is_none();
        Ok(is_it.then(|| match &shown["content"] {
            Value::Null => Change::Ends,
            content => Change::Becomes(content.clone()),
        }))
    }
}

impl Affects<topic::AccountData> for UserDeactivate {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(erased_by(self, chain))
    }
}

impl Affects<topic::Address> for ThreepidAdd {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let is_it = chain.is_of(&self.user_id) && chain.is_named(&self.threepid.address);
        Ok(is_it.then(|| Change::Becomes(json!(self.threepid))))
    }
}

impl Affects<topic::Address> for ThreepidRemove {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let is_it = chain.is_of(&self.user_id) && chain.is_named(&self.threepid.address);
        Ok(is_it.then_some(Change::Ends))
    }
}

impl Affects<topic::Address> for ThreepidBind {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let is_it = chain.is_of(&self.user_id) && chain.is_named(&self.threepid.address);
        Ok(is_it.then_some(Change::Stays))
    }
}

impl Affects<topic::Address> for ThreepidUnbind {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let is_it = chain.is_of(&self.user_id) && chain.is_named(&self.threepid.address);
        Ok(is_it.then_some(Change::Stays))
    }
}

impl Affects<topic::Pusher> for PusherSet {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let is_it = chain.is_of(&self.user_id) && chain.is_named(&self.ids.app_id);
        let pusher = || {
            json!({
                "kind": self.kind,
                "device_display_name": self.device_display_name,
                "device_id": self.device_id,
            })
        };
        Ok(is_it.then(|| Change::Becomes(pusher())))
    }
}

impl Affects<topic::Pusher> for PusherRemove {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let is_it = chain.is_of(&self.user_id) && chain.is_named(&self.ids.app_id);
        Ok(is_it.then_some(Change::Ends))
    }
}
