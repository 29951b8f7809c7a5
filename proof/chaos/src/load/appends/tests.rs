//! Writers, tails and judge together, on stores that keep or break their word.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta_core::{EventStore, EventStoreExt};
use gesta_kit::verdict::{Verdict, Violation};
use gesta_load::machine::CurrentStore;

use super::breach::{Breach, BreachingStore};
use super::crew::Crew;
use super::record::Record;
use super::tails::Manner;
use super::writers::Claims;
use crate::load::Excuse;

/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// Writers and tails at work until a number of appends were tried; then the verdict.
async fn tortured(breach: Breach) -> (Verdict, Arc<Record>) {
    let store = Arc::new(BreachingStore::store(breach));
    let current = CurrentStore::new(Arc::clone(&store) as Arc<dyn EventStore>, None);
    let mut crew = Crew::new(1);
    for manner in [Manner::Subscribe, Manner::SubscribeRestless, Manner::Poll] {
        crew.follow(format!("{manner:?}"), manner, current.clone(), None);
    }
    for _ in 0..4 {
        crew.write("memory", current.clone(), Claims::Mixed, Duration::ZERO);
    }
    let begun = Instant::now();
    while store.appends() < 2_000 {
        let appends = store.appends();
        assert!(begun.elapsed() < PATIENCE, "{appends} appends");
        crew.let_go();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    crew.end_writers().await.unwrap();
    let stored = store.inner.read_everything().await.unwrap();
    let record = Arc::clone(&crew.record);
    let verdict = crew.judge(&stored).await.unwrap();
    record.settle_unknown(&[], &["memory".to_owned()]);
    (verdict, record)
}

#[tokio::test]
async fn errors_alone_break_no_promise() {
    let (verdict, record) = tortured(Breach::ErrorsOnly).await;
    verdict.assert_clean();
    assert_eq!(verdict.events_foreign, 0);
    assert!(verdict.events_acknowledged > 1_000);
    let counted = |what| record.counted("memory", what);
    assert!(counted("unavailable") > 0 && counted("refused") > 0 && counted("open") == 0);
    // Nothing excuses them.
    let (unknown, violations) = (counted("unknown"), record.violations());
    assert!(
        unknown > 0 && violations.1 as u64 == unknown,
        "{violations:?}"
    );
}

/// Goal: the fault of one server excuses what it does not know, while the fault lasts; not what others do not know, and
/// not what it does not know before and after.
#[test]
fn unknown_outcomes_are_excused_by_whom_and_when() {
    let begun = Instant::now();
    let at = |seconds| begun + Duration::from_secs(seconds);
    let names = ["server 1".to_owned(), "server 2".to_owned()];
    let excuse = |members| Excuse {
        members,
        from: at(10),
        to: at(20),
    };
    let of_first = excuse(Some(vec![0]));
    for (excused, way, from, to, blamed) in [
        (of_first.clone(), "server 1", 12, 13, 0),
        (of_first.clone(), "server 1", 5, 11, 0),
        (of_first.clone(), "server 1", 5, 9, 1),
        (of_first.clone(), "server 1", 21, 22, 1),
        (of_first.clone(), "server 2", 12, 13, 1),
        (of_first, "any node", 12, 13, 1),
        (excuse(None), "server 2", 12, 13, 0),
        (excuse(None), "any node", 12, 13, 0),
        (excuse(None), "any node", 21, 22, 1),
    ] {
        let record = Record::default();
        record.add_unknown(way, at(from), at(to), "why".to_owned());
        record.settle_unknown(&[excused], &names);
        let found = record.violations().1;
        assert_eq!(found, blamed, "{way}, from {from} to {to}");
    }
}

#[tokio::test]
async fn a_forgetful_store_is_caught() {
    let (verdict, record) = tortured(Breach::Forget).await;
    let is_lost = |found: &Violation| matches!(found, Violation::AcknowledgedLost { .. });
    assert!(verdict.violations.iter().any(is_lost), "{verdict}");
    let problems = record.problems(&verdict);
    assert!(problems.iter().any(|text| text.contains("but lost")));
}

#[tokio::test]
async fn a_store_that_stores_retries_again_is_caught() {
    let (verdict, record) = tortured(Breach::Repeat).await;
    assert!(verdict.events_foreign > 0, "{verdict}");
    let problems = record.problems(&verdict);
    assert!(problems.iter().any(|text| text.contains("nobody appended")));
}

#[tokio::test]
async fn a_wrong_refusal_is_caught() {
    let (verdict, record) = tortured(Breach::Refuse).await;
    let problems = record.problems(&verdict).join("\n");
    assert!(problems.contains("refused wrongly"), "{problems}");
}
