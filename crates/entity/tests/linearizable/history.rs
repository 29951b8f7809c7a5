//! What happened: every attempt of every caller, with the moments of its beginning and its answer.

use std::sync::Mutex;

use gesta_kit::faulty::Moment;

use crate::chain::{Command, Seen};

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Command(Command),
    Read,
    StaleRead,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The caller has gone away.
    Nobody,
    Done {
        seen: Seen,
        revision: Option<u64>,
        repeated: bool,
    },
    Rejected(Seen),
    Read(Seen),
    /// Its key was used for another command.
    KeyReused,
    /// Nothing was stored, so it was said.
    Refused(String),
    Unknown(String),
    /// What must not happen: the entity cannot be loaded, ….
    Broken(String),
    /// None for too long.
    Hangs,
}

/// One attempt.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) entity: usize,
    /// Of these, order is kept: a process from start to shutdown.
    pub(crate) runtime: usize,
    pub(crate) asked: Operation,
    /// Attempts with the same key are one command.
    pub(crate) key: Option<String>,
    pub(crate) invoked: Moment,
    pub(crate) answered: Option<Moment>,
    pub(crate) answer: Answer,
}

impl Attempt {
    /// The numbers of the events that it may store.
    pub(crate) fn numbers(&self) -> std::ops::Range<u64> {
        match self.asked {
            Operation::Command(Command::Store { first, count })
            | Operation::Command(Command::StoreIfEven { first, count }) => first..first + count,
            _ => 0..0,
        }
    }

    /// Of its command, if it is one.
    pub(crate) fn kind(&self) -> Option<u8> {
        match self.asked {
            Operation::Command(command) => Some(command.kind()),
            Operation::Read | Operation::StaleRead => None,
        }
    }

    /// What the answer rests on.
    pub(crate) fn seen(&self) -> Option<Seen> {
        match self.answer {
            Answer::Done { seen, .. } | Answer::Rejected(seen) | Answer::Read(seen) => Some(seen),
            _ => None,
        }
    }

    pub(crate) fn is_repeated(&self) -> bool {
        matches!(self.answer, Answer::Done { repeated: true, .. })
    }

    /// It must have seen all that was stored before it was invoked.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.asked != Operation::StaleRead && !self.is_repeated()
    }
}

/// All attempts, in the order in which they were handed over.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Vec<Attempt>>);

impl Recorder {
    /// Begins an attempt; returns its number.
    pub(crate) fn invoke(&self, attempt: Attempt) -> usize {
        let mut attempts = self.0.lock().expect("no panic under the lock");
        attempts.push(attempt);
        attempts.len() - 1
    }

    pub(crate) fn answer(&self, number: usize, at: Moment, answer: Answer) {
        let mut attempts = self.0.lock().expect("no panic under the lock");
        attempts[number].answered = Some(at);
        attempts[number].answer = answer;
    }

    pub(crate) fn last_has_succeeded(&self) -> bool {
        let attempts = self.0.lock().expect("no panic under the lock");
        attempts.last().is_some_and(|last| last.seen().is_some())
    }

    /// Nothing stood in its way, and yet it failed.
    pub(crate) fn last_is_broken(&self) {
        let mut attempts = self.0.lock().expect("no panic under the lock");
        if let Some(last) = attempts.last_mut() {
            last.answer = Answer::Broken(format!("in peace: {:?}", last.answer));
        }
    }

    pub(crate) fn take(&self) -> Vec<Attempt> {
        std::mem::take(&mut self.0.lock().expect("no panic under the lock"))
    }
}
