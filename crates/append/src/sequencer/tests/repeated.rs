//! Changes that nodes send again by themselves, after what they have stored was deleted and scavenged.

use gesta_core::{Attempt, DeleteKind, DeleteStream, KnownEnd};

use super::*;

use ExpectedRevision::NoStream;

impl Driver {
    /// This position as the end of the log, in the history of this process.
    fn end_at(&self, position: u64) -> KnownEnd {
        KnownEnd {
            position: Position(position),
            ..self.stats.known_end()
        }
    }

    fn attempt(&mut self, attempt: Attempt, request: Append) -> u32 {
        self.tickets += 1;
        let command = Command::append(self.tickets, request, self.now.moment);
        let command = command.expect("valid").as_attempt(attempt);
        self.on(Input::Command(command));
        self.tickets
    }

    fn delete(&mut self, attempt: Attempt, stream: &str, id: EventId) -> u32 {
        self.tickets += 1;
        let request = DeleteStream {
            stream: name(stream),
            expected: Any,
            kind: DeleteKind::Soft,
        };
        let command = Command::delete(self.tickets, request, Some(id), self.now.moment);
        self.on(Input::Command(command.as_attempt(attempt)));
        self.tickets
    }

    /// The process after a restart: it knows nothing.
    fn restarted(self) -> Self {
        let mut next = Self::new(Config::default(), 1);
        (next.rows, next.removed, next.epoch) = (self.rows, self.removed, self.epoch);
        next.connect();
        next.do_reads();
        next
    }

    fn told(&self, ticket: u32) -> &'static str {
        match &self.answers[&ticket] {
            Ok(_) => "stored",
            Err(error) if error.is_overtaken() => "overtaken",
            Err(error) => match error.kind() {
                ErrorKind::OutcomeUnknown(_) => "unknown",
                ErrorKind::StreamTombstoned(_) => "tombstoned",
                other => panic!("{other}"),
            },
        }
    }
}

/// What happened: a node forwarded an append, the owner stored it, and the answer was lost. The event was scavenged,
/// and its stream deleted. The owner found the last row that it knew gone, and forgot all ids. Then the node sent the
/// append again, the owner did not recognise it, and stored it after the delete. The same happened if another process
/// had become the owner, and if the node made the append itself.
///
/// Goal: an attempt that may have been stored and deleted is not stored, whoever decides it and whatever it remembers.
/// What a caller repeats is another matter.
#[test]
fn what_a_node_sends_again_brings_no_deleted_stream_back() {
    let (before, after) = (2, 4);
    for (expected, restarts) in [
        (Any, false),
        (Any, true),
        (NoStream, false),
        (NoStream, true),
    ] {
        for (attempt, known, told) in [
            (None, 0, "stored"),
            (Some(true), before, "unknown"),
            (Some(true), after, "stored"),
            (Some(false), before, "overtaken"),
            (Some(false), after, "stored"),
        ] {
            let mut d = Driver::running(Config::default(), 1);
            assert_eq!(d.stats.known_end().position, Position(before));
            let request = || Append::to(name("s"), expected, with_id(EventId(Uuid::from_u128(7))));
            let first = Append::to(name("s"), Any, with_id(EventId(Uuid::from_u128(7))));
            let first = d.attempt(Attempt::First(d.end_at(before)), first);
            d.settle();
            assert_eq!(d.position(first), Position(3));
            d.removed.push(Position(3));
            d.end_by_other("s", LifecycleChange::Deleted);
            if restarts {
                d = d.restarted();
            }
            let known = d.end_at(known);
            let attempt = match attempt {
                None => Attempt::Only,
                Some(true) => Attempt::Later(known),
                Some(false) => Attempt::First(known),
            };
            let again = d.attempt(attempt, request());
            d.settle();
            let case = format!("{expected}, {restarts}, {attempt:?}");
            assert_eq!(d.told(again), told, "{case}");
            assert_eq!(d.rows.len(), 4 + usize::from(told == "stored"), "{case}");
        }
    }
}

/// Goal: a stream that was not deleted is not concerned, whatever scavenging has removed of it, nor is one that never
/// was. A tombstone refuses as always.
#[test]
fn only_a_deleted_stream_leaves_the_outcome_unknown() {
    let later = |d: &Driver| Attempt::Later(d.end_at(0));
    let mut d = Driver::running(Config::default(), 1);
    d.append("s", Any, 1);
    d.settle();
    d.removed.push(Position(3));
    let mut d = d.restarted();
    for stream in ["s", "t", "new"] {
        let again = d.attempt(later(&d), Append::to(name(stream), Any, some(1)));
        d.settle();
        assert_eq!(d.told(again), "stored", "{stream}");
    }
    d.end_by_other("s", LifecycleChange::Tombstone);
    let again = d.attempt(later(&d), Append::to(name("s"), Any, some(1)));
    d.settle();
    assert_eq!(d.told(again), "tombstoned");
}

/// Goal: a first attempt is the only one that can have been stored if this process alone has stored rows since it was
/// sent. So an append that was sent before a delete came is stored after it.
#[test]
fn a_first_attempt_is_stored_if_nobody_else_can_have_stored_another() {
    let mut d = Driver::running(Config::default(), 1);
    let known = d.end_at(2);
    d.delete(Attempt::Only, "s", EventId::random());
    let first = d.attempt(Attempt::First(known), Append::to(name("s"), Any, some(1)));
    let later = d.attempt(Attempt::Later(known), Append::to(name("s"), Any, some(1)));
    d.settle();
    assert_eq!((d.told(first), d.told(later)), ("stored", "unknown"));
    // Others have stored something meanwhile, but before it was sent.
    d.append_by_other("t");
    d.append("t", Any, 1);
    d.settle();
    let known = d.end_at(5);
    d.delete(Attempt::Only, "s", EventId::random());
    let first = d.attempt(Attempt::First(known), Append::to(name("s"), Any, some(1)));
    d.settle();
    assert_eq!(d.told(first), "stored");
}

/// Goal: an append to several streams is not stored if one part may be gone, unless another shows that none of it was
/// ever stored: its revision would have been given away, or its stream would be there.
#[test]
fn one_part_of_an_append_to_several_streams_decides() {
    let [s, t, new] = ["s", "t", "new"].map(name);
    for (other, expected, told) in [
        (&t, Any, "unknown"),
        (&t, Exact(Revision(0)), "stored"),
        (&new, Any, "stored"),
    ] {
        for turned in [false, true] {
            let mut d = Driver::running(Config::default(), 1);
            d.end_by_other("s", LifecycleChange::Deleted);
            let mut request = Append::to(s.clone(), Any, some(1));
            let part = Append::to(other.clone(), expected, some(1));
            request.streams.extend(part.streams);
            if turned {
                request.streams.reverse();
            }
            let again = d.attempt(Attempt::Later(d.end_at(2)), request);
            d.settle();
            assert_eq!(d.told(again), told, "{expected}, {turned}");
        }
    }
}

/// Goal: a delete that a node sends again does not delete what was appended since, once nothing is left of the first
/// one.
#[test]
fn a_delete_that_is_sent_again_does_not_delete_what_came_after_it() {
    let mut d = Driver::running(Config::default(), 1);
    let id = EventId::random();
    d.delete(Attempt::First(d.end_at(2)), "s", id);
    d.append("s", Any, 1);
    d.settle();
    let found = d.delete(Attempt::Later(d.end_at(2)), "s", id);
    d.settle();
    assert_eq!((d.told(found), d.rows.len()), ("stored", 4), "it is there");
    d.delete(Attempt::Only, "s", EventId::random());
    d.append("s", Any, 1);
    d.settle();
    d.removed.push(Position(3));
    let mut d = d.restarted();
    let gone = d.delete(Attempt::Later(d.end_at(2)), "s", id);
    d.settle();
    assert_eq!((d.told(gone), d.rows.len()), ("unknown", 6));
    let fresh = d.delete(Attempt::Later(d.end_at(6)), "s", EventId::random());
    d.settle();
    assert_eq!((d.told(fresh), d.rows.len()), ("stored", 7));
}

/// Goal: a position of another history says nothing. While history changes, this process tells none.
#[test]
fn an_end_of_another_history_is_no_end() {
    let mut d = Driver::running(Config::default(), 1);
    d.end_by_other("s", LifecycleChange::Deleted);
    let other = KnownEnd {
        incarnation: Incarnation::random(),
        position: Position(9),
    };
    let again = d.attempt(Attempt::Later(other), Append::to(name("s"), Any, some(1)));
    d.settle();
    assert_eq!(d.told(again), "unknown");
    let incarnation = Incarnation::random();
    d.on(Input::HistoryChanged(incarnation));
    let nothing = KnownEnd {
        incarnation,
        position: Position::START,
    };
    assert_eq!(d.stats.known_end(), nothing);
    d.settle();
    assert_eq!(
        d.stats.known_end(),
        KnownEnd {
            position: Position(3),
            ..nothing
        }
    );
    d.stats.hear_of_end(KnownEnd {
        position: Position(5),
        ..nothing
    });
    d.stats.hear_of_end(other);
    assert_eq!(
        d.stats.known_end().position,
        Position(5),
        "the others' is of another history"
    );
}
