//! Moves and losses of logs, while processes append and read by maps that may be old: the databases are a model, the
//! processes and the order of the steps are the product.
//!
//! A database loses its newest changes (rows, the row that closes the log, the map and its notes together), or is set
//! back, or forward, to any state that it has ever had, or does not answer for a while; a process notices that only
//! when it asks the database, or later, and goes on by a writer of before; logs are scavenged; positions, streams and
//! revisions are used again after a loss; a mover dies and the next one has another goal, which may accept losses; a
//! step is done long after it was decided, after losses elsewhere and while other databases do not answer.
//! Checked is: an event is acknowledged only at the end of the log; a process that has noticed everything goes on only
//! with a log that is whole, and a read of it shows everything that was acknowledged before the read began; a log is
//! open only in its home, unless a loss has left it open; the store opens whenever nothing of the log is lost; whatever
//! survives in any database comes back by recovering the log; nothing is given up that was not accepted; every event is
//! in the stream that it was appended to, in each database.
//! What the databases make of the steps, and what they say of rows, is SQL in the product, and is imitated here.
//!
//! * `world`: the databases, what they have been, and whoever moves the log; `part`: one of them as a backend;
//! * `named`, `histories`: schedules that were thought of. They are not in the turns of the random ones, which must
//!   find by themselves what these tell.

mod histories;
mod named;
mod part;
mod world;

use std::future::ready;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

use futures::StreamExt as _;
use gesta_core::backend::{
    Backend, Batch, BatchOutcome, LogEnd, LogTail, LogWriter, Purpose, RowId,
};
use gesta_core::{ContentType, ErrorKind, EventId, EventType, LogId, Position, Revision, Tags};
use gesta_postgres::core::several::{Fact, Goal, Loss, Several, Step, next_step};
use gesta_postgres::{Moving, RowMark};
use tokio::runtime::{Builder, Runtime};

use self::part::{mark_of, open, parts, stream_of};
use self::world::{DATABASES, Goals, LOG, SharedWorld, World, lock};
use crate::choices::Choices;
use crate::driver::{self, Form, Schedule};

/// Makes a form of the random schedules, and one of each named one, which has no turns.
macro_rules! forms {
    ($($module:ident { $($name:ident,)* })*) => {
        &[
            Form {
                name: "random",
                turns: 1,
                run: |schedule| play(schedule, random),
            },
            $($(Form {
                name: stringify!($name),
                turns: 0,
                run: |schedule| play(schedule, $module::$name),
            },)*)*
        ]
    };
}

/// The world.
pub static WORLD: driver::World = driver::World {
    name: "moves",
    forms: forms! {
        named {
            readers_with_an_old_map_find_what_came_after_a_move,
            a_new_home_that_was_set_back_is_refused_and_the_log_comes_back,
            a_home_that_was_set_back_to_an_earlier_stay_is_refused,
            an_operator_chooses_between_copies_that_differ,
            another_log_or_another_way_waits_its_turn,
            a_log_that_a_fail_over_has_opened_again_is_closed,
            a_copy_that_a_fail_over_has_left_open_is_not_the_log,
            a_home_that_has_not_noted_the_log_is_refused_though_nothing_is_missing,
            an_answer_counts_only_in_the_history_in_which_it_was_asked_for,
            the_ends_of_logs_come_from_where_the_logs_lie,
        }
        histories {
            a_log_is_refused_once_a_copy_has_rows_again_that_were_given_up,
            a_writer_of_an_earlier_history_is_not_used,
            a_writer_of_the_proof_of_before_is_not_used_once_the_log_is_lost,
            while_a_database_is_away_the_proof_of_before_counts,
            a_database_that_hangs_stops_no_log_of_another,
            calls_to_a_lost_log_ask_once_together,
            calls_that_follow_a_log_read_once_together,
            maps_that_contradict_each_other_stop_every_process,
            a_copy_that_is_open_is_told_of_once,
            a_copy_of_a_history_that_was_given_up_gets_the_names_of_the_log,
            a_closed_log_is_not_copied_behind_a_history_that_was_given_up,
        }
    },
};

/// The choices of a schedule, lent to a world whose parts live as long as they like.
struct Lent<'a> {
    schedule: &'a mut Schedule,
    world: SharedWorld,
}

impl<'a> Lent<'a> {
    fn new(schedule: &'a mut Schedule) -> Self {
        let nothing = Choices::replay(Vec::new());
        let choices = std::mem::replace(&mut schedule.choices, nothing);
        let world = World::shared(choices);
        Self { schedule, world }
    }
}

impl Drop for Lent<'_> {
    /// Gives the choices back, whatever has happened.
    fn drop(&mut self) {
        let world = self.world.lock();
        let mut world = world.unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut world.choices, &mut self.schedule.choices);
        (0..world.losses()).for_each(|_| self.schedule.reach("loss"));
        (1..world.newest().version()).for_each(|_| self.schedule.reach("map"));
        (0..world.mistaken()).for_each(|_| self.schedule.reach("mistaken"));
    }
}

/// Makes the runtime of a schedule. Tests set it to one whose time is paused: then nothing waits for a database that
/// hangs. Random schedules have none.
pub static RUNTIME: OnceLock<fn() -> Runtime> = OnceLock::new();

/// Makes a runtime whose time is that of the machine.
fn unpaused() -> Runtime {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("starts")
}

/// Runs a schedule in a runtime of its own.
fn play<F: Future<Output = ()>>(
    schedule: &mut Schedule,
    act: impl FnOnce(SharedWorld) -> F,
) -> Result<(), String> {
    let lent = Lent::new(schedule);
    let runtime = RUNTIME.get().map_or_else(unpaused, |make| make());
    runtime.block_on(act(SharedWorld::clone(&lent.world)));
    Ok(())
}

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
        let name = lock(world).next_name();
        let row = gesta_core::backend::Row {
            position: end.position.next(),
            stream: stream_of(name),
            // These two are what the database makes of the name.
            stream_row: RowId(0),
            revision: Revision(0),
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

    /// Asks for the ends of all logs at once, and checks that of the log.
    async fn asks_for_ends(&self, world: &SharedWorld) {
        let (before, knew) = {
            let world = lock(world);
            (world.expected(), world.knows(self.id))
        };
        if let Ok(end) = self.end_among_all().await {
            let world = lock(world);
            let knew = knew && world.knows(self.id);
            world.check_end(&before, knew, &end);
        }
    }

    /// Asks for the ends of all logs at once, and gives that of the log.
    async fn end_among_all(&self) -> gesta_core::Result<LogEnd> {
        let ends = self.store.each_log_end(Purpose::Append);
        let found = ends
            .filter(|(log, _)| ready(*log == LOG))
            .collect::<Vec<_>>();
        let mut found = found.await.into_iter().map(|(_, end)| end);
        let end = found.next().expect("every log is told of");
        assert!(found.next().is_none(), "and once");
        end
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

/// Opens the store while nothing else happens and all databases answer: that must succeed just if nothing is lost, as
/// far as the databases can tell, whatever step a mover has come to.
async fn opens_if_whole(world: &SharedWorld) {
    let (away, whole) = {
        let mut world = lock(world);
        world.trouble = false;
        let whole = world.seems_whole();
        assert!(whole || !world.is_whole(), "{:#?}", world.databases);
        (std::mem::take(&mut world.away), whole)
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
        2 => lock(world).lose(),
        3 | 4 => {
            let mut here = lock(world);
            here.lose();
            processes.iter().for_each(|one| here.notice_all(one.id));
        }
        5 => {
            // It is refused if the log is whole elsewhere, or a database is away.
            let mut world = lock(world);
            let from = Goals::From(world.below(DATABASES), Loss::Accepted);
            drop(world.finish(from));
        }
        6 | 7 => {
            let mut world = lock(world);
            let to = Goals::Move(world.below(DATABASES));
            drop(world.finish(to));
        }
        _ => {}
    }
    if what == 4 {
        for process in processes {
            process.go_on(world).await;
        }
    }
}

/// Goal: whatever dies, races, is lost and is set back, nothing is acknowledged beside the log, and nothing that
/// survives anywhere is lost without a word.
async fn random(world: SharedWorld) {
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
            (world.below(16), world.below(processes.len()))
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
                    assert!(!is_same || world.seems_whole(), "it starts on a lost log");
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
            12 => processes[at].asks_for_ends(&world).await,
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
