//! Moves and losses of logs, while processes append and read by maps that may be old: the databases are a model, the
//! processes and the order of the steps are the product.
//!
//! A database loses its newest changes (rows, the row that closes the log, the map and its notes together), or is set
//! back, or forward, to any state that it has ever had, or does not answer for a while; a process notices that only
//! when it asks the database, or later, and goes on by a writer of before; logs are scavenged; a mover dies and the
//! next one has another goal, which may accept losses; a step is done long after it was decided, after losses elsewhere
//! and while other databases do not answer.
//! Checked is: an event is acknowledged only at the end of the log; a process that has noticed everything goes on only
//! with a log that is whole, and a read of it shows everything that was acknowledged before the read began; a log is
//! open only in its home, unless a loss has left it open; the store opens whenever nothing of the log is lost; whatever
//! survives in any database comes back by recovering the log; nothing is given up that was not accepted.
//!
//! Exact: no clock, one seed. `GESTA_SEED` names it.

mod histories;
mod part;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gesta_core::backend::{
    Backend, Batch, BatchOutcome, LogEnd, LogTail, LogWriter, Purpose, RowId,
};
use gesta_core::{ContentType, EventId, EventType, Position, Revision, StreamId, Tags};
use gesta_kit::depth;

use self::part::{mark_of, open, parts};
use self::world::{DATABASES, Goals, LOG, SharedWorld, World, lock};
use super::*;
use crate::several::backend::Several;
use crate::several::route::Routes;

/// A process of the store.
struct Process {
    /// The number of the process.
    id: usize,
    store: Several,
    writer: Option<Box<dyn LogWriter>>,
    /// The end of the log after the last batch of this process, which goes on from there without looking.
    end: Option<LogEnd>,
}

impl Process {
    /// Appends an event at the end of the log, as this process finds it. It may miss.
    async fn append(&mut self, world: &SharedWorld) -> bool {
        self.append_at_end(world).await.is_some()
    }

    /// Appends an event after the last one of this process, by the writer of before, without looking for the end of the
    /// log: whatever has happened since. It may miss.
    async fn go_on(&mut self, world: &SharedWorld) {
        match self.end {
            Some(end) => drop(self.append_after(world, end).await),
            None => drop(self.append_at_end(world).await),
        }
    }

    async fn append_at_end(&mut self, world: &SharedWorld) -> Option<LogEnd> {
        match self.store.log_end(LOG, Purpose::Append).await {
            Ok(end) => self.append_after(world, end).await,
            Err(_) => {
                (self.writer, self.end) = (None, None);
                None
            }
        }
    }

    /// Appends an event after this end of the log. Returns the new end; `None` if the batch has missed.
    async fn append_after(&mut self, world: &SharedWorld, end: LogEnd) -> Option<LogEnd> {
        self.end = None;
        if self.writer.is_none() {
            self.writer = self.store.open_writer(LOG).await.ok();
        }
        let writer = self.writer.as_mut()?;
        let (stream, revision) = lock(world).next_revision();
        let row = gesta_core::backend::Row {
            position: end.position.next(),
            stream: StreamId::new("s").expect("valid"),
            stream_row: RowId(stream),
            revision: Revision(revision),
            id: EventId::random(),
            event_type: EventType::new("t").expect("valid"),
            type_row: RowId(1),
            created: end.created,
            content_type: ContentType::Json,
            data: Vec::new().into(),
            packed: None,
            metadata: Vec::new().into(),
            tags: Tags::default(),
        };
        let batch = Batch {
            log: LOG,
            after: end,
            rows: vec![row],
            new_streams: Vec::new(),
            new_types: Vec::new(),
        };
        let outcome = writer.submit(Arc::new(batch)).await;
        let last = LogEnd {
            position: end.position.next(),
            writer: writer.epoch(),
            created: end.created,
        };
        if !matches!(outcome, BatchOutcome::Committed) {
            self.writer = None;
            return None;
        }
        self.end = Some(last);
        self.end
    }

    /// Appends, again after a batch has missed. A writer finds out only by that that the log has moved.
    async fn appends(&mut self, world: &SharedWorld) -> bool {
        for _ in 0..5 {
            if self.append(world).await {
                return true;
            }
        }
        false
    }

    /// Reads the whole log page by page. Returns the rows; `None` if that fails.
    async fn read(&self) -> Option<Vec<RowMark>> {
        self.read_by(Reading::Pages).await
    }

    /// Reads the whole log. Returns the rows; `None` if that fails.
    async fn read_by(&self, reading: Reading) -> Option<Vec<RowMark>> {
        let (mut after, mut found) = (Position::START, Vec::new());
        loop {
            let tail = LogTail {
                log: LOG,
                after,
                to: None,
                limit: 3,
            };
            let named = LogTail {
                to: Some(Position(Position::MAX.0 - 1)),
                ..tail
            };
            let page = match reading {
                Reading::Pages => self.store.read_log(named.into()).await,
                Reading::Tails => self.store.read_tail(tail).await,
                Reading::TailsUpTo => self.store.read_tail(named).await,
            };
            let page = page.ok()?;
            found.extend(page.events.iter().map(|event| mark_of(event.id)));
            match page.events.last() {
                Some(last) if !page.complete => after = last.position,
                _ => return Some(found),
            }
        }
    }
}

/// How a log is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    /// As whoever reads pages does.
    Pages,
    /// As whoever follows the log does.
    Tails,
    /// As whoever follows the log does, up to a position that is named.
    TailsUpTo,
}

async fn process(world: &SharedWorld) -> Option<Process> {
    let (store, id) = open(world).await.ok()?;
    let (writer, end) = (None, None);
    Some(Process {
        id,
        store,
        writer,
        end,
    })
}

/// Opens the store while nothing else happens and all databases answer: that must succeed just if nothing is lost,
/// whatever step a mover has come to.
async fn opens_if_whole(world: &SharedWorld) {
    let (away, whole) = {
        let mut world = lock(world);
        world.trouble = false;
        (std::mem::take(&mut world.away), world.is_whole())
    };
    let opened = open(world).await;
    let text = opened.as_ref().err().map(ToString::to_string);
    let mut world = lock(world);
    assert_eq!(
        text.is_none(),
        whole,
        "opened just if nothing is lost: {text:?} {:#?}",
        world.databases
    );
    assert!(text.is_none_or(|text| text.contains("log 1 is lost")));
    (world.away, world.trouble) = (away, true);
}

/// Reads the log in one of the ways, and checks what is found.
async fn reads(process: &Process, world: &SharedWorld) -> bool {
    let reading = match lock(world).below(4) {
        0 => Reading::Tails,
        1 => Reading::TailsUpTo,
        _ => Reading::Pages,
    };
    let before = lock(world).expected();
    let Some(found) = process.read_by(reading).await else {
        return false;
    };
    lock(world).check_read(process.id, &before, &found);
    true
}

/// Does at once what takes many acts otherwise, or a loss.
async fn rarely(world: &SharedWorld, processes: &mut [Process]) {
    let what = lock(world).below(8);
    match what {
        0 => lock(world).lose(),
        1 | 2 => {
            let mut here = lock(world);
            here.lose();
            processes.iter().for_each(|one| here.notice_all(one.id));
        }
        3 => {
            // It is refused if the log is whole elsewhere, or a database is away.
            let mut world = lock(world);
            let from = Goals::From(world.below(DATABASES), Loss::Accepted);
            drop(world.finish(from));
        }
        4 | 5 => {
            let mut world = lock(world);
            let to = Goals::Move(world.below(DATABASES));
            drop(world.finish(to));
        }
        _ => {}
    }
    if what == 2 {
        for process in processes {
            process.go_on(world).await;
        }
    }
}

async fn one_schedule(seed: u64) {
    let world = World::shared(seed);
    let mut processes = Vec::new();
    for _ in 0..2 {
        processes.push(process(&world).await.expect("a new store"));
    }
    for _ in 0..4 {
        assert!(processes[0].append(&world).await);
    }
    lock(&world).trouble = true;
    let acts = 10 + lock(&world).below(60);
    for _ in 0..acts {
        let (what, at) = {
            let mut world = lock(&world);
            (world.below(15), world.below(processes.len()))
        };
        match what {
            0 | 1 => drop(processes[at].append(&world).await),
            2 => processes[at].go_on(&world).await,
            3 | 4 => drop(reads(&processes[at], &world).await),
            5 => {
                let losses = lock(&world).losses();
                if let Some(fresh) = process(&world).await {
                    let world = lock(&world);
                    let is_same = world.losses() == losses;
                    assert!(!is_same || world.is_whole(), "it starts on a lost log");
                    drop(world);
                    processes[at] = fresh;
                }
            }
            6 => lock(&world).scavenge(),
            7 => lock(&world).begin(),
            8 => rarely(&world, &mut processes).await,
            9 => opens_if_whole(&world).await,
            10 => {
                let mut world = lock(&world);
                match world.below(2) {
                    0 => world.leave(),
                    _ => world.away = [false; DATABASES],
                }
            }
            11 => lock(&world).notice_all(processes[at].id),
            _ => lock(&world).work(),
        }
    }
    lock(&world).trouble = false;
    lock(&world).away = [false; DATABASES];
    let to = lock(&world).below(DATABASES);
    lock(&world).settle(to);
    processes.push(process(&world).await.expect("the log is whole"));
    for process in &mut processes {
        assert!(process.appends(&world).await, "every process goes on");
        assert!(reads(process, &world).await);
    }
}

/// Goal: whatever dies, races, is lost and is set back, nothing is acknowledged beside the log, and nothing that
/// survives anywhere is lost without a word.
#[test]
fn logs_survive_moves_and_losses() {
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let runtime = runtime.expect("starts");
    for schedule in 0..depth::count(1_500, 300_000) {
        let seed = seed.wrapping_add(schedule);
        let ran = std::panic::AssertUnwindSafe(|| runtime.block_on(one_schedule(seed)));
        if let Err(panic) = std::panic::catch_unwind(ran) {
            println!("after {schedule} schedules: GESTA_SEED={seed} is the one");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Goal: a process that does not know yet that the log has moved finds what was appended to it since, in whatever way
/// it reads.
#[tokio::test]
async fn readers_with_an_old_map_find_what_came_after_a_move() {
    for reading in [Reading::Pages, Reading::Tails, Reading::TailsUpTo] {
        let world = World::shared(1);
        let mut before = process(&world).await.expect("a new store");
        for _ in 0..4 {
            assert!(before.appends(&world).await);
        }
        let to = (lock(&world).home() + 1) % DATABASES;
        lock(&world).finish(Goals::Move(to)).expect("free");
        let mut other = process(&world).await.expect("whole");
        assert!(other.appends(&world).await, "in the new home");
        let found = before.read_by(reading).await.expect("reads");
        assert_eq!(found.len(), 5, "{reading:?}");
        let expected = lock(&world).expected();
        lock(&world).check_read(before.id, &expected, &found);
    }
}

/// Goal: the two ways in which a restored database has lost acknowledged events without a word. The first: the log has
/// moved to a database that is then set back to a moment before.
#[tokio::test]
async fn a_new_home_that_was_set_back_is_refused_and_the_log_comes_back() {
    let world = World::shared(1);
    let mut process_of_before = process(&world).await.expect("a new store");
    for _ in 0..3 {
        assert!(process_of_before.appends(&world).await);
    }
    let home = lock(&world).home();
    let to = (home + 1) % DATABASES;
    lock(&world).finish(Goals::Move(to)).expect("free");
    assert!(process_of_before.appends(&world).await, "in the new home");
    lock(&world).restore_to(to, 0);
    assert!(process(&world).await.is_none(), "no process opens it");
    assert!(!process_of_before.appends(&world).await, "none goes on");
    assert!(process_of_before.read().await.is_none());
    for goal in [Goals::Undo, Goals::Move(to), Goals::Move(home)] {
        lock(&world).finish(goal).expect_err("the log is lost");
    }
    lock(&world)
        .finish(Goals::Recover)
        .expect("all that moved is left");
    assert_eq!(lock(&world).home(), home, "the old copy is the log");
    for process in [
        &mut process_of_before,
        &mut process(&world).await.expect("whole"),
    ] {
        assert!(reads(process, &world).await);
        assert!(process.appends(&world).await);
    }
    assert_eq!(lock(&world).expected().len(), 5);
}

/// The second: the log has moved away and back to a database that is then set back to its first stay.
#[tokio::test]
async fn a_home_that_was_set_back_to_an_earlier_stay_is_refused() {
    let world = World::shared(2);
    let mut before = process(&world).await.expect("a new store");
    for _ in 0..2 {
        assert!(before.appends(&world).await);
    }
    let home = lock(&world).home();
    let (away, moment) = ((home + 1) % DATABASES, lock(&world).moment(home));
    assert!(before.appends(&world).await);
    lock(&world).finish(Goals::Move(away)).expect("free");
    assert!(before.appends(&world).await);
    lock(&world).finish(Goals::Move(home)).expect("free");
    assert!(before.appends(&world).await);
    lock(&world).restore_to(home, moment);
    assert!(process(&world).await.is_none(), "no process opens it");
    assert!(!before.appends(&world).await && before.read().await.is_none());
    lock(&world)
        .finish(Goals::Move(away))
        .expect_err("the log is lost");
    lock(&world)
        .finish(Goals::Recover)
        .expect("the other copy has more");
    assert_eq!(lock(&world).expected().len(), 4, "what had moved is back");
    assert!(reads(&before, &world).await && before.appends(&world).await);
    lock(&world).finish(Goals::Move(home)).expect("free");
    assert!(reads(&before, &world).await);
}

/// Goal: of two copies, each of which has events that the other one lacks, none is given up before somebody accepts it.
#[tokio::test]
async fn an_operator_chooses_between_copies_that_differ() {
    let world = World::shared(3);
    let mut process = process(&world).await.expect("a new store");
    assert!(process.appends(&world).await);
    let home = lock(&world).home();
    let to = (home + 1) % DATABASES;
    lock(&world).finish(Goals::Move(to)).expect("free");
    assert!(process.appends(&world).await);
    lock(&world).append_beside(home);
    lock(&world)
        .finish(Goals::Recover)
        .expect_err("no copy has all");
    for from in [home, to] {
        let refused = Goals::From(from, Loss::Refused);
        lock(&world).finish(refused).expect_err("something is lost");
    }
    lock(&world)
        .finish(Goals::From(to, Loss::Accepted))
        .expect("accepted");
    assert!(reads(&process, &world).await && process.appends(&world).await);
    lock(&world)
        .finish(Goals::Move(home))
        .expect("the copy is the log's");
    assert!(reads(&process, &world).await);
}

#[test]
fn another_log_or_another_way_waits_its_turn() {
    let world = World::shared(4);
    let mut world = lock(&world);
    let moving = Moving {
        log: LogId(2),
        to: 0,
    };
    let announced = world.newest().announced(moving).expect("may go");
    for place in 0..DATABASES {
        world.put(place, &announced);
    }
    let none = BTreeSet::new();
    let error = next_step(LOG, Goal::Move(0), &world.facts(), &none).expect_err("busy");
    assert!(
        error
            .to_string()
            .contains("log 2 is being moved to database 1 of 3"),
        "{error}"
    );
    for goal in [
        Goal::Undo,
        Goal::Recover {
            from: 1,
            loss: Loss::Accepted,
        },
    ] {
        assert!(next_step(LOG, goal, &world.facts(), &none).is_err());
    }
    assert!(next_step(LogId(2), Goal::Move(1), &world.facts(), &none).is_err());
    assert!(next_step(LogId(9), Goal::Undo, &world.facts(), &none).is_err());
}

/// Goal: a fail-over of the old database that loses the row which closed the log there leaves it open only until the
/// next look.
#[tokio::test]
async fn a_log_that_a_fail_over_has_opened_again_is_closed() {
    let world = World::shared(5);
    let mut process = process(&world).await.expect("a new store");
    for _ in 0..5 {
        assert!(process.appends(&world).await);
    }
    let mut world = lock(&world);
    let home = world.home();
    world.finish(Goals::Move(2)).expect("free");
    world.open_again(home);
    let none = BTreeSet::new();
    let step = next_step(LOG, Goal::Move(2), &world.facts(), &none).expect("a step");
    let expected = world.newest().version();
    assert_eq!(
        step,
        Step::Close {
            place: home,
            expected
        }
    );
    world.finish(Goals::Undo).expect("free");
    assert!(world.is_closed(home));
}

/// Goal: a store is no worse for a copy that a fail-over has left open: it opens, and a process that was told of
/// nothing does not take that copy for the log, whatever it can reach.
#[tokio::test]
async fn a_copy_that_a_fail_over_has_left_open_is_not_the_log() {
    let world = World::shared(8);
    let mut before = process(&world).await.expect("a new store");
    for _ in 0..5 {
        assert!(before.appends(&world).await);
    }
    let (home, moment) = {
        let world = lock(&world);
        (world.home(), world.moment(world.home()))
    };
    let to = (home + 1) % DATABASES;
    lock(&world).finish(Goals::Move(to)).expect("free");
    lock(&world).restore_to(home, moment);
    lock(&world).away[to] = true;
    assert!(!before.appends(&world).await, "the log may be elsewhere");
    assert!(before.read().await.is_none());
    lock(&world).away[to] = false;
    let mut after = process(&world).await.expect("nothing is lost");
    for process in [&mut before, &mut after] {
        assert!(reads(process, &world).await && process.appends(&world).await);
    }
    assert_eq!(lock(&world).expected().len(), 7);
    assert!(!lock(&world).is_closed(home));
    lock(&world).finish(Goals::Undo).expect("nothing is lost");
    assert!(lock(&world).is_closed(home), "the next look closes it");
}

/// Goal: a database that has all events which any database knows of, but has not noted that the log came to it, is not
/// believed: it was set back, and what was appended to it may be gone.
#[tokio::test]
async fn a_home_that_has_not_noted_the_log_is_refused_though_nothing_is_missing() {
    let world = World::shared(6);
    let mut process = process(&world).await.expect("a new store");
    for _ in 0..3 {
        assert!(process.appends(&world).await);
    }
    let mut world = lock(&world);
    let to = (world.home() + 1) % DATABASES;
    world.finish(Goals::Move(to)).expect("free");
    let (mut facts, none) = (world.facts(), BTreeSet::new());
    let away = (to + 1) % DATABASES;
    let next = |facts: &[Fact], goal| next_step(LOG, goal, facts, &none);
    let done = next(&facts, Goal::Move(to)).expect("the log is whole");
    assert_eq!(done, Step::Done);
    let noted = facts[to].arrived;
    let another = noted.wrapping_add(1);
    for (arrived, closed) in [(0, true), (0, false), (another, true), (another, false)] {
        (facts[to].arrived, facts[to].closed) = (arrived, closed);
        for goal in [Goal::Move(to), Goal::Move(away), Goal::Undo] {
            let error = next(&facts, goal).expect_err("it may have lost events");
            assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error:?}");
            assert!(error.to_string().contains("log 1 is lost"), "{error}");
        }
    }
}

/// Goal: what a database answers while its history ends, or that of another one, does not count, since it may show what
/// is gone, or not be all; it is asked again, but not for ever.
#[tokio::test]
async fn an_answer_counts_only_in_the_history_in_which_it_was_asked_for() {
    let world = World::shared(7);
    let (parts, process) = parts(&world);
    let routes = Arc::new(Routes::new(&parts).expect("a new store"));
    let home = lock(&world).home();
    // Gives the number of the call, of which the first ones meet the end of a history.
    let asked = async |place: usize, ends: u64| {
        let calls = AtomicU64::new(0);
        let call = |_: &Arc<dyn Backend>| {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            if call < ends {
                let mut world = lock(&world);
                world.histories[place] += 1;
                world.notice(process, place);
            }
            std::future::ready(Ok(call))
        };
        (routes.at(LOG, call).await, calls.load(Ordering::Relaxed))
    };
    for place in 0..DATABASES {
        for ends in [0, 1, 2] {
            let (answer, calls) = asked(place, ends).await;
            assert_eq!((answer.expect("proven again"), calls), (ends, ends + 1));
        }
    }
    let (answer, calls) = asked(home, u64::MAX).await;
    let error = answer.expect_err("no answer counts");
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable(_)),
        "{error:?}"
    );
    assert!(error.to_string().contains("again and again"), "{error}");
    assert_eq!(calls, 3);
}
