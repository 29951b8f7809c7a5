//! Processes of a server: which there are, and how they are suspended.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Result;
use crate::procfs::{self, Stat};

fn stat(pid: i32) -> Option<Stat> {
    procfs::stat(u32::try_from(pid).ok()?)
}

pub(crate) fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

pub(crate) fn children_of(parent: i32) -> Vec<i32> {
    procfs::pids()
        .filter_map(|pid| i32::try_from(pid).ok())
        .filter(|pid| stat(*pid).is_some_and(|stat| i32::try_from(stat.parent) == Ok(parent)))
        .collect()
}

/// Suspends a process and waits until it is, or lets it go on. A process that has ended is left alone.
pub(crate) fn suspend(pid: i32, suspended: bool) -> Result<()> {
    if !suspended {
        let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
        return Ok(());
    }
    if kill(Pid::from_raw(pid), Signal::SIGSTOP).is_err() {
        return Ok(());
    }
    let done = || stat(pid).is_none_or(|stat| matches!(stat.state, 'T' | 'Z' | 'X'));
    crate::wait_until("the process does not stop", done)
}

/// Suspends a server and all of its processes, or lets them go on.
///
/// The server comes first when it is suspended and last when it goes on: it makes no new processes in between.
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
