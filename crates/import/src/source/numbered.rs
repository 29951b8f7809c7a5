//! Journals on PostgreSQL that give every event a global number.
//!
//! How: events are read by ranges of numbers, up to a number that is *settled*: nothing can appear at or before it any
//! more (`fence`). Where numbers may be drawn early, numbers that were missing are kept for a while and looked for
//! again, also those shortly before the place where an import goes on.

use std::collections::BTreeSet;

use async_trait::async_trait;
use futures::TryStreamExt;
use gesta_core::{ErrorKind, Result};
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

use super::fence::{Fence, Rule};
use super::mark::Mark;
use super::postgres::{Pg, failed};
use super::shape::Shape;
use super::{PAGE_BYTES, PAGE_EVENTS, Page, Source, row};
use crate::event::{Place, SourceEvent};
use crate::options::{Options, Patience};

/// How many numbers a page spans.
const PAGE_NUMBERS: i64 = 5_000;
/// How many numbers are looked at to find out that none is missing.
const PREFIX_NUMBERS: i64 = 10_000;
/// How many missing numbers are looked for again, and how far back when an import goes on.
const GAPS_MAX: usize = 10_000;

/// A journal with a global number.
pub(super) struct Numbered {
    pg: Pg,
    shape: Shape,
    patience: Patience,
    read: Statement,
    read_numbers: Statement,
    read_some: Statement,
    read_stream: Statement,
    /// The query that tells the greatest number drawn.
    greatest: String,
    /// The number up to which nothing can appear any more.
    settled: i64,
    fence: Option<Fence>,
    /// Missing numbers that are looked for again.
    gaps: BTreeSet<i64>,
    /// The number up to which was read again what stands before the place where the import goes on.
    read_again: Option<i64>,
    /// The last event that was read.
    last: Option<Mark>,
    /// Whether `last` is of a checkpoint, and is to be looked for.
    is_recalled: bool,
    /// Whether the query for the greatest number counts also those whose events were deleted.
    counts_deleted: bool,
}

impl Numbered {
    pub(super) async fn open(options: &Options) -> Result<Self> {
        let pg = Pg::connect(options).await?;
        pg.refuse_standby().await?;
        let mut shape = Shape::of(&pg, options).await?;
        let (greatest, counts_deleted) = greatest(&pg, &mut shape).await?;
        let Shape {
            columns,
            from,
            number,
            filter,
            of_stream,
            sequence,
            numbers_from,
            ..
        } = &shape;
        let prepare = async |sql: String| {
            let prepared = pg.client.prepare(&sql).await;
            prepared.map_err(|error| failed(&error))
        };
        let read = format!(
            "SELECT {columns} FROM {from} WHERE {filter} AND {number} > $1 AND {number} <= $2 ORDER BY {number}"
        );
        let read_numbers = format!(
            "SELECT {number}::int8 FROM {numbers_from} WHERE {filter} AND {number} > $1 AND {number} <= $2 \
             ORDER BY {number}"
        );
        let read_some = format!(
            "SELECT {columns} FROM {from} WHERE {filter} AND {number} = ANY($1::int8[]) ORDER BY {number}"
        );
        let read_stream = format!(
            "SELECT {columns} FROM {from} WHERE {filter} AND {of_stream} \
             AND {sequence} >= $2::int8 AND {sequence} < $3::int8 ORDER BY {sequence} LIMIT {PAGE_EVENTS}"
        );
        Ok(Self {
            read: prepare(read).await?,
            read_numbers: prepare(read_numbers).await?,
            read_some: prepare(read_some).await?,
            read_stream: prepare(read_stream).await?,
            greatest,
            settled: 0,
            fence: None,
            gaps: BTreeSet::new(),
            read_again: None,
            last: None,
            is_recalled: false,
            counts_deleted,
            patience: options.patience,
            pg,
            shape,
        })
    }

    /// Refuses a source that has not the event any more up to which was imported, and may have given its number out
    /// again.
    async fn compare(&self) -> Result<()> {
        let Some(mark) = &self.last else {
            return Ok(());
        };
        let number = mark.place.major_i64();
        let rows = self
            .pg
            .client
            .query(&self.read_some, &[&vec![number]])
            .await;
        let rows = rows.map_err(|error| failed(&error))?;
        let found = rows.first().map(row::event).transpose()?;
        let is_beyond = self.counts_deleted && self.pg.number(&self.greatest).await? < number;
        mark.compare(found.as_ref(), &self.pg, is_beyond)
    }

    async fn numbers(&self, after: i64, upto: i64) -> Result<Vec<i64>> {
        let rows = self
            .pg
            .client
            .query(&self.read_numbers, &[&after, &upto])
            .await;
        let rows = rows.map_err(|error| failed(&error))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Moves the settled number beyond `after`, if there are events there. Returns for whom it has to wait.
    async fn settle(&mut self, after: i64) -> Result<Option<String>> {
        let greatest = self.pg.number(&self.greatest).await?;
        if greatest <= after {
            self.fence = None;
            return Ok(None);
        }
        let (rule, table) = (self.shape.rule, self.shape.table.oid);
        if rule == Rule::InOrder {
            self.settled = greatest;
            return Ok(None);
        }
        let is_new = self.fence.is_none();
        let mut fence = match self.fence.take() {
            Some(fence) => fence,
            None => Fence::note(&self.pg, rule, table, greatest).await?,
        };
        let is_open = fence.is_open(&self.pg, rule, table).await?;
        let age = fence.age();
        let is_settled = match rule {
            Rule::Earlier => {
                (is_open && age >= self.patience.gap_min) || age >= self.patience.gap_max
            }
            _ => is_open,
        };
        if is_settled {
            self.settled = fence.upto;
            return Ok(None);
        }
        // Numbers without a gap are all there, whoever still writes.
        let numbers = self
            .numbers(after, after.saturating_add(PREFIX_NUMBERS))
            .await?;
        let prefix = (after + 1..)
            .zip(&numbers)
            .take_while(|(wanted, found)| wanted == *found)
            .last();
        let told = fence.told();
        if let Some((last, _)) = prefix {
            self.settled = last;
            // A fence that waits for something goes on waiting.
            self.fence = (!is_new).then_some(fence);
            return Ok(None);
        }
        self.fence = Some(fence);
        Ok(Some(told))
    }

    /// Reads the events of a range of numbers, or of its beginning.
    async fn range(&mut self, after: i64, last: i64) -> Result<Page> {
        let upto = last.min(after.saturating_add(PAGE_NUMBERS));
        let params: [&(dyn ToSql + Sync); 2] = [&after, &upto];
        let rows = self.pg.client.query_raw(&self.read, params).await;
        let rows = rows.map_err(|error| failed(&error))?;
        futures::pin_mut!(rows);
        let (mut events, mut bytes) = (Vec::new(), 0);
        let mut end = upto;
        while let Some(found) = rows.try_next().await.map_err(|error| failed(&error))? {
            let event = row::event(&found)?;
            bytes += event.cost_bytes();
            let place = event.place.major_i64();
            events.push(event);
            if bytes >= PAGE_BYTES {
                end = place;
                break;
            }
        }
        if events.is_empty() && upto < last {
            end = self
                .next_number(upto, last)
                .await?
                .map_or(last, |next| next - 1);
        }
        if let Some(event) = events.last()
            && self
                .last
                .as_ref()
                .is_none_or(|last| event.place > last.place)
        {
            self.last = Some(Mark::of(event, &self.pg));
        }
        if self.shape.rule == Rule::Earlier && end - after <= PAGE_NUMBERS {
            let found: BTreeSet<i64> = events.iter().map(|event| event.place.major_i64()).collect();
            self.miss((after + 1..=end).filter(|number| !found.contains(number)));
        }
        Ok(Page {
            events,
            place: Place::number(end),
            ..Page::default()
        })
    }

    async fn next_number(&self, after: i64, last: i64) -> Result<Option<i64>> {
        let Shape {
            number,
            numbers_from,
            filter,
            ..
        } = &self.shape;
        let sql = format!(
            "SELECT min({number})::int8 FROM {numbers_from} WHERE {filter} AND {number} > $1 AND {number} <= $2"
        );
        let row = self.pg.client.query_one(&sql, &[&after, &last]).await;
        Ok(row.map_err(|error| failed(&error))?.get(0))
    }

    fn miss(&mut self, numbers: impl Iterator<Item = i64>) {
        for number in numbers {
            self.gaps.insert(number);
            if self.gaps.len() > GAPS_MAX {
                self.gaps.pop_first();
            }
        }
    }

    /// Looks for events at numbers that were missing.
    async fn late(&mut self, after: Place) -> Result<Option<Page>> {
        if self.gaps.is_empty() {
            return Ok(None);
        }
        let wanted: Vec<i64> = self.gaps.iter().copied().collect();
        let rows = self.pg.client.query(&self.read_some, &[&wanted]).await;
        let rows = rows.map_err(|error| failed(&error))?;
        let events: Vec<SourceEvent> = rows.iter().map(row::event).collect::<Result<_>>()?;
        for event in &events {
            self.gaps.remove(&event.place.major_i64());
        }
        let page = Page {
            events,
            place: after,
            late: true,
            ..Page::default()
        };
        Ok((!page.events.is_empty()).then_some(page))
    }
}

/// Returns the query that tells the greatest number that was drawn, and whether it counts those whose events were
/// deleted. Notes if sessions draw numbers in advance.
async fn greatest(pg: &Pg, shape: &mut Shape) -> Result<(String, bool)> {
    let Shape {
        numbers_from,
        number,
        filter,
        ..
    } = &*shape;
    let of_table = format!("SELECT max({number})::int8 FROM {numbers_from} WHERE {filter}");
    if shape.drawn_for.is_empty() {
        return Ok((of_table, false));
    }
    let find = "SELECT s.oid, format('%I.%I', n.nspname, s.relname), q.seqcache, \
                  has_sequence_privilege(s.oid, 'SELECT') \
                FROM pg_class s JOIN pg_namespace n ON n.oid = s.relnamespace JOIN pg_sequence q ON q.seqrelid = s.oid \
                WHERE s.oid = coalesce( \
                    pg_get_serial_sequence($1, $2)::regclass, \
                    (SELECT to_regclass(substring(pg_get_expr(d.adbin, d.adrelid) FROM '''([^'']+)''')) \
                     FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum \
                     WHERE d.adrelid = $1::text::regclass AND a.attname = $2), \
                    to_regclass($3))";
    let beside = match (shape.drawn_by, shape.table.name.rsplit_once('.')) {
        (Some(name), Some((schema, _))) => format!("{schema}.{name}"),
        _ => String::from("pg_catalog.none"),
    };
    let drawn = "SELECT EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = $1::text::regclass AND a.attname = $2 \
                 AND (a.atthasdef OR a.attidentity <> ''))";
    let row = pg
        .client
        .query_one(drawn, &[&shape.table.name, &shape.drawn_for])
        .await;
    let drawn_by_insert: bool = row.map_err(|error| failed(&error))?.get(0);
    let row = pg
        .client
        .query_opt(find, &[&shape.table.name, &shape.drawn_for, &beside])
        .await;
    let row = row.map_err(|error| failed(&error))?;
    let cache: i64 = row.as_ref().map_or(1, |row| row.get(2));
    // A session that draws several numbers at once uses them later, and a column without default gets numbers that were
    // drawn by a statement before.
    if cache > 1 || !drawn_by_insert {
        shape.rule = Rule::Earlier;
    }
    let Some(row) = row else {
        return Ok((of_table, false));
    };
    let (name, may_read): (String, bool) = (row.get(1), row.get(3));
    if !may_read {
        return Ok((of_table, false));
    }
    let of_sequence =
        format!("SELECT CASE WHEN is_called THEN last_value ELSE 0 END::int8 FROM {name}");
    // Without an index to find it by, the greatest number that is there is looked for once only. It can be beyond the
    // sequence: a copy by logical replication has the rows alone.
    let indexed = "SELECT EXISTS (SELECT 1 FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
                   JOIN pg_am m ON m.oid = c.relam JOIN pg_attribute a ON a.attrelid = i.indrelid \
                   WHERE i.indrelid = $1::text::regclass AND m.amname = 'btree' AND a.attname = $2 \
                   AND i.indkey[0] = a.attnum AND i.indisvalid)";
    let row = pg
        .client
        .query_one(indexed, &[&shape.table.name, &shape.drawn_for])
        .await;
    let there = match row.map_err(|error| failed(&error))?.get(0) {
        true => format!("({of_table})"),
        false => pg.number(&of_table).await?.to_string(),
    };
    let both = format!("SELECT greatest(({of_sequence}), {there})::int8");
    Ok((both, true))
}

#[async_trait]
impl Source for Numbered {
    fn identity(&self) -> String {
        self.pg.identity(&self.shape.table)
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
        let number = after.major_i64();
        if self.shape.rule == Rule::Earlier {
            let span = i64::try_from(GAPS_MAX).unwrap_or(0);
            let begin = number.saturating_sub(span).max(0);
            let from = *self.read_again.get_or_insert(begin);
            // Only an import that goes on has something to read again; later the numbers that were missing are known.
            if from < number && self.settled == 0 {
                let page = self.range(from, number).await?;
                self.read_again = Some(page.place.major_i64());
                return Ok(Page {
                    place: after,
                    ..page
                });
            }
        }
        let mut waiting = None;
        if number >= self.settled {
            waiting = self.settle(number).await?;
        }
        if number < self.settled {
            return self.range(number, self.settled).await;
        }
        if let Some(late) = self.late(after).await? {
            return Ok(late);
        }
        Ok(Page {
            place: after,
            end: waiting.is_none(),
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
        let number = |number: u64| {
            i64::try_from(number).map_err(|_| {
                let text = format!("the source has the number {number} in {:?}", event.key);
                gesta_core::Error::from(ErrorKind::Corrupt(text))
            })
        };
        let (from, to) = (number(from)?, number(to)?);
        let stream = event.ident.as_deref().unwrap_or(&event.key);
        let params: [&(dyn ToSql + Sync); 4] = [&stream, &from, &to, &event.tenant];
        let rows = self.pg.client.query(&self.read_stream, &params).await;
        let rows = rows.map_err(|error| failed(&error))?;
        rows.iter().map(row::event).collect()
    }

    async fn count(&mut self, after: Place) -> Result<Option<u64>> {
        let Shape {
            number,
            numbers_from,
            filter,
            ..
        } = &self.shape;
        let after = after.major_i64();
        let sql =
            format!("SELECT count(*) FROM {numbers_from} WHERE {filter} AND {number} > {after}");
        self.pg.count(&sql).await
    }

    async fn snapshots(&mut self) -> Result<Option<u64>> {
        match &self.shape.snapshots {
            Some(table) => {
                self.pg
                    .count(&format!("SELECT count(*) FROM {}", table.name))
                    .await
            }
            None => Ok(None),
        }
    }
}
