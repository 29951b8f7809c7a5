//! Messages between the processes that share a store, by `LISTEN` and `NOTIFY` on one connection.
//!
//! Why apart from appends: a commit that notifies takes a lock of the whole server. Why there are few messages: while
//! one travels, later ones about the same log are merged, and there is a pause between two statements. The pause grows
//! with the number of processes that send, because each message wakes all of them: up to five together send about as
//! many as one would alone. Invariants: a message is kept until the database has taken it, or until it is of no more
//! use, so one whose statement fails, or is not answered, is sent again. It may arrive twice, which changes nothing: a
//! message is a hint. When the store is closed, what waits is sent first, if that is possible soon. A receiver that may
//! have missed a message, because its own connection broke or because it is slow, is told by [`Signal::Interrupted`].
//! Messages of this process do not come back to it. Whoever may connect to the database may send messages, so none is
//! believed: what one claims costs a look at the database, and the looks for such claims have a least distance.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::BoxStream;
use gesta_core::backend::{Signal, Topic};
use gesta_core::{BackOff, LastingFault, LogId, Position, uptime, warn_once};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Notification, Statement};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connect::connection::{Connection, Connector, Role, read_settings};
use crate::connect::history::Ledger;
use crate::connect::history::lineage::Noted;
use crate::connect::hosts::Timeline;
use crate::connect::reach::HostWatch;
use crate::error;
use crate::message::{Message, from_payload, sender_of, to_payload};
use crate::received::{Arrival, Inbox};

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
const NO_ANSWER: &str = "no answer";
/// After this time a request to give way, or to go on, is of no more use: nobody gives way for longer upon a request
/// (`giving_way` in `gesta-append`).
const REQUEST_MAX: Duration = Duration::from_millis(500);
/// So many statements in sequence may be refused on one connection. After one more there is a new connection.
const REFUSED_MAX: u32 = 5;
/// The other hosts are asked this often whether one of them has become the primary: an old primary that goes on does
/// not know.
const HOSTS_PAUSE: Duration = Duration::from_secs(10);
/// How long the other hosts may take to answer.
const HOSTS_LOOK: Duration = Duration::from_secs(1);
/// The shortest time between two looks at the settings, however many messages ask for one.
const LOOKS_APART: Duration = Duration::from_millis(100);
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// Messages of this process. Of each log the newest one of each kind counts, so there are few of them, however long the
/// database is away.
#[derive(Default, Debug)]
struct Pending {
    appended: BTreeMap<LogId, Position>,
    /// Requests to give way, or to go on, and when each was made.
    requests: BTreeMap<LogId, (Signal, Instant)>,
}

impl Pending {
    fn note_appended(&mut self, log: LogId, position: Position) {
        let place = self.appended.entry(log).or_default();
        *place = position.max(*place);
    }

    fn is_empty(&self) -> bool {
        self.appended.is_empty() && self.requests.is_empty()
    }
}

/// The messages that the database has not taken yet.
#[derive(Default, Debug)]
struct Outbox {
    waiting: Pending,
    /// Those of the last statement, as long as the database has not said that it was done.
    under_way: Pending,
}

impl Outbox {
    fn put(&mut self, signal: Signal, now: Instant) {
        match signal {
            Signal::Appended { log, position } => self.waiting.note_appended(log, position),
            Signal::GiveWay { log, .. } => {
                self.waiting.requests.insert(log, (signal, now));
            }
            Signal::Interrupted | Signal::HistoryChanged => {}
        }
    }

    /// Returns the messages of the next statement: those that wait, and those of the last statement again if it was not
    /// done. Of two about the same thing the newer one is sent.
    fn take(&mut self, now: Instant) -> Vec<Signal> {
        let Pending { appended, requests } = std::mem::take(&mut self.under_way);
        for (log, position) in appended {
            self.waiting.note_appended(log, position);
        }
        for (log, request) in requests {
            self.waiting.requests.entry(log).or_insert(request);
        }
        self.waiting
            .requests
            .retain(|_, (_, made)| now.saturating_duration_since(*made) < REQUEST_MAX);
        self.under_way = std::mem::take(&mut self.waiting);
        let appended = self.under_way.appended.iter();
        let appended = appended.map(|(log, position)| Signal::Appended {
            log: *log,
            position: *position,
        });
        let requests = self.under_way.requests.values();
        let requests = requests.map(|(signal, _)| *signal);
        appended.chain(requests).collect()
    }

    /// Notes that the last statement was done.
    fn done(&mut self) {
        self.under_way = Pending::default();
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }
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
    outbox: Mutex<Outbox>,
    senders: Mutex<Senders>,
    wake: Notify,
    /// Is notified when other processes are to give way or may go on. Such a message does not wait for the end of a
    /// pause.
    urgent: Notify,
    /// Is cancelled when the store is closed. What waits is then sent without a pause.
    closing: CancellationToken,
    /// Is cancelled when the task has ended.
    ended: CancellationToken,
}

/// The connection for messages. Dropping it ends the connection.
#[derive(Debug)]
pub(crate) struct Signals {
    shared: Arc<SharedSignals>,
    task: JoinHandle<()>,
    close_timeout: Duration,
}

impl Signals {
    pub(crate) fn start(connector: Arc<Connector>, ledger: Arc<Ledger>) -> Self {
        let shared = Arc::new(SharedSignals {
            ledger,
            outbox: Mutex::default(),
            senders: Mutex::default(),
            wake: Notify::new(),
            urgent: Notify::new(),
            closing: CancellationToken::new(),
            ended: CancellationToken::new(),
        });
        let close_timeout = connector.config.close_timeout;
        let task = tokio::spawn(run(connector, Arc::clone(&shared)));
        Self {
            shared,
            task,
            close_timeout,
        }
    }

    /// Returns the messages from now on. A listener that is too slow gets [`Signal::Interrupted`].
    pub(crate) fn subscribe(&self, topic: Topic) -> BoxStream<'static, Signal> {
        self.shared.ledger.received.subscribe(topic)
    }

    /// Queues a message.
    pub(crate) fn send(&self, signal: Signal) {
        self.shared.outbox().put(signal, Instant::now());
        if matches!(signal, Signal::GiveWay { .. }) {
            self.shared.urgent.notify_one();
        }
        self.shared.wake.notify_one();
    }

    /// Ends the connection. What waits is sent before, if the database takes it within
    /// [`close_timeout`](crate::Config::close_timeout): also if the connection is still being made, and by one more
    /// attempt to connect if the last one has failed.
    pub(crate) async fn close(&self) {
        self.shared.closing.cancel();
        let waits = !self.shared.outbox().is_empty();
        if waits {
            let ended = timeout(self.close_timeout, self.shared.ended.cancelled()).await;
            if ended.is_err() || !self.shared.is_over() {
                tracing::debug!("the last messages to other servers were not sent");
            }
        }
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

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_payloads(&self) -> Vec<String> {
        let signals = self.outbox().take(Instant::now());
        let payloads = signals.iter();
        payloads
            .filter_map(|signal| to_payload(self.ledger.process, signal))
            .collect()
    }

    /// Tells whether the store is closed and nothing is left to be sent.
    fn is_over(&self) -> bool {
        self.closing.is_cancelled() && self.outbox().is_empty()
    }
}

/// What is known, over all connections, of how sending goes.
struct Sending {
    back_off: BackOff,
    /// Whether it was told that the database refuses messages.
    told: LastingFault,
}

async fn run(connector: Arc<Connector>, shared: Arc<SharedSignals>) {
    let _ended = shared.ended.clone().drop_guard();
    let mut sending = Sending {
        back_off: BackOff::new(BACK_OFF_MIN, BACK_OFF_MAX),
        told: LastingFault::default(),
    };
    let mut told = LastingFault::default();
    while !shared.is_over() {
        match connector.connect(Role::Signals).await {
            Ok(connection) => {
                let begun = Instant::now();
                let cause = serve(connection, &connector, &shared, (&mut told, &mut sending)).await;
                // One that soon breaks may break by what is sent, which is sent again by the next one.
                if begun.elapsed() >= BACK_OFF_MAX {
                    sending.back_off.reset();
                }
                if shared.is_over() {
                    return;
                }
                warn_once!(
                    told,
                    cause,
                    "messages between servers are interrupted; connecting again"
                );
            }
            Err(error) => {
                if shared.closing.is_cancelled() {
                    return;
                }
                warn_once!(told, %error, "no connection for messages between servers; trying again");
            }
        }
        if shared.closing.is_cancelled() {
            sleep(BACK_OFF_MIN).await;
        } else {
            let until = Instant::now() + sending.back_off.pause();
            tokio::select! {
                () = connector.hosts.pause(until) => {}
                () = shared.closing.cancelled() => {}
            }
        }
    }
}

/// Listens and sends until the connection breaks. Returns the reason.
async fn serve(
    mut connection: Connection,
    connector: &Connector,
    shared: &SharedSignals,
    (told, sending): (&mut LastingFault, &mut Sending),
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
    let claimed = Notify::new();
    tokio::select! {
        cause = receive(&mut connection.notifications, &channel, shared, &claimed) => cause,
        cause = send(&client, &statement, &channel, shared, sending) => cause,
        cause = over => cause,
        never = look_at_hosts(&host_watch) => never,
        () = outdated => "the database has changed over".to_owned(),
        cause = look_at_settings(&client, timeline, connector, &shared.ledger, &claimed) => cause,
    }
}

/// Begins to listen to the channel, and prepares the statement that sends to it.
async fn listen(client: &Client, channel: &str) -> std::result::Result<Statement, String> {
    answered(client.batch_execute(&format!("LISTEN {channel}"))).await?;
    answered(client.prepare(SEND_SIGNALS)).await
}

/// Passes on what arrives until the connection is lost. Returns the reason. When a message claims that another
/// incarnation of the store has begun, `claimed` is notified.
async fn receive(
    notifications: &mut Inbox<Notification>,
    channel: &str,
    shared: &SharedSignals,
    claimed: &Notify,
) -> String {
    while let Some(arrival) = notifications.next().await {
        let Arrival::Message(message) = arrival else {
            shared.ledger.received.publish(Signal::Interrupted);
            continue;
        };
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
                claimed.notify_one();
            }
            Some(Message::Incarnation(_)) | None => {}
        }
    }
    "the connection was lost".to_owned()
}

/// Sends the messages that wait, until the connection is of no more use, or until the store is closed and nothing
/// waits. Returns the reason. That the connection is alive is shown by [`look_at_settings`].
async fn send(
    client: &Client,
    statement: &Statement,
    channel: &str,
    shared: &SharedSignals,
    sending: &mut Sending,
) -> String {
    let mut refused = 0;
    loop {
        let payloads = shared.take_payloads();
        if payloads.is_empty() {
            tokio::select! {
                biased;
                () = shared.wake.notified() => continue,
                () = shared.closing.cancelled() => return "the store is closed".to_owned(),
            }
        }
        let params: [&(dyn ToSql + Sync); 2] = [&channel, &payloads];
        let sent = timeout(ANSWER_TIMEOUT, client.execute(statement, &params)).await;
        let pause = match sent {
            Ok(Ok(_)) => {
                shared.outbox().done();
                refused = 0;
                sending.back_off.reset();
                if sending.told.ends() {
                    tracing::info!("the database takes messages to other servers again");
                }
                shared.senders().pause(Instant::now())
            }
            // The connection works, and the messages of others arrive on it.
            Ok(Err(error)) if !error::is_lost(&error) && refused < REFUSED_MAX => {
                refused += 1;
                let error = error::text(&error);
                warn_once!(
                    sending.told,
                    error,
                    "the database refuses messages to other servers; trying again"
                );
                sending.back_off.pause()
            }
            Ok(Err(error)) => return error::text(&error),
            Err(_) => return NO_ANSWER.to_owned(),
        };
        // An urgent message that came since ends the pause early, and so does the end of the store.
        let ends_early = async {
            tokio::select! {
                () = shared.urgent.notified() => {}
                () = shared.closing.cancelled() => {}
            }
        };
        let _ = timeout(pause, ends_early).await;
    }
}

/// Looks now and then whether another host has become the primary. If so, the present one is given up.
async fn look_at_hosts(host_watch: &HostWatch) -> String {
    loop {
        sleep(HOSTS_PAUSE).await;
        let look = host_watch.is_late();
        sleep(HOSTS_LOOK).await;
        drop(look);
    }
}

/// Looks at the server's settings now and then: an administrator, or what manages fail-over, changes them while all
/// runs. At its clock, and at the incarnation, soon after `claimed` is notified, and in case the message about another
/// one was lost. It is one statement, for it is most of what an idle server asks of the database; only what could not
/// be noted costs more.
async fn look_at_settings(
    client: &Client,
    timeline: Option<Timeline>,
    connector: &Connector,
    ledger: &Ledger,
    claimed: &Notify,
) -> String {
    let pause = connector.config.settings_pause;
    let apart = LOOKS_APART.min(pause);
    loop {
        sleep(apart).await;
        tokio::select! {
            () = sleep(pause.saturating_sub(apart)) => {}
            () = claimed.notified() => {}
        }
        let asked = uptime();
        let found = match timeout(ANSWER_TIMEOUT, read_settings(client)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return NO_ANSWER.to_owned(),
        };
        // Before anything is believed: another store may be there.
        match found.incarnation {
            Some(found) if found == ledger.history().incarnation => {}
            // The next connection finds out by itself what has changed.
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
    match timeout(ANSWER_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(|error| error::text(&error)),
        Err(_) => Err(NO_ANSWER.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn appended(log: u16, position: u64) -> Signal {
        Signal::Appended {
            log: LogId(log),
            position: Position(position),
        }
    }

    fn give_way(log: u16, needed: Duration) -> Signal {
        Signal::GiveWay {
            log: LogId(log),
            by: Uuid::from_u128(1),
            needed,
            waited: Duration::ZERO,
        }
    }

    /// What happened: messages were forgotten when their statement was sent, so that those of a statement that failed
    /// reached nobody. Goal: they are sent again, and never more than the newest of each log.
    #[test]
    fn what_the_database_has_not_taken_is_sent_again() {
        let (mut outbox, now) = (Outbox::default(), Instant::now());
        assert!(outbox.is_empty() && outbox.take(now).is_empty());
        outbox.put(appended(1, 5), now);
        outbox.put(appended(0, 2), now);
        outbox.put(give_way(0, Duration::from_millis(60)), now);
        let all = [
            appended(0, 2),
            appended(1, 5),
            give_way(0, Duration::from_millis(60)),
        ];
        assert_eq!(outbox.take(now), all);
        assert!(!outbox.is_empty());
        assert_eq!(outbox.take(now), all, "it was not answered");
        // What came while the statement was under way is newer, whatever number it has.
        outbox.put(appended(1, 4), now);
        outbox.put(give_way(0, Duration::ZERO), now);
        let newest = [appended(0, 2), appended(1, 5), give_way(0, Duration::ZERO)];
        assert_eq!(outbox.take(now), newest);
        outbox.put(appended(1, 6), now);
        outbox.done();
        assert_eq!(outbox.take(now), [appended(1, 6)], "the others were taken");
        (7..10_000).for_each(|position| {
            outbox.put(appended(1, position), now);
            assert_eq!(outbox.take(now), [appended(1, position)]);
        });
        outbox.done();
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_request_is_not_sent_again_when_nobody_would_follow_it() {
        let (mut outbox, now) = (Outbox::default(), Instant::now());
        outbox.put(give_way(0, REQUEST_MAX), now);
        outbox.put(give_way(1, REQUEST_MAX), now + REQUEST_MAX / 2);
        outbox.put(appended(0, 1), now);
        assert_eq!(outbox.take(now).len(), 3);
        let later = [appended(0, 1), give_way(1, REQUEST_MAX)];
        assert_eq!(outbox.take(now + REQUEST_MAX), later);
        assert_eq!(outbox.take(now + 2 * REQUEST_MAX), [appended(0, 1)]);
    }

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
