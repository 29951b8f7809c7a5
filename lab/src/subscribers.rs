//! `subscribers`: what many subscribers cost the database, idle and in a burst, and whether each gets everything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta_core::{
    EventStore, Filter, LogId, Position, Query, Subscribe, SubscribeFrom, SubscribeTo,
    SubscriptionMessage, Tag, Tags,
};
use serde::Serialize;
use serde_json::json;
use tokio::sync::Barrier;
use tokio_util::sync::CancellationToken;

use crate::failure::{Context, Failure, Result, fail};
use crate::fill::{Fill, fill};
use crate::histogram::{Latencies, Percentiles};
use crate::postgres::{self, Spent};
use crate::report::{Record, ReportArgs, Table};
use crate::store::{self, Opened, StoreArgs};
use crate::units;
use crate::workload::{Run, Workload, WorkloadArgs};

/// Many subscribers: idle, then a burst that each must receive whole and in order.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SubscribersArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    /// Subscribers to all events.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) subscribers: u32,
    /// Instead: this many subscribers, each to a tag of its own.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tags: Option<u32>,
    /// Events of the burst.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) events: u64,
    /// Events per append in the burst.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) events_per_append: u32,
    /// How long the database is watched while nothing happens.
    #[arg(long, default_value = "30s", value_parser = units::duration)]
    pub(crate) idle: Duration,
    /// How long the burst may take to reach everybody.
    #[arg(long, default_value = "60s", value_parser = units::duration)]
    pub(crate) deadline: Duration,
    /// The database to count queries in, if the store is reached through a server.
    #[arg(long)]
    pub(crate) observe: Option<String>,
}

/// What happened in one phase.
#[derive(Debug, Clone, Serialize)]
struct Phase {
    name: &'static str,
    seconds: f64,
    /// What the database did meanwhile; none if it cannot be watched.
    database: Option<Spent>,
    /// Time from the beginning of the burst until a subscriber had everything.
    delivered_ms: Option<Percentiles>,
    /// What subscribers missed or got wrong.
    faults: Vec<String>,
}

/// The command. True if everybody got everything in order and in time.
pub(crate) async fn run(args: &SubscribersArgs, stop: &CancellationToken) -> Result<bool> {
    let mut record = Record::begin("subscribers", args.workload.seed);
    let opened = store::open(&args.store).await?;
    let watch = postgres::Watch::start(args.observe.as_deref().or(opened.observable())).await?;
    let lab = Lab {
        args,
        opened: &opened,
        watch: &watch,
        workload: Arc::new(Workload::new(&args.workload, Run::random())),
    };
    let phases = tokio::select! {
        phases = lab.phases(stop) => phases?,
        () = stop.cancelled() => Vec::new(),
    };
    let complete = !phases.is_empty();
    let valid = phases.iter().all(|phase| phase.faults.is_empty());
    record.store = Some(opened.facts.clone());
    record.workload = json!({
        "subscribers": lab.count(), "by_tag": args.tags.is_some(), "events": args.events,
        "events_per_append": args.events_per_append, "payload": args.workload,
    });
    record.result = json!({ "phases": phases, "counted_by": watch.method() });
    (record.complete, record.valid) = (complete, valid);
    record.save(&args.report)?;
    print!("{}", table(&phases));
    println!(
        "{} subscribers, queries counted by {}",
        lab.count(),
        watch.method()
    );
    for fault in phases.iter().flat_map(|phase| &phase.faults).take(10) {
        println!("  {fault}");
    }
    opened.store.shutdown().await?;
    Ok(valid)
}

fn table(phases: &[Phase]) -> Table {
    let mut table = Table::new([
        "phase",
        "seconds",
        "queries",
        "of them appends",
        "queries/s",
        "database ms",
        "all delivered ms",
        "median ms",
        "faults",
    ]);
    for phase in phases {
        let spent = |f: fn(&Spent, f64) -> String| {
            phase
                .database
                .as_ref()
                .map_or("?".into(), |s| f(s, phase.seconds))
        };
        let delivered = |f: fn(&Percentiles) -> f64| {
            phase
                .delivered_ms
                .as_ref()
                .map_or("-".into(), |p| format!("{:.0}", f(p)))
        };
        table.row([
            phase.name.to_owned(),
            format!("{:.1}", phase.seconds),
            spent(|s, _| s.queries.to_string()),
            spent(|s, _| s.appends.to_string()),
            spent(|s, seconds| {
                format!(
                    "{:.2}",
                    f64::from(u32::try_from(s.queries).unwrap_or(u32::MAX)) / seconds
                )
            }),
            spent(|s, _| format!("{:.1}", s.database_ms)),
            delivered(|p| p.max),
            delivered(|p| p.p50),
            phase.faults.len().to_string(),
        ]);
    }
    table
}

struct Lab<'a> {
    args: &'a SubscribersArgs,
    opened: &'a Opened,
    watch: &'a postgres::Watch,
    workload: Arc<Workload>,
}

impl Lab<'_> {
    fn count(&self) -> usize {
        self.args.tags.unwrap_or(self.args.subscribers) as usize
    }

    async fn phases(&self, stop: &CancellationToken) -> Result<Vec<Phase>> {
        let begin = Instant::now();
        let count = self.count();
        // Everybody waits here twice: when all are live, and when the burst begins.
        let gate = Arc::new(Barrier::new(count + 1));
        let mut tasks = self.subscribe(SubscribeFrom::End, &gate);
        self.pass(&gate, &mut tasks).await?;
        eprintln!(
            "{count} subscribers are live after {:.1} s",
            begin.elapsed().as_secs_f64()
        );

        let idle = self.phase("idle", async {
            tokio::time::sleep(self.args.idle).await;
            Ok((None, Vec::new()))
        });
        let mut phases = vec![idle.await?];
        self.pass(&gate, &mut tasks).await?;
        phases.push(self.phase("burst", self.burst(tasks, stop)).await?);
        if self.args.tags.is_some() {
            let gate = Arc::new(Barrier::new(count + 1));
            let begin = Instant::now();
            let mut tasks = self.subscribe(SubscribeFrom::Start, &gate);
            phases.push(
                self.phase("catching up", async {
                    self.pass(&gate, &mut tasks).await?;
                    self.pass(&gate, &mut tasks).await?;
                    self.gather(tasks, begin).await
                })
                .await?,
            );
        }
        Ok(phases)
    }

    /// Runs something and counts what the database did meanwhile.
    async fn phase(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<(Option<Percentiles>, Vec<String>)>>,
    ) -> Result<Phase> {
        let before = self.watch.look().await?;
        let begin = Instant::now();
        let (delivered_ms, faults) = work.await?;
        let seconds = begin.elapsed().as_secs_f64();
        let after = self.watch.look().await?;
        let database = before
            .zip(after)
            .map(|(before, after)| after.since(&before));
        Ok(Phase {
            name,
            seconds,
            database,
            delivered_ms,
            faults,
        })
    }

    fn subscribe(&self, from: SubscribeFrom, gate: &Arc<Barrier>) -> Tasks {
        let mut tasks = Tasks::new();
        for number in 0..self.count() {
            let filter = match self.args.tags {
                None => Filter::ALL,
                Some(_) => Filter::query(Query {
                    tags: vec![tag(number)],
                    ..Query::default()
                }),
            };
            let subscriber = Subscriber {
                number,
                store: Arc::clone(&self.opened.store),
                run: self.workload.run,
                wanted: (0..self.args.events)
                    .filter(|n| {
                        self.args
                            .tags
                            .is_none_or(|tags| n % u64::from(tags) == number as u64)
                    })
                    .count() as u64,
                deadline: self.args.deadline,
            };
            let request = Subscribe {
                to: SubscribeTo::All(filter),
                from: from.clone(),
            };
            tasks.spawn(subscriber.run(request, Arc::clone(gate)));
        }
        tasks
    }

    /// Waits until all are at the gate; a subscriber that ended early will never come.
    async fn pass(&self, gate: &Barrier, tasks: &mut Tasks) -> Result<()> {
        tokio::select! {
            _ = gate.wait() => Ok(()),
            Some(ended) = tasks.join_next() => match ended? {
                Ok(subscriber) => fail(format!("subscriber {} ended early", subscriber.number)),
                Err(failure) => Err(failure),
            },
        }
    }

    async fn burst(
        &self,
        tasks: Tasks,
        stop: &CancellationToken,
    ) -> Result<(Option<Percentiles>, Vec<String>)> {
        let begin = Instant::now();
        let burst = Fill {
            waiters: 20,
            per_append: u64::from(self.args.events_per_append),
            tags: self.args.tags.map(|_| tags_of as fn(u64, usize) -> Tags),
            tag_count: self.count(),
            ..Fill::of(self.args.events)
        };
        let (filled, gathered) = tokio::join!(
            fill(&self.opened.store, &self.workload, &burst, stop),
            self.gather(tasks, begin)
        );
        filled?;
        gathered
    }

    async fn gather(
        &self,
        mut tasks: Tasks,
        begin: Instant,
    ) -> Result<(Option<Percentiles>, Vec<String>)> {
        let (mut delivered, mut faults) = (Latencies::default(), Vec::new());
        while let Some(ended) = tasks.join_next().await {
            let subscriber = ended??;
            match subscriber.fault {
                None => delivered.record(subscriber.done - begin),
                Some(fault) => faults.push(format!("subscriber {}: {fault}", subscriber.number)),
            }
        }
        Ok((Some(delivered.percentiles()), faults))
    }
}

type Tasks = tokio::task::JoinSet<Result<Ended>>;

fn tag(number: usize) -> Tag {
    Tag::new(format!("lab-{number}")).expect("a valid tag")
}

fn tags_of(number: u64, count: usize) -> Tags {
    let which = usize::try_from(number % count as u64).expect("an index");
    Tags::new(vec![tag(which)]).expect("one tag")
}

struct Subscriber {
    number: usize,
    store: Arc<dyn EventStore>,
    run: Run,
    /// Events of the burst that are for this subscriber.
    wanted: u64,
    deadline: Duration,
}

struct Ended {
    number: usize,
    done: Instant,
    fault: Option<String>,
}

impl Subscriber {
    async fn run(self, request: Subscribe, gate: Arc<Barrier>) -> Result<Ended> {
        let catching_up = request.from == SubscribeFrom::Start;
        let mut subscription = self.store.subscribe(request).await.context("subscribing")?;
        let mut live = catching_up;
        while !live {
            match subscription.next().await {
                Some(Ok(message)) => live = matches!(message, SubscriptionMessage::CaughtUp(_)),
                Some(Err(error)) => return Err(error.into()),
                None => return Err(Failure("a subscription ended".into())),
            }
        }
        gate.wait().await;
        gate.wait().await;
        let (mut received, mut last) = (0, None);
        let fault = loop {
            if received == self.wanted {
                break None;
            }
            let Ok(next) = tokio::time::timeout(self.deadline, subscription.next_event()).await
            else {
                break Some(format!(
                    "{received} of {} events, then nothing for {:?}",
                    self.wanted, self.deadline
                ));
            };
            let event = next.context("a subscription ended")?;
            if let Some(fault) = out_of_order(&mut last, event.log, event.position) {
                break Some(fault);
            }
            // Positions grow, so none comes twice; the count then tells whether all came.
            received += u64::from(self.run.number_of(event.id).is_some());
        };
        Ok(Ended {
            number: self.number,
            done: Instant::now(),
            fault,
        })
    }
}

/// Remembers the position per log; tells if it did not grow.
fn out_of_order(
    last: &mut Option<std::collections::HashMap<LogId, Position>>,
    log: LogId,
    position: Position,
) -> Option<String> {
    let before = last.get_or_insert_default().insert(log, position)?;
    (position <= before).then(|| format!("position {position} of log {log} came after {before}"))
}

#[cfg(test)]
mod tests {
    use gesta_memory::MemoryStore;

    use super::*;
    use crate::workload::PayloadKind;

    fn args(tags: Option<u32>) -> SubscribersArgs {
        SubscribersArgs {
            store: StoreArgs {
                store: "memory:".into(),
                rtt: Duration::ZERO,
                logs: 1,
            },
            workload: WorkloadArgs {
                streams: 10,
                payload: 20,
                payload_kind: PayloadKind::Json,
                metadata: 0,
                seed: 1,
            },
            report: ReportArgs {
                results: "unused".into(),
            },
            subscribers: 20,
            tags,
            events: 500,
            events_per_append: 5,
            idle: Duration::ZERO,
            deadline: Duration::from_secs(30),
            observe: None,
        }
    }

    #[tokio::test]
    async fn everybody_gets_everything() {
        for tags in [None, Some(7)] {
            let args = args(tags);
            let opened = Opened::of(Arc::new(MemoryStore::new())).await.unwrap();
            let watch = postgres::Watch::start(None).await.unwrap();
            let workload = Arc::new(Workload::new(&args.workload, Run::random()));
            let lab = Lab {
                args: &args,
                opened: &opened,
                watch: &watch,
                workload,
            };
            let phases = lab.phases(&CancellationToken::new()).await.unwrap();
            assert!(
                phases.iter().all(|phase| phase.faults.is_empty()),
                "{phases:?}"
            );
            let delivered = phases[1].delivered_ms.unwrap().count;
            assert_eq!(delivered, u64::from(tags.unwrap_or(20)));
        }
    }

    #[test]
    fn a_position_that_does_not_grow_is_told() {
        let mut last = None;
        assert!(out_of_order(&mut last, LogId(0), Position(2)).is_none());
        assert!(out_of_order(&mut last, LogId(1), Position(1)).is_none());
        assert!(out_of_order(&mut last, LogId(0), Position(3)).is_none());
        assert!(out_of_order(&mut last, LogId(0), Position(3)).is_some());
    }
}
