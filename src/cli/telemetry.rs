//! The server's log output: its format and destination. Only the program installs it; a library
//! user brings their own subscriber.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::{
    EnvFilter,
    filter::{LevelFilter, ParseError},
};

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people, in colour on a terminal.
    Human,
    /// One JSON object on each line, for programs.
    Json,
}

/// The directives that apply unless `LOGCABIN_LOG` overrides them. The library with the
/// authorisation rules logs every event that it allows at level `info`.
const BUILT_IN: &str = "info,ruma_state_res=warn";

/// The built-in directives with those of `LOGCABIN_LOG` on top.
fn filter(directives: Option<&str>) -> Result<EnvFilter, ParseError> {
    let Some(directives) = directives.filter(|given| !given.trim().is_empty()) else {
        return EnvFilter::try_new(BUILT_IN);
    };
    // A later directive overrides an earlier one for the same target. The built-in directive for
    // the library is only meant to make it quieter, so it must not apply when the default level is
    // below `warn`.
    let mut levels =
        directives.split(',').filter_map(|level| level.trim().parse::<LevelFilter>().ok());
    if levels.next_back().is_some_and(|level| level < LevelFilter::WARN) {
        return EnvFilter::try_new(directives);
    }
    EnvFilter::try_new(format!("{BUILT_IN},{directives}"))
}

/// Starts logging to standard error. The variable `LOGCABIN_LOG` changes what is logged, in the
/// syntax of `RUST_LOG`.
///
/// # Errors
/// When `LOGCABIN_LOG` cannot be read, or the process has a log already.
pub fn install(format: LogFormat) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let filter = filter(std::env::var("LOGCABIN_LOG").ok().as_deref())
        .map_err(|error| format!("environment variable LOGCABIN_LOG: {error}"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Human => {
            builder.with_ansi(io::stderr().is_terminal()).with_target(false).try_init()
        }
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .try_init(),
    }
}

#[cfg(test)]
mod tests {
    use tracing::{Level, enabled, subscriber::with_default};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn given_directives_override_the_built_in_ones() {
        // Whether `info` and `debug` of this program, and `info` and `warn` of the library, are
        // logged.
        for (directives, info, debug, rules_info, rules_warn) in [
            (None, true, false, false, true),
            (Some(""), true, false, false, true),
            (Some("info"), true, false, false, true),
            (Some("debug"), true, true, false, true),
            (Some("trace"), true, true, false, true),
            (Some("warn"), false, false, false, true),
            (Some("error"), false, false, false, false),
            (Some("off"), false, false, false, false),
            (Some("logcabin=debug"), true, true, false, true),
            (Some("info,logcabin=debug"), true, true, false, true),
            (Some("ruma_state_res=info"), true, false, true, true),
            (Some("warn,ruma_state_res=trace"), false, false, true, true),
        ] {
            let log = tracing_subscriber::registry().with(filter(directives).unwrap());
            let found = with_default(log, || {
                (
                    enabled!(target: "logcabin", Level::INFO),
                    enabled!(target: "logcabin", Level::DEBUG),
                    enabled!(target: "ruma_state_res", Level::INFO),
                    enabled!(target: "ruma_state_res", Level::WARN),
                )
            });
            assert_eq!(found, (info, debug, rules_info, rules_warn), "{directives:?}");
        }
        assert!(filter(Some("logcabin=loud")).is_err());
    }
}
