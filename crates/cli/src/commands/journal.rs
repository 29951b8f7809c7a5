//! `gesta import`: imports the journal of another event store, once or as it grows.

use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use gesta_import::{
    Deleted, Import, Kind, Options, Patience, PlainLogin, Report, Step, TypeRule, Unmappable,
};
use serde::Serialize;

use super::progress::Progress;
use super::{given_store, interrupts, is_server, until_stopped, with_new_store};
use crate::args::{Global, ImportJournal};
use crate::exit::{Failure, Outcome};
use crate::output::{Output, ProgressLine, count, counted, rate, say};

/// How often a follower says that it gets no answer.
const SILENCE_SAID_EVERY: Duration = Duration::from_secs(30);

/// What is told at the end.
#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    report: Report,
    #[serde(skip)]
    kind: Kind,
    dry_run: bool,
    seconds: f64,
    events_per_second: f64,
}

pub(super) async fn run(global: &Global, args: ImportJournal, output: &mut Output) -> Outcome {
    let options = options(global, &args)?;
    let begun = Instant::now();
    let is_typed = args.kind == Kind::Lines && args.source == "-" && std::io::stdin().is_terminal();
    // Who types the lines sees how far they are.
    let line = match is_typed {
        true => ProgressLine::none(),
        false => ProgressLine::begin(output, "opening the source"),
    };
    if is_typed {
        say!("reading lines from the terminal, one JSON object per line; Ctrl-D ends them");
    }
    let show = |report: &Report| {
        line.tell(|time| rate("events read", report.read, report.in_source, time));
    };
    if args.dry_run {
        let reading = async { Ok(Import::dry_run(&options, show).await?) };
        let stopped = || "stopped: nothing was stored".into();
        let report = until_stopped(&mut interrupts()?, reading, stopped).await;
        drop(line);
        let report = report?;
        let refusal = refusal(&report).filter(|_| !args.skip_unmappable);
        tell((args.kind, report), true, begun, output)?;
        return match refusal {
            None => Ok(()),
            Some(refusal) => {
                output.flush()?;
                Err(refusal)
            }
        };
    }
    // A source that is away for a while is waited for by who follows it; nothing else leaves a new store behind.
    if let Err(error) = Import::check(&options).await
        && !(args.follow && error.is_retryable())
    {
        return Err(error.into());
    }
    let progress = Progress::default();
    if args.follow {
        // It says by itself when it has caught up, and has no end.
        drop(line);
        // Ctrl-C is the ordinary end.
        return with_new_store(global, &progress, async |store| {
            let told = RefCell::new(Followed::new());
            let observe = |import: &Import, step: &Step| told.borrow_mut().observe(import, step);
            let lost = |error: &gesta_core::Error| told.borrow_mut().lost(error);
            let following = Import::follow(&options, &store, observe, lost);
            Ok(said_to_be_silent(following, || told.borrow().silent()).await?)
        })
        .await;
    }
    progress.set("nothing was imported yet; repeat the import to begin again".into());
    let mut imported = None;
    let done = with_new_store(global, &progress, async |store| {
        let mut import = Import::open(options, store).await?;
        let done = import.run(|import| {
            let report = import.report();
            show(&report);
            progress.set(format!(
                "{} sent, up to place {} of the source; repeat the import, which goes on from its last checkpoint",
                counted(report.stored, "event was", "events were"),
                report.place
            ));
        });
        done.await?;
        imported = Some(import.report());
        Ok(())
    })
    .await;
    drop(line);
    done?;
    match imported {
        Some(report) => tell((args.kind, report), false, begun, output),
        None => Ok(()),
    }
}

fn options(global: &Global, args: &ImportJournal) -> Outcome<Options> {
    let mut options = Options::new(args.kind, &args.source)?;
    if global.plain_http {
        options.plain_login = PlainLogin::Anywhere;
    }
    if let Some(names) = &args.names {
        options.names = names.clone();
    }
    if let Some(name) = &args.name {
        options.name.clone_from(name);
    }
    options.types = match args.types.as_str() {
        "as-is" => TypeRule::AsIs,
        "short" => TypeRule::Short,
        path => {
            let read = std::fs::read(path);
            TypeRule::table(&read.map_err(|error| {
                Failure::usage(format!(
                    "--types must be as-is, short, or a file: {path}: {error}"
                ))
            })?)?
        }
    };
    if args.keep_deleted {
        options.deleted = Deleted::Keep;
    }
    if args.skip_unmappable {
        options.unmappable = Unmappable::LeaveOut;
    }
    if args.allow_gaps && args.kind != Kind::Lines {
        let text =
            "--allow-gaps is for --kind lines: other journals tell which events they have deleted";
        return Err(Failure::usage(text));
    }
    options.allow_gaps = args.allow_gaps;
    options.transform.clone_from(&args.transform);
    options.schema.clone_from(&args.schema);
    options.table.clone_from(&args.table);
    options.follow = args.follow;
    options.patience = Patience {
        settle: args.wait.0,
        ..options.patience
    };
    // Requests to a server may overtake each other on their way.
    if given_store(global).is_none_or(|url| is_server(&url)) {
        options.in_flight = 1;
    }
    if args.follow && args.kind == Kind::Lines && args.source == "-" {
        // Standard input has an end, after which nothing can come.
        return Err(Failure::usage(
            "--follow needs a file: standard input is read to its end anyway",
        ));
    }
    Ok(options)
}

/// Returns how an import would end that a dry run was made for, if it would end with an error: at the first event that
/// cannot be one of the store.
fn refusal(report: &Report) -> Option<Failure> {
    if report.unmappable == 0 {
        return None;
    }
    let events = count(report.unmappable, "event");
    let first = report.unmappable_samples.first().map(|first| {
        format!(
            ", the first of them {:?} number {} (place {}): {}",
            first.key, first.sequence, first.place, first.why
        )
    });
    Some(Failure::other(format!(
        "{events} cannot be imported{}; an import stops there, and --skip-unmappable leaves such events out",
        first.unwrap_or_default()
    )))
}

fn per_second(events: u64, seconds: f64) -> f64 {
    events as f64 / seconds.max(0.001)
}

fn tell(
    (kind, report): (Kind, Report),
    dry_run: bool,
    begun: Instant,
    output: &mut Output,
) -> Outcome {
    let seconds = begun.elapsed().as_secs_f64();
    let told = Summary {
        events_per_second: per_second(report.read, seconds),
        report,
        kind,
        dry_run,
        seconds,
    };
    output.record(&told, pretty)
}

fn pretty(told: &Summary) -> String {
    let report = &told.report;
    let mut lines = vec![match told.dry_run {
        true => format!(
            "would import {}; streams: {}",
            count(report.stored, "event"),
            report.streams
        ),
        false => format!(
            "imported {}; {} there already; streams: {}",
            count(report.stored, "event"),
            counted(report.already_stored, "was", "were"),
            report.streams
        ),
    }];
    for (why, number) in &report.left_out {
        if *number > 0 {
            lines.push(format!("{number} left out: {why}"));
        }
    }
    if report.unmappable > 0 {
        let cannot = counted(report.unmappable, "cannot be an event", "cannot be events");
        lines.push(format!("{cannot} of this store:"));
    }
    for sample in &report.unmappable_samples {
        lines.push(format!(
            "  {:?} number {} (place {}): {}",
            sample.key, sample.sequence, sample.place, sample.why
        ));
    }
    // The text begins with what is said of one thing or of several.
    let mut line = |number: u64, (one, several): (&str, &str), text: &str| {
        if number > 0 {
            lines.push(format!("{}{text}", counted(number, one, several)));
        }
    };
    // Lines may lie in several files, so nobody knows why a number is missing.
    let missing = match told.kind {
        Kind::Lines => ": what comes later of these numbers is refused",
        _ => ": the source has deleted these events",
    };
    let numbers = (
        "number is missing within streams",
        "numbers are missing within streams",
    );
    line(report.missing_numbers, numbers, missing);
    let without_beginning = report.streams_without_beginning;
    match told.kind {
        Kind::Lines => {
            let streams = ("stream does not begin", "streams do not begin");
            line(without_beginning, streams, " at number 0 or 1");
        }
        _ => {
            let streams = ("stream has no beginning", "streams have no beginning");
            let text = " any more; perhaps there are snapshots of them";
            line(without_beginning, streams, text);
        }
    }
    let snapshots = ("snapshot stays", "snapshots stay");
    line(report.snapshots.unwrap_or(0), snapshots, " in the source");
    let late = (
        "event was committed late, and comes",
        "events were committed late, and come",
    );
    line(report.late, late, " after later ones of other streams");
    let displaced = (
        "append had to be sent again, and comes",
        "appends had to be sent again, and come",
    );
    let after = " after later ones of other streams";
    line(report.displaced, displaced, after);
    line(report.tags, ("tag", "tags"), "");
    line(report.bytes, ("byte", "bytes"), " of data");
    if let (Some(first), Some(last)) = (&report.first_time, &report.last_time) {
        lines.push(format!("written from {first} to {last}"));
    }
    lines.push(format!(
        "read {} in {:.1} s, {:.0} a second, up to place {}",
        count(report.read, "event"),
        told.seconds,
        told.events_per_second,
        report.place
    ));
    if told.dry_run {
        lines.push("an import takes this time and that of appending".into());
    }
    lines.join("\n")
}

/// Waits for the end, and lets it be looked again and again whether nothing answers: a database or a command that is
/// frozen breaks no connection.
async fn said_to_be_silent<T>(following: impl Future<Output = T>, mut look: impl FnMut()) -> T {
    tokio::pin!(following);
    loop {
        match tokio::time::timeout(SILENCE_SAID_EVERY, &mut following).await {
            Ok(done) => return done,
            Err(_) => look(),
        }
    }
}

/// What a follower has told.
struct Followed {
    /// Events that earlier openings of the source have stored.
    stored_before: u64,
    stored: u64,
    told: Option<u64>,
    waiting: Option<String>,
    is_lost: bool,
    /// When the last step was done, or the first opening began.
    stepped: Instant,
}

impl Followed {
    fn new() -> Self {
        Self {
            stored_before: 0,
            stored: 0,
            told: None,
            waiting: None,
            is_lost: false,
            stepped: Instant::now(),
        }
    }

    fn observe(&mut self, import: &Import, step: &Step) {
        if std::mem::take(&mut self.is_lost) {
            say!("goes on");
        }
        self.stepped = Instant::now();
        let report = import.report();
        self.stored = report.stored;
        let all = self.stored_before + self.stored;
        match step {
            Step::Went => {}
            Step::Waiting(told) => {
                if self.waiting.as_ref() != Some(told) {
                    say!("waits for {told}");
                    self.waiting = Some(told.clone());
                }
            }
            Step::End => {
                self.waiting = None;
                if self.told != Some(all) {
                    say!(
                        "caught up: {} imported, up to place {} of the source",
                        count(all, "event"),
                        report.place
                    );
                    self.told = Some(all);
                }
            }
        }
    }

    /// Says that nothing has answered for a while, if that is so.
    fn silent(&self) {
        let silent = self.stepped.elapsed();
        if silent >= SILENCE_SAID_EVERY {
            say!(
                "neither the source nor the target has answered for {} s: it is a large step, or one of them hangs, or waits for \
                 a lock or a standby",
                silent.as_secs()
            );
        }
    }

    fn lost(&mut self, error: &gesta_core::Error) {
        self.stepped = Instant::now();
        self.stored_before += std::mem::take(&mut self.stored);
        if !std::mem::replace(&mut self.is_lost, true) {
            say!("{error}; trying again until it goes on");
        }
    }
}
