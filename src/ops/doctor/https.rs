//! Whether clients accept the certificate of the server's own HTTPS.

use std::net::SocketAddr;

use futures_util::future::join_all;

use super::{Finding, Level, STOPPED, Subject, failing, finding::START, unknown};
use crate::history::terminal::duration;
use logcabin_base::{clock::millis, limits, network::Range};
use logcabin_config::FilePath;
use logcabin_outside::certificate::{HttpsFault, look};

const CHECK: &str = "https";

pub(super) async fn findings(of: &Subject<'_>) -> Vec<Finding> {
    let Some(address) = of.config.https_address() else { return Vec::new() };
    if of.running.is_none() {
        let subject = "Whether clients accept the certificate";
        return vec![unknown(CHECK, subject, STOPPED, START)];
    }
    // Not `federation.ca`: clients do not trust it.
    let extra = &of.config.outbound.certificates;
    let names = of.config.https_names();
    let proxies = of.config.tls.proxy_protocol.then(|| &of.config.http.proxy_protocol_from[..]);
    let looks = names.iter().map(|name| Box::pin(seen(address, name, extra, proxies)));
    let seen = join_all(looks).await;
    let by_authority = of.config.acme.enabled;
    let judged = names.iter().zip(&seen);
    judged.map(|(name, seen)| judge((name, address), seen, by_authority, of.now_ms)).collect()
}

async fn seen(
    address: SocketAddr,
    name: &str,
    extra: &[FilePath],
    proxies: Option<&[Range]>,
) -> Result<Option<u64>, HttpsFault> {
    let late = HttpsFault::Connection(format!("no answer within {:?}", limits::DOCTOR_TIME));
    tokio::time::timeout(limits::DOCTOR_TIME, look(address, name, extra, proxies))
        .await
        .unwrap_or(Err(late))
}

fn judge(
    (name, address): (&str, SocketAddr),
    seen: &Result<Option<u64>, HttpsFault>,
    by_authority: bool,
    now_ms: u64,
) -> Finding {
    let renew = match by_authority {
        true => "The log of the server says why the authority of acme.directory gives none.",
        false => "Put a new certificate into tls.certificate; the server takes it over by itself.",
    };
    let expires_ms = match seen {
        Ok(Some(expires_ms)) => *expires_ms,
        Ok(None) => {
            let subject = format!("When the certificate for {name} expires");
            let mend = format!("openssl s_client -connect {address} -servername {name}");
            return unknown(CHECK, &subject, "it is not understood", &mend);
        }
        Err(fault @ HttpsFault::NoProxy(own)) => {
            let subject = format!("Whether clients accept the certificate for {name}");
            let mend = format!("Add {own} to http.proxy_protocol_from, or look from outside.");
            return unknown(CHECK, &subject, &fault.to_string(), &mend);
        }
        Err(HttpsFault::Connection(reason)) => {
            return Finding::new(
                CHECK,
                Level::Error,
                format!("HTTPS for {name} does not answer at {address}: {}.", failing(reason)),
                "No client can connect.",
                match by_authority {
                    true => renew,
                    false => "Look at tls.bind, tls.certificate and the log of the server.",
                },
            );
        }
        Err(fault) => {
            return Finding::new(
                CHECK,
                Level::Error,
                format!(
                    "Clients do not accept the certificate for {name}: {}.",
                    failing(&fault.to_string())
                ),
                "They break off the connection, and nobody can log in.",
                mend(fault, renew, by_authority),
            );
        }
    };
    let left_ms = expires_ms.saturating_sub(now_ms);
    let what = format!("The certificate for {name} is good for {}.", duration(left_ms / 1000));
    if left_ms >= millis(limits::CERTIFICATE_SOON) {
        return Finding::ok(CHECK, what);
    }
    let why = "It should have been renewed by now; when it expires, no client connects any more.";
    Finding::new(CHECK, Level::Warning, what, why, renew)
}

/// What mends a certificate that clients refuse.
fn mend(fault: &HttpsFault, renew: &'static str, by_authority: bool) -> &'static str {
    match (fault, by_authority) {
        (HttpsFault::Name, true) => "acme.domains, with the host of server.public_url among them",
        (HttpsFault::Name, false) => {
            "tls.certificate, with a certificate for the host of server.public_url"
        }
        (HttpsFault::Issuer, true) => {
            "acme.directory, with an authority that clients trust, which a staging authority is not. \
             If your clients trust an authority of your own, name it in outbound.certificates."
        }
        (HttpsFault::Issuer, false) => {
            "tls.certificate must hold the certificate and those between it and a known authority. \
             If your clients trust an authority of your own, name it in outbound.certificates."
        }
        (HttpsFault::NotYet, _) => "Set the clock of this machine, or wait until it is valid.",
        _ => renew,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;
    const DAY: u64 = 86_400_000;

    fn judged(seen: Result<Option<u64>, HttpsFault>, by_authority: bool) -> Finding {
        let place = ("m.example", SocketAddr::from(([127, 0, 0, 1], 443)));
        judge(place, &seen, by_authority, NOW)
    }

    #[test]
    fn certificates_that_clients_refuse_or_that_expire_are_found() {
        for (seen, level) in [
            (Ok(Some(NOW + 60 * DAY)), Level::Ok),
            (Ok(Some(NOW + 13 * DAY)), Level::Warning),
            (Ok(None), Level::Unknown),
            (Err(HttpsFault::NoProxy([127, 0, 0, 1].into())), Level::Unknown),
            (Err(HttpsFault::Expired), Level::Error),
            (Err(HttpsFault::Name), Level::Error),
            (Err(HttpsFault::Issuer), Level::Error),
            (Err(HttpsFault::Connection("refused".to_owned())), Level::Error),
        ] {
            for by_authority in [false, true] {
                let found = judged(seen.clone(), by_authority);
                assert_eq!(found.level, level, "{seen:?}");
                assert_eq!(found.mend.is_empty(), level == Level::Ok, "{found:?}");
            }
        }
    }

    #[test]
    fn what_mends_it_depends_on_where_the_certificate_is_from() {
        assert!(judged(Err(HttpsFault::Name), true).mend.contains("acme.domains"));
        assert!(judged(Err(HttpsFault::Name), false).mend.contains("tls.certificate"));
        assert!(judged(Err(HttpsFault::Expired), true).mend.contains("acme.directory"));
    }
}
