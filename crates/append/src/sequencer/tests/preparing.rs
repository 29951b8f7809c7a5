//! A log is read before the first append to it.

use super::*;

/// Goal: after a preparation the first append neither misses nor looks anything up, although others have appended.
#[test]
fn the_first_append_after_a_preparation_misses_nothing() {
    let mut d = Driver::running(Config::default(), 1);
    d.append_by_other("s");
    d.rows.push((row_of(&d, "u"), WriterEpoch(1_000)));
    d.append_by_other("u");
    d.on(Input::Prepare);
    assert!(d.sequencer.is_preparing());
    d.do_reads();
    assert!(!d.sequencer.is_preparing());
    let (misses, loads) = (d.stats().misses, d.stats().loads);
    let [s, u] = ["s", "u"].map(|stream| d.append(stream, Any, 1));
    d.settle();
    assert_eq!([d.position(s), d.position(u)], [Position(6), Position(7)]);
    assert_eq!((d.stats().misses, d.stats().loads), (misses, loads));
}

/// Goal: what was prepared may be outdated when the append comes: then its batch misses, and nothing is lost.
#[test]
fn nothing_rests_on_a_preparation() {
    let mut d = Driver::running(Config::default(), 1);
    d.append_by_other("s");
    d.on(Input::Prepare);
    d.do_reads();
    d.append_by_other("s");
    let misses = d.stats().misses;
    let late = d.append("s", Exact(Revision(2)), 1);
    d.settle();
    assert_eq!(d.position(late), Position(5));
    assert_eq!(d.stats().misses, misses + 1);
}

/// Goal: appends that come while a preparation reads wait for it, and are decided by what it has read. The answer of a
/// look-up that was on its way before the log was read does not count.
#[test]
fn appends_wait_for_a_preparation() {
    let mut d = Driver::running(Config::default(), 1);
    d.rows.push((row_of(&d, "u"), WriterEpoch(1_000)));
    d.on(Input::Prepare);
    let (id, page) = d.reads.pop_front().expect("the log is read");
    let answer = d.read(&page);
    d.on(Input::Read(id, answer));
    let outdated = d.reads.pop_front().expect("the stream is looked up");
    let answer = d.read(&outdated.1);
    d.append_by_other("u");
    d.on(Input::Prepare);
    let during = d.append("u", Exact(Revision(1)), 1);
    d.on(Input::Read(outdated.0, answer));
    assert!(d.sent.is_empty());
    d.settle();
    assert_eq!(d.position(during), Position(5));
}

/// Goal: a log that is being appended to is not read, and appends that wait for a look-up do not begin anew: their
/// batches tell whether others have appended.
#[test]
fn a_busy_sequencer_does_not_prepare() {
    let mut d = Driver::running(Config::default(), 2);
    let sent = d.append("s", Any, 1);
    assert_eq!(d.sizes(), [1]);
    d.on(Input::Prepare);
    assert!(d.reads.is_empty() && !d.sequencer.is_preparing());
    d.settle();
    assert_eq!(d.position(sent), Position(3));
    let waits = d.append("new", Any, 1);
    let loads = d.stats().loads;
    d.on(Input::Prepare);
    assert_eq!((d.reads.len(), d.stats().loads), (1, loads));
    d.settle();
    assert_eq!(d.position(waits), Position(4));
}

/// Goal: a preparation that cannot read the log is over only when it has, and appends that wait for it are stored then.
#[test]
fn a_preparation_that_fails_is_tried_again() {
    let mut d = Driver::running(Config::default(), 1);
    d.on(Input::Prepare);
    let waits = d.append("s", Any, 1);
    d.fail_read();
    assert!(d.sequencer.is_preparing() && d.reads.is_empty());
    let wake = d.sequencer.wake_at().expect("is tried again");
    d.pass(wake.since(d.now.moment));
    d.settle();
    assert_eq!(d.position(waits), Position(3));
}

/// Returns the first row of a new stream, at the end of the log.
fn row_of(d: &Driver, stream: &str) -> Row {
    let (mut row, _) = d.rows.last().expect("there").clone();
    row.stream = name(stream);
    row.stream_row = RowId(1_000);
    row.revision = Revision(0);
    row.position = d.end().position.next();
    row.id = EventId::random();
    row
}
