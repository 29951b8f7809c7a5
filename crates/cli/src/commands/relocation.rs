//! `gesta move`: moves a store that is in use to another database.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gesta_copy::{
    Blocker, Consumers, Move, MoveReport, MoveSettings, MoveStep, Progress, Target, Undone,
};
use serde::Serialize;

use super::copy::{copied, refuse_servers};
use super::interrupts;
use crate::args::MoveStore;
use crate::exit::{Failure, Outcome};
use crate::output::{Output, ProgressLine, count, say};

/// How long is waited before a database that did not answer is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often it is said who is waited for where no line shows it, and when it is said first that a step takes long.
const WAITING_SAID_EVERY: Duration = Duration::from_secs(5);
/// The longest time until that is said again of the same step.
const SLOW_SAID_EVERY: Duration = Duration::from_secs(60);

/// What is told at the end.
#[derive(Serialize)]
struct TimedReport {
    #[serde(flatten)]
    report: MoveReport,
    seconds: f64,
    /// For how long nothing could be appended; `None` if the source was closed by an earlier command.
    closed_seconds: Option<f64>,
    /// The store had moved before, and this command had nothing to do.
    had_moved: bool,
}

/// What is told of an undo.
#[derive(Serialize)]
struct UndoReport {
    undone: Undone,
}

pub(super) async fn run(args: &MoveStore, output: &mut Output) -> Outcome {
    refuse_servers("move", &args.source, &args.target)?;
    if args.undo {
        return undo(args, output).await;
    }
    let mut interrupts = interrupts()?;
    let line = ProgressLine::begin(output, "opening both stores");
    let told = tokio::select! {
        told = move_on(args, &line) => told,
        _ = interrupts.recv() => {
            let text = "stopped: repeat the move, which goes on where it was, or take it back by --undo; if the source was \
                        closed already, it takes no events until then";
            Err(Failure::interrupted(text))
        }
    };
    drop(line);
    output.record(&told?, pretty)
}

async fn undo(args: &MoveStore, output: &mut Output) -> Outcome {
    let known = match args.target_is_gone {
        true => Target::Gone,
        false => Target::There,
    };
    let line = ProgressLine::begin(output, "opening the source");
    let mut waiting = Waiting::new();
    let silence = Silence::default();
    let observe = |blockers: &[Blocker]| {
        silence.end();
        waiting.tell(&line, blockers);
    };
    let undone = gesta_copy::undo(&args.source, &args.target, known, observe);
    let undone = said_to_be_slow(undone, &silence).await;
    drop(line);
    let undone = undone?;
    output.record(&UndoReport { undone }, |told| match told.undone {
        Undone::Nothing => "the source was not moving, and is open".into(),
        Undone::Undone => {
            "the move is undone: the source is open, and what was copied to the target is never opened; another move \
             needs an empty target"
                .into()
        }
    })
}

/// Moves the store. A database that does not answer for a while is asked again, since nothing can be appended while the
/// source is closed.
async fn move_on(args: &MoveStore, line: &ProgressLine) -> Outcome<TimedReport> {
    let settings = MoveSettings {
        consumers: match args.new_incarnation {
            true => Consumers::BeginAgain,
            false => Consumers::GoOn,
        },
        ..MoveSettings::default()
    };
    let begun = Instant::now();
    let mut telling = Telling::new(line);
    let open = async || {
        let opened = Move::open(&args.source, &args.target, settings);
        said_to_be_slow(opened, &Silence::default()).await
    };
    let mut moving = open().await?;
    loop {
        let failed = match steps(&mut moving, &mut telling).await {
            Ok(report) => {
                return Ok(TimedReport {
                    report,
                    seconds: begun.elapsed().as_secs_f64(),
                    closed_seconds: telling.was_closed,
                    had_moved: !telling.has_done,
                });
            }
            Err(error) => error,
        };
        moving.close().await;
        if !failed.is_retryable() {
            return Err(failed.into());
        }
        say!("{failed}; tries again");
        moving = loop {
            tokio::time::sleep(AGAIN_AFTER).await;
            match open().await {
                Ok(moving) => break moving,
                Err(error) if error.is_retryable() => say!("{error}; tries again"),
                Err(error) => return Err(error.into()),
            }
        };
    }
}

async fn steps(moving: &mut Move, telling: &mut Telling<'_>) -> gesta_core::Result<MoveReport> {
    loop {
        // This is no step: it has been said who is waited for.
        moving.pause().await;
        match said_to_be_slow(moving.step(), &Silence::default()).await? {
            MoveStep::Moved(report) => return Ok(report),
            step => telling.tell(&step),
        }
    }
}

/// For how long a step has told nothing.
struct Silence(AtomicU64, Instant);

impl Default for Silence {
    fn default() -> Self {
        Self(AtomicU64::new(0), Instant::now())
    }
}

impl Silence {
    /// Notes that the step tells something now.
    fn end(&self) {
        let millis = u64::try_from(self.1.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.store(millis, Ordering::Relaxed);
    }

    /// Returns for how long the step has told nothing.
    fn so_far(&self) -> Duration {
        let told = Duration::from_millis(self.0.load(Ordering::Relaxed));
        self.1.elapsed().saturating_sub(told)
    }
}

/// Waits for a step, and says again and again, ever more rarely, that it takes long: nothing else tells of a commit
/// that waits for a standby which is away.
async fn said_to_be_slow<T>(step: impl Future<Output = T>, silence: &Silence) -> T {
    tokio::pin!(step);
    let mut due = WAITING_SAID_EVERY;
    loop {
        let left = due.saturating_sub(silence.so_far());
        if let Ok(done) = tokio::time::timeout(left, &mut step).await {
            return done;
        }
        let silent = silence.so_far();
        if silent < due {
            due = WAITING_SAID_EVERY;
            continue;
        }
        say!(
            "has been at the same step for {} s: it is a large one, or waits for a lock, or its commit for a synchronous \
             standby that does not answer; pg_stat_activity of both databases shows which",
            silent.as_secs()
        );
        due = said_again(silent);
    }
}

/// Returns when it is said again of a step that has lasted so long.
fn said_again(silent: Duration) -> Duration {
    silent + silent.min(SLOW_SAID_EVERY)
}

/// Says how far a move is.
struct Telling<'a> {
    line: &'a ProgressLine,
    waiting: Waiting,
    /// Where the copying began, and when.
    first: Option<(Progress, Instant)>,
    closed: Option<Instant>,
    was_closed: Option<f64>,
    /// Whether any step was done.
    has_done: bool,
}

impl<'a> Telling<'a> {
    fn new(line: &'a ProgressLine) -> Self {
        Self {
            line,
            waiting: Waiting::new(),
            first: None,
            closed: None,
            was_closed: None,
            has_done: false,
        }
    }

    fn tell(&mut self, step: &MoveStep) {
        self.has_done = true;
        match step {
            MoveStep::Begun => {
                say!("the target is marked; the source is copied while it is used")
            }
            MoveStep::Copied(now) => {
                let (first, begun) = *self.first.get_or_insert((*now, Instant::now()));
                self.line.tell(|_| copied(*now, first, begun.elapsed()));
            }
            MoveStep::Compared(events) if *events > 0 => {
                let events = *events;
                self.line.tell(|_| {
                    let read = count(events, "event");
                    let they = if events == 1 {
                        "it is that"
                    } else {
                        "they are those"
                    };
                    format!("read {read} back: {they} of the source")
                });
            }
            MoveStep::Waits(blockers) => self.waiting.tell(self.line, blockers),
            MoveStep::Closed => {
                self.closed = Some(Instant::now());
                say!("the source is closed: nothing can be appended to it any more");
            }
            MoveStep::Shut => say!("the source is shut: nothing can be read from it any more"),
            MoveStep::Opened => {
                self.was_closed = self.closed.map(|closed| closed.elapsed().as_secs_f64());
                say!("the target is open");
            }
            MoveStep::Compared(_)
            | MoveStep::Prepared
            | MoveStep::Announced
            | MoveStep::Noted
            | MoveStep::Moved(_) => {}
        }
    }
}

/// Says what keeps a command waiting: also where no line is shown, for somebody may have to end it.
struct Waiting(Instant);

impl Waiting {
    fn new() -> Self {
        Self(Instant::now())
    }

    fn tell(&mut self, line: &ProgressLine, blockers: &[Blocker]) {
        line.tell(|_| waits_for(blockers));
        if !line.is_shown() && self.0.elapsed() >= WAITING_SAID_EVERY {
            self.0 = Instant::now();
            say!("{}", waits_for(blockers));
        }
    }
}

/// Says what keeps the source from being closed, shut or opened again.
fn waits_for(blockers: &[Blocker]) -> String {
    let mut text = String::from("waits for what others do in the source");
    for (n, blocker) in blockers.iter().enumerate() {
        text.push_str(if n == 0 { ": " } else { "; " });
        text.push_str(&blocker.to_string());
    }
    text
}

fn pretty(told: &TimedReport) -> String {
    let report = &told.report;
    let (events, streams) = (
        count(report.events, "event"),
        count(report.streams, "stream"),
    );
    let mut lines = vec![match told.had_moved {
        true => format!(
            "the store had moved to {} before, with {events} of {streams} (digest {}): there was nothing to do",
            report.place, report.digest
        ),
        false => format!(
            "the store is now in {}: {events} of {streams}, moved in {:.1} s (digest {})",
            report.place, told.seconds, report.digest
        ),
    }];
    if let Some(closed) = told.closed_seconds {
        lines.push(format!("nothing could be appended for {closed:.2} s"));
    }
    if report.checkpoints_kept {
        lines.push(
            "positions are as they were, and checkpoints of consumers stay valid: start servers with the new URL".into(),
        );
    }
    lines.extend(report.changes.iter().cloned());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a step of hours is not told of every few seconds, and one that tells who holds it up not at all.
    #[test]
    fn a_slow_step_is_told_of_ever_more_rarely() {
        let mut due = WAITING_SAID_EVERY;
        let mut seconds = Vec::new();
        for _ in 0..6 {
            seconds.push(due.as_secs());
            due = said_again(due);
        }
        assert_eq!(seconds, [5, 10, 20, 40, 80, 140]);
        let silence = Silence(AtomicU64::new(0), Instant::now() - Duration::from_secs(9));
        assert!(silence.so_far() >= Duration::from_secs(9));
        silence.end();
        assert!(silence.so_far() < Duration::from_secs(5));
    }
}
