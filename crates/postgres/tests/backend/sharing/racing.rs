//! Several processes append to the logs of one store at once, several batches under way in each log: what is told is
//! what is stored, in that order, once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::future::join_all;
use gesta_core::backend::{Backend, BatchOutcome, LoadRequest, LogWriter, Purpose};
use gesta_core::{EventId, EventType, LogId, StreamId};
use gesta_kit::depth;
use gesta_kit::faulty::Random;
use gesta_postgres::PostgresBackend;
use gesta_rig::shared;

use super::process::{Hold, LOGS, Process, is_healthy, stream_of};
use crate::common::{Author, Draft, draft, fresh_logs, open};

/// What goes wrong in the appends of one handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Good,
    /// Some is refused, and some fails for a passing reason.
    SomeBad,
}

/// One handle that appends by itself, several batches under way, and begins again where something was not stored.
struct Appending {
    backend: Arc<PostgresBackend>,
    writer: Box<dyn LogWriter>,
    log: LogId,
    /// Its own, in its log.
    stream: String,
    content: Content,
    random: Random,
    /// The ids of what was committed, in the order of the log.
    committed: Vec<EventId>,
    outcomes: HashMap<&'static str, usize>,
}

impl Appending {
    async fn run(mut self, rounds: usize) -> Self {
        let mut author = self.look().await;
        for _ in 0..rounds {
            let under_way: Vec<_> = (0..1 + self.random.below(4))
                .map(|_| self.submit(&mut author))
                .collect();
            let mut is_lost = false;
            for (ids, is_bad, answer) in under_way {
                let outcome = answer.await.expect("does not panic");
                let name = match &outcome {
                    BatchOutcome::Committed => {
                        assert!(!is_lost, "stored upon what was not");
                        assert!(!is_bad, "bad");
                        self.committed.extend(ids);
                        "committed"
                    }
                    BatchOutcome::Missed => "missed",
                    BatchOutcome::Refused(error) => {
                        assert!(is_bad, "innocent: {error}");
                        "refused"
                    }
                    BatchOutcome::Failed(error) => {
                        let is_planted = error.to_string().contains("injected");
                        assert!(is_planted, "a deadlock? {error}");
                        "failed"
                    }
                    BatchOutcome::Unknown(error) => panic!("{error}"),
                };
                *self.outcomes.entry(name).or_default() += 1;
                is_lost |= name != "committed";
            }
            if is_lost {
                author = self.look().await;
            }
        }
        self
    }

    /// What the database knows.
    async fn look(&mut self) -> Author {
        let request = LoadRequest {
            streams: vec![StreamId::new(self.stream.as_str()).expect("valid")],
            types: vec![EventType::new("T").expect("valid")],
        };
        let loaded = self.backend.load(self.log, request, Purpose::Read).await;
        let loaded = loaded.expect("loads");
        let mut author = Author::of(self.log);
        author.end = loaded.end;
        author.know(&self.stream, &loaded, "T");
        author
    }

    fn submit(
        &mut self,
        author: &mut Author,
    ) -> (Vec<EventId>, bool, tokio::task::JoinHandle<BatchOutcome>) {
        let random = &mut self.random;
        let fresh = format!("{}-{}", self.stream, random.number());
        let mut drafts: Vec<Draft<'_>> = (0..1 + random.below(6))
            .map(|_| draft(&self.stream, "T"))
            .collect();
        let is_bad = self.content == Content::SomeBad && random.chance(0.05);
        if is_bad {
            let code = *random.pick(&["22000", "40001"]);
            drafts[0].data = code.into();
        }
        if random.chance(0.2) {
            drafts.push(draft(&fresh, "T"));
        }
        if random.chance(0.2) {
            drafts[0].tags = &["a", "b"];
        }
        let batch = author.batch(&*self.writer, &drafts);
        let ids = batch.rows.iter().map(|row| row.id).collect();
        (ids, is_bad, tokio::spawn(self.writer.submit(batch)))
    }
}

async fn handles(
    backend: &Arc<PostgresBackend>,
    process: usize,
    logs: &[u16],
    content: Content,
    random: &mut Random,
) -> Vec<Appending> {
    let mut handles = Vec::new();
    for log in logs {
        let writer = backend.open_writer(LogId(*log)).await.expect("opens");
        handles.push(Appending {
            backend: Arc::clone(backend),
            writer,
            log: LogId(*log),
            stream: format!("{{{}}}-{process}", stream_of(usize::from(*log))),
            content,
            random: random.fork(),
            committed: Vec::new(),
            outcomes: HashMap::new(),
        });
    }
    handles
}

/// Runs them all; what is stored must be what they were told, in their order.
async fn play(url: &str, handles: Vec<Appending>, rounds: usize) -> Vec<Appending> {
    let tasks: Vec<_> = handles
        .into_iter()
        .map(|one| tokio::spawn(one.run(rounds)))
        .collect();
    let ended = join_all(tasks).await.into_iter();
    let ended: Vec<Appending> = ended.map(|one| one.expect("does not panic")).collect();
    let reader = Process::begin(open(url).await).await;
    for log in 0..LOGS {
        let events = reader.everything(log).await;
        let positions = events.iter().map(|event| event.position.0);
        assert!(positions.eq(1..=events.len() as u64), "log {log} has gaps");
        let of_log = || ended.iter().filter(|one| one.log == LogId(log));
        for one in of_log() {
            let told: HashSet<EventId> = one.committed.iter().copied().collect();
            let stored = events.iter().map(|event| event.id);
            let stored = stored.filter(|id| told.contains(id));
            let is_as_told = stored.eq(one.committed.iter().copied());
            assert!(is_as_told, "log {log} is not as was told");
        }
        let told: usize = of_log().map(|one| one.committed.len()).sum();
        assert_eq!(events.len(), told, "log {log} holds more than was told");
    }
    is_healthy(url).await;
    ended
}

/// Goal: where two processes race for one log, each position has one winner, and the other logs of the same statements
/// commit as if nothing were.
#[tokio::test(flavor = "multi_thread")]
async fn a_race_for_one_log_does_not_touch_the_others() {
    let Some(server) = shared() else { return };
    let (first, url) = fresh_logs(server, LOGS).await;
    let (first, second) = (Arc::new(first), Arc::new(open(&url).await));
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let mut random = Random::new(seed);
    let mut all = handles(&first, 1, &[0, 1, 2, 3], Content::Good, &mut random).await;
    all.extend(handles(&second, 2, &[1], Content::Good, &mut random).await);
    for one in play(&url, all, depth::count(60, 1_000)).await {
        if one.log == LogId(1) {
            assert_eq!(one.outcomes.get("refused"), None);
            assert_eq!(one.outcomes.get("failed"), None);
        } else {
            let kinds: Vec<_> = one.outcomes.keys().collect();
            assert_eq!(kinds, [&"committed"], "log {}", one.log);
        }
    }
}

/// Goal: under random appends of three processes, some with content that is refused or fails, all is told as it is.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_is_what_is_stored() {
    let Some(server) = shared() else { return };
    let (first, url) = fresh_logs(server, LOGS).await;
    let hold = Hold::plant(&url).await;
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let mut random = Random::new(seed);
    let first = Arc::new(first);
    let mut all = handles(&first, 1, &[0, 1, 2, 3], Content::SomeBad, &mut random).await;
    for (process, logs) in [(2, [0, 2].as_slice()), (3, &[1, 2])] {
        let backend = Arc::new(open(&url).await);
        all.extend(handles(&backend, process, logs, Content::Good, &mut random).await);
    }
    let ended = play(&url, all, depth::count(60, 1_000)).await;
    let count = |name| -> usize { ended.iter().filter_map(|one| one.outcomes.get(name)).sum() };
    assert!(count("committed") > 0, "something is stored");
    println!(
        "committed {}, missed {}, refused {}, failed {}",
        count("committed"),
        count("missed"),
        count("refused"),
        count("failed")
    );
    drop(hold);
}
