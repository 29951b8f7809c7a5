//! `gesta projection …`: looks at projections in the database of their rows, and steers whoever runs them.
//!
//! Not here: running projections, which programs do (`gesta_projection`).

use std::sync::Arc;
use std::time::Duration;

use gesta::projection::{
    Control, Error, Life, Order, PARKED_COUNTED_MAX, ParkedReport, ProjectionId, State, Stored,
    Target, TargetErrorKind, VersionReport,
};
use gesta::projection_postgres::{Options, PostgresTarget};
use gesta::projection_sqlite::SqliteTarget;
use gesta_core::{Checkpoint, EventStore};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::index::{behind, not_running};
use super::{connect, given_store, interrupts, until_stopped};
use crate::args::{Global, NamedVersion, Projection, ProjectionCommand, Version};
use crate::confirm;
use crate::exit::{Code, Failure, Outcome};
use crate::output::{Output, ProgressLine, count, counted, humane, say, visible};

/// Time between two looks while a version is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The database in which the rows of projections are.
pub(super) enum TargetDatabase {
    Sqlite(SqliteTarget),
    Postgres(PostgresTarget),
}

/// Whether a file has to be there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MustExist {
    Yes,
    No,
}

impl TargetDatabase {
    /// Returns the database that is named by the flag or in the environment.
    pub(super) fn named(
        target: Option<String>,
        schema: Option<String>,
        must_exist: MustExist,
    ) -> Outcome<Self> {
        let target = target.or_else(|| std::env::var("GESTA_PROJECTION_TARGET").ok());
        let target = target.ok_or_else(|| {
            Failure::usage(
                "say in which database the rows are: --target sqlite:PATH or postgres://…",
            )
        })?;
        if let Some(path) = target.strip_prefix("sqlite:") {
            // As the URL of a store.
            let path = path.strip_prefix("//").unwrap_or(path);
            if schema.is_some() {
                return Err(Failure::usage("--schema: an SQLite file has no schemas"));
            }
            if must_exist == MustExist::Yes {
                check_file(path)?;
            }
            return Ok(Self::Sqlite(SqliteTarget::at(path)));
        }
        if target.starts_with("postgres://") || target.starts_with("postgresql://") {
            let options = Options {
                schema,
                ..Options::default()
            };
            return Ok(Self::Postgres(PostgresTarget::with(&target, options)?));
        }
        // The text may hold a password.
        let text = "--target: must be sqlite:PATH or postgres://…";
        Err(Failure::usage(text))
    }
}

/// Refuses a path at which no file is, or one that cannot be looked at, which is not taken for absent.
fn check_file(path: &str) -> Outcome {
    let why = match std::fs::metadata(path) {
        Ok(found) if found.is_file() => return Ok(()),
        Ok(_) => format!("--target: {path} must be a SQLite file, and is none"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            format!(
                "--target: there is no file {path}; the process that keeps a projection or an index makes it"
            )
        }
        Err(error) => {
            let text = format!("--target: {path} cannot be looked at: {error}");
            return Err(Failure::other(text));
        }
    };
    Err(Failure::Message(Code::NotFound, why))
}

pub(super) async fn run(global: &Global, args: Projection, output: &mut Output) -> Outcome {
    let at = TargetDatabase::named(args.target, args.schema, MustExist::Yes)?;
    // Without it nothing is said about how far a projection is behind.
    let store = match given_store(global) {
        Some(_) => Some(connect(global, gesta::Missing::Refuse).await?),
        None => None,
    };
    let done = match at {
        TargetDatabase::Sqlite(target) => {
            let control = Control::of(target);
            steer(&control, store.as_ref(), args.command, output).await
        }
        TargetDatabase::Postgres(target) => {
            let control = Control::of(target);
            steer(&control, store.as_ref(), args.command, output).await
        }
    };
    if let Some(store) = store {
        store.shutdown().await?;
    }
    done
}

async fn steer<T: Target>(
    control: &Control<T>,
    store: Option<&Arc<dyn EventStore>>,
    command: ProjectionCommand,
    output: &mut Output,
) -> Outcome {
    match command {
        ProjectionCommand::List => {
            for version in control.reports(store.map(|store| &**store)).await? {
                output.record(&version, line)?;
            }
            Ok(())
        }
        ProjectionCommand::Info(version) => {
            let stored = find(control, &version).await?;
            let version = control.report(store.map(|store| &**store), &stored).await?;
            output.record(&version, pretty)
        }
        ProjectionCommand::Wait {
            version,
            checkpoint,
            timeout,
        } => {
            let store = store.ok_or_else(|| {
                Failure::usage("say which store it waits for: --store, or GESTA_STORE")
            })?;
            let stored = find(control, &version).await?;
            wait(control, store, &stored.id, checkpoint, timeout.0, output).await
        }
        ProjectionCommand::Pause(version) => {
            let id = find(control, &version).await?.id;
            control.pause(&id).await?;
            tell(&id, "is paused", output)
        }
        ProjectionCommand::Resume(version) => {
            let id = find(control, &version).await?.id;
            control.resume(&id).await?;
            tell(&id, "may go on", output)
        }
        ProjectionCommand::Reset {
            version,
            order,
            confirm,
        } => {
            let id = find(control, &version).await?.id;
            let what = format!("this deletes the rows of {id}, and builds them again");
            confirm::ask(&confirm, &what)?;
            ask_owner(control, &id, &Order::Reset, order.timeout.0, output).await
        }
        ProjectionCommand::Switch(version) => {
            let id = named(version);
            match store {
                Some(store) => control.switch_in(&**store, &id).await?,
                None => control.switch(&id).await?,
            }
            tell(&id, "is the version that readers see", output)
        }
        ProjectionCommand::Retire { version, confirm } => {
            let id = named(version);
            confirm::ask(&confirm, &format!("this deletes the rows of {id}"))?;
            control.retire(&id).await?;
            tell(&id, "is retired", output)
        }
        ProjectionCommand::Parked {
            version,
            key,
            limit,
        } => {
            let id = find(control, &version).await?.id;
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            for parked in control.parked(&id, key.as_deref(), limit).await? {
                output.record(&ParkedReport::from(parked), parked_line)?;
            }
            Ok(())
        }
        ProjectionCommand::Replay {
            version,
            key,
            order,
        } => {
            let id = find(control, &version).await?.id;
            let replay = Order::Replay { key };
            ask_owner(control, &id, &replay, order.timeout.0, output).await
        }
        ProjectionCommand::Drop {
            version,
            key,
            order,
            confirm,
        } => {
            let id = find(control, &version).await?.id;
            let what = format!("parked events of {id} are never applied then");
            confirm::ask(&confirm, &what)?;
            let drop = Order::Drop { key };
            ask_owner(control, &id, &drop, order.timeout.0, output).await
        }
    }
}

/// Finds the version that is named, or the active one.
async fn find<T: Target>(control: &Control<T>, wanted: &Version) -> Outcome<Stored> {
    let Some(version) = wanted.version else {
        return Ok(control.active(&wanted.name).await?);
    };
    let id = ProjectionId {
        name: wanted.name.clone(),
        version,
    };
    let mut all = control.list().await?.into_iter();
    let found = all.find(|stored| stored.id == id);
    found.ok_or_else(|| Error::NotFound(id.to_string()).into())
}

fn named(version: NamedVersion) -> ProjectionId {
    ProjectionId {
        name: version.name,
        version: version.version,
    }
}

/// What it does, in words.
fn doing(version: &VersionReport) -> &str {
    match version.is_deserted() {
        true => "no process runs it",
        false => version.state,
    }
}

fn parked(count: usize) -> String {
    match count {
        PARKED_COUNTED_MAX => format!("{PARKED_COUNTED_MAX} or more"),
        count => count.to_string(),
    }
}

/// One line of a list.
pub(super) fn line(version: &VersionReport) -> String {
    let (name, number, life) = (&version.name, version.version, version.life);
    let (doing, events) = (
        doing(version),
        count(version.events.unsigned_abs(), "event"),
    );
    let mut text = format!("{name} v{number}  {life}  {doing}  {events}");
    if let Some(lag) = version.lag_seconds {
        text.push_str(&format!("  lag {lag:.1} s"));
    }
    if version.lag_unknown.is_some() {
        text.push_str("  lag unknown");
    }
    if version.parked > 0 {
        text.push_str(&format!("  parked {}", parked(version.parked)));
    }
    if let Some(error) = &version.error {
        text.push_str(&format!("  {}", visible(error)));
    }
    text
}

/// All of a version, a line for each thing.
fn pretty(version: &VersionReport) -> String {
    let mut text = format!("{} v{}  {}\n", version.name, version.version, version.life);
    let mut line = |what: &str, value: &str| {
        text.push_str(&format!("{what:<12} {}\n", visible(value)));
    };
    line("state", doing(version));
    if let Some(owner) = version.owner {
        line("process", &owner.to_string());
    }
    if let (Some(lag), Some(positions)) = (version.lag_seconds, version.lag_positions) {
        let events = count(positions, "event");
        line("lag", &format!("{lag:.1} s, at most {events}"));
    }
    if let Some(why) = &version.lag_unknown {
        line("lag", &format!("unknown: {why}"));
    }
    line("events", &version.events.to_string());
    if let Some(at) = &version.applied_at {
        line("applied", at);
    }
    line("parked", &parked(version.parked));
    line("resets", &version.resets.to_string());
    line("checkpoint", &version.checkpoint);
    line("begins at", &version.floor);
    if let Some(error) = &version.error {
        line("error", error);
    }
    text
}

fn parked_line(parked: &ParkedReport) -> String {
    let key = parked.key.as_deref();
    let key = key.map_or("skipped".to_owned(), visible);
    let why = match parked.error.is_empty() {
        true => "behind the one before".to_owned(),
        false => {
            let attempts = count(parked.attempts.into(), "attempt");
            format!("{attempts}: {}", visible(&parked.error))
        }
    };
    let log = match parked.log {
        0 => String::new(),
        log => format!(" of log {log}"),
    };
    format!(
        "{key}  position {}{log}  {}  {why}",
        parked.position, parked.at
    )
}

/// What was done to a version.
#[derive(Serialize)]
struct Done<'a> {
    name: &'a str,
    version: u32,
    done: &'a str,
}

fn tell(id: &ProjectionId, what: &str, output: &mut Output) -> Outcome {
    let done = Done {
        name: &id.name,
        version: id.version,
        done: what,
    };
    output.record(&done, |_| format!("{id} {what}"))
}

/// Asks the process that runs a version to do something, and tells its answer.
async fn ask_owner<T: Target>(
    control: &Control<T>,
    id: &ProjectionId,
    order: &Order,
    timeout: Duration,
    output: &mut Output,
) -> Outcome {
    let stored = control.version(id).await?;
    match stored.state {
        // A reset lets it go on.
        State::Stopped if *order == Order::Reset => {}
        State::Paused | State::Stopped => say!("{}", not_running(&stored)),
        State::Running if stored.owned => {}
        State::Running => say!("{}; what is ordered waits until then", deserted(&stored)),
    }
    let line = ProgressLine::begin(
        output,
        format!("waiting until the process that runs {id} has done it"),
    );
    let asking = async { Ok(control.order(id, order, timeout).await?) };
    let stopped =
        || "stopped: it stays ordered, and is done by the process that runs the version".into();
    let answer = until_stopped(&mut interrupts()?, asking, stopped).await;
    drop(line);
    let answer = answer?;
    let done = Done {
        name: &id.name,
        version: id.version,
        done: &answer,
    };
    output.record(&done, |_| format!("{id}: {}", visible(&answer)))
}

/// Says that no process runs a version, and how it gets one.
fn deserted(version: &Stored) -> String {
    let id = &version.id;
    let start = match version.definition {
        Some(_) => format!(
            "`gesta index run {} --version {}`, with its paths",
            id.name, id.version
        ),
        None => "the program that keeps it".to_owned(),
    };
    format!("no process runs {id}: start {start}")
}

/// Waits until a version shows everything up to a place.
async fn wait<T: Target>(
    control: &Control<T>,
    store: &Arc<dyn EventStore>,
    id: &ProjectionId,
    checkpoint: Option<Checkpoint>,
    timeout: Duration,
    output: &mut Output,
) -> Outcome {
    let what = match &checkpoint {
        Some(checkpoint) => format!("everything up to {checkpoint}"),
        None => "everything that is stored now".to_owned(),
    };
    let wanted = match checkpoint {
        Some(checkpoint) => checkpoint,
        None => {
            let info = store.info().await?;
            Checkpoint::logs(info.incarnation, info.heads)
        }
    };
    let line = ProgressLine::begin(output, format!("waiting until {id} shows {what}"));
    let waiting = until_covered(control, store, id, &wanted, (timeout, what.as_str()), &line);
    let stopped = || format!("stopped: {id} does not show {what} yet");
    let waited = until_stopped(&mut interrupts()?, waiting, stopped).await;
    drop(line);
    let done = waited?;
    let record = json!({
        "name": id.name, "version": id.version, "done": "shows everything",
        "checkpoint": wanted.to_string(), "positions": done.positions, "seconds": done.time.as_secs_f64(),
    });
    output.record(&record, |_| match done.positions {
        0 => format!("{id} shows {what}: it was there already"),
        positions => format!(
            "{id} shows {what}: {} missing {:.1} s ago",
            counted(positions, "position was", "positions were"),
            done.time.as_secs_f64()
        ),
    })
}

/// What was waited for.
struct Waited {
    /// How many positions were missing at first.
    positions: u64,
    time: Duration,
}

async fn until_covered<T: Target>(
    control: &Control<T>,
    store: &Arc<dyn EventStore>,
    id: &ProjectionId,
    wanted: &Checkpoint,
    (timeout, what): (Duration, &str),
    line: &ProgressLine,
) -> Outcome<Waited> {
    let begun = Instant::now();
    let mut most = 0;
    let mut is_told = false;
    loop {
        let stored = control.version(id).await?;
        let missing = control.missing(&**store, &stored, wanted).await?;
        most = missing.max(most);
        if missing == 0 {
            return Ok(Waited {
                positions: most,
                time: begun.elapsed(),
            });
        }
        let is_deserted = stored.state == State::Running && !stored.owned;
        if is_deserted && stored.life != Life::Retired && !is_told {
            // A line that is written over is cut to one, and without a terminal there is none.
            say!("{}; this waits until then", deserted(&stored));
            is_told = true;
        }
        line.tell(|_| {
            let behind = behind(&stored, missing, most);
            match is_deserted {
                true => format!("{id}: {behind}; waiting until it shows {what}"),
                false => format!("waiting until {id} shows {what}: {behind}"),
            }
        });
        let why = match stored.state {
            _ if stored.life == Life::Retired => {
                return Err(Failure::usage(format!(
                    "{id} was retired: its rows are gone, and nothing is applied to it"
                )));
            }
            State::Running if begun.elapsed() < timeout => {
                sleep(LOOK_EVERY).await;
                continue;
            }
            State::Running => {
                let cure = match stored.owned {
                    true => "give it more by --timeout".to_owned(),
                    false => deserted(&stored),
                };
                format!(
                    "{id} does not show {what} after {}: {}; {cure}",
                    humane(timeout),
                    behind(&stored, missing, most)
                )
            }
            _ => not_running(&stored),
        };
        return Err(Failure::Message(Code::Unavailable, why));
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Store(error) => return Failure::Store(error.clone()),
            Error::NotFound(_) => Code::NotFound,
            Error::Invalid(_) => Code::Usage,
            Error::NotRunning { .. } | Error::Waits { .. } | Error::TimedOut { .. } => {
                Code::Unavailable
            }
            Error::Target(error) if error.kind() == TargetErrorKind::Away => Code::Unavailable,
            _ => Code::Other,
        };
        Failure::Message(code, error.to_string())
    }
}
