//! Live: appends at a rate, and the time from each acknowledgement until the row of its event is committed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use gesta_core::{Place as At, Position};
use gesta_projection::{Progress, Projections, Target};
use gesta_report::Report;
use gesta_report::failure::{Context, Result, fail};
use gesta_report::histogram::{Latencies, Percentiles};
use tokio::sync::{mpsc, watch};

use super::ProjectionsArgs;
use super::catch_up::{COUNTED, everything};
use super::models::{Items, appends};
use super::places::Place;

/// How late an append was shown.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) database: &'static str,
    pub(super) rate: f64,
    pub(super) latency: Percentiles,
}

/// An acknowledged append: its position, and when it was acknowledged.
type Acknowledged = (Position, Instant);

pub(super) async fn measure(
    args: &ProjectionsArgs,
    place: &Place,
    shown: &mut Vec<Shown>,
    report: &mut Report,
) -> Result<()> {
    place.clear_rows().await?;
    let opened = place.open().await?;
    let before = opened.store.info().await?.heads;
    let (rate, latency) = match place {
        Place::Postgres { url } => {
            let target = Place::postgres_target(url)?;
            let projections = Projections::on(&opened.store, target).view(Items);
            run(args, &opened.store, projections, &before).await?
        }
        Place::Sqlite { folder } => {
            let target = Place::sqlite_target(folder);
            let projections = Projections::on(&opened.store, target).view(Items);
            run(args, &opened.store, projections, &before).await?
        }
    };
    let after = opened.store.info().await?.heads;
    let stored = after.first().map_or(0, |head| head.0);
    let title = format!("live on {}", place.name());
    let counted = place.counted("lab_items", COUNTED).await?;
    report.check(title, &everything(stored, counted));
    shown.push(Shown {
        database: place.name(),
        rate,
        latency,
    });
    Ok(())
}

async fn run<T: Target>(
    args: &ProjectionsArgs,
    store: &Arc<dyn gesta_core::EventStore>,
    projections: Projections<T>,
    before: &[Position],
) -> Result<(f64, Percentiles)> {
    let running = projections.start().await?;
    let Some(id) = running.ids().into_iter().next() else {
        return fail("there is no projection");
    };
    let mut progress = running.progress(&id)?;
    let caught_up = progress.wait_for(|progress| reached(progress) >= before[0]);
    caught_up.await.context("the projection has ended")?;
    let (acknowledged, waiting) = mpsc::unbounded_channel();
    let following = tokio::spawn(follow(progress, waiting));
    let begin = tokio::time::Instant::now();
    let count = args.rate * args.live.as_secs().max(1);
    let mut calls = tokio::task::JoinSet::new();
    for (number, append) in appends(count, args.keys).enumerate() {
        // The schedule: an append does not wait for those before.
        let due = begin + args.live.mul_f64(number as f64 / count as f64);
        tokio::time::sleep_until(due).await;
        let (store, acknowledged) = (Arc::clone(store), acknowledged.clone());
        calls.spawn(async move {
            let appended = store.append(append).await?;
            // The follower ends last.
            let _ = acknowledged.send((appended.position, Instant::now()));
            Ok::<_, gesta_core::Error>(())
        });
        while let Some(done) = calls.try_join_next() {
            done.context("an append")?.context("an append")?;
        }
    }
    while let Some(done) = calls.join_next().await {
        done.context("an append")?.context("an append")?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    drop(acknowledged);
    let latency = following.await.context("the follower")??;
    running.shutdown().await;
    Ok((count as f64 / seconds, latency))
}

fn last_position(place: &At) -> Position {
    match place {
        At::Logs(positions) => positions.iter().copied().max().unwrap_or_default(),
        At::Stream { .. } => Position::default(),
    }
}

fn reached(progress: &Progress) -> Position {
    let checkpoint = progress.checkpoint.as_ref();
    checkpoint.map_or(Position::default(), |reached| last_position(&reached.place))
}

/// Notes for each acknowledged append how much later its row was committed; nothing if that was before.
async fn follow(
    mut progress: watch::Receiver<Progress>,
    mut acknowledged: mpsc::UnboundedReceiver<Acknowledged>,
) -> Result<Percentiles> {
    let mut latencies = Latencies::default();
    let mut waiting: VecDeque<Acknowledged> = VecDeque::new();
    let mut open = true;
    while open || !waiting.is_empty() {
        tokio::select! {
            next = acknowledged.recv(), if open => match next {
                Some(next) => waiting.push_back(next),
                None => open = false,
            },
            changed = progress.changed() => {
                if changed.is_err() {
                    return fail("the projection has ended");
                }
            }
        }
        let (place, now) = (reached(&progress.borrow_and_update()), Instant::now());
        waiting.retain(|(position, at)| {
            let is_shown = *position <= place;
            if is_shown {
                latencies.record(now.saturating_duration_since(*at));
            }
            !is_shown
        });
    }
    Ok(latencies.percentiles())
}
