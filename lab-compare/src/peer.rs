//! What a peer is, and how a peer that works through a `Target` is measured.

use std::sync::Arc;

use async_trait::async_trait;
use gesta_report::failure::{Failure, Result, fail};
use gesta_report::read_back::ReadBack;
use gesta_load::sizes::Sizes;
use gesta_load::target::{self, Events, Load, Phase, Target};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::workload::{Cell, Workload};
use crate::world::{Engine, World};

/// What is known about a peer that runs.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct About {
    /// Its own version.
    pub(crate) version: String,
    /// What stores its data, with its version.
    pub(crate) engine: String,
    /// How it is driven, in one sentence.
    pub(crate) note: String,
    /// What an acknowledgement means: `full`, `weakened` or `none`.
    pub(crate) durability: String,
    /// The settings behind it.
    pub(crate) durability_detail: String,
}

impl About {
    /// Of a peer on PostgreSQL, whose acknowledgements are the server's commits.
    pub(crate) fn on(engine: Engine, own_version: &str, note: &str) -> Self {
        Self {
            version: own_version.to_owned(),
            engine: engine.engine,
            note: note.to_owned(),
            durability: engine.durability,
            durability_detail: engine.durability_detail,
        }
    }
}

/// What a cell gave.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measured {
    pub(crate) phase: Phase,
    pub(crate) read_back: ReadBack,
}

/// One cell to measure.
#[derive(Debug)]
pub(crate) struct Round<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) cell: Cell,
    pub(crate) seed: u64,
    pub(crate) stop: &'a CancellationToken,
}

/// A system, or one way of using it.
#[async_trait]
pub(crate) trait Peer: Send {
    /// Lower case, dashes; the part before the first dash is shared by the ways of using one system where there are
    /// several.
    fn name(&self) -> &'static str;

    /// For people.
    fn title(&self) -> &'static str;

    /// Starts it with an empty store.
    async fn start(&mut self, world: &mut World) -> Result<About>;

    /// Measures one cell, and reads back what was acknowledged in it.
    async fn measure(&mut self, round: &Round<'_>) -> Result<Measured>;

    /// Ends it and removes its data; also after a `start` that failed half way.
    async fn end(&mut self, world: &mut World) -> Result<()>;
}

/// What belongs to a peer between `start` and `end`.
pub(crate) fn started<T>(part: Option<T>) -> Result<T> {
    part.ok_or_else(|| Failure("the peer was not started".into()))
}

/// How streams are spread over categories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Categories {
    /// All in one.
    One,
    /// Each worker has its own.
    PerWorker,
}

/// Loads a target of this process and reads back all that the cell appended.
pub(crate) async fn measure_target(
    target: &Arc<dyn Target>,
    categories: Categories,
    round: &Round<'_>,
) -> Result<Measured> {
    let (workload, cell) = (round.workload, round.cell);
    let categories = match categories {
        Categories::One => 1,
        Categories::PerWorker => cell.workers,
    };
    let sizes = Sizes::fixed(workload.payload_bytes)?;
    let events = Arc::new(Events::new(sizes, categories, round.seed));
    let load = Load {
        first_worker: 0,
        workers: cell.workers,
        events: cell.events,
        events_per_stream: cell.events_per_stream,
        streams: workload.streams_per_worker,
        rate: None,
        warm_up: workload.warm_up(),
        duration: workload.duration(),
    };
    let (run, claims) = target::run(target, &events, &load, round.stop).await?;
    let phase = run.figures(cell.workers, target.is_embedded());
    if run.appends == 0 && run.complete {
        return fail(format!("nothing was appended: {:?}", run.errors));
    }
    let read_back = target::check(&**target, &events, &claims).await?;
    Ok(Measured { phase, read_back })
}
