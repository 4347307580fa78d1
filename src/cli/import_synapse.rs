//! `logcabin import-synapse`: a Synapse server becomes a Logcabin.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use logcabin_base::disk;
use logcabin_config::{Config, Effective};
use logcabin_import::{
    ImportError, check,
    compare::{self, Compared, Extent},
    copy,
    facts::Source,
    former_server, mas,
    proposal::{Proposal, propose},
    synapse,
};
use logcabin_log::store::has_log;
use logcabin_ops::{
    former::{self, Former, Stage},
    history::{
        moment::Time,
        terminal::{clean, grouped},
    },
    setup::give_to_owner,
    source,
};
use logcabin_record::Offset;

/// The folder in the data directory with the proposed configuration.
const PROPOSED: &str = "proposed";

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Make a Logcabin of a Synapse server, with all users, sessions, rooms and keys
///
/// First `check`, then `copy` while Synapse runs; then stop Synapse, and `finish`. Synapse's
/// database and files are only read. docs/moving-from-synapse.md describes all of it.
#[derive(Debug, clap::Args)]
pub(super) struct ImportSynapse {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Check(Check),
    Copy(CopySource),
    Finish(Finish),
    Compare(Compare),
}

/// Where the source is.
#[derive(Clone, Debug, clap::Args)]
struct Place {
    /// Synapse's configuration
    #[arg(long, value_name = "HOMESERVER.YAML")]
    config: PathBuf,

    /// The configuration of matrix-authentication-service, if that logs the users in
    #[arg(long, value_name = "MAS.YAML")]
    mas: Option<PathBuf>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// What the configuration of the source says.
struct Settings {
    synapse: synapse::Settings,
    mas: Option<mas::Settings>,
}

impl Settings {
    /// Opens the source for reading.
    fn open(&self) -> Result<Box<dyn Source>, ImportError> {
        let synapse = synapse::Source::open(&self.synapse)?;
        Ok(match &self.mas {
            Some(mas) => Box::new(mas::Source::open(mas, synapse)?),
            None => Box::new(synapse),
        })
    }

    fn media(&self) -> &Path {
        &self.synapse.media_store_path
    }

    fn propose(&self, data_dir: &Path) -> Proposal {
        propose(&self.synapse.yaml, self.mas.as_ref(), data_dir, &data_dir.join(PROPOSED))
    }
}

/// Say what comes along, what does not, how long it takes and how much disk, and write nothing
///
/// Exits with 1 if the source cannot be imported as it is.
#[derive(Debug, clap::Args)]
struct Check {
    #[command(flatten)]
    place: Place,

    /// Print the logcabin.toml that would be proposed instead; it holds secrets
    #[arg(long, conflicts_with = "json")]
    toml: bool,
}

/// Copy everything into a new data directory; Synapse may run
///
/// It can be interrupted at any time and run again: it goes on where it was, with the same result.
/// It also writes a proposed logcabin.toml.
#[derive(Debug, clap::Args)]
struct CopySource {
    #[command(flatten)]
    place: Place,

    /// The data directory; empty or missing, unless this goes on
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// Keep up with Synapse until SIGINT (Ctrl-C) or SIGTERM
    #[arg(long)]
    follow: bool,
}

/// Take over from Synapse, which must be stopped: copy the rest, compare, and seal
///
/// A guard file beside homeserver.yaml says that Synapse must not be started again. Afterwards,
/// start the server.
#[derive(Debug, clap::Args)]
struct Finish {
    #[command(flatten)]
    place: Place,

    /// The data directory that was copied into
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// Make a data directory for `logcabin serve --rehearsal`, while Synapse runs. It can never be
    /// used for anything else
    #[arg(long, conflicts_with = "undo")]
    rehearsal: bool,

    /// Give the server back to Synapse: possible until something has left the new server. An
    /// interrupted `finish` can be undone, too
    #[arg(long)]
    undo: bool,

    /// With `--undo`: lose what users have done since
    #[arg(long, requires = "undo")]
    yes: bool,
}

/// Compare the answers of both, user by user and room by room
///
/// Both servers may be stopped; no server may run on the data directory. Exits with 1 if there are
/// differences without a reason.
#[derive(Debug, clap::Args)]
struct Compare {
    #[command(flatten)]
    place: Place,

    /// The data directory
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// Compare so many users, evenly among all, instead of all
    #[arg(long, value_name = "N")]
    users: Option<usize>,

    /// The same for rooms
    #[arg(long, value_name = "N")]
    rooms: Option<usize>,
}

impl ImportSynapse {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            Command::Check(check) => check.run(),
            Command::Copy(copy) => copy.run(),
            Command::Finish(finish) => match finish.undo {
                true => finish.undo(),
                false => finish.run(),
            },
            Command::Compare(compare) => compare.run(),
        }
    }
}

impl Place {
    fn settings(&self) -> Result<Settings, Failure> {
        let synapse = synapse::Settings::read(&self.config)?;
        let read = |path: &PathBuf| mas::Settings::read(path, &synapse.server_name);
        let mas = self.mas.as_ref().map(read).transpose()?;
        Ok(Settings { synapse, mas })
    }

    /// Prints a result: as it words itself, or as JSON.
    fn print(&self, result: &(impl Serialize + fmt::Display)) -> Result<(), Failure> {
        let mut text = match self.json {
            true => serde_json::to_string(result)?,
            false => result.to_string(),
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(super::print(&text)?)
    }
}

impl Check {
    fn run(&self) -> Result<ExitCode, Failure> {
        let settings = self.place.settings()?;
        if self.toml {
            super::print(&settings.propose(Path::new("/var/lib/logcabin")).text)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut source = settings.open()?;
        let report = check::check(&mut *source, settings.media())?;
        self.place.print(&report)?;
        match (refusal(&settings.synapse.yaml, settings.mas.is_some()), report.refused) {
            (Some(why), _) => Err(why.into()),
            (None, Some(why)) => Err(why.into()),
            (None, None) => Ok(ExitCode::SUCCESS),
        }
    }
}

/// Why a source cannot be imported although it can be read.
fn refusal(yaml: &Value, has_mas: bool) -> Option<&'static str> {
    let services =
        [&yaml["matrix_authentication_service"], &yaml["experimental_features"]["msc3861"]];
    match (services.iter().any(|service| service["enabled"] == true), has_mas) {
        (true, false) => Some(
            "matrix-authentication-service logs the users of this Synapse in, and has their \
             passwords and sessions: name its configuration, with --mas mas.yaml",
        ),
        (false, true) => Some(
            "this Synapse logs its users in itself, and does not use \
             matrix-authentication-service: leave --mas out",
        ),
        _ => None,
    }
}

/// What is to be done, and where it stands.
struct Move {
    settings: Settings,
    data_dir: PathBuf,
    former: Former,
    proposal: Proposal,
}

impl Move {
    /// Reads what there is.
    ///
    /// # Errors
    /// When the data directory is not one for this source, or another one has taken over from it.
    fn begin(place: &Place, data_dir: &Path) -> Result<Self, Failure> {
        let data_dir = std::path::absolute(data_dir)?;
        let settings = place.settings()?;
        if let Some(why) = refusal(&settings.synapse.yaml, settings.mas.is_some()) {
            return Err(why.into());
        }
        let mut source = settings.open()?;
        let former = former_server(&place.config, &settings.synapse.yaml, &mut *source)?;
        let former = former.go_on(&data_dir)?;
        let proposal = settings.propose(&data_dir);
        Ok(Self { settings, data_dir, former, proposal })
    }

    const fn is_finished(&self) -> bool {
        matches!(self.former.stage, Stage::Finished(_))
    }

    fn finished_already(&self) -> Failure {
        format!("the import into {} is finished", self.data_dir.display()).into()
    }

    fn options(&self) -> copy::Options {
        copy::Options {
            data_dir: self.data_dir.clone(),
            server_name: self.former.server_name.clone(),
            follow: false,
            rehearsal: false,
        }
    }

    /// Notes where this is from, before anything is copied, and writes the proposed configuration.
    /// One that is there is left alone: somebody may have changed it.
    fn note(&self) -> Result<PathBuf, Failure> {
        disk::make_private_dir(&self.data_dir)?;
        self.former.write(&self.data_dir)?;
        let folder = self.data_dir.join(PROPOSED);
        disk::make_private_dir(&folder)?;
        let toml = folder.join("logcabin.toml");
        let files = self.proposal.files.iter().map(|file| (&file.path, &file.text));
        for (path, text) in files.chain([(&toml, &self.proposal.text)]) {
            if !path.exists() {
                disk::write_whole(path, text.as_bytes())?;
            }
        }
        Ok(toml)
    }

    /// The proposed configuration; the defaults if it cannot be read.
    fn config(&self) -> Config {
        let file = (PathBuf::from("logcabin.toml"), self.proposal.text.clone());
        Effective::load(Some(file), [], &[]).map(|of| of.config).unwrap_or_default()
    }

    /// Where Synapse's streams are: the newest position in that of events, and all of them.
    fn positions(&self) -> Result<(i64, BTreeMap<String, i64>), Failure> {
        let mut source = self.settings.open()?;
        Ok((source.head()?, source.positions()?))
    }

    /// Whether Synapse was in use since this was noted.
    fn has_moved(&self, (head, positions): &(i64, BTreeMap<String, i64>)) -> bool {
        self.former.newest.is_some_and(|newest| newest != *head)
            || !self.former.moved(positions).is_empty()
    }

    /// Gives up, as Synapse has written what would be missing here.
    fn was_in_use(&mut self) -> Result<Failure, Failure> {
        give_back(&mut self.former, &self.data_dir)?;
        let at = self.data_dir.display();
        Ok(format!(
            "Synapse was started meanwhile, and what it wrote is not in {at}: remove that \
             directory, and copy again"
        )
        .into())
    }

    /// Refuses to go on while Synapse runs, or what logs its users in.
    fn must_be_stopped(&self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let config = self.config();
        runtime.block_on(self.former.must_be_silent_for(&self.data_dir, &config))?;
        if let Some(mas) = &self.settings.mas {
            let (issuer, addresses) = (mas.issuer.clone(), mas.addresses());
            let service = former::LoginService { issuer, addresses };
            runtime.block_on(service.must_be_silent_for(&config))?;
        }
        Ok(())
    }
}

impl CopySource {
    fn run(&self) -> Result<ExitCode, Failure> {
        let mut this = Move::begin(&self.place, &self.data_dir)?;
        former::must_not_be_rehearsed(&this.data_dir)?;
        if this.is_finished() {
            return Err(this.finished_already());
        }
        let toml = this.note()?;
        let stop = stop_signal()?;
        let mut progress = Progress::begin(self.place.json);
        let options = copy::Options { follow: self.follow, ..this.options() };
        let mut source = this.settings.open()?;
        let media = Some(this.settings.media());
        let copied = copy::copy(&mut *source, media, &options, &stop, &mut |at| progress.show(at));
        progress.end();
        if copied.is_ok() && this.former.newest.take().is_some() {
            // The `finish` that was interrupted had not begun to take anything.
            this.former.write(&this.data_dir)?;
        }
        give_to_owner(&this.data_dir);
        let copied = copied?;
        self.place.print(&copied)?;
        if !self.place.json && !copied.stopped {
            super::print(&format!(
                "Proposed {}: read it.\nNext: stop Synapse, and run `logcabin import-synapse \
                 finish`.\n",
                toml.display()
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Finish {
    fn run(&self) -> Result<ExitCode, Failure> {
        let mut this = Move::begin(&self.place, &self.data_dir)?;
        if this.is_finished() {
            // It may have been interrupted before it has removed what it no longer needs.
            copy::forget(&this.data_dir)?;
            return self.guard_again(&this);
        }
        if !self.rehearsal {
            former::must_not_be_rehearsed(&this.data_dir)?;
        }
        this.note()?;
        if self.rehearsal {
            // First, so that nothing that this leaves half-made can be taken for the real one.
            former::mark_for_rehearsals(&this.data_dir)?;
        } else {
            this.must_be_stopped()?;
            let now = this.positions()?;
            // What an interrupted one has made is made again, unless it had made everything.
            let is_made = has_log(&this.data_dir) || copy::is_complete(&this.data_dir)?;
            if is_made && this.has_moved(&now) {
                return Err(this.was_in_use()?);
            }
            (this.former.newest, this.former.positions) = (Some(now.0), now.1);
            this.former.write(&this.data_dir)?;
            this.former.put_guard(&this.data_dir)?;
        }
        let finished = self.copy_rest(&mut this);
        give_to_owner(&this.data_dir);
        let finished = finished?;
        self.place.print(&finished)?;
        if !self.place.json {
            let next = match self.rehearsal {
                true => format!(
                    "Try it: logcabin serve --rehearsal --data-dir {}\n",
                    this.data_dir.display()
                ),
                false => format!(
                    "{} says that Synapse must not be started again.\nNext: logcabin serve, with \
                     this data directory.\n",
                    this.former.guard().display()
                ),
            };
            super::print(&next)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Completes the log, and notes that it is complete.
    fn copy_rest(&self, this: &mut Move) -> Result<copy::Finished, Failure> {
        let stop = stop_signal()?;
        let mut progress = Progress::begin(self.place.json);
        let options = copy::Options { rehearsal: self.rehearsal, ..this.options() };
        let mut source = this.settings.open()?;
        let media = Some(this.settings.media());
        let finished =
            copy::finish(&mut *source, media, &options, &stop, &mut |at| progress.show(at));
        progress.end();
        let finished = finished?;
        if !self.rehearsal {
            // Somebody may have started it meanwhile. What it wrote would be lost.
            if this.must_be_stopped().is_err() || this.has_moved(&this.positions()?) {
                return Err(this.was_in_use()?);
            }
            this.former.stage = Stage::Finished(finished.last);
            this.former.write(&this.data_dir)?;
        }
        copy::forget(&this.data_dir)?;
        Ok(finished)
    }

    /// Puts the guard file back that somebody removed.
    fn guard_again(&self, this: &Move) -> Result<ExitCode, Failure> {
        let guard = this.former.guard();
        if self.rehearsal || guard.exists() {
            return Err(this.finished_already());
        }
        this.must_be_stopped()?;
        this.former.put_guard(&this.data_dir)?;
        super::print(&match self.place.json {
            true => json!({ "guard": guard }).to_string() + "\n",
            false => {
                format!("{} says again that Synapse must not be started.\n", guard.display())
            }
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn undo(&self) -> Result<ExitCode, Failure> {
        let data_dir = std::path::absolute(&self.data_dir)?;
        let Some(mut former) = Former::read(&data_dir)? else {
            return Err(format!("nothing was imported into {}", data_dir.display()).into());
        };
        former.must_be_free_for(&data_dir)?;
        let mut lost = 0;
        match former.stage {
            Stage::Finished(end) => {
                if let Some((time_ms, what)) = former::departure(&data_dir)? {
                    return Err(format!(
                        "there is no way back: {} has left or reached this server at {}, of which \
                         Synapse knows nothing (see docs/moving-from-synapse.md)",
                        clean(&what),
                        Time(time_ms).to_second()
                    )
                    .into());
                }
                lost = written_since(&data_dir, end)?;
                if lost > 0 && !self.yes {
                    return Err(format!(
                        "users have written {} records since, which Synapse never gets; to lose \
                         them, add --yes",
                        grouped(lost)
                    )
                    .into());
                }
            }
            Stage::Copied if !former.guard().exists() => {
                return Err("there is nothing to undo: Synapse is in use".into());
            }
            // A `finish` that was interrupted must not go on after Synapse has: what it has taken
            // already, it would not look at again.
            Stage::Copied | Stage::Undone => {}
        }
        give_back(&mut former, &data_dir)?;
        give_to_owner(&data_dir);
        if self.place.json {
            super::print(&(json!({ "undone": true, "lost": lost }).to_string() + "\n"))?;
        } else {
            super::print("Synapse may be started again. This data directory is of no use now.\n")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Refuses to serve what lacks something that Synapse has written since `finish`, as far as its
/// database can be read from here.
pub(super) fn must_be_unused(data_dir: &Path) -> Result<(), former::FormerError> {
    former::must_be_unused(data_dir, |former| {
        let settings = synapse::Settings::read(&former.config).ok()?;
        let positions = synapse::Source::open(&settings)
            .and_then(|mut source| Ok::<_, ImportError>(source.positions()?));
        positions
            .inspect_err(|why| {
                tracing::debug!(%why, "whether Synapse was in use since cannot be told");
            })
            .ok()
    })
}

/// Lets the former server be used again.
fn give_back(former: &mut Former, data_dir: &Path) -> Result<(), former::FormerError> {
    // First, so that this server refuses to start as soon as Synapse may.
    former.stage = Stage::Undone;
    former.write(data_dir)?;
    former.remove_guard(data_dir)
}

/// How many records users, administrators and requests without a session (such as a registration)
/// have caused after this one. No server may use the log.
fn written_since(data_dir: &Path, end: u64) -> Result<u64, Failure> {
    let log = source::Source::stopped(data_dir)?;
    let mut count = 0;
    for record in log.records(Offset::new(end).next())? {
        let header = record?.header;
        let of = &header.origin;
        // When a device was last seen, or what was delivered, is nobody's loss.
        let is_somebodys = !of.user.is_empty() || !of.request.is_empty();
        count += u64::from(is_somebodys && !header.ephemeral);
    }
    Ok(count)
}

impl Compare {
    fn run(&self) -> Result<ExitCode, Failure> {
        let settings = self.place.settings()?;
        let (mut source, media) = (settings.open()?, Some(settings.media()));
        let extent = Extent { users: self.users, rooms: self.rooms };
        let compared = compare::compare(&mut *source, media, &self.data_dir, extent);
        // Opening the log may have made files.
        give_to_owner(&self.data_dir);
        let mut compared = compared?;
        if let Some(former) = Former::read(&self.data_dir)? {
            compared.moved = former.moved(&source.positions()?);
        }
        super::print(&if self.place.json {
            serde_json::to_string(&compared)? + "\n"
        } else {
            text(&compared)
        })?;
        Ok(if compared.faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn text(compared: &Compared) -> String {
    let mut text = String::new();
    if !compared.moved.is_empty() {
        let moved: Vec<String> = compared.moved.iter().map(|name| clean(name)).collect();
        let _ = writeln!(
            text,
            "Synapse was in use after `finish`, and what it wrote is not here: its {} moved.",
            moved.join(", ")
        );
    }
    for (subject, same) in &compared.same {
        let _ = writeln!(text, "{:>12} {subject} are the same", grouped(*same));
    }
    for difference in &compared.differences {
        let (of, what) = (clean(&difference.of), clean(&difference.what));
        let because = difference.because.map_or_else(String::new, |why| format!(" ({why})"));
        let _ = writeln!(text, "{} of {of}: {what}{because}", difference.subject);
    }
    if compared.more > 0 {
        let _ = writeln!(text, "and {} more", grouped(compared.more));
    }
    let _ = match compared.faults {
        0 => writeln!(text, "Both give the same answers."),
        faults => writeln!(text, "{} differences have no reason.", grouped(faults)),
    };
    let others: Vec<&str> = compare::NOT_COMPARED.iter().map(|(_, name)| *name).collect();
    let _ = writeln!(text, "Not looked at: {}.", others.join(", "));
    text
}

/// The progress, on standard error if that is a terminal.
struct Progress {
    is_shown: bool,
    was_shown: bool,
}

impl Progress {
    fn begin(is_json: bool) -> Self {
        Self { is_shown: !is_json && io::stderr().is_terminal(), was_shown: false }
    }

    fn show(&mut self, at: &impl fmt::Display) {
        if self.is_shown {
            self.was_shown = true;
            // Whoever cannot see it misses nothing else.
            let _ = write!(io::stderr(), "\r\x1b[K{at}");
        }
    }

    fn end(&self) {
        if self.was_shown {
            let _ = writeln!(io::stderr());
        }
    }
}

/// Becomes true at the first SIGINT or SIGTERM; at the second the process ends at once.
fn stop_signal() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // A thread of its own: the import occupies this one.
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let (Ok(mut terminate), Ok(mut interrupt)) =
                (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
            else {
                return;
            };
            let mut next = async move || {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            };
            next().await;
            told.store(true, Ordering::Relaxed);
            next().await;
            std::process::exit(130);
        });
    })?;
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_whose_users_are_elsewhere_is_refused_without_that_place() {
        for yaml in [
            json!({ "matrix_authentication_service": { "enabled": true } }),
            json!({ "experimental_features": { "msc3861": { "enabled": true } } }),
        ] {
            assert!(refusal(&yaml, false).is_some_and(|why| why.contains("--mas")), "{yaml}");
            assert!(refusal(&yaml, true).is_none(), "{yaml}");
        }
        for yaml in [
            json!({}),
            json!({ "matrix_authentication_service": null, "experimental_features": 5 }),
            json!({ "matrix_authentication_service": { "enabled": false } }),
        ] {
            assert!(refusal(&yaml, false).is_none(), "{yaml}");
            assert!(refusal(&yaml, true).is_some_and(|why| why.contains("--mas")), "{yaml}");
        }
    }

    #[test]
    fn differences_are_told_with_their_reasons() {
        let compared = Compared::default();
        assert!(text(&compared).starts_with("Both give the same answers.\nNot looked at: "));
    }
}
