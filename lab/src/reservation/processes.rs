//! Processor time of the application and the database, by the port that they listen on.
//!
//! A process counts with all its descendants, those that have ended too, as a PostgreSQL server is one with its backends.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Clock ticks a second in `/proc`, the same on every Linux that matters.
const TICKS: u64 = 100;

/// A process and what it has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tree {
    /// `application`, `database`.
    pub(crate) name: &'static str,
    pid: u32,
}

impl Tree {
    /// The process that listens on a port of this machine, of several the one that was first; none elsewhere.
    pub(crate) fn listening_on(name: &'static str, address: SocketAddr) -> Option<Self> {
        if !address.ip().is_loopback() {
            return None;
        }
        let mut sockets = HashSet::new();
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let text = std::fs::read_to_string(table).unwrap_or_default();
            let inodes = listening_inodes(&text, address.port()).into_iter();
            sockets.extend(inodes.map(|inode| format!("socket:[{inode}]")));
        }
        let pid = pids().filter(|pid| holds(*pid, &sockets)).min()?;
        Some(Self { name, pid })
    }

    /// Processor time so far.
    pub(crate) fn busy(&self) -> Duration {
        let all: BTreeMap<u32, Stat> = pids().filter_map(|pid| Some((pid, stat(pid)?))).collect();
        busy(self.pid, all)
    }
}

/// What `/proc/PID/stat` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// Of the process, and of its children that have ended.
    ticks: u64,
}

fn busy(root: u32, mut all: BTreeMap<u32, Stat>) -> Duration {
    let (mut ticks, mut left) = (0, vec![root]);
    while let Some(pid) = left.pop() {
        // Counted once, whatever the parents are said to be.
        ticks += all.remove(&pid).map_or(0, |stat| stat.ticks);
        let children = all.iter().filter(|(_, stat)| stat.parent == pid);
        left.extend(children.map(|(child, _)| *child));
    }
    Duration::from_millis(ticks * (1_000 / TICKS))
}

fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The fields after the name, which may hold spaces and brackets.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let at = |i: usize| fields.get(i)?.parse::<u64>().ok();
    Some(Stat {
        parent: u32::try_from(at(1)?).ok()?,
        ticks: at(11)? + at(12)? + at(13)? + at(14)?,
    })
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Inodes of sockets in state LISTEN (0A) at the port.
fn listening_inodes(table: &str, port: u16) -> Vec<u64> {
    let wanted = format!(":{port:04X}");
    let rows = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let listens = fields.get(1)?.ends_with(&wanted) && *fields.get(3)? == "0A";
        listens.then(|| fields.get(9)?.parse().ok()).flatten()
    });
    rows.collect()
}

fn holds(pid: u32, sockets: &HashSet<String>) -> bool {
    let Ok(files) = std::fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd")) else {
        return false;
    };
    files.flatten().any(|file| {
        let target = std::fs::read_link(file.path()).ok();
        target.is_some_and(|target| target.to_str().is_some_and(|name| sockets.contains(name)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_summed_with_those_that_have_ended() {
        let line = "12 (a (b) c) S 4 12 12 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 5 6 7";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.parent, stat.ticks), (4, 124));
        assert_eq!(parse_stat("12 a"), None);
        let child = |parent, ticks| Stat { parent, ticks };
        let (first, grandchild, other) = (child(12, 10), child(13, 1), child(4, 99));
        let all = BTreeMap::from([(12, stat), (13, first), (14, grandchild), (15, other)]);
        assert_eq!(busy(12, all), Duration::from_millis(1_350));
    }

    #[test]
    fn the_listener_of_a_port_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let found = Tree::listening_on("own", listener.local_addr().unwrap());
        if cfg!(target_os = "linux") {
            assert_eq!(found.map(|tree| tree.pid), Some(std::process::id()));
        }
        let far = "192.0.2.1:80".parse().unwrap();
        assert_eq!(Tree::listening_on("far", far), None);
    }
}
