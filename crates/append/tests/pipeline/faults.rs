//! Connections that break, batches that miss, and faults at random.

use gesta_kit::faulty::Read;

use super::*;

/// Goal: C7. The reply is lost, the request is lost, or the statement commits late: stored exactly once, and the caller
/// learns where.
#[tokio::test]
async fn lost_connections_leave_no_outcome_unknown() {
    for fault in [
        Fault::LostReply,
        Fault::LostRequest,
        Fault::Lost(LateCommit::WhenTold),
        Fault::Failed,
    ] {
        let world = world(4);
        let p = start(&world);
        p.append(to("s", NoStream, vec![event("x")])).await.unwrap();
        p.fail_next_commit(fault.clone());
        // Ids of the store: only the pipeline itself can keep these from being stored twice.
        let plain = EventData::json(EventType::new("a").unwrap(), "{}").without_id();
        let requests =
            (0..50).map(|i| p.append(to(&format!("s-{}", i % 7), Any, vec![plain.clone()])));
        for (answer, i) in join_all(requests).await.into_iter().zip(0..) {
            let answer = answer.unwrap_or_else(|error| panic!("{fault:?} {i}: {error}"));
            let row = events(&world)
                .into_iter()
                .find(|row| row.position == answer.position)
                .unwrap();
            assert_eq!(row.stream, answer.streams[0].stream);
        }
        assert_eq!(p.commit_lost(), 0, "a lost statement can no longer commit");
        assert_eq!(events(&world).len(), 51, "{fault:?}");
        check(&world);
    }
}

/// Goal: C7. A statement that commits late, before its batch is sent again, is recognised.
#[tokio::test]
async fn a_statement_that_commits_while_reconnecting_counts() {
    let world = world(4);
    let p = start(&world);
    p.append(to("s", NoStream, vec![event("x")])).await.unwrap();
    p.fail_next_commit(Fault::Lost(LateCommit::WhenTold));
    let attempt = p.append(to(
        "s",
        Any,
        vec![EventData::json(EventType::new("a").unwrap(), "{}").without_id()],
    ));
    let late_commit = async {
        eventually("the statement is under way", || p.lost() == 1).await;
        p.go_away();
        assert_eq!(p.commit_lost(), 1);
        p.come_back();
    };
    let (answer, ()) = tokio::join!(attempt, late_commit);
    assert_eq!(answer.unwrap().position, Position(2));
    assert_eq!(events(&world).len(), 2);
}

/// A process has two batches in flight when another has appended one event: the first misses, and the second
/// must miss as well, though the number of the row that it follows is there. Returns whether the store is sound.
async fn second_batch_after_a_missed_one(world: &Arc<World>) -> bool {
    let (a, b) = (start(world), start(world));
    let plain = || {
        to(
            "s",
            Any,
            vec![EventData::json(EventType::new("a").unwrap(), "{}").without_id()],
        )
    };
    a.append(plain()).await.unwrap();
    b.append(to("t", Any, vec![event("a")])).await.unwrap();
    a.hold(Answers::Commits);
    let first = a.append(plain());
    eventually("the first batch is under way", || a.stats().batches == 2).await;
    let second = a.append(plain());
    eventually("the second batch is under way", || a.stats().batches == 3).await;
    eventually("both are executed", || a.held(Answers::Commits) == 2).await;
    let sound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(world))).is_ok();
    if sound {
        a.release(Answers::Commits);
        assert!(first.await.is_ok() && second.await.is_ok());
        check(world);
    }
    sound
}

/// The story: comparing the predecessor's position alone left a hole in a stream. Naming the connection
/// that wrote it closes that, and this test would notice the old way.
#[tokio::test]
async fn a_batch_after_a_missed_one_misses_too() {
    assert!(second_batch_after_a_missed_one(&world(4)).await);
    let broken = world(4);
    broken.forget_writers();
    assert!(
        !second_batch_after_a_missed_one(&broken).await,
        "the mistake must show"
    );
}

/// Goal: reads under way hold all connections when a batch misses; recovery reads as well and must get one.
#[tokio::test]
async fn reads_under_way_do_not_starve_recovery() {
    let world = world(4);
    let (a, b) = (start(&world), start(&world));
    a.append(to("known", Any, vec![event("e")])).await.unwrap();
    b.append(to("known", Any, vec![event("e")])).await.unwrap();
    let a = Arc::new(a);
    let append = |stream: &str| {
        let (a, request) = (Arc::clone(&a), to(stream, Any, vec![event("e")]));
        tokio::spawn(async move { a.append(request).await })
    };
    a.limit_connections(2);
    a.hold(Answers::Loads);
    let new = append("new");
    eventually("one connection is in use", || a.held(Answers::Loads) == 1).await;
    let newer = append("newer");
    eventually("both connections are in use", || {
        a.held(Answers::Loads) == 2
    })
    .await;
    let known = append("known");
    eventually("its batch has missed", || a.stats().misses == 1).await;
    a.release(Answers::Loads);
    for append in [new, newer, known] {
        let answer = tokio::time::timeout(DEADLINE, append).await;
        answer.expect("answered").unwrap().unwrap();
    }
    check(&world);
}

#[tokio::test(start_paused = true)]
async fn a_database_that_stays_away_is_told_apart_from_an_unknown_outcome() {
    let world = world(4);
    let p = start_with(
        &world,
        Config {
            give_up_after: Duration::from_millis(200),
            ..Config::default()
        },
    );
    p.append(to("s", Any, vec![event("a")])).await.unwrap();
    p.fail_next_commit(Fault::LostRequest);
    p.fail_reads(|read| match read {
        Read::Connect | Read::Lookup(_) | Read::Names => Some(Error::unavailable("down")),
        _ => None,
    });
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
    p.let_reads_succeed();
    p.append(to("s", Exact(Revision(0)), vec![event("a")]))
        .await
        .unwrap();
}

/// Appends, each with the number of the process that it goes to.
fn random_requests(rng: &mut StdRng) -> Vec<(usize, Append)> {
    (0..60)
        .map(|_| {
            let events = (0..rng.random_range(1..4))
                .map(|_| event(&format!("t{}", rng.random_range(0..5))))
                .collect();
            (
                rng.random_range(0..2),
                to(&format!("s-{}", rng.random_range(0..8)), Any, events),
            )
        })
        .collect()
}

/// Goal: two processes, four batches in flight, random faults, retries of everything that is not a plain answer:
/// each append is stored exactly once, where its answer says, and revisions have no gaps.
#[tokio::test]
async fn random_faults_with_two_processes_lose_and_double_nothing() {
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let world = world(4);
    let processes = [start(&world), start(&world)];
    for _ in 0..40 {
        for _ in 0..rng.random_range(0..4) {
            let faults = [
                Fault::LostReply,
                Fault::LostRequest,
                Fault::Lost(LateCommit::WhenTold),
                Fault::Failed,
            ];
            let fault = faults[rng.random_range(0..faults.len())].clone();
            processes[rng.random_range(0..2)].fail_next_commit(fault);
        }
        let requests = random_requests(&mut rng);
        let answers = join_all(
            requests
                .iter()
                .map(|(process, request)| processes[*process].append(request.clone())),
        )
        .await;
        if rng.random_bool(0.5) {
            processes
                .iter()
                .for_each(|process| _ = process.commit_lost());
        }
        let stored: HashMap<EventId, Vec<u64>> =
            events(&world).iter().fold(HashMap::new(), |mut map, row| {
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
        check(&world);
    }
}
