//! `tags`: what does reading by tag cost, polled in the field's ways and by Gesta's subscriptions?
//!
//! Repeats a published experiment: a burst of 2,000 events, 35 readers that each follow one tag. Measured are the time
//! of the database, its queries, the time until the last reader has everything, and the queries while nothing happens;
//! with few and with millions of older events. Then the burst again for other numbers of readers.
//!
//! The polled readers pause for a second after a page that was not full, as the plugins do by default (1 to 3 s); a
//! shorter `--poll` delivers sooner and asks more often. A reader that missed an event, got one twice or out of order
//! is told, and its form is no result: unbounded reads may pass an event that commits late, and never see it.
//! Gesta's store is one process that writes and reads; a second process would cost a query per batch, not per reader.
//!
//! Read `plan` first (which events there are), then this (what is measured), then `polled` and `gesta`.

mod gesta;
mod plan;
mod polled;
mod readers;
mod show;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use async_trait::async_trait;
use gesta_report::endpoint::Endpoint;
use gesta_report::failure::{Context, Result, fail};
use gesta_report::units::{self, grouped};
use gesta_report::{Report, ReportArgs};
use serde::Serialize;
use serde_json::json;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use gesta_load::counters::{Spent, Watch};
use gesta_load::machine::store;

use gesta::Gesta;
use plan::{From, Plan};
use polled::Polled;
use readers::{Outcome, Readers};

/// Connections of all readers, writers, and those that watch, track, fill.
const CONNECTIONS: u32 = 60;
/// Bytes of data per event.
const PAYLOAD: usize = 50;
/// How long a phase may take.
const DEADLINE: Duration = Duration::from_secs(120);
/// Faults that are kept of one form.
const FAULTS_MAX: usize = 20;

/// One way to read by tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Form {
    /// Tags as text in the journal, matched with LIKE; readers take whatever they see. What was published as slow.
    LikeUnbounded,
    /// The same, up to the highest number below which none is missing.
    LikeBounded,
    /// A table of tags, joined; readers take whatever they see.
    TagTableUnbounded,
    /// The same, bounded as the first.
    TagTableBounded,
    /// Tags as an array with a GIN index, bounded.
    ArrayGin,
    /// Gesta's subscriptions by tag.
    Gesta,
}

impl Form {
    /// The best of the polled ones first.
    const RANKED: [Form; 5] = [
        Form::TagTableBounded,
        Form::ArrayGin,
        Form::LikeBounded,
        Form::TagTableUnbounded,
        Form::LikeUnbounded,
    ];

    fn title(self) -> &'static str {
        match self {
            Form::LikeUnbounded => "tags as text, LIKE, unbounded",
            Form::LikeBounded => "tags as text, LIKE, bounded",
            Form::TagTableUnbounded => "tag table, unbounded",
            Form::TagTableBounded => "tag table, bounded",
            Form::ArrayGin => "tags as array with GIN index, bounded",
            Form::Gesta => "Gesta",
        }
    }

    /// The PostgreSQL schema that it lives in while it is measured.
    fn schema(self) -> String {
        format!("gesta_lab_tags_{}", self as u8)
    }
}

/// A burst for many readers by tag: polled journals and Gesta, with few and many older events.
///
/// With the defaults about eight minutes on two cores; 3,000,000 older events take 3 GB of disk while a form is
/// measured. `--older 0` takes two minutes.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct TagsArgs {
    /// The database: `postgres://…`, or `postgres:new`, a server started for this run. Everything is made in schemas
    /// named `gesta_lab_tags_…` and removed afterwards. Queries are counted by `pg_stat_statements` where that
    /// extension is installed, else transactions are; what others do in the database meanwhile is counted too.
    #[arg(long, default_value = "postgres:new")]
    #[serde(skip)]
    store: String,
    /// Only these forms, separated by commas; the default is all.
    #[arg(long, value_enum, value_delimiter = ',')]
    forms: Vec<Form>,
    /// Events of the burst.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    events: u64,
    /// Readers, each of a tag of its own.
    #[arg(long, default_value_t = 35, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    readers: u32,
    /// Events that are there before, for each of these numbers anew; 100 of each reader's tag are among them, placed
    /// last.
    #[arg(long, value_delimiter = ',', default_value = "0,3000000")]
    older: Vec<u64>,
    /// Every reader follows all events instead of one tag; for Gesta alone, without older events.
    #[arg(long)]
    everything: bool,
    /// Then the burst again, without older events, for these numbers of readers; without a value: not.
    #[arg(long, value_delimiter = ',', num_args = 0.., default_value = "1,35,350")]
    sweep: Vec<u32>,
    /// Pause of a polled reader after a page that was not full, and of the tracker of bounded ones.
    #[arg(long, default_value = "1s", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "poll_seconds")]
    poll: Duration,
    /// Seed of contents.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// How readers and writers work.
#[derive(Debug, Clone)]
struct Settings {
    /// Pause of a polled reader after a page that was not full, and of the tracker.
    poll: Duration,
    /// Events per page of a polled reader.
    page: u64,
    /// Events per append to Gesta.
    per_append: u64,
    /// Appends to Gesta under way at once: all of the burst, as all of it waits in the plugins' write queues.
    waiters: u64,
    /// Older events of each reader's tag.
    older_tagged: u64,
    /// How long the database is watched while nothing happens.
    idle: Duration,
    seed: u64,
}

/// The command. True if Gesta's readers got everything, and any form has a result.
pub(crate) async fn run(args: &TagsArgs, stop: &CancellationToken) -> Result<bool> {
    args.check()?;
    let mut server = None;
    let url = match args.store.as_str() {
        store::NEW_SERVER => server.insert(store::new_server_for(CONNECTIONS)?).url(),
        url => url.to_owned(),
    };
    let mut report = Report::begin("tags", "Reading by tag", args.seed);
    report.store = Some(store::database_facts(&url, Duration::ZERO).await?);
    let watch = Watch::start(&url).await?;
    let mut lab = Lab::new(args, &url, &watch);
    let outcome = lab.all(stop).await;
    report.workload = json!(args);
    show::tell(&mut report, &lab.forms, &lab.sweep, watch.method());
    if let Err(failure) = &outcome {
        report.problem(failure.to_string());
    }
    let valid = report.finish(&args.report, outcome.is_ok() && !stop.is_cancelled())?;
    outcome?;
    Ok(valid)
}

impl TagsArgs {
    /// Refuses what makes no sense.
    fn check(&self) -> Result<()> {
        let is_postgres = Endpoint::parse(&self.store).is_some_and(|url| url.is_postgres());
        if self.store != store::NEW_SERVER && !is_postgres {
            let (new, found) = (store::NEW_SERVER, &self.store);
            return fail(format!(
                "tags needs PostgreSQL: postgres://… or {new}, not {found:?}"
            ));
        }
        if self.poll.is_zero() || self.sweep.contains(&0) {
            return fail("--poll must not be 0, nor a number of --sweep");
        }
        if self.everything && (self.forms != [Form::Gesta] || self.older != [0]) {
            return fail(
                "--everything needs --forms gesta and --older 0: polled readers follow a tag",
            );
        }
        let tagged = u64::from(self.readers) * self.settings().older_tagged;
        let fits = |older: u64| older == 0 || (tagged..plan::OTHERS).contains(&older);
        match self.older.iter().find(|older| !fits(**older)) {
            Some(older) => fail(format!(
                "--older {older}: with these readers at least {tagged}"
            )),
            None => Ok(()),
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            poll: self.poll,
            page: 500,
            per_append: 5,
            waiters: 400,
            older_tagged: 100,
            idle: Duration::from_secs(10),
            seed: self.seed,
        }
    }
}

/// One form in one database.
#[async_trait]
trait Subject: Send {
    /// Makes it anew, with its older events, ready to be read and written.
    async fn prepare(&mut self, stop: &CancellationToken) -> Result<()>;

    /// Starts the readers. `written`: the place of the last event, if nothing will be written any more.
    async fn readers(&mut self, from: From, written: Option<u64>) -> Result<Readers>;

    /// Writes the burst, once; returns the place of the last event.
    async fn write(&mut self, stop: &CancellationToken) -> Result<u64>;

    /// Removes everything, also what a part of `prepare` made.
    async fn remove(&mut self) -> Result<()>;
}

/// Brings freshly filled tables of a schema to the state of old ones: statistics known, pages marked as visible,
/// written out.
async fn settle(client: &Client, schema: &str) -> Result<()> {
    let sql = "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = $1";
    let tables = client.query(sql, &[&schema]).await;
    for table in tables.context("listing tables")? {
        let sql = format!("VACUUM (ANALYZE) {schema}.{}", table.get::<_, String>(0));
        client.batch_execute(&sql).await.context(sql)?;
    }
    // Only some roles may; then a checkpoint may fall into the measurement.
    let _ = client.batch_execute("CHECKPOINT").await;
    Ok(())
}

/// What came of one form.
#[derive(Debug, Clone)]
struct FormResult {
    form: Form,
    plan: Plan,
    /// Per second, with all readers live and nothing happening.
    idle_queries_per_second: f64,
    burst: Reading,
    /// Reading everything from the beginning.
    from_start: Option<Reading>,
}

/// What reading cost, and whether it was right.
#[derive(Debug, Clone, Default)]
struct Reading {
    /// Until the last reader had everything; none if one did not, and then nothing of this is a result.
    seconds_to_last: Option<f64>,
    spent: Spent,
    /// Readers that have everything.
    complete_readers: usize,
    faults: Vec<String>,
}

impl FormResult {
    /// Everything that is wrong.
    fn faults(&self) -> Vec<String> {
        let from_start = self.from_start.iter().flat_map(|reading| &reading.faults);
        let from_start = from_start.map(|fault| format!("from the start: {fault}"));
        let burst = self.burst.faults.iter().cloned();
        burst.chain(from_start).collect()
    }

    /// True if every reader got its events once and in order.
    fn is_right(&self) -> bool {
        self.faults().is_empty()
    }
}

impl Reading {
    fn of(outcome: Outcome, readers: u64, begin: Instant, spent: Spent) -> Self {
        let seconds = outcome.done.iter();
        let seconds = seconds.map(|at| at.saturating_duration_since(begin).as_secs_f64());
        let is_right = outcome.done.len() as u64 == readers && outcome.faults.is_empty();
        let mut faults = outcome.faults;
        let more = faults.len().saturating_sub(FAULTS_MAX);
        if more > 0 {
            faults.truncate(FAULTS_MAX);
            faults.push(format!("and {more} more"));
        }
        Self {
            seconds_to_last: is_right.then(|| seconds.fold(0.0, f64::max)),
            spent,
            complete_readers: outcome.done.len(),
            faults,
        }
    }
}

struct Lab<'a> {
    args: &'a TagsArgs,
    url: &'a str,
    watch: &'a Watch,
    settings: Settings,
    forms: Vec<FormResult>,
    sweep: Vec<FormResult>,
}

impl<'a> Lab<'a> {
    fn new(args: &'a TagsArgs, url: &'a str, watch: &'a Watch) -> Self {
        Self {
            args,
            url,
            watch,
            settings: args.settings(),
            forms: Vec::new(),
            sweep: Vec::new(),
        }
    }

    /// The forms, in their order.
    fn all_forms(&self) -> Vec<Form> {
        let all = <Form as clap::ValueEnum>::value_variants().iter().copied();
        let asked = &self.args.forms;
        all.filter(|form| asked.is_empty() || asked.contains(form))
            .collect()
    }

    fn plan(&self, readers: u32, older: u64) -> Plan {
        let readers = u64::from(readers);
        Plan {
            readers,
            events: self.args.events,
            older,
            tagged: (readers * self.settings.older_tagged).min(older),
            everything: self.args.everything,
        }
    }

    /// Measures everything, or until `stop`.
    async fn all(&mut self, stop: &CancellationToken) -> Result<()> {
        let forms = self.all_forms();
        for &older in &self.args.older {
            let plan = self.plan(self.args.readers, older);
            for form in &forms {
                let result = self.one(*form, plan, true, stop).await?;
                self.forms.extend(result);
            }
        }
        // Gesta, and the best of the polled forms that were asked for.
        let gesta = forms.iter().find(|form| **form == Form::Gesta).copied();
        let polled = Form::RANKED.into_iter().find(|form| forms.contains(form));
        for form in gesta.into_iter().chain(polled) {
            for &readers in &self.args.sweep {
                let plan = self.plan(readers, 0);
                let is_it = |known: &&FormResult| (known.form, known.plan) == (form, plan);
                let result = match self.forms.iter().find(is_it).cloned() {
                    Some(known) => Some(known),
                    None => self.one(form, plan, false, stop).await?,
                };
                self.sweep.extend(result);
            }
        }
        Ok(())
    }

    /// Measures a form, and removes what it made; none if it was stopped.
    async fn one(
        &self,
        form: Form,
        plan: Plan,
        again: bool,
        stop: &CancellationToken,
    ) -> Result<Option<FormResult>> {
        if stop.is_cancelled() {
            return Ok(None);
        }
        let begin = Instant::now();
        let mut subject: Box<dyn Subject> = match Polled::new(form, self.url, plan, &self.settings)
        {
            Some(polled) => Box::new(polled),
            None => Box::new(Gesta::new(self.url, plan, &self.settings)),
        };
        let measured = self.phases(form, plan, again, subject.as_mut(), stop);
        let measured = stop.run_until_cancelled(measured).await.transpose();
        let removed = subject.remove().await;
        let measured = measured.context(form.title())?;
        removed?;
        let (readers, older) = (plan.readers, grouped(plan.older as f64));
        let seconds = begin.elapsed().as_secs_f64();
        eprintln!(
            "{}, {readers} readers, {older} older events: {seconds:.0} s",
            form.title()
        );
        Ok(measured)
    }

    /// Filled, followed by idle readers, hit by a burst, read again from its beginning.
    async fn phases(
        &self,
        form: Form,
        plan: Plan,
        again: bool,
        subject: &mut dyn Subject,
        stop: &CancellationToken,
    ) -> Result<FormResult> {
        subject.prepare(stop).await?;
        let mut readers = subject.readers(From::End, None).await?;
        readers.all_live(DEADLINE).await?;
        let first = self.watch.look_settled().await?;
        tokio::time::sleep(self.settings.idle).await;
        let before = self.watch.look_settled().await?;
        let idle = before.since(&first);
        let idle = Spent::from(&idle).queries as f64 / idle.seconds.max(0.001);
        let begin = Instant::now();
        let pen = readers.pen();
        let write = async {
            let last = subject.write(stop).await?;
            pen.send_replace(Some(last));
            Ok(last)
        };
        let (last, outcome) = tokio::try_join!(write, readers.finish(DEADLINE))?;
        let spent = Spent::from(&self.watch.look_settled().await?.since(&before));
        let burst = Reading::of(outcome, plan.readers, begin, spent);
        let mut from_start = None;
        if again {
            let (before, begin) = (self.watch.look_settled().await?, Instant::now());
            let readers = subject.readers(From::Start, Some(last)).await?;
            let outcome = readers.finish(DEADLINE).await?;
            let spent = Spent::from(&self.watch.look_settled().await?.since(&before));
            from_start = Some(Reading::of(outcome, plan.readers, begin, spent));
        }
        Ok(FormResult {
            form,
            plan,
            idle_queries_per_second: idle,
            burst,
            from_start,
        })
    }
}
