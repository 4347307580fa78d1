//! The whole server under load: `cargo bench --bench load`.
//!
//! Starts the program on a free port with a temporary directory, and from this process does what
//! clients do, over HTTP: they send, wait for news, synchronise, read history, join. Prints a
//! table, and writes it to `target/load/` with a plot and the figures as JSON lines. What counts on
//! a busy machine is the server's CPU time for each operation. Times are those of a client on the
//! same machine, whose own CPU time is shown, too.
//!
//!     cargo bench --bench load -- --help
//!     cargo bench --bench load                   # Logcabin, every scenario
//!     cargo bench --bench load -- growth         # each scenario at growing sizes
//!     cargo bench --bench load -- compression    # answers with identity, gzip and zstd
//!     cargo bench --bench load -- --base http://127.0.0.1:8008 --pid 123,456 --label "Another 1.2"
//!     cargo bench --bench load -- compare A.jsonl B.jsonl
//!
//! Another homeserver gets the same requests; it must let anyone register with `m.login.dummy` and
//! have its rate limits off. `benches/peers.py` starts Synapse so, and compares. `--update` renews
//! the figures in `docs/performance.md`.
//!
//! - `process`: CPU time and memory of processes.
//! - `target`: the server, and a client of it.
//! - `scenarios`: what clients do.
//! - `growth`: the same at several sizes.
//! - `report`: tables, plots, JSON lines.

mod growth;
mod process;
mod report;
mod scenarios;
mod target;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Parser, Subcommand};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::{scenarios::Sizes, target::Target};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Drives a homeserver over HTTP and says what each operation costs it.
#[derive(Parser)]
#[command(name = "load", bin_name = "cargo bench --bench load --")]
struct Options {
    #[command(subcommand)]
    mode: Option<Mode>,

    /// A server that runs already; without it, a Logcabin is started.
    #[arg(long, value_name = "URL", global = true)]
    base: Option<String>,

    /// The processes of that server; their descendants count too.
    #[arg(long, value_name = "PID", value_delimiter = ',', global = true)]
    pid: Vec<u32>,

    /// What the server is called in tables.
    #[arg(long, global = true, default_value = concat!("Logcabin ", env!("CARGO_PKG_VERSION")))]
    label: String,

    /// The Logcabin to start, rather than the one that was just built.
    #[arg(long, value_name = "PROGRAM", global = true, default_value = env!("CARGO_BIN_EXE_logcabin"))]
    server: PathBuf,

    /// Scenarios (or, for growth, what grows) with these words in their names; all by default.
    #[arg(long, value_name = "WORD", value_delimiter = ',', global = true)]
    only: Vec<String>,

    /// How long each is measured at most.
    #[arg(long, default_value_t = 4.0, global = true)]
    seconds: f64,

    /// How many clients wait idly.
    #[arg(long, default_value_t = 200, global = true)]
    waiting: usize,

    /// Where the table, the plot and the JSON lines go.
    #[arg(long, value_name = "DIRECTORY", global = true,
        default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/target/load"))]
    out: PathBuf,

    /// Put the table into docs/performance.md, and the plot beside it.
    #[arg(long, global = true)]
    update: bool,

    /// Passed by cargo to all benchmarks.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum Mode {
    /// What each operation costs at 1, 10 and 100 times the size.
    Growth,
    /// What large and small answers cost with each compression.
    Compression,
    /// Figures of several servers side by side; the first is the baseline.
    Compare {
        /// JSON lines that this program wrote.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// A note below the tables.
        #[arg(long, default_value = "")]
        note: String,
    },
}

fn main() -> Result<(), Failure> {
    let options = Options::parse();
    // Each waiting client has a connection. A server that is started here inherits the limit.
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files)?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            // `cargo test --benches` only sees that it works.
            done = small(&options), if !options.bench => done,
            done = run(&options), if options.bench => done,
            ended = ended() => ended,
        }
    })
}

/// Ending this program ends the server that it started, too, which is dropped then.
async fn ended() -> Result<(), Failure> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminated.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    Err("ended".into())
}

/// A little of everything.
async fn small(options: &Options) -> Result<(), Failure> {
    let sizes = Sizes { rooms: 2, devices: 2, waiting: 3, joins: 3, messages: 5 };
    let instant = Duration::from_millis(10);
    let target = Target::start(&options.label, &options.server, instant).await?;
    let mut rows = Vec::new();
    for name in scenarios::ALL {
        rows.extend(scenarios::run(&target, name, sizes).await?);
    }
    print!("{}", report::table(&rows));
    Ok(())
}

async fn run(options: &Options) -> Result<(), Failure> {
    let at_most = Duration::from_secs_f64(options.seconds);
    let start = || Target::start(&options.label, &options.server, at_most);
    let sizes =
        Sizes { rooms: 50, devices: 60, waiting: options.waiting, joins: 200, messages: 200 };
    match &options.mode {
        None => {
            let target = target(options, at_most).await?;
            let mut rows = Vec::new();
            for name in scenarios::ALL {
                // It has a mode of its own.
                let wanted = name != "compression";
                if wanted && asked(&options.only, name) {
                    eprintln!("{}: {name}", target.label);
                    rows.extend(scenarios::run(&target, name, sizes).await?);
                }
            }
            written(options, "load", &report::table(&rows), Some(report::plot(&rows)), &rows)
        }
        Some(Mode::Compression) => {
            let target = target(options, at_most).await?;
            let rows = scenarios::run(&target, "compression", sizes).await?;
            written(options, "compression", &report::compression_table(&rows), None, &rows)
        }
        Some(Mode::Growth) => {
            let grown = growth::run(&options.only, start).await?;
            written(options, "growth", &report::growth_table(&grown), None, &grown)
        }
        Some(Mode::Compare { files, note }) => {
            let servers: Result<Vec<_>, _> = files.iter().map(|file| report::read(file)).collect();
            let servers = servers?;
            let table = format!("{}\n{note}\n", report::comparison(&servers));
            let plot = report::comparison_plot(&servers);
            written(options, "peers", &table, Some(plot), &servers.concat())
        }
    }
}

fn asked(only: &[String], name: &str) -> bool {
    only.is_empty() || only.iter().any(|word| name.contains(word.as_str()))
}

async fn target(options: &Options, at_most: Duration) -> Result<Target, Failure> {
    match &options.base {
        Some(base) => Target::running(&options.label, base, options.pid.clone(), at_most).await,
        None => Target::start(&options.label, &options.server, at_most).await,
    }
}

/// Prints the table, and writes all of it to where it is asked for.
fn written<T: serde::Serialize>(
    options: &Options,
    name: &str,
    table: &str,
    plot: Option<String>,
    rows: &[T],
) -> Result<(), Failure> {
    print!("{table}");
    fs::create_dir_all(&options.out)?;
    fs::write(options.out.join(format!("{name}.md")), table)?;
    fs::write(options.out.join(format!("{name}.jsonl")), report::lines(rows)?)?;
    if let Some(plot) = &plot {
        fs::write(options.out.join(format!("{name}.svg")), plot)?;
    }
    eprintln!("\nwritten to {}", options.out.display());
    if options.update {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let chapter = root.join("docs/performance.md");
        let text = report::replace(&fs::read_to_string(&chapter)?, name, table)?;
        fs::write(chapter, text)?;
        if let Some(plot) = plot {
            fs::write(root.join("docs").join(format!("{name}.svg")), plot)?;
        }
    }
    Ok(())
}
