//! Writers: each makes its appends one after the other and asks again, with the same event ids, until there is an answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta_core::{Appended, Revision};
use tokio_util::sync::CancellationToken;

use super::board::Board;
use super::plan::{Target, Which};
use crate::faults::CurrentStore;
use crate::faults::ask::{Answer, Attempt, ask};

/// When appends are intended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pace {
    /// As soon as the writer is free.
    Closed,
    /// One per interval of the writer, from here on, whatever happened to those before.
    Open { from: Instant, interval: Duration },
}

/// One writer, between two loads.
#[derive(Debug, Default)]
pub(super) struct Writer {
    number: usize,
    /// What its answers told of places.
    answers: u64,
    /// True if its last append has no answer: it may be stored or not.
    open: bool,
    /// True if an answer was wrong; then it has nothing more to say.
    ended: bool,
}

/// What a writer was told.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Claim {
    /// Appends acknowledged: those below this.
    pub(super) acknowledged: u64,
    /// True if the next one may be stored or not.
    pub(super) open: bool,
    /// Sum of the digests of all answers.
    pub(super) answers: u64,
}

impl Writer {
    pub(super) fn new(number: usize) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn claim(&self, board: &Board) -> Claim {
        Claim {
            acknowledged: board.acknowledged_of(self.number),
            open: self.open,
            answers: self.answers,
        }
    }

    /// Appends until the load is over and the last append has its answer.
    pub(super) async fn run(
        mut self,
        pace: Pace,
        store: Arc<CurrentStore>,
        board: Arc<Board>,
        over: CancellationToken,
    ) -> Self {
        let mut turn = 0;
        while !self.open && !self.ended {
            let Some(intended) = self.next_start(pace, turn, board.writers(), &over).await else {
                break;
            };
            turn += 1;
            self.append(intended, &store, &board, &over).await;
        }
        self
    }

    async fn next_start(
        &self,
        pace: Pace,
        turn: u32,
        writers: usize,
        over: &CancellationToken,
    ) -> Option<Instant> {
        let start = match pace {
            Pace::Closed => Instant::now(),
            Pace::Open { from, interval } => from + due(self.number, turn, writers, interval),
        };
        if start > Instant::now() {
            tokio::select! {
                () = tokio::time::sleep_until(start.into()) => {}
                () = over.cancelled() => {}
            }
        }
        (!over.is_cancelled()).then_some(start)
    }

    async fn append(
        &mut self,
        intended: Instant,
        store: &CurrentStore,
        board: &Board,
        over: &CancellationToken,
    ) {
        let n = board.acknowledged_of(self.number);
        let request = board.plan.append(self.number, n);
        board.append_begun();
        let mut begun = Instant::now();
        let answer = ask(store, &request, over, |attempt| match attempt {
            Attempt::Begins => begun = Instant::now(),
            Attempt::Ended(Ok(_)) => {}
            Attempt::Ended(Err(error)) => board.error("append", error.kind()),
        });
        match answer.await {
            Answer::Stored(appended) => {
                self.learn(n, &appended, board);
                board.acknowledged(self.number, n, intended, begun);
            }
            Answer::Refused(error) => {
                board.finding(format!("writer {}: refused wrongly: {error}", self.number));
                self.ended = true;
            }
            Answer::Open => self.open = true,
        }
    }

    fn learn(&mut self, n: u64, appended: &Appended, board: &Board) {
        let place = &appended.streams[0];
        let Revision(first) = place.first_revision;
        if let Target::Own(stream, expected) = board.plan.target(self.number, n)
            && (first != expected || place.stream != stream)
        {
            board.finding(format!(
                "writer {}: {} at {first} was answered, {stream} at {expected} was asked for",
                self.number, place.stream
            ));
        }
        let events = board.plan.per_append;
        for j in 0..events {
            let which = Which {
                writer: self.number,
                event: n * events + j,
            };
            // Events of one append are neighbours in the log; the answer names the last.
            let position = (appended.position.0 + 1 + j).saturating_sub(events);
            let digest = which.digest(first + j, position);
            self.answers = self.answers.wrapping_add(digest);
        }
    }
}

/// When the writer's `turn`-th append is due: the writers of a load follow each other at equal distances.
fn due(writer: usize, turn: u32, writers: usize, interval: Duration) -> Duration {
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    let phase = writer as f64 / writers as f64;
    interval.mul_f64(f64::from(turn) + phase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_follow_each_other_at_equal_distances() {
        let interval = Duration::from_secs(1);
        let mut moments: Vec<Duration> = (0..4)
            .flat_map(|writer| (0..3).map(move |turn| due(writer, turn, 4, interval)))
            .collect();
        moments.sort_unstable();
        let wanted: Vec<Duration> = (0..12).map(|n| Duration::from_millis(250 * n)).collect();
        assert_eq!(moments, wanted);
    }
}
