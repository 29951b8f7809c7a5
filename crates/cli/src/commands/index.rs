//! `gesta index …`: keeps an index, and finds events by it.

use std::sync::Arc;
use std::time::Duration;

use gesta::projection::{
    Control, Find, INDEX_PAGE_MAX, Index, Projections, Running, Target, events_at,
};
use gesta_core::{Checkpoint, EventStore};
use serde_json::json;

use super::projection::{MustExist, TargetDatabase};
use super::{all, connect, interrupts};
use crate::args::{self, Global, IndexCommand, IndexRun};
use crate::exit::Outcome;
use crate::output::{Output, say};

/// How long one look at an index that is built lasts.
const LOOK: Duration = Duration::from_secs(1);

pub(super) async fn run(global: &Global, args: args::Index, output: &mut Output) -> Outcome {
    let must_exist = match args.command {
        IndexCommand::Run(_) => MustExist::No,
        IndexCommand::Find { .. } => MustExist::Yes,
    };
    let at = TargetDatabase::named(args.target, args.schema, must_exist)?;
    let store = connect(global, gesta::Missing::Refuse).await?;
    let done = match at {
        TargetDatabase::Sqlite(target) => work(target, &store, args.command, output).await,
        TargetDatabase::Postgres(target) => work(target, &store, args.command, output).await,
    };
    store.shutdown().await?;
    done
}

async fn work<T: Target>(
    target: T,
    store: &Arc<dyn EventStore>,
    command: IndexCommand,
    output: &mut Output,
) -> Outcome {
    match command {
        IndexCommand::Run(run) => keep(target, store, run, output).await,
        IndexCommand::Find {
            name,
            values,
            limit,
        } => {
            let control = Control::of(target);
            let (mut after, mut left) = (None, usize::try_from(limit).unwrap_or(usize::MAX));
            while left > 0 {
                let find = Find {
                    values: values.clone(),
                    after,
                    limit: left.min(INDEX_PAGE_MAX),
                };
                let found = control.find(&name, &find).await?;
                let is_last = found.len() < find.limit;
                after = found.last().copied();
                left -= found.len();
                let mut rest = &found[..];
                while !rest.is_empty() {
                    let (events, read) = events_at(&**store, rest).await?;
                    for event in events {
                        output.event(&event, None)?;
                    }
                    rest = &rest[read..];
                }
                if is_last {
                    break;
                }
            }
            Ok(())
        }
    }
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
    let running = Projections::on(store, target).index(index).start().await?;
    say!("index {id} is kept up to date until this is stopped");
    let kept = async {
        match run.once {
            true => until_shown(&running, store, &id, &head).await,
            false => std::future::pending().await,
        }
    };
    let kept = tokio::select! {
        kept = kept => kept,
        _ = interrupts.recv() => Ok(()),
    };
    running.shutdown().await;
    kept?;
    let done = json!({"name": id.name, "version": id.version});
    output.record(&done, |_| format!("index {id} is kept no longer by this"))
}

/// Waits until a version of an index shows everything up to a place.
async fn until_shown<T: Target>(
    running: &Running<T>,
    store: &Arc<dyn EventStore>,
    id: &gesta::projection::ProjectionId,
    head: &Checkpoint,
) -> Outcome {
    let mut progress = running.progress(id)?;
    loop {
        let control = running.control();
        let version = control.version(id).await?;
        if control.missing(&**store, &version, head).await? == 0 {
            return Ok(());
        }
        let _ = tokio::time::timeout(LOOK, progress.changed()).await;
    }
}
