//! What Linux says about the process, under the names that all clients of Prometheus use. The
//! collector of the `prometheus` crate would bring an older rustix along.

use std::fs;

use prometheus::{
    Counter, Gauge, IntGauge, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

#[cfg(test)]
pub(super) const NAMES: &[&str] = &[
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_threads",
    "process_virtual_memory_bytes",
];

/// Reads `/proc/self` whenever the metrics are read.
#[derive(Debug)]
struct Process {
    cpu: Counter,
    max_files: IntGauge,
    open_files: IntGauge,
    resident: IntGauge,
    started: Gauge,
    threads: IntGauge,
    virtual_memory: IntGauge,
}

/// Adds the metrics of the process.
pub(super) fn register(registry: &Registry) {
    let gauge = |name, help| IntGauge::new(name, help).expect("a metric is declared correctly");
    let process = Process {
        cpu: Counter::new("process_cpu_seconds_total", "Processor time, in user and kernel mode")
            .expect("a metric is declared correctly"),
        max_files: gauge("process_max_fds", "File descriptors that may be open at once"),
        open_files: gauge("process_open_fds", "Open file descriptors"),
        resident: gauge("process_resident_memory_bytes", "Memory that is resident"),
        started: Gauge::new("process_start_time_seconds", "When the process started")
            .expect("a metric is declared correctly"),
        threads: gauge("process_threads", "Threads"),
        virtual_memory: gauge("process_virtual_memory_bytes", "Address space"),
    };
    registry.register(Box::new(process)).expect("no two metrics have the same name");
}

impl Process {
    fn all(&self) -> [&dyn Collector; 7] {
        [
            &self.cpu,
            &self.max_files,
            &self.open_files,
            &self.resident,
            &self.started,
            &self.threads,
            &self.virtual_memory,
        ]
    }

    /// Reads what is available. Anything else keeps its value.
    fn read(&self) -> Option<()> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        set(&self.max_files, limit.unwrap_or(u64::MAX));
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            set(&self.open_files, open.count() as u64);
        }
        let page = rustix::param::page_size() as u64;
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let stat = Stat::of(&fs::read_to_string("/proc/self/stat").ok()?)?;
        let cpu = stat.cpu_ticks as f64 / ticks;
        self.cpu.inc_by((cpu - self.cpu.get()).max(0.0));
        set(&self.threads, stat.threads);
        set(&self.virtual_memory, stat.virtual_bytes);
        set(&self.resident, stat.resident_pages * page);
        let boot = fs::read_to_string("/proc/stat").ok()?;
        let boot = boot.lines().find_map(|line| line.strip_prefix("btime "))?;
        let boot: f64 = boot.trim().parse().ok()?;
        self.started.set(boot + stat.started_ticks as f64 / ticks);
        Some(())
    }
}

fn set(gauge: &IntGauge, value: u64) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _ = self.read();
        self.all().into_iter().flat_map(Collector::collect).collect()
    }
}

/// Fields of `/proc/self/stat`: see proc_pid_stat(5).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    started_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn of(line: &str) -> Option<Self> {
        // The name of the program comes before, and may contain anything.
        let (_, rest) = line.rsplit_once(") ")?;
        let fields: Vec<_> = rest.split_ascii_whitespace().collect();
        // The third field of the line is the first of these.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            started_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_found_whatever_the_program_is_called() {
        let line = "7 (a) b) S 1 7 7 0 -1 4194304 10 0 0 0 30 12 0 0 20 0 5 0 99 4096 3 18446744073709551615";
        let stat = Stat::of(line).unwrap();
        assert_eq!((stat.cpu_ticks, stat.threads, stat.started_ticks), (42, 5, 99));
        assert_eq!((stat.virtual_bytes, stat.resident_pages), (4096, 3));
        assert_eq!(Stat::of("7 (a) S 1"), None);
    }
}
