//! Decides which batches go into the next statement of a connection that appends to several logs, and what the answer
//! means for each batch.
//!
//! Why: a commit costs the same whether it stores the events of one log or of sixteen. So the logs of a process share a
//! connection, and what they submit while statements are under way leaves together (decision 0016). Pure: no tasks, no
//! connection, the clock is passed in. A *queue* holds the unanswered batches of one log, in the order in which they
//! were submitted; a *statement* is what one statement carries. Each queue is a chain of its own: a statement holds for
//! each log batches that follow one another, and the database stores them all, or none of them.
//!
//! Invariants:
//! * While nothing is under way, nothing waits.
//! * The batches of a queue that are under way are chained to each other, and are first sent in the order of
//!   submission; a batch that is not chained to the one before it waits until that one is answered.
//! * Every batch gets one verdict, and after it is never sent again. A batch that is sent again was not stored.
//! * A batch is answered with an error of the database only if it was alone in its statement, or if the error tells
//!   nothing about what the statement contains (`Failed`).
//! * What waits is sent at the latest after as many statements as there are queues.
//!
//! Not here: one queue (`queue`), when a small statement is worth sending (`gesta_core::pace`), the connection
//! (`sharing`).

mod queue;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use gesta_core::backend::WriterEpoch;
use gesta_core::{LogId, Moment, Position};

use crate::append::gather::queue::Queue;
use gesta_core::pace::Pace;

/// The most events of one statement: about 15 ms of work near the database, and as much as can be gained by gathering.
pub const EVENTS_MAX: usize = 2_000;
/// The most bytes of data and metadata of one statement. A larger batch goes alone.
pub const BYTES_MAX: usize = 4 * 1024 * 1024;
/// The most statements under way.
const UNDER_WAY_MAX: usize = 64;
/// The most statements of full size under way near the database: one that it works on and one that waits.
const NEAR_UNDER_WAY_MAX: usize = 2;
/// The most statements of full size under way where a statement travels for longer than the database works on it.
const FAR_UNDER_WAY_MAX: usize = 4;

/// Identifies the queue of a handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueId(u64);

/// Identifies a batch that was submitted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(u64);

/// Identifies a row in its log.
pub type RowPlace = (Position, WriterEpoch);

/// What must be known about a batch in order to gather it.
#[derive(Clone, Debug)]
pub struct Piece<T> {
    /// The row that the batch follows.
    pub after: RowPlace,
    /// The last row of the batch; `after` if it has no events.
    pub end: RowPlace,
    /// The number of its events.
    pub events: usize,
    /// The bytes of their data and metadata.
    pub bytes: usize,
    /// The batch itself.
    pub load: T,
}

/// The batches of one log in one statement, which follow one another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatementPart<T> {
    /// The log.
    pub log: LogId,
    /// The batches, in order.
    pub batches: Vec<T>,
}

/// What the database said about a statement. If a statement is in doubt, [`Gather::end`] is called instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said<'a> {
    /// The statement was executed. For each part, in their order, this tells whether the row that it follows was the
    /// last.
    Executed(&'a [bool]),
    /// Nothing was stored: a key was taken, so another writer came first in one of the logs.
    Collided,
    /// Nothing was stored: the content of one of the batches is refused.
    Refused,
    /// Nothing was stored, for a passing reason.
    Failed,
}

/// The outcome of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchVerdict {
    /// The batch is stored.
    Committed,
    /// Nothing is stored: another row than it names was the last.
    Missed,
    /// The error of the statement holds for this batch.
    Error,
}

/// The database contradicts itself: a batch was stored although one that it follows was not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// The unanswered batches of a connection.
#[derive(Debug)]
pub struct Gather<T> {
    queues: BTreeMap<QueueId, Queue<T>>,
    /// The statements without an answer, oldest first.
    under_way: VecDeque<Statement>,
    pace: Pace,
    tickets: u64,
    statements: u64,
}

/// A statement under way.
#[derive(Debug)]
struct Statement {
    number: u64,
    sent: Moment,
    /// How many statements were under way when it was sent, itself included.
    queue: usize,
    size: usize,
    parts: Vec<(QueueId, Vec<Ticket>)>,
}

/// The batches of a queue that the next statement would hold: `count` batches from index `first` on.
struct Choice {
    queue: QueueId,
    first: usize,
    count: usize,
}

/// What the next statement would hold.
#[derive(Default)]
struct Chosen {
    choices: Vec<Choice>,
    events: usize,
    bytes: usize,
    /// The size of the statement, in events. A batch without events counts as one.
    size: usize,
    /// Whether a waiting batch does not fit.
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

impl<T: Clone> Default for Gather<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone> Gather<T> {
    /// Makes a connection on which nothing was submitted.
    #[must_use]
    pub fn new() -> Self {
        Self {
            queues: BTreeMap::new(),
            under_way: VecDeque::new(),
            pace: Pace::default(),
            tickets: 0,
            statements: 0,
        }
    }

    /// Opens a queue. Returns `None` if the log has a queue: two queues would be two writers, which need two
    /// connections.
    pub fn open(&mut self, log: LogId) -> Option<QueueId> {
        if self.queues.values().any(|queue| queue.log == log) {
            return None;
        }
        self.tickets += 1;
        let id = QueueId(self.tickets);
        self.queues.insert(id, Queue::new(log));
        Some(id)
    }

    /// Closes a queue. Its batches that are not under way are withdrawn and returned, since no caller waits for them.
    pub fn close(&mut self, id: QueueId) -> Vec<Ticket> {
        let Some(queue) = self.queues.get_mut(&id) else {
            return Vec::new();
        };
        let withdrawn = queue.close();
        if queue.is_over() {
            self.queues.remove(&id);
        }
        withdrawn
    }

    /// Takes a batch. After a batch was not stored, the caller must not decide again before all that it has submitted
    /// is answered: two batches of one epoch at one place could not be told apart.
    pub fn submit(&mut self, queue: QueueId, piece: Piece<T>) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.push(ticket, piece);
        }
        ticket
    }

    /// Returns what is to be sent now, in the order of the logs; `None` if nothing is. Whenever a batch was submitted
    /// or answered, this is to be called until it returns `None`.
    pub fn next(&mut self, now: Moment) -> Option<Vec<StatementPart<T>>> {
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
        choices
            .sort_unstable_by_key(|choice| self.queues.get(&choice.queue).map(|queue| queue.log));
        for choice in choices {
            if let Some(queue) = self.queues.get_mut(&choice.queue) {
                let (tickets, part) = queue.send(choice.first, choice.count, number);
                statement.parts.push((choice.queue, tickets));
                parts.push(part);
            }
        }
        self.under_way.push_back(statement);
        Some(parts)
    }

    /// Takes the answer to the oldest statement. Returns the verdicts that follow.
    ///
    /// # Errors
    /// [`Broken`] if they contradict each other; then everything is in doubt.
    pub fn answered(
        &mut self,
        said: Said<'_>,
        now: Moment,
    ) -> Result<Vec<(Ticket, BatchVerdict)>, Broken> {
        let statement = self.under_way.pop_front().ok_or(Broken)?;
        if let Said::Executed(_) = said {
            self.pace.answered(statement.sent, statement.queue, now);
        }
        let is_alone = match statement.parts.as_slice() {
            [(_, tickets)] => tickets.len() == 1,
            _ => false,
        };
        let mut verdicts = Vec::new();
        for (index, (id, tickets)) in statement.parts.iter().enumerate() {
            let Some(queue) = self.queues.get_mut(id) else {
                continue;
            };
            match said {
                Said::Executed(good) if good.get(index) == Some(&true) => {
                    queue.commit(tickets, &mut verdicts)?;
                }
                Said::Executed(_) => queue.miss(tickets, statement.number, &mut verdicts),
                Said::Collided if is_alone => queue.miss(tickets, statement.number, &mut verdicts),
                Said::Collided => queue.collide(tickets, &mut verdicts),
                Said::Refused if is_alone => queue.refuse(tickets, &mut verdicts),
                Said::Refused => queue.part(tickets, &mut verdicts),
                Said::Failed => queue.fail(tickets, &mut verdicts),
            }
            if queue.is_over() {
                self.queues.remove(id);
            }
        }
        Ok(verdicts)
    }

    /// Ends everything. Returns the batches that have no verdict yet.
    pub fn end(&mut self) -> Vec<Ticket> {
        self.under_way.clear();
        let queues = std::mem::take(&mut self.queues);
        queues.into_values().flat_map(Queue::into_tickets).collect()
    }

    /// Chooses one batch of each queue, then more of the same queues, as long as they fit. The queue that was served
    /// least recently comes first, so it does not wait for one that submits more.
    fn choose(&self) -> Chosen {
        let mut waiting: Vec<_> = self
            .queues
            .iter()
            .filter_map(|(id, queue)| queue.first_to_send().map(|first| (*id, queue, first)))
            .collect();
        waiting.sort_unstable_by_key(|(_, queue, first)| (queue.served, queue.ticket(*first)));
        let mut chosen = Chosen::default();
        for (id, queue, first) in waiting {
            let alone = queue.goes_alone(first);
            if alone && !chosen.choices.is_empty() {
                chosen.is_full = true;
                continue;
            }
            let Some(piece) = queue.piece(first).filter(|piece| chosen.fits(piece)) else {
                continue;
            };
            chosen.count(piece);
            chosen.choices.push(Choice {
                queue: id,
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

    /// Adds batches that follow the chosen ones, one of each queue in turn.
    fn choose_more(&self, chosen: &mut Chosen) {
        loop {
            let before = chosen.events + chosen.size;
            for index in 0..chosen.choices.len() {
                let Choice {
                    queue,
                    first,
                    count,
                } = &chosen.choices[index];
                let next = first + count;
                let piece = self
                    .queues
                    .get(queue)
                    .and_then(|queue| queue.follower(next));
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

    /// Returns how large a statement must be to be sent now, unless it is full. A statement of any size may be sent if
    /// none is under way, or if the database would be idle before another one arrives. Else, if few are under way, it
    /// must be as large as the smallest of them. The pipeline of one log sends its batches by the same rules.
    fn size_wanted(&self, now: Moment) -> Option<usize> {
        let under_way = self.under_way.len();
        let Some(oldest) = self.under_way.front() else {
            return Some(0);
        };
        let age = now.since(oldest.sent);
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
