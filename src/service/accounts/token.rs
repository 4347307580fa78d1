//! The format of access and refresh tokens: `lca_SECRET.SESSION.MAC`, and `lcr_…` for refresh
//! tokens.
//! The secret authenticates; the log contains its hash. The session is the offset of its login.
//! With it, the server recognises a superseded token without storing it: as long as the session
//! exists, the client may log in again as the same device (client-server API, "Soft logout"). The
//! MAC keeps others from probing which sessions exist. Tokens of earlier versions end after the
//! secret.

use logcabin_base::{clock::random_token, signed::Signer};
use logcabin_engine::Engine;
use logcabin_record::{Command, Offset, command::TokenHash};

/// The purpose of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Authenticates requests.
    Access,
    /// Is exchanged for new tokens.
    Refresh,
}

impl Kind {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Access => "lca_",
            Self::Refresh => "lcr_",
        }
    }

    /// The domain of MACs that name a session.
    const fn naming(self) -> &'static str {
        match self {
            Self::Access => "session of an access token",
            Self::Refresh => "session of a refresh token",
        }
    }

    /// The domain of MACs that are secrets.
    const fn deriving(self) -> &'static str {
        match self {
            Self::Access => "access token of a refresh",
            Self::Refresh => "refresh token of a refresh",
        }
    }

    /// A new secret.
    pub fn random(self) -> String {
        format!("{}{}", self.prefix(), random_token())
    }

    /// The secret that a refresh token is exchanged for: always the same one. It cannot be computed
    /// without the presented token and the signer's key.
    pub fn derived(self, signer: &Signer, presented: &str) -> String {
        format!("{}{}", self.prefix(), signer.secret(self.deriving(), secret(presented)))
    }

    /// The client's token for `secret`.
    pub fn token(self, lasting: &Signer, secret: &str, session: Offset) -> String {
        let named = format!("{secret}.{session}");
        let mac = lasting.mac(self.naming(), &named);
        format!("{named}.{mac}")
    }

    /// The session that is named by a token of this server.
    pub fn session(self, lasting: &Signer, token: &str) -> Option<Offset> {
        let (named, mac) = token.rsplit_once('.')?;
        if !lasting.is_mac(self.naming(), named, mac) {
            return None;
        }
        let (_, session) = named.split_once('.')?;
        session.parse().ok().map(Offset::new)
    }
}

/// The part of a token that authenticates.
fn secret(token: &str) -> &str {
    token.split_once('.').map_or(token, |(secret, _)| secret)
}

/// The hash of a token, as the log contains it.
pub fn hash(token: &str) -> TokenHash {
    TokenHash::of(secret(token))
}

/// Whether this token belongs to a session that still exists.
pub fn is_of_a_session(engine: &Engine, lasting: &Signer, kind: Kind, token: &str) -> bool {
    let Some(session) = kind.session(lasting, token) else { return false };
    let login = match engine.events().command(session) {
        Ok(Some(Command::DeviceLogin(login))) => login,
        Ok(_) => return false,
        // A client must not discard its keys because a disk fails.
        Err(_) => return true,
    };
    let account = engine.state().accounts.get(&login.user_id);
    account.is_some_and(|account| {
        let account = account.read();
        account.device(&login.device_id).is_some_and(|device| device.session == session)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_session_to_the_server_that_gave_it_out() {
        let (ours, theirs) = (Signer::new("ours"), Signer::new("theirs"));
        let secret = Kind::Refresh.random();
        let token = Kind::Refresh.token(&ours, &secret, Offset::new(77));
        assert_eq!(Kind::Refresh.session(&ours, &token), Some(Offset::new(77)));
        assert_eq!(hash(&token), TokenHash::of(&secret));
        assert_eq!(Kind::Refresh.session(&theirs, &token), None);
        assert_eq!(Kind::Access.session(&ours, &token), None);
        assert_eq!(Kind::Refresh.session(&ours, &token.replace(".77.", ".78.")), None);
        let other = token.replace(&secret, &Kind::Refresh.random());
        assert_eq!(Kind::Refresh.session(&ours, &other), None);
        for bad in ["", ".", "..", &secret, &format!("{secret}.77"), &format!("{secret}.77.")] {
            assert_eq!(Kind::Refresh.session(&ours, bad), None, "{bad}");
        }
    }

    #[test]
    fn a_refresh_derives_the_same_secrets_each_time_and_others_from_another_token_or_key() {
        let (signer, lasting) = (Signer::new("a"), Signer::new("b"));
        let presented = Kind::Refresh.random();
        let access = Kind::Access.derived(&signer, &presented);
        let refresh = Kind::Refresh.derived(&signer, &presented);
        assert_eq!(Kind::Access.derived(&signer, &presented), access);
        let named = Kind::Refresh.token(&lasting, &presented, Offset::new(5));
        assert_eq!(Kind::Access.derived(&signer, &named), access);
        assert_ne!(access[4..], refresh[4..]);
        assert_ne!(Kind::Refresh.derived(&signer, &refresh), refresh);
        assert_ne!(Kind::Access.derived(&lasting, &presented), access);
        assert_eq!(access.len(), Kind::Access.random().len());
    }
}
