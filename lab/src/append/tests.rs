//! The check must catch a store that breaks its word in any of the ways it looks for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{Result, *};
use gesta_memory::MemoryStore;
use gesta_testkit::{Around, Outer};

use super::{Arc, CancellationToken, LoadArgs, Measured, Opened, WorkloadArgs, measure};
use crate::load::Claim;
use crate::workload::PayloadKind;

/// What the store does to one append out of fifty.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Breach {
    None,
    /// Acknowledges it and stores nothing.
    Drop,
    /// Stores it twice, under the same ids.
    Double,
    /// Answers with another revision.
    WrongRevision,
    /// Changes the payload.
    Alter,
    /// Stores it, and refuses it.
    RefuseStored,
    /// Refuses it with a passing error the first time.
    Busy,
}

/// A wrapper over the reference store. A double is shown on reads, as the reference store itself recognises retries.
struct Broken {
    inner: MemoryStore,
    breach: Breach,
    count: AtomicU64,
}

#[async_trait]
impl Around for Broken {
    fn inner(&self) -> &dyn EventStore {
        &self.inner
    }

    async fn append(&self, mut request: Append) -> Result<Appended> {
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        if n % 50 != 25 {
            return self.inner.append(request).await;
        }
        match self.breach {
            Breach::Drop => {
                let decoy = MemoryStore::new();
                decoy.append(request).await
            }
            Breach::WrongRevision => {
                let mut answer = self.inner.append(request).await?;
                answer.streams[0].first_revision.0 += 1;
                Ok(answer)
            }
            Breach::Alter => {
                request.streams[0].events[0].data = "changed".into();
                self.inner.append(request).await
            }
            Breach::RefuseStored => {
                self.inner.append(request).await?;
                Err(ErrorKind::Refused("no reason".into()).into())
            }
            Breach::Busy => Err(ErrorKind::Overloaded("full".into()).into()),
            Breach::None | Breach::Double => self.inner.append(request).await,
        }
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        let mut page = self.inner.read_all(request).await?;
        if self.breach == Breach::Double
            && let Some(last) = page.events.last().cloned()
        {
            page.events.push(last);
        }
        Ok(page)
    }
}

async fn measured(breach: Breach, expected: Claim) -> Measured {
    let store: Arc<dyn EventStore> = Arc::new(Outer(Broken {
        inner: MemoryStore::new(),
        breach,
        count: AtomicU64::new(0),
    }));
    let load = LoadArgs {
        waiters: 4,
        events: 3,
        expected,
        rate: Some(2_000.0),
        warm_up: Duration::from_millis(20),
        duration: Duration::from_millis(150),
    };
    let workload = WorkloadArgs {
        streams: 20,
        payload: 50,
        payload_kind: PayloadKind::Json,
        metadata: 36,
        seed: 1,
    };
    let opened = Opened::of(store).await.unwrap();
    let stop = CancellationToken::new();
    measure(&opened, &load, &workload, &stop).await.unwrap()
}

#[tokio::test]
async fn a_sound_store_passes_with_every_claim() {
    for claim in [Claim::Any, Claim::Exact] {
        let run = measured(Breach::None, claim).await;
        assert!(
            run.is_valid(),
            "{:?} {:?}",
            run.read_back,
            run.outcome.wrongs
        );
        assert!(run.outcome.complete && run.outcome.appends > 50);
        assert_eq!(run.read_back.found, run.read_back.acknowledged);
        assert_eq!(
            run.outcome.latencies.percentiles().count,
            run.outcome.appends
        );
    }
}

#[tokio::test]
async fn a_dropped_event_is_caught() {
    let run = measured(Breach::Drop, Claim::Any).await;
    assert!(!run.is_valid() && run.read_back.lost > 0);
    assert_eq!(
        run.read_back.found + run.read_back.lost,
        run.read_back.acknowledged
    );
}

#[tokio::test]
async fn a_doubled_event_is_caught() {
    let run = measured(Breach::Double, Claim::Any).await;
    assert!(!run.is_valid() && run.read_back.doubled > 0);
}

#[tokio::test]
async fn a_wrong_answer_is_caught() {
    let run = measured(Breach::WrongRevision, Claim::Any).await;
    assert!(!run.is_valid() && run.read_back.misplaced > 0);
}

#[tokio::test]
async fn a_changed_payload_is_caught() {
    let run = measured(Breach::Alter, Claim::Any).await;
    assert!(!run.is_valid() && run.read_back.altered > 0);
}

#[tokio::test]
async fn a_stored_refusal_is_caught() {
    let run = measured(Breach::RefuseStored, Claim::Exact).await;
    assert!(!run.is_valid() && run.read_back.uninvited > 0 && !run.outcome.wrongs.is_empty());
}

#[tokio::test]
async fn a_passing_error_is_counted_and_tried_again() {
    let run = measured(Breach::Busy, Claim::Any).await;
    assert!(run.is_valid(), "{:?}", run.read_back);
    assert!(run.outcome.errors["overloaded"] > 0);
}

#[tokio::test]
async fn an_interrupted_run_is_a_partial_result() {
    let stop = CancellationToken::new();
    let opened = Opened::of(Arc::new(MemoryStore::new())).await.unwrap();
    let load = LoadArgs {
        waiters: 2,
        events: 1,
        expected: Claim::Any,
        rate: Some(500.0),
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(3_600),
    };
    let workload = WorkloadArgs {
        streams: 2,
        payload: 5,
        payload_kind: PayloadKind::Random,
        metadata: 0,
        seed: 1,
    };
    let store = Arc::clone(&opened.store);
    let stopper = async {
        // Stops once something is stored.
        let mut all = store
            .subscribe(Subscribe {
                to: SubscribeTo::All(Filter::ALL),
                from: SubscribeFrom::Start,
            })
            .await
            .unwrap();
        all.next_event().await.unwrap();
        stop.cancel();
    };
    let (run, ()) = tokio::join!(measure(&opened, &load, &workload, &stop), stopper);
    let run = run.unwrap();
    assert!(run.is_valid() && !run.outcome.complete);
    assert!(run.outcome.seconds < 60.0 && run.read_back.acknowledged > 0);
}
