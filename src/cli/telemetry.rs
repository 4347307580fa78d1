//! The server's log output: its format and destination. Only the program installs it; a library
//! user brings their own subscriber.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::{
    EnvFilter,
    filter::{LevelFilter, ParseError},
    reload,
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

/// The variable that replaces `server.log_filter`.
const VARIABLE: &str = "LOGCABIN_LOG";

/// Changes which messages are logged.
pub(super) struct LogControl(Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>);

impl LogControl {
    /// Logs by the directives of the variable `LOGCABIN_LOG`, or else by `configured`.
    ///
    /// # Errors
    /// When the directives cannot be read; the text says where they are from. What was logged
    /// before is logged on.
    pub(super) fn set(&self, configured: &str) -> Result<(), String> {
        (self.0)(chosen(configured)?).map_err(|error| error.to_string())
    }
}

/// The filter of the variable, or else the configured one.
fn chosen(configured: &str) -> Result<EnvFilter, String> {
    let given = std::env::var(VARIABLE).ok().filter(|given| !given.trim().is_empty());
    match given {
        Some(given) => filter(Some(&given))
            .map_err(|error| format!("environment variable {VARIABLE}: {error}")),
        None => filter(Some(configured)).map_err(|error| format!("`server.log_filter`: {error}")),
    }
}

/// Starts logging to standard error: what `configured` says, in the syntax of `RUST_LOG`, unless
/// the variable `LOGCABIN_LOG` says something else.
///
/// # Errors
/// When the directives cannot be read, or the process has a log already.
pub(super) fn install_for(
    format: LogFormat,
    configured: &str,
) -> Result<LogControl, Box<dyn std::error::Error + Send + Sync>> {
    let builder =
        tracing_subscriber::fmt().with_env_filter(chosen(configured)?).with_writer(io::stderr);
    let control = match format {
        LogFormat::Human => {
            let builder = builder.with_ansi(io::stderr().is_terminal()).with_target(false);
            // Last: what it makes is of the type of all that came before.
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            builder.try_init()?;
            LogControl(Box::new(move |filter| handle.reload(filter)))
        }
        LogFormat::Json => {
            let builder =
                builder.json().flatten_event(true).with_current_span(true).with_span_list(false);
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            builder.try_init()?;
            LogControl(Box::new(move |filter| handle.reload(filter)))
        }
    };
    Ok(control)
}

/// Starts logging to standard error. The variable `LOGCABIN_LOG` changes what is logged, in the
/// syntax of `RUST_LOG`.
///
/// # Errors
/// When `LOGCABIN_LOG` cannot be read, or the process has a log already.
pub fn install(format: LogFormat) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    install_for(format, "info").map(drop)
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
