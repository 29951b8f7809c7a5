//! Appends whose statements were lost: what has become of them, and what others have stored meanwhile.

use super::*;

/// What happened: a connection died unnoticed. Another process stored the events of an append and deleted its stream,
/// and told so; then the client repeated the append here. Its statement was lost, the events were found in the log, and
/// the append was answered as stored. Goal: only its own statement counts as the append; what another process has
/// stored makes it a retry, which is judged as any.
#[test]
fn what_others_have_stored_and_deleted_is_not_taken_for_the_lost_statement() {
    let gone = || ErrorKind::StoredAndDeleted {
        stream: name("s"),
        position: Position(3),
    };
    let tombstoned = || ErrorKind::StreamTombstoned(name("s"));
    for (kind, expected) in [
        (LifecycleChange::Deleted, gone()),
        (LifecycleChange::Tombstone, tombstoned()),
    ] {
        let mut d = Driver::running(Config::default(), 1);
        let id = EventId::random();
        d.store_by_other("s", id);
        d.end_by_other("s", kind);
        let repeated = d.request(Append::to(name("s"), Any, with_id(id)));
        assert_eq!(d.sizes(), [1], "nothing is known of the others");
        d.fail(lost());
        d.settle();
        assert_eq!(*d.kind(repeated), expected);
        assert_eq!(d.rows.len(), 4, "nothing was stored");
    }
}

/// Goal: what another process has stored elsewhere in the stream does not meet the claim of an append in doubt.
#[test]
fn what_others_have_stored_elsewhere_is_not_taken_for_the_lost_statement() {
    let mut d = Driver::running(Config::default(), 1);
    let id = EventId::random();
    d.append_by_other("s");
    d.store_by_other("s", id);
    let first = d.request(Append::to(name("s"), Exact(Revision(0)), with_id(id)));
    d.fail(lost());
    d.settle();
    let refusal = d.kind(first);
    assert!(
        matches!(
            refusal,
            ErrorKind::WrongExpectedRevision {
                actual: Some(Revision(2)),
                ..
            }
        ),
        "{refusal:?}"
    );
}

/// Goal: an append whose lost statement was stored is answered as stored, whatever came after it, by whichever of its
/// statements it was.
#[test]
fn what_a_lost_statement_has_stored_is_stored_whatever_came_after_it() {
    for (times, which) in [(1, 0), (2, 0), (2, 1)] {
        let mut d = Driver::running(Config::default(), 1);
        let ticket = d.append("s", Any, 2);
        let mut statements = Vec::new();
        for time in 0..times {
            statements.push((d.sent[0].clone(), d.epoch));
            let is_stored = time + 1 == times;
            if is_stored {
                let (batch, epoch) = &statements[which];
                let rows = batch.rows.iter().map(|row| (row.clone(), *epoch));
                d.rows.extend(rows);
                d.end_by_other("s", LifecycleChange::Deleted);
            }
            d.fail(lost());
            while !is_stored && d.sent.is_empty() {
                d.pass(Duration::from_secs(1));
                if d.wants_connection {
                    d.connect();
                }
                d.do_reads();
            }
        }
        while d.is_open(ticket) {
            d.pass(Duration::from_secs(1));
            d.settle();
        }
        let answer = d.answers[&ticket].as_ref().expect("stored");
        let part = &answer.streams[0];
        assert_eq!(
            (part.first_revision, part.last_revision, part.position),
            (Revision(1), Revision(2), Position(4))
        );
        assert_eq!(d.rows.len(), 5, "stored once, and deleted");
    }
}

/// Goal: of batches that have not committed those are in doubt that may be stored: not those that had missed before
/// there was doubt, but all if one is said to be stored though it cannot be.
#[test]
fn only_what_may_be_stored_is_in_doubt() {
    use BatchOutcome::{Committed, Missed};
    for (outcomes, are_in_doubt) in [
        ([Missed, lost()], [false, true]),
        ([lost(), Missed], [true, true]),
        ([Missed, Committed], [true, true]),
        ([Missed, Missed], [false, false]),
    ] {
        let told = format!("{outcomes:?}");
        let mut d = Driver::running(Config::default(), 4);
        let tickets = [d.append("s", Any, 1), d.append("s", Any, 1)];
        assert_eq!(d.sizes(), [1, 1]);
        for outcome in outcomes {
            d.fail(outcome);
        }
        while d.reads.is_empty() && !d.wants_connection {
            d.pass(Duration::from_secs(1));
        }
        let lasting = || ErrorKind::Unsupported("read only".into()).into();
        if std::mem::take(&mut d.wants_connection) {
            d.on(Input::Connected(Err(lasting())));
        } else {
            let (id, job) = d.reads.pop_front().expect("is read");
            d.on(Input::Read(id, job.fail(lasting())));
        }
        let is_unknown = |ticket| matches!(d.kind(ticket), ErrorKind::OutcomeUnknown(_));
        assert_eq!(tickets.map(is_unknown), are_in_doubt, "{told}");
    }
}

/// Goal: an append is in doubt no longer once another row stands where its lost statement had to stand, and the log was
/// read up to there: it is decided again, whatever happens to the log then.
#[test]
fn an_append_is_not_in_doubt_once_its_place_is_taken() {
    let mut d = Driver::running(Config::default(), 1);
    let append = d.append("s", Any, 1);
    d.append_by_other("t");
    d.fail(lost());
    d.connect();
    d.do_reads();
    assert_eq!(d.sizes(), [1], "it is sent again");
    d.append_by_other("t");
    d.removed.push(d.end().position);
    d.append_by_other("t");
    assert!(matches!(d.commit(), BatchOutcome::Missed));
    d.settle();
    assert_eq!(d.position(append), Position(6));
}
