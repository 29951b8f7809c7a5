//! `gesta projection …`: looks at projections in the database of their rows, and steers whoever runs them.
//!
//! Not here: running projections, which programs do (`gesta_projection`).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gesta::projection::{
    Control, Error, Order, PARKED_COUNTED_MAX, ParkedReport, ProjectionId, State, Stored, Target,
    TargetErrorKind, VersionReport,
};
use gesta::projection_postgres::{Options, PostgresTarget};
use gesta::projection_sqlite::SqliteTarget;
use gesta_core::{Checkpoint, EventStore};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{connect, given_store};
use crate::args::{Global, NamedVersion, Projection, ProjectionCommand, Version};
use crate::confirm;
use crate::exit::{Code, Failure, Outcome};
use crate::output::{Output, visible};

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
            if schema.is_some() {
                return Err(Failure::usage("--schema: an SQLite file has no schemas"));
            }
            if must_exist == MustExist::Yes && !Path::new(path).is_file() {
                let text = format!("--target: there is no file {path}");
                return Err(Failure::Message(Code::NotFound, text));
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
            let answer = control.order(&id, &Order::Reset, order.timeout.0).await?;
            answered(&id, &answer, output)
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
            let answer = control.order(&id, &replay, order.timeout.0).await?;
            answered(&id, &answer, output)
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
            let answer = control.order(&id, &drop, order.timeout.0).await?;
            answered(&id, &answer, output)
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

fn count(parked: usize) -> String {
    match parked {
        PARKED_COUNTED_MAX => format!("{PARKED_COUNTED_MAX} or more"),
        parked => parked.to_string(),
    }
}

/// One line of a list.
fn line(version: &VersionReport) -> String {
    let (name, number, life) = (&version.name, version.version, version.life);
    let (doing, events) = (doing(version), version.events);
    let mut text = format!("{name} v{number}  {life}  {doing}  {events} events");
    if let Some(lag) = version.lag_seconds {
        text.push_str(&format!("  lag {lag:.1} s"));
    }
    if version.lag_unknown.is_some() {
        text.push_str("  lag unknown");
    }
    if version.parked > 0 {
        text.push_str(&format!("  parked {}", count(version.parked)));
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
        line("lag", &format!("{lag:.1} s, at most {positions} events"));
    }
    if let Some(why) = &version.lag_unknown {
        line("lag", &format!("unknown: {why}"));
    }
    line("events", &version.events.to_string());
    if let Some(at) = &version.applied_at {
        line("applied", at);
    }
    line("parked", &count(version.parked));
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
        false => format!("{} attempts: {}", parked.attempts, visible(&parked.error)),
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

/// Tells the answer of the process that runs a version.
fn answered(id: &ProjectionId, answer: &str, output: &mut Output) -> Outcome {
    let done = Done {
        name: &id.name,
        version: id.version,
        done: answer,
    };
    output.record(&done, |_| format!("{id}: {}", visible(answer)))
}

/// Waits until a version shows everything up to a place, with a bar.
async fn wait<T: Target>(
    control: &Control<T>,
    store: &Arc<dyn EventStore>,
    id: &ProjectionId,
    checkpoint: Option<Checkpoint>,
    timeout: Duration,
    output: &mut Output,
) -> Outcome {
    let wanted = match checkpoint {
        Some(checkpoint) => checkpoint,
        None => {
            let info = store.info().await?;
            Checkpoint::logs(info.incarnation, info.heads)
        }
    };
    let until = Instant::now() + timeout;
    let bar = ProgressBar::new(0);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40} {percent}% {human_pos} of {human_len}, {eta} left")
    {
        bar.set_style(style);
    }
    loop {
        let stored = control.version(id).await?;
        let missing = control.missing(&**store, &stored, &wanted).await?;
        if missing == 0 {
            bar.finish_and_clear();
            return tell(id, "shows everything", output);
        }
        let all = bar.length().unwrap_or(0).max(missing);
        bar.set_length(all);
        bar.set_position(all - missing);
        let why = match stored.state {
            State::Running if Instant::now() < until => {
                sleep(LOOK_EVERY).await;
                continue;
            }
            State::Running => format!("{id} is still {missing} positions behind after {timeout:?}"),
            state => match stored.error {
                Some(why) => format!("{id} is {state}: {}", visible(&why)),
                None => format!("{id} is {state}"),
            },
        };
        bar.abandon();
        return Err(Failure::Message(Code::Unavailable, why));
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Store(error) => return Failure::Store(error.clone()),
            Error::NotFound(_) => Code::NotFound,
            Error::Invalid(_) => Code::Usage,
            Error::NotRunning { .. } | Error::TimedOut { .. } => Code::Unavailable,
            Error::Target(error) if error.kind() == TargetErrorKind::Away => Code::Unavailable,
            _ => Code::Other,
        };
        Failure::Message(code, error.to_string())
    }
}
