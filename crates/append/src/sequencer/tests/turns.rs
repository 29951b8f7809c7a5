//! Processes that take turns.

use super::*;

fn granted(d: &Driver) -> Vec<Uuid> {
    let granted = |signal: &Signal| match signal {
        Signal::TurnGranted { to, .. } => Some(*to),
        _ => None,
    };
    d.signals().filter_map(granted).collect()
}

fn requested(d: &Driver) -> Vec<Uuid> {
    let requested = |signal: &Signal| match signal {
        Signal::TurnRequested { by, .. } => Some(*by),
        _ => None,
    };
    d.signals().filter_map(requested).collect()
}

/// Goal: who has had its turn lets another process go once nothing is in flight, and goes on when it is its turn again,
/// after looking at what the other has appended.
#[test]
fn the_turn_goes_to_another_process_and_comes_back() {
    let mut d = Driver::running(Config::default(), 1);
    let other = Uuid::new_v4();
    d.append("s", Any, 1);
    d.on(Input::Signal(Signal::TurnRequested {
        log: LOG,
        by: other,
    }));
    assert_eq!(d.sequencer.wake_at(), None, "an answer comes first");
    d.pass(MS * 300);
    let waits = d.append("s", Any, 1);
    assert!(granted(&d).is_empty(), "a batch is in flight");
    d.commit();
    assert_eq!(granted(&d), [other]);
    assert!(d.sent.is_empty(), "it is the turn of another");
    d.work();
    d.work();
    let [me] = requested(&d)[..] else {
        panic!("asks once: {:?}", requested(&d));
    };
    assert_eq!(d.sequencer.wake_at(), Some(d.now.instant + MS * 1_000));
    d.append_by_other("s");
    d.on(Input::Signal(Signal::TurnGranted { log: LOG, to: me }));
    assert!(d.sent.is_empty(), "looks first");
    d.do_reads();
    d.commit();
    assert_eq!((d.position(waits), d.stats().misses), (Position(5), 0));
}

/// Goal: a process without work gives its turn away early, and asks for none.
#[test]
fn who_has_no_work_gives_its_turn_away() {
    let mut d = Driver::running(Config::default(), 1);
    let other = Uuid::new_v4();
    d.on(Input::Signal(Signal::TurnRequested {
        log: LOG,
        by: other,
    }));
    assert_eq!(d.sequencer.wake_at(), Some(d.now.instant + MS * 3));
    assert!(granted(&d).is_empty());
    d.pass(MS * 3);
    assert_eq!(granted(&d), [other]);
    d.pass(MS);
    assert!(requested(&d).is_empty());
    let waits = d.append("s", Any, 1);
    assert!(d.sent.is_empty());
    d.pass(MS * 1_000);
    d.commit();
    assert_eq!(
        d.position(waits),
        Position(3),
        "goes on when nothing is heard of the other"
    );
}
