//! What goes into the next statement of a connection that appends to several logs, and what its answer means for each
//! batch.
//!
//! Why: a commit costs the same whether it stores the events of one log or of sixteen. So the logs of a process share a
//! connection, and what they submit while statements are under way leaves together (decision 0016). Pure: no tasks, no
//! connection, the clock is passed in. A *lane* holds the unanswered batches of one log, in the order in which they were
//! submitted; a *statement* is what one statement carries. Each lane is a chain of its own: a statement holds for each log
//! batches that follow one another, and the database stores them all, or none of them.
//!
//! Invariants:
//! * While nothing is under way, nothing waits.
//! * The batches of a lane that are under way are chained to each other, and are first sent in the order of submission;
//!   a batch that is not chained to the one before it waits until that one is answered.
//! * Every batch gets one verdict, and after it is never sent again. Whoever is sent again was not stored.
//! * A batch is answered with an error of the database only if it was alone in its statement, or if the error tells
//!   nothing about what the statement contains (`Failed`).
//! * What waits is sent at the latest after as many statements as there are lanes.
//!
//! Not here: one lane (`lane`), when a small statement is worth sending (`gesta_core::pace`), the connection (`sharing`).

mod lane;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use gesta_core::backend::WriterEpoch;
use gesta_core::{LogId, Position};
use tokio::time::Instant;

use crate::gather::lane::Lane;
use gesta_core::pace::Pace;

/// Most events of one statement: about 15 ms of work near the database, and as much as one gains by gathering.
const EVENTS_MAX: usize = 2_000;
/// Most bytes of data and metadata of one statement. A batch that is larger goes alone.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most statements under way.
const UNDER_WAY_MAX: usize = 64;
/// Statements of full size under way near the database: one that it works on and one that waits.
const NEAR_UNDER_WAY_MAX: usize = 2;
/// The same where a statement travels for longer than it is worked on.
const FAR_UNDER_WAY_MAX: usize = 4;

/// A handle's place in the gathering.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct LaneId(u64);

/// A batch that was submitted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Ticket(u64);

/// A row, by what identifies it in its log.
pub(crate) type Place = (Position, WriterEpoch);

/// What is to be known of a batch in order to gather it.
#[derive(Clone, Debug)]
pub(crate) struct Piece<T> {
    /// The row that it follows.
    pub(crate) after: Place,
    /// Its last row; `after` if it has none.
    pub(crate) end: Place,
    pub(crate) events: usize,
    pub(crate) bytes: usize,
    /// The batch.
    pub(crate) load: T,
}

/// Batches of one log that follow one another, in one statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part<T> {
    pub(crate) log: LogId,
    pub(crate) batches: Vec<T>,
}

/// What the database said of a statement. Doubt ends the gathering instead ([`Gather::end`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Said<'a> {
    /// It was executed: for each part, in their order, whether the row that it follows was the last.
    Executed(&'a [bool]),
    /// Nothing of it was stored: a key was taken, so another writer came first in one of its logs.
    Collided,
    /// Nothing of it was stored: the content of one of its batches is refused.
    Refused,
    /// Nothing of it was stored, for a passing reason.
    Failed,
}

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Committed,
    Missed,
    /// What the database said of the statement holds for this batch.
    Error,
}

/// The database says what cannot be: a batch was stored although one that it follows was not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken;

/// The unanswered batches of a connection.
#[derive(Debug)]
pub(crate) struct Gather<T> {
    lanes: BTreeMap<LaneId, Lane<T>>,
    /// Statements without an answer, oldest first.
    under_way: VecDeque<Statement>,
    pace: Pace,
    tickets: u64,
    statements: u64,
}

/// A statement under way.
#[derive(Debug)]
struct Statement {
    number: u64,
    sent: Instant,
    /// Statements under way when it was sent, itself included.
    queue: usize,
    size: usize,
    parts: Vec<(LaneId, Vec<Ticket>)>,
}

/// What the next statement would hold of a lane: `count` batches from number `first` on.
struct Choice {
    lane: LaneId,
    first: usize,
    count: usize,
}

/// What the next statement would hold.
#[derive(Default)]
struct Chosen {
    choices: Vec<Choice>,
    events: usize,
    bytes: usize,
    /// Batches without events count as one.
    size: usize,
    /// Something that waits does not fit.
    is_full: bool,
}

impl Chosen {
    fn fits<T>(&mut self, piece: &Piece<T>) -> bool {
        let fits = self.choices.is_empty()
            || self.events + piece.events <= EVENTS_MAX && self.bytes + piece.bytes <= BYTES_MAX;
        self.is_full |= !fits;
        fits
    }

    fn count<T>(&mut self, piece: &Piece<T>) {
        self.events += piece.events;
        self.bytes += piece.bytes;
        self.size += piece.events.max(1);
    }
}

impl<T: Clone> Gather<T> {
    pub(crate) fn new() -> Self {
        Self {
            lanes: BTreeMap::new(),
            under_way: VecDeque::new(),
            pace: Pace::default(),
            tickets: 0,
            statements: 0,
        }
    }

    /// Opens a lane. `None` if the log has one: two would be two writers, which need two connections.
    pub(crate) fn open(&mut self, log: LogId) -> Option<LaneId> {
        if self.lanes.values().any(|lane| lane.log == log) {
            return None;
        }
        self.tickets += 1;
        let id = LaneId(self.tickets);
        self.lanes.insert(id, Lane::new(log));
        Some(id)
    }

    /// Closes a lane. Its batches that are not under way are withdrawn: nobody waits for them.
    pub(crate) fn close(&mut self, id: LaneId) -> Vec<Ticket> {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return Vec::new();
        };
        let withdrawn = lane.close();
        if lane.is_over() {
            self.lanes.remove(&id);
        }
        withdrawn
    }

    /// Takes a batch. Whoever submits must not decide again what was not stored before all that he has submitted is
    /// answered: two batches of one epoch at one place could not be told apart.
    pub(crate) fn submit(&mut self, lane: LaneId, piece: Piece<T>) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.push(ticket, piece);
        }
        ticket
    }

    /// What is to be sent now, in order of log, if anything is. To be called until it gives nothing, whenever something
    /// was submitted or answered.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Vec<Part<T>>> {
        let wanted = self.size_wanted(now)?;
        let chosen = self.choose();
        if chosen.choices.is_empty() || !chosen.is_full && chosen.size < wanted {
            return None;
        }
        self.statements += 1;
        let number = self.statements;
        let mut statement = Statement {
            number,
            sent: now,
            queue: self.under_way.len() + 1,
            size: chosen.size,
            parts: Vec::with_capacity(chosen.choices.len()),
        };
        let mut parts = Vec::with_capacity(chosen.choices.len());
        let mut choices = chosen.choices;
        choices.sort_unstable_by_key(|choice| self.lanes.get(&choice.lane).map(|lane| lane.log));
        for choice in choices {
            if let Some(lane) = self.lanes.get_mut(&choice.lane) {
                let (tickets, part) = lane.send(choice.first, choice.count, number);
                statement.parts.push((choice.lane, tickets));
                parts.push(part);
            }
        }
        self.under_way.push_back(statement);
        Some(parts)
    }

    /// The oldest statement was answered. Gives the verdicts that follow, or says that they contradict each other: then
    /// everything is in doubt.
    pub(crate) fn answered(
        &mut self,
        said: Said<'_>,
        now: Instant,
    ) -> Result<Vec<(Ticket, Verdict)>, Broken> {
        let statement = self.under_way.pop_front().ok_or(Broken)?;
        if let Said::Executed(_) = said {
            let (sent, now) = (statement.sent.into_std(), now.into_std());
            self.pace.answered(sent, statement.queue, now);
        }
        let is_alone = match statement.parts.as_slice() {
            [(_, tickets)] => tickets.len() == 1,
            _ => false,
        };
        let mut verdicts = Vec::new();
        for (index, (id, tickets)) in statement.parts.iter().enumerate() {
            let Some(lane) = self.lanes.get_mut(id) else {
                continue;
            };
            match said {
                Said::Executed(good) if good.get(index) == Some(&true) => {
                    lane.commit(tickets, &mut verdicts)?;
                }
                Said::Executed(_) => lane.miss(tickets, statement.number, &mut verdicts),
                Said::Collided if is_alone => lane.miss(tickets, statement.number, &mut verdicts),
                Said::Collided => lane.collide(tickets, &mut verdicts),
                Said::Refused if is_alone => lane.refuse(tickets, &mut verdicts),
                Said::Refused => lane.part(tickets, &mut verdicts),
                Said::Failed => lane.fail(tickets, &mut verdicts),
            }
            if lane.is_over() {
                self.lanes.remove(id);
            }
        }
        Ok(verdicts)
    }

    /// Ends everything: the batches that have no verdict yet.
    pub(crate) fn end(&mut self) -> Vec<Ticket> {
        self.under_way.clear();
        let lanes = std::mem::take(&mut self.lanes);
        lanes.into_values().flat_map(Lane::into_tickets).collect()
    }

    /// Chooses one batch of each lane, then more of the same lanes, as long as they fit. The lane that was served least
    /// recently comes first, and so does not wait for one that submits more.
    fn choose(&self) -> Chosen {
        let mut waiting: Vec<_> = self
            .lanes
            .iter()
            .filter_map(|(id, lane)| lane.first_to_send().map(|first| (*id, lane, first)))
            .collect();
        waiting.sort_unstable_by_key(|(_, lane, first)| (lane.served, lane.ticket(*first)));
        let mut chosen = Chosen::default();
        for (id, lane, first) in waiting {
            let alone = lane.goes_alone(first);
            if alone && !chosen.choices.is_empty() {
                chosen.is_full = true;
                continue;
            }
            let Some(piece) = lane.piece(first).filter(|piece| chosen.fits(piece)) else {
                continue;
            };
            chosen.count(piece);
            chosen.choices.push(Choice {
                lane: id,
                first,
                count: 1,
            });
            if alone {
                return chosen;
            }
        }
        self.choose_more(&mut chosen);
        chosen
    }

    /// Adds what follows the batches that were chosen, one of each lane in turn.
    fn choose_more(&self, chosen: &mut Chosen) {
        loop {
            let before = chosen.events + chosen.size;
            for index in 0..chosen.choices.len() {
                let Choice { lane, first, count } = &chosen.choices[index];
                let next = first + count;
                let piece = self.lanes.get(lane).and_then(|lane| lane.follower(next));
                if let Some(piece) = piece.filter(|piece| chosen.fits(piece)) {
                    chosen.count(piece);
                    chosen.choices[index].count += 1;
                }
            }
            if chosen.events + chosen.size == before {
                return;
            }
        }
    }

    /// How large a statement must be to be sent now, unless it is full. Any may go if nothing is under way, or if the
    /// database would be idle before another one arrives; else, if few are under way, one as large as the smallest of
    /// them. The rules are those by which the pipeline of one log sends its batches.
    fn size_wanted(&self, now: Instant) -> Option<usize> {
        let under_way = self.under_way.len();
        let Some(oldest) = self.under_way.front() else {
            return Some(0);
        };
        let age = now.saturating_duration_since(oldest.sent);
        let full_max = match self.pace.is_near() {
            true => NEAR_UNDER_WAY_MAX,
            false => FAR_UNDER_WAY_MAX,
        };
        if under_way >= UNDER_WAY_MAX {
            None
        } else if self.pace.database_would_be_idle(under_way, age) {
            Some(0)
        } else if under_way < full_max {
            self.under_way.iter().map(|statement| statement.size).min()
        } else {
            None
        }
    }
}
