//! `logcabin report`: the users' reports.

use std::{fmt::Write as _, process::ExitCode};

use super::{
    act::{ActOptions, Common},
    terminal_width,
};
use logcabin_ops::{
    admin::reports::{
        ListReports, RemoveReport, RemoveReports, ReportDetails, ReportRemoved, ReportSummary,
        Reports, ReportsRemoved, ShowReport,
    },
    history::{
        moment::Time,
        terminal::{clean, wrapped},
    },
};
use logcabin_record::Offset;

/// List and close reports
#[derive(Debug, clap::Args)]
pub(super) struct Report {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(List),
    Show(Show),
    #[command(visible_alias = "close")]
    Remove(Remove),
}

/// List the reports, newest first
#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    common: Common,
}

/// Show one report, with its subject
#[derive(Debug, clap::Args)]
struct Show {
    /// Its number
    #[arg(value_name = "NUMBER")]
    id: u64,

    #[command(flatten)]
    common: Common,
}

/// Close reports, which removes them from the list
///
/// `logcabin undo` opens one again, by the number of the record that closed it.
#[derive(Debug, clap::Args)]
struct Remove {
    /// Their numbers
    #[arg(value_name = "NUMBER", required = true)]
    ids: Vec<u64>,

    /// Tell the reporters this in a server notice
    #[arg(long, value_name = "TEXT")]
    tell: Option<String>,

    #[command(flatten)]
    options: ActOptions,
}

impl Report {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        match self.command {
            Command::List(List { common }) => common.run(ListReports {}, list),
            Command::Show(Show { id, common }) => {
                common.run(ShowReport { id: Offset::new(id) }, |report| details(report))
            }
            Command::Remove(Remove { ids, tell, options }) => match ids[..] {
                [id] => {
                    let act = RemoveReport { id: Offset::new(id), tell };
                    options.run(act, |ReportRemoved { id, told }| match told {
                        Some(told) => format!("Closed report {id}, and told {told}.\n"),
                        None => format!("Closed report {id}.\n"),
                    })
                }
                _ => {
                    let reports = ids.iter().map(ToString::to_string).collect();
                    options.run(RemoveReports { reports, tell }, several)
                }
            },
        }
    }
}

fn several(ReportsRemoved { closed, told, failed }: &ReportsRemoved) -> String {
    let mut text = format!("Closed {} report(s), and told {} user(s).\n", closed.len(), told.len());
    for (id, why) in failed {
        let _ = writeln!(text, "Report {id} stays open: {why}");
    }
    text
}

fn list(Reports { reports }: &Reports) -> String {
    let mut text: String = reports.iter().map(line).collect();
    let _ = writeln!(text, "{} report(s)", reports.len());
    text
}

fn details(ReportDetails { summary, event_json }: &ReportDetails) -> String {
    let event = event_json.as_ref().map_or_else(String::new, |event| {
        serde_json::to_string_pretty(event).unwrap_or_default() + "\n"
    });
    line(summary) + &event
}

fn line(report: &ReportSummary) -> String {
    let what = match (&report.event_id, &report.room_id, &report.target_user_id) {
        (Some(event_id), Some(room_id), _) => {
            let sender = report.sender.as_ref().map_or("somebody", |sender| sender.as_str());
            format!("{event_id} of {sender} in {room_id}")
        }
        (_, Some(room_id), _) => format!("the room {room_id}"),
        (_, _, Some(user_id)) => user_id.to_string(),
        _ => "nothing".to_owned(),
    };
    let reason = report.reason.as_deref().unwrap_or("no reason given");
    let score = report.score.map_or_else(String::new, |score| format!(" ({score})"));
    let time = Time(report.received_ts).to_second();
    let line = format!(
        "{}  {time} UTC  {} reported {}{score}: {}",
        report.id,
        report.user_id,
        clean(&what),
        clean(reason)
    );
    match terminal_width() {
        None => line + "\n",
        Some(width) => {
            let first = wrapped(&line, width.max(20));
            let [begin, rest @ ..] = &first[..] else { return line + "\n" };
            let rest = wrapped(&rest.join(" "), width.max(20) - 4);
            let rest = rest.iter().filter(|line| !line.is_empty());
            rest.fold(begin.clone() + "\n", |text, line| text + "    " + line + "\n")
        }
    }
}
