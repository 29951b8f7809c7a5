//! Callers, each with one call under way.

use std::ops::Range;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use gesta_report::histogram::Latencies;

/// What callers got.
#[derive(Debug, Default)]
pub struct Calls {
    /// Of those that were answered as they should be.
    pub latencies: Latencies,
    /// What went wrong, in words.
    pub wrongs: Vec<String>,
    /// How long it took.
    pub seconds: f64,
}

impl Calls {
    /// Calls that were answered as they should be, per second.
    pub fn per_second(&self) -> f64 {
        self.latencies.percentiles().count as f64 / self.seconds.max(0.001)
    }
}

/// Lets callers of these numbers call until nothing is left to do, at most so long. `call` is given the number of the
/// caller and of its call; none if nothing is left.
pub async fn drive<F>(
    callers: Range<u32>,
    longest: Duration,
    stop: &CancellationToken,
    call: impl Fn(u32, u64) -> F + Clone + Send + 'static,
) -> Calls
where
    F: Future<Output = Option<Result<(), String>>> + Send,
{
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for by in callers {
        let (call, stop) = (call.clone(), stop.clone());
        tasks.spawn(async move {
            let mut calls = Calls::default();
            for n in 0.. {
                if began.elapsed() >= longest || stop.is_cancelled() {
                    break;
                }
                let sent = Instant::now();
                match call(by, n).await {
                    None => break,
                    Some(Ok(())) => calls.latencies.record(sent.elapsed()),
                    Some(Err(wrong)) => calls.wrongs.push(wrong),
                }
            }
            calls
        });
    }
    let mut all = Calls::default();
    for calls in tasks.join_all().await {
        all.latencies.merge(&calls.latencies);
        all.wrongs.extend(calls.wrongs);
    }
    all.seconds = began.elapsed().as_secs_f64();
    all
}
