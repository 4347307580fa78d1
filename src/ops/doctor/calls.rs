//! The LiveKit server for calls, if this server lets users into it.

use super::{Finding, Level, Subject, failing, in_time, outbound};
use logcabin_outside::livekit::{Livekit, LivekitError};

const CHECK: &str = "calls";

/// What LiveKit says when it is asked with the configured key.
struct Answer {
    has_long_secret: bool,
    asked: Result<(), String>,
    /// Whether it answers, and refuses the key.
    refuses: bool,
}

pub(super) async fn finding(of: &Subject<'_>) -> Finding {
    let rtc = &of.config.rtc;
    let Some(url) = &rtc.livekit_url else {
        let what = match rtc.service_urls.is_empty() {
            true => "No LiveKit server is configured: there are no calls of many.",
            false => "Others let users into calls (rtc.service_urls), and are not asked here.",
        };
        return Finding::ok(CHECK, what);
    };
    // The configuration names the address, which may be one of this network.
    let livekit = outbound(of.config, true).and_then(|outbound| Livekit::new(rtc, &outbound));
    let answer = match livekit {
        Ok(Some(livekit)) => Ok(ask(&livekit, of.now_ms).await),
        // There is an address, as above.
        Ok(None) => Err("it is not configured".to_owned()),
        Err(error) => Err(error),
    };
    judge(&url.to_string(), &answer)
}

async fn ask(livekit: &Livekit, now_ms: u64) -> Answer {
    let mut refuses = false;
    let asked = in_time(async {
        let asked = Box::pin(livekit.check(now_ms)).await;
        refuses = matches!(&asked, Err(LivekitError::Status(status)) if status.as_u16() == 401);
        asked
    });
    let asked = asked.await;
    Answer { has_long_secret: livekit.has_long_secret(), asked, refuses }
}

fn judge(url: &str, answer: &Result<Answer, String>) -> Finding {
    let broken = |what: String, mend: &str| {
        Finding::new(CHECK, Level::Error, what, "Nobody can begin a call.", mend)
    };
    match answer {
        Err(reason) => broken(
            format!("The settings for calls are not usable: {}.", failing(reason)),
            "rtc.livekit_url, rtc.livekit_api_url and rtc.livekit_keys_file: see docs/calls.md",
        ),
        Ok(Answer { refuses: true, .. }) => broken(
            format!("LiveKit at {url} refuses this server's key."),
            "The first line of rtc.livekit_keys_file must be one of the keys in LiveKit's \
             configuration, and the clocks of the two machines must agree.",
        ),
        Ok(Answer { asked: Err(reason), .. }) => broken(
            format!("LiveKit at {url} does not answer as it should: {}.", failing(reason)),
            "Start LiveKit, and have rtc.livekit_url, or rtc.livekit_api_url, lead to it.",
        ),
        Ok(Answer { has_long_secret: false, .. }) => Finding::new(
            CHECK,
            Level::Warning,
            "The secret that is shared with LiveKit has fewer than 32 characters.",
            "Whoever guesses it can enter, record and end every call.",
            "A new key in LiveKit's configuration and in rtc.livekit_keys_file, with the output of: \
             openssl rand -hex 32",
        ),
        Ok(_) => Finding::ok(CHECK, format!("LiveKit at {url} takes this server's key.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_livekit_is_told_apart() {
        let answer = |asked: Result<(), &str>, refuses, has_long_secret| {
            let asked = asked.map_err(ToOwned::to_owned);
            judge("wss://l.example", &Ok(Answer { has_long_secret, asked, refuses }))
        };
        assert_eq!(answer(Ok(()), false, true).level, Level::Ok);
        assert_eq!(answer(Ok(()), false, false).level, Level::Warning);
        let silent = answer(Err("no answer in time"), false, true);
        assert_eq!(silent.level, Level::Error);
        assert!(silent.what.contains("no answer in time"), "{silent:?}");
        let refused = answer(Err("it answered with status 401"), true, false);
        assert_eq!(refused.level, Level::Error);
        assert!(refused.mend.contains("clocks"), "{refused:?}");
        assert_eq!(judge("wss://l.example", &Err("no file".to_owned())).level, Level::Error);
    }
}
