//! Catching up: everything that is stored, by projections, by hand, and by what bounds them.

use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt as _;
use gesta_core::{Checkpoint, EventStore, Place as At};
use gesta_projection::{Index, Projections, Target, View};
use gesta_report::Report;
use gesta_report::failure::{Context, Result};
use gesta_report::histogram::median;
use gesta_report::read_back::ReadBack;
use gesta_report::units::grouped;
use tokio_util::sync::CancellationToken;

use super::models::{Items, Types, appends};
use super::places::Place;
use super::{ProjectionsArgs, bare};
use crate::workload::read;

/// Appends under way while the store is filled.
const FILLING: usize = 1_024;

/// The index, and how many of its rows have both values.
const INDEX: &str = "lab_index";
const INDEXED: &str = "count(item + length(name))";
/// How many events the rows of a view count.
pub(super) const COUNTED: &str = "sum(events)";

/// What one way carried, in events a second of each round.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) database: &'static str,
    pub(super) what: &'static str,
    pub(super) rates: Vec<f64>,
}

impl Built {
    pub(super) fn is_gesta(&self) -> bool {
        [Way::Items, Way::Types, Way::Index]
            .iter()
            .any(|way| way.title() == self.what)
    }

    pub(super) fn rate(&self) -> f64 {
        median(&self.rates)
    }

    pub(super) fn range(&self) -> String {
        let of = |pick: fn(f64, f64) -> f64| {
            grouped(self.rates.iter().copied().reduce(pick).unwrap_or(0.0))
        };
        format!("{} to {}", of(f64::min), of(f64::max))
    }
}

/// A way to build a read model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Bare,
    Items,
    ByHand,
    Reading,
    Types,
    Index,
}

impl Way {
    /// Bounds before what they bound.
    const ALL: [Way; 6] = [
        Way::Bare,
        Way::Items,
        Way::ByHand,
        Way::Reading,
        Way::Types,
        Way::Index,
    ];

    fn title(self) -> &'static str {
        match self {
            Way::Bare => "bound: the same rows in bulk, without a store",
            Way::Items => "a row for each key",
            Way::ByHand => "by hand: a transaction for each event",
            Way::Reading => "bound: reading all events",
            Way::Types => "a row for each type",
            Way::Index => "an index over two paths",
        }
    }
}

pub(super) async fn measure(
    args: &ProjectionsArgs,
    place: &Place,
    built: &mut Vec<Built>,
    report: &mut Report,
    stop: &CancellationToken,
) -> Result<()> {
    let opened = place.open().await?;
    let store = Arc::clone(&opened.store);
    fill(&store, args).await?;
    let mut of_place: Vec<Built> = Way::ALL
        .map(|way| Built {
            database: place.name(),
            what: way.title(),
            rates: Vec::new(),
        })
        .into();
    for _ in 0..args.rounds {
        for (way, one) in Way::ALL.into_iter().zip(&mut of_place) {
            if stop.is_cancelled() {
                break;
            }
            let rate = by(way, args, place, &store, report).await?;
            eprintln!("  {}: {}: {}/s", place.name(), way.title(), grouped(rate));
            one.rates.push(rate);
        }
    }
    built.extend(of_place);
    Ok(())
}

async fn fill(store: &Arc<dyn EventStore>, args: &ProjectionsArgs) -> Result<()> {
    eprintln!("storing {} events", grouped(args.events as f64));
    let appends = futures::stream::iter(appends(args.events, args.keys));
    let mut stored = appends
        .map(|append| store.append(append))
        .buffer_unordered(FILLING);
    while let Some(stored) = stored.next().await {
        stored.context("filling the store")?;
    }
    Ok(())
}

async fn by(
    way: Way,
    args: &ProjectionsArgs,
    place: &Place,
    store: &Arc<dyn EventStore>,
    report: &mut Report,
) -> Result<f64> {
    place.clear_rows().await?;
    match way {
        Way::Reading => {
            let (events, rate) = read::by_pages(store).await?;
            report.check(way.title(), &everything(args.events, events));
            Ok(rate)
        }
        Way::Bare => bare::in_bulk(place, args.events, args.keys).await,
        Way::ByHand => bare::by_hand(place, store, args.by_hand.min(args.events)).await,
        Way::Items | Way::Types | Way::Index => run(way, args, place, store, report).await,
    }
}

/// Builds a read model, and reads back how many events it stands for.
async fn run(
    way: Way,
    args: &ProjectionsArgs,
    place: &Place,
    store: &Arc<dyn EventStore>,
    report: &mut Report,
) -> Result<f64> {
    let begin = Instant::now();
    match place {
        Place::Postgres { url } => {
            let target = Place::postgres_target(url)?;
            until_the_end(store, add(way, Projections::on(store, target))?).await?;
        }
        Place::Sqlite { folder } => {
            let target = Place::sqlite_target(folder);
            until_the_end(store, add(way, Projections::on(store, target))?).await?;
        }
    }
    let rate = args.events as f64 / begin.elapsed().as_secs_f64();
    let (name, aggregate) = match way {
        Way::Types => (Types::NAME, COUNTED),
        Way::Index => (INDEX, INDEXED),
        _ => (Items::NAME, COUNTED),
    };
    let counted = place.counted(name, aggregate).await?;
    let title = format!("{} on {}", way.title(), place.name());
    report.check(title, &everything(args.events, counted));
    Ok(rate)
}

/// Adds the read model of a way.
fn add<T: Target>(way: Way, projections: Projections<T>) -> Result<Projections<T>> {
    Ok(match way {
        Way::Types => projections.view(Types),
        Way::Index => {
            let index = Index::new(INDEX).path("item:int")?.path("name")?;
            projections.index(index)
        }
        _ => projections.view(Items),
    })
}

/// Whether everything that was stored was counted.
pub(super) fn everything(stored: u64, counted: u64) -> ReadBack {
    ReadBack {
        acknowledged: stored,
        found: counted,
        lost: stored.saturating_sub(counted),
        doubled: counted.saturating_sub(stored),
        findings: vec![format!("{counted} of {stored} events were counted")],
        ..ReadBack::default()
    }
}

/// Runs projections from the beginning until they have committed all that is stored now.
async fn until_the_end<T: Target>(
    store: &Arc<dyn EventStore>,
    projections: Projections<T>,
) -> Result<()> {
    let head = At::Logs(store.info().await?.heads);
    let running = projections.start().await?;
    for id in running.ids() {
        let mut progress = running.progress(&id)?;
        let at_the_end = progress.wait_for(|progress| {
            let reached: Option<&Checkpoint> = progress.checkpoint.as_ref();
            reached.is_some_and(|reached| reached.place == head)
        });
        let reached = at_the_end.await;
        reached.context("the projection has ended")?;
    }
    running.shutdown().await;
    Ok(())
}
