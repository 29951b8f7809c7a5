//! What the kernel shows of processes and their sockets in `/proc`. Elsewhere than on Linux there is nothing.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Clock ticks a second in `/proc`, the same on every Linux that matters.
const TICKS: u64 = 100;

/// The sockets of IPv4, for [`sockets`].
pub const TCP: &str = "/proc/net/tcp";
/// The sockets of IPv6, for [`sockets`].
pub const TCP6: &str = "/proc/net/tcp6";

/// What `/proc/PID/stat` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// One letter: `R` running, `S` sleeping, `T` stopped, `Z` a zombie, `X` dead, and others.
    pub state: char,
    /// The process that started it.
    pub parent: u32,
    /// Processor time so far, user and system.
    pub busy: Duration,
    /// That of its children that have ended, and theirs.
    pub busy_of_ended: Duration,
}

impl Stat {
    /// The fields after the name, which may hold spaces and brackets.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let at = |i: usize| fields.get(i)?.parse::<u64>().ok();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: u32::try_from(at(1)?).ok()?,
            busy: ticks(at(11)? + at(12)?),
            busy_of_ended: ticks(at(13)? + at(14)?),
        })
    }
}

/// A time that is told in clock ticks.
#[must_use]
pub fn ticks(count: u64) -> Duration {
    Duration::from_millis(count * (1_000 / TICKS))
}

fn folder(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// What is told of a process; `None` if it is gone.
#[must_use]
pub fn stat(pid: u32) -> Option<Stat> {
    Stat::parse(&std::fs::read_to_string(folder(pid).join("stat")).ok()?)
}

/// The words of the command line of a process; `None` if it is gone.
#[must_use]
pub fn command_line(pid: u32) -> Option<Vec<String>> {
    let line = std::fs::read_to_string(folder(pid).join("cmdline")).ok()?;
    Some(line.split('\0').map(str::to_owned).collect())
}

/// All processes.
pub fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A TCP socket of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpSocket {
    /// Its own address; an unspecified one takes connections to any.
    pub ip: IpAddr,
    /// Its own port. Several sockets may have the same one, if they are connected to different places.
    pub port: u16,
    /// The port of the other end; 0 if it takes connections.
    pub peer_port: u16,
    /// True if it takes connections.
    pub is_listening: bool,
    /// Its number, by which processes hold it.
    pub inode: u64,
}

impl TcpSocket {
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port_of = |i: usize| {
            let (_, port) = fields.get(i)?.rsplit_once(':')?;
            u16::from_str_radix(port, 16).ok()
        };
        let (ip, _) = fields.get(1)?.rsplit_once(':')?;
        Some(Self {
            ip: address(ip)?,
            port: port_of(1)?,
            peer_port: port_of(2)?,
            is_listening: *fields.get(3)? == "0A",
            inode: fields.get(9)?.parse().ok()?,
        })
    }
}

/// An address as the kernel writes it: words of 32 bits, each as a number of this machine.
fn address(text: &str) -> Option<IpAddr> {
    let words = text.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).ok()?;
        u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
    });
    let bytes = words.collect::<Option<Vec<[u8; 4]>>>()?.concat();
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

/// The sockets of a table, [`TCP`] or [`TCP6`].
#[must_use]
pub fn sockets(table: &str) -> Vec<TcpSocket> {
    let text = std::fs::read_to_string(table).unwrap_or_default();
    text.lines().skip(1).filter_map(TcpSocket::parse).collect()
}

/// True if a process holds one of these sockets, which are named by their inodes.
#[must_use]
pub fn holds(pid: u32, inodes: &HashSet<u64>) -> bool {
    let files = std::fs::read_dir(folder(pid).join("fd")).into_iter();
    files.flatten().flatten().any(|file| {
        let target = std::fs::read_link(file.path()).ok();
        let inode = target.as_ref().and_then(|target| target.to_str());
        let inode = inode.and_then(|name| name.strip_prefix("socket:[")?.strip_suffix(']'));
        inode.is_some_and(|inode| inode.parse().is_ok_and(|inode| inodes.contains(&inode)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_after_the_name_are_read() {
        let line = "12 (a (b) c) S 4 12 12 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 5 6 7";
        let stat = Stat {
            state: 'S',
            parent: 4,
            busy: Duration::from_millis(1_200),
            busy_of_ended: Duration::from_millis(40),
        };
        assert_eq!(Stat::parse(line), Some(stat));
        assert_eq!(Stat::parse("12 a"), None);
    }

    #[test]
    fn addresses_are_read_in_the_order_of_the_machine() {
        let written = |bytes: &[u8]| -> String {
            let words = bytes.chunks(4).map(|word| {
                let word = u32::from_ne_bytes(word.try_into().unwrap());
                format!("{word:08X}")
            });
            words.collect()
        };
        let ip: IpAddr = "127.0.0.2".parse().unwrap();
        assert_eq!(address(&written(&[127, 0, 0, 2])), Some(ip));
        let ip: std::net::Ipv6Addr = "2001:db8::7".parse().unwrap();
        assert_eq!(address(&written(&ip.octets())), Some(ip.into()));
        for bad in ["", "x100007F", "0100007F0100007F"] {
            assert_eq!(address(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_socket_is_held_by_the_process_that_opened_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = std::process::id();
        let found = sockets(TCP);
        let inodes = |of: u16| {
            let of = found
                .iter()
                .filter(|socket| socket.port == of && socket.is_listening);
            of.map(|socket| socket.inode).collect::<HashSet<_>>()
        };
        if cfg!(target_os = "linux") {
            let mut here = found.iter().filter(|socket| socket.port == port);
            assert!(here.any(|socket| socket.ip.is_loopback()));
            assert!(pids().any(|pid| pid == own) && command_line(own).is_some());
            assert_eq!(inodes(port).len(), 1);
            assert!(holds(own, &inodes(port)));
        }
        assert!(!holds(own, &HashSet::new()));
    }
}
