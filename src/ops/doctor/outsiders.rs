//! Whether other homeservers reach this one. Only another one knows: a notary that had to fetch our
//! keys. That the server reaches itself says only that its certificate is good.

use super::{Finding, Level, failing, reach::Outside, unknown};
use crate::history::terminal::duration;
use logcabin_base::{clock::millis, limits};
use logcabin_outside::federation::{Unreachable, Vouched};

/// Keys that a notary has just fetched are not older than this, in milliseconds: clocks differ.
const JUST_FETCHED_MS: u64 = 10 * 60 * 1000;

pub(super) fn judge(of: &Outside) -> Vec<Finding> {
    let notaries: Vec<_> = of
        .notaries
        .iter()
        .map(|(name, vouched)| (name.as_str(), seen(vouched, &of.key, of.now_ms)))
        .collect();
    let is_reached = notaries.iter().any(|(_, seen)| *seen == Seen::Now);
    let mut found = vec![certificate(of, is_reached)];
    if notaries.is_empty() {
        let mend = "federation.notaries, with the name of a homeserver that you trust, such as \
                    [\"matrix.org\"]";
        let reason = "only another homeserver can tell, and none is configured to be asked";
        found.push(unknown(REACHED, "Whether other homeservers reach this one", reason, mend));
    }
    found.extend(notaries.iter().map(|(name, seen)| judge_notary(name, seen)));
    found
}

const REACHED: &str = "reachability";

/// How a notary sees this server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// It fetched the present key just now.
    Now,
    /// It has only an older copy of the keys: it could not fetch them.
    Before,
    /// It has other keys than the one that signs now.
    OtherKey,
    /// It has none.
    Never,
    /// It did not answer.
    Silent(String),
}

fn seen(vouched: &Result<Vouched, String>, (id, key): &(String, String), now_ms: u64) -> Seen {
    let keys = match vouched {
        Err(reason) => return Seen::Silent(reason.clone()),
        Ok(Vouched { keys: None, .. }) => return Seen::Never,
        Ok(Vouched { keys: Some(keys), .. }) => keys,
    };
    let (keys, until_ms) = keys;
    // This server gives its keys the same lifetime whenever it is asked.
    let fetched_ms = until_ms.saturating_sub(millis(limits::OWN_KEYS_LIFETIME));
    let unpadded = |key: &str| key.trim_end_matches('=').to_owned();
    if fetched_ms.saturating_add(JUST_FETCHED_MS) < now_ms {
        Seen::Before
    } else if keys.get(id).is_none_or(|known| unpadded(known) != unpadded(key)) {
        Seen::OtherKey
    } else {
        Seen::Now
    }
}

fn judge_notary(name: &str, seen: &Seen) -> Finding {
    let mend = "Port 8448, or the one that DNS and /.well-known/matrix/server name, must be open to \
                the internet and lead to federation.bind.";
    let why = "Events and invites of other homeservers do not arrive.";
    match seen {
        Seen::Now => Finding::ok(REACHED, format!("{name} has reached this server just now.")),
        Seen::Silent(reason) => unknown(
            REACHED,
            &format!("Whether {name} reaches this server"),
            &failing(reason),
            "Try again later, or name another homeserver in federation.notaries.",
        ),
        Seen::Before => Finding::new(
            REACHED,
            Level::Error,
            format!("{name} reached this server once, and does not now."),
            why,
            mend,
        ),
        Seen::Never => {
            let what = format!("{name} does not reach this server.");
            Finding::new(REACHED, Level::Error, what, why, mend)
        }
        Seen::OtherKey => Finding::new(
            REACHED,
            Level::Error,
            format!("{name} finds another key at this server's name than the one that signs here."),
            "Other homeservers refuse what this one sends.",
            "Another server may answer for the name: look at DNS and the proxy. A log that was \
             restored or made again under the same name has other keys, too.",
        ),
    }
}

fn certificate(of: &Outside, is_reached: bool) -> Finding {
    const CHECK: &str = "certificate";
    let mend = "federation.certificate and federation.certificate_key, with a certificate for the \
                name that others connect to; or that of the proxy in front";
    let why = "Other homeservers break off the connection.";
    let expires_ms = match &of.certificate {
        Ok(certificate) => certificate.expires_ms,
        Err(Unreachable::Tls(reason)) => {
            let what = format!("Others do not accept the certificate: {}.", failing(reason));
            return Finding::new(CHECK, Level::Error, what, why, mend);
        }
        Err(error) if is_reached => {
            let what = format!(
                "Others reach this server, but it does not reach itself by its name: {}.",
                failing(&error.to_string())
            );
            return Finding::ok(CHECK, what);
        }
        Err(error) => {
            return Finding::new(
                CHECK,
                Level::Error,
                format!(
                    "This server does not reach itself by its name as others would: {}.",
                    failing(&error.to_string())
                ),
                "Then others probably do not either; some routers do not allow it from inside.",
                "Look at DNS, at the firewall, and at federation.bind. With federation.notaries, \
                 another homeserver is asked whether it reaches this one.",
            );
        }
    };
    let Some(expires_ms) = expires_ms else {
        let subject = "When the certificate expires";
        return unknown(
            CHECK,
            subject,
            "it is not understood",
            "openssl s_client -connect HOST:PORT",
        );
    };
    let left = expires_ms.saturating_sub(of.now_ms);
    let what = format!("The certificate is good for {}.", duration(left / 1000));
    match left < millis(limits::CERTIFICATE_SOON) {
        false => Finding::ok(CHECK, what),
        true => Finding::new(
            CHECK,
            Level::Warning,
            what,
            "It should have been renewed by now; when it expires, no homeserver connects any more.",
            "Renew it, and see why that does not happen by itself.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use logcabin_outside::federation::OwnCertificate;
    use ruma::owned_server_name;

    const NOW: u64 = 1_800_000_000_000;
    const DAY: u64 = 86_400_000;

    fn vouched(key: &str, fetched_ms: u64) -> Result<Vouched, String> {
        let keys = BTreeMap::from([("ed25519:a".to_owned(), key.to_owned())]);
        let until_ms = fetched_ms + millis(limits::OWN_KEYS_LIFETIME);
        Ok(Vouched { keys: Some((keys, until_ms)), ahead_ms: None })
    }

    fn outside(
        certificate: Result<OwnCertificate, Unreachable>,
        notary: Option<Result<Vouched, String>>,
    ) -> Vec<Level> {
        let outside = Outside {
            certificate,
            notaries: notary
                .map(|said| (owned_server_name!("n.example"), said))
                .into_iter()
                .collect(),
            key: ("ed25519:a".to_owned(), "abc".to_owned()),
            now_ms: NOW,
        };
        judge(&outside).iter().map(|finding| finding.level).collect()
    }

    fn good() -> Result<OwnCertificate, Unreachable> {
        Ok(OwnCertificate { expires_ms: Some(NOW + 60 * DAY) })
    }

    #[test]
    fn only_an_outsider_can_say_that_the_server_is_reached() {
        assert_eq!(outside(good(), None), [Level::Ok, Level::Unknown]);
        assert_eq!(outside(good(), Some(vouched("abc=", NOW))), [Level::Ok, Level::Ok]);
        let silent = Err("no answer".to_owned());
        assert_eq!(outside(good(), Some(silent)), [Level::Ok, Level::Unknown]);
    }

    #[test]
    fn a_notary_that_could_not_fetch_the_keys_is_found() {
        for said in [
            vouched("abc", NOW - DAY / 2),
            vouched("other", NOW),
            Ok(Vouched { keys: None, ahead_ms: None }),
        ] {
            assert_eq!(outside(good(), Some(said.clone())), [Level::Ok, Level::Error], "{said:?}");
        }
    }

    #[test]
    fn certificates_that_are_refused_or_expire_are_found() {
        let until = |ms| Ok(OwnCertificate { expires_ms: ms });
        let reached = || Some(vouched("abc", NOW));
        for (certificate, level) in [
            (good(), Level::Ok),
            (until(Some(NOW + 13 * DAY)), Level::Warning),
            (until(Some(NOW - DAY)), Level::Warning),
            (until(None), Level::Unknown),
            (Err(Unreachable::Tls("expired".to_owned())), Level::Error),
            // A router that does not lead back inside is no fault.
            (Err(Unreachable::Late), Level::Ok),
        ] {
            assert_eq!(outside(certificate.clone(), reached())[0], level, "{certificate:?}");
        }
        assert_eq!(outside(Err(Unreachable::Late), None)[0], Level::Error);
    }
}
