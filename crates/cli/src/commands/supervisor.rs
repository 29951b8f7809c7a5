//! What a supervisor such as systemd is told: that the server listens, that it stops, and that it is alive.
//!
//! How: one datagram for each message, to the socket that the variable `NOTIFY_SOCKET` names (`man sd_notify`). Without
//! the variable nobody is told anything.
//!
//! The watchdog (`WATCHDOG_USEC`) is fed after each look at the pipelines of the store that is *answered*, whatever the
//! answer is. A server whose database is away, or whose file was moved, is alive and says so; a restart would lose what
//! waits in it, and mend nothing. One whose pipeline hangs, or whose threads are all stuck, answers no look, and is
//! restarted.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_core::shares::{Holder, act_as};
use gesta_core::{EventStore, printable};

/// So many looks fit into the time after which the supervisor takes the server for hung.
const LOOKS_IN_TIME: u32 = 4;
/// How long a message may wait for a supervisor that does not read.
const WRITE_MAX: Duration = Duration::from_secs(1);

/// The supervisor that has started this process.
#[derive(Debug)]
pub(super) struct Supervisor {
    socket: UnixDatagram,
    address: SocketAddr,
    /// The time after which it takes this process for hung, unless it is told otherwise.
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// Finds the supervisor by the environment. A socket that cannot be used is told in the log.
    pub(super) fn of_environment() -> Option<Arc<Self>> {
        let name = std::env::var_os("NOTIFY_SOCKET")?;
        let found = Self::at(&name, watchdog()).map(Arc::new);
        found
            .inspect_err(|error| {
                tracing::warn!(socket = ?name, %error, "the supervisor (NOTIFY_SOCKET) cannot be told anything");
            })
            .ok()
    }

    fn at(name: &OsStr, watchdog: Option<Duration>) -> std::io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(WRITE_MAX))?;
        Ok(Self {
            socket,
            address: address_of(name)?,
            watchdog,
        })
    }

    /// Says that the server listens.
    pub(super) fn is_ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// Says that the server stops.
    pub(super) fn is_stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=stopping: running requests finish");
    }

    /// Looks again and again if there is a watchdog, and feeds it. Does not end by itself then.
    pub(super) async fn watch(
        self: Arc<Self>,
        look: impl Fn() -> BoxFuture<'static, gesta_core::Result<()>> + Send,
    ) {
        let Some(time) = self.watchdog else {
            return;
        };
        let mut pauses = tokio::time::interval(time / LOOKS_IN_TIME);
        pauses.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut before = None;
        loop {
            pauses.tick().await;
            let status = status_of(look().await);
            match before.replace(status.clone()) {
                Some(last) if last == status => self.tell("WATCHDOG=1"),
                _ => self.tell(&format!("WATCHDOG=1\nSTATUS={status}")),
            }
        }
    }

    fn tell(&self, message: &str) {
        let sent = self.socket.send_to_addr(message.as_bytes(), &self.address);
        if let Err(error) = sent {
            tracing::warn!(%error, "the supervisor was not told: {}", printable(message));
        }
    }
}

/// Looks at every pipeline of a store, and at its database, as the server itself, which waits behind no caller.
pub(super) fn look_at(store: &Arc<dyn EventStore>) -> BoxFuture<'static, gesta_core::Result<()>> {
    let store = Arc::clone(store);
    act_as(Holder::Server, async move { store.ready().await }).boxed()
}

/// Returns one line about the store.
fn status_of(look: gesta_core::Result<()>) -> String {
    match look {
        Ok(()) => "ready".to_owned(),
        Err(error) => format!("not ready: {}", printable(&error.to_string())).replace('\n', " "),
    }
}

/// Reads the address of a socket: a path, or a name that begins with `@`, which stands for no file.
fn address_of(name: &OsStr) -> std::io::Result<SocketAddr> {
    match name.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => {
            use std::os::linux::net::SocketAddrExt;
            SocketAddr::from_abstract_name(name)
        }
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(std::io::Error::other(
            "must be an absolute path, or a name that begins with @",
        )),
    }
}

/// Returns the time of the watchdog, if it is meant for this process.
fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id())) {
        return None;
    }
    let time = number("WATCHDOG_USEC").filter(|time| *time > 0)?;
    Some(Duration::from_micros(time))
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use gesta_core::Error;

    use super::*;

    /// Goal: a look that finds the database away feeds the watchdog, for a restart would mend nothing; one that is
    /// never answered does not.
    #[tokio::test(start_paused = true)]
    async fn only_a_look_that_is_answered_feeds_the_watchdog() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let supervisor = UnixDatagram::bind(&path).expect("a socket");
        let told = Supervisor::at(path.as_os_str(), Some(Duration::from_secs(120)));
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&looks);
        let look = move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => async { Ok(()) }.boxed(),
            2 => async { Err(Error::unavailable("the database\nis away")) }.boxed(),
            _ => pending().boxed(),
        };
        let watching = Arc::new(told.expect("a supervisor")).watch(look);
        let hour = tokio::time::timeout(Duration::from_secs(3_600), watching);
        assert!(hour.await.is_err(), "it never ends");
        assert_eq!(looks.load(Ordering::Relaxed), 4);
        supervisor.set_nonblocking(true).expect("a socket");
        let mut buffer = [0; 1_024];
        let mut messages = Vec::new();
        while let Ok(bytes) = supervisor.recv(&mut buffer) {
            messages.push(String::from_utf8_lossy(&buffer[..bytes]).into_owned());
        }
        let [first, second, third] = messages.as_slice() else {
            panic!("{messages:?}");
        };
        assert_eq!(first, "WATCHDOG=1\nSTATUS=ready");
        assert_eq!(second, "WATCHDOG=1");
        assert!(
            third.starts_with("WATCHDOG=1\nSTATUS=not ready: "),
            "{third}"
        );
        assert_eq!(third.lines().count(), 2, "{third}");
    }

    #[test]
    fn a_socket_is_a_path_or_an_abstract_name() {
        for (name, is_one) in [("/run/notify", true), ("@name", true), ("vsock:2:1", false)] {
            assert_eq!(address_of(OsStr::new(name)).is_ok(), is_one, "{name}");
        }
    }
}
