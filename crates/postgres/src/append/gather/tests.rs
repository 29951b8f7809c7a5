//! The gathering step by step. Random schedules run in the world `gather` of `proof/sim`.

use std::time::Duration;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// The end of a log in which nothing is.
const NOTHING: RowPlace = (Position(0), WriterEpoch(0));

/// A batch.
#[derive(Clone, PartialEq, Eq, Debug)]
struct TestBatch {
    id: u32,
    log: LogId,
    after: RowPlace,
    epoch: WriterEpoch,
    events: usize,
}

impl TestBatch {
    fn end(&self) -> RowPlace {
        match self.events {
            0 => self.after,
            events => (Position(self.after.0.0 + events as u64), self.epoch),
        }
    }
}

/// One log, as whoever appends to it sees it.
struct Author {
    queue: QueueId,
    log: LogId,
    epoch: WriterEpoch,
    /// What the next batch follows.
    tip: RowPlace,
}

/// The gathering with its authors; by hand.
struct World {
    gather: Gather<TestBatch>,
    now: Moment,
    batches: u32,
}

impl World {
    fn new(logs: u16) -> (Self, Vec<Author>) {
        let mut gather = Gather::new();
        let authors = (0..logs)
            .map(|log| Author {
                queue: gather.open(LogId(log)).expect("the first"),
                log: LogId(log),
                epoch: WriterEpoch(i64::from(log) + 1),
                tip: NOTHING,
            })
            .collect();
        let now = Moment::START;
        let batches = 0;
        (
            Self {
                gather,
                now,
                batches,
            },
            authors,
        )
    }

    /// Submits a batch that follows the author's last.
    fn submit(&mut self, author: &mut Author, events: usize) -> (Ticket, TestBatch) {
        self.submit_sized(author, events, 0)
    }

    fn submit_sized(
        &mut self,
        author: &mut Author,
        events: usize,
        bytes: usize,
    ) -> (Ticket, TestBatch) {
        self.batches += 1;
        let load = TestBatch {
            id: self.batches,
            log: author.log,
            after: author.tip,
            epoch: author.epoch,
            events,
        };
        if events > 0 {
            author.tip = load.end();
        }
        let piece = Piece {
            after: load.after,
            end: load.end(),
            events,
            bytes,
            load: load.clone(),
        };
        (self.gather.submit(author.queue, piece), load)
    }

    /// What leaves now: the batches of each log.
    fn next(&mut self) -> Option<Vec<Vec<TestBatch>>> {
        let parts = self.gather.next(self.now)?;
        Some(parts.into_iter().map(|part| part.batches).collect())
    }

    fn answered(&mut self, said: Said<'_>) -> Vec<(Ticket, BatchVerdict)> {
        self.now += MS;
        let mut verdicts = self.gather.answered(said, self.now).expect("possible");
        verdicts.sort_unstable_by_key(|(ticket, _)| *ticket);
        verdicts
    }
}

use BatchVerdict::{Committed, Error, Missed};

#[test]
fn what_is_submitted_while_nothing_is_under_way_leaves_at_once() {
    let (mut world, mut authors) = World::new(2);
    for _ in 0..3 {
        let (ticket, load) = world.submit(&mut authors[1], 1);
        assert_eq!(world.next(), Some(vec![vec![load]]));
        assert_eq!(world.next(), None);
        let verdicts = world.answered(Said::Executed(&[true]));
        assert_eq!(verdicts, [(ticket, Committed)]);
    }
}

#[test]
fn what_gathers_leaves_together_in_order_of_log() {
    let (mut world, mut authors) = World::new(4);
    let (_, first) = world.submit(&mut authors[2], 10);
    assert_eq!(world.next(), Some(vec![vec![first]]));
    let (_, three) = world.submit(&mut authors[3], 4);
    let (_, zero) = world.submit(&mut authors[0], 3);
    assert_eq!(world.next(), None, "smaller than what is under way");
    let (_, more) = world.submit(&mut authors[0], 3);
    assert_eq!(world.next(), Some(vec![vec![zero, more], vec![three]]));
    let (_, waits) = world.submit(&mut authors[1], 1_000);
    assert_eq!(world.next(), None, "two are enough near the database");
    world.answered(Said::Executed(&[true]));
    assert_eq!(world.next(), Some(vec![vec![waits]]));
}

#[test]
fn far_from_the_database_what_is_small_does_not_wait() {
    let (mut world, mut authors) = World::new(3);
    world.submit(&mut authors[0], 1);
    world.next();
    world.now += MS * 40;
    world.answered(Said::Executed(&[true]));
    for author in &mut authors {
        let (_, load) = world.submit(author, 1);
        assert_eq!(world.next(), Some(vec![vec![load]]));
    }
}

#[test]
fn a_log_whose_end_has_moved_misses_while_the_others_commit() {
    let (mut world, mut authors) = World::new(3);
    world.submit(&mut authors[0], 1);
    world.next();
    let tickets: Vec<Ticket> = authors
        .iter_mut()
        .map(|author| world.submit(author, 1).0)
        .collect();
    world.next();
    let (later, later_load) = world.submit(&mut authors[1], 1);
    world.answered(Said::Executed(&[true]));
    let verdicts = world.answered(Said::Executed(&[true, false, true]));
    let [zero, one, two] = tickets[..] else {
        panic!("three")
    };
    assert_eq!(
        verdicts,
        [(zero, Committed), (one, Missed), (two, Committed)]
    );
    assert_eq!(world.next(), Some(vec![vec![later_load]]));
    let verdicts = world.answered(Said::Executed(&[false]));
    assert_eq!(verdicts, [(later, Missed)]);
}

#[test]
fn a_batch_that_does_not_follow_the_one_before_it_waits_for_its_answer() {
    let (mut world, mut authors) = World::new(2);
    let (_, first) = world.submit(&mut authors[0], 1);
    authors[0].tip = NOTHING;
    let (_, rival) = world.submit(&mut authors[0], 5);
    assert_eq!(world.next(), Some(vec![vec![first]]));
    assert_eq!(world.next(), None);
    world.answered(Said::Executed(&[true]));
    assert_eq!(world.next(), Some(vec![vec![rival]]));
}

/// Goal: what one log's content does, the others do not notice but by its delay, and nor do their batches that
/// were under way after it.
#[test]
fn refused_content_is_found_by_sending_each_batch_alone() {
    let (mut world, mut authors) = World::new(2);
    let (a, a_load) = world.submit(&mut authors[0], 1);
    let (b, b_load) = world.submit(&mut authors[1], 1);
    let both = world.next().expect("both");
    assert_eq!(both, [vec![a_load.clone()], vec![b_load.clone()]]);
    let (a2, a2_load) = world.submit(&mut authors[0], 1);
    let (b2, b2_load) = world.submit(&mut authors[1], 1);
    let both = world.next().expect("both");
    assert_eq!(both, [vec![a2_load.clone()], vec![b2_load.clone()]]);

    assert_eq!(world.answered(Said::Refused), []);
    assert_eq!(world.next(), None, "smaller than what is under way");
    // Those after it were executed before: they miss, which says nothing.
    assert_eq!(world.answered(Said::Executed(&[false, false])), []);
    assert_eq!(world.next(), Some(vec![vec![a_load]]));
    assert_eq!(world.next(), Some(vec![vec![b_load]]));
    assert_eq!(
        world.answered(Said::Refused),
        [(a, Error)],
        "alone, so it is to blame"
    );
    assert_eq!(world.next(), Some(vec![vec![a2_load]]));
    let committed = Said::Executed(&[true]);
    assert_eq!(world.answered(committed), [(b, Committed)]);
    assert_eq!(world.next(), Some(vec![vec![b2_load]]));
    assert_eq!(world.answered(Said::Executed(&[false])), [(a2, Missed)]);
    assert_eq!(world.answered(committed), [(b2, Committed)]);
    let (_, last) = world.submit(&mut authors[0], 1);
    assert_eq!(world.next(), Some(vec![vec![last]]));
    let (_, apart) = world.submit(&mut authors[0], 1);
    let (_, other) = world.submit(&mut authors[1], 1);
    let next = world.next().expect("one");
    assert!(
        next == [vec![apart]] || next == [vec![other]],
        "the log that was refused goes alone for a while: {next:?}"
    );
}

#[test]
fn after_a_collision_the_same_goes_again_and_then_apart() {
    let (mut world, mut authors) = World::new(2);
    let (a, a_load) = world.submit(&mut authors[0], 1);
    let (b, b_load) = world.submit(&mut authors[1], 1);
    let both = Some(vec![vec![a_load.clone()], vec![b_load.clone()]]);
    assert_eq!(world.next(), both);
    assert_eq!(world.answered(Said::Collided), []);
    assert_eq!(world.next(), both);
    assert_eq!(world.answered(Said::Collided), []);
    assert_eq!(world.next(), Some(vec![vec![a_load]]));
    assert_eq!(world.next(), Some(vec![vec![b_load]]));
    assert_eq!(world.answered(Said::Collided), [(a, Missed)]);
    let verdicts = world.answered(Said::Executed(&[true]));
    assert_eq!(verdicts, [(b, Committed)]);
}

#[test]
fn a_passing_failure_is_told_to_all_and_then_each_goes_alone() {
    let (mut world, mut authors) = World::new(2);
    let (a, _) = world.submit(&mut authors[0], 1);
    let (b, _) = world.submit(&mut authors[1], 1);
    world.next();
    assert_eq!(world.answered(Said::Failed), [(a, Error), (b, Error)]);
    for author in &mut authors {
        author.tip = NOTHING;
        let (ticket, load) = world.submit(author, 1);
        assert_eq!(world.next(), Some(vec![vec![load]]));
        let verdicts = world.answered(Said::Executed(&[true]));
        assert_eq!(verdicts, [(ticket, Committed)]);
    }
    for author in &mut authors {
        world.submit(author, 1);
    }
    assert_eq!(world.next().expect("both").len(), 2, "together again");
}

/// Goal: a batch without events that was taken back is confirmed by the one after it, which could be stored without it.
#[test]
fn a_confirmation_is_answered_by_the_commit_that_follows() {
    let (mut world, mut authors) = World::new(2);
    let (confirm, _) = world.submit(&mut authors[0], 0);
    let (other, _) = world.submit(&mut authors[1], 1);
    world.next();
    let (rows, _) = world.submit(&mut authors[0], 5);
    assert!(world.next().is_some());
    assert_eq!(world.answered(Said::Refused), []);
    let verdicts = world.answered(Said::Executed(&[true]));
    assert_eq!(verdicts, [(confirm, Committed), (rows, Committed)]);
    world.next();
    // The confirmation may be under way again: its answer says nothing.
    while let Ok(verdicts) = world.gather.answered(Said::Executed(&[true]), world.now) {
        assert!(verdicts.iter().all(|(ticket, _)| *ticket == other));
        world.next();
    }
}

#[test]
fn a_batch_stored_upon_one_that_is_not_is_said_to_be_impossible() {
    let (mut world, mut authors) = World::new(2);
    world.submit(&mut authors[0], 1);
    world.submit(&mut authors[1], 1);
    world.next();
    world.submit(&mut authors[0], 5);
    world.next();
    assert_eq!(world.answered(Said::Refused), []);
    let impossible = world.gather.answered(Said::Executed(&[true]), world.now);
    assert_eq!(impossible, Err(Broken));
    assert_eq!(world.gather.end().len(), 1, "the others are in doubt");
}

/// Goal: whoever submits one large batch after the other does not keep the others waiting.
#[test]
fn large_batches_of_one_log_take_turns_with_the_others() {
    let (mut world, mut authors) = World::new(3);
    let large = BYTES_MAX + 1;
    for _ in 0..4 {
        world.submit_sized(&mut authors[0], 1, large);
    }
    assert_eq!(world.next().expect("large").len(), 1);
    assert_eq!(world.next().expect("large").len(), 1);
    let (_, one) = world.submit(&mut authors[1], 1);
    let (_, two) = world.submit(&mut authors[2], 1);
    world.answered(Said::Executed(&[true]));
    assert_eq!(world.next(), Some(vec![vec![one], vec![two]]));
}

#[test]
fn what_exceeds_a_statement_goes_in_the_next() {
    let (mut world, mut authors) = World::new(5);
    for author in &mut authors {
        world.submit(author, EVENTS_MAX / 2);
    }
    assert_eq!(world.next().expect("full").len(), 2);
    assert_eq!(world.next().expect("full").len(), 2);
    for _ in 0..2 {
        assert_eq!(world.next(), None, "smaller than what is under way");
        world.answered(Said::Executed(&[true, true]));
    }
    assert_eq!(world.next().expect("the rest").len(), 1);
}

/// Goal: what a closed lane has under way is sent no more, whatever becomes of it.
#[test]
fn what_must_be_sent_again_misses_in_a_closed_lane() {
    let (mut world, mut authors) = World::new(2);
    let (a, _) = world.submit(&mut authors[0], 1);
    let (b, b_load) = world.submit(&mut authors[1], 1);
    assert_eq!(world.next().expect("both").len(), 2);
    assert!(world.gather.close(authors[0].queue).is_empty());
    assert_eq!(world.answered(Said::Collided), [(a, Missed)]);
    assert!(world.gather.open(LogId(0)).is_some(), "nothing is left");
    assert_eq!(world.next(), Some(vec![vec![b_load]]));
    assert_eq!(world.answered(Said::Executed(&[true])), [(b, Committed)]);
}

#[test]
fn a_log_has_one_lane_and_a_closed_one_withdraws_what_waits() {
    let (mut world, mut authors) = World::new(1);
    assert_eq!(world.gather.open(LogId(0)), None);
    world.submit(&mut authors[0], 5);
    world.next();
    let (waits, _) = world.submit(&mut authors[0], 1);
    assert_eq!(world.gather.close(authors[0].queue), [waits]);
    assert_eq!(world.gather.open(LogId(0)), None, "one is under way");
    world.answered(Said::Executed(&[true]));
    assert!(world.gather.open(LogId(0)).is_some());
}
