//! `tags`: what does reading by tag cost, polled in the field's ways and by Gesta's subscriptions?
//!
//! Repeats a published experiment: a burst of 2,000 events, 35 readers that each follow one tag. Measured are the time of
//! the database, its queries, the time until the last reader has everything, and the queries while nothing happens; with
//! few and with millions of older events. Then the burst again for other numbers of readers.
//!
//! The polled readers pause for a second after a page that was not full, as the plugins do by default (1 to 3 s); a shorter
//! `--poll` delivers sooner and asks more often. A reader that missed an event, got one twice or out of order is told,
//! and its form is no result: unbounded reads may pass an event that commits late, and never see it.
//! Gesta's store is one process that writes and reads; a second process would cost a query per batch, not per reader.
//!
//! Read `plan` first (which events there are), then `cell` (what is measured), then `journal` and `gesta`.

mod book;
mod cell;
mod form;
mod gesta;
mod journal;
mod plan;
mod pool;
mod readers;
mod show;
mod subject;
#[cfg(test)]
mod tests;
mod tracker;

use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoint;
use crate::failure::{Result, fail};
use crate::postgres::Watch;
use crate::report::{Report, ReportArgs};
use crate::store;
use crate::units::{self, grouped};
use crate::workload::{PayloadKind, WorkloadArgs};

use cell::{Cell, FormResult, Then};
use form::Form;
use plan::Plan;
use subject::Settings;

/// Connections beside those of readers and writers: watching, tracking, filling, Gesta's own.
const MORE_CONNECTIONS: u32 = 30;

/// A burst for many readers by tag: polled journals and Gesta, with few and many older events.
///
/// With the defaults about seven minutes on two cores: 12 s for each form and number of older events, 10 of them idle;
/// 10 to 60 s more for each form to make 3,000,000 older events, 10 s where 35 readers scan them with LIKE; under a
/// minute for the sweep. 3,000,000 older events take 3 GB of disk while a form is measured. `--older 0` takes two minutes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TagsArgs {
    /// The database: `postgres://…`, or `postgres:new`, a server started for this run. Everything is made in schemas
    /// named `gesta_lab_tags_…` and removed afterwards. Queries are counted by `pg_stat_statements` where the server
    /// loads it, else transactions are; what others do in the database meanwhile is counted too.
    #[arg(long, default_value = "postgres:new")]
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
    /// Events that are there before, for each of these numbers anew.
    #[arg(long, value_delimiter = ',', default_value = "0,3000000")]
    older: Vec<u64>,
    /// Older events of each reader's tag, placed last; the others have tags that nobody reads.
    #[arg(long, default_value_t = 100)]
    older_tagged: u64,
    /// Every reader follows all events instead of one tag; for Gesta alone, without older events.
    #[arg(long)]
    everything: bool,
    /// Then the burst again, without older events, for these numbers of readers; without a value: not.
    #[arg(long, value_delimiter = ',', num_args = 0.., default_value = "1,35,350")]
    sweep: Vec<u32>,
    /// Pause of a polled reader after a page that was not full, and of the tracker of bounded ones.
    #[arg(long, default_value = "1s", value_parser = units::duration)]
    poll: Duration,
    /// Events per page of a polled reader.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    page: u64,
    /// Connections that polled readers share.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    connections: u32,
    /// Connections that write the burst to a polled journal.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    writers: u32,
    /// Events per insert into a polled journal: what the plugins' write queues make of a burst.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    batch: u64,
    /// Events per append to Gesta.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    events_per_append: u64,
    /// Appends to Gesta under way at once; by default all of the burst, as all of it waits in the plugins' write queues.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    waiters: u32,
    /// Bytes of data per event.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(8..=1_048_576))]
    payload: u32,
    /// How long the database is watched while nothing happens.
    #[arg(long, default_value = "10s", value_parser = units::duration)]
    idle: Duration,
    /// How long a phase may take.
    #[arg(long, default_value = "120s", value_parser = units::duration)]
    deadline: Duration,
    /// Seed of names and contents.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    report: ReportArgs,
}

/// The command. True if Gesta's readers got everything, and any form has a result.
pub(crate) async fn run(args: &TagsArgs, stop: &CancellationToken) -> Result<bool> {
    args.check()?;
    let mut server = None;
    let url = if args.store == store::NEW_SERVER {
        let connections = args.connections + args.writers + MORE_CONNECTIONS;
        server.insert(store::new_server_for(connections)?).url()
    } else {
        args.store.clone()
    };
    let mut report = Report::begin("tags", "Reading by tag", args.seed);
    report.store = Some(store::database_facts(&url, Duration::ZERO).await?);
    let watch = Watch::start(Some(&url)).await?;
    if !watch.counts_statements() {
        eprintln!(
            "this server does not load pg_stat_statements: transactions are counted instead, some of them late, \
             and each look takes 11 s; take the counts as rough figures"
        );
    }
    let mut lab = Lab {
        args,
        url: &url,
        watch: &watch,
        settings: args.settings(),
        forms: Vec::new(),
        sweep: Vec::new(),
    };
    let outcome = lab.all(stop).await;
    report.workload = args.parameters();
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
            return fail(format!(
                "tags needs PostgreSQL: postgres://… or {}, not {:?}",
                store::NEW_SERVER,
                self.store
            ));
        }
        if self.poll.is_zero() {
            return fail("--poll 0 asks without end; name a pause, such as 250ms");
        }
        if self.idle.is_zero() {
            return fail("--idle 0 leaves no time to count queries in; name one, such as 10s");
        }
        if self.sweep.contains(&0) {
            return fail("--sweep with 0 readers; leave the value out for no sweep");
        }
        if self.everything && (self.forms != [Form::Gesta] || self.older != [0]) {
            return fail(
                "--everything needs --forms gesta and --older 0: polled readers follow a tag",
            );
        }
        let tagged = u64::from(self.readers).saturating_mul(self.older_tagged);
        for &older in &self.older {
            if older > 0 && older < tagged {
                return fail(format!(
                    "{older} older events are too few for {} readers with {} tagged ones each; \
                     raise --older or lower --older-tagged",
                    self.readers, self.older_tagged
                ));
            }
            if older > plan::OTHERS {
                return fail(format!("--older {older} is more than the lab can number"));
            }
        }
        Ok(())
    }

    /// The forms, in their order.
    fn all_forms(&self) -> Vec<Form> {
        let all = <Form as clap::ValueEnum>::value_variants();
        let is_asked = |form: &&Form| self.forms.is_empty() || self.forms.contains(form);
        all.iter().filter(is_asked).copied().collect()
    }

    fn plan(&self, readers: u32, older: u64) -> Plan {
        let readers = u64::from(readers);
        Plan {
            readers,
            events: self.events,
            older,
            tagged: if older > 0 {
                readers * self.older_tagged
            } else {
                0
            },
            everything: self.everything,
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            poll: self.poll,
            page: self.page,
            connections: self.connections,
            writers: self.writers,
            batch: self.batch,
            per_append: self.events_per_append,
            waiters: self.waiters as usize,
            workload: WorkloadArgs {
                streams: 1_000,
                payload: self.payload as usize,
                payload_kind: PayloadKind::Random,
                metadata: 0,
                seed: self.seed,
            },
        }
    }

    fn parameters(&self) -> Value {
        json!({
            "events": self.events, "readers": self.readers, "older": self.older,
            "older_tagged": self.older_tagged, "forms": self.all_forms(), "sweep": self.sweep,
            "poll_ms": self.poll.as_secs_f64() * 1_000.0, "page": self.page,
            "connections": self.connections, "writers": self.writers, "batch": self.batch,
            "events_per_append": self.events_per_append, "waiters": self.waiters,
            "payload_bytes": self.payload, "idle_seconds": self.idle.as_secs_f64(),
        })
    }
}

/// A run.
struct Lab<'a> {
    args: &'a TagsArgs,
    url: &'a str,
    watch: &'a Watch,
    settings: Settings,
    forms: Vec<FormResult>,
    sweep: Vec<FormResult>,
}

impl Lab<'_> {
    /// Measures everything, or until `stop`.
    async fn all(&mut self, stop: &CancellationToken) -> Result<()> {
        for &older in &self.args.older {
            let plan = self.args.plan(self.args.readers, older);
            for form in self.args.all_forms() {
                if let Some(result) = self.one(form, plan, Then::FromStart, stop).await? {
                    self.forms.push(result);
                }
            }
        }
        for form in self.swept() {
            for &readers in &self.args.sweep {
                let plan = self.args.plan(readers, 0);
                let same = |r: &&FormResult| {
                    (r.name, r.older, r.readers) == (form.name(), plan.older, plan.readers)
                };
                let known = self.forms.iter().find(same).cloned();
                let result = match known {
                    Some(result) => Some(result),
                    None => self.one(form, plan, Then::End, stop).await?,
                };
                self.sweep.extend(result);
            }
        }
        Ok(())
    }

    /// Gesta, and the best of the polled forms that were asked for.
    fn swept(&self) -> Vec<Form> {
        let forms = self.args.all_forms();
        let best = [
            Form::TagTableBounded,
            Form::ArrayGin,
            Form::LikeBounded,
            Form::TagTableUnbounded,
            Form::LikeUnbounded,
        ];
        let gesta = forms.iter().copied().find(|form| *form == Form::Gesta);
        let polled = best.into_iter().find(|form| forms.contains(form));
        gesta.into_iter().chain(polled).collect()
    }

    async fn one(
        &self,
        form: Form,
        plan: Plan,
        then: Then,
        stop: &CancellationToken,
    ) -> Result<Option<FormResult>> {
        if stop.is_cancelled() {
            return Ok(None);
        }
        let cell = Cell {
            form,
            plan,
            settings: &self.settings,
            url: self.url,
            watch: self.watch,
            idle: self.args.idle,
            deadline: self.args.deadline,
            then,
        };
        let begin = std::time::Instant::now();
        let result = cell.measure(stop).await?;
        if let Some(result) = &result {
            eprintln!(
                "{form}, {} readers, {} older events: {:.0} s, {:.0} of them to make it",
                plan.readers,
                grouped(cell::float(plan.older)),
                begin.elapsed().as_secs_f64(),
                result.fill_seconds
            );
        }
        Ok(result)
    }
}
