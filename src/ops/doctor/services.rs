//! The services that the server uses, and the address by which clients log in.

use futures_util::future::join_all;
use serde_json::Value;

use super::{
    Finding, Level, STOPPED, Subject, calls, failing, finding::START, in_time, outbound, unknown,
};
use crate::history::terminal::duration;
use logcabin_base::limits;
use logcabin_config::Config;
use logcabin_outside::{
    mail::Messages,
    pushers::FailingGateway,
    turn::{TurnError, bind},
};

pub(super) async fn findings(of: &Subject<'_>) -> Vec<Finding> {
    let (turn, livekit, mail, oauth) = tokio::join!(
        Box::pin(turn(of.config)),
        Box::pin(calls::finding(of)),
        Box::pin(mail(of.config)),
        Box::pin(oauth(of))
    );
    let gateways = of.running.map(|running| running.pushers.failing());
    let mut found = turn;
    found.extend([livekit, mail]);
    found.push(judge_gateways(gateways.as_deref(), of.now_ms));
    found.extend(oauth);
    found
}

async fn turn(config: &Config) -> Vec<Finding> {
    if config.turn.uris.is_empty() {
        let what = "No TURN server is configured: calls work only between networks that allow it.";
        return vec![Finding::ok("turn", what)];
    }
    let asked = config.turn.uris.iter().map(|uri| async move {
        let asked = tokio::time::timeout(limits::DOCTOR_TIME, Box::pin(bind(uri))).await;
        judge_turn(&uri.to_string(), &asked.unwrap_or(Err(TurnError::Silent)))
    });
    join_all(asked).await
}

fn judge_turn(uri: &str, answer: &Result<(), TurnError>) -> Finding {
    const CHECK: &str = "turn";
    match answer {
        Ok(()) => Finding::ok(CHECK, format!("{uri} answers.")),
        Err(error @ TurnError::Untried(_)) => unknown(
            CHECK,
            &format!("Whether {uri} answers"),
            &error.to_string(),
            "Make a call between two networks.",
        ),
        Err(error) => Finding::new(
            CHECK,
            Level::Error,
            format!("{uri} does not work: {}.", failing(&error.to_string())),
            "Calls between networks fail.",
            "Start the TURN server, open its port, or correct turn.uris.",
        ),
    }
}

async fn mail(config: &Config) -> Finding {
    const CHECK: &str = "mail";
    let Some(host) = &config.email.host else {
        let what = "No mail server is configured: nothing is sent by mail.";
        return Finding::ok(CHECK, what);
    };
    let logged_in = match outbound(config, true) {
        Err(error) => Err(error),
        Ok(outbound) => {
            match Messages::new(&config.email, &config.sms, &config.server.name, &outbound) {
                Err(error) => Err(error.to_string()),
                Ok(messages) => in_time(Box::pin(messages.log_in_for_mail())).await,
            }
        }
    };
    judge_mail(host, &logged_in)
}

fn judge_mail(host: &str, logged_in: &Result<(), String>) -> Finding {
    match logged_in {
        Ok(()) => Finding::ok("mail", format!("The mail server {host} accepts the login.")),
        Err(reason) => Finding::new(
            "mail",
            Level::Error,
            format!("No mail can be sent by {host}: {}.", failing(reason)),
            "Nobody can confirm an address or get a new password, and nobody is told by mail what \
             was missed.",
            "email.host, email.port, email.security, email.user and email.password_file",
        ),
    }
}

fn judge_gateways(failing_ones: Option<&[FailingGateway]>, now_ms: u64) -> Finding {
    const CHECK: &str = "push-gateways";
    let all = match failing_ones {
        None => return unknown(CHECK, "Which push gateways fail", STOPPED, START),
        Some([]) => return Finding::ok(CHECK, "No push gateway fails."),
        Some(all) => all,
    };
    let named = all.iter().take(limits::DOCTOR_NAMED).map(|of| {
        let since = duration(now_ms.saturating_sub(of.since_ms) / 1000);
        format!("{} for {since} ({})", of.origin, failing(&of.error))
    });
    let named = named.collect::<Vec<_>>().join("; ");
    let rest = all.len().saturating_sub(limits::DOCTOR_NAMED);
    let rest = if rest > 0 { format!("; and {rest} more") } else { String::new() };
    Finding::new(
        CHECK,
        Level::Warning,
        format!("{} push gateway(s) fail: {named}{rest}.", all.len()),
        "Phones are not told of new messages.",
        "Notifications are tried again for push.give_up_seconds. If all gateways fail, look at the \
         network and DNS; for one in your own network, at push.allowed_networks.",
    )
}

/// Whether clients that log in with OAuth 2.0 are told the right addresses.
async fn oauth(of: &Subject<'_>) -> Option<Finding> {
    let announced = of.config.server.announced_url().filter(|_| of.config.oauth.enabled)?;
    if of.running.is_none() {
        let subject = "Whether OAuth 2.0 is announced correctly";
        return Some(unknown("oauth", subject, STOPPED, START));
    }
    let mut prefixes: Vec<_> = of.config.server.prefixes.iter().map(ToString::to_string).collect();
    prefixes.sort_by_key(|prefix| prefix != "/_matrix");
    let prefix = prefixes.into_iter().next().unwrap_or_default();
    let address = format!("{announced}{prefix}/client/v1/auth_metadata");
    // The configuration names the address, which may be one of this network.
    let document = match outbound(of.config, true) {
        Ok(outbound) => in_time(Box::pin(outbound.document(&address))).await,
        Err(error) => Err(error),
    };
    Some(judge_oauth(&announced, &address, &document))
}

fn judge_oauth(announced: &str, address: &str, document: &Result<Value, String>) -> Finding {
    const CHECK: &str = "oauth";
    let mend = "Have server.public_url and the proxy lead to this server.";
    let document = match document {
        Ok(document) => document,
        Err(reason) => {
            return Finding::new(
                CHECK,
                Level::Error,
                format!("{address} cannot be read: {}.", failing(reason)),
                "Clients that log in with OAuth 2.0 cannot, and others may not reach the server \
                 either.",
                mend,
            );
        }
    };
    let wanted = ["issuer", "authorization_endpoint", "token_endpoint"];
    let elsewhere = wanted.iter().find_map(|name| {
        let said = document.get(name).and_then(Value::as_str).unwrap_or("nothing");
        let rest = said.strip_prefix(announced.trim_end_matches('/'));
        // What follows must be a path: the rest of a host would make it another one.
        (!rest.is_some_and(|rest| rest.starts_with('/'))).then_some((name, said))
    });
    match elsewhere {
        None => Finding::ok(CHECK, format!("Clients find OAuth 2.0 at {announced}.")),
        Some((name, said)) => Finding::new(
            CHECK,
            Level::Error,
            format!("At {announced}, the {name} of OAuth 2.0 is {}.", failing(said)),
            "Another server answers at this address, and clients log in there or not at all.",
            mend,
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_turn_server_that_does_not_answer_is_found() {
        assert_eq!(judge_turn("turn:t", &Ok(())).level, Level::Ok);
        assert_eq!(judge_turn("turn:t", &Err(TurnError::Silent)).level, Level::Error);
        assert_eq!(judge_turn("turns:t", &Err(TurnError::Untried("DTLS"))).level, Level::Unknown);
    }

    #[test]
    fn a_mail_server_that_refuses_the_login_is_found() {
        assert_eq!(judge_mail("m.example", &Ok(())).level, Level::Ok);
        let refused = judge_mail("m.example", &Err("535 wrong password".to_owned()));
        assert_eq!(refused.level, Level::Error);
        assert!(refused.what.contains("535 wrong password"), "{refused:?}");
    }

    #[test]
    fn failing_gateways_are_named() {
        assert_eq!(judge_gateways(None, 0).level, Level::Unknown);
        assert_eq!(judge_gateways(Some(&[]), 0).level, Level::Ok);
        let one = FailingGateway {
            origin: "https://push.example".to_owned(),
            since_ms: 1_000,
            error: "no connection".to_owned(),
        };
        let found = judge_gateways(Some(&vec![one; limits::DOCTOR_NAMED + 2]), 61_000);
        assert_eq!(found.level, Level::Warning);
        for words in ["https://push.example for 1 min (no connection)", "and 2 more"] {
            assert!(found.what.contains(words), "{found:?}");
        }
    }

    #[test]
    fn oauth_must_be_announced_at_the_same_address() {
        let at = |base: &str| {
            Ok(json!({
                "issuer": format!("{base}/_matrix/oauth2"),
                "authorization_endpoint": format!("{base}/_matrix/oauth2/authorize"),
                "token_endpoint": format!("{base}/_matrix/oauth2/token"),
            }))
        };
        for (document, level) in [
            (at("https://m.example"), Level::Ok),
            (at("https://m.example.evil.example"), Level::Error),
            (at("https://other.example"), Level::Error),
            (Ok(json!({})), Level::Error),
            (Err("no answer".to_owned()), Level::Error),
        ] {
            let found = judge_oauth("https://m.example", "https://m.example/x", &document);
            assert_eq!(found.level, level, "{document:?}");
        }
    }
}
