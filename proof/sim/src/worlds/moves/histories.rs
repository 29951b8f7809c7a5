//! What a process does when the history of another database than the home of a log has changed, when a log is lost, and
//! when the maps of the databases contradict each other.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures::future::join_all;
use gesta_postgres::LogMap;
use tokio::time::Instant;
use tracing::field::Visit;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::*;

/// A log that has moved to another database. The copy that it left behind got a row that the log has never had, which
/// was given up.
struct GivenUp {
    world: SharedWorld,
    process: Process,
    home: usize,
    copy: usize,
    /// The moments of the database with the copy: before it had the row, and before that was given up.
    moments: [usize; 2],
}

impl GivenUp {
    async fn new(world: SharedWorld) -> Self {
        let mut process = process(&world).await.expect("a new store");
        for _ in 0..3 {
            assert!(process.appends(&world).await);
        }
        let copy = lock(&world).home();
        let home = (copy + 1) % DATABASES;
        lock(&world).finish(Goals::Move(home)).expect("free");
        assert!(process.appends(&world).await);
        let before = lock(&world).moment(copy);
        lock(&world).append_beside(copy);
        let moments = [before, lock(&world).moment(copy)];
        lock(&world)
            .finish(Goals::From(home, Loss::Accepted))
            .expect("accepted");
        assert!(process.appends(&world).await && reads(&process, &world).await);
        Self {
            world,
            process,
            home,
            copy,
            moments,
        }
    }

    /// The database with the copy is set back, or forward, to a moment, and the process connects to it.
    fn restore(&self, moment: usize) {
        let mut world = lock(&self.world);
        world.restore_to(self.copy, moment);
        world.notice(self.process.id, self.copy);
    }

    /// What the process says when it is asked for the end of the log.
    async fn said(&self) -> String {
        let end = self.process.store.log_end(LOG, Purpose::Append).await;
        end.expect_err("refused").to_string()
    }
}

/// What happened: the database of a copy was failed over, and lost that a row of the copy had been given up. Each
/// process that was running had proven the log before, asked the home of the log alone, and went on, while none started
/// any more. Now all go on, or none.
pub(super) async fn a_log_is_refused_once_a_copy_has_rows_again_that_were_given_up(
    world: SharedWorld,
) {
    let mut one = GivenUp::new(world).await;
    let [before, with_row] = one.moments;
    one.restore(before);
    assert!(one.process.appends(&one.world).await, "nothing is missing");
    // It is set forward, to what it had lost.
    one.restore(with_row);
    assert!(one.said().await.contains("log 1 is lost"));
    assert!(!one.process.appends(&one.world).await && one.process.read().await.is_none());
    assert!(process(&one.world).await.is_none(), "no process starts");
    let given_up = Goals::From(one.home, Loss::Accepted);
    lock(&one.world).finish(given_up).expect("accepted");
    for process in [
        &mut one.process,
        &mut process(&one.world).await.expect("whole"),
    ] {
        assert!(process.appends(&one.world).await && reads(process, &one.world).await);
    }
}

/// Goal: a process that has noticed the loss appends nothing by a writer that it has opened before.
pub(super) async fn a_writer_of_an_earlier_history_is_not_used(world: SharedWorld) {
    let mut one = GivenUp::new(world).await;
    let end = one.process.store.log_end(LOG, Purpose::Append).await;
    let end = end.expect("the log is whole");
    let appended = one.process.append_after(&one.world, end).await;
    let end = appended.expect("the log is whole");
    one.restore(one.moments[1]);
    assert!(one.process.append_after(&one.world, end).await.is_none());
}

/// What happened: a process went on by the proof of before while a database was away. When that one was back, the log
/// was found to be lost and every other call was refused, but the writer of before appended on.
pub(super) async fn a_writer_of_the_proof_of_before_is_not_used_once_the_log_is_lost(
    world: SharedWorld,
) {
    let mut one = GivenUp::new(world).await;
    let third = 3 - one.home - one.copy;
    lock(&one.world).away[third] = true;
    one.restore(one.moments[1]);
    assert!(one.process.appends(&one.world).await);
    let end = one.process.end.expect("it has appended");
    settled().await;
    lock(&one.world).away[third] = false;
    let end = one.process.append_after(&one.world, end).await;
    let end = end.expect("it has not been asked yet, but is now");
    settled().await;
    assert!(one.process.append_after(&one.world, end).await.is_none());
    assert!(one.said().await.contains("log 1 is lost"));
}

/// Lets all that was begun end.
async fn settled() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// Goal: a database that is away stops no log of another one that was not set back, and no call waits for it twice;
/// when it is back, all are asked.
pub(super) async fn while_a_database_is_away_the_proof_of_before_counts(world: SharedWorld) {
    let mut one = GivenUp::new(world).await;
    let third = 3 - one.home - one.copy;
    lock(&one.world).away[third] = true;
    one.restore(one.moments[1]);
    assert!(one.process.appends(&one.world).await);
    let count = lock(&one.world).count;
    assert!(one.process.appends(&one.world).await);
    assert_eq!(lock(&one.world).count, count, "no call waits for it again");
    lock(&one.world).away[third] = false;
    drop(one.process.store.log_end(LOG, Purpose::Append).await);
    settled().await;
    assert!(one.said().await.contains("log 1 is lost"));
}

/// What happened: a database that took questions and did not answer them stopped the logs of all others for 40 s and
/// longer whenever the history of another one had changed. Goal: they wait for it once, and shortly.
pub(super) async fn a_database_that_hangs_stops_no_log_of_another(world: SharedWorld) {
    let mut one = GivenUp::new(world).await;
    let third = 3 - one.home - one.copy;
    lock(&one.world).hangs[third] = true;
    one.restore(one.moments[1]);
    let begun = Instant::now();
    assert!(one.process.appends(&one.world).await);
    assert!(one.process.appends(&one.world).await);
    assert!(begun.elapsed() <= Duration::from_secs(1));
}

/// Goal: the calls that wait for a lost log at the same time ask each database once.
pub(super) async fn calls_to_a_lost_log_ask_once_together(world: SharedWorld) {
    let one = GivenUp::new(world).await;
    one.restore(one.moments[1]);
    assert!(one.said().await.contains("log 1 is lost"));
    let before = lock(&one.world).count;
    let calls = (0..10).map(|_| one.said());
    let said = join_all(calls).await;
    assert!(said.iter().all(|said| said.contains("log 1 is lost")));
    let after = lock(&one.world).count;
    let asked = (after.maps - before.maps, after.held - before.held);
    // The maps are read once more, since a log that has moved meanwhile seems to be lost.
    assert_eq!(asked, (2 * DATABASES, DATABASES));
}

/// Goal: the calls that follow a log to its new home at the same time read the map of that one once.
pub(super) async fn calls_that_follow_a_log_read_once_together(world: SharedWorld) {
    let process = process(&world).await.expect("a new store");
    let to = (lock(&world).home() + 1) % DATABASES;
    lock(&world).finish(Goals::Move(to)).expect("free");
    let before = lock(&world).count;
    let calls = (0..10).map(|_| process.store.log_end(LOG, Purpose::Append));
    for end in join_all(calls).await {
        end.expect("it has moved");
    }
    let after = lock(&world).count;
    assert!(after.maps - before.maps <= DATABASES + 1, "{after:?}");
    assert_eq!(after.held, before.held);
}

/// Goal: while two databases keep different maps of one version, no process that runs goes on, as none starts.
pub(super) async fn maps_that_contradict_each_other_stop_every_process(world: SharedWorld) {
    let mut before = process(&world).await.expect("a new store");
    assert!(before.appends(&world).await);
    let (id, map) = (before.id, lock(&world).newest().clone());
    let moves = |log, to| {
        map.announced(Moving {
            log: LogId(log),
            to,
        })
    };
    let put = |place: usize, map: &LogMap| {
        let mut world = lock(&world);
        world.put(place, map);
        world.histories[place] += 1;
        world.notice(id, place);
    };
    put(0, &moves(0, 1).expect("may go"));
    let other = moves(2, 0).expect("may go");
    put(2, &other);
    for _ in 0..2 {
        let end = before.store.log_end(LOG, Purpose::Append).await;
        let text = end.expect_err("nobody knows which counts").to_string();
        assert!(text.contains("two maps of version 2"), "{text}");
    }
    let started = open(&world).await.expect_err("refused").to_string();
    assert!(started.contains("two maps of version 2"), "{started}");
    put(0, &other);
    assert!(before.appends(&world).await && reads(&before, &world).await);
}

/// Goal: a copy that is open is told of, once, until it is closed.
pub(super) async fn a_copy_that_is_open_is_told_of_once(world: SharedWorld) {
    let warnings = Warnings::default();
    let _collecting = tracing::subscriber::set_default(warnings.clone());
    let mut process = process(&world).await.expect("a new store");
    assert!(process.appends(&world).await);
    let copy = lock(&world).home();
    let moment = lock(&world).moment(copy);
    lock(&world)
        .finish(Goals::Move((copy + 1) % DATABASES))
        .expect("free");
    assert!(process.appends(&world).await);
    assert!(process.store.open_copies().is_empty());
    for round in 1..=2 {
        for _ in 0..3 {
            lock(&world).restore_to(copy, moment);
            lock(&world).notice_all(process.id);
            assert!(process.appends(&world).await, "it stops nobody");
        }
        let open = process.store.open_copies();
        let [open] = open.as_slice() else {
            panic!("one is open: {open:?}");
        };
        assert_eq!((open.log, open.place), (LOG, copy));
        let advice = open.advice();
        assert!(
            advice.contains("log 1 is open in database 2 of 3")
                && advice.contains("move-log 1 --undo"),
            "{advice}"
        );
        assert_eq!(warnings.0.load(Ordering::Relaxed), round);
        lock(&world).finish(Goals::Undo).expect("nothing is lost");
        lock(&world).histories[copy] += 1;
        lock(&world).notice_all(process.id);
        assert!(process.appends(&world).await);
        assert!(process.store.open_copies().is_empty(), "it is closed");
    }
}

/// A log that has scavenged an event of the same stream and revision as one that was given up.
struct LookAlike {
    /// Where the log lies.
    home: usize,
    /// Where the event was that was given up, and the moment at which it was there.
    copy: usize,
    moment: usize,
}

impl LookAlike {
    async fn new(world: &SharedWorld) -> Self {
        let mut process = process(world).await.expect("a new store");
        process.appends_to(world, 0).await;
        let copy = lock(world).home();
        let home = (copy + 1) % DATABASES;
        lock(world).finish(Goals::Move(home)).expect("free");
        let before = lock(world).moment(copy);
        lock(world).finish(Goals::Move(copy)).expect("free");
        process.appends_to(world, 1).await;
        let moment = lock(world).moment(copy);
        lock(world).restore_to(copy, before);
        lock(world)
            .finish(Goals::From(home, Loss::Accepted))
            .expect("accepted");
        process.appends_to(world, 2).await;
        process.appends_to(world, 2).await;
        lock(world).remove_oldest(2, 1);
        Self { home, copy, moment }
    }

    /// The event is there again, and the log moves to it.
    async fn moves_there(&self, world: SharedWorld) {
        lock(&world).restore_to(self.copy, self.moment);
        {
            let world = lock(&world);
            assert!(world.seems_whole() && !world.is_whole());
        }
        lock(&world).finish(Goals::Move(self.copy)).expect("free");
        let mut process = process(&world).await.expect("nothing is lost");
        assert!(reads(&process, &world).await && process.appends(&world).await);
    }
}

impl Process {
    /// Appends to the stream with this name, again after a batch has missed.
    async fn appends_to(&mut self, world: &SharedWorld, name: u8) {
        for _ in 0..5 {
            lock(world).planned = Some(name);
            if self.append(world).await {
                return;
            }
        }
        panic!("never appended");
    }
}

/// What happened: what an old copy had after the last row of the log counted as scavenged, since the log had scavenged
/// another event of that stream and revision. The names of the old copy stayed, and the log took them over.
pub(super) async fn a_copy_of_a_history_that_was_given_up_gets_the_names_of_the_log(
    world: SharedWorld,
) {
    LookAlike::new(&world).await.moves_there(world).await;
}

/// Goal: the same if the log was closed for a move before its new database was restored.
pub(super) async fn a_closed_log_is_not_copied_behind_a_history_that_was_given_up(
    world: SharedWorld,
) {
    let alike = LookAlike::new(&world).await;
    lock(&world).close_to_move(alike.copy);
    assert!(lock(&world).is_closed(alike.home));
    alike.moves_there(world).await;
}

/// Counts warnings about open copies.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicUsize>);

/// Whether a message is about an open copy.
#[derive(Default)]
struct IsOpen(bool);

impl Visit for IsOpen {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0 |= field.name() == "message" && format!("{value:?}").contains("is open in");
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut is_open = IsOpen::default();
        event.record(&mut is_open);
        self.0.fetch_add(usize::from(is_open.0), Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
