//! Processes that give way to each other.

use super::*;

fn asks(by: Uuid, needed: Duration, waited: Duration) -> Input<u32> {
    Input::Signal(Signal::GiveWay {
        log: LOG,
        by,
        needed,
        waited,
    })
}

/// What the process has said to the others: for how long they are to give way.
fn said(d: &Driver) -> Vec<Duration> {
    let needed = |signal: &Signal| match signal {
        Signal::GiveWay { needed, .. } => Some(*needed),
        _ => None,
    };
    d.signals().filter_map(needed).collect()
}

/// Goal: who gives way awaits what it has in flight, sends nothing new, and goes on when the asker says so; what the
/// asker has appended costs a miss.
#[test]
fn it_sends_nothing_until_the_asker_has_committed() {
    let mut d = Driver::running(Config::default(), 1);
    let other = Uuid::new_v4();
    let in_flight = d.append("s", Any, 1);
    d.on(asks(other, MS * 80, MS * 5));
    let waits = d.append("s", Any, 1);
    d.commit();
    assert_eq!(d.position(in_flight), Position(3));
    assert!(d.sent.is_empty(), "gives way");
    assert_eq!(d.sequencer.wake_at(), Some(d.now.moment + MS * 80));
    d.pass(MS * 79);
    assert!(d.sent.is_empty(), "gives way");
    d.append_by_other("s");
    d.on(asks(other, Duration::ZERO, Duration::ZERO));
    assert_eq!(d.sequencer.wake_at(), None);
    d.settle();
    assert_eq!((d.position(waits), d.stats().misses), (Position(5), 1));
    assert!(said(&d).is_empty(), "one miss is nothing");
}

/// Goal: an asker that is never heard of again costs no more than the time that it has named.
#[test]
fn it_goes_on_when_the_time_is_over() {
    let mut d = Driver::running(Config::default(), 1);
    d.on(asks(Uuid::new_v4(), MS * 80, MS * 5));
    let waits = d.append("s", Any, 1);
    d.pass(MS * 80);
    d.commit();
    assert_eq!((d.position(waits), d.stats().misses), (Position(3), 0));
}

/// Goal: who misses twice asks, and tells when it has committed; whoever never misses says nothing.
#[test]
fn it_asks_after_two_misses_and_tells_of_its_commit() {
    let mut d = Driver::running(Config::default(), 1);
    let waits = d.append("s", Any, 1);
    d.append_by_other("t");
    d.commit();
    d.do_reads();
    assert!(said(&d).is_empty());
    d.append_by_other("t");
    d.pass(MS);
    d.commit();
    assert_eq!(
        said(&d),
        [MS * 53],
        "three times what the batch took, and some more"
    );
    d.settle();
    assert_eq!((d.position(waits), d.stats().misses), (Position(5), 2));
    assert_eq!(said(&d)[1..], [Duration::ZERO]);
}

/// Goal: far from the database the next batch would miss too: the first miss is enough, and the log is read only when
/// the others have stopped.
#[test]
fn far_away_it_asks_at_once_and_reads_a_little_later() {
    let mut d = Driver::new(Config::default(), 4);
    d.connect();
    d.do_reads();
    assert_eq!(d.sizes(), [0], "measures the distance");
    d.pass(MS * 30);
    d.commit();
    d.append("t", Any, 1);
    d.do_reads();
    d.pass(MS * 30);
    d.commit();
    d.append("t", Any, 1);
    d.append_by_other("t");
    d.pass(MS * 30);
    d.commit();
    assert_eq!(said(&d), [MS * 140]);
    assert!(d.reads.is_empty(), "what others have in flight comes first");
    d.pass(MS * 10);
    assert_eq!(d.reads.len(), 1);
    d.settle();
    assert_eq!(said(&d)[1..], [Duration::ZERO]);
}
