//! Connections that break, batches that miss, and faults at random.

use super::*;

/// Goal: C7. The reply is lost, the request is lost, or the statement commits late: stored exactly once, and the caller
/// learns where.
#[tokio::test]
async fn lost_connections_leave_no_outcome_unknown() {
    for fault in [
        Fault::LoseReply,
        Fault::LoseRequest,
        Fault::CommitLate,
        Fault::Fail,
    ] {
        let sim = Sim::new(4);
        let p = start(&sim);
        p.append(to("s", NoStream, vec![event("x")])).await.unwrap();
        sim.fault(fault);
        // Ids of the store: only the pipeline itself can keep these from being stored twice.
        let plain = EventData::json(EventType::new("a").unwrap(), "{}");
        let requests =
            (0..50).map(|i| p.append(to(&format!("s-{}", i % 7), Any, vec![plain.clone()])));
        for (answer, i) in join_all(requests).await.into_iter().zip(0..) {
            let answer = answer.unwrap_or_else(|error| panic!("{fault:?} {i}: {error}"));
            let row = sim
                .events()
                .into_iter()
                .find(|row| row.position == answer.position)
                .unwrap();
            assert_eq!(row.stream, answer.streams[0].stream);
        }
        assert_eq!(
            sim.commit_lost(),
            0,
            "a lost statement can no longer commit"
        );
        assert_eq!(sim.events().len(), 51, "{fault:?}");
        sim.check();
    }
}

/// Goal: C7. A statement that commits late, before its batch is sent again, is recognised.
#[tokio::test]
async fn a_statement_that_commits_while_reconnecting_counts() {
    let sim = Sim::new(4);
    let p = start(&sim);
    p.append(to("s", NoStream, vec![event("x")])).await.unwrap();
    sim.fault(Fault::CommitLate);
    let attempt = p.append(to(
        "s",
        Any,
        vec![EventData::json(EventType::new("a").unwrap(), "{}")],
    ));
    let late_commit = async {
        eventually("the statement is under way", || sim.lost() == 1).await;
        sim.set_down(true);
        assert_eq!(sim.commit_lost(), 1);
        sim.set_down(false);
    };
    let (answer, ()) = tokio::join!(attempt, late_commit);
    assert_eq!(answer.unwrap().position, Position(2));
    assert_eq!(sim.events().len(), 2);
}

/// A process has two batches in flight when another has appended one event: the first misses, and the second
/// must miss as well, though the number of the row that it follows is there. Returns whether the store is sound.
async fn second_batch_after_a_missed_one(sim: &Arc<Sim>) -> bool {
    let (a, b) = (start(sim), start(sim));
    let plain = || {
        to(
            "s",
            Any,
            vec![EventData::json(EventType::new("a").unwrap(), "{}")],
        )
    };
    a.append(plain()).await.unwrap();
    b.append(to("t", Any, vec![event("a")])).await.unwrap();
    sim.set_answering(false);
    let first = a.append(plain());
    eventually("the first batch is under way", || a.stats().batches == 2).await;
    let second = a.append(plain());
    eventually("the second batch is under way", || a.stats().batches == 3).await;
    let sound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sim.check())).is_ok();
    if sound {
        sim.set_answering(true);
        assert!(first.await.is_ok() && second.await.is_ok());
        sim.check();
    }
    sound
}

/// The story: comparing the predecessor's position alone left a hole in a stream. Naming the connection
/// that wrote it closes that, and this test would notice the old way.
#[tokio::test]
async fn a_batch_after_a_missed_one_misses_too() {
    assert!(second_batch_after_a_missed_one(&Sim::new(4)).await);
    let broken = Sim::new(4);
    broken.compare_numbers_only();
    assert!(
        !second_batch_after_a_missed_one(&broken).await,
        "the mistake must show"
    );
}

/// Goal: reads under way hold all connections when a batch misses; recovery reads as well and must get one.
#[tokio::test]
async fn reads_under_way_do_not_starve_recovery() {
    let sim = Sim::new(4);
    let (a, b) = (start(&sim), start(&sim));
    a.append(to("known", Any, vec![event("e")])).await.unwrap();
    b.append(to("known", Any, vec![event("e")])).await.unwrap();
    let a = Arc::new(a);
    let append = |stream: &str| {
        let (a, request) = (Arc::clone(&a), to(stream, Any, vec![event("e")]));
        tokio::spawn(async move { a.append(request).await })
    };
    sim.set_loading(false);
    let new = append("new");
    eventually("one connection is in use", || sim.reading() == 1).await;
    let newer = append("newer");
    eventually("both connections are in use", || sim.reading() == 2).await;
    let known = append("known");
    eventually("its batch has missed", || a.stats().misses == 1).await;
    sim.set_loading(true);
    for append in [new, newer, known] {
        let answer = tokio::time::timeout(Duration::from_secs(10), append).await;
        answer.expect("answered").unwrap().unwrap();
    }
    sim.check();
}

#[tokio::test]
async fn a_database_that_stays_away_is_told_apart_from_an_unknown_outcome() {
    let sim = Sim::new(4);
    let p = start_with(
        &sim,
        Config {
            give_up_after: Duration::from_millis(200),
            ..Config::default()
        },
    );
    p.append(to("s", Any, vec![event("a")])).await.unwrap();
    sim.set_down(true);
    let first = p.append(to("s", Any, vec![event("a")])).await.unwrap_err();
    assert!(
        matches!(first.kind(), ErrorKind::OutcomeUnknown(_)),
        "{first}"
    );
    let second = p.append(to("s", Any, vec![event("a")])).await.unwrap_err();
    assert!(
        matches!(second.kind(), ErrorKind::Unavailable(_)),
        "{second}"
    );
    sim.set_down(false);
    p.append(to("s", Exact(Revision(0)), vec![event("a")]))
        .await
        .unwrap();
}

/// Goal: two processes, four batches in flight, random faults, retries of everything that is not a plain answer:
/// each append is stored exactly once, where its answer says, and revisions have no gaps.
#[tokio::test]
async fn random_faults_with_two_processes_lose_and_double_nothing() {
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let sim = Sim::new(4);
    let processes = [start(&sim), start(&sim)];
    for _ in 0..40 {
        for _ in 0..rng.random_range(0..4) {
            let faults = [
                Fault::LoseReply,
                Fault::LoseRequest,
                Fault::CommitLate,
                Fault::Fail,
            ];
            sim.fault(faults[rng.random_range(0..faults.len())]);
        }
        let requests: Vec<(usize, Append)> = (0..60)
            .map(|_| {
                let events = (0..rng.random_range(1..4))
                    .map(|_| event(&format!("t{}", rng.random_range(0..5))))
                    .collect();
                (
                    rng.random_range(0..2),
                    to(&format!("s-{}", rng.random_range(0..8)), Any, events),
                )
            })
            .collect();
        let answers = join_all(
            requests
                .iter()
                .map(|(process, request)| processes[*process].append(request.clone())),
        )
        .await;
        if rng.random_bool(0.5) {
            sim.commit_lost();
        }
        let stored: HashMap<EventId, Vec<u64>> =
            sim.events().iter().fold(HashMap::new(), |mut map, row| {
                map.entry(row.id).or_default().push(row.revision.0);
                map
            });
        for ((_, request), answer) in requests.iter().zip(answers) {
            let answer = answer.unwrap();
            for (event, revision) in request.streams[0]
                .events
                .iter()
                .zip(answer.streams[0].first_revision.0..)
            {
                assert_eq!(
                    stored.get(&event.id.unwrap()),
                    Some(&vec![revision]),
                    "seed {seed}"
                );
            }
        }
        sim.check();
    }
}
