//! What the database holds at the end of a history, and what has to be expected of it.

use std::collections::{BTreeSet, HashMap, HashSet};

use gesta_core::{EventId, Position, RecordedEvent, StreamId, Timestamp};
use gesta_kit::faulty::World;

use super::{DONE, ERROR, History, LEASE, SECOND};
use crate::losses::REQUESTS;

/// The place of the event because of which something was asked: its log, its position, and when it was stored.
type Cause = (u64, u64, i64);

/// A request that the database holds.
pub(super) struct Request {
    pub(super) id: EventId,
    revision: u64,
    position: Position,
    key: String,
    /// When the timer is due; none if a timer is cancelled.
    due: Option<Timestamp>,
    because: Option<Cause>,
    created: Timestamp,
}

/// Returns the events of a stream, also those that metadata hide.
fn events(world: &World, stream: &str) -> Vec<RecordedEvent> {
    let stream = StreamId::new(stream).unwrap();
    let stored = world.stored().into_iter().map(|one| one.event);
    stored.filter(|event| event.stream == stream).collect()
}

pub(super) fn requests(world: &World) -> Vec<Request> {
    let request = |event: &RecordedEvent| {
        let json: serde_json::Value = event.json().unwrap();
        let due = json["due"].as_str();
        let cause = |cause: &serde_json::Value| {
            (
                cause["log"].as_u64().unwrap(),
                cause["position"].as_u64().unwrap(),
                cause["created"].as_i64().unwrap(),
            )
        };
        Request {
            id: event.id,
            revision: event.revision.0,
            position: event.position,
            key: json["key"].as_str().unwrap().to_owned(),
            due: due.map(|due| Timestamp::parse(due).unwrap()),
            because: json.get("because").map(cause),
            created: event.created,
        }
    };
    events(world, REQUESTS).iter().map(request).collect()
}

/// What the handlers have stored, of each timer the last one.
pub(super) struct Done(HashMap<EventId, Position>);

pub(super) fn done(world: &World) -> Done {
    let of = |event: &RecordedEvent| (EventId(event.json().unwrap()), event.position);
    Done(events(world, DONE).iter().map(of).collect())
}

impl Done {
    /// Returns whether a handler of this timer has stored something after the timer was set.
    pub(super) fn contains_after(&self, one: &Judged) -> bool {
        let done = self.0.get(&one.id);
        done.is_some_and(|position| *position > one.position)
    }
}

/// What is expected of a timer.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) id: EventId,
    position: Position,
    due: Timestamp,
    /// From when on it could fire.
    from: Timestamp,
    /// Whether it must fire, however late: nothing is there that may have replaced or cancelled it.
    pub(super) stays: bool,
    /// Whether it counted when it was set: no request because of a later event can have been before.
    counts: bool,
    /// Whether it may have counted.
    may_count: bool,
    /// When a request was made that may have replaced or cancelled it.
    until: Option<Timestamp>,
    /// When a request was there for certain that has replaced or cancelled it.
    ended: Option<Timestamp>,
}

/// What is known of a key.
struct Key {
    /// The place of its timer.
    pending: Option<usize>,
    /// The causes that may be the last one.
    causes: BTreeSet<Option<Cause>>,
}

/// Whether an event was before another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Yes,
    No,
    /// One of them was lost.
    Perhaps,
}

impl History {
    /// Returns what has to be expected of each timer that the database holds.
    pub(super) fn judged(&self) -> Vec<Judged> {
        let stored = self.world.stored().into_iter().map(|one| one.event);
        let causes = stored
            .filter(|event| super::CAUSES.contains(&event.stream.as_str()))
            .map(|event| (u64::from(event.log.0), event.position.0, event.created.0));
        let there: HashSet<Cause> = causes.collect();
        let is_before = |one: Option<Cause>, other: Option<Cause>| match (one, other) {
            (Some(one), Some(other)) if one.0 == other.0 => {
                if !there.contains(&one) || !there.contains(&other) {
                    Before::Perhaps
                } else if one.1 < other.1 {
                    Before::Yes
                } else {
                    Before::No
                }
            }
            _ => Before::No,
        };
        let mut judged: Vec<Judged> = Vec::new();
        let mut keys: HashMap<String, Key> = HashMap::new();
        for request in requests(&self.world) {
            let revision = request.revision;
            let key = keys.entry(request.key.clone()).or_insert_with(|| Key {
                pending: None,
                causes: BTreeSet::from([None]),
            });
            let because = request.because;
            let may_be = |before: Before| {
                let mut causes = key.causes.iter();
                causes.any(|last| is_before(because, *last) == before)
            };
            let counts = !may_be(Before::Yes) && !may_be(Before::Perhaps);
            let may_count = may_be(Before::No) || may_be(Before::Perhaps);
            let refuses = |last: &Option<Cause>| is_before(because, *last) != Before::No;
            key.causes.retain(|last| !counts && refuses(last));
            if may_count {
                key.causes.insert(because);
                if let Some(former) = key.pending {
                    let former: &mut Judged = &mut judged[former];
                    former.stays = false;
                    former.until.get_or_insert(request.created);
                    if counts && former.ended.is_none() {
                        former.ended = self.seen.get(&request.id).copied();
                    }
                }
            }
            match request.due {
                None if counts => key.pending = None,
                None => {}
                Some(due) => {
                    if may_count {
                        key.pending = Some(judged.len());
                    }
                    judged.push(Judged {
                        id: request.id,
                        position: request.position,
                        due,
                        from: due.max(self.seen[&request.id]),
                        stays: counts,
                        counts,
                        may_count,
                        until: None,
                        ended: None,
                    });
                }
            }
            self.forget(revision, &mut keys);
        }
        judged
    }

    /// What was stored together after a request says nothing of keys that had no timer then.
    fn forget(&self, revision: u64, keys: &mut HashMap<String, Key>) {
        for (_, kept) in self.kept.iter().filter(|(at, _)| *at == revision) {
            for (name, key) in keys.iter_mut() {
                if !kept.contains(name) {
                    key.causes.insert(None);
                }
            }
        }
    }

    /// Returns when a timer has fired, as far as it cannot have been another one of its id, which was lost.
    fn times(&self, one: &Judged) -> Vec<Timestamp> {
        let fired = self.fired.all();
        let again = self.lost_once.get(&one.id);
        let is_it = |at: Timestamp| again.is_none_or(|lost| at.0 > lost.0 + self.known_within());
        let of = fired.iter().filter(|(timer, _)| timer.id == one.id);
        of.map(|(_, at)| *at).filter(|at| is_it(*at)).collect()
    }

    /// Returns how long a process may take to find out that a request was lost.
    fn known_within(&self) -> i64 {
        2 * i64::try_from(LEASE.as_micros()).unwrap() + 10 * SECOND
    }

    pub(super) fn check(&self, one: &Judged) -> Result<(), String> {
        let times = self.times(one);
        let wrong = |why: &str| Err(format!("{one:?} {why}; it has fired at {times:?}"));
        if !one.may_count && !times.is_empty() {
            return wrong("is out of date");
        }
        if !self.kind.has_trouble && times.len() > 1 {
            return wrong("has fired twice, and nothing went wrong");
        }
        // With too little memory a timer may fire late, or before a request is read that cancels or replaces it.
        if !self.kind.has_room() {
            return Ok(());
        }
        let has_ended = one.ended.is_some_and(|ended| ended.0 < one.due.0 - ERROR);
        if has_ended && !times.is_empty() {
            return wrong("was replaced or cancelled");
        }
        let until = one.until.unwrap_or(Timestamp(i64::MAX));
        let is_new = !self.lost_once.contains_key(&one.id);
        if one.counts && is_new && times.is_empty() && self.is_quiet(one.from, until) {
            return wrong("had enough time to fire");
        }
        let is_late = |at: &Timestamp| at.0 > one.from.0 + ERROR + 2 * SECOND;
        if !self.kind.has_trouble && times.iter().any(is_late) {
            return wrong("has fired late, and nothing went wrong");
        }
        Ok(())
    }

    /// Returns whether nothing has disturbed the timers for so long between these times that what was due has fired.
    fn is_quiet(&self, from: Timestamp, until: Timestamp) -> bool {
        let between = |at: &&Timestamp| from < **at && **at < until;
        let mut begun = from;
        for at in self.disturbed.iter().filter(between).chain([&until]) {
            if at.0.saturating_sub(begun.0) > self.kind.fires_within() {
                return true;
            }
            begun = *at;
        }
        false
    }

    pub(super) fn check_all_fired(&self) -> Result<(), String> {
        let mut commands = HashMap::new();
        for (timer, at) in self.fired.all() {
            if at.0 < timer.due.0 - ERROR {
                return Err(format!("{timer:?} has fired at {at}, before its time"));
            }
            if let Some(lost) = self.lost.get(&timer.id)
                && at.0 > lost.0 + self.known_within()
            {
                return Err(format!("{timer:?} was lost at {lost}, and fired at {at}"));
            }
            let command = commands
                .entry(timer.id)
                .or_insert_with(|| timer.command_key());
            if *command != timer.command_key() {
                return Err(format!("{timer:?} had the command {command}"));
            }
        }
        Ok(())
    }
}
