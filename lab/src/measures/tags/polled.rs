//! The polled forms: a plain journal, readers that ask it for their tag again and again.
//!
//! As the plugins do it, with everything decided in their favour: writers insert batches of the write queue, each one
//! statement that commits by itself; readers share a pool, ask at once again after a full page and else after a pause,
//! and the bounded ones ask one tracker per process how far they may go. Statements are prepared and planned with their
//! values and with fresh statistics, and there is no transaction around a read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use gesta_load::random::Random;
use gesta_report::endpoint;
use gesta_report::failure::{Context, Failure, Result, fail};
use tokio::sync::watch;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::plan::{self, From, Plan};
use super::readers::{ReaderState, Readers};
use super::{Form, PAYLOAD, Settings, Subject, settle};
use crate::workload::journals::Database;

/// Bytes of the number at the beginning of a message.
const NUMBER_BYTES: usize = 8;
/// Events of one entity.
const EVENTS_PER_ENTITY: u64 = 10;
/// Connections that readers share, and those that write the burst.
const CONNECTIONS: u64 = 20;
const WRITERS: u64 = 3;
/// Events per insert: what the plugins' write queues make of a burst.
const BATCH: u64 = 100;
/// Looks after which a missing number is given up.
const TRIES: u32 = 10;

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../../sql/tags/", $name, ".sql"))
    };
}

/// The statements of a journal that is polled.
struct Statements {
    create: &'static str,
    fill: &'static str,
    index: &'static str,
    insert: &'static str,
}

const TEXT: Statements = Statements {
    create: sql!("create_text_journal"),
    fill: sql!("fill_text_journal"),
    index: sql!("index_text_journal"),
    insert: sql!("insert_text_journal"),
};

const TABLE: Statements = Statements {
    create: sql!("create_table_journal"),
    fill: sql!("fill_table_journal"),
    index: sql!("index_table_journal"),
    insert: sql!("insert_table_journal"),
};

const ARRAY: Statements = Statements {
    create: sql!("create_array_journal"),
    fill: sql!("fill_array_journal"),
    index: sql!("index_array_journal"),
    insert: sql!("insert_array_journal"),
};

impl Form {
    /// The statements of its journal, and the one that reads by tag.
    fn statements(self) -> Option<(Statements, &'static str)> {
        Some(match self {
            Form::LikeUnbounded => (TEXT, sql!("read_like_unbounded")),
            Form::LikeBounded => (TEXT, sql!("read_like_bounded")),
            Form::TagTableUnbounded => (TABLE, sql!("read_tag_table_unbounded")),
            Form::TagTableBounded => (TABLE, sql!("read_tag_table_bounded")),
            Form::ArrayGin => (ARRAY, sql!("read_array")),
            Form::Gesta => return None,
        })
    }

    /// True if its readers stop at the highest number below which none is missing.
    fn is_bounded(self) -> bool {
        !matches!(self, Form::LikeUnbounded | Form::TagTableUnbounded)
    }

    /// What a reader's tag is in a row.
    fn stored_tag(self, reader: u64) -> String {
        match self {
            Form::ArrayGin => reader.to_string(),
            _ => plan::tag_name(reader),
        }
    }

    /// What a reader binds.
    fn bound_tag(self, reader: u64) -> String {
        match self {
            Form::LikeUnbounded | Form::LikeBounded => format!("%;{};%", self.stored_tag(reader)),
            _ => self.stored_tag(reader),
        }
    }
}

/// A connection with its statement.
struct Prepared(Client, Statement);

impl Prepared {
    async fn query(&self, binds: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        Ok(self.0.query(&self.1, binds).await?)
    }
}

/// Connections that readers share, as the plugins' readers share their pool: some readers have the same one, and their
/// queries wait for each other.
struct Pool {
    connections: Vec<Prepared>,
    /// Queries answered so far.
    answers: AtomicU64,
}

impl Pool {
    async fn query(&self, reader: u64, binds: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let connection = reader % self.connections.len() as u64;
        let rows = self.connections[usize::try_from(connection)?].query(binds);
        let rows = rows.await;
        self.answers.fetch_add(1, Ordering::Relaxed);
        rows
    }
}

/// The highest number of a journal below which none is missing, as the plugins find it.
///
/// A sequence hands out numbers before their rows can be seen. A reader that goes on past a number that is still
/// missing never sees its row; so one task per process looks for new numbers, stops before the first that is missing,
/// and gives a missing one up after some looks (rolled-back inserts leave holes for ever).
#[derive(Debug, Default)]
struct Tracker {
    safe: u64,
    /// Looks that found the hole that begins at a number.
    holes: BTreeMap<u64, u32>,
}

impl Tracker {
    /// A look: the numbers above the maximum, rising.
    fn see(&mut self, numbers: &[u64]) {
        let mut holes = BTreeMap::new();
        let (mut last, mut is_safe) = (self.safe, true);
        for &number in numbers {
            let next = last + 1;
            if number > next {
                let looks = self.holes.get(&next).map_or(1, |looks| looks + 1);
                is_safe &= looks >= TRIES;
                holes.insert(next, looks);
            }
            last = number;
            if is_safe {
                self.safe = number;
            }
        }
        self.holes = holes.split_off(&(self.safe + 1));
    }
}

/// Entities, numbers in them, tags, messages.
type Columns = (Vec<String>, Vec<i64>, Vec<String>, Vec<Vec<u8>>);

pub(super) struct Polled {
    form: Form,
    statements: Statements,
    read: &'static str,
    database: Database,
    /// Name of this run's connections.
    name: String,
    plan: Plan,
    settings: Settings,
    /// What follows the number in a message.
    filler: Vec<u8>,
    pool: Option<Arc<Pool>>,
    writers: Vec<Prepared>,
    /// What the tracker tells; it ends when this is dropped.
    tracking: Option<(watch::Receiver<u64>, DropGuard)>,
}

impl Polled {
    /// The journal of a form, in a database; none for Gesta.
    pub(super) fn new(form: Form, url: &str, plan: Plan, settings: &Settings) -> Option<Self> {
        let name = format!("gesta_lab_tags_{}", std::process::id());
        let mut random = Random::fork(settings.seed, 3);
        let noise = std::iter::repeat_with(|| random.next().to_le_bytes()).flatten();
        let (statements, read) = form.statements()?;
        let url = endpoint::with_parameter(url, "application_name", &name);
        Some(Self {
            form,
            statements,
            read,
            database: Database::new(&url, form.schema(), Duration::ZERO),
            name,
            plan,
            settings: settings.clone(),
            filler: noise.take(PAYLOAD - NUMBER_BYTES).collect(),
            pool: None,
            writers: Vec::new(),
            tracking: None,
        })
    }

    async fn prepared(&self, count: u64, sql: &str) -> Result<Vec<Prepared>> {
        let mut all = Vec::new();
        for _ in 0..count {
            let client = self.database.direct().await?;
            // Planned with the values, as drivers that do not prepare get it.
            let setting = "SET plan_cache_mode TO force_custom_plan";
            client.batch_execute(setting).await.context("settings")?;
            let statement = client.prepare(sql).await.context(self.form.title())?;
            all.push(Prepared(client, statement));
        }
        Ok(all)
    }

    /// Finds the maximum from now on, once per pause.
    async fn track(&self, safe: u64) -> Result<(watch::Receiver<u64>, DropGuard)> {
        let connection = self.prepared(1, sql!("read_numbers")).await?.remove(0);
        let (tell, told) = watch::channel(safe);
        let end = CancellationToken::new();
        let (ended, pause) = (end.clone(), self.settings.poll);
        tokio::spawn(async move {
            let mut tracker = Tracker {
                safe,
                ..Tracker::default()
            };
            let pauses = || ended.run_until_cancelled(tokio::time::sleep(pause));
            while pauses().await.is_some() {
                // Readers notice that nobody tells them any more.
                let Ok(rows) = connection.query(&[&signed(tracker.safe)]).await else {
                    return;
                };
                let numbers: Vec<u64> = rows.iter().map(|row| unsigned(row.get(0))).collect();
                tracker.see(&numbers);
                tell.send_replace(tracker.safe);
            }
        });
        Ok((told, end.drop_guard()))
    }

    /// The columns of these events of the burst.
    fn batch(&self, events: std::ops::Range<u64>) -> Columns {
        let mut columns = Columns::default();
        for event in events {
            let (row, number) = (self.plan.older + event, self.plan.burst().start + event);
            let tag = self.form.stored_tag(number % self.plan.readers);
            let message = [&number.to_be_bytes()[..], &self.filler].concat();
            columns.0.push(format!("p-{}", row / EVENTS_PER_ENTITY));
            columns.1.push(signed(row % EVENTS_PER_ENTITY + 1));
            columns.2.push(tag);
            columns.3.push(message);
        }
        columns
    }

    async fn end_connections(&self) -> Result<()> {
        let client = self.database.direct().await?;
        let ended = client.execute(sql!("end_connections"), &[&self.name]).await;
        ended.context("ending connections").map(drop)
    }
}

#[async_trait]
impl Subject for Polled {
    async fn prepare(&mut self, _: &CancellationToken) -> Result<()> {
        self.end_connections().await?;
        let client = self.database.make(None, self.statements.create).await?;
        if self.plan.older > 0 {
            let plan = &self.plan;
            let [others, tagged, readers] = [plan.others(), plan.tagged, plan.readers].map(signed);
            let binds: [&(dyn ToSql + Sync); 4] = [&others, &tagged, &readers, &self.filler];
            let filled = client.execute(self.statements.fill, &binds).await;
            filled.context("filling with older events")?;
        }
        let indexed = client.batch_execute(self.statements.index).await;
        indexed.context("making indexes")?;
        settle(&client, self.database.schema()).await?;
        let readers = CONNECTIONS.min(self.plan.readers);
        self.pool = Some(Arc::new(Pool {
            connections: self.prepared(readers, self.read).await?,
            answers: AtomicU64::new(0),
        }));
        self.writers = self.prepared(WRITERS, self.statements.insert).await?;
        if self.form.is_bounded() {
            self.tracking = Some(self.track(self.plan.older).await?);
        }
        Ok(())
    }

    async fn readers(&mut self, from: From, written: Option<u64>) -> Result<Readers> {
        let Some(pool) = self.pool.clone() else {
            return fail("the journal is not prepared");
        };
        let reader = Reader {
            form: self.form,
            pool,
            after: match from {
                From::Start => 0,
                From::End => self.plan.older,
            },
            page: signed(self.settings.page),
            poll: self.settings.poll,
            safe: self.tracking.as_ref().map(|(safe, _)| safe.clone()),
        };
        let stagger = match from {
            // Those that run for a while poll at different moments.
            From::End => self.settings.poll / u32::try_from(self.plan.readers)?,
            From::Start => Duration::ZERO,
        };
        Ok(Readers::start(&self.plan, from, written, |state| {
            let first = stagger * u32::try_from(state.reader).unwrap_or(0);
            reader.clone().run(state, first)
        }))
    }

    async fn write(&mut self, _: &CancellationToken) -> Result<u64> {
        let (next, last) = (AtomicU64::new(0), AtomicI64::new(0));
        let all = self.plan.events;
        let (next, last, this) = (&next, &last, &*self);
        let write = async |writer: &Prepared| {
            loop {
                let first = next.fetch_add(BATCH, Ordering::Relaxed);
                if first >= all {
                    return Ok::<_, Failure>(());
                }
                let columns = this.batch(first..(first + BATCH).min(all));
                let (entities, numbers, tags, messages) = columns;
                let rows = writer.query(&[&entities, &numbers, &tags, &messages]).await;
                for row in rows.context("a writer")? {
                    last.fetch_max(row.get(0), Ordering::Relaxed);
                }
            }
        };
        let [one, two, three] = self.writers.as_slice() else {
            return fail("the journal is not prepared");
        };
        tokio::try_join!(write(one), write(two), write(three))?;
        Ok(unsigned(last.load(Ordering::Relaxed)))
    }

    async fn remove(&mut self) -> Result<()> {
        (self.tracking, self.pool) = (None, None);
        self.writers.clear();
        self.end_connections().await?;
        self.database.drop_all().await
    }
}

#[derive(Clone)]
struct Reader {
    form: Form,
    pool: Arc<Pool>,
    after: u64,
    page: i64,
    poll: Duration,
    /// The tracker's maximum, if this reader is bounded.
    safe: Option<watch::Receiver<u64>>,
}

impl Reader {
    async fn run(mut self, mut state: ReaderState, first: Duration) -> Result<ReaderState> {
        let (tag, end) = (self.form.bound_tag(state.reader), state.end.clone());
        let pauses = |pause| end.run_until_cancelled(tokio::time::sleep(pause));
        let mut pause = first;
        while pauses(pause).await.is_some() {
            let is_full = self.read(&tag, &mut state).await?;
            pause = if is_full { Duration::ZERO } else { self.poll };
        }
        Ok(state)
    }

    /// Reads a page; true if there may be another.
    async fn read(&mut self, tag: &String, state: &mut ReaderState) -> Result<bool> {
        // Looked at before the read: what was written by then can be seen by it.
        let written = *state.written.borrow();
        let safe = match &self.safe {
            None => None,
            Some(safe) if safe.has_changed().is_err() => return fail("the tracker has ended"),
            Some(safe) => Some(*safe.borrow()),
        };
        let (after, bound) = (signed(self.after), safe.map(signed));
        let mut binds: Vec<&(dyn ToSql + Sync)> = vec![tag, &after, &self.page];
        if let Some(bound) = &bound {
            binds.push(bound);
        }
        let rows = self.pool.query(state.reader, &binds).await;
        let rows = rows.context("reading by tag")?;
        for row in &rows {
            let position = unsigned(row.get(0));
            let Some(number) = row.get::<_, &[u8]>(1).first_chunk::<NUMBER_BYTES>() else {
                return fail("a message without its number");
            };
            state.enter(u64::from_be_bytes(*number), position);
            self.after = self.after.max(position);
        }
        if let (true, Some(safe)) = (rows.is_empty(), safe) {
            self.after = self.after.max(safe);
        }
        let is_full = rows.len() == usize::try_from(self.page)?;
        if !is_full {
            state.live();
            // All is committed and within bounds: what has not come now was passed, and will never come.
            if written.is_some_and(|last| safe.is_none_or(|safe| safe >= last)) {
                state.done();
            }
        }
        Ok(is_full)
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
impl Polled {
    /// Writes one event of the burst by way of a connection, in its transaction if it has one open.
    pub(super) async fn write_through(&self, client: &Client, event: u64) -> Result<()> {
        let sql = format!("SET search_path TO {}", self.form.schema());
        client.batch_execute(&sql).await?;
        let (entities, numbers, tags, messages) = self.batch(event..event + 1);
        let binds: [&(dyn ToSql + Sync); 4] = [&entities, &numbers, &tags, &messages];
        client.query(self.statements.insert, &binds).await?;
        Ok(())
    }

    /// Waits until readers have read so many times more.
    pub(super) async fn wait_for_reads(&self, more: u64) {
        let answers = || self.pool.as_ref().unwrap().answers.load(Ordering::Relaxed);
        let until = answers() + more;
        let all = async {
            while answers() < until {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let all = tokio::time::timeout(Duration::from_secs(60), all).await;
        all.expect("readers read");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tracker_stops_before_what_is_missing_and_gives_up_what_does_not_come() {
        let mut tracker = Tracker::default();
        tracker.see(&[1, 2, 4, 5]);
        assert_eq!(tracker.safe, 2);
        tracker.see(&[3, 4, 5, 8]);
        assert_eq!(tracker.safe, 5);
        // The hole at 6 was seen once, the one at 9 comes one look later.
        for _ in 2..TRIES {
            tracker.see(&[8, 10]);
            assert_eq!(tracker.safe, 5);
        }
        tracker.see(&[8, 10]);
        assert_eq!(tracker.safe, 8);
        tracker.see(&[10]);
        assert_eq!((tracker.safe, tracker.holes.len()), (10, 0));
    }
}
