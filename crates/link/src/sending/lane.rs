//! One lane as the forwarder sees it: the calls in flight, and what they took of the owner's credit.

use std::collections::VecDeque;

use gesta_core::Moment;

use super::{Credit, Output, Patience, Violation};
use crate::error::ReturnReason;
use crate::route::Address;

/// An unanswered call.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) ticket: T,
    pub(super) bytes: usize,
    pub(super) deadline: Moment,
    pub(super) patience: Patience,
    /// Whether an earlier attempt may have been done.
    pub(super) is_in_doubt: bool,
}

impl<T> Entry<T> {
    pub(super) fn returned<R>(self, reason: ReturnReason) -> Output<T, R> {
        Output::Return {
            ticket: self.ticket,
            reason,
            was_written: self.is_in_doubt,
        }
    }

    pub(super) fn over<R>(self) -> Output<T, R> {
        self.returned(ReturnReason::DeadlineOver)
    }
}

/// The state of a call that was written.
#[derive(Debug)]
enum Slot<T> {
    Open(Entry<T>),
    /// The caller no longer waits, but the owner holds a call of this many bytes.
    GivenUp(usize),
    Answered,
}

/// A lane.
#[derive(Debug)]
pub(super) struct Lane<T> {
    pub(super) number: u64,
    pub(super) node: Address,
    /// The number of the first call in `slots`. Numbers are dense, from 0.
    pub(super) first: u64,
    slots: VecDeque<Slot<T>>,
    /// The number of the first call that the owner refuses. The owner refuses all later calls as well.
    refused_from: Option<u64>,
    /// The number of calls that the owner has not answered.
    pub(super) calls: u32,
    bytes: usize,
    /// The moment since which a call was given up, and no answer has come.
    pub(super) silent_since: Option<Moment>,
    /// The moment until which the answers of this owner are awaited, if another node owns the log now.
    pub(super) leave_by: Option<Moment>,
}

impl<T> Lane<T> {
    pub(super) fn new(number: u64, node: Address) -> Self {
        Self {
            number,
            node,
            first: 0,
            slots: VecDeque::new(),
            refused_from: None,
            calls: 0,
            bytes: 0,
            silent_since: None,
            leave_by: None,
        }
    }

    /// Stops writing, because another node owns the log. Answers are awaited until `by`.
    pub(super) fn leave(&mut self, by: Moment) {
        self.leave_by.get_or_insert(by);
        let next = self.next();
        self.refused_from.get_or_insert(next);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leave_by.is_some()
    }

    /// Returns whether the owner refuses no call yet.
    pub(super) fn is_open(&self) -> bool {
        self.refused_from.is_none()
    }

    /// Returns whether the owner refuses calls, and the calls before are answered or given up.
    pub(super) fn is_drained(&self) -> bool {
        !self.is_open() && !self.has_open_calls()
    }

    pub(super) fn has_open_calls(&self) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| matches!(slot, Slot::Open(_)))
    }

    /// Returns whether the owner takes one more call of this size.
    pub(super) fn takes(&self, bytes: usize, credit: Credit) -> bool {
        let bytes_max = usize::try_from(credit.bytes).unwrap_or(usize::MAX);
        let is_alone = self.bytes == 0;
        self.calls < credit.calls && (is_alone || self.bytes.saturating_add(bytes) <= bytes_max)
    }

    pub(super) fn write(&mut self, entry: Entry<T>) -> (u64, &Entry<T>) {
        let seq = self.next();
        self.calls += 1;
        self.bytes += entry.bytes;
        self.slots.push_back(Slot::Open(entry));
        match self.slots.back() {
            Some(Slot::Open(entry)) => (seq, entry),
            _ => unreachable!("the slot was pushed just now"),
        }
    }

    /// Returns the number of the next call.
    pub(super) fn next(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    fn slot(&mut self, seq: u64) -> Result<&mut Slot<T>, Violation> {
        let index = seq.checked_sub(self.first);
        index
            .and_then(|index| self.slots.get_mut(usize::try_from(index).ok()?))
            .ok_or(Violation("an answer to a call that is not in flight"))
    }

    /// Takes the answer of the owner to a call. Returns the call, unless it was given up.
    pub(super) fn answered(&mut self, seq: u64) -> Result<Option<Entry<T>>, Violation> {
        let slot = self.slot(seq)?;
        let (entry, bytes) = match std::mem::replace(slot, Slot::Answered) {
            Slot::Open(entry) => {
                let bytes = entry.bytes;
                (Some(entry), bytes)
            }
            Slot::GivenUp(bytes) => (None, bytes),
            Slot::Answered => return Err(Violation("a second answer to a call")),
        };
        self.silent_since = None;
        self.calls -= 1;
        self.bytes -= bytes;
        while let Some(Slot::Answered) = self.slots.front() {
            self.slots.pop_front();
            self.first += 1;
        }
        Ok(entry)
    }

    /// Notes that the owner refuses calls from this one on, which it has not answered. An owner that stops refuses what
    /// it has not read, and may do so before that is written.
    pub(super) fn refuse(&mut self, from: u64) -> Result<(), Violation> {
        if from != self.next()
            && let Slot::Answered = self.slot(from)?
        {
            return Err(Violation("a call refused after its answer"));
        }
        self.refused_from = Some(from);
        Ok(())
    }

    /// Puts the calls from this one on in front of those that wait, in their order. The calls for which `in_doubt` is
    /// true may have been done.
    pub(super) fn take_back(
        &mut self,
        from: u64,
        in_doubt: impl Fn(u64) -> bool,
        waiting: &mut VecDeque<Entry<T>>,
    ) {
        while self.next() > from.max(self.first) {
            let Some(slot) = self.slots.pop_back() else {
                return;
            };
            if let Slot::Open(mut entry) = slot {
                entry.is_in_doubt |= in_doubt(self.next());
                waiting.push_front(entry);
            }
        }
    }

    /// Gives up the calls that `keep` does not keep.
    pub(super) fn give_up<R>(
        &mut self,
        now: Moment,
        reason: ReturnReason,
        keep: &mut impl FnMut(&Entry<T>) -> bool,
        outputs: &mut Vec<Output<T, R>>,
    ) {
        for slot in &mut self.slots {
            let Slot::Open(entry) = slot else {
                continue;
            };
            if keep(entry) {
                continue;
            }
            let given_up = Slot::GivenUp(entry.bytes);
            if let Slot::Open(mut entry) = std::mem::replace(slot, given_up) {
                entry.is_in_doubt = true;
                self.silent_since.get_or_insert(now);
                outputs.push(entry.returned(reason));
            }
        }
    }
}
