//! Processor time of the application and the database, by the port that they listen on.
//!
//! A process counts with all its descendants, those that have ended too, as a PostgreSQL server is one with its
//! backends.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use gesta_rig::procfs::{self, Stat};

/// A process and what it has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// `application`, `database`.
    pub name: &'static str,
    pid: u32,
}

impl Tree {
    /// The process that listens on a port of this machine, of several the one that was first; none elsewhere.
    pub fn listening_on(name: &'static str, address: SocketAddr) -> Option<Self> {
        if !address.ip().is_loopback() {
            return None;
        }
        let tables = [procfs::TCP, procfs::TCP6].into_iter();
        let sockets = tables.flat_map(procfs::sockets);
        let sockets = sockets.filter(|it| it.is_listening && it.port == address.port());
        let inodes: HashSet<u64> = sockets.map(|socket| socket.inode).collect();
        let holders = procfs::pids().filter(|pid| procfs::holds(*pid, &inodes));
        let pid = holders.min()?;
        Some(Self { name, pid })
    }

    /// Processor time so far.
    pub fn busy(&self) -> Duration {
        let all: BTreeMap<u32, Stat> = procfs::pids()
            .filter_map(|pid| Some((pid, procfs::stat(pid)?)))
            .collect();
        busy(self.pid, all)
    }
}

/// Processor time of a process and its descendants, those that have ended too.
fn busy(root: u32, mut all: BTreeMap<u32, Stat>) -> Duration {
    let (mut busy, mut left) = (Duration::ZERO, vec![root]);
    while let Some(pid) = left.pop() {
        // Counted once, whatever the parents are said to be.
        let one = all.remove(&pid);
        busy += one.map_or(Duration::ZERO, |stat| stat.busy + stat.busy_of_ended);
        let children = all.iter().filter(|(_, stat)| stat.parent == pid);
        left.extend(children.map(|(child, _)| *child));
    }
    busy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_summed_with_those_that_have_ended() {
        let of = |parent, busy, busy_of_ended| Stat {
            state: 'S',
            parent,
            busy: Duration::from_millis(busy),
            busy_of_ended: Duration::from_millis(busy_of_ended),
        };
        let (root, first) = (of(4, 1_200, 40), of(12, 100, 0));
        let (grandchild, other) = (of(13, 10, 0), of(4, 990, 0));
        let all = BTreeMap::from([(12, root), (13, first), (14, grandchild), (15, other)]);
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
