//! The unanswered batches of one log, in the order in which they were submitted.
//!
//! A batch waits, is under way, and leaves with its verdict. It is *taken back* to wait again if its statement stored
//! nothing for a reason that need not be its own; then the batches of the queue that were sent after it miss for that
//! reason, and are taken back too. A batch that is chained to one with another verdict than committed goes on, and
//! misses in the database, since the row that it names is not there.

use std::collections::VecDeque;

use gesta_core::LogId;

use super::{BatchVerdict, Broken, Piece, StatementPart, Ticket};

/// How often a batch goes with those of other logs, if a key is taken each time. A batch that collided once usually
/// misses the next time, because the other writer has committed, and does not hinder the others.
const COLLISIONS_MAX: u32 = 2;
/// How many batches go alone after one was refused. The pipeline finds the offending append by halving the batch.
const ALONE_AFTER_REFUSAL: u32 = 32;

#[derive(Debug)]
pub(super) struct Queue<T> {
    pub(super) log: LogId,
    /// The number of the last statement that took a batch of this queue.
    pub(super) served: u64,
    entries: VecDeque<Entry<T>>,
    /// How many of the next batches go alone, because one was refused or failed.
    alone: u32,
    is_closed: bool,
}

#[derive(Debug)]
struct Entry<T> {
    ticket: Ticket,
    piece: Piece<T>,
    /// The number of the statement that carries the batch; `None` while it waits.
    sent: Option<u64>,
    collisions: u32,
    goes_alone: bool,
}

impl<T> Entry<T> {
    fn follows(&self, other: &Self) -> bool {
        self.piece.after == other.piece.end
    }

    /// Tells whether a batch that follows this one can only be stored if this one is.
    fn has_events(&self) -> bool {
        self.piece.events > 0
    }
}

impl<T: Clone> Queue<T> {
    pub(super) fn new(log: LogId) -> Self {
        Self {
            log,
            served: 0,
            entries: VecDeque::new(),
            alone: 0,
            is_closed: false,
        }
    }

    // ---- what waits ----

    pub(super) fn push(&mut self, ticket: Ticket, piece: Piece<T>) {
        self.entries.push_back(Entry {
            ticket,
            piece,
            sent: None,
            collisions: 0,
            goes_alone: false,
        });
    }

    /// Closes the queue: withdraws and returns the batches that wait. From now on no batch is taken back.
    pub(super) fn close(&mut self) -> Vec<Ticket> {
        self.is_closed = true;
        let mut withdrawn = Vec::new();
        self.entries.retain(|entry| {
            if entry.sent.is_none() {
                withdrawn.push(entry.ticket);
            }
            entry.sent.is_some()
        });
        withdrawn
    }

    /// Tells whether the queue is closed and nothing of it is under way.
    pub(super) fn is_over(&self) -> bool {
        self.is_closed && self.entries.is_empty()
    }

    pub(super) fn into_tickets(self) -> impl Iterator<Item = Ticket> {
        self.entries.into_iter().map(|entry| entry.ticket)
    }

    /// Returns the index of the first waiting batch, if it may be sent: it must be the oldest of the queue, or be
    /// chained to the one before it.
    pub(super) fn first_to_send(&self) -> Option<usize> {
        let first = self.entries.iter().position(|entry| entry.sent.is_none())?;
        (first == 0 || self.is_chained(first)).then_some(first)
    }

    fn is_chained(&self, index: usize) -> bool {
        let before = index
            .checked_sub(1)
            .and_then(|before| self.entries.get(before));
        match (before, self.entries.get(index)) {
            (Some(before), Some(entry)) => entry.follows(before),
            _ => false,
        }
    }

    pub(super) fn ticket(&self, index: usize) -> Option<Ticket> {
        self.entries.get(index).map(|entry| entry.ticket)
    }

    pub(super) fn piece(&self, index: usize) -> Option<&Piece<T>> {
        self.entries.get(index).map(|entry| &entry.piece)
    }

    pub(super) fn goes_alone(&self, index: usize) -> bool {
        self.alone > 0
            || self
                .entries
                .get(index)
                .is_some_and(|entry| entry.goes_alone)
    }

    /// Returns the batch at this index, if it may go with the one before it.
    pub(super) fn follower(&self, index: usize) -> Option<&Piece<T>> {
        let waits = |entry: &&Entry<T>| entry.sent.is_none() && !self.goes_alone(index);
        let entry = self.entries.get(index).filter(waits)?;
        self.is_chained(index).then_some(&entry.piece)
    }

    /// Notes that these batches go in a statement, and returns them.
    pub(super) fn send(
        &mut self,
        first: usize,
        count: usize,
        number: u64,
    ) -> (Vec<Ticket>, StatementPart<T>) {
        self.served = number;
        let mut tickets = Vec::with_capacity(count);
        let mut batches = Vec::with_capacity(count);
        for entry in self.entries.iter_mut().skip(first).take(count) {
            entry.sent = Some(number);
            tickets.push(entry.ticket);
            batches.push(entry.piece.load.clone());
        }
        let log = self.log;
        (tickets, StatementPart { log, batches })
    }

    // ---- what the database said ----

    fn find(&self, ticket: Ticket) -> Option<usize> {
        self.entries.iter().position(|entry| entry.ticket == ticket)
    }

    /// Tells whether a batch before this one had not been executed, or not again, when the statement of this number
    /// was.
    fn was_too_early(&self, index: usize, number: u64) -> bool {
        let later = |entry: &Entry<T>| entry.sent.is_none_or(|sent| sent > number);
        self.entries.iter().take(index).any(later)
    }

    /// Notes that batches are stored, or confirmed if they have no events. Batches that they follow are committed too
    /// if these have no events; those with events must have been stored before.
    pub(super) fn commit(
        &mut self,
        tickets: &[Ticket],
        verdicts: &mut Vec<(Ticket, BatchVerdict)>,
    ) -> Result<(), Broken> {
        for ticket in tickets {
            let Some(index) = self.find(*ticket) else {
                continue;
            };
            for entry in self.entries.drain(..=index) {
                if entry.ticket != *ticket && entry.has_events() {
                    return Err(Broken);
                }
                verdicts.push((entry.ticket, BatchVerdict::Committed));
            }
            self.alone = self.alone.saturating_sub(1);
        }
        Ok(())
    }

    /// Notes that another row was the last, or that a batch before these was not stored yet.
    pub(super) fn miss(
        &mut self,
        tickets: &[Ticket],
        number: u64,
        verdicts: &mut Vec<(Ticket, BatchVerdict)>,
    ) {
        for ticket in tickets {
            match self.find(*ticket) {
                Some(index) if self.was_too_early(index, number) => self.take_back(index, verdicts),
                Some(index) => self.lose(index, BatchVerdict::Missed, verdicts),
                None => {}
            }
        }
    }

    /// Notes that a key was taken in this log or in another one. The batches go together once more, and after that
    /// alone.
    pub(super) fn collide(
        &mut self,
        tickets: &[Ticket],
        verdicts: &mut Vec<(Ticket, BatchVerdict)>,
    ) {
        for ticket in tickets {
            if let Some(index) = self.find(*ticket) {
                let entry = &mut self.entries[index];
                entry.collisions += 1;
                entry.goes_alone |= entry.collisions >= COLLISIONS_MAX;
                self.take_back(index, verdicts);
            }
        }
    }

    /// Notes that the content of one of these batches, or of a batch of another log, is refused. Each goes again by
    /// itself.
    pub(super) fn part(&mut self, tickets: &[Ticket], verdicts: &mut Vec<(Ticket, BatchVerdict)>) {
        for ticket in tickets {
            if let Some(index) = self.find(*ticket) {
                self.entries[index].goes_alone = true;
                self.take_back(index, verdicts);
            }
        }
    }

    /// Notes that the content of this batch is refused.
    pub(super) fn refuse(
        &mut self,
        tickets: &[Ticket],
        verdicts: &mut Vec<(Ticket, BatchVerdict)>,
    ) {
        self.alone = ALONE_AFTER_REFUSAL;
        self.lose_all(tickets, verdicts);
    }

    /// Notes that the batches failed for a passing reason. It is not known which batch caused it, so the next one goes
    /// by itself.
    pub(super) fn fail(&mut self, tickets: &[Ticket], verdicts: &mut Vec<(Ticket, BatchVerdict)>) {
        self.alone = self.alone.max(1);
        self.lose_all(tickets, verdicts);
    }

    fn lose_all(&mut self, tickets: &[Ticket], verdicts: &mut Vec<(Ticket, BatchVerdict)>) {
        for ticket in tickets {
            if let Some(index) = self.find(*ticket) {
                self.lose(index, BatchVerdict::Error, verdicts);
            }
        }
    }

    /// Lets a batch wait again. In a closed queue it misses instead.
    fn take_back(&mut self, index: usize, verdicts: &mut Vec<(Ticket, BatchVerdict)>) {
        if self.is_closed {
            self.lose(index, BatchVerdict::Missed, verdicts);
        } else if let Some(entry) = self.entries.get_mut(index) {
            entry.sent = None;
        }
    }

    /// Removes a batch that is not stored.
    fn lose(
        &mut self,
        index: usize,
        verdict: BatchVerdict,
        verdicts: &mut Vec<(Ticket, BatchVerdict)>,
    ) {
        if let Some(lost) = self.entries.remove(index) {
            verdicts.push((lost.ticket, verdict));
        }
    }
}
