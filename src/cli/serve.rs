//! `logcabin serve`: runs the server.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use super::telemetry::{self, LogControl, LogFormat};
use logcabin_config::{
    Bind, Config, OpenRegistration, Registration, Requirement, value::RegistrationStage,
};
use logcabin_server::{self as server, Reloads, Started};

/// Run the server (the default command)
///
/// The server runs until SIGTERM or SIGINT (Ctrl-C). It then finishes the requests in progress and
/// stops; a second signal stops it at once. At SIGHUP it reads its certificates and its
/// configuration again, and logs which changed settings take effect.
#[derive(Debug, clap::Args)]
pub(super) struct Serve {
    #[command(flatten)]
    pub(super) settings: super::Settings,

    /// Format of the log lines on standard error
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        env = "LOGCABIN_LOG_FORMAT",
        default_value = "human"
    )]
    log_format: LogFormat,

    /// Try out a copy: nothing leaves the server, and nobody outside is served
    ///
    /// No notification, mail, text message, transaction for a bridge or another homeserver, and no
    /// other request leaves. The data directory must be one for rehearsals.
    #[arg(long)]
    rehearsal: bool,
}

impl Serve {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let mut settings = self.settings.clone();
        settings.rehearsal = self.rehearsal;
        let config = settings.load()?.config;
        let log = telemetry::install_for(self.log_format, &config.server.log_filter)?;
        #[cfg(feature = "import")]
        if !config.outbound.rehearsal {
            super::import_synapse::must_be_unused(&config.server.data_dir)?;
        }
        // While this is the only thread: it changes the environment.
        server::inherit_sockets()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let stop = stop_signal()?;
            let reloads = reload_signal(settings, log)?;
            let hints = io::stdout().is_terminal();
            let started = |Started { config, has_accounts }: Started<'_>| {
                // For a user at a terminal; programs read the log output.
                if io::stdout().is_terminal() || self.log_format == LogFormat::Human {
                    // The server runs without standard output.
                    let _ = io::stdout()
                        .lock()
                        .write_all(banner(config, hints && !has_accounts).as_bytes());
                }
            };
            server::run(config, Box::pin(stop), reloads, Box::new(started)).await?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Completes at the first SIGTERM or SIGINT; at the second the process ends at once.
fn stop_signal() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut next = async move || {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    };
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        let first = next().await;
        info!(signal = first, "stopping");
        drop(sender);
        let second = next().await;
        info!(signal = second, "stopping at once");
        std::process::exit(130);
    });
    Ok(async move {
        let _ = receiver.await;
    })
}

/// Reads the configuration again at each SIGHUP, for the server, and takes over what is logged.
fn reload_signal(settings: super::Settings, log: LogControl) -> io::Result<Reloads> {
    let mut hang_up = signal(SignalKind::hangup())?;
    // One that waits is enough: it is as new as one after it.
    let (sender, reloads) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        while hang_up.recv().await.is_some() {
            info!(signal = "SIGHUP", "reloading");
            let reread = settings.load().map_err(|error| error.to_string());
            let reread = reread.and_then(|effective| {
                effective.config.check().map_err(|error| error.to_string())?;
                log.set(&effective.config.server.log_filter)?;
                Ok(Box::new(effective.config))
            });
            if sender.send(reread).await.is_err() {
                return;
            }
        }
    });
    Ok(reloads)
}

/// What a new operator needs to know once the server runs. `hints` for what to try next: on a
/// terminal, and while there is no account.
fn banner(config: &Config, hints: bool) -> String {
    let place = |bind: &Bind| match bind {
        Bind::Tcp(address) => format!("http://{address}"),
        Bind::Unix(_) => bind.to_string(),
    };
    let mut listening: Vec<_> = config.server.bind.iter().map(place).collect();
    if config.has_tls() {
        listening.extend(config.tls.bind.iter().map(|bind| format!("https://{bind}")));
    }
    let loopback = config.server.bind.iter().all(Bind::is_loopback) && !config.has_tls();
    // Once there are accounts, the name cannot be changed.
    let name_note = if config.server.name == "localhost" && !loopback {
        "; it can never be changed:\n                 \
         for a server that others use, start over with --server-name and a name of your own"
    } else {
        ""
    };
    let discovery = if config.server.discovery && config.server.announced_url().is_none() {
        "  Discovery      off: set server.public_url to the address that clients use\n"
    } else {
        ""
    };
    format!(
        "\n  Logcabin {version}\n\n  \
           Listening      {listening}\n  \
           Server name    {name}   (users are @someone:{name}){name_note}\n  \
           Data           {data}\n  \
           Registration   {registration}\n\
         {discovery}  \
           Settings       `logcabin config` prints and explains them\n\n{try_next}",
        version = env!("CARGO_PKG_VERSION"),
        listening = listening.join(", "),
        name = config.server.name,
        data = config.server.data_dir.display(),
        registration = registration(config),
        // curl sends no PROXY header.
        try_next = match hints && !config.server.proxy_protocol {
            true => try_next(config),
            false => String::new(),
        },
    )
}

/// Who can create an account.
fn registration(config: &Config) -> String {
    let asked = asked(&config.registration);
    match (config.registration.is_open(&config.server), config.registration.open) {
        (true, OpenRegistration::Auto) if asked.is_empty() => {
            "open, as only this machine can reach the server".to_owned()
        }
        (true, _) if asked.is_empty() => {
            "open: anyone who reaches the server can create an account".to_owned()
        }
        (true, _) => format!("a new user must have or do this: {}", asked.join("; ")),
        (false, OpenRegistration::Auto) => {
            "closed, as others may reach the server; open it with --open-registration".to_owned()
        }
        (false, _) => "closed: administrators create accounts (`logcabin user create`)".to_owned(),
    }
}

/// What a new user is asked for. A stage that offers "dummy" can be skipped.
fn asked(registration: &Registration) -> Vec<String> {
    let must = registration.require.iter().filter(|one| !one.0.contains(&RegistrationStage::Dummy));
    let words = |Requirement(choice): &Requirement| -> String {
        let choice: Vec<_> = choice.iter().map(|stage| in_words(*stage)).collect();
        choice.join(" or ")
    };
    let approval = registration.approval.then(|| "wait for an approval".to_owned());
    must.map(words).chain(approval).collect()
}

const fn in_words(stage: RegistrationStage) -> &'static str {
    match stage {
        RegistrationStage::Token => "a registration token",
        RegistrationStage::Captcha => "a captcha",
        RegistrationStage::Terms => "agree to the terms",
        RegistrationStage::Email => "confirm an email address",
        RegistrationStage::Msisdn => "confirm a phone number",
        other => other.as_str(),
    }
}

fn try_next(config: &Config) -> String {
    let url = config.server.local_url();
    let prefix = config.server.prefixes.first().map(ToString::to_string).unwrap_or_default();
    // If registration has stages, it takes several requests.
    let registration = &config.registration;
    let nothing_asked = registration.require == [Requirement::default()] && !registration.approval;
    let lines = if config.registration.is_open(&config.server) && nothing_asked {
        format!(
            "    curl {url}{prefix}/client/versions\n    \
                 curl -X POST {url}{prefix}/client/v3/register -d \\\n      \
                   '{{\"username\":\"ann\",\"password\":\"correct horse\",\"auth\":{{\"type\":\"m.login.dummy\"}}}}'\n  \
             or give {url} to a Matrix client as its homeserver."
        )
    } else {
        format!("    logcabin user create NAME --admin\n    curl {url}{prefix}/client/versions")
    };
    format!("  Try next:\n{lines}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_banner_says_how_registration_is_set() {
        let mut config = Config::default();
        assert!(banner(&config, true).contains("open, as only this machine"));
        assert!(banner(&config, true).contains("m.login.dummy"));
        assert!(!banner(&config, false).contains("curl"));
        assert!(!banner(&config, true).contains("server.public_url"));
        config.server.bind = vec![Bind::Tcp("0.0.0.0:8008".parse().unwrap())];
        assert!(banner(&config, true).contains("--open-registration"));
        assert!(banner(&config, true).contains("--server-name"));
        assert!(banner(&config, true).contains("http://127.0.0.1:8008"));
        assert!(!banner(&config, true).contains("m.login.dummy"));
        assert!(banner(&config, true).contains("server.public_url"));
    }

    #[test]
    fn the_banner_says_what_a_new_user_is_asked_for() {
        use RegistrationStage::{Captcha, Dummy, Email, Msisdn, Token};
        let mut config = Config::default();
        config.registration.open = OpenRegistration::Yes;
        for (require, said) in [
            (vec![vec![Token]], "this: a registration token"),
            (vec![vec![Captcha], vec![Token]], "this: a captcha; a registration token"),
            (vec![vec![Email, Msisdn]], "confirm an email address or confirm a phone number"),
            (vec![vec![Email, Dummy]], "anyone who reaches the server"),
        ] {
            config.registration.require = require.into_iter().map(Requirement).collect();
            let text = banner(&config, true);
            assert!(text.contains(said), "{text}");
            assert!(!text.contains("m.login.dummy"), "{text}");
            assert_eq!(text.contains("anyone"), said.contains("anyone"), "{text}");
        }
    }
}
