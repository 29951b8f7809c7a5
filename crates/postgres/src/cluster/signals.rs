//! Messages between the processes that share a store, by `LISTEN` and `NOTIFY` on one connection.
//!
//! Why apart from appends: a commit that notifies takes a lock of the whole server. Why there are few messages: while
//! one travels, later ones about the same log are merged, and there is a pause between two statements. The pause grows
//! with the number of processes that send, because each message wakes all of them: up to five together send about as
//! many as one would alone. Invariants: a message may be lost, but then [`Signal::Interrupted`] follows; messages of
//! this process do not come back to it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::BoxStream;
use gesta_core::backend::{Signal, Topic};
use gesta_core::{BackOff, LastingFault, LogId, Position, uptime, warn_once};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::{Client, Notification, Statement};
use uuid::Uuid;

use crate::connect::connection::{Connection, Connector, Role, read_settings};
use crate::connect::history::Ledger;
use crate::connect::history::lineage::Noted;
use crate::connect::hosts::Timeline;
use crate::connect::reach::HostWatch;
use crate::error;
use crate::message::{Message, from_payload, sender_of, to_payload};

const SEND_SIGNALS: &str = include_str!("../../sql/send_signals.sql");

/// The shortest time between two statements that notify, of all processes together.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest pause between two statements of one process. An event reaches the subscribers of other processes so much
/// later.
const PAUSE_MAX: Duration = PAUSE.saturating_mul(SENDERS_MAX);
/// So many processes that send make the longest pause.
const SENDERS_MAX: u32 = 5;
/// A process from which nothing was heard for this long sends nothing.
const SILENT_AFTER: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The other hosts are asked this often whether one of them has become the primary: an old primary that goes on does
/// not know.
const HOSTS_PAUSE: Duration = Duration::from_secs(10);
/// How long the other hosts may take to answer.
const HOSTS_LOOK: Duration = Duration::from_secs(1);
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// The messages that wait to be sent.
#[derive(Default, Debug)]
struct Pending {
    appended: BTreeMap<LogId, Position>,
    /// Requests to give way, or to go on; for each log the newest one counts.
    requests: BTreeMap<LogId, Signal>,
}

/// The other processes that send messages, and when each was heard last. Of very many only some are noted, those that
/// were heard last: all others would not make the pause longer.
#[derive(Default, Debug)]
struct Senders(HashMap<Uuid, Instant>);

impl Senders {
    fn heard(&mut self, sender: Uuid, now: Instant) {
        if self.0.len() >= SENDERS_MAX as usize && !self.0.contains_key(&sender) {
            let oldest = self.0.iter().min_by_key(|(_, heard)| **heard);
            let oldest = oldest.map(|(sender, _)| *sender);
            if let Some(oldest) = oldest {
                self.0.remove(&oldest);
            }
        }
        self.0.insert(sender, now);
    }

    /// Returns the pause after a statement of this process.
    fn pause(&mut self, now: Instant) -> Duration {
        self.0
            .retain(|_, heard| now.saturating_duration_since(*heard) < SILENT_AFTER);
        let all = u32::try_from(self.0.len() + 1).unwrap_or(u32::MAX);
        PAUSE.saturating_mul(all).min(PAUSE_MAX)
    }
}

#[derive(Debug)]
struct SharedSignals {
    ledger: Arc<Ledger>,
    pending: Mutex<Pending>,
    senders: Mutex<Senders>,
    wake: Notify,
    /// Is notified when other processes are to give way or may go on. Such a message does not wait for the end of a
    /// pause.
    urgent: Notify,
}

/// The connection for messages. Dropping it ends the connection.
#[derive(Debug)]
pub(crate) struct Signals {
    shared: Arc<SharedSignals>,
    task: JoinHandle<()>,
}

impl Signals {
    pub(crate) fn start(connector: Arc<Connector>, ledger: Arc<Ledger>) -> Self {
        let shared = Arc::new(SharedSignals {
            ledger,
            pending: Mutex::default(),
            senders: Mutex::default(),
            wake: Notify::new(),
            urgent: Notify::new(),
        });
        let task = tokio::spawn(run(connector, Arc::clone(&shared)));
        Self { shared, task }
    }

    /// Returns the messages from now on. A listener that is too slow gets [`Signal::Interrupted`].
    pub(crate) fn subscribe(&self, topic: Topic) -> BoxStream<'static, Signal> {
        self.shared.ledger.received.subscribe(topic)
    }

    /// Queues a message.
    pub(crate) fn send(&self, signal: Signal) {
        let mut pending = self
            .shared
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match signal {
            Signal::Appended { log, position } => {
                let place = pending.appended.entry(log).or_default();
                *place = position.max(*place);
            }
            Signal::GiveWay { log, .. } => {
                pending.requests.insert(log, signal);
                self.shared.urgent.notify_one();
            }
            Signal::Interrupted | Signal::HistoryChanged => return,
        }
        drop(pending);
        self.shared.wake.notify_one();
    }

    pub(crate) fn close(&self) {
        self.task.abort();
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SharedSignals {
    fn senders(&self) -> MutexGuard<'_, Senders> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_payloads(&self) -> Vec<String> {
        let pending =
            std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        let appended = pending.appended.into_iter();
        let appended = appended.map(|(log, position)| Signal::Appended { log, position });
        let signals = appended.chain(pending.requests.into_values());
        signals
            .filter_map(|signal| to_payload(self.ledger.process, &signal))
            .collect()
    }
}

async fn run(connector: Arc<Connector>, shared: Arc<SharedSignals>) {
    let mut back_off = BackOff::new(BACK_OFF_MIN, BACK_OFF_MAX);
    let mut told = LastingFault::default();
    loop {
        match connector.connect(Role::Signals).await {
            Ok(connection) => {
                back_off.reset();
                let cause = serve(connection, &connector, &shared, &mut told).await;
                warn_once!(
                    told,
                    cause,
                    "messages between servers are interrupted; connecting again"
                );
            }
            Err(error) => {
                warn_once!(told, %error, "no connection for messages between servers; trying again");
            }
        }
        connector
            .hosts
            .pause(Instant::now() + back_off.pause())
            .await;
    }
}

/// Listens and sends until the connection breaks. Returns the reason.
async fn serve(
    mut connection: Connection,
    connector: &Connector,
    shared: &SharedSignals,
    told: &mut LastingFault,
) -> String {
    let channel = connector.config.channel();
    let statement = match listen(&connection.client, &channel).await {
        Ok(statement) => statement,
        Err(cause) => return cause,
    };
    if told.ends() {
        tracing::info!("messages between servers arrive again");
    }
    shared.ledger.received.publish(Signal::Interrupted);
    let client = Arc::clone(&connection.client);
    let host_watch = connection.host_watch();
    let timeline = connection.session.timeline;
    let over = connection.used.over();
    let outdated = shared.ledger.outdated(connection.generation);
    tokio::select! {
        cause = receive(&mut connection.notifications, &channel, shared) => cause,
        cause = send(&client, &statement, &channel, shared) => cause,
        cause = over => cause,
        never = look_at_hosts(&host_watch) => never,
        () = outdated => "the database has changed over".to_owned(),
        cause = look_at_settings(&client, timeline, connector, &shared.ledger) => cause,
    }
}

/// Begins to listen to the channel, and prepares the statement that sends to it.
async fn listen(client: &Client, channel: &str) -> std::result::Result<Statement, String> {
    answered(client.batch_execute(&format!("LISTEN {channel}"))).await?;
    answered(client.prepare(SEND_SIGNALS)).await
}

/// Passes on what arrives until the connection is lost, or until another incarnation of the store has begun. Returns
/// the reason.
async fn receive(
    notifications: &mut mpsc::Receiver<Notification>,
    channel: &str,
    shared: &SharedSignals,
) -> String {
    while let Some(message) = notifications.recv().await {
        if message.channel() != channel {
            continue;
        }
        if let Some(sender) = sender_of(message.payload())
            && sender != shared.ledger.process
        {
            shared.senders().heard(sender, Instant::now());
        }
        match from_payload(shared.ledger.process, message.payload()) {
            Some(Message::Signal(signal)) => shared.ledger.received.publish(signal),
            Some(Message::Incarnation(begun)) if begun != shared.ledger.history().incarnation => {
                // The next connection finds out by itself what has changed.
                return format!("incarnation {begun} of the store has begun");
            }
            Some(Message::Incarnation(_)) | None => {}
        }
    }
    "the connection was lost".to_owned()
}

/// Sends the messages that wait, until one is not answered. Returns the reason. That the connection is alive is shown
/// by [`look_at_settings`].
async fn send(
    client: &Client,
    statement: &Statement,
    channel: &str,
    shared: &SharedSignals,
) -> String {
    loop {
        shared.wake.notified().await;
        let payloads = shared.take_payloads();
        if payloads.is_empty() {
            continue;
        }
        if let Err(cause) = answered(client.execute(statement, &[&channel, &payloads])).await {
            return cause;
        }
        let pause = shared.senders().pause(Instant::now());
        // An urgent message that came since ends the pause early.
        let _ = tokio::time::timeout(pause, shared.urgent.notified()).await;
    }
}

/// Looks now and then whether another host has become the primary. If so, the present one is given up.
async fn look_at_hosts(host_watch: &HostWatch) -> String {
    loop {
        tokio::time::sleep(HOSTS_PAUSE).await;
        let look = host_watch.is_late();
        tokio::time::sleep(HOSTS_LOOK).await;
        drop(look);
    }
}

/// Looks at the server's settings now and then: an administrator, or what manages fail-over, changes them while all
/// runs. At its clock, and at the incarnation, in case the message about another one was lost. It is one statement, for
/// it is most of what an idle server asks of the database; only what could not be noted costs more.
async fn look_at_settings(
    client: &Client,
    timeline: Option<Timeline>,
    connector: &Connector,
    ledger: &Ledger,
) -> String {
    loop {
        tokio::time::sleep(connector.config.settings_pause).await;
        let asked = uptime();
        let found = match tokio::time::timeout(ANSWER_TIMEOUT, read_settings(client)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return "no answer".to_owned(),
        };
        // Before anything is believed: another store may be there.
        match found.incarnation {
            Some(found) if found == ledger.history().incarnation => {}
            Some(found) => return format!("incarnation {found} of the store has begun"),
            None => return "the store is gone".to_owned(),
        }
        connector.see_clock(found.clock, asked);
        connector.see_read_only(found.read_only);
        if found.read_only {
            // A session may keep what it began with, so the next look is that of a new one.
            return error::READ_ONLY.to_owned();
        }
        // Noted first: when synchronous standbys are shown, a fail-over to one of them keeps the incarnation.
        let place = Noted::on(timeline, &found.settings.standby_names);
        ledger.note(client, place).await;
        connector.observe(Role::Signals, &found.settings);
    }
}

async fn answered<T>(
    answer: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
) -> std::result::Result<T, String> {
    match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(|error| error::text(&error)),
        Err(_) => Err("no answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_processes_send_the_longer_each_pauses() {
        let (mut senders, start) = (Senders::default(), Instant::now());
        assert_eq!(senders.pause(start), PAUSE, "alone");
        senders.heard(Uuid::from_u128(1), start);
        senders.heard(Uuid::from_u128(1), start);
        assert_eq!(senders.pause(start), PAUSE * 2, "one other");
        (2..100).for_each(|other| senders.heard(Uuid::from_u128(other), start));
        assert_eq!(senders.pause(start), PAUSE_MAX, "many");
        let noted = u32::try_from(senders.0.len()).unwrap();
        assert!(noted <= SENDERS_MAX, "{noted} of many take memory");
        let later = start + SILENT_AFTER / 2;
        senders.heard(Uuid::from_u128(1), later);
        assert_eq!(
            senders.pause(start + SILENT_AFTER),
            PAUSE * 2,
            "one is left"
        );
        // Who was heard last is noted, however many were before.
        (200..205).for_each(|other| senders.heard(Uuid::from_u128(other), later));
        let last = later + SILENT_AFTER / 2;
        senders.heard(Uuid::from_u128(300), last);
        assert_eq!(senders.pause(later + SILENT_AFTER), PAUSE * 2, "the last");
    }
}
