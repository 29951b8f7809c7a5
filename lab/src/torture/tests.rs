//! Writers, tails and judge together, on stores that keep or break their word.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use gesta_core::{EventStore, EventStoreExt};
use gesta_testkit::history::{Report, Violation};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::bumpy::{Breach, Bumpy};
use super::record::{Record, SharedRecord, TailLog, Tailed};
use super::writers::Writer;
use crate::faults::CurrentStore;
use crate::faults::tails::{Manner, Tail};

/// Writers and tails at work until a number of appends were tried; then the verdict.
async fn tortured(breach: Breach) -> (Report, SharedRecord) {
    let store = Arc::new(Bumpy::store(breach));
    let shared = CurrentStore::new(Arc::clone(&store) as Arc<dyn EventStore>, None);
    let record = Arc::new(Record::default());
    let (writers_over, tails_over) = (CancellationToken::new(), CancellationToken::new());
    let (let_go, listener) = watch::channel(0);
    let (mut writers, mut tails, mut logs) = (Vec::new(), Vec::new(), Vec::new());
    for manner in [Manner::Subscribe, Manner::SubscribeRestless, Manner::Poll] {
        let log = Arc::new(TailLog::default());
        logs.push(Arc::clone(&log));
        let id = record
            .history
            .tailer("tail", Vec::new(), gesta_core::Filter::ALL);
        let record = Arc::clone(&record);
        let tail = Tail {
            name: format!("{manner:?}"),
            manner,
            store: Arc::clone(&shared),
            let_go: listener.clone(),
            over: tails_over.clone(),
            sink: Tailed { record, id, log },
        };
        tails.push(tokio::spawn(tail.run(None)));
    }
    for number in 0..4 {
        let writer = Writer {
            number,
            entry: 0,
            store: Arc::clone(&shared),
            pause: Duration::ZERO,
            seed: 1,
            run: "test".into(),
            over: writers_over.clone(),
            record: Arc::clone(&record),
            progress: Arc::new(AtomicU64::new(0)),
            epoch: Instant::now(),
        };
        writers.push(tokio::spawn(writer.run()));
    }
    let mut round = 0;
    while store.appends() < 2_000 {
        round += 1;
        let_go.send_replace(round);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    writers_over.cancel();
    for writer in writers {
        writer.await.unwrap();
    }
    let stored = store.inner.read_everything().await.unwrap();
    let last = stored.last().map(|event| event.position);
    let deadline = Instant::now() + Duration::from_secs(30);
    while logs
        .iter()
        .any(|log| log.ends().values().max().copied() != last)
    {
        assert!(Instant::now() < deadline, "a tail did not arrive");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tails_over.cancel();
    for tail in tails {
        tail.await.unwrap();
    }
    record.settle_unknown();
    (record.history.check_against(&stored), record)
}

#[tokio::test]
async fn bumps_alone_break_no_promise() {
    let (verdict, record) = tortured(Breach::Bumpy).await;
    verdict.assert_clean();
    assert_eq!(verdict.events_foreign, 0);
    assert!(verdict.events_acknowledged > 1_000);
    let counts = record.counts()[&0].clone();
    assert!(
        counts.unavailable > 0 && counts.refused > 0 && counts.open == 0,
        "{counts:?}"
    );
    // No round was under way that excuses them.
    assert!(
        counts.unknown > 0 && record.violations().1 == counts.unknown,
        "{:?}",
        record.violations()
    );
}

#[tokio::test]
async fn a_forgetful_store_is_caught() {
    let (verdict, _) = tortured(Breach::Forget).await;
    let is_lost = |found: &Violation| matches!(found, Violation::AcknowledgedLost { .. });
    assert!(verdict.violations.iter().any(is_lost), "{verdict}");
}

#[tokio::test]
async fn a_store_that_stores_retries_again_is_caught() {
    let (verdict, _) = tortured(Breach::Repeat).await;
    assert!(verdict.events_foreign > 0, "{verdict}");
}

#[tokio::test]
async fn a_wrong_refusal_is_caught() {
    let (_, record) = tortured(Breach::Refuse).await;
    let told = record.violations().0.join("\n");
    assert!(told.contains("refused wrongly"), "{told}");
}
