//! How long ago events were stored, by a clock that nobody sets.
//!
//! Why: the times that are stored with events are those of wall clocks. When a clock is set forward, an event that was
//! stored a second ago looks old. The same happens when a node takes over a log from a node whose clock was slow. A
//! retry would then not be recognised. So while the log is known, the time with which the newest event was stored is
//! noted now and then. Times never decrease along a log, so an event that was stored since a note is not older than the
//! note. Invariant: of the events stored since [`begin`](Ages::begin), none looks older than it is.
//! Not here: how long the window is in positions (`window`).

use std::collections::VecDeque;
use std::time::Duration;

use gesta_core::{Moment, Now, Timestamp};

/// The number of notes in one window of time.
const NOTES: u32 = 64;

/// What is needed to tell the age of the events of one log.
#[derive(Debug)]
pub(crate) struct Ages {
    window: Duration,
    /// The time with which the newest event is stored.
    newest: Timestamp,
    /// What `newest` was at these moments; oldest first. Of those that are older than the window, only the newest
    /// counts.
    notes: VecDeque<(Moment, Timestamp)>,
}

impl Ages {
    /// Makes ages that know nothing of any event. Ages up to `window` are told apart.
    pub(crate) fn new(window: Duration) -> Self {
        Self {
            window,
            newest: Timestamp(0),
            notes: VecDeque::new(),
        }
    }

    /// Begins to know the log anew. Its last event is stored with the time `newest`, by a clock that may be wrong, as
    /// the clock of this process may be. Notes of the same history stay true. But if the last note is as old as the
    /// window, all notes are dropped, because too much would count as young.
    pub(crate) fn begin(&mut self, newest: Timestamp, now: Now) {
        self.newest = newest.min(now.wall);
        let is_young = |(at, _): &(Moment, Timestamp)| now.moment.since(*at) < self.window;
        if !self.notes.back().is_some_and(is_young) {
            self.notes = VecDeque::from([(now.moment, self.newest)]);
        }
    }

    /// Forgets the notes, because the log has lost events, or is another one.
    pub(crate) fn clear(&mut self) {
        self.notes.clear();
    }

    /// Notes that the newest event is stored with this time.
    pub(crate) fn see(&mut self, newest: Timestamp, now: Moment) {
        if newest < self.newest {
            // The time was set back on purpose: by the later time everything would look old.
            self.notes.retain(|(_, noted)| *noted <= newest);
        }
        self.newest = newest;
        let due = |(at, _): &(Moment, Timestamp)| now.since(*at) >= self.window / NOTES;
        if self.notes.back().is_none_or(due) {
            self.notes.push_back((now, newest));
        }
        while let Some((second, _)) = self.notes.get(1)
            && now.since(*second) >= self.window
        {
            self.notes.pop_front();
        }
    }

    /// Returns the time by which the age of an event can be told from the time with which the event is stored.
    pub(crate) fn now(&self, now: Moment) -> Timestamp {
        let elapsed = |at: &Moment| now.since(*at).min(self.window);
        let is_old = |(at, _): &&(Moment, Timestamp)| elapsed(at) == self.window;
        let note = self.notes.iter().rev().find(is_old);
        let by_uptime = note.or(self.notes.front()).map(|(at, stored)| {
            let elapsed = i64::try_from(elapsed(at).as_micros()).unwrap_or(i64::MAX);
            Timestamp(stored.0.saturating_add(elapsed))
        });
        by_uptime.map_or(self.newest, |time| time.min(self.newest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;
    const HOUR: i64 = 3_600 * SECOND;

    /// A process whose log ended with an event of second `newest`, when its clock said second `wall`.
    fn begun(newest: i64, wall: i64) -> (Ages, Moment) {
        let (mut ages, start) = (Ages::new(Duration::from_secs(600)), Moment::START);
        let wall = Timestamp(wall * SECOND);
        let now = Now {
            moment: start,
            wall,
            database: None,
        };
        ages.begin(Timestamp(newest * SECOND), now);
        (ages, start)
    }

    fn after(start: Moment, seconds: u64) -> Moment {
        start + Duration::from_secs(seconds)
    }

    /// Goal: the clock is set forward by an hour. What was stored before is not taken for older than it is, at once and
    /// until it has left the window.
    #[test]
    fn a_step_of_the_clock_makes_no_event_older() {
        let (mut ages, start) = begun(0, 0);
        // The clock is right for half an hour, and an event comes each second.
        for second in 0..1_800 {
            let stored = i64::try_from(second).expect("small") * SECOND;
            ages.see(Timestamp(stored), after(start, second));
        }
        assert!(ages.notes.len() <= 66, "{}", ages.notes.len());
        for second in 1_800..2_400_u64 {
            let right = i64::try_from(second).expect("small") * SECOND;
            ages.see(Timestamp(right + HOUR), after(start, second));
            let now = ages.now(after(start, second)).0;
            assert!(now <= right, "{now} in second {second}");
            assert!(now > right - 11 * SECOND, "{now} in second {second}");
        }
        // Then all of the window was stored by the clock that is an hour fast.
        ages.see(Timestamp(2_420 * SECOND + HOUR), after(start, 2_420));
        assert!(ages.now(after(start, 2_420)).0 > 2_400 * SECOND + HOUR);
    }

    /// Goal: a log is taken over from a node whose clock was an hour slow, or fast; either way the events of its last
    /// ten minutes are in the window.
    #[test]
    fn the_clock_of_the_former_owner_may_be_wrong() {
        for (newest, wall) in [(0, 3_600), (3_600, 0)] {
            let (mut ages, start) = begun(newest, wall);
            assert_eq!(ages.now(start).0, 0);
            ages.see(Timestamp(wall.max(newest) * SECOND), after(start, 1));
            assert_eq!(ages.now(after(start, 1)).0, SECOND);
            assert_eq!(ages.now(after(start, 599)).0, 599 * SECOND);
            ages.see(Timestamp(wall.max(newest) * SECOND), after(start, 700));
            assert!(ages.now(after(start, 700)).0 >= 600 * SECOND);
        }
    }

    /// Goal: what was noted stays true when the log is read anew, unless that was long ago or history has changed.
    #[test]
    fn notes_outlive_what_is_forgotten() {
        for (seconds, is_new_history, now_is) in
            [(60, false, 60), (60, true, 3_660), (660, false, 4_260)]
        {
            let (mut ages, start) = begun(0, 0);
            if is_new_history {
                ages.clear();
            }
            let wall = i64::try_from(seconds).expect("small") * SECOND + HOUR;
            let now = Now {
                moment: after(start, seconds),
                wall: Timestamp(wall),
                database: None,
            };
            ages.begin(Timestamp(wall), now);
            assert_eq!(ages.now(now.moment).0, now_is * SECOND);
        }
    }

    /// Goal: a log that rests ages nothing, and an event after the rest makes all before it old that is.
    #[test]
    fn a_log_that_rested_goes_on() {
        let (mut ages, start) = begun(0, 0);
        assert_eq!(ages.now(after(start, 5_000)).0, 0);
        ages.see(Timestamp(5_000 * SECOND), after(start, 5_000));
        assert_eq!(ages.now(after(start, 5_000)).0, 600 * SECOND);
    }
}
