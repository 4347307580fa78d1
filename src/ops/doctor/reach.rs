//! How this server looks to other homeservers and to clients: what is asked of DNS, of its own name
//! and of others. [`names`], [`outsiders`] and [`clock`] judge it.

use std::{collections::BTreeMap, net::IpAddr};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use futures_util::future::join_all;
use ruma::OwnedServerName;
use serde_json::Value;

use super::{
    Finding, STOPPED, Subject, clock, configuration::is_public, in_time, names, outbound,
    outsiders, unknown,
};
use logcabin_base::{clock::millis, limits};
use logcabin_outside::federation::{FederationClient, OwnCertificate, Unreachable, Vouched};

/// What was found about the names of this server.
#[derive(Debug)]
pub(super) struct Names {
    /// The server's name, and whether its host has no port and is no address: only then DNS and
    /// `/.well-known` say more.
    pub(super) name: OwnedServerName,
    pub(super) delegate: Option<OwnedServerName>,
    /// The addresses of the hosts to which others connect.
    pub(super) addresses: Vec<(String, Result<Vec<IpAddr>, String>)>,
    pub(super) services: Result<Vec<(String, u16)>, String>,
    /// What `/.well-known/matrix/server` says.
    pub(super) delegation: Result<OwnedServerName, String>,
}

/// What others see.
#[derive(Debug)]
pub(super) struct Outside {
    pub(super) certificate: Result<OwnCertificate, Unreachable>,
    /// What each notary says of the server's keys.
    pub(super) notaries: Vec<(OwnedServerName, Result<Vouched, String>)>,
    /// The key that the server signs with now: its id, and in base64.
    pub(super) key: (String, String),
    pub(super) now_ms: u64,
}

pub(super) async fn findings(of: &Subject<'_>) -> Vec<Finding> {
    let (mut found, client) =
        tokio::join!(Box::pin(federation(of)), Box::pin(well_known_client(of)));
    found.extend(client);
    found
}

async fn federation(of: &Subject<'_>) -> Vec<Finding> {
    if !of.config.federation.enabled {
        let what = "Federation is off: other homeservers need not reach this one.";
        return vec![Finding::ok("federation", what)];
    }
    let others = of.context.ok().and_then(|context| Some((context, context.others.as_ref()?)));
    let Some((context, others)) = others.filter(|_| of.running.is_some()) else {
        let mend = super::finding::START;
        return [
            ("dns", "What DNS says of the server's name"),
            ("well-known-server", "What /.well-known/matrix/server says"),
            ("certificate", "Whether others accept the server's certificate"),
            ("reachability", "Whether other homeservers reach this one"),
            ("clock", "Whether the clock is right"),
        ]
        .map(|(check, subject)| unknown(check, subject, STOPPED, mend))
        .into();
    };
    let client = &*others.client;
    let notaries = of.config.federation.notaries.to_vec();
    let peers = peers(context);
    let (names, certificate, notaries, clocks) = tokio::join!(
        Box::pin(look_up(of, client)),
        Box::pin(async {
            let asked = tokio::time::timeout(limits::DOCTOR_TIME, client.own_certificate()).await;
            asked.unwrap_or(Err(Unreachable::Late))
        }),
        join_all(notaries.into_iter().map(|notary| async move {
            // More than any copy that the notary may have: it must fetch the keys.
            let until_ms = of.now_ms.saturating_add(millis(limits::OWN_KEYS_LIFETIME));
            let vouched = in_time(client.vouched_by(&notary, until_ms)).await;
            (notary, vouched)
        })),
        join_all(peers.into_iter().map(|peer| async move {
            let ahead = in_time(client.clock_of(&peer)).await;
            (peer, ahead)
        })),
    );
    let key = context.engine.env().server.with_current(|pair| {
        (format!("ed25519:{}", pair.version()), STANDARD_NO_PAD.encode(pair.public_key()))
    });
    let mut ahead: BTreeMap<_, _> =
        clocks.into_iter().filter_map(|(peer, ahead)| Some((peer, ahead.ok()?))).collect();
    ahead.extend(
        notaries.iter().filter_map(|(notary, vouched)| {
            Some((notary.clone(), vouched.as_ref().ok()?.ahead_ms?))
        }),
    );
    let outside = Outside { certificate, notaries, key, now_ms: of.now_ms };
    let mut found = names::judge(&names);
    if of.config.outbound.proxy_resolves_names {
        // What this machine knows of names says nothing of what others know.
        found.retain(|one| one.check != "dns");
        let reason = "the outbound proxy resolves names for this machine";
        let mend = format!("dig {} on another machine", of.config.server.name.host());
        found.push(unknown("dns", "What DNS says of the server's name", reason, &mend));
    }
    found.extend(outsiders::judge(&outside));
    found.push(clock::judge(&ahead));
    found
}

/// Some other homeservers that were reached lately.
fn peers(context: &crate::admin::context::ActContext) -> Vec<OwnedServerName> {
    let all = context.engine.state().destinations.all().into_iter();
    let reached = all.filter(|(_, of)| of.failing.is_none() && of.up_to.get() > 0);
    reached.map(|(name, _)| name).take(limits::DOCTOR_CLOCKS).collect()
}

async fn look_up(of: &Subject<'_>, client: &FederationClient) -> Names {
    let name = of.config.server.name.clone();
    let delegate = of.config.federation.delegate.clone();
    let own = name.host();
    let other = delegate.as_ref().map(|of| of.host()).filter(|of| *of != own);
    let hosts = [own].into_iter().chain(other).map(str::to_owned);
    let addresses = hosts.map(|host| async move {
        let found = in_time(client.addresses_of(&host)).await;
        (host, found)
    });
    // A name with a port, and an address, say everything themselves.
    let is_complete = name.is_ip_literal() || name.port().is_some();
    let services = async {
        if is_complete { Ok(Vec::new()) } else { in_time(client.services_of(name.host())).await }
    };
    let delegation = async {
        match is_complete {
            true => Err("the server's name needs none".to_owned()),
            false => in_time(client.own_delegation()).await,
        }
    };
    let (addresses, services, delegation) =
        tokio::join!(join_all(addresses), Box::pin(services), Box::pin(delegation));
    Names { delegate, addresses, services, delegation, name }
}

/// What clients are told that know only the server's name.
async fn well_known_client(of: &Subject<'_>) -> Option<Finding> {
    const CHECK: &str = "well-known-client";
    let announced = of.config.server.announced_url().filter(|_| of.config.server.discovery)?;
    if !is_public(of.config) || !announced.starts_with("https:") {
        return None;
    }
    if of.running.is_none() {
        let subject = "What /.well-known/matrix/client says";
        return Some(unknown(CHECK, subject, STOPPED, super::finding::START));
    }
    let address = format!("https://{}/.well-known/matrix/client", of.config.server.name);
    let document: Result<Value, String> = match outbound(of.config, false) {
        Ok(outbound) => in_time(Box::pin(outbound.document(&address))).await,
        Err(error) => Err(error),
    };
    Some(names::judge_client(&announced, of.config.rtc.has_calls(), &document))
}
