//! Ports for servers whose addresses must be known before they listen, or that listen at the same one again.
//!
//! Invariants: no port is one that the system gives to outgoing connections. Any connection of any process would
//! otherwise be given the port before the server has it, or while the server is started again. And no two processes are
//! given the same port while both live: each port has a file that its process holds the lock of.

use std::fs::{File, Permissions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// First port that is given out.
const FIRST: u16 = 10_000;
/// First port of those for outgoing connections, where the system does not tell it.
const OUTGOING: u16 = 32_768;
/// Distance between the first ports of two processes with neighbouring numbers.
const APART: u32 = 97;
/// Where Linux tells which ports are for outgoing connections.
const OUTGOING_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// The folder that has a file for each port that was given out: one for all users and runs of this machine.
const LOCKS: &str = "/tmp/gesta-test-ports";

/// Returns a loopback address that nobody uses at this moment, another one at each call. While this process lives, no
/// other process is given it by this function.
///
/// # Errors
/// If no port can be bound.
pub fn free_address() -> std::io::Result<SocketAddr> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(first_outgoing().saturating_sub(FIRST));
    let first = std::process::id().wrapping_mul(APART);
    for _ in 0..count {
        let number = first.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % count;
        let port = FIRST + u16::try_from(number).unwrap_or(0);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() && is_ours(port) {
            return Ok(address);
        }
    }
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Takes the lock of a port until this process ends. `false` if another process has it.
///
/// Where no file can be made or opened, every port counts as ours: two processes then seldom begin at neighbouring
/// ports.
fn is_ours(port: u16) -> bool {
    static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let folder = Path::new(LOCKS);
    if std::fs::create_dir(folder).is_ok() {
        // Files of other users are opened for reading, which is enough to lock them.
        let _ = std::fs::set_permissions(folder, Permissions::from_mode(0o1777));
    }
    let path = folder.join(port.to_string());
    let Ok(file) = File::open(&path).or_else(|_| File::create(&path)) else {
        return true;
    };
    let is_ours = file.try_lock().is_ok();
    if is_ours && let Ok(mut held) = HELD.lock() {
        held.push(file);
    }
    is_ours
}

fn first_outgoing() -> u16 {
    let text = std::fs::read_to_string(OUTGOING_PORTS).unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|port| port.parse().ok()).unwrap_or(OUTGOING)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// What happened: the port of a node that was about to start was given to a connection of another process.
    #[test]
    fn no_address_is_given_twice_or_to_outgoing_connections() {
        let mut given = HashSet::new();
        for _ in 0..100 {
            let address = free_address().unwrap();
            assert!(given.insert(address), "{address}");
            let is_safe = first_outgoing() <= FIRST || address.port() < first_outgoing();
            assert!(is_safe, "{address}");
            TcpListener::bind(address).unwrap();
        }
        // The one that would be next is passed over while somebody uses it.
        let taken = free_address().unwrap();
        let next = SocketAddr::from((Ipv4Addr::LOCALHOST, taken.port() + 1));
        // If another process has it already, it is used all the same.
        let _listener = TcpListener::bind(next);
        for _ in 0..10 {
            assert_ne!(free_address().unwrap(), next);
        }
    }

    /// What could happen: two test processes were given the same port, and the second server could not listen.
    #[test]
    fn a_port_that_another_process_holds_is_passed_over() {
        // A lock belongs to the file that was opened, so this one is as strange to `is_ours` as another process's.
        let port = free_address().unwrap().port();
        assert!(!is_ours(port));
    }
}
