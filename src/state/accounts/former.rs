//! Accounts as earlier versions wrote them.

use super::*;

/// Version 1, in which nobody waited for approval and nobody was shadow-banned.
#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct V1(Vec<(OwnedUserId, AccountOfV1)>);

#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
struct AccountOfV1 {
    user_id: OwnedUserId,
    kind: AccountKind,
    registered: Offset,
    standing: StatusOfV1,
    password: History<Option<Secret>>,
    devices: BTreeMap<OwnedDeviceId, History<Option<Device>>>,
    profile: BTreeMap<String, ProfileField>,
    account_data: BTreeMap<(Option<OwnedRoomId>, String), History<()>>,
    filters: BTreeMap<String, Offset>,
    links: BTreeSet<(String, String)>,
    used_login_tokens: UsedLoginTokens,
    changed: Offset,
}

#[derive(Deserialize)]
#[cfg_attr(test, derive(Serialize))]
struct StatusOfV1 {
    guest: bool,
    admin: bool,
    locked: bool,
    suspended: bool,
    deactivated: Option<Offset>,
    erased: Option<Offset>,
}

impl From<V1> for Accounts {
    fn from(V1(users): V1) -> Self {
        let now = |(user_id, account)| (user_id, Arc::new(RwLock::new(Account::from(account))));
        Users(users.into_iter().map(now).collect()).into()
    }
}

impl From<AccountOfV1> for Account {
    fn from(former: AccountOfV1) -> Self {
        let StatusOfV1 { guest, admin, locked, suspended, deactivated, erased } = former.standing;
        Self {
            user_id: former.user_id,
            kind: former.kind,
            registered: former.registered,
            standing: AccountStatus {
                guest,
                admin,
                locked,
                suspended,
                deactivated,
                erased,
                waiting: None,
                shadow_banned: false,
            },
            password: former.password,
            devices: former.devices,
            active: 0,
            profile: former.profile,
            account_data: former.account_data,
            filters: former.filters,
            links: former.links,
            used_login_tokens: former.used_login_tokens,
            changed: former.changed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_of_version_1_are_read() {
        let user_id: OwnedUserId = "@ann:example.org".try_into().unwrap();
        let standing = StatusOfV1 {
            guest: false,
            admin: true,
            locked: false,
            suspended: true,
            deactivated: None,
            erased: Some(Offset::new(9)),
        };
        let account = AccountOfV1 {
            user_id: user_id.clone(),
            kind: AccountKind::User,
            registered: Offset::new(7),
            standing,
            password: History::default(),
            devices: BTreeMap::new(),
            profile: BTreeMap::new(),
            account_data: BTreeMap::new(),
            filters: BTreeMap::from([("filter".to_owned(), Offset::new(8))]),
            links: BTreeSet::from([("example".to_owned(), "ann".to_owned())]),
            used_login_tokens: UsedLoginTokens::default(),
            changed: Offset::new(9),
        };
        let stored = postcard::to_stdvec(&V1(vec![(user_id.clone(), account)])).unwrap();
        let read: Accounts = postcard::from_bytes::<V1>(&stored).unwrap().into();
        let standing = read.standing(&user_id).unwrap();
        assert!(standing.admin && standing.suspended && !standing.shadow_banned);
        assert_eq!((standing.waiting, read.waiting_count()), (None, 0));
        assert_eq!(read.linked("example", "ann"), Some(user_id.clone()));
        assert_eq!(read.erased(&user_id), Some(Offset::new(9)));
    }
}
