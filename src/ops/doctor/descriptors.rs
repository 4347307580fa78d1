//! Whether the process may open as many files and connections as it is configured for.

use super::{Finding, Level, Subject, finding::START, unknown};
use logcabin_base::limits;

const CHECK: &str = "descriptors";

/// The limits of the process; none for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DescriptorLimits {
    soft: Option<u64>,
    hard: Option<u64>,
}

pub(super) fn findings(of: &Subject<'_>) -> Vec<Finding> {
    if let Err(reason) = of.running() {
        // The limits of this process are not those of the server.
        return vec![unknown(CHECK, "How many files the server may open", reason, START)];
    }
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limits = DescriptorLimits { soft: limits.current, hard: limits.maximum };
    vec![judge(limits, of.config.needed_descriptors())]
}

fn judge(DescriptorLimits { soft, hard }: DescriptorLimits, needed: u64) -> Finding {
    let Some(soft) = soft.filter(|soft| *soft < needed) else {
        return Finding::ok(
            CHECK,
            format!("The server may open the {needed} files that it needs."),
        );
    };
    let level = if soft < limits::FEW_DESCRIPTORS { Level::Error } else { Level::Warning };
    let hard = hard.map_or_else(|| "no limit".to_owned(), |hard| hard.to_string());
    Finding::new(
        CHECK,
        level,
        format!(
            "The server may open {soft} files and connections (hard limit: {hard}), and needs up \
             to {needed}."
        ),
        "With many clients it cannot accept connections, open the log or search.",
        format!(
            "LimitNOFILE={needed} in the systemd unit, or ulimit -n {needed}; or a lower \
             http.max_connections"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_below_what_is_needed_is_found() {
        for (soft, level) in [
            (Some(256), Level::Error),
            (Some(1024), Level::Warning),
            (Some(20_511), Level::Warning),
            (Some(20_512), Level::Ok),
            (None, Level::Ok),
        ] {
            let found = judge(DescriptorLimits { soft, hard: Some(524_288) }, 20_512);
            assert_eq!(found.level, level, "{soft:?}: {found:?}");
        }
    }
}
