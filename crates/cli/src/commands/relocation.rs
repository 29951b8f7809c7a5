//! `gesta move`: moves a store that is in use to another database.

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
/// How often it is said what is waited for: always for a step that takes long, else where no line shows it.
const WAITING_SAID_EVERY: Duration = Duration::from_secs(5);

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
    let observe = |blockers: &[Blocker]| waiting.tell(&line, blockers);
    let undone = gesta_copy::undo(&args.source, &args.target, known, observe);
    let undone = said_to_be_slow(undone).await;
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
    let mut moving = said_to_be_slow(Move::open(&args.source, &args.target, settings)).await?;
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
            match said_to_be_slow(Move::open(&args.source, &args.target, settings)).await {
                Ok(moving) => break moving,
                Err(error) if error.is_retryable() => say!("{error}; tries again"),
                Err(error) => return Err(error.into()),
            }
        };
    }
}

async fn steps(moving: &mut Move, telling: &mut Telling<'_>) -> gesta_core::Result<MoveReport> {
    loop {
        match said_to_be_slow(moving.step()).await? {
            MoveStep::Moved(report) => return Ok(report),
            step => telling.tell(&step),
        }
    }
}

/// Waits for a step, and says again and again that it takes long: nothing else tells of a commit that waits for a
/// standby which is away.
async fn said_to_be_slow<T>(step: impl Future<Output = T>) -> T {
    tokio::pin!(step);
    let begun = Instant::now();
    loop {
        match tokio::time::timeout(WAITING_SAID_EVERY, &mut step).await {
            Ok(done) => return done,
            Err(_) => say!(
                "has been at the same step for {} s: it is a large one, or waits for a lock, or its commit for a \
                 synchronous standby that does not answer; pg_stat_activity of both databases shows which",
                begun.elapsed().as_secs()
            ),
        }
    }
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
                self.line
                    .tell(|_| format!("read {events} events back: they are those of the source"));
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
