//! Facts about the machine and the program, so that a result can be judged later.

use std::process::Command;
use std::time::{Duration, Instant};

use gesta_rig::procfs::{self, ticks};
use serde::{Deserialize, Serialize};

use crate::endpoint;

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// Operating system and kernel.
    pub system: String,
    /// Processor model.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Memory.
    pub memory_bytes: u64,
}

impl Host {
    /// Looks.
    pub fn here() -> Self {
        let cpu = read("/proc/cpuinfo");
        let memory = read("/proc/meminfo");
        Self {
            system: format!(
                "{} {}",
                std::env::consts::OS,
                read("/proc/sys/kernel/osrelease").trim()
            ),
            cpu: field(&cpu, "model name").unwrap_or_else(|| std::env::consts::ARCH.into()),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: field(&memory, "MemTotal")
                .and_then(|kb| kb.trim_end_matches("kB").trim().parse::<u64>().ok())
                .map_or(0, |kb| kb * 1024),
        }
    }
}

/// The commit that this was built from or stands in, and `-dirty` if files differ from it; `unknown` outside a
/// repository.
pub fn commit() -> String {
    if let Some(built) = option_env!("GESTA_COMMIT") {
        return built.into();
    }
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".into();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit}-dirty"),
    }
}

/// A command as it is typed, without the secrets of URLs and values of headers, without the folder of the program, and
/// without where results go.
pub fn command(arguments: impl Iterator<Item = String>) -> String {
    let (mut typed, mut is_results, mut is_header) = (Vec::new(), false, false);
    for argument in arguments {
        let is_left_out = std::mem::replace(&mut is_results, argument == "--results");
        if is_left_out || is_results || argument.starts_with("--results=") {
            continue;
        }
        let was_header = std::mem::replace(&mut is_header, argument == "--header");
        let shown = match argument.split_once(':') {
            _ if typed.is_empty() => argument.rsplit('/').next().unwrap_or_default().to_owned(),
            Some((name, _)) if was_header || name.starts_with("--header=") => {
                format!("{name}: ***")
            }
            // Without a name all of it may be the value.
            None if was_header => "***".to_owned(),
            None if argument.starts_with("--header=") => "--header=***".to_owned(),
            _ => endpoint::redacted(&argument),
        };
        let is_odd = shown.contains(|c: char| c.is_whitespace() || "'\"$&;|<>*?()".contains(c));
        typed.push(match is_odd {
            true => format!("'{}'", shown.replace('\'', r"'\''")),
            false => shown,
        });
    }
    typed.join(" ")
}

/// Processors of the machine, also those that this process may not use; 0 if that is not known.
pub fn processors() -> usize {
    let is_one = |line: &&str| {
        let number = line.strip_prefix("cpu");
        number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    read("/proc/stat").lines().filter(is_one).count()
}

/// Version of Gesta and its lab.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `debug` or `release`: figures of a debug build say little.
pub const BUILD: &str = if cfg!(debug_assertions) {
    "debug"
} else {
    "release"
};

/// Processor time that a measurement took, in cores: 2.0 is two cores busy all the time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    /// The whole machine.
    pub machine_cores: f64,
    /// This process alone.
    pub own_cores: f64,
}

/// Measures processor time from its creation on.
#[derive(Debug)]
pub struct CpuMeter {
    since: Instant,
    machine: Duration,
    own: Duration,
}

impl CpuMeter {
    /// Starts.
    pub fn start() -> Self {
        Self {
            since: Instant::now(),
            machine: machine_busy(),
            own: own_busy(),
        }
    }

    /// What was used since the start.
    pub fn used(&self) -> CpuUse {
        let wall = self.since.elapsed().as_secs_f64().max(0.001);
        let cores = |now: Duration, then: Duration| {
            (now.saturating_sub(then).as_secs_f64() / wall * 100.0).round() / 100.0
        };
        CpuUse {
            machine_cores: cores(machine_busy(), self.machine),
            own_cores: cores(own_busy(), self.own),
        }
    }
}

/// Time that all processors were busy: user, nice, system, irq, softirq, steal.
fn machine_busy() -> Duration {
    let stat = read("/proc/stat");
    let numbers: Vec<u64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let at = |i: usize| numbers.get(i).copied().unwrap_or(0);
    ticks(at(0) + at(1) + at(2) + at(5) + at(6) + at(7))
}

/// User and system time of this process.
fn own_busy() -> Duration {
    busy_in(std::process::id())
}

/// User and system time of a process so far; none if it is gone.
pub fn busy_of(pid: i32) -> Duration {
    u32::try_from(pid).map_or(Duration::ZERO, busy_in)
}

fn busy_in(pid: u32) -> Duration {
    procfs::stat(pid).map_or(Duration::ZERO, |stat| stat.busy)
}

/// Memory of this process that is in use now.
pub fn resident_bytes() -> u64 {
    field(&read("/proc/self/status"), "VmRSS")
        .and_then(|kb| kb.trim_end_matches("kB").trim().parse::<u64>().ok())
        .map_or(0, |kb| kb * 1024)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_as_it_is_typed_and_without_passwords() {
        let typed = [
            "/opt/lab/gesta-lab",
            "append",
            "--store",
            "postgres://u:secret@h/x?schema=b&password=other",
            "--store=postgres://u:secret@h/x",
            "--database=postgres://u:se#cret@h1:5432,h2/x",
            "--results",
            "here.jsonl",
            "--results=https://h/a.jsonl?sig=secret",
            "--header",
            "authorization: Bearer secret",
            "--header=x:secret",
            "--header",
            "secret",
            "--header=secret",
            "it's",
        ];
        assert_eq!(
            command(typed.map(str::to_owned).into_iter()),
            r"gesta-lab append --store 'postgres://***@h/x?schema=b&password=***' '--store=postgres://***@h/x' '--database=postgres://***@h1:5432,h2/x' --header 'authorization: ***' '--header=x: ***' --header '***' '--header=***' 'it'\''s'"
        );
    }
}
