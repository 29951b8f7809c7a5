//! Messages between the processes that share a store, by `LISTEN` and `NOTIFY` on one connection.
//!
//! Why apart from appends: a commit that notifies takes a lock of the whole server. Why so few: while one message
//! travels, later ones about the same log are merged, and there is a pause between two. Invariants: a message may be
//! lost, but then [`Signal::Interrupted`] follows; what this process sent does not come back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt};
use gesta_core::backend::Signal;
use gesta_core::{BackOff, Incarnation, LogId, Position};
use tokio::sync::{Notify, broadcast, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::{Client, Notification, Statement};
use uuid::Uuid;

use crate::connection::{Connection, Connector, Role, read_settings};
use crate::error;
use crate::history::Ledger;
use crate::reach::Lookout;

const SEND_SIGNALS: &str = include_str!("../sql/send_signals.sql");

/// Messages that are kept for a slow listener.
pub(crate) const QUEUE_MAX: usize = 1_024;
/// Shortest time between two statements that notify.
const PAUSE: Duration = Duration::from_millis(10);
/// A connection in use is asked for a sign of life this often.
const SIGN_OF_LIFE: Duration = Duration::from_secs(30);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The other hosts are asked this often whether one of them has become the primary: an old primary that goes on does not
/// know.
const HOSTS_PAUSE: Duration = Duration::from_secs(10);
/// So long they may take to answer.
const HOSTS_LOOK: Duration = Duration::from_secs(1);
/// How old the settings in `/info` may be.
const SETTINGS_PAUSE: Duration = Duration::from_secs(10);
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// What waits to be sent.
#[derive(Default, Debug)]
struct Pending {
    appended: BTreeMap<LogId, Position>,
    /// To give way, or to go on; the newest counts.
    requests: BTreeMap<LogId, Signal>,
}

#[derive(Debug)]
struct Shared {
    ledger: Arc<Ledger>,
    pending: Mutex<Pending>,
    wake: Notify,
    /// Others are asked to give way, or may go on: this does not wait for the end of a pause.
    urgent: Notify,
}

/// The connection for messages. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Signals {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Signals {
    pub(crate) fn start(connector: Arc<Connector>, ledger: Arc<Ledger>) -> Self {
        let shared = Arc::new(Shared {
            ledger,
            pending: Mutex::default(),
            wake: Notify::new(),
            urgent: Notify::new(),
        });
        let task = tokio::spawn(run(connector, Arc::clone(&shared)));
        Self { shared, task }
    }

    /// Messages from now on; a listener that is too slow gets [`Signal::Interrupted`].
    pub(crate) fn subscribe(&self) -> BoxStream<'static, Signal> {
        let receiver = self.shared.ledger.received.subscribe();
        let next = |mut receiver: broadcast::Receiver<Signal>| async move {
            match receiver.recv().await {
                Ok(signal) => Some((signal, receiver)),
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    Some((Signal::Interrupted, receiver))
                }
                // Closed: endless silence.
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        };
        futures::stream::unfold(receiver, next).boxed()
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

impl Shared {
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

    fn publish(&self, signal: Signal) {
        // Fails only if nobody listens.
        let _ = self.ledger.received.send(signal);
    }
}

async fn run(connector: Arc<Connector>, shared: Arc<Shared>) {
    let mut back_off = BackOff::new(BACK_OFF_MIN, BACK_OFF_MAX);
    loop {
        match connector.connect(Role::Signals).await {
            Ok(connection) => {
                back_off.reset();
                let cause = serve(connection, &connector, &shared).await;
                tracing::warn!(cause, "messages between servers are interrupted");
            }
            Err(error) => tracing::warn!(%error, "no connection for messages between servers"),
        }
        connector
            .hosts
            .pause(Instant::now() + back_off.pause())
            .await;
    }
}

/// Listens and sends until the connection breaks; says why.
async fn serve(mut connection: Connection, connector: &Connector, shared: &Shared) -> String {
    let channel = connector.config.channel();
    let statement = match listen(&connection.client, &channel).await {
        Ok(statement) => statement,
        Err(cause) => return cause,
    };
    shared.publish(Signal::Interrupted);
    let client = Arc::clone(&connection.client);
    let lookout = connection.lookout();
    let over = connection.used.over();
    let outdated = shared.ledger.outdated(connection.generation);
    tokio::select! {
        cause = receive(&mut connection.notifications, &channel, shared) => cause,
        cause = send(&client, &statement, &channel, shared) => cause,
        cause = over => cause,
        never = look_at_hosts(&lookout) => never,
        () = outdated => "the database has changed over".to_owned(),
        cause = look_at_settings(&client, connector, &shared.ledger) => cause,
    }
}

/// Listens to the channel from now on, and prepares the statement that sends to it.
async fn listen(client: &Client, channel: &str) -> std::result::Result<Statement, String> {
    answered(client.batch_execute(&format!("LISTEN {channel}"))).await?;
    answered(client.prepare(SEND_SIGNALS)).await
}

/// Hands on what arrives until the connection is lost, or until another incarnation of the store has begun; says which.
async fn receive(
    notifications: &mut mpsc::Receiver<Notification>,
    channel: &str,
    shared: &Shared,
) -> String {
    while let Some(message) = notifications.recv().await {
        if message.channel() != channel {
            continue;
        }
        match from_payload(shared.ledger.process, message.payload()) {
            Some(Message::Signal(signal)) => shared.publish(signal),
            Some(Message::Incarnation(begun)) if begun != shared.ledger.history().incarnation => {
                // The next connection looks for itself.
                return format!("incarnation {begun} of the store has begun");
            }
            Some(Message::Incarnation(_)) | None => {}
        }
    }
    "the connection was lost".to_owned()
}

/// Sends what waits, and now and then a sign of life, until it is not answered; says why.
async fn send(client: &Client, statement: &Statement, channel: &str, shared: &Shared) -> String {
    loop {
        let silent = tokio::time::timeout(SIGN_OF_LIFE, shared.wake.notified())
            .await
            .is_err();
        let payloads = shared.take_payloads();
        if payloads.is_empty() && !silent {
            continue;
        }
        // Without payloads this is the sign of life.
        if let Err(cause) = answered(client.execute(statement, &[&channel, &payloads])).await {
            return cause;
        }
        // Cut short by a request that came since.
        let _ = tokio::time::timeout(PAUSE, shared.urgent.notified()).await;
    }
}

/// Looks now and then whether another host has become the primary. If so, the present one is given up.
async fn look_at_hosts(lookout: &Lookout) -> String {
    loop {
        tokio::time::sleep(HOSTS_PAUSE).await;
        let look = lookout.is_late();
        tokio::time::sleep(HOSTS_LOOK).await;
        drop(look);
    }
}

/// Looks at the server's settings now and then: an administrator, or what manages fail-over, changes them while all
/// runs. And at the incarnation, in case the message about another one was lost. It is one statement, for it is most of
/// what an idle server asks of the database.
async fn look_at_settings(client: &Client, connector: &Connector, ledger: &Ledger) -> String {
    loop {
        tokio::time::sleep(SETTINGS_PAUSE).await;
        let (settings, found) =
            match tokio::time::timeout(ANSWER_TIMEOUT, read_settings(client)).await {
                Ok(Ok(found)) => found,
                Ok(Err(error)) => return error.to_string(),
                Err(_) => return "no answer".to_owned(),
            };
        connector.observe(Role::Signals, &settings);
        if let Some(found) = found.filter(|found| *found != ledger.history().incarnation) {
            return format!("incarnation {found} of the store has begun");
        }
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

/// `process kind log value`, separated by spaces; of a request to give way `process give_way log asker needed waited`,
/// times in microseconds. A program that does not know a kind passes the message over.
fn to_payload(process: Uuid, signal: &Signal) -> Option<String> {
    let process = process.simple();
    Some(match signal {
        Signal::Appended { log, position } => format!("{process} appended {log} {position}"),
        Signal::GiveWay {
            log,
            by,
            needed,
            waited,
        } => {
            let (needed, waited) = (needed.as_micros(), waited.as_micros());
            format!("{process} give_way {log} {} {needed} {waited}", by.simple())
        }
        Signal::Interrupted | Signal::HistoryChanged => return None,
    })
}

/// Tells that an incarnation of the store has begun.
pub(crate) fn incarnation_payload(process: Uuid, incarnation: Incarnation) -> String {
    let (process, incarnation) = (process.simple(), incarnation.0.simple());
    format!("{process} incarnation 0 {incarnation}")
}

/// What another process tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    Signal(Signal),
    /// This incarnation of the store has begun.
    Incarnation(Incarnation),
}

/// `None` for our own messages and for what is not understood.
fn from_payload(process: Uuid, payload: &str) -> Option<Message> {
    let mut parts = payload.split(' ');
    let sender: Uuid = parts.next()?.parse().ok()?;
    let kind = parts.next()?;
    let log = LogId(parts.next()?.parse().ok()?);
    let value = parts.next()?;
    if sender == process {
        return None;
    }
    let signal = match kind {
        "appended" => Signal::Appended {
            log,
            position: Position(value.parse().ok()?),
        },
        "give_way" => {
            let mut time = || Some(Duration::from_micros(parts.next()?.parse().ok()?));
            Signal::GiveWay {
                log,
                by: value.parse().ok()?,
                needed: time()?,
                waited: time()?,
            }
        }
        "incarnation" => return Some(Message::Incarnation(Incarnation(value.parse().ok()?))),
        _ => return None,
    };
    Some(Message::Signal(signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_and_back_but_not_our_own() {
        let (us, them) = (Uuid::from_u128(1), Uuid::from_u128(2));
        for signal in [
            Signal::Appended {
                log: LogId(3),
                position: Position(9),
            },
            Signal::GiveWay {
                log: LogId(0),
                by: us,
                needed: Duration::from_micros(51_200),
                waited: Duration::from_micros(u64::MAX),
            },
            Signal::GiveWay {
                log: LogId(7),
                by: us,
                needed: Duration::ZERO,
                waited: Duration::ZERO,
            },
        ] {
            let payload = to_payload(them, &signal).expect("can be sent");
            assert_eq!(from_payload(us, &payload), Some(Message::Signal(signal)));
            assert_eq!(from_payload(them, &payload), None);
        }
        let begun = Incarnation::random();
        assert_eq!(
            from_payload(us, &incarnation_payload(them, begun)),
            Some(Message::Incarnation(begun))
        );
        for odd in [
            "",
            "x",
            "00000000000000000000000000000002 appended 0 -1",
            // What versions before this one have said.
            "00000000000000000000000000000002 turn_requested 0 00000000000000000000000000000002",
            "00000000000000000000000000000002 turn_granted 0 00000000000000000000000000000001",
            "00000000000000000000000000000002 give_way 0 00000000000000000000000000000002",
            "00000000000000000000000000000002 give_way 0 00000000000000000000000000000002 1 -1",
            "a b c d e",
        ] {
            assert_eq!(from_payload(us, odd), None);
        }
    }
}
