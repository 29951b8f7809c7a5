//! The processes of a server, as the kernel shows them in `/proc`.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Result;

/// Returns the parent and the state of a process, from `/proc`.
fn stat(pid: i32) -> Option<(i32, char)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

pub(crate) fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|(_, state)| !matches!(state, 'Z' | 'X'))
}

pub(crate) fn children_of(parent: i32) -> Vec<i32> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| stat(*pid).is_some_and(|(found, _)| found == parent))
        .collect()
}

/// Suspends a process and waits until it is suspended, or lets it go on. A process that has ended is left alone.
pub(crate) fn suspend(pid: i32, suspended: bool) -> Result<()> {
    if !suspended {
        let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
        return Ok(());
    }
    if kill(Pid::from_raw(pid), Signal::SIGSTOP).is_err() {
        return Ok(());
    }
    let done = || stat(pid).is_none_or(|(_, state)| matches!(state, 'T' | 'Z' | 'X'));
    crate::wait_until("the process does not stop", done)
}

/// Suspends a server and all of its processes, or lets them go on.
///
/// The server is suspended first and goes on last, so that it makes no new processes in between.
pub(crate) fn suspend_all(server: i32, suspended: bool) -> Result<()> {
    if suspended {
        suspend(server, true)?;
    }
    for child in children_of(server) {
        suspend(child, suspended)?;
    }
    match suspended {
        true => Ok(()),
        false => suspend(server, false),
    }
}
