//! CPU time and memory of processes and of all that they started, from `/proc`.

use std::{collections::HashMap, fs};

/// Processes by their ids.
pub(crate) enum Processes {
    /// With all their descendants: those of a server and of its database.
    Server(Vec<u32>),
    /// This one, without the servers that it started.
    This,
}

/// What they had taken at one moment.
pub(crate) struct Usage {
    /// By thread, in nanoseconds. Exact, but a thread that ends takes its time with it.
    threads: HashMap<u32, u64>,
    /// Of all, also of threads and children that have ended, in hundredths of a second: the unit of
    /// `/proc` wherever it matters.
    ticks: u64,
    processes: usize,
}

impl Processes {
    pub(crate) fn usage(&self) -> Usage {
        let all = self.all();
        let mut usage = Usage { threads: HashMap::new(), ticks: 0, processes: all.len() };
        for id in all {
            let fields = stat(id);
            // utime, stime and the same of children that were waited for.
            usage.ticks += fields.iter().skip(11).take(4).sum::<u64>();
            for thread in numbered(&format!("/proc/{id}/task")) {
                if let Some(nanoseconds) = on_cpu(id, thread) {
                    usage.threads.insert(thread, nanoseconds);
                }
            }
        }
        usage
    }

    /// Resident memory, in bytes. Shared pages count in part for each process, if that can be
    /// known.
    pub(crate) fn memory(&self) -> f64 {
        let of =
            |id: u32| field(id, "smaps_rollup", "Pss:").or_else(|| field(id, "status", "VmRSS:"));
        self.all().into_iter().filter_map(of).sum::<f64>() * 1024.0
    }

    fn all(&self) -> Vec<u32> {
        match self {
            Self::Server(roots) => with_descendants(roots),
            Self::This => vec![std::process::id()],
        }
    }
}

impl Usage {
    /// The CPU time since an earlier moment, in milliseconds: the larger of two lower bounds.
    pub(crate) fn cpu_ms_since(&self, earlier: &Self) -> f64 {
        let since = |(thread, now): (&u32, &u64)| {
            now.saturating_sub(earlier.threads.get(thread).copied().unwrap_or_default())
        };
        let threads = self.threads.iter().map(since).sum::<u64>() as f64 / 1e6;
        let unsure = 10.0 * self.processes as f64;
        threads.max(self.ticks.saturating_sub(earlier.ticks) as f64 * 10.0 - unsure)
    }
}

fn with_descendants(roots: &[u32]) -> Vec<u32> {
    let mut children = HashMap::<u32, Vec<u32>>::new();
    // A process without children is what is measured most: it needs no look at all others.
    let alone = |id: &u32| {
        numbered(&format!("/proc/{id}/task")).into_iter().all(|thread| {
            let path = format!("/proc/{id}/task/{thread}/children");
            fs::read_to_string(path).is_ok_and(|children| children.trim().is_empty())
        })
    };
    if roots.iter().all(alone) {
        return roots.to_vec();
    }
    for id in numbered("/proc") {
        if let Some(parent) = stat(id).get(1).and_then(|parent| u32::try_from(*parent).ok()) {
            children.entry(parent).or_default().push(id);
        }
    }
    let (mut found, mut next) = (roots.to_vec(), 0);
    while let Some(id) = found.get(next) {
        found.extend(children.remove(id).unwrap_or_default());
        next += 1;
    }
    found
}

/// The entries of a directory of `/proc` that are numbers.
fn numbered(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The numbers in a process's `stat` from the state on, which is none and counts as 0.
fn stat(id: u32) -> Vec<u64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // The name before may hold anything.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.map(|field| field.parse().unwrap_or_default()).collect()
}

fn on_cpu(process: u32, thread: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// A number of a file about a process, by its name: these are in KiB.
fn field(id: u32, file: &str, name: &str) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{id}/{file}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
