//! One form, measured: filled, followed by idle readers, hit by a burst, read again from its beginning.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::form::Form;
use super::gesta::Gesta;
use super::journal::Journal;
use super::plan::{From, Plan};
use super::readers::Outcome;
use super::subject::{Settings, Subject};
use crate::failure::{Context, Result, fail};
use crate::histogram::median;
use crate::host::{CpuMeter, CpuUse};
use crate::postgres::{Spent, Watch};

/// Faults that are kept of one form.
const FAULTS_MAX: usize = 20;

/// What is measured, where.
pub(super) struct Cell<'a> {
    pub(super) form: Form,
    pub(super) plan: Plan,
    pub(super) settings: &'a Settings,
    pub(super) url: &'a str,
    pub(super) watch: &'a Watch,
    /// How long nothing happens.
    pub(super) idle: Duration,
    /// How long a phase may take.
    pub(super) deadline: Duration,
    /// What comes after the burst.
    pub(super) then: Then,
}

/// What comes after the burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// New readers read everything from the beginning.
    FromStart,
    /// Nothing.
    End,
}

/// What came of it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct FormResult {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) older: u64,
    pub(super) readers: u64,
    /// Making and filling it.
    pub(super) fill_seconds: f64,
    /// Per second, with all readers live and nothing happening.
    pub(super) idle_queries_per_second: f64,
    /// The same in time of the database.
    pub(super) idle_database_ms_per_second: f64,
    /// Until the burst was written.
    pub(super) write_seconds: f64,
    /// The burst.
    #[serde(flatten)]
    pub(super) burst: Reading,
    /// Processor time during the burst.
    pub(super) cpu: CpuUse,
    /// Reading everything from the beginning.
    pub(super) from_start: Option<Reading>,
}

/// What reading cost, and whether it was right.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Reading {
    /// Until the last reader had everything; none if one did not, and then nothing of this is a result.
    pub(super) seconds_to_last: Option<f64>,
    /// Until half of the readers that have everything had it.
    pub(super) seconds_to_median: Option<f64>,
    /// Queries meanwhile.
    pub(super) queries: u64,
    /// Those among them that write events; none if statements are not counted.
    pub(super) append_queries: Option<u64>,
    /// Time that the database spent in them.
    pub(super) database_ms: f64,
    /// Readers that have everything.
    pub(super) complete_readers: usize,
    /// What is wrong.
    pub(super) faults: Vec<String>,
}

/// What the database did.
#[derive(Debug, Default)]
struct Counted {
    queries: u64,
    appends: Option<u64>,
    database_ms: f64,
}

impl FormResult {
    /// True if every reader got its events once and in order.
    pub(super) fn is_right(&self) -> bool {
        self.faults().next().is_none()
    }

    /// Everything that is wrong.
    pub(super) fn faults(&self) -> impl Iterator<Item = String> {
        let from_start = self.from_start.iter().flat_map(|reading| &reading.faults);
        let from_start = from_start.map(|fault| format!("from the start: {fault}"));
        self.burst.faults.iter().cloned().chain(from_start)
    }
}

impl Reading {
    fn of(outcome: Outcome, readers: u64, begin: Instant, spent: Counted) -> Self {
        let mut seconds: Vec<f64> = outcome
            .done
            .iter()
            .map(|at| at.saturating_duration_since(begin).as_secs_f64())
            .collect();
        seconds.sort_by(f64::total_cmp);
        let is_right = seconds.len() as u64 == readers && outcome.faults.is_empty();
        let mut faults = outcome.faults;
        let more = faults.len().saturating_sub(FAULTS_MAX);
        if more > 0 {
            faults.truncate(FAULTS_MAX);
            faults.push(format!("and {more} more"));
        }
        Self {
            seconds_to_last: seconds.last().copied().filter(|_| is_right),
            seconds_to_median: (!seconds.is_empty()).then(|| median(&seconds)),
            queries: spent.queries,
            append_queries: spent.appends,
            database_ms: spent.database_ms,
            complete_readers: seconds.len(),
            faults,
        }
    }
}

impl Cell<'_> {
    /// Measures, and removes what it made; none if it was stopped.
    pub(super) async fn measure(&self, stop: &CancellationToken) -> Result<Option<FormResult>> {
        let mut subject = self.subject()?;
        let measured = tokio::select! {
            biased;
            () = stop.cancelled() => Ok(None),
            measured = self.phases(subject.as_mut(), stop) => measured.map(Some),
        };
        let removed = subject.remove().await;
        let measured = measured.context(self.form)?;
        removed?;
        Ok(measured)
    }

    fn subject(&self) -> Result<Box<dyn Subject>> {
        if self.form == Form::Gesta {
            let gesta = Gesta::new(self.url, self.plan, self.settings);
            return Ok(Box::new(gesta));
        }
        match Journal::new(self.form, self.url, self.plan, self.settings) {
            Some(journal) => Ok(Box::new(journal)),
            None => fail(format!("{} is no journal", self.form)),
        }
    }

    async fn phases(
        &self,
        subject: &mut dyn Subject,
        stop: &CancellationToken,
    ) -> Result<FormResult> {
        let begin = Instant::now();
        subject.prepare(stop).await?;
        let fill_seconds = begin.elapsed().as_secs_f64();
        let mut readers = subject.readers(From::End, None).await?;
        readers.all_live(self.deadline).await?;

        let (first, first_at) = self.look().await?;
        tokio::time::sleep(self.idle).await;
        let (before, before_at) = self.look().await?;
        let idle = before.since(&first);
        let idle_seconds = (before_at - first_at).as_secs_f64();

        let cpu = CpuMeter::start();
        let begin = Instant::now();
        let pen = readers.pen();
        let write = async {
            let last = subject.write(stop).await?;
            pen.send_replace(Some(last));
            Ok((last, begin.elapsed().as_secs_f64()))
        };
        let ((last, write_seconds), outcome) =
            tokio::try_join!(write, readers.finish(self.deadline))?;
        let cpu = cpu.used();
        let spent = self.counted(&before).await?;
        let burst = Reading::of(outcome, self.plan.readers, begin, spent);
        let from_start = match self.then {
            Then::FromStart => Some(self.read_again(subject, last).await?),
            Then::End => None,
        };
        Ok(FormResult {
            name: self.form.name(),
            title: self.form.title(),
            older: self.plan.older,
            readers: self.plan.readers,
            fill_seconds,
            idle_queries_per_second: float(idle.queries) / idle_seconds,
            idle_database_ms_per_second: idle.database_ms / idle_seconds,
            write_seconds,
            burst,
            cpu,
            from_start,
        })
    }

    /// New readers read everything from the beginning.
    async fn read_again(&self, subject: &mut dyn Subject, last: u64) -> Result<Reading> {
        let before = self.look().await?.0;
        let begin = Instant::now();
        let readers = subject.readers(From::Start, Some(last)).await?;
        let outcome = readers.finish(self.deadline).await?;
        let spent = self.counted(&before).await?;
        Ok(Reading::of(outcome, self.plan.readers, begin, spent))
    }

    /// What the database did since an earlier look.
    async fn counted(&self, before: &Spent) -> Result<Counted> {
        let spent = self.look().await?.0.since(before);
        Ok(Counted {
            queries: spent.queries,
            appends: self.watch.counts_statements().then_some(spent.appends),
            database_ms: spent.database_ms,
        })
    }

    /// The counters, and when they were read.
    async fn look(&self) -> Result<(Spent, Instant)> {
        let spent = self.watch.look().await?;
        Ok((spent.unwrap_or_default(), Instant::now()))
    }
}

/// A count as a figure.
#[expect(clippy::cast_precision_loss, reason = "counts of queries fit")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(done: usize, faults: &[&str]) -> Reading {
        let begin = Instant::now();
        let at = |second: usize| begin + Duration::from_secs(second as u64);
        let outcome = Outcome {
            done: (1..=done).rev().map(at).collect(),
            faults: faults.iter().map(|&fault| fault.to_owned()).collect(),
        };
        Reading::of(outcome, 3, begin, Counted::default())
    }

    #[test]
    fn times_are_a_result_only_if_nothing_is_wrong() {
        let right = reading(3, &[]);
        assert_eq!(right.seconds_to_last, Some(3.0));
        assert_eq!(right.seconds_to_median, Some(2.0));
        let missed = reading(2, &["reader 1 missed 1"]);
        assert_eq!(missed.seconds_to_last, None);
        assert_eq!(missed.complete_readers, 2);
        let doubled = reading(3, &["reader 1 got twice 1"]);
        assert_eq!(doubled.seconds_to_last, None);
        assert_eq!(reading(0, &[]).seconds_to_median, None);
    }

    #[test]
    fn many_faults_are_shortened() {
        let faults = vec!["late"; 30];
        let reading = reading(0, &faults);
        assert_eq!(reading.faults.len(), FAULTS_MAX + 1);
        assert_eq!(reading.faults.last().unwrap(), "and 10 more");
    }
}
