//! Writers and tails that go on through all faults, and the judgement of what they were told.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta_core::{AllFrom, Checkpoint, Filter, LogId, Position, RecordedEvent};
use gesta_kit::history::TailerId;
use gesta_kit::verdict::Verdict;
use gesta_load::event_ids::Run;
use gesta_load::machine::{CurrentStore, ask};
use gesta_load::random::Random;
use gesta_report::failure::{Result, fail};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::record::{Record, Tailed};
use super::tails::{Manner, Sink, Tail};
use super::writers::{Claims, Writer};
use crate::history_file::HistoryFile;

/// Every writer has an append acknowledged this soon after a fault has healed.
const PROGRESS_WITHIN: Duration = Duration::from_secs(60);
/// A store may need so long to come back.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// Tails reach the end of the log this soon after the last append.
const ARRIVAL_WITHIN: Duration = Duration::from_secs(60);
/// How often waits look.
const LOOK: Duration = Duration::from_millis(5);

/// Writers and tails at work. Whoever drops it ends them.
pub struct Crew {
    /// What they write down.
    pub(crate) record: Arc<Record>,
    run: String,
    seed: u64,
    writers: JoinSet<()>,
    writers_over: CancellationToken,
    tails: JoinSet<()>,
    tails_over: CancellationToken,
    /// Those whose events are checked, with their names.
    checked: Vec<(String, TailerId)>,
    /// Where everything about streams is written down in the end.
    pub(crate) history: HistoryFile,
    let_go: watch::Sender<u64>,
}

impl Crew {
    /// Nobody is at work yet.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            record: Arc::default(),
            run: Run::random().to_string(),
            seed,
            writers: JoinSet::new(),
            writers_over: CancellationToken::new(),
            tails: JoinSet::new(),
            tails_over: CancellationToken::new(),
            checked: Vec::new(),
            history: HistoryFile::default(),
            let_go: watch::Sender::new(0),
        }
    }

    /// Starts a writer.
    pub(crate) fn write(
        &mut self,
        way: &str,
        store: Arc<CurrentStore>,
        claims: Claims,
        pause: Duration,
    ) {
        let number = self.writers.len();
        let writer = Writer {
            number,
            way: way.to_owned(),
            store,
            claims,
            pause,
            random: Random::fork(self.seed, 10_000 + number as u64),
            run: self.run.clone(),
            over: self.writers_over.clone(),
            record: Arc::clone(&self.record),
            known: HashMap::new(),
        };
        self.writers.spawn(writer.run());
    }

    /// Starts a tail, from a place in the log (none: its beginning), which must see every event.
    pub(crate) fn follow(
        &mut self,
        name: String,
        manner: Manner,
        store: Arc<CurrentStore>,
        from: Option<Checkpoint>,
    ) {
        let record = Arc::clone(&self.record);
        let id = record.history.tailer(&name, Vec::new(), Filter::ALL);
        self.checked.push((name.clone(), id));
        self.follow_into(name, manner, store, from, Tailed { record, id });
    }

    /// Starts a tail whose events go elsewhere.
    pub(crate) fn follow_into(
        &mut self,
        name: String,
        manner: Manner,
        store: Arc<CurrentStore>,
        from: Option<Checkpoint>,
        sink: impl Sink + 'static,
    ) {
        let tail = Tail {
            name,
            manner,
            store,
            let_go: self.let_go.subscribe(),
            over: self.tails_over.clone(),
            sink,
        };
        self.tails.spawn(tail.run(from));
    }

    /// Lets restless subscribers let go and come back.
    pub(crate) fn let_go(&self) {
        self.let_go.send_modify(|count| *count += 1);
    }

    /// Waits until every writer has had an append acknowledged that it began from now on; gives the time that it took.
    pub async fn goes_on(&self) -> Result<Duration> {
        self.goes_on_within(PROGRESS_WITHIN).await
    }

    /// The same, which must be so within another time.
    pub(crate) async fn goes_on_within(&self, within: Duration) -> Result<Duration> {
        let begun = Instant::now();
        loop {
            match self.record.behind(self.writers.len(), begun) {
                0 => return Ok(begun.elapsed()),
                count if begun.elapsed() > within => {
                    return fail(format!(
                        "{count} writers got no append through within {within:?}"
                    ));
                }
                _ => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Ends the writers, each after the answer to its last append.
    pub async fn end_writers(&mut self) -> Result<()> {
        self.writers_over.cancel();
        while let Some(ended) = self.writers.join_next().await {
            ended?;
        }
        Ok(())
    }

    /// Ends the tails.
    pub(crate) async fn end_tails(&mut self) -> Result<()> {
        self.tails_over.cancel();
        while let Some(ended) = self.tails.join_next().await {
            ended?;
        }
        Ok(())
    }

    /// Reads what is stored after a place in the log, which moves to the end, and judges everything; the writers have
    /// ended. Gives the verdict, and every promise that was broken.
    pub async fn verdict(
        self,
        store: &CurrentStore,
        at: &mut Option<Checkpoint>,
    ) -> Result<(Verdict, Vec<String>)> {
        let record = Arc::clone(&self.record);
        let verdict = self.judge(&read_on(store, at).await?).await?;
        let problems = record.problems(&verdict);
        Ok((verdict, problems))
    }

    /// Ends the tails when they have seen all of these events, and checks everything.
    pub(crate) async fn judge(mut self, stored: &[RecordedEvent]) -> Result<Verdict> {
        let ends = stored.iter().map(|event| (event.log, event.position));
        let ends: HashMap<LogId, Position> = ends.collect();
        let begun = Instant::now();
        for (name, tail) in &self.checked {
            while !self.record.history.has_reached(*tail, &ends) {
                if begun.elapsed() > ARRIVAL_WITHIN {
                    self.record.violation(format!(
                        "{name} did not reach the end of the log within {ARRIVAL_WITHIN:?}"
                    ));
                    break;
                }
                tokio::time::sleep(LOOK).await;
            }
        }
        self.end_tails().await?;
        self.history
            .add(|| self.record.history.operations(stored))?;
        Ok(self.record.history.check_against(stored))
    }
}

/// What is stored after a place in the log (none: its beginning), which moves to the end.
pub(crate) async fn read_on(
    store: &CurrentStore,
    at: &mut Option<Checkpoint>,
) -> Result<Vec<RecordedEvent>> {
    let (from, mut events) = (
        at.take().map_or(AllFrom::Start, AllFrom::Checkpoint),
        Vec::new(),
    );
    let see = |event| events.push(event);
    *at = Some(ask::read_all(store, from, BACK_WITHIN, see).await?);
    Ok(events)
}
