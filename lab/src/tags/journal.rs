//! The polled forms: a plain journal, readers that ask it for their tag again and again.
//!
//! As the plugins do it, with everything decided in their favour: writers insert batches of the write queue, each one
//! statement that commits by itself; readers share a pool, ask at once again after a full page and else after a pause,
//! and the bounded ones ask one tracker per process how far they may go (`tracker`). Statements are prepared and planned
//! with their values and with fresh statistics, and there is no transaction around a read.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::form::{self, Form, Statements};
use super::plan::{From, Plan};
use super::pool::{Pool, Prepared};
use super::readers::{Desk, Readers};
use super::subject::{Settings, Subject};
use super::tracker::Tracker;
use crate::endpoint;
use crate::failure::{Context, Result, fail};
use crate::postgres;

/// Bytes of the number at the beginning of a message.
pub(super) const NUMBER_BYTES: usize = 8;
/// Events of one entity.
const EVENTS_PER_ENTITY: u64 = 10;

/// A polled journal.
pub(super) struct Journal {
    form: Form,
    statements: Statements,
    url: String,
    /// Name of this run's connections.
    name: String,
    plan: Plan,
    settings: Settings,
    /// What follows the number in a message.
    filler: Bytes,
    pool: Option<Pool>,
    writers: Vec<Prepared>,
    /// The task that finds the maximum; ends when dropped.
    tracking: Option<(watch::Receiver<u64>, DropGuard)>,
}

impl Journal {
    /// The journal of a form, in a database.
    pub(super) fn new(form: Form, url: &str, plan: Plan, settings: &Settings) -> Option<Self> {
        let name = format!("gesta_lab_tags_{}", std::process::id());
        Some(Self {
            form,
            statements: form.statements()?,
            url: endpoint::with_parameter(url, "application_name", &name),
            name,
            plan,
            settings: settings.clone(),
            filler: settings.filler(),
            pool: None,
            writers: Vec::new(),
            tracking: None,
        })
    }

    async fn connect(&self) -> Result<Client> {
        let client = postgres::connect(&self.url).await?;
        // Planned with the values, as drivers that do not prepare get it.
        let sql = format!(
            "SET search_path TO {}; SET plan_cache_mode TO force_custom_plan",
            self.form.schema()
        );
        client.batch_execute(&sql).await.context("settings")?;
        Ok(client)
    }

    async fn prepared(&self, count: u32, sql: &str) -> Result<Vec<Prepared>> {
        let mut all = Vec::new();
        for _ in 0..count {
            let client = self.connect().await?;
            let statement = client.prepare(sql).await.context(self.form)?;
            all.push(Prepared { client, statement });
        }
        Ok(all)
    }

    async fn fill(&self, client: &Client) -> Result<()> {
        if self.plan.older > 0 {
            let numbers = [
                signed(self.plan.others()),
                signed(self.plan.tagged),
                signed(self.plan.readers),
            ];
            let filler: &[u8] = &self.filler;
            client
                .execute(
                    self.statements.fill,
                    &[&numbers[0], &numbers[1], &numbers[2], &filler],
                )
                .await
                .context("filling with older events")?;
        }
        client
            .batch_execute(self.statements.index)
            .await
            .context("making indexes")
    }

    /// Finds the maximum from now on, once per pause.
    async fn track(&self, safe: u64) -> Result<(watch::Receiver<u64>, DropGuard)> {
        let mut connections = self.prepared(1, form::READ_NUMBERS).await?;
        let connection = connections.remove(0);
        let (tell, told) = watch::channel(safe);
        let end = CancellationToken::new();
        let (ended, pause) = (end.clone(), self.settings.poll);
        tokio::spawn(async move {
            let mut tracker = Tracker::after(safe);
            loop {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = ended.cancelled() => return,
                }
                let Ok(rows) = connection.query(&[&signed(tracker.safe())]).await else {
                    // Readers notice that nobody tells them any more.
                    return;
                };
                let numbers: Vec<u64> = rows.iter().map(|row| unsigned(row.get(0))).collect();
                tracker.see(&numbers);
                tell.send_replace(tracker.safe());
            }
        });
        Ok((told, end.drop_guard()))
    }

    fn batches(&self) -> Batches {
        Batches {
            form: self.form,
            plan: self.plan,
            filler: self.filler.clone(),
        }
    }

    /// The task of one reader.
    fn reader(&self, from: From) -> Result<Reader> {
        let Some(pool) = self.pool.clone() else {
            return fail("the journal is not prepared");
        };
        Ok(Reader {
            form: self.form,
            pool,
            after: match from {
                From::Start => 0,
                From::End => self.plan.older,
            },
            page: signed(self.settings.page),
            poll: self.settings.poll,
            safe: self.tracking.as_ref().map(|(safe, _)| safe.clone()),
        })
    }

    async fn drop_schema(&self) -> Result<()> {
        let client = postgres::connect(&self.url).await?;
        client
            .execute(form::END_CONNECTIONS, &[&self.name])
            .await
            .context("ending connections")?;
        let schema = self.form.schema();
        client
            .batch_execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE"))
            .await
            .context(format!("dropping {schema}"))
    }
}

#[async_trait]
impl Subject for Journal {
    async fn prepare(&mut self, _: &CancellationToken) -> Result<()> {
        self.drop_schema().await?;
        let client = postgres::connect(&self.url).await?;
        let schema = self.form.schema();
        let sql = format!(
            "CREATE SCHEMA {schema}; SET search_path TO {schema}; {}",
            self.statements.create
        );
        client.batch_execute(&sql).await.context(self.form)?;
        self.fill(&client).await?;
        super::subject::settle(&client, &schema).await?;
        let settings = &self.settings;
        let readers = settings.connections.min(u32::try_from(self.plan.readers)?);
        let readers = self.prepared(readers, self.statements.read).await?;
        self.pool = Some(Pool::of(readers));
        self.writers = self
            .prepared(settings.writers, self.statements.insert)
            .await?;
        if self.form.is_bounded() {
            self.tracking = Some(self.track(self.plan.older).await?);
        }
        Ok(())
    }

    async fn readers(&mut self, from: From, written: Option<u64>) -> Result<Readers> {
        let reader = self.reader(from)?;
        let stagger = match from {
            // Those that run for a while poll at different moments.
            From::End => self.settings.poll / u32::try_from(self.plan.readers)?,
            From::Start => Duration::ZERO,
        };
        Ok(Readers::start(&self.plan, from, written, |desk| {
            let first = stagger * u32::try_from(desk.reader).unwrap_or(0);
            reader.clone().run(desk, first)
        }))
    }

    async fn write(&mut self, _: &CancellationToken) -> Result<u64> {
        let next = Arc::new(AtomicU64::new(0));
        let last = Arc::new(AtomicI64::new(0));
        let mut tasks = tokio::task::JoinSet::<Result<()>>::new();
        for writer in std::mem::take(&mut self.writers) {
            let (next, last) = (Arc::clone(&next), Arc::clone(&last));
            let batches = self.batches();
            let events = self.settings.batch;
            let all = self.plan.events;
            tasks.spawn(async move {
                loop {
                    let first = next.fetch_add(events, Ordering::Relaxed);
                    if first >= all {
                        return Ok(());
                    }
                    let batch = batches.of(first, (first + events).min(all));
                    let rows = writer.query(&batch.binds()).await?;
                    for row in rows {
                        last.fetch_max(row.get(0), Ordering::Relaxed);
                    }
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done?.context("a writer")?;
        }
        Ok(unsigned(last.load(Ordering::Relaxed)))
    }

    async fn remove(&mut self) -> Result<()> {
        self.tracking = None;
        self.pool = None;
        self.writers.clear();
        self.drop_schema().await
    }
}

/// Makes batches.
struct Batches {
    form: Form,
    plan: Plan,
    filler: Bytes,
}

/// The columns of a batch.
struct Batch {
    entities: Vec<String>,
    numbers: Vec<i64>,
    tags: Vec<String>,
    messages: Vec<Vec<u8>>,
}

impl Batches {
    /// The events of the burst from `first` to before `end`.
    fn of(&self, first: u64, end: u64) -> Batch {
        let row = |event: u64| self.plan.older + event;
        let number = |event: u64| self.plan.burst().start + event;
        Batch {
            entities: (first..end)
                .map(|event| format!("p-{}", row(event) / EVENTS_PER_ENTITY))
                .collect(),
            numbers: (first..end)
                .map(|event| signed(row(event) % EVENTS_PER_ENTITY + 1))
                .collect(),
            tags: (first..end)
                .map(|event| self.form.stored_tag(number(event) % self.plan.readers))
                .collect(),
            messages: (first..end)
                .map(|event| [&number(event).to_be_bytes()[..], &self.filler].concat())
                .collect(),
        }
    }
}

impl Batch {
    fn binds(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.entities, &self.numbers, &self.tags, &self.messages]
    }
}

/// One reader.
#[derive(Clone)]
struct Reader {
    form: Form,
    pool: Pool,
    after: u64,
    page: i64,
    poll: Duration,
    /// The tracker's maximum, if this reader is bounded.
    safe: Option<watch::Receiver<u64>>,
}

impl Reader {
    async fn run(mut self, mut desk: Desk, first: Duration) -> Result<Desk> {
        let tag = self.form.bound_tag(desk.reader);
        let mut pause = first;
        loop {
            let end = desk.end.clone();
            let step = async {
                tokio::time::sleep(pause).await;
                self.read(&tag, &mut desk).await
            };
            let is_full = tokio::select! {
                is_full = step => is_full?,
                () = end.cancelled() => return Ok(desk),
            };
            pause = if is_full { Duration::ZERO } else { self.poll };
        }
    }

    /// Reads a page; true if there may be another.
    async fn read(&mut self, tag: &String, desk: &mut Desk) -> Result<bool> {
        // Looked at before the read: what was written by then can be seen by it.
        let written = *desk.written.borrow();
        let safe = match &self.safe {
            None => None,
            Some(safe) if safe.has_changed().is_err() => return fail("the tracker has ended"),
            Some(safe) => Some(*safe.borrow()),
        };
        let after = signed(self.after);
        let rows = match safe.map(signed) {
            None => self.pool.query(&[tag, &after, &self.page]).await,
            Some(safe) => self.pool.query(&[tag, &after, &self.page, &safe]).await,
        };
        let rows = rows.context("reading by tag")?;
        for row in &rows {
            let position = unsigned(row.get(0));
            desk.enter(number_of(row.get(1))?, position);
            self.after = self.after.max(position);
        }
        if let (true, Some(safe)) = (rows.is_empty(), safe) {
            self.after = self.after.max(safe);
        }
        let is_full = rows.len() == usize::try_from(self.page)?;
        if !is_full {
            desk.live();
            // All is committed and within bounds: what has not come now was passed, and will never come.
            if written.is_some_and(|last| safe.is_none_or(|safe| safe >= last)) {
                desk.give_up();
            }
        }
        Ok(is_full)
    }
}

/// The number of an event.
fn number_of(message: &[u8]) -> Result<u64> {
    match message.first_chunk::<NUMBER_BYTES>() {
        Some(number) => Ok(u64::from_be_bytes(*number)),
        None => fail(format!("a message of {} bytes", message.len())),
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
impl Journal {
    /// Writes one event of the burst by way of a connection, in its transaction if it has one open.
    pub(super) async fn write_through(&self, client: &Client, event: u64) -> Result<()> {
        let sql = format!("SET search_path TO {}", self.form.schema());
        client.batch_execute(&sql).await?;
        let batch = self.batches().of(event, event + 1);
        client.query(self.statements.insert, &batch.binds()).await?;
        Ok(())
    }

    /// Waits until readers have read so many times more.
    pub(super) async fn wait_for_reads(&self, more: u64, deadline: Duration) {
        let pool = self.pool.as_ref().expect("prepared");
        let until = pool.answers() + more;
        let wait = async {
            while pool.answers() < until {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(deadline, wait).await;
        waited.expect("readers read");
    }
}
