//! The answers of an entity that wait, and the submissions that prove them.
//!
//! Invariant: answers leave in the order of the commands, each when its submission has succeeded.
//! Not here: deciding (`slot`).

use std::collections::VecDeque;

use gesta_core::{Appended, Error as StoreError, ErrorKind, StreamId, way_point};

use crate::ask::{Ask, CommandAsk, CommandResult, Done, ReadAsk, done};
use crate::decider::Decider;
use crate::env::Env;
use crate::error::Error;
use crate::snapshot::Draft;

pub(super) struct Flight<D: Decider> {
    pub(super) pending: VecDeque<Pending<D>>,
    /// The number of submissions without an outcome.
    pub(super) open: u32,
    /// The number that names the last submission.
    pub(super) last: u64,
    /// The number of commands with events among `pending`.
    pub(super) stored: usize,
    /// Whether the last of `pending` waits for a submission that was not made yet.
    pub(super) unproven: bool,
    pub(super) broken: Option<Broken<D>>,
}

/// The state of an entity of which a submission has failed.
pub(super) struct Broken<D: Decider> {
    /// The requests that came after the failure.
    pub(super) arrivals: VecDeque<Ask<D>>,
    /// The error of a database that does not answer, if that was the reason.
    pub(super) away: Option<StoreError>,
}

pub(super) struct Pending<D: Decider> {
    pub(super) number: u64,
    pub(super) work: Work<D>,
    pub(super) failed: Option<StoreError>,
}

pub(super) enum Work<D: Decider> {
    Stored {
        ask: CommandAsk<D>,
        reply: D::Reply,
        snapshot: Option<Box<Draft<D>>>,
    },
    /// The command has no events, or was rejected.
    Answered {
        ask: CommandAsk<D>,
        answer: CommandResult<D>,
    },
    Read(Box<dyn ReadAsk<D>>),
}

impl<D: Decider> Flight<D> {
    pub(super) fn new() -> Self {
        Self {
            pending: VecDeque::new(),
            open: 0,
            last: 0,
            stored: 0,
            unproven: false,
            broken: None,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.open == 0 && self.pending.is_empty() && self.broken.is_none()
    }

    pub(super) fn submit(&mut self, number: u64) {
        self.open += 1;
        self.last = number;
        self.unproven = false;
    }

    /// Notes that the state cannot be used any more.
    pub(super) fn break_off(&mut self) -> &mut Broken<D> {
        self.broken.get_or_insert_with(|| Broken {
            arrivals: VecDeque::new(),
            away: None,
        })
    }

    /// Releases the answers up to a submission that has succeeded: everything up to it is durable and was current.
    pub(super) fn release(
        &mut self,
        stream: &StreamId,
        number: u64,
        appended: Option<&Appended>,
        env: &mut Env<D>,
    ) {
        while let Some(first) = self.pending.pop_front_if(|first| first.number <= number) {
            let own = appended.filter(|_| first.number == number);
            self.stored -= usize::from(matches!(first.work, Work::Stored { .. }));
            first.work.release(stream, own, env);
        }
    }

    pub(super) fn fail(&mut self, number: u64, error: StoreError) {
        let broken = self.break_off();
        if matches!(
            error.kind(),
            ErrorKind::Unavailable(_) | ErrorKind::OutcomeUnknown(_)
        ) {
            broken.away.get_or_insert_with(|| error.clone());
        }
        let own = self.pending.iter_mut().find(|pending| {
            pending.number == number && matches!(pending.work, Work::Stored { .. })
        });
        if let Some(own) = own {
            own.failed = Some(error);
        }
    }

    /// Answers what cannot be decided again. Returns the rest, in order.
    pub(super) fn settle(self, env: &mut Env<D>) -> VecDeque<Ask<D>> {
        let Some(broken) = self.broken else {
            return VecDeque::new();
        };
        let mut again = VecDeque::new();
        for pending in self.pending {
            let error = match &pending.work {
                Work::Stored { .. } => pending.failed.filter(|error| {
                    !matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. })
                }),
                // Nothing was written for it, whatever became of the others.
                Work::Answered { .. } | Work::Read(_) => broken
                    .away
                    .as_ref()
                    .map(|error| StoreError::unavailable(error.kind().to_string())),
            };
            let ask = pending.work.into_ask();
            match error {
                Some(error) => {
                    env.counters.failed.add(1);
                    ask.refuse(error.into());
                }
                None => again.extend(env.refuse_if_tried_too_often(ask)),
            }
        }
        again.extend(broken.arrivals);
        again
    }
}

impl<D: Decider> Work<D> {
    /// Gives the answer to its caller. `appended` is what was stored of the command's own events, if that is known.
    pub(super) fn release(self, stream: &StreamId, appended: Option<&Appended>, env: &mut Env<D>) {
        match self {
            Work::Stored {
                ask,
                reply,
                snapshot,
            } => {
                env.counters.commands.add(1);
                way_point!(stream, "stored");
                let answer = match appended {
                    Some(appended) => done(reply, appended),
                    None => Done {
                        reply,
                        revision: None,
                        checkpoint: None,
                        repeated: false,
                    },
                };
                if let (Some(draft), Some(revision)) = (snapshot, answer.revision) {
                    env.write_snapshot(stream, revision, *draft);
                }
                ask.answer(Ok(answer));
            }
            Work::Answered { ask, answer } => {
                match &answer {
                    Ok(done) if done.repeated => env.counters.repeated.add(1),
                    Ok(_) => env.counters.commands.add(1),
                    Err(Error::KeyReused(_)) => env.counters.keys_reused.add(1),
                    Err(_) => env.counters.rejected.add(1),
                }
                ask.answer(answer);
            }
            Work::Read(ask) => {
                env.counters.reads.add(1);
                ask.release();
            }
        }
    }

    pub(super) fn into_ask(self) -> Ask<D> {
        match self {
            Work::Stored { ask, .. } | Work::Answered { ask, .. } => Ask::Command(ask),
            Work::Read(ask) => Ask::Read(ask),
        }
    }
}
