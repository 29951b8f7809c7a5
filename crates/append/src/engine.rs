//! The task that connects the sequencer of one log with a backend. The task hands commands, answers and the time to the
//! sequencer, and does what the sequencer puts out.
//!
//! There is one task and no lock: everything that decides about an append happens in one place and in one order. The
//! task is supervised: if it panics, every command that it held is answered *outcome unknown*, and a new sequencer
//! starts from what the database holds.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesOrdered};
use futures::{FutureExt, StreamExt};
use gesta_core::backend::{Backend, BatchOutcome, CommitObserver, LogWriter, Signal, Topic};
use gesta_core::capacity::Permit;
use gesta_core::shares::{self, Holder};
use gesta_core::{Clock, Error, LogId, Moment, Now, Result, uptime, way_point};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::command::Command;
use crate::reply::Reply;
use crate::sequencer::job::{Answer, JobId};
use crate::sequencer::{Connected, Input, Output, Sequencer, Setting};
use crate::stats::Stats;
use crate::{Config, jobs};

/// The greatest number of commands that are taken from the channel at once.
const INTAKE_MAX: usize = 1_024;
/// The time before a task that has panicked is started again.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// The receiver of the answer to a command, with what the command holds until it is answered.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) reply: Reply,
    /// The permits of the command, one of the admission and one of the count of its pipeline. The permits are given
    /// back when the command is answered.
    pub(crate) permits: (Permit<2>, Permit<2>),
}

/// What is asked of an engine, beside commands.
pub(crate) enum Question {
    /// Why appends cannot succeed now. The answer is `None` if they can.
    Ready(oneshot::Sender<Option<String>>),
    /// To prepare for appends after others have appended. The answer says that this is done.
    Prepare(oneshot::Sender<()>),
}

/// What an engine needs to start.
pub(crate) struct Parts {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) log: LogId,
    pub(crate) config: Config,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) observer: Arc<dyn CommitObserver>,
    pub(crate) stats: Arc<Stats>,
}

/// The channels from the callers. These channels outlive an engine that panics.
pub(crate) struct Callers {
    pub(crate) commands: mpsc::UnboundedReceiver<Command<Ticket>>,
    pub(crate) questions: mpsc::UnboundedReceiver<Question>,
}

/// Runs the pipeline until all callers are gone and all commands are answered.
pub(crate) async fn supervise(parts: Parts, mut callers: Callers) {
    loop {
        let work = Engine::new(&parts).run(&mut callers);
        let Err(panic) = AssertUnwindSafe(work).catch_unwind().await else {
            return;
        };
        let text = panic_text(&*panic);
        tracing::error!(
            log = parts.log.0,
            panic = text,
            "the append pipeline failed, starting it again"
        );
        tell_failed(&mut callers, &text).await;
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}

/// Answers questions about readiness until the pipeline is started again.
async fn tell_failed(callers: &mut Callers, text: &str) {
    let restart = tokio::time::sleep(RESTART_AFTER);
    tokio::pin!(restart);
    loop {
        tokio::select! {
            () = &mut restart => return,
            Some(question) = callers.questions.recv() => {
                if let Question::Ready(ask) = question {
                    let _ = ask.send(Some(format!("the append pipeline failed: {text}")));
                }
            }
        }
    }
}

/// Something that the engine waits for.
enum Event {
    Outcome(BatchOutcome),
    Read(JobId, Answer),
    Connected(Result<Box<dyn LogWriter>>),
    Signal(Signal),
    Commands(usize),
    Question(Question),
    Time,
}

struct Engine {
    backend: Arc<dyn Backend>,
    log: LogId,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn CommitObserver>,
    sequencer: Sequencer<Ticket>,
    signals: BoxStream<'static, Signal>,
    connecting: Option<BoxFuture<'static, Result<Box<dyn LogWriter>>>>,
    writer: Option<Box<dyn LogWriter>>,
    outcomes: FuturesOrdered<BoxFuture<'static, BatchOutcome>>,
    reads: JoinSet<(JobId, Answer)>,
    are_callers_gone: bool,
    /// Who waits until the sequencer has prepared.
    preparing: Vec<oneshot::Sender<()>>,
    /// The number of the history that the sequencer knows.
    history: u64,
}

impl Engine {
    fn new(parts: &Parts) -> Self {
        let Parts {
            backend,
            log,
            config,
            clock,
            observer,
            stats,
        } = parts;
        let info = backend.info();
        let history = backend.history();
        let setting = Setting {
            config: config.clone(),
            log: *log,
            logs: info.logs,
            incarnation: history.incarnation,
            in_flight_max: info.capabilities.batches_in_flight_max,
        };
        let now = now(&**backend, *log, &**clock);
        Self {
            sequencer: Sequencer::new(setting, Arc::clone(stats), now),
            signals: backend.signals(Topic::Requests(*log)),
            connecting: None,
            writer: None,
            outcomes: FuturesOrdered::new(),
            reads: JoinSet::new(),
            are_callers_gone: false,
            preparing: Vec::new(),
            history: history.number,
            backend: Arc::clone(backend),
            log: *log,
            clock: Arc::clone(clock),
            observer: Arc::clone(observer),
        }
    }

    async fn run(mut self, callers: &mut Callers) {
        let mut intake = Vec::with_capacity(INTAKE_MAX);
        loop {
            self.sequencer.work(self.now());
            self.perform().await;
            self.tell_prepared();
            if self.sequencer.is_stopped() {
                return;
            }
            let event = self.next_event(callers, &mut intake).await;
            let now = self.now();
            self.see_history(now);
            match event {
                Event::Outcome(outcome) => self.sequencer.on(Input::Outcome(outcome), now),
                Event::Read(id, answer) => self.sequencer.on(Input::Read(id, answer), now),
                Event::Connected(connected) => self.on_connected(connected, now),
                Event::Signal(signal) => self.sequencer.on(Input::Signal(signal), now),
                Event::Commands(0) => {
                    self.are_callers_gone = true;
                    self.sequencer.on(Input::Close, now);
                }
                Event::Commands(_) => {
                    for command in intake.drain(..) {
                        self.sequencer.on(Input::Command(command), now);
                    }
                }
                Event::Question(question) => self.on_question(question, now),
                Event::Time => {}
            }
        }
    }

    fn now(&self) -> Now {
        now(&*self.backend, self.log, &*self.clock)
    }

    async fn next_event(
        &mut self,
        callers: &mut Callers,
        intake: &mut Vec<Command<Ticket>>,
    ) -> Event {
        let takes_commands = !self.are_callers_gone && self.sequencer.takes_commands(INTAKE_MAX);
        let wake = self.sequencer.wake_at();
        tokio::select! {
            biased;
            Some(outcome) = self.outcomes.next(), if !self.outcomes.is_empty() => Event::Outcome(outcome),
            Some(read) = self.reads.join_next() => match read {
                Ok((id, answer)) => Event::Read(id, answer),
                // Whoever waits for a read that was broken off would wait for ever: begin anew, as after a panic of it.
                Err(error) => std::panic::resume_unwind(
                    error.try_into_panic().unwrap_or_else(|cancelled| Box::new(cancelled.to_string())),
                ),
            },
            connected = or_never(self.connecting.as_mut()), if self.connecting.is_some() => Event::Connected(connected),
            Some(question) = callers.questions.recv() => Event::Question(question),
            Some(signal) = self.signals.next() => Event::Signal(signal),
            count = callers.commands.recv_many(intake, INTAKE_MAX), if takes_commands => Event::Commands(count),
            () = sleep_until(wake), if wake.is_some() => Event::Time,
            // After everything else that is there.
            () = tokio::task::yield_now(), if self.sequencer.wants_turn() => Event::Time,
        }
    }

    /// Tells the sequencer that history has changed, before it gets anything that may come from the new history.
    fn see_history(&mut self, now: Now) {
        let history = self.backend.history();
        if history.number != self.history {
            self.history = history.number;
            self.sequencer
                .on(Input::HistoryChanged(history.incarnation), now);
        }
    }

    fn on_connected(&mut self, connected: Result<Box<dyn LogWriter>>, now: Now) {
        self.connecting = None;
        let connected = connected.map(|writer| {
            let connected = Connected {
                epoch: writer.epoch(),
                is_gathered: writer.is_gathered(),
            };
            self.writer = Some(writer);
            connected
        });
        self.sequencer.on(Input::Connected(connected), now);
    }

    fn on_question(&mut self, question: Question, now: Now) {
        match question {
            Question::Ready(ask) => {
                let known = || self.backend.refuses_appends(self.log);
                let why = self.sequencer.why_not_ready(now).or_else(known);
                let _ = ask.send(why);
            }
            Question::Prepare(ask) => {
                self.preparing.retain(|waits| !waits.is_closed());
                self.preparing.push(ask);
                self.sequencer.on(Input::Prepare, now);
            }
        }
    }

    /// Tells those who wait for it that the sequencer has prepared.
    fn tell_prepared(&mut self) {
        if !self.preparing.is_empty() && !self.sequencer.is_preparing() {
            for waits in self.preparing.drain(..) {
                let _ = waits.send(());
            }
        }
    }

    async fn perform(&mut self) {
        for output in self.sequencer.take_outputs() {
            match output {
                Output::Connect => {
                    let (backend, log) = (Arc::clone(&self.backend), self.log);
                    self.connecting = Some(async move { backend.open_writer(log).await }.boxed());
                }
                Output::Disconnect => {
                    self.writer = None;
                    self.outcomes = FuturesOrdered::new();
                }
                Output::Send(batch) => {
                    for row in &batch.rows {
                        way_point!(row.stream, "sent");
                    }
                    self.outcomes.push_back(match &mut self.writer {
                        Some(writer) => writer.submit(batch),
                        None => lost().boxed(),
                    })
                }
                Output::Read(id, job) => {
                    let (backend, log) = (Arc::clone(&self.backend), self.log);
                    // All appends to the log may wait for it, whoever's it is; and callers ask for it by appends.
                    let read = async move { (id, jobs::run(job, &*backend, log).await) };
                    self.reads
                        .spawn(shares::act_as(Holder::Part("appends"), read));
                }
                Output::Committed(batch) => {
                    for row in &batch.rows {
                        way_point!(row.stream, "committed");
                    }
                    self.observer.committed(&batch);
                }
                Output::ReadLogEnd => self.observer.read_log_end(self.log),
                Output::Answer(Ticket { reply, permits }, result) => {
                    drop(permits);
                    reply.send(result);
                }
                Output::Signal(signal) => self.backend.send_signal(signal).await,
                Output::Stopped => {}
            }
        }
    }
}

fn now(backend: &dyn Backend, log: LogId, clock: &dyn Clock) -> Now {
    Now {
        moment: moment(),
        wall: clock.now(),
        database: backend.clock(log).map(|read| read.at(uptime())),
    }
}

async fn lost() -> BatchOutcome {
    BatchOutcome::Unknown(Error::unavailable("there is no connection"))
}

async fn or_never<F: Future + Unpin>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Returns the time now, by the clock of the runtime.
pub(crate) fn moment() -> Moment {
    Moment::of(Instant::now().into_std())
}

async fn sleep_until(at: Option<Moment>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.instant().into()).await,
        None => std::future::pending().await,
    }
}
