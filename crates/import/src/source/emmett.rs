//! Emmett on PostgreSQL: events stand in the order of the transaction that wrote them and their number.
//!
//! Each row holds the id of its transaction. What is below every transaction that runs is complete, and nothing can
//! appear there. But a transaction may get its id early and append late, so an event can stand before an earlier one of
//! its stream: then `between` is asked for the earlier ones.

use async_trait::async_trait;
use futures::TryStreamExt;
use gesta_core::{Error, ErrorKind, Result};
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

use super::field::{Cast, Field, columns};
use super::mark::Mark;
use super::postgres::{Pg, Table, failed, micros};
use super::shape::{keyed, named};
use super::{PAGE_BYTES, PAGE_EVENTS, Page, Source, row};
use crate::event::{Place, SourceEvent};
use crate::options::Options;

/// The partition is a tenant; which one is the default has changed over time.
pub(super) const TENANT: &str =
    "CASE WHEN j.partition NOT IN ('emt:default', 'global') THEN CAST(j.partition AS text) END";

/// Emmett's table of messages.
pub(super) struct Emmett {
    pg: Pg,
    table: Table,
    read: Statement,
    read_stream: Statement,
    read_one: Statement,
    /// The last event that was read.
    last: Option<Mark>,
    /// Whether `last` is of a checkpoint, and is to be looked for.
    is_recalled: bool,
    /// Whether all rows were found to be of this server.
    is_own: bool,
}

impl Emmett {
    pub(super) async fn open(options: &Options) -> Result<Self> {
        let pg = Pg::connect(options).await?;
        pg.refuse_standby().await?;
        let wanted = [
            "stream_id",
            "stream_position",
            "global_position",
            "transaction_id",
            "message_id",
            "message_type",
            "message_data",
            "message_metadata",
            "message_kind",
            "created",
        ];
        let table = pg
            .events(options, &[(None, "emt_messages")], &wanted)
            .await?;
        let mut list = named([
            (Field::Number, "j.transaction_id::text::int8"),
            (Field::Minor, "j.global_position::int8"),
            (Field::Sequence, "j.stream_position::int8"),
            (Field::Ident, "j.stream_id::text"),
            (Field::Type, "j.message_type::text"),
            (
                Field::LeftOut,
                "CASE WHEN j.message_kind <> 'E' THEN 'commands' END",
            ),
            (
                Field::Id,
                "CASE WHEN j.message_id ~ '^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$' \
                 THEN j.message_id::uuid END",
            ),
        ]);
        let tenant = match table.has("partition") {
            true => TENANT,
            false => "NULL::text",
        };
        list.push((Field::Tenant, tenant.into()));
        list.push((Field::Key, keyed(tenant, "j.stream_id::text", Cast::Typed)));
        list.push((Field::Time, micros("j.created")));
        list.push((Field::Data, table.bytes_of("j", "message_data")));
        list.push((Field::Metadata, table.bytes_of("j", "message_metadata")));
        if table.has("is_archived") {
            list.push((Field::Deleted, "j.is_archived".into()));
        }
        let (columns, name) = (columns(&list, Cast::Typed), &table.name);
        let read = format!(
            "SELECT {columns} FROM {name} j WHERE (j.transaction_id, j.global_position) > ($1::int8::text::xid8, $2::int8) \
             AND j.transaction_id < pg_snapshot_xmin(pg_current_snapshot()) \
             ORDER BY j.transaction_id, j.global_position LIMIT {PAGE_EVENTS}"
        );
        let read_stream = format!(
            "SELECT {columns} FROM {name} j WHERE j.stream_id = $1 AND {tenant} IS NOT DISTINCT FROM $4::text \
             AND j.stream_position >= $2::int8 AND j.stream_position < $3::int8 \
             ORDER BY j.stream_position LIMIT {PAGE_EVENTS}"
        );
        let read_one = format!(
            "SELECT {columns} FROM {name} j WHERE (j.transaction_id, j.global_position) = ($1::int8::text::xid8, $2::int8)"
        );
        let prepare = async |sql: &str| {
            let prepared = pg.client.prepare(sql).await;
            prepared.map_err(|error| failed(&error))
        };
        Ok(Self {
            read: prepare(&read).await?,
            read_stream: prepare(&read_stream).await?,
            read_one: prepare(&read_one).await?,
            last: None,
            is_recalled: false,
            is_own: false,
            pg,
            table,
        })
    }
}

#[async_trait]
impl Source for Emmett {
    fn identity(&self) -> String {
        self.pg.identity(&self.table)
    }

    fn server(&self) -> Option<String> {
        self.pg.server()
    }

    fn mark(&self) -> Option<String> {
        self.last.as_ref().map(Mark::text)
    }

    fn recall(&mut self, mark: &str) {
        self.last = Mark::parse(mark);
        self.is_recalled = self.last.is_some();
    }

    async fn page(&mut self, after: Place) -> Result<Page> {
        if self.is_recalled {
            self.compare().await?;
            self.is_recalled = false;
        }
        if !self.is_own {
            // Before anything is stored: the cure gives each row another place.
            self.refuse_foreign().await?;
            self.is_own = true;
        }
        let (major, minor) = (after.major_i64(), after.minor_i64());
        let params: [&(dyn ToSql + Sync); 2] = [&major, &minor];
        let rows = self.pg.client.query_raw(&self.read, params).await;
        let rows = rows.map_err(|error| failed(&error))?;
        futures::pin_mut!(rows);
        let (mut events, mut bytes) = (Vec::<SourceEvent>::new(), 0);
        while let Some(found) = rows.try_next().await.map_err(|error| failed(&error))? {
            let event = row::event(&found)?;
            bytes += event.cost_bytes();
            events.push(event);
            if bytes >= PAGE_BYTES {
                break;
            }
        }
        let mut waiting = None;
        if let Some(last) = events.last() {
            self.last = Some(Mark::of(last, &self.pg));
        }
        if events.is_empty() && self.has_later(major, minor).await? {
            self.refuse_foreign().await?;
            waiting = Some(
                "a transaction of the database server that is older than the last events".into(),
            );
        }
        Ok(Page {
            place: events.last().map_or(after, |event| event.place),
            end: events.is_empty() && waiting.is_none(),
            events,
            waiting,
            ..Page::default()
        })
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
        let stream = event.ident.as_deref().unwrap_or(&event.key);
        let params: [&(dyn ToSql + Sync); 4] = [&stream, &from, &to, &event.tenant];
        let rows = self.pg.client.query(&self.read_stream, &params).await;
        let rows = rows.map_err(|error| failed(&error))?;
        rows.iter().map(row::event).collect()
    }

    async fn count(&mut self, after: Place) -> Result<Option<u64>> {
        let (name, major, minor) = (&self.table.name, after.major, after.minor);
        let sql = format!(
            "SELECT count(*) FROM {name} j \
             WHERE (j.transaction_id, j.global_position) > ('{major}'::xid8, {minor}::int8)"
        );
        self.pg.count(&sql).await
    }
}

impl Emmett {
    /// Refuses a source that has not the event any more up to which was imported, and may have given its number out
    /// again.
    async fn compare(&self) -> Result<()> {
        let Some(mark) = &self.last else {
            return Ok(());
        };
        let (major, minor) = (mark.place.major_i64(), mark.place.minor_i64());
        let rows = self
            .pg
            .client
            .query(&self.read_one, &[&major, &minor])
            .await;
        let rows = rows.map_err(|error| failed(&error))?;
        let found = rows.first().map(row::event).transpose()?;
        let next = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8";
        let is_beyond = self.pg.number(next).await? <= major;
        mark.compare(found.as_ref(), &self.pg, is_beyond)
    }

    /// Refuses rows with transactions that this server has not begun yet: they were made elsewhere. Nothing would tell
    /// when they are complete, and new events would stand before them.
    async fn refuse_foreign(&self) -> Result<()> {
        let name = &self.table.name;
        let sql = format!(
            "SELECT count(*) FROM (SELECT 1 FROM {name} j \
             WHERE j.transaction_id >= pg_snapshot_xmax(pg_current_snapshot()) LIMIT 1) x"
        );
        match self.pg.number(&sql).await? {
            0 => Ok(()),
            _ => Err(ErrorKind::Unsupported(format!(
                "the source: rows of {name} have transactions that this server has not had yet, so they were written on \
                 another one, and restored here from a dump: let them be of a transaction of this one before anything is \
                 appended here, UPDATE {name} SET transaction_id = pg_current_xact_id(), which keeps the order of \
                 their numbers"
            ))
            .into()),
        }
    }

    /// Returns true if there are events after a place, also such as a running transaction may still come before.
    async fn has_later(&self, major: i64, minor: i64) -> Result<bool> {
        let sql = format!(
            "SELECT count(*) FROM (SELECT 1 FROM {} j WHERE (j.transaction_id, j.global_position) > \
             ('{major}'::xid8, {minor}::int8) LIMIT 1) x",
            self.table.name
        );
        Ok(self.pg.number(&sql).await? > 0)
    }
}
