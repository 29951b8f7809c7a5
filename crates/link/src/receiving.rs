//! The owner's end of a lane: which calls are handed over, and which answers are sent.
//!
//! The module is pure. Invariants: calls are handed over in the dense order of their numbers; after one was answered as
//! *not here*, no later one is handed over, and no answer to a later one is sent, because the forwarder sends all of
//! them again; a call whose deadline is over is not handed over; a lane is no longer served once the forwarder has
//! opened a newer one for the same log ([`Newest`]).

use std::time::Duration;

use gesta_core::Moment;

use crate::sending::{Credit, Violation};

/// What becomes of a call that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum CallVerdict {
    /// The call must be handed over; this time is left.
    HandOver(Duration),
    /// The deadline of the call is over, which must be answered.
    DeadlineOver,
    /// The lane is refused: the call must be dropped without an answer.
    Refused,
}

/// What is sent after an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The calls from this one on are answered as *not here*; calls from `untaken` on were not handed over.
    From {
        /// The first call that is refused.
        from: u64,
        /// The first call that was not handed over.
        untaken: u64,
    },
    /// Nothing is sent, because an earlier refusal covers it.
    Covered,
}

/// The pure core of one lane.
#[derive(Debug)]
pub struct Receiver {
    credit: Credit,
    next: u64,
    /// The first call that was not handed over. No later call was handed over either.
    untaken: u64,
    refused_from: Option<u64>,
    calls: u32,
    bytes: usize,
}

impl Receiver {
    /// Makes a lane on which nothing has come.
    pub fn new(credit: Credit) -> Self {
        Self {
            credit,
            next: 0,
            untaken: 0,
            refused_from: None,
            calls: 0,
            bytes: 0,
        }
    }

    /// Takes a call that has arrived whole. Its head has arrived at `since`, and `remaining` was left then.
    ///
    /// # Errors
    /// [`Violation`] if the call is out of order or beyond the credit.
    pub fn call(
        &mut self,
        now: Moment,
        seq: u64,
        bytes: usize,
        since: Moment,
        remaining: Duration,
    ) -> Result<CallVerdict, Violation> {
        if seq != self.next {
            return Err(Violation("a call out of order"));
        }
        self.next += 1;
        if self.refused_from.is_some() {
            return Ok(CallVerdict::Refused);
        }
        let bytes_max = usize::try_from(self.credit.bytes).unwrap_or(usize::MAX);
        let is_alone = self.bytes == 0;
        if self.calls >= self.credit.calls
            || !is_alone && self.bytes.saturating_add(bytes) > bytes_max
        {
            return Err(Violation("a call beyond the credit"));
        }
        self.calls += 1;
        self.bytes += bytes;
        let elapsed = now.since(since);
        let left = remaining.saturating_sub(elapsed);
        if left.is_zero() {
            return Ok(CallVerdict::DeadlineOver);
        }
        Ok(CallVerdict::HandOver(left))
    }

    /// Notes that the call was taken by the part of the node that serves the log.
    pub fn taken(&mut self, seq: u64) {
        self.untaken = seq + 1;
    }

    /// Notes that a call is answered as done or dropped. Returns whether the answer must be sent.
    pub fn answered(&mut self, seq: u64, bytes: usize) -> bool {
        self.calls -= 1;
        self.bytes -= bytes;
        self.refused_from.is_none_or(|from| seq < from)
    }

    /// Notes that a call is answered as *not here*. Returns what must be sent.
    pub fn not_here(&mut self, seq: u64, bytes: usize) -> Refusal {
        if !self.answered(seq, bytes) {
            return Refusal::Covered;
        }
        self.refused_from = Some(seq);
        let untaken = self.untaken.max(seq);
        Refusal::From { from: seq, untaken }
    }

    /// Notes that no more calls are read, because the node stops. Returns what must be sent: the forwarder may have
    /// written calls that are on their way, and must know that they were not handed over.
    pub fn end(&mut self) -> Refusal {
        if self.refused_from.is_some() {
            return Refusal::Covered;
        }
        self.refused_from = Some(self.next);
        Refusal::From {
            from: self.next,
            untaken: self.next,
        }
    }
}

/// The newest lane of a forwarder for a log. Calls of older lanes may still arrive late, from a connection that the
/// forwarder has given up. Such calls must not be handed over after calls of the newest lane.
#[derive(Debug, Default)]
pub struct Newest(u64);

impl Newest {
    /// Notes that a lane is opened. Returns false if a newer one was opened before.
    pub fn open(&mut self, lane: u64) -> bool {
        let is_newest = lane > self.0;
        if is_newest {
            self.0 = lane;
        }
        is_newest
    }

    /// Returns whether calls of this lane may be handed over.
    pub fn serves(&self, lane: u64) -> bool {
        self.0 == lane
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a call is not handed over once its deadline is over, however long it has lain here before it was read.
    #[test]
    fn the_time_that_a_call_has_lain_here_is_subtracted() {
        let start = Moment::START;
        let at = |seconds| start + Duration::from_secs(seconds);
        let remaining = Duration::from_secs(5);
        let credit = Credit {
            calls: 10,
            bytes: 100,
        };
        let mut receiver = Receiver::new(credit);
        let mut call = |seq, now| receiver.call(at(now), seq, 1, at(0), remaining);
        assert_eq!(call(0, 0), Ok(CallVerdict::HandOver(remaining)));
        let left = Duration::from_secs(1);
        assert_eq!(call(1, 4), Ok(CallVerdict::HandOver(left)));
        for (seq, now) in [(2, 5), (3, 6), (4, 600)] {
            assert_eq!(call(seq, now), Ok(CallVerdict::DeadlineOver), "{now}");
        }
    }
}
