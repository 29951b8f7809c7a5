//! A connection that appends: it executes commits in their order, each with the fault that the plan of its process has
//! for it.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_core::backend::*;
use gesta_core::{Error, ErrorKind, log_of};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::gate::Answers;
use super::plan::{Fault, LateCommit, Meets};
use super::process::Process;

/// A commit on its way.
struct Sent {
    batch: Arc<Batch>,
    sent: Instant,
    meets: Meets,
    reply: oneshot::Sender<BatchOutcome>,
}

/// The end of a connection at the process.
pub(super) struct Writer {
    process: Arc<Process>,
    epoch: WriterEpoch,
    commits: mpsc::UnboundedSender<Sent>,
}

impl Writer {
    pub(super) fn open(process: Arc<Process>) -> Self {
        let epoch = process.world.new_epoch();
        let (commits, receiver) = mpsc::unbounded_channel();
        let connection = Connection {
            connected: process.connected(),
            process: Arc::clone(&process),
            epoch,
            state: State::Open,
            arrived: Instant::now(),
            replied: Instant::now(),
        };
        tokio::spawn(connection.run(receiver));
        Self {
            process,
            epoch,
            commits,
        }
    }
}

impl LogWriter for Writer {
    fn epoch(&self) -> WriterEpoch {
        self.epoch
    }

    fn is_gathered(&self) -> bool {
        false
    }

    fn submit(&mut self, batch: Arc<Batch>) -> BoxFuture<'static, BatchOutcome> {
        let meets = self.process.plan().next_commit(&batch);
        let (reply, answer) = oneshot::channel();
        let sent = Instant::now();
        // The connection lives as long as this end of it.
        let _ = self.commits.send(Sent {
            batch,
            sent,
            meets,
            reply,
        });
        self.process.begin_commit();
        let process = Arc::clone(&self.process);
        answer
            .map(move |answer| {
                process.end_commit();
                answer.unwrap_or_else(|_| lost())
            })
            .boxed()
    }
}

fn lost() -> BatchOutcome {
    BatchOutcome::Unknown(Error::unavailable("the connection was lost"))
}

/// What a connection still does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The connection executes commits, but does not reply.
    Mute,
    /// What is sent reaches the database later.
    Stalled(LateCommit),
    /// What is sent is lost.
    Dead,
}

/// The end of a connection at the database.
struct Connection {
    process: Arc<Process>,
    epoch: WriterEpoch,
    state: State,
    /// The number of the process when the connection was made. When the process has another one, the connection is
    /// dead.
    connected: u64,
    /// When the last commit arrived; the next field says when it was replied to.
    arrived: Instant,
    replied: Instant,
}

impl Connection {
    async fn run(mut self, mut commits: mpsc::UnboundedReceiver<Sent>) {
        while let Some(sent) = commits.recv().await {
            let Sent {
                batch,
                sent,
                meets,
                reply,
            } = sent;
            let slow_request = match &meets.fault {
                Some(Fault::SlowRequest(longer)) => *longer,
                _ => Duration::ZERO,
            };
            let half = self.process.plan().round_trip / 2;
            self.arrived = self.arrived.max(sent + half + slow_request);
            // Other tasks run in between even if nothing takes time.
            tokio::task::yield_now().await;
            if self.arrived > Instant::now() {
                sleep_until(self.arrived).await;
            }
            if let Some(away) = meets.away {
                self.process.go_away(away);
            }
            let slow_reply = match &meets.fault {
                Some(Fault::SlowReply(longer)) => *longer,
                _ => Duration::ZERO,
            };
            let outcome = self.execute(batch, meets.fault);
            self.replied = self.replied.max(Instant::now() + half + slow_reply);
            self.answer(reply, outcome);
        }
    }

    fn execute(&mut self, batch: Arc<Batch>, fault: Option<Fault>) -> BatchOutcome {
        if self.process.connected() != self.connected {
            self.state = State::Dead;
        }
        if let (State::Open, Some(fault)) = (self.state, fault) {
            match fault {
                Fault::Failed => {
                    return BatchOutcome::Failed(Error::unavailable("deadlock, as planned"));
                }
                Fault::Refused => {
                    return BatchOutcome::Refused(ErrorKind::Refused("as planned".into()).into());
                }
                Fault::DiskFull => {
                    let full = ErrorKind::Unsupported("the disk is full, as planned".into());
                    return BatchOutcome::Failed(full.into());
                }
                Fault::LostRequest => self.state = State::Dead,
                Fault::LostReply => {
                    self.commit(&batch);
                    self.state = State::Dead;
                    return lost();
                }
                Fault::LostReplies => self.state = State::Mute,
                Fault::Lost(late) => self.stall(late),
                Fault::Overtaken(stream, events) => {
                    let world = &self.process.world;
                    let log = log_of(&stream, world.logs());
                    world.append_as_foreigner(log, &stream, events);
                }
                Fault::SlowRequest(_) | Fault::SlowReply(_) => {}
            }
        }
        match self.state {
            State::Open => self.commit(&batch),
            State::Mute => {
                self.commit(&batch);
                lost()
            }
            State::Stalled(_) => {
                self.process.stall(batch, self.epoch);
                lost()
            }
            State::Dead => lost(),
        }
    }

    fn commit(&self, batch: &Batch) -> BatchOutcome {
        self.process.commit_stalled(LateCommit::BeforeNextCommit);
        if self.process.plan().refuses(batch) {
            let refused = ErrorKind::Refused("the content, as planned".into());
            return BatchOutcome::Refused(refused.into());
        }
        self.process.world.commit(batch, self.epoch)
    }

    /// Replies, at once or when it is time and the test lets answers through.
    fn answer(&self, reply: oneshot::Sender<BatchOutcome>, outcome: BatchOutcome) {
        let (process, at) = (Arc::clone(&self.process), self.replied);
        let mut answering = Box::pin(async move {
            if at > Instant::now() {
                sleep_until(at).await;
            }
            process.gate(Answers::Commits).pass().await;
            let _ = reply.send(outcome);
        });
        if (&mut answering).now_or_never().is_none() {
            tokio::spawn(answering);
        }
    }

    fn stall(&mut self, late: LateCommit) {
        self.state = State::Stalled(late);
        self.process.begin_stall(self.epoch, late);
        if let LateCommit::After(time) = late {
            let (process, epoch) = (Arc::clone(&self.process), self.epoch);
            tokio::spawn(async move {
                tokio::time::sleep(time).await;
                process.commit_late(epoch);
            });
        }
    }
}
