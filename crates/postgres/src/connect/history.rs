//! Finds out that the history of the store has changed, once, and makes this process forget what it knew.
//!
//! Every connection is compared with what the process knows (`witness`) before it is handed out, so no answer of a
//! database that has lost commits is used together with anything older. A process that finds a loss gives the store a
//! new incarnation, by compare-and-swap in the database, so that checkpoints of the lost history are refused
//! everywhere; the other servers learn it from their own connections, or by a message. Invariants: what is forgotten is
//! forgotten before the first answer of the new history is handed out; an answer counts only if its connection is still
//! of the present generation when it is handed out; another *store* (`identity`) is refused, and changes nothing that
//! is known.

pub(crate) mod lineage;
pub(crate) mod witness;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gesta_core::backend::{CurrentHistory, History, Signal, WriterEpoch};
use gesta_core::{Clock, Error, Incarnation, LogId, Position, Result, SystemClock};
use gesta_sql::position_from_sql;
use tokio::sync::watch;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::connect::history::lineage::Noted;
use crate::connect::history::witness::{
    Comparison, Found, FoundLog, KnownHistory, Mark, Replaced, View,
};
use crate::connect::hosts::Timeline;
use crate::connect::identity::Identity;
use crate::error;
use crate::message::incarnation_payload;
use crate::names::Names;
use crate::received::Received;
use crate::sql_numbers::{CLOSED, log_number, numbers};

const READ_WITNESS: &str = include_str!("../../sql/read_witness.sql");
const REPLACE_INCARNATION: &str = include_str!("../../sql/replace_incarnation.sql");
const READ_STORE: &str = include_str!("../../sql/read_store.sql");

/// How often one connection is compared, if what is known changes meanwhile.
const ATTEMPTS_MAX: usize = 5;

type Driver<T> = std::result::Result<T, tokio_postgres::Error>;

/// The history of the store, as this process knows it.
#[derive(Debug)]
pub(crate) struct Ledger {
    identity: Identity,
    known: Mutex<KnownHistory>,
    /// Where the store is noted to be in the database, and in which incarnation; `None` if that is not known. A new
    /// incarnation may have forgotten the note.
    noted: Mutex<Option<(Incarnation, Noted)>>,
    current: CurrentHistory,
    /// The present generation of connections.
    generation: watch::Sender<u64>,
    /// The names that were read. They are forgotten with each generation.
    pub(crate) names: Names,
    /// Carries messages to the listeners in this process.
    pub(crate) received: Received,
    /// The id of this process, which its messages to other processes carry.
    pub(crate) process: Uuid,
    channel: String,
}

impl Ledger {
    pub(crate) fn new(
        identity: Identity,
        incarnation: Incarnation,
        (server, noted): (Option<Timeline>, Option<Noted>),
        channel: String,
    ) -> Arc<Self> {
        Arc::new(Self {
            identity,
            noted: Mutex::new(noted.map(|noted| (incarnation, noted))),
            known: Mutex::new(KnownHistory::new(incarnation, server)),
            current: CurrentHistory::new(incarnation),
            generation: watch::Sender::new(0),
            names: Names::default(),
            received: Received::default(),
            process: Uuid::new_v4(),
            channel,
        })
    }

    pub(crate) fn history(&self) -> History {
        self.current.get()
    }

    fn known(&self) -> MutexGuard<'_, KnownHistory> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a connection of this generation hands over an answer that goes up to these rows, one of each log.
    /// Returns false if the answer must not be used.
    pub(crate) fn observe(&self, generation: u64, marks: impl IntoIterator<Item = Mark>) -> bool {
        self.known().observe(generation, marks)
    }

    /// Returns the last position of a log that this process knows.
    pub(crate) fn position_of(&self, log: LogId) -> Position {
        self.known().position_of(log)
    }

    /// Returns the last position of each log of which this process knows an event.
    pub(crate) fn positions(&self) -> BTreeMap<LogId, Position> {
        self.known().positions()
    }

    /// Notes that a connection of this generation hands over this version of the map. Returns false if the map must not
    /// be used.
    pub(crate) fn observe_map(&self, generation: u64, version: u64) -> bool {
        self.known().observe_map(generation, version)
    }

    pub(crate) fn is_current(&self, generation: u64) -> bool {
        *self.generation.borrow() == generation
    }

    /// Waits until connections of this generation must be discarded.
    pub(crate) fn outdated(&self, generation: u64) -> impl Future<Output = ()> + Send + use<> {
        let mut present = self.generation.subscribe();
        async move {
            if present.wait_for(|now| *now != generation).await.is_err() {
                // The store was closed.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Compares a new connection with what is known, and notes `place`, where the store is. Returns the generation of
    /// the connection.
    ///
    /// # Errors
    /// `Unavailable` if the database holds another store, the server is an old primary, or the database has lost
    /// commits and this process may not note that in it.
    pub(crate) async fn check(
        &self,
        client: &Client,
        server: Option<Timeline>,
        place: Option<Noted>,
    ) -> Result<u64> {
        for _ in 0..ATTEMPTS_MAX {
            let view = self.known().view(server);
            let found = read_found(client, &view).await?;
            if let Some(why) = self.identity.refuses(&found.identity) {
                return Err(self.refuse(server, why));
            }
            if self.admit(server)?.generation != view.generation {
                // What old connections have handed over until now must be compared too.
                continue;
            }
            let comparison = self.compare(&view, &found, place);
            let generation = match &comparison {
                Comparison::Same => self.known().settle(&view, &found),
                Comparison::Begun => {
                    let why = "another one was begun";
                    self.change(&view, found.incarnation, why)
                }
                Comparison::Lost(why) => {
                    let begun = self
                        .replace(client, (found.incarnation, place), why)
                        .await?;
                    self.change(&view, begun, why)
                }
            };
            if let Some(generation) = generation {
                self.note(client, place).await;
                return Ok(generation);
            }
        }
        Err(Error::unavailable(
            "the database changed over while a connection to it was being made",
        ))
    }

    fn compare(&self, view: &View, found: &Found, place: Option<Noted>) -> Comparison {
        let known = self.known();
        match (known.judge(view, found), place) {
            (Comparison::Same, Some(place)) => known.judge_place(view, found, place),
            (comparison, _) => comparison,
        }
    }

    /// Notes in the database where the store is, if that is not noted there. What cannot be noted is tried again by
    /// the next connection, and by the next look at the settings.
    pub(crate) async fn note(&self, client: &Client, place: Option<Noted>) {
        let Some(place) = place else { return };
        self.known().see_place(place);
        let incarnation = self.current.get().incarnation;
        let wanted = Some((incarnation, place));
        if *self.noted() == wanted {
            return;
        }
        if lineage::note(client, place, incarnation).await {
            *self.noted() = wanted;
        }
    }

    fn noted(&self) -> MutexGuard<'_, Option<(Incarnation, Noted)>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the error for a database that holds another store.
    fn refuse(&self, server: Option<Timeline>, why: String) -> Error {
        let mut known = self.known();
        let before = known.generation();
        known.refuse(server);
        if known.generation() != before {
            self.begin_generation(&known);
        }
        Error::needs_administrator(why)
    }

    fn admit(&self, server: Option<Timeline>) -> Result<View> {
        let mut known = self.known();
        let before = known.generation();
        let view = known.admit(server).map_err(|Replaced(newest)| {
            let ours = server.map_or(0, |server| server.number);
            Error::unavailable(format!(
                "the server is on timeline {ours} and was replaced by one on timeline {newest}"
            ))
        })?;
        if view.generation != before {
            self.begin_generation(&known);
            tracing::info!(
                timeline = server.map(|server| server.number),
                "another server has taken over, or was started again"
            );
        }
        Ok(view)
    }

    /// Forgets what rests on answers of older connections. This is done under the lock of what is known, so that nobody
    /// gets a connection of the new generation before.
    fn begin_generation(&self, known: &KnownHistory) {
        self.names.forget(known.generation());
        self.generation.send_replace(known.generation());
    }

    fn change(&self, view: &View, incarnation: Incarnation, why: &str) -> Option<u64> {
        let mut known = self.known();
        let old = known.incarnation();
        let generation = known.change(view, incarnation)?;
        self.begin_generation(&known);
        let history = self.current.change(incarnation);
        drop(known);
        tracing::error!(
            %old, new = %incarnation, number = history.number, why,
            "the history of the store has changed: all that was known is forgotten, older checkpoints are refused"
        );
        self.received.publish(Signal::HistoryChanged);
        Some(generation)
    }

    /// Begins a new incarnation in place of `old`, unless another process has, and notes where the store is. Returns
    /// the incarnation that the store has then.
    async fn replace(
        &self,
        client: &Client,
        (old, place): (Incarnation, Option<Noted>),
        why: &str,
    ) -> Result<Incarnation> {
        tracing::error!(%old, why, "the database has lost commits, or may have");
        let new = self.following(old);
        match self.swap(client, (old, new), place).await {
            Ok(found) if found != old => Ok(found),
            Ok(_) => Err(Error::unavailable("the incarnation could not be replaced")),
            Err(error) => {
                // The connection is dropped, and the transaction with it.
                let cause = error::text(&error);
                Err(Error::unavailable(format!(
                    "commits are lost, or may be ({why}), and a new incarnation could not be begun ({cause}): allow \
                     UPDATE (incarnation, cluster, timeline, synchronous) ON store to this user, or run `gesta schema new-incarnation`"
                )))
            }
        }
    }

    /// Makes the incarnation that follows the one that was found in the database, and the one that this process knows:
    /// the database may have lost the latter.
    fn following(&self, found: Incarnation) -> Incarnation {
        let known = self.known();
        let latest = match known.incarnation() {
            ours if ours.positions_from() > found.positions_from() => ours,
            _ => found,
        };
        latest.after(known.end(), SystemClock.now())
    }

    async fn swap(
        &self,
        client: &Client,
        (old, new): (Incarnation, Incarnation),
        place: Option<Noted>,
    ) -> Driver<Incarnation> {
        let payload = incarnation_payload(self.process, new);
        // This must not hang because a standby is away. A process that loses this change, too, finds out the loss
        // again.
        client
            .batch_execute("BEGIN; SET LOCAL synchronous_commit = local")
            .await?;
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (&old.0, Type::UUID),
            (&new.0, Type::UUID),
            (&self.channel, Type::TEXT),
            (&payload, Type::TEXT),
        ];
        let replaced = client.query_typed(REPLACE_INCARNATION, &params).await?;
        if let Some(place) = place.filter(|_| !replaced.is_empty()) {
            lineage::note_begun(client, place).await?;
        }
        client.batch_execute("COMMIT").await?;
        self.incarnation_in(client).await
    }

    /// Reads the incarnation that the database has.
    pub(crate) async fn incarnation_in(&self, client: &Client) -> Driver<Incarnation> {
        let rows = client.query_typed(READ_STORE, &[]).await?;
        match rows.first() {
            Some(row) => Ok(Incarnation(row.try_get(2)?)),
            None => Ok(self.current.get().incarnation),
        }
    }
}

async fn read_found(client: &Client, view: &View) -> Result<Found> {
    let logs = view.marks.iter().map(|mark| log_number(mark.log));
    let logs: Vec<i16> = logs.collect::<Result<_>>()?;
    let positions = view.marks.iter().map(|mark| mark.position);
    let positions = numbers(&positions.collect::<Vec<_>>());
    let params: [(&(dyn ToSql + Sync), Type); 2] =
        [(&logs, Type::INT2_ARRAY), (&positions, Type::INT8_ARRAY)];
    let rows = client.query_typed(READ_WITNESS, &params).await;
    let rows = rows.map_err(|error| error::general(&error))?;
    let Some(first) = rows.first() else {
        return Err(Error::corrupt("the table store is empty"));
    };
    let general = |error: tokio_postgres::Error| error::general(&error);
    let incarnation = Incarnation(first.try_get("incarnation").map_err(general)?);
    let identity = identity_in(first).map_err(general)?;
    let map_version: i64 = first.try_get("map_version").map_err(general)?;
    let noted = lineage::noted_in(first).map_err(general)?;
    let mut logs = Vec::with_capacity(rows.len());
    for row in &rows {
        logs.extend(found_log(row)?);
    }
    Ok(Found {
        identity,
        incarnation,
        map_version: map_version.unsigned_abs(),
        noted,
        logs,
    })
}

fn identity_in(row: &Row) -> Driver<Identity> {
    let (logs, version): (i16, i32) = (row.try_get("logs")?, row.try_get("schema_version")?);
    Ok(Identity {
        store: row.try_get("store")?,
        database: row.try_get("database")?,
        // Nonsense is another number than any store has.
        logs: u16::try_from(logs).unwrap_or(0),
        version: u32::try_from(version).unwrap_or(0),
    })
}

fn found_log(row: &Row) -> Result<Option<FoundLog>> {
    let number = |name: &str| {
        let value = row.try_get::<_, Option<i64>>(name);
        value.map_err(|error| error::general(&error))
    };
    let log: Option<i16> = row.try_get("log").map_err(|error| error::general(&error))?;
    let Some(log) = log.and_then(|log| u16::try_from(log).ok()) else {
        return Ok(None);
    };
    if number("end_position")? == Some(CLOSED) {
        // If at all, the log is open in another database, so what is here proves nothing.
        return Ok(None);
    }
    let end = match (number("end_position")?, number("end_writer")?) {
        (Some(position), Some(writer)) => Some((position_from_sql(position)?, WriterEpoch(writer))),
        _ => None,
    };
    Ok(Some(FoundLog {
        log: LogId(log),
        end,
        writer: number("known_writer")?.map(WriterEpoch),
    }))
}
