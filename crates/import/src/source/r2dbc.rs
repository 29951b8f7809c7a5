//! akka-persistence-r2dbc and Pekko's: events have no global number, only the time at which their transaction began.
//!
//! How: events are read in the order of their times. A transaction that began before a moment can commit after it, so a
//! moment is *settled* only when every transaction that ran then has ended. What is newer is read and imported too, but
//! the place stays at the settled moment, and the next scan begins there again: what is there already is passed over.
//! A gap in the numbers of an entity is filled by `between`.
//!
//! The time of an event can lie before a moment that is settled: the clock of the database was set back, or another
//! database went on after a fail-over whose clock is behind, or the application makes the times. So a part before the
//! place is read again ([`Patience::look_back`]): when an import goes on, and from time to time while it follows.

use std::pin::Pin;

use async_trait::async_trait;
use futures::TryStreamExt;
use gesta_core::{Error, Result};
use tokio::time::Instant;
use tokio_postgres::types::ToSql;
use tokio_postgres::{RowStream, Statement};

use super::fence::{Fence, Rule};
use super::field::{Cast, Field, columns};
use super::postgres::{Pg, Table, failed, micros};
use super::shape::named;
use super::{PAGE_BYTES, PAGE_EVENTS, Page, Source, row};
use crate::event::{Place, SourceEvent};
use crate::options::{Options, Patience};

/// A journal without a global number.
pub(super) struct R2dbc {
    pg: Pg,
    /// For what is asked while the rows of a scan are not all read: on one connection the answer would come after them.
    beside: Pg,
    table: Table,
    snapshots: Option<Table>,
    read_all: Statement,
    /// The statement for a few new events, if there is an index for it.
    read_new: Option<Statement>,
    read_stream: Statement,
    has_read: bool,
    patience: Patience,
    /// When a part before the place was last read again; `None` if it never was.
    looked_back: Option<Instant>,
    /// The moment up to which nothing can appear any more, in microseconds since 1970.
    settled: i64,
    fence: Option<Fence>,
    scan: Option<Scan>,
}

/// A read that is under way.
struct Scan {
    rows: Pin<Box<RowStream>>,
    /// The settled moment when it began.
    settled: i64,
    /// The place when it began.
    begun: i64,
    place: i64,
}

impl R2dbc {
    pub(super) async fn open(options: &Options) -> Result<Self> {
        let pg = Pg::connect(options).await?;
        pg.refuse_standby().await?;
        let wanted = [
            "slice",
            "entity_type",
            "persistence_id",
            "seq_nr",
            "db_timestamp",
            "event_ser_id",
            "event_ser_manifest",
            "event_payload",
            "deleted",
            "writer",
        ];
        let table = pg
            .events(options, &[(None, "event_journal")], &wanted)
            .await?;
        let mut list = named([
            (Field::Key, "j.persistence_id::text"),
            (Field::Sequence, "j.seq_nr::int8"),
            (Field::Deleted, "j.deleted"),
            (Field::Manifest, "j.event_ser_manifest::text"),
            (Field::Serializer, "j.event_ser_id::int4"),
            (Field::Writer, "j.writer::text"),
        ]);
        list.push((Field::Number, micros("j.db_timestamp")));
        list.push((Field::Time, micros("j.db_timestamp")));
        list.push((Field::Data, table.bytes_of("j", "event_payload")));
        list.push((Field::Metadata, table.bytes_of("j", "meta_payload")));
        for (field, column, cast) in [
            (Field::Adapter, "adapter_manifest", "text"),
            (Field::MetadataSerializer, "meta_ser_id", "int4"),
            (Field::MetadataManifest, "meta_ser_manifest", "text"),
            (Field::Tags, "tags", "text[]"),
        ] {
            if table.has(column) {
                list.push((field, format!("j.{column}::{cast}")));
            }
        }
        let (columns, name) = (columns(&list, Cast::Typed), &table.name);
        let newer = "j.db_timestamp > to_timestamp(0) + $1::int8 * interval '1 microsecond'";
        let order = "ORDER BY j.db_timestamp, j.persistence_id, j.seq_nr";
        let read_all = format!("SELECT {columns} FROM {name} j WHERE {newer} {order}");
        // The one index on times begins with the slice and the type of entity. So all pairs of these are found by
        // leaps in the index, and then the newest events of each.
        let read_new = format!(
            "WITH RECURSIVE p AS ( \
               (SELECT t.slice, t.entity_type FROM {name} t ORDER BY t.slice, t.entity_type LIMIT 1) \
               UNION ALL \
               SELECT n.slice, n.entity_type FROM p, LATERAL (SELECT t.slice, t.entity_type FROM {name} t \
                 WHERE (t.slice, t.entity_type) > (p.slice, p.entity_type) \
                 ORDER BY t.slice, t.entity_type LIMIT 1) n) \
             SELECT {columns} FROM p, LATERAL (SELECT * FROM {name} j \
               WHERE j.slice = p.slice AND j.entity_type = p.entity_type AND {newer}) j {order}"
        );
        let read_stream = format!(
            "SELECT {columns} FROM {name} j WHERE j.persistence_id = $1 AND j.seq_nr >= $2::int8 AND j.seq_nr < $3::int8 \
             ORDER BY j.seq_nr LIMIT {PAGE_EVENTS}"
        );
        let beside = Pg::connect(options).await?;
        let prepare = async |sql: &str| {
            let prepared = pg.client.prepare(sql).await;
            prepared.map_err(|error| failed(&error))
        };
        Ok(Self {
            read_all: prepare(&read_all).await?,
            read_new: match has_index(&pg, &table).await? {
                true => Some(prepare(&read_new).await?),
                false => None,
            },
            read_stream: beside
                .client
                .prepare(&read_stream)
                .await
                .map_err(|error| failed(&error))?,
            beside,
            snapshots: pg.beside(&table, "snapshot").await?,
            pg,
            table,
            has_read: false,
            patience: options.patience,
            looked_back: None,
            settled: 0,
            fence: None,
            scan: None,
        })
    }

    /// Returns the moment after which the next scan reads: the place, or one before it.
    fn scan_from(&mut self, after: Place) -> i64 {
        let place = after.major_i64();
        let is_due = self
            .looked_back
            .is_none_or(|last| last.elapsed() >= self.patience.look_again);
        if !is_due {
            return place;
        }
        self.looked_back = Some(Instant::now());
        let back = i64::try_from(self.patience.look_back.as_micros()).unwrap_or(i64::MAX);
        place.saturating_sub(back).max(0)
    }

    /// Moves the settled moment, if everything that ran at a later one has ended. Returns for whom it waits.
    async fn settle(&mut self) -> Result<Option<String>> {
        let (rule, table) = (Rule::Earlier, self.table.oid);
        let mut fence = match self.fence.take() {
            Some(fence) => fence,
            None => {
                let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8";
                let now = self.pg.number(sql).await?;
                Fence::note(&self.pg, rule, table, now).await?
            }
        };
        if fence.is_open(&self.pg, rule, table).await? {
            // Of the microsecond itself something may still come.
            self.settled = fence.upto - 1;
            return Ok(None);
        }
        let told = fence.told();
        self.fence = Some(fence);
        Ok(Some(told))
    }
}

#[async_trait]
impl Source for R2dbc {
    fn identity(&self) -> String {
        self.pg.identity(&self.table)
    }

    fn server(&self) -> Option<String> {
        self.pg.server()
    }

    async fn page(&mut self, after: Place) -> Result<Page> {
        let mut scan = match self.scan.take() {
            Some(scan) => scan,
            None => {
                let waiting = self.settle().await?;
                let (after, from) = (after.major_i64(), self.scan_from(after));
                let params: [&(dyn ToSql + Sync); 1] = [&from];
                let read = match &self.read_new {
                    Some(read_new) if self.has_read => read_new,
                    _ => &self.read_all,
                };
                let rows = self.pg.client.query_raw(read, params).await;
                let rows = rows.map_err(|error| failed(&error))?;
                self.has_read = true;
                let scan = Scan {
                    rows: Box::pin(rows),
                    settled: self.settled,
                    begun: after,
                    place: after,
                };
                if waiting.is_some() && self.settled <= after {
                    // What is there is read, but the place stays.
                    return self.read(scan, waiting).await;
                }
                scan
            }
        };
        scan.place = scan.place.max(after.major_i64());
        self.read(scan, None).await
    }

    async fn between(
        &mut self,
        event: &SourceEvent,
        from: u64,
        to: u64,
    ) -> Result<Vec<SourceEvent>> {
        let number =
            |number| i64::try_from(number).map_err(|_| Error::corrupt("a number is too great"));
        let (from, to) = (number(from)?, number(to)?);
        let params: [&(dyn ToSql + Sync); 3] = [&&*event.key, &from, &to];
        let rows = self.beside.client.query(&self.read_stream, &params).await;
        let rows = rows.map_err(|error| failed(&error))?;
        rows.iter().map(row::event).collect()
    }

    async fn count(&mut self, after: Place) -> Result<Option<u64>> {
        let sql = format!(
            "SELECT count(*) FROM {} j WHERE j.db_timestamp > to_timestamp(0) + {}::int8 * interval '1 microsecond'",
            self.table.name, after.major
        );
        self.pg.count(&sql).await
    }

    async fn snapshots(&mut self) -> Result<Option<u64>> {
        match &self.snapshots {
            Some(table) => {
                self.pg
                    .count(&format!("SELECT count(*) FROM {}", table.name))
                    .await
            }
            None => Ok(None),
        }
    }
}

impl R2dbc {
    /// Reads the next page of a scan.
    async fn read(&mut self, mut scan: Scan, waiting: Option<String>) -> Result<Page> {
        let (mut events, mut bytes) = (Vec::<SourceEvent>::new(), 0);
        let mut is_over = false;
        while events.len() < PAGE_EVENTS && bytes < PAGE_BYTES {
            let Some(found) = scan.rows.try_next().await.map_err(|error| failed(&error))? else {
                is_over = true;
                break;
            };
            let event = row::event(&found)?;
            bytes += event.cost_bytes();
            events.push(event);
        }
        let place = match (is_over, events.last()) {
            (true, _) => scan.settled,
            // Other events may have the time of the last one.
            (false, Some(last)) => scan.settled.min(last.place.major_i64() - 1),
            (false, None) => scan.place,
        };
        let place = place.max(scan.place);
        // What was read again is no news.
        let is_new = |event: &SourceEvent| event.place.major_i64() > scan.begun;
        let page = Page {
            place: Place::number(place),
            end: is_over && !events.iter().any(is_new) && waiting.is_none(),
            events,
            waiting: waiting.filter(|_| is_over),
            late: false,
        };
        if !is_over {
            scan.place = place;
            self.scan = Some(scan);
        }
        Ok(page)
    }
}

/// Tells whether there is an index that finds new events.
async fn has_index(pg: &Pg, table: &Table) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = $1 AND i.indisvalid AND \
                 (SELECT array_agg(a.attname::text ORDER BY k.at) FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(n, at) \
                  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n WHERE k.at <= 3) \
                 = ARRAY['slice', 'entity_type', 'db_timestamp'])";
    let row = pg.client.query_one(sql, &[&table.oid]).await;
    Ok(row.map_err(|error| failed(&error))?.get(0))
}
