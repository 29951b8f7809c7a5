//! How long a log is interrupted when it is handed over under load, and what the taker has to look up afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gesta_client::HttpStore;
use gesta_core::{
    Append, EventData, EventStore, EventType, ExpectedRevision, LogId, StreamId, log_of,
};
use gesta_kit::depth::{self, in_time};
use tokio::task::JoinSet;

use crate::nodes::{Nodes, WAIT};
use crate::support;
use crate::{LOGS, NODES};

/// Callers at each node.
const CALLERS: usize = 2;
/// Streams that the callers append to.
const STREAMS: usize = 500;
/// Pause of a caller after an append: in the quick form so long that processors are left to other tests.
fn pause() -> Duration {
    Duration::from_millis(depth::count(8, 1))
}
/// So long before and after the command that asks for a move belongs to the move.
const AROUND: Duration = Duration::from_millis(300);

/// When an append began and ended, and at which node it was asked for.
type Seen = (Instant, Instant, usize);

/// Callers of one log at every node.
struct Callers {
    seen: Arc<Mutex<Vec<Seen>>>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Callers {
    fn start(nodes: &Nodes, logs: &[LogId]) -> Self {
        let count = u16::try_from(LOGS).unwrap();
        let streams = (0..).map(|number| StreamId::new(format!("moved-{number}")).unwrap());
        let streams = streams.filter(|stream| logs.contains(&log_of(stream, count)));
        let streams: Arc<[StreamId]> = streams.take(STREAMS).collect();
        let (seen, stop) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::default());
        let mut tasks = JoinSet::new();
        for number in 0..nodes.all.len() * CALLERS {
            let node = number % nodes.all.len();
            let store = nodes.all[node].store();
            let (streams, seen) = (Arc::clone(&streams), Arc::clone(&seen));
            let stop: Arc<AtomicBool> = Arc::clone(&stop);
            tasks.spawn(async move {
                let mut turn = number * 31;
                while !stop.load(Ordering::SeqCst) {
                    let begun = Instant::now();
                    append(&store, &streams[turn % STREAMS]).await;
                    seen.lock().unwrap().push((begun, Instant::now(), node));
                    turn += 7;
                    tokio::time::sleep(pause()).await;
                }
            });
        }
        Self { seen, stop, tasks }
    }

    /// The longest append at each node among those that overlap this time.
    fn longest(&self, from: Instant, to: Instant) -> [Duration; NODES] {
        let mut longest = [Duration::ZERO; NODES];
        for (begun, ended, node) in &*self.seen.lock().unwrap() {
            if *ended >= from && *begun <= to {
                longest[*node] = longest[*node].max(*ended - *begun);
            }
        }
        longest
    }

    async fn end(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

async fn append(store: &HttpStore, stream: &StreamId) {
    let event = EventData::json(EventType::new("happened").unwrap(), "{}");
    let request = Append::to(stream.clone(), ExpectedRevision::Any, vec![event]);
    store.append(request).await.unwrap();
}

/// A counter of a node about one log.
fn counter(nodes: &Nodes, node: usize, name: &str, log: LogId) -> u64 {
    let metrics = support::get(&nodes.all[node].listen.to_string(), "/metrics");
    let begins = format!("{name}_total{{log=\"{log}\"}} ");
    let found = metrics.lines().find_map(|line| line.strip_prefix(&begins));
    found.map_or(0, |value| value.trim().parse().unwrap())
}

fn quantiles(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    format!("p50 {:?}, p90 {:?}, max {:?}", at(50), at(90), at(100))
}

/// Goal: a log that is asked to move under load is away for a moment only, and no caller sees an error.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_moves_is_away_for_a_moment_only() {
    let Some(nodes) = Nodes::start(NODES, LOGS).await else {
        return;
    };
    nodes.freeze();
    let log = LogId(0);
    let callers = Callers::start(&nodes, &[log]);
    // Every node but the owner has looked the streams up at most once.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (mut away, mut quiet, mut loads, mut misses) = (vec![], vec![], vec![], vec![]);
    let mut by_role: [Vec<Duration>; 3] = Default::default();
    for _ in 0..depth::count(6, 60) {
        let giver = nodes.owner(log.0);
        let taker = (giver + 1) % NODES;
        let count = |name| counter(&nodes, taker, name, log);
        let before = ["gesta_pipeline_loads", "gesta_pipeline_misses"].map(count);
        let begun = Instant::now();
        let to = nodes.all[taker].address.to_string();
        let command = ["cluster", "move", "0", "--to", &to, "--wait", WAIT];
        tokio::task::block_in_place(|| nodes.command(&command));
        tokio::time::sleep(AROUND).await;
        let longest = callers.longest(begun, Instant::now());
        by_role[0].push(longest[giver]);
        by_role[1].push(longest[taker]);
        by_role[2].push(longest[3 - giver - taker]);
        let longest = longest.into_iter().max().unwrap();
        away.push(longest);
        let after = ["gesta_pipeline_loads", "gesta_pipeline_misses"].map(count);
        loads.push(after[0] - before[0]);
        misses.push(after[1] - before[1]);
        let begun = Instant::now();
        tokio::time::sleep(AROUND * 2).await;
        quiet.push(
            callers
                .longest(begun, Instant::now())
                .into_iter()
                .max()
                .unwrap(),
        );
        in_time("longest append while a log moves", longest, MOVE_MAX);
    }
    callers.end().await;
    for (role, times) in ["giver", "taker", "third"].iter().zip(by_role) {
        eprintln!("longest append at the {role}: {}", quantiles(times));
    }
    eprintln!("longest append while nothing moves: {}", quantiles(quiet));
    eprintln!(
        "statements that looked up streams after a move: {loads:?}, batches that missed: {misses:?}"
    );
    eprintln!("longest append while a log moves: {}", quantiles(away));
}

/// Goal: the logs of a node that drains, several of which move in one moment, are away for a moment only.
#[tokio::test(flavor = "multi_thread")]
async fn the_logs_of_a_node_that_drains_are_away_for_a_moment_only() {
    let Some(nodes) = Nodes::start(NODES, LOGS).await else {
        return;
    };
    let logs: Vec<LogId> = (0..LOGS)
        .map(|log| LogId(log.try_into().unwrap()))
        .collect();
    let callers = Callers::start(&nodes, &logs);
    let (mut away, mut counts) = (vec![], vec![]);
    for _ in 0..depth::count(6, 60) {
        let drained = nodes.busiest();
        counts.push(nodes.logs_owned()[drained]);
        let drained = nodes.all[drained].address.to_string();
        let begun = Instant::now();
        let command = ["cluster", "drain", &drained, "--wait", WAIT];
        tokio::task::block_in_place(|| nodes.command(&command));
        tokio::time::sleep(AROUND).await;
        let longest = callers.longest(begun, Instant::now());
        let longest = longest.into_iter().max().unwrap();
        away.push(longest);
        tokio::task::block_in_place(|| nodes.command(&["cluster", "drain", &drained, "--undo"]));
        in_time("longest append while a node drains", longest, MOVE_MAX);
    }
    callers.end().await;
    eprintln!("in each round {counts:?} logs were handed over, the longest append was {away:?}");
    eprintln!("longest append while a node drains: {}", quantiles(away));
}

/// The longest append while a log is handed over; on an idle machine it is far less.
const MOVE_MAX: Duration = Duration::from_secs(2);
