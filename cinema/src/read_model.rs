//! The read model: how many seats of each show are available. It is a view of the events of shows, which Gesta keeps.
//!
//! Why batches keep their distance: one small transaction for the changes of two seconds costs the application next to
//! nothing; when nothing else happens an event is seen at once.
//! Invariants: those of `gesta::projection`: each event counts once, whatever fails, and of several processes on the
//! same rows one keeps them. A row begins with the event that creates its show. If scavenging has removed that event,
//! what is left of the show is no show, and has no row: its seats would be counted from a beginning that nobody knows.

use std::sync::Arc;
use std::time::Duration;

use gesta::projection::{
    ApplyError, Config, Error, OnRestore, Progress, Projections, Target, View, ViewReader, columns,
};
use gesta::projection_postgres::PostgresTarget;
use gesta::projection_sqlite::{Options, SqliteTarget, Synchronous};
use gesta::{EventStore, EventType, Filter, Query, RecordedEvent};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::events::{self, CATEGORY, SEAT_RESERVATION_CANCELLED, SEAT_RESERVED, SHOW_CREATED};

columns! {
    /// The row of a show.
    pub struct Seats {
        /// Number of its seats that can be reserved.
        pub available: i64,
    }
}

struct AvailableSeats;

impl View for AvailableSeats {
    const NAME: &'static str = "available_seats";
    const VERSION: u32 = 1;
    const KEY: &'static [&'static str] = &["show_id"];
    type Key = Uuid;
    type Row = Seats;

    fn filter(&self) -> Filter {
        let types = [SHOW_CREATED, SEAT_RESERVED, SEAT_RESERVATION_CANCELLED];
        let mut query = Query::category(CATEGORY);
        query.types = types.map(|name| EventType::from_stored(name.into())).into();
        Filter::query(query)
    }

    fn key(&self, event: &RecordedEvent) -> Option<Uuid> {
        // The name of the stream costs less to read than the event.
        let (_, show_id) = event.stream.as_str().split_once('-')?;
        Uuid::try_parse(show_id).ok()
    }

    fn evolve(&self, row: &mut Option<Seats>, event: &RecordedEvent) -> Result<(), ApplyError> {
        match (event.event_type.as_str(), row.as_mut()) {
            (SHOW_CREATED, _) => {
                let seats = events::seats_created(&event.data).map_err(ApplyError::text)?;
                let available = i64::try_from(seats)?;
                *row = Some(Seats { available });
            }
            (SEAT_RESERVED, Some(row)) => row.available -= 1,
            (SEAT_RESERVATION_CANCELLED, Some(row)) => row.available += 1,
            _ => {}
        }
        Ok(())
    }
}

/// The place of the rows.
pub(crate) enum Place {
    File(SqliteTarget),
    Schema(PostgresTarget),
}

/// Makes the place for rows beside the store at `url`: a file of their own, or the schema of the store.
pub(crate) fn beside(url: &str) -> gesta::Result<Place> {
    // A power cut may take the last batches, rows and checkpoint together; they are applied again.
    let synchronous = Synchronous::Normal;
    match url.starts_with("postgres") {
        true => PostgresTarget::beside(url, Default::default()).map(Place::Schema),
        false => SqliteTarget::beside(url, Options { synchronous }).map(Place::File),
    }
}

/// A running read model.
#[derive(Debug)]
pub struct ReadModel {
    rows: ViewReader<AvailableSeats>,
    /// What it has done so far.
    pub(crate) progress: watch::Receiver<Progress>,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

impl ReadModel {
    /// Starts to keep rows of the shows of `store`. It waits for a database that is away.
    pub(crate) async fn start(store: &Arc<dyn EventStore>, place: Place) -> Result<Self, Error> {
        match place {
            Place::File(target) => Self::start_in(store, target).await,
            Place::Schema(target) => Self::start_in(store, target).await,
        }
    }

    async fn start_in(store: &Arc<dyn EventStore>, target: impl Target) -> Result<Self, Error> {
        let rows = ViewReader::of(target.clone())?;
        let config = Config {
            node_name: "cinema".into(),
            live_every: Duration::from_secs(2),
            live_events_max: 10_000,
            lease: Duration::from_secs(10),
            on_restore: OnRestore::Reset,
            start_waits: true,
            ..Config::default()
        };
        let projections = Projections::on(store, target).view(AvailableSeats);
        let running = projections.config(config).start().await?;
        let progress = running.progress(&running.ids()[0])?;
        let (stopping, tasks) = (CancellationToken::new(), TaskTracker::new());
        let stopped = stopping.clone().cancelled_owned();
        tasks.spawn(async move {
            stopped.await;
            running.shutdown().await;
        });
        Ok(Self {
            rows,
            progress,
            stopping,
            tasks,
        })
    }

    /// Returns at most `limit` shows after this one, in order of ids. What was just reserved may not be counted yet.
    ///
    /// # Errors
    /// `Target` if the database does not answer or refuses.
    pub async fn page(&self, after: Option<Uuid>, limit: u16) -> Result<Vec<(Uuid, Seats)>, Error> {
        self.rows.page(after.as_ref(), limit.into()).await
    }

    /// Stops counting. Events that were not stored are counted after the next start.
    pub async fn shutdown(&self) {
        self.stopping.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

#[cfg(test)]
mod tests;
