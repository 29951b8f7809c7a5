//! Processor time of the application and the database, by the port that they listen on.
//!
//! A process counts with all its descendants, those that have ended too, as a PostgreSQL server is one with its
//! backends. Whether it is the one that is meant nobody can know here: what listens may pass everything on to another
//! process, as the proxy of a container does. So its name is told with the figures.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use gesta_rig::procfs::{self, Stat, TcpSocket};

use gesta_report::numbers::list;

/// Programs that open sockets for servers which they start, and hold them as well.
const KEEPERS: [&str; 4] = ["inetd", "init", "systemd", "xinetd"];

/// A process and what it has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// `application`, `database`.
    pub name: &'static str,
    pid: u32,
    /// The name of its program.
    program: String,
}

/// The processes whose time is told, in a sentence; none without any.
pub fn told(trees: &[Tree]) -> Option<String> {
    let each = trees.iter().map(|tree| {
        let (name, program, pid) = (tree.name, &tree.program, tree.pid);
        format!("the {name} is {program}, process {pid}")
    });
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| {
        let each = list(&each);
        format!("Processor time is that of what listens, with what it has started: {each}.")
    })
}

impl Tree {
    /// The process that takes connections to an address of this machine; none elsewhere.
    pub fn listening_on(name: &'static str, address: SocketAddr) -> Option<Self> {
        if !address.ip().is_loopback() {
            return None;
        }
        let tables = [procfs::TCP, procfs::TCP6].into_iter();
        let sockets: Vec<TcpSocket> = tables.flat_map(procfs::sockets).collect();
        let inodes = listening(&sockets, address);
        let holders = procfs::pids().filter(|pid| procfs::holds(*pid, &inodes));
        let holders = holders.map(|pid| (pid, program(pid)));
        let (pid, program) = server_of(holders.collect())?;
        Some(Self { name, pid, program })
    }

    /// Processor time so far.
    pub fn busy(&self) -> Duration {
        let all: BTreeMap<u32, Stat> = procfs::pids()
            .filter_map(|pid| Some((pid, procfs::stat(pid)?)))
            .collect();
        busy(self.pid, all)
    }
}

/// The sockets that take connections to this address: those of the address, or else those of any.
fn listening(sockets: &[TcpSocket], address: SocketAddr) -> HashSet<u64> {
    let here = |socket: &&TcpSocket| socket.is_listening && socket.port == address.port();
    let of = |is_meant: &dyn Fn(&TcpSocket) -> bool| -> HashSet<u64> {
        let meant = sockets.iter().filter(here).filter(|it| is_meant(it));
        meant.map(|socket| socket.inode).collect()
    };
    let exact = of(&|socket| socket.ip.to_canonical() == address.ip());
    if !exact.is_empty() {
        return exact;
    }
    // What takes connections to any address of IPv6 takes those of IPv4, too, unless it says otherwise.
    of(&|socket| socket.ip.is_unspecified() && (socket.ip.is_ipv6() || address.is_ipv4()))
}

/// Of processes that hold the same socket, with the names of their programs, the one that serves: the first that was
/// started, as it has started the others, but for one that holds sockets of servers which it starts.
fn server_of(mut holders: Vec<(u32, String)>) -> Option<(u32, String)> {
    holders.sort();
    let serves = |(_, program): &(u32, String)| !KEEPERS.contains(&program.as_str());
    let at = holders.iter().position(serves).unwrap_or(0);
    (at < holders.len()).then(|| holders.swap_remove(at))
}

/// The name of the program of a process, as far as its command line tells it.
fn program(pid: u32) -> String {
    let words = procfs::command_line(pid).unwrap_or_default();
    let first = words.first().map_or("", String::as_str);
    // A server may write what it does behind its name.
    let name = first.split([' ', ':']).next().unwrap_or_default();
    name.rsplit('/').next().unwrap_or_default().to_owned()
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

    /// What happened: any process that listened at the port was taken, whatever its address.
    #[test]
    fn the_listener_of_another_address_is_not_taken() {
        if cfg!(target_os = "linux") {
            let listener = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let at = |ip: [u8; 4]| Tree::listening_on("own", SocketAddr::from((ip, port)));
            let (own, found) = (std::process::id(), at([127, 0, 0, 2]).unwrap());
            assert_eq!(found.pid, own);
            assert!(at([127, 0, 0, 1]).is_none_or(|other| other.pid != own));
            let told = told(&[found]).unwrap();
            let wanted = format!("the own is {}, process {own}.", program(own));
            assert!(
                told.ends_with(&wanted) && !program(own).is_empty(),
                "{told}"
            );
        }
        assert_eq!(told(&[]), None);
    }

    #[test]
    fn the_socket_of_the_address_is_the_one_that_is_asked() {
        let socket = |ip: &str, is_listening, inode| TcpSocket {
            ip: ip.parse().unwrap(),
            port: 80,
            peer_port: 0,
            is_listening,
            inode,
        };
        let all = [
            socket("0.0.0.0", true, 1),
            socket("::", true, 2),
            socket("127.0.0.1", true, 3),
            socket("::ffff:127.0.0.2", true, 4),
            socket("::1", true, 5),
            socket("127.0.0.9", false, 6),
        ];
        for (address, wanted) in [
            ("127.0.0.1:80", &[3][..]),
            ("127.0.0.2:80", &[4]),
            ("127.0.0.9:80", &[1, 2]),
            ("[::1]:80", &[5]),
            ("127.0.0.1:81", &[]),
        ] {
            let found = listening(&all, address.parse().unwrap());
            assert_eq!(found, wanted.iter().copied().collect(), "{address}");
        }
    }

    /// What happened: where systemd had opened the socket, the figures were those of systemd.
    #[test]
    fn who_serves_is_told_from_who_keeps_the_socket() {
        let server = |holders: &[(u32, &str)]| {
            let holders = holders.iter().map(|(pid, name)| (*pid, (*name).to_owned()));
            server_of(holders.collect()).map(|(pid, _)| pid)
        };
        let nginx = [(12, "nginx"), (11, "nginx"), (1, "systemd")];
        assert_eq!(server(&nginx), Some(11));
        assert_eq!(server(&[(1, "init"), (40, "postgres")]), Some(40));
        assert_eq!(server(&[(1, "gunicorn"), (7, "gunicorn")]), Some(1));
        assert_eq!(server(&[(1, "systemd")]), Some(1));
        assert_eq!(server(&[]), None);
    }
}
