//! Messages that are queued: those of a process that stops are sent before, and those that the database does not take
//! are sent again. Messages that somebody invents: none is believed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::BoxStream;
use gesta_core::backend::{Backend, Signal, Topic};
use gesta_core::{
    EventData, EventStore, EventStoreExt, ExpectedRevision, Filter, Position, Subscribe,
    SubscribeFrom, SubscribeTo, Subscription, SubscriptionMessage, SystemClock,
};
use gesta_kit::depth;
use gesta_kit::support::until;
use gesta_postgres::{PostgresBackend, schema};
use gesta_rig::{FaultProxy, Server, shared};
use gesta_store::Store;

use crate::common::{
    LOG, PATIENCE, config, direct, fresh, open, schema_of, signals_of, store_url, until_heard,
    until_told,
};

/// For how long closing waits for what cannot be sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// What the server says of a message that it refuses.
const REFUSED: &str = "permission denied for function pg_notify";

fn appended(position: u64) -> Signal {
    Signal::Appended {
        log: LOG,
        position: Position(position),
    }
}

/// Waits until a listener is told this.
async fn is_told(listener: &mut BoxStream<'static, Signal>, message: Signal) {
    let told = async { while listener.next().await != Some(message) {} };
    let told = tokio::time::timeout(PATIENCE, told).await;
    told.unwrap_or_else(|_| panic!("never told: {message:?}"));
}

/// Opens a store whose closing waits for long, so that a machine that stands still is no reason to lose a message.
async fn open_patiently(url: &str) -> PostgresBackend {
    let mut config = config(url);
    config.close_timeout = PATIENCE;
    PostgresBackend::open(config).await.expect("opens")
}

/// A store that looks at the ends of its logs by itself only when no test runs any more.
fn store_of(backend: &Arc<PostgresBackend>) -> Arc<Store> {
    let mut config = gesta_store::Config::default();
    config.tail.poll_interval = Duration::from_secs(86_400);
    let backend = Arc::clone(backend) as Arc<dyn Backend>;
    Store::open(backend, config, Arc::new(SystemClock)).expect("starts")
}

async fn append(store: &Store) {
    let event = EventData::json("Added".parse().expect("valid"), "{}");
    let appended = store.append_to("cart-1", ExpectedRevision::Any, vec![event]);
    appended.await.expect("appended");
}

/// Takes the next event, which must stand at this position.
async fn takes(subscription: &mut Subscription, position: u64) {
    let next = async {
        loop {
            let message = subscription.next().await.expect("goes on");
            if let SubscriptionMessage::Event { event, .. } = message.expect("goes on") {
                return event.position;
            }
        }
    };
    let next = tokio::time::timeout(PATIENCE, next).await;
    let next = next.unwrap_or_else(|_| panic!("never hears of event {position}"));
    assert_eq!(next, Position(position));
}

/// Lets a process hear of several others that send messages, so that it pauses for long after each of its own.
async fn with_other_senders(backend: &PostgresBackend, url: &str) {
    let client = direct(url).await;
    let send = format!(
        "SELECT pg_notify('gesta_{}', gen_random_uuid() || ' appended 0 0') FROM generate_series(1, 8)",
        schema_of(url)
    );
    let mut arrived = backend.signals(Topic::Appends);
    let hears = async {
        let mut count = 0;
        while count < 4 {
            client.batch_execute(&send).await.expect("sent");
            let soon = Duration::from_millis(20);
            while let Ok(next) = tokio::time::timeout(soon, arrived.next()).await {
                count += usize::from(next == Some(appended(0)));
            }
        }
    };
    let heard = tokio::time::timeout(PATIENCE, hears).await;
    heard.expect("hears of the others");
}

/// What happened: a process that appended and stopped queued the message about its last events and ended the connection
/// at once, so that the others found these events when they looked by themselves, up to five seconds later. Goal: what
/// is queued is sent first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_append_of_a_process_that_stops_is_told() {
    let Some((other, url)) = fresh().await else {
        return;
    };
    let (one, other) = (Arc::new(open_patiently(&url).await), Arc::new(other));
    let (stopping, following) = (store_of(&one), store_of(&other));
    let subscribe = Subscribe {
        to: SubscribeTo::All(Filter::ALL),
        from: SubscribeFrom::End,
    };
    let mut followed = following.subscribe(subscribe).await.expect("subscribes");
    append(&stopping).await;
    takes(&mut followed, 1).await;
    with_other_senders(&one, &url).await;
    append(&stopping).await;
    takes(&mut followed, 2).await;
    // The message about the last event was sent a moment ago, so the next one waits.
    append(&stopping).await;
    stopping.shutdown().await.expect("shuts down");
    takes(&mut followed, 3).await;
    following.shutdown().await.expect("shuts down");
}

/// Goal: a process that stops before its connection for messages is made, as a command does that appends one event,
/// sends them too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stops_at_once_sends_its_messages() {
    let Some((other, url)) = fresh().await else {
        return;
    };
    let first = open(&url).await;
    let mut at_other = signals_of(&other);
    until_heard(&first, &mut at_other).await;
    for position in 1..=5 {
        let short = open_patiently(&url).await;
        short.send_signal(appended(position)).await;
        short.close().await;
        is_told(&mut at_other, appended(position)).await;
    }
}

/// Goal: closing ends soon although nothing can be sent any more, whether the connection is silent or gone, and at once
/// if nothing waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_does_not_wait_for_a_dead_connection() {
    let Some((other, url)) = fresh().await else {
        return;
    };
    let server = shared().expect("runs");
    let mut at_other = signals_of(&other);
    for (is_silent, waits) in [(true, true), (false, true), (true, false)] {
        let proxy = FaultProxy::to_postgres(server.addr()).expect("listens");
        let mut config = config(&proxy.url(&url));
        config.close_timeout = CLOSE_TIMEOUT;
        let one = PostgresBackend::open(config).await.expect("opens");
        until_heard(&one, &mut at_other).await;
        if is_silent {
            proxy.set_half_open(true);
        } else {
            proxy.refuse_connections(true);
            proxy.cut_all();
        }
        if waits {
            one.send_signal(appended(1)).await;
        }
        let begun = Instant::now();
        let closed = tokio::time::timeout(PATIENCE, one.close()).await;
        closed.expect("closes");
        let what = format!("closing beside a dead connection ({is_silent}, {waits})");
        depth::in_time(&what, begun.elapsed(), CLOSE_TIMEOUT * 2);
    }
}

/// Waits until the server has refused more messages than so many.
async fn until_refused_after(server: &Server, before: usize) {
    let is_refused = async || server.log().matches(REFUSED).count() > before;
    until("it is refused", PATIENCE, is_refused).await;
}

/// What happened: messages were forgotten before their statement was sent. If it failed they reached nobody, and only
/// the process that had sent them was told that messages may be lost. Goal: they are sent until the database takes
/// them, also by another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_the_database_refuses_are_sent_again() {
    let Some(server) = Server::start().expect("starts") else {
        return;
    };
    let make = "CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app";
    server.execute(make).expect("made");
    let url = store_url(&server);
    let name = schema_of(&url);
    let as_app = url.replace("postgres@", "app@");
    let one = open(&format!("{as_app}&application_name={name}")).await;
    let other = open(&url).await;
    let mut at_other = signals_of(&other);
    until_heard(&one, &mut at_other).await;
    let rule = |rule: &str| {
        let rule = rule.replace("notifying", "EXECUTE ON FUNCTION pg_notify(text, text)");
        server.execute(&rule).expect("set");
    };
    for (position, breaks) in [(1, false), (2, true)] {
        let before = server.log().matches(REFUSED).count();
        rule("REVOKE notifying FROM PUBLIC");
        one.send_signal(appended(position)).await;
        until_refused_after(&server, before).await;
        if breaks {
            let end = format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{name}'"
            );
            server.execute(&end).expect("ended");
        }
        rule("GRANT notifying TO PUBLIC");
        is_told(&mut at_other, appended(position)).await;
    }
}

/// What happened: whoever may connect to a database may notify, and a message that claimed another incarnation of the
/// store was believed. Every process gave up its connection for messages and made another one, and heard nothing from
/// others meanwhile. Goal: an invented claim costs a look at the database and changes nothing; a true one is noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_of_another_incarnation_is_not_believed() {
    let Some((other, url)) = fresh().await else {
        return;
    };
    let name = schema_of(&url);
    let mut config_of = config(&format!("{url}&application_name={name}"));
    // Nothing but a message makes the process look.
    config_of.settings_pause = Duration::from_secs(86_400);
    let one = PostgresBackend::open(config_of).await.expect("opens");
    until_heard(&other, &mut signals_of(&one)).await;
    let mut at_one = one.signals(Topic::Appends);
    let client = direct(&url).await;
    let begun = client.query_one("SELECT clock_timestamp()::text", &[]);
    let begun: String = begun.await.expect("reads").get(0);
    let clock = one.clock(LOG);
    let claim = format!(
        "SELECT pg_notify('gesta_{name}', gen_random_uuid() || ' incarnation 0 ' || gen_random_uuid())"
    );
    for _ in 0..20 {
        client.batch_execute(&claim).await.expect("sent");
    }
    // Only a look shows the process another clock.
    let looks = async {
        while one.clock(LOG) == clock {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looks).await.expect("looks");
    let told = until_told(&other, &[appended(7)], &mut at_one).await;
    assert!(!told.contains(&Signal::Interrupted), "{told:?}");
    let new = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}' AND backend_start > '{begun}'"
    );
    let new: i64 = client
        .query_one(new.as_str(), &[])
        .await
        .expect("reads")
        .get(0);
    assert_eq!(new, 0, "sessions that were made since");

    let begun = schema::new_incarnation(&config(&url)).await.expect("begun");
    let noticed = async {
        while one.history().incarnation != begun {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let noticed = tokio::time::timeout(PATIENCE, noticed).await;
    noticed.expect("a true claim is noticed");
}
