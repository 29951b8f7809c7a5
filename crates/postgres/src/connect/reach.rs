//! Reaches the primary among the hosts of the URL, and notices when another host has become it.
//!
//! The hosts are asked in the order of [`Hosts`]. The next one is asked when the one before it has failed, or has not
//! answered for a moment; the first that proves to be the primary is taken. While a silent host still has time to
//! answer, the others are asked again, so a promotion is noticed although one host hangs. Where a standby answers and
//! no host is the primary, a standby is about to be promoted: a caller that wants to append waits for it here, because
//! pauses between calls are longer. When an answer on a connection is late, and now and then by the connection for
//! messages, the other hosts are asked whether one of them is now the primary, on a higher timeline. If so, the host is
//! given up before the time of the answer is over, or although it answers: an old primary that goes on does not know
//! that it was replaced.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use gesta_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_postgres::Client;

use crate::connect::connection::{Connection, Connector, Role, read_timeline};
use crate::connect::hosts::{HostUse, Hosts, Timeline, Unfit};
use crate::error;

/// How long a host may be silent until the next one is asked.
const NEXT_AFTER: Duration = Duration::from_millis(500);
/// How long after its answer a host that cannot be used is asked again, as long as another host is silent or a
/// promotion is waited for.
const AGAIN_AFTER: Duration = Duration::from_millis(300);
/// After how long an answer is late. On a database that works, answers take milliseconds.
pub(crate) const LATE_AFTER: Duration = Duration::from_millis(500);
/// The pause between two looks at the other hosts.
const LOOK_PAUSE: Duration = Duration::from_millis(300);

/// An attempt that has ended: whether it was the first one at this host in this call, which host it was, and its
/// outcome.
type Ended = (Turn, usize, std::result::Result<Connection, Unfit>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    First,
    Again,
}

impl Connector {
    /// Opens a connection to the primary and verifies it.
    ///
    /// # Errors
    /// `Unavailable` if no host is a primary that answers; `Unsupported` if the server, its settings or our rights do
    /// not suffice. The text names each host.
    pub(crate) async fn connect(&self, role: Role) -> Result<Connection> {
        let mut unasked: VecDeque<usize> = self.hosts.order().into();
        let mut again: VecDeque<(Instant, usize)> = VecDeque::new();
        let mut asked: FuturesUnordered<BoxFuture<'_, Ended>> = FuturesUnordered::new();
        let mut asked_first = 0;
        let mut next_at = Instant::now();
        let mut unfit: Vec<Option<Unfit>> = vec![None; self.hosts.len()];
        let give_up_at = next_at + self.hosts.timeout;
        loop {
            let now = Instant::now();
            let waits = now < give_up_at && awaits_promotion(role, &unfit);
            if now >= next_at
                && let Some(host) = unasked.pop_front()
            {
                asked.push(self.ask(Turn::First, host, role).boxed());
                asked_first += 1;
                next_at = now + NEXT_AFTER;
            }
            // When no host is being asked for the first time any more, and none is about to be promoted, asking again
            // is left to the caller.
            let asks_again = asked_first > 0 || waits;
            while asks_again && let Some((_, host)) = again.pop_front_if(|(from, _)| *from <= now) {
                asked.push(self.ask(Turn::Again, host, role).boxed());
            }
            let next = (!unasked.is_empty()).then_some(next_at);
            let next_again = again.front().filter(|_| asks_again).map(|(from, _)| *from);
            let wake = next.into_iter().chain(next_again);
            let wake = wake.min().unwrap_or(now + self.hosts.timeout);
            if asked.is_empty() && unasked.is_empty() && !waits {
                return Err(self.none_will_do(&unfit));
            }
            tokio::select! {
                Some(ended) = asked.next() => match ended {
                    (_, _, Ok(connection)) => return Ok(connection),
                    (turn, host, Err(reason)) => {
                        next_at = Instant::now();
                        asked_first -= usize::from(turn == Turn::First);
                        if !matches!(reason, Unfit::Silent(_)) {
                            again.push_back((next_at + AGAIN_AFTER, host));
                        }
                        unfit[host] = Some(reason);
                    }
                },
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Asks one host. What is found out is noted in [`Hosts`] before this ends.
    async fn ask(&self, turn: Turn, host: usize, role: Role) -> Ended {
        let limit = self.hosts.timeout;
        let opened = timeout(limit, self.open(host, role)).await;
        let outcome = opened.unwrap_or(Err(Unfit::Silent(limit)));
        let outcome = outcome.and_then(|connection| {
            self.hosts.is_primary(host, connection.session.timeline)?;
            Ok(connection)
        });
        if matches!(outcome, Err(Unfit::Silent(_) | Unfit::Failed(_))) {
            self.hosts.disappointed(host);
        }
        (turn, host, outcome)
    }

    /// Makes one error for all hosts. It is `Unsupported`, or says that it needs an administrator, only if waiting
    /// cannot help with any host.
    fn none_will_do(&self, unfit: &[Option<Unfit>]) -> Error {
        let mut texts = Vec::new();
        let (mut unsupported, mut passing, mut for_administrator) = (false, false, false);
        for (host, reason) in unfit.iter().enumerate() {
            let text = match reason {
                None => continue,
                Some(Unfit::Silent(limit)) => {
                    passing = true;
                    format!("no answer within {} s", limit.as_secs_f64())
                }
                Some(Unfit::Standby) => "the server is a standby, not the primary".to_owned(),
                Some(Unfit::Failed(error)) => match error.kind() {
                    ErrorKind::Unsupported(text) => {
                        unsupported = true;
                        text.clone()
                    }
                    ErrorKind::Unavailable(text) => {
                        match error.is_for_administrator() {
                            true => for_administrator = true,
                            false => passing = true,
                        }
                        text.clone()
                    }
                    // Damaged data, a missing schema and the like do not depend on the host.
                    _ => return error.clone().during("connect to PostgreSQL"),
                },
            };
            texts.push(format!("{}: {text}", self.hosts.get(host).name));
        }
        let text = texts.join("; ");
        let error = match (passing, for_administrator, unsupported) {
            (false, true, _) => Error::needs_administrator(text),
            (false, false, true) => error::unfit(text),
            _ => Error::unavailable(text),
        };
        error.during("connect to PostgreSQL")
    }
}

/// Tells whether the caller should wait for a promotion: a host answers that it is a standby, and the connection is one
/// that is wanted as soon as a host is the primary.
fn awaits_promotion(role: Role, unfit: &[Option<Unfit>]) -> bool {
    let is_standby = |reason: &Option<Unfit>| matches!(reason, Some(Unfit::Standby));
    let is_urgent = matches!(role, Role::Writer | Role::Signals);
    is_urgent && unfit.len() > 1 && unfit.iter().any(is_standby)
}

/// Watches the host of a connection for a caller that awaits an answer.
#[derive(Clone, Debug)]
pub(crate) struct HostWatch {
    hosts: Arc<Hosts>,
    used: HostUse,
    timeline: Option<Timeline>,
}

impl Connection {
    pub(crate) fn host_watch(&self) -> HostWatch {
        HostWatch {
            hosts: Arc::clone(&self.hosts),
            used: self.used.clone(),
            timeline: self.session.timeline,
        }
    }

    /// Waits until the host of this connection is given up, and returns the reason. This is to be called when an answer
    /// begins to be awaited: if it is still awaited after [`LATE_AFTER`], the other hosts are looked at.
    pub(crate) fn host_lost(&self) -> impl Future<Output = String> + Send + use<> {
        let host_watch = (self.hosts.len() > 1).then(|| self.host_watch());
        async move {
            let Some(host_watch) = host_watch else {
                return std::future::pending().await;
            };
            let late = async {
                sleep(LATE_AFTER).await;
                let _late = host_watch.is_late();
                std::future::pending::<String>().await
            };
            tokio::select! {
                reason = host_watch.used.over() => reason,
                never = late => never,
            }
        }
    }
}

impl HostWatch {
    /// Begins to look at the other hosts, for as long as the returned guard lives. Returns `None` if there is nothing
    /// to look at.
    pub(crate) fn is_late(&self) -> Option<Late> {
        Late::begin(&self.hosts, &self.used, self.timeline)
    }

    /// Gives the host up, if there are others.
    pub(crate) fn give_up(&self, reason: &str) {
        self.hosts.give_up(&self.used, reason);
    }
}

/// Says that an answer is late: while such a guard lives, the other hosts are looked at.
#[derive(Debug)]
pub(crate) struct Late {
    hosts: Arc<Hosts>,
    host: usize,
}

impl Late {
    /// Makes a guard; `None` if there is nothing to look at.
    fn begin(hosts: &Arc<Hosts>, used: &HostUse, timeline: Option<Timeline>) -> Option<Self> {
        let timeline = timeline.filter(|_| hosts.len() > 1)?;
        let lateness = &hosts.lateness[used.host];
        lateness.answers.fetch_add(1, Ordering::SeqCst);
        if !lateness.looking.swap(true, Ordering::SeqCst) {
            tokio::spawn(look_elsewhere(Arc::clone(hosts), used.clone(), timeline));
        }
        Some(Self {
            hosts: Arc::clone(hosts),
            host: used.host,
        })
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        let lateness = &self.hosts.lateness[self.host];
        lateness.answers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Asks the other hosts while answers of one host are late, and gives that host up when another one has become the
/// primary.
async fn look_elsewhere(hosts: Arc<Hosts>, used: HostUse, ours: Timeline) {
    let lateness = &hosts.lateness[used.host];
    let others = (0..hosts.len()).filter(|other| *other != used.host);
    // Each host is asked by itself, so that a silent one does not delay what another one says.
    let mut looks: FuturesUnordered<_> = others
        .map(|other| becomes_primary(&hosts, other, ours))
        .collect();
    loop {
        tokio::select! {
            Some((other, number)) = looks.next() => {
                let name = &hosts.get(other).name;
                let reason = format!("{name} has become the primary, on timeline {number}");
                hosts.give_up(&used, &reason);
            }
            () = sleep(LOOK_PAUSE) => {}
        }
        if used.is_over() || lateness.answers.load(Ordering::SeqCst) == 0 {
            lateness.looking.store(false, Ordering::SeqCst);
            // Another answer may have become late between the two lines above.
            let needed = !used.is_over() && lateness.answers.load(Ordering::SeqCst) > 0;
            if !needed || lateness.looking.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }
}

/// Asks a host again and again until it is the primary on a higher timeline than ours. Returns the host and that
/// timeline.
async fn becomes_primary(hosts: &Hosts, other: usize, ours: Timeline) -> (usize, i64) {
    loop {
        if let Some(timeline) = timeline_of(hosts, other).await
            && timeline.cluster == ours.cluster
            && timeline.number > ours.number
            && hosts.is_primary(other, Some(timeline)).is_ok()
        {
            return (other, timeline.number);
        }
        sleep(LOOK_PAUSE).await;
    }
}

/// Returns the timeline of a host, if it answers and is a primary.
async fn timeline_of(hosts: &Hosts, host: usize) -> Option<Timeline> {
    let look = ask_host(
        hosts,
        host,
        |client| async move { read_timeline(&client).await },
    );
    timeout(hosts.timeout, look).await.ok().flatten().flatten()
}

/// Asks a host on a plain connection, which is closed then. Returns `None` if the host does not let this process in.
pub(crate) async fn ask_host<A: Future>(
    hosts: &Hosts,
    host: usize,
    question: impl FnOnce(Client) -> A,
) -> Option<A::Output> {
    let connecting = hosts.get(host).driver.connect(hosts.tls.clone());
    let (client, driver) = connecting.await.ok()?;
    // The driver ends when the client has been dropped.
    let (answer, _) = tokio::join!(question(client), driver);
    Some(answer)
}
