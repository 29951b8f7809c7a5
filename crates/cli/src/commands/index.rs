//! `gesta index …`: keeps an index, and finds events by it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta::projection::{
    Control, Error, Find, INDEX_PAGE_MAX, Index, Life, Phase, ProjectionId, Projections, Running,
    State, Stored, Target, VersionReport,
};
use gesta_core::{Checkpoint, EventStore};
use serde::Serialize;
use serde_json::json;
use tokio::signal::unix::Signal;

use super::projection::{MustExist, TargetDatabase, line};
use super::{all, connect, given_store, interrupts};
use crate::args::{self, Global, IndexCommand, IndexRun};
use crate::exit::{Code, Failure, Outcome};
use crate::output::{Output, ProgressLine, count, say, visible};

/// How long one look at an index that is built lasts.
const LOOK: Duration = Duration::from_secs(1);
/// How long readers may be with the version before when a new one shows everything. They are taken to it by the process
/// that runs it, some seconds after it began.
const SWITCH_MAX: Duration = Duration::from_secs(60);

/// A version of an index, as it is listed.
#[derive(Serialize)]
struct IndexReport {
    #[serde(flatten)]
    version: VersionReport,
    paths: Vec<String>,
}

pub(super) async fn run(global: &Global, args: args::Index, output: &mut Output) -> Outcome {
    let must_exist = match args.command {
        IndexCommand::Run(_) => MustExist::No,
        IndexCommand::Find { .. } | IndexCommand::List { .. } => MustExist::Yes,
    };
    let at = TargetDatabase::named(args.target, args.schema, must_exist)?;
    // A list needs no store, without which nothing is said about how far an index is behind.
    let is_needed = !matches!(args.command, IndexCommand::List { .. });
    let store = match is_needed || given_store(global).is_some() {
        true => Some(connect(global, gesta::Missing::Refuse).await?),
        false => None,
    };
    let done = match at {
        TargetDatabase::Sqlite(target) => work(target, store.as_ref(), args.command, output).await,
        TargetDatabase::Postgres(target) => {
            work(target, store.as_ref(), args.command, output).await
        }
    };
    if let Some(store) = store {
        store.shutdown().await?;
    }
    done
}

async fn work<T: Target>(
    target: T,
    store: Option<&Arc<dyn EventStore>>,
    command: IndexCommand,
    output: &mut Output,
) -> Outcome {
    match (command, store) {
        (IndexCommand::List { name }, _) => {
            list(&Control::of(target), store, name.as_deref(), output).await
        }
        (IndexCommand::Run(run), Some(store)) => keep(target, store, run, output).await,
        (
            IndexCommand::Find {
                name,
                values,
                limit,
            },
            Some(store),
        ) => {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            find(
                &Control::of(target),
                store,
                (name.as_str(), values.as_slice()),
                limit,
                output,
            )
            .await
        }
        (IndexCommand::Run(_) | IndexCommand::Find { .. }, None) => Err(Failure::usage(
            "say of which store the events are: --store, or GESTA_STORE",
        )),
    }
}

/// Lists the versions of all indexes, or of one.
async fn list<T: Target>(
    control: &Control<T>,
    store: Option<&Arc<dyn EventStore>>,
    name: Option<&str>,
    output: &mut Output,
) -> Outcome {
    let mut found = 0;
    for stored in control.list().await? {
        let Some(index) = Index::of_stored(&stored) else {
            continue;
        };
        if name.is_some_and(|name| name != stored.id.name) {
            continue;
        }
        found += 1;
        let report = IndexReport {
            version: control.report(store.map(|store| &**store), &stored).await?,
            paths: index.paths().iter().map(ToString::to_string).collect(),
        };
        output.record(&report, |report| {
            format!("{}  {}", line(&report.version), report.paths.join(" "))
        })?;
    }
    match name {
        Some(name) if found == 0 => Err(no_index(name)),
        _ => Ok(()),
    }
}

/// Makes the failure of an index of which there is no version.
fn no_index(name: &str) -> Failure {
    Failure::Message(
        Code::NotFound,
        format!("there is no index {name:?}: `gesta index list` shows those that there are"),
    )
}

async fn find<T: Target>(
    control: &Control<T>,
    store: &Arc<dyn EventStore>,
    (name, values): (&str, &[(String, String)]),
    limit: usize,
    output: &mut Output,
) -> Outcome {
    let (mut after, mut left) = (None, limit);
    while left > 0 {
        let find = Find {
            values: values.to_vec(),
            after,
            limit: left.min(INDEX_PAGE_MAX),
        };
        let found = match control.find_events(&**store, name, &find).await {
            Err(Error::NotFound(_)) => return Err(no_index(name)),
            found => found?,
        };
        left -= found.events.len();
        for event in found.events {
            output.event(&event, None)?;
        }
        after = found.next;
        if after.is_none() {
            break;
        }
    }
    Ok(())
}

async fn keep<T: Target>(
    target: T,
    store: &Arc<dyn EventStore>,
    run: IndexRun,
    output: &mut Output,
) -> Outcome {
    let mut interrupts = interrupts()?;
    let mut index = Index::new(run.name.clone())
        .version(run.version)
        .filter(all::filter(run.filter));
    for path in &run.paths {
        index = index.path(path)?;
    }
    let id = index.id();
    let info = store.info().await?;
    let head = Checkpoint::logs(info.incarnation, info.heads);
    let control = Control::of(target.clone());
    let started = Projections::on(store, target).index(index).start().await;
    let running = match started {
        Err(Error::Changed { .. }) => return Err(changed(&control, &id).await),
        started => started?,
    };
    let shown = match refuse_retired(&control, &id).await {
        Ok(()) if run.once => once(&running, store, &id, &head, &mut interrupts, output).await,
        Ok(()) => until_stopped(&running, store, &id, &head, &mut interrupts, output).await,
        Err(retired) => Err(retired),
    };
    let life = control.version(&id).await;
    running.shutdown().await;
    let shown = shown?;
    let life = life?.life;
    let done = json!({"name": id.name, "version": id.version, "life": life.as_str()});
    output.record(&done, |_| match life {
        Life::Building | Life::Previous => format!(
            "index {id} {shown}; readers see another version until it is switched to: `gesta projection switch {} \
             --version {}`",
            id.name, id.version
        ),
        Life::Active | Life::Retired => format!("index {id} {shown}"),
    })
}

/// Makes the failure of paths or a filter that are not those of the version that is there.
async fn changed<T: Target>(control: &Control<T>, id: &ProjectionId) -> Failure {
    let next = async {
        refuse_retired(control, id).await?;
        next_version(control, &id.name).await
    };
    match next.await {
        Err(failure) => failure,
        Ok(next) => Failure::usage(format!(
            "index {id} is there already, with other paths or another filter: give --version {next} for a version beside \
             it, or the paths and the filter of this one (`gesta index list` shows the paths)"
        )),
    }
}

/// Refuses a version whose rows are gone, which never shows anything again.
async fn refuse_retired<T: Target>(control: &Control<T>, id: &ProjectionId) -> Outcome {
    match control.version(id).await?.life {
        Life::Retired => Err(Failure::usage(format!(
            "index {id} was retired: its rows are gone, and its number is not used again; give --version {}",
            next_version(control, &id.name).await?
        ))),
        _ => Ok(()),
    }
}

/// The first number that no version of a name has had.
async fn next_version<T: Target>(control: &Control<T>, name: &str) -> Outcome<u32> {
    let all = control.list().await?;
    let of_name = all.iter().filter(|stored| stored.id.name == name);
    let last = of_name.map(|stored| stored.id.version).max();
    Ok(last.unwrap_or_default().saturating_add(1))
}

/// Waits until an index shows everything up to a place, and readers see it.
async fn once<T: Target>(
    running: &Running<T>,
    store: &Arc<dyn EventStore>,
    id: &ProjectionId,
    head: &Checkpoint,
    interrupts: &mut Signal,
    output: &Output,
) -> Outcome<&'static str> {
    say!("index {id} is built until it shows everything that is stored now");
    let line = ProgressLine::begin(output, format!("index {id}"));
    let built = async {
        until_shown(running, store, id, head, &line, Unfit::Refused).await?;
        until_switched(running, id, &line).await
    };
    tokio::select! {
        biased;
        built = built => built.map(|()| "shows everything that was stored when this began"),
        _ = interrupts.recv() => Err(Failure::interrupted(format!(
            "stopped: index {id} does not show everything yet; the same command goes on where it was"
        ))),
    }
}

/// Keeps an index up to date until Ctrl-C.
async fn until_stopped<T: Target>(
    running: &Running<T>,
    store: &Arc<dyn EventStore>,
    id: &ProjectionId,
    head: &Checkpoint,
    interrupts: &mut Signal,
    output: &Output,
) -> Outcome<&'static str> {
    say!("index {id} is kept up to date until this is stopped");
    let line = ProgressLine::begin(output, format!("index {id}"));
    tokio::select! {
        biased;
        built = until_shown(running, store, id, head, &line, Unfit::Waits) => built?,
        _ = interrupts.recv() => {
            return Ok("is kept no longer by this, and does not show everything yet; the same command goes on where it was");
        }
    }
    drop(line);
    say!("index {id} shows everything that was stored when this began, and follows what comes");
    let mut progress = running.progress(id)?;
    let retired = async {
        let retired = progress.wait_for(|progress| progress.phase == Phase::Retired);
        if retired.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        _ = interrupts.recv() => {}
        () = retired => refuse_retired(&running.control(), id).await?,
    }
    Ok("is kept no longer by this")
}

/// What is done about a version that somebody has paused, or that has stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unfit {
    Refused,
    Waits,
}

/// Waits until a version of an index shows everything up to a place.
async fn until_shown<T: Target>(
    running: &Running<T>,
    store: &Arc<dyn EventStore>,
    id: &ProjectionId,
    head: &Checkpoint,
    line: &ProgressLine,
    unfit: Unfit,
) -> Outcome {
    let mut progress = running.progress(id)?;
    let mut most = 0;
    let mut is_told = false;
    loop {
        let control = running.control();
        refuse_retired(&control, id).await?;
        let version = control.version(id).await?;
        let missing = control.missing(&**store, &version, head).await?;
        if missing == 0 {
            return Ok(());
        }
        if version.state != State::Running && unfit == Unfit::Refused {
            return Err(Failure::Message(
                Code::Unavailable,
                format!("index {}", not_running(&version)),
            ));
        }
        most = missing.max(most);
        if version.state != State::Running && !is_told {
            // A line that is written over is cut to one, and without a terminal there is none.
            say!("index {}", not_running(&version));
            is_told = true;
        }
        line.tell(|_| match version.state {
            State::Running => format!("index {id}: {}", behind(&version, missing, most)),
            _ => format!("index {}", not_running(&version)),
        });
        let _ = tokio::time::timeout(LOOK, progress.changed()).await;
    }
}

/// Says how far a version is from the place that is waited for, of which it was `most` positions away. What it waits
/// for comes first, since the end of a long line is not seen.
pub(super) fn behind(version: &Stored, missing: u64, most: u64) -> String {
    let done = most.saturating_sub(missing);
    let percent = done as f64 / most.max(1) as f64 * 100.0;
    format!(
        "{}{done} of {} ({percent:.0} %), {} applied",
        match version.owned {
            true => "",
            false => "no process runs it; ",
        },
        count(most, "position"),
        count(version.events.unsigned_abs(), "event")
    )
}

/// Says that a version does not run, why, and how it goes on.
pub(super) fn not_running(version: &Stored) -> String {
    let (id, state) = (&version.id, version.state.as_str());
    let why = version.error.as_deref().map(visible);
    let why = why.map_or(String::new(), |why| format!(": {why}"));
    format!(
        "{id} is {state}{why}; `gesta projection resume {} --version {}` lets it go on",
        id.name, id.version
    )
}

/// Waits until readers see a version that shows everything, unless they see a later one.
async fn until_switched<T: Target>(
    running: &Running<T>,
    id: &ProjectionId,
    line: &ProgressLine,
) -> Outcome {
    let until = Instant::now() + SWITCH_MAX;
    let control = running.control();
    while Instant::now() < until {
        let all = control.list().await?;
        let of_name = || all.iter().filter(|other| other.id.name == id.name);
        let is_building = of_name().any(|own| own.id == *id && own.life == Life::Building);
        let is_later = |other: &Stored| other.life == Life::Active && other.id.version > id.version;
        if !is_building || of_name().any(is_later) {
            return Ok(());
        }
        line.tell(|_| format!("index {id}: shows everything; readers are being taken to it"));
        tokio::time::sleep(LOOK / 4).await;
    }
    Ok(())
}
