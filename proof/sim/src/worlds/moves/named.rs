//! Schedules of logs that move and are lost, each by name.

use std::collections::BTreeSet;

use super::*;
use gesta_postgres::core::several::Routes;

/// Goal: a process that does not know yet that the log has moved finds what was appended to it since, in whatever way
/// it reads.
pub(super) async fn readers_with_an_old_map_find_what_came_after_a_move(world: SharedWorld) {
    for reading in [Reading::Pages, Reading::Tails, Reading::TailsUpTo] {
        let choices = lock(&world).fork();
        let world = World::shared(choices);
        let mut before = process(&world).await.expect("a new store");
        for _ in 0..4 {
            assert!(before.appends(&world).await);
        }
        let to = (lock(&world).home() + 1) % DATABASES;
        lock(&world).finish(Goals::Move(to)).expect("free");
        let mut other = process(&world).await.expect("whole");
        assert!(other.appends(&world).await, "in the new home");
        let found = before.read_by(reading).await.expect("reads");
        assert_eq!(found.len(), 5, "{reading:?}");
        let expected = lock(&world).expected();
        lock(&world).check_read(before.id, &expected, &found);
    }
}

/// Goal: the two ways in which a restored database has lost acknowledged events without a word. The first: the log has
/// moved to a database that is then set back to a moment before.
pub(super) async fn a_new_home_that_was_set_back_is_refused_and_the_log_comes_back(
    world: SharedWorld,
) {
    let mut process_of_before = process(&world).await.expect("a new store");
    for _ in 0..3 {
        assert!(process_of_before.appends(&world).await);
    }
    let home = lock(&world).home();
    let to = (home + 1) % DATABASES;
    lock(&world).finish(Goals::Move(to)).expect("free");
    assert!(process_of_before.appends(&world).await, "in the new home");
    lock(&world).restore_to(to, 0);
    assert!(process(&world).await.is_none(), "no process opens it");
    assert!(!process_of_before.appends(&world).await, "none goes on");
    assert!(process_of_before.read().await.is_none());
    for goal in [Goals::Undo, Goals::Move(to), Goals::Move(home)] {
        lock(&world).finish(goal).expect_err("the log is lost");
    }
    lock(&world)
        .finish(Goals::Recover)
        .expect("all that moved is left");
    assert_eq!(lock(&world).home(), home, "the old copy is the log");
    for process in [
        &mut process_of_before,
        &mut process(&world).await.expect("whole"),
    ] {
        assert!(reads(process, &world).await);
        assert!(process.appends(&world).await);
    }
    assert_eq!(lock(&world).expected().len(), 5);
}

/// The second: the log has moved away and back to a database that is then set back to its first stay.
pub(super) async fn a_home_that_was_set_back_to_an_earlier_stay_is_refused(world: SharedWorld) {
    let mut before = process(&world).await.expect("a new store");
    for _ in 0..2 {
        assert!(before.appends(&world).await);
    }
    let home = lock(&world).home();
    let (away, moment) = ((home + 1) % DATABASES, lock(&world).moment(home));
    assert!(before.appends(&world).await);
    lock(&world).finish(Goals::Move(away)).expect("free");
    assert!(before.appends(&world).await);
    lock(&world).finish(Goals::Move(home)).expect("free");
    assert!(before.appends(&world).await);
    lock(&world).restore_to(home, moment);
    assert!(process(&world).await.is_none(), "no process opens it");
    assert!(!before.appends(&world).await && before.read().await.is_none());
    lock(&world)
        .finish(Goals::Move(away))
        .expect_err("the log is lost");
    lock(&world)
        .finish(Goals::Recover)
        .expect("the other copy has more");
    assert_eq!(lock(&world).expected().len(), 4, "what had moved is back");
    assert!(reads(&before, &world).await && before.appends(&world).await);
    lock(&world).finish(Goals::Move(home)).expect("free");
    assert!(reads(&before, &world).await);
}

/// Goal: of two copies, each of which has events that the other one lacks, none is given up before somebody accepts it.
pub(super) async fn an_operator_chooses_between_copies_that_differ(world: SharedWorld) {
    let mut process = process(&world).await.expect("a new store");
    assert!(process.appends(&world).await);
    let home = lock(&world).home();
    let to = (home + 1) % DATABASES;
    lock(&world).finish(Goals::Move(to)).expect("free");
    assert!(process.appends(&world).await);
    lock(&world).append_beside(home);
    lock(&world)
        .finish(Goals::Recover)
        .expect_err("no copy has all");
    for from in [home, to] {
        let refused = Goals::From(from, Loss::Refused);
        lock(&world).finish(refused).expect_err("something is lost");
    }
    lock(&world)
        .finish(Goals::From(to, Loss::Accepted))
        .expect("accepted");
    assert!(reads(&process, &world).await && process.appends(&world).await);
    lock(&world)
        .finish(Goals::Move(home))
        .expect("the copy is the log's");
    assert!(reads(&process, &world).await);
}

pub(super) async fn another_log_or_another_way_waits_its_turn(world: SharedWorld) {
    let mut world = lock(&world);
    let moving = Moving {
        log: LogId(2),
        to: 0,
    };
    let announced = world.newest().announced(moving).expect("may go");
    for place in 0..DATABASES {
        world.put(place, &announced);
    }
    let none = BTreeSet::new();
    let error = next_step(LOG, Goal::Move(0), &world.facts(), &none).expect_err("busy");
    assert!(
        error
            .to_string()
            .contains("log 2 is being moved to database 1 of 3"),
        "{error}"
    );
    for goal in [
        Goal::Undo,
        Goal::Recover {
            from: 1,
            loss: Loss::Accepted,
        },
    ] {
        assert!(next_step(LOG, goal, &world.facts(), &none).is_err());
    }
    assert!(next_step(LogId(2), Goal::Move(1), &world.facts(), &none).is_err());
    assert!(next_step(LogId(9), Goal::Undo, &world.facts(), &none).is_err());
}

/// Goal: a fail-over of the old database that loses the row which closed the log there leaves it open only until the
/// next look.
pub(super) async fn a_log_that_a_fail_over_has_opened_again_is_closed(world: SharedWorld) {
    let mut process = process(&world).await.expect("a new store");
    for _ in 0..5 {
        assert!(process.appends(&world).await);
    }
    let mut world = lock(&world);
    let home = world.home();
    world.finish(Goals::Move(2)).expect("free");
    world.open_again(home);
    let none = BTreeSet::new();
    let step = next_step(LOG, Goal::Move(2), &world.facts(), &none).expect("a step");
    let expected = world.newest().version();
    assert_eq!(
        step,
        Step::Close {
            place: home,
            expected
        }
    );
    world.finish(Goals::Undo).expect("free");
    assert!(world.is_closed(home));
}

/// Goal: a store is no worse for a copy that a fail-over has left open: it opens, and a process that was told of
/// nothing does not take that copy for the log, whatever it can reach.
pub(super) async fn a_copy_that_a_fail_over_has_left_open_is_not_the_log(world: SharedWorld) {
    let mut before = process(&world).await.expect("a new store");
    for _ in 0..5 {
        assert!(before.appends(&world).await);
    }
    let (home, moment) = {
        let world = lock(&world);
        (world.home(), world.moment(world.home()))
    };
    let to = (home + 1) % DATABASES;
    lock(&world).finish(Goals::Move(to)).expect("free");
    lock(&world).restore_to(home, moment);
    lock(&world).away[to] = true;
    assert!(!before.appends(&world).await, "the log may be elsewhere");
    assert!(before.read().await.is_none());
    lock(&world).away[to] = false;
    let mut after = process(&world).await.expect("nothing is lost");
    for process in [&mut before, &mut after] {
        assert!(reads(process, &world).await && process.appends(&world).await);
    }
    assert_eq!(lock(&world).expected().len(), 7);
    assert!(!lock(&world).is_closed(home));
    lock(&world).finish(Goals::Undo).expect("nothing is lost");
    assert!(lock(&world).is_closed(home), "the next look closes it");
}

/// Goal: a database that has all events which any database knows of, but has not noted that the log came to it, is not
/// believed: it was set back, and what was appended to it may be gone.
pub(super) async fn a_home_that_has_not_noted_the_log_is_refused_though_nothing_is_missing(
    world: SharedWorld,
) {
    let mut process = process(&world).await.expect("a new store");
    for _ in 0..3 {
        assert!(process.appends(&world).await);
    }
    let mut world = lock(&world);
    let to = (world.home() + 1) % DATABASES;
    world.finish(Goals::Move(to)).expect("free");
    let (mut facts, none) = (world.facts(), BTreeSet::new());
    let away = (to + 1) % DATABASES;
    let next = |facts: &[Fact], goal| next_step(LOG, goal, facts, &none);
    let done = next(&facts, Goal::Move(to)).expect("the log is whole");
    assert_eq!(done, Step::Done);
    let noted = facts[to].arrived;
    let another = noted.wrapping_add(1);
    for (arrived, closed) in [(0, true), (0, false), (another, true), (another, false)] {
        (facts[to].arrived, facts[to].closed) = (arrived, closed);
        for goal in [Goal::Move(to), Goal::Move(away), Goal::Undo] {
            let error = next(&facts, goal).expect_err("it may have lost events");
            assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error:?}");
            assert!(error.to_string().contains("log 1 is lost"), "{error}");
        }
    }
}

/// Goal: the ends of all logs at once are those of their homes: not of a copy that a log has left, nor of a database
/// that was set back while it was asked.
pub(super) async fn the_ends_of_logs_come_from_where_the_logs_lie(world: SharedWorld) {
    let mut before = process(&world).await.expect("a new store");
    assert!(before.appends(&world).await);
    let to = (lock(&world).home() + 1) % DATABASES;
    lock(&world).finish(Goals::Move(to)).expect("free");
    let mut other = process(&world).await.expect("whole");
    assert!(other.appends(&world).await, "in the new home");
    let asked = async || before.end_among_all().await;
    let end = asked().await.expect("the process follows the log");
    assert_eq!(Some(end), other.end);
    lock(&world).histories[to] += 1;
    let error = asked().await.expect_err("the history has ended");
    assert!(error.to_string().contains("changed meanwhile"), "{error}");
    assert_eq!(asked().await.ok(), other.end);
}

/// Goal: what a database answers while its history ends, or that of another one, does not count, since it may show what
/// is gone, or not be all; it is asked again, but not for ever.
pub(super) async fn an_answer_counts_only_in_the_history_in_which_it_was_asked_for(
    world: SharedWorld,
) {
    let (parts, process) = parts(&world);
    let routes = Arc::new(Routes::new(&parts).expect("a new store"));
    let home = lock(&world).home();
    // Gives the number of the call, of which the first ones meet the end of a history.
    let asked = async |place: usize, ends: u64| {
        let calls = AtomicU64::new(0);
        let call = |_: &Arc<dyn Backend>| {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            if call < ends {
                let mut world = lock(&world);
                world.histories[place] += 1;
                world.notice(process, place);
            }
            std::future::ready(Ok(call))
        };
        (routes.at(LOG, call).await, calls.load(Ordering::Relaxed))
    };
    for place in 0..DATABASES {
        for ends in [0, 1, 2] {
            let (answer, calls) = asked(place, ends).await;
            assert_eq!((answer.expect("proven again"), calls), (ends, ends + 1));
        }
    }
    let (answer, calls) = asked(home, u64::MAX).await;
    let error = answer.expect_err("no answer counts");
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable(_)),
        "{error:?}"
    );
    assert!(error.to_string().contains("again and again"), "{error}");
    assert_eq!(calls, 3);
}
