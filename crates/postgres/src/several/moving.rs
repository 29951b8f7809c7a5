//! How a log moves from one database to another: computes the next step from what the databases hold. Pure.
//!
//! Why so: whoever moves a log may die at any moment, and anybody may go on, or undo it. So nothing is remembered but
//! what the databases hold: their copies of the map, the rows of the log, and the row that *closes* the log in a
//! database. While a log is closed in a database nothing can be appended to it there, by any process, whatever it
//! believes.
//!
//! The order: the map announces the move; the log is closed in its new database, and copied there while appends go on;
//! it is closed in its old one; the rest is copied; the map says where it lies now; when all copies say so, it is
//! opened.
//!
//! **Databases are restored, and fail over, one by one.** So what one of them says about a log is believed only if it
//! proves it: the home of a log must have noted the stay of the log of which the map speaks (`arrived`), and must have,
//! or have scavenged, the last row of every other copy, told by position and writer. Else the log is *lost*: nothing
//! moves it, nobody serves it, and [`Goal::Recover`] makes one of the copies the log again.
//!
//! Invariants: a log is closed in every database that holds rows of it, but for the one that the map names; it is
//! opened only when all copies of the map agree, and its home proves to be it; the new database decides between
//! arriving and being taken back, since both are changes of its copy from the same version; rows are copied only behind
//! a row that the log has, never behind one that it seems to have scavenged, since that may be one of another history;
//! no row is given up that the log neither has nor seems to have scavenged, unless [`Loss::Accepted`] was said. Not
//! here: doing the steps.

use std::collections::BTreeSet;

use gesta_core::{Error, ErrorKind, LogId, Position, Result};

use crate::log_map::{LogMap, Moving, RowMark};
use crate::several::check::{lost, unshown};

/// The most rows that may be missing in the copy when the log is closed in its old database. They are copied while
/// nothing can be appended.
const NEAR: u64 = 1_000;

/// What is to be done with a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// Move the log to the database at this place.
    Move(usize),
    /// Leave the log in the database where it was before.
    Undo,
    /// Make the copy in the database at the place `from` the log, since the home of the log has lost events of it.
    Recover {
        /// The place of the database.
        from: usize,
        /// Whether events may be given up that other copies have and this one has not.
        loss: Loss,
    },
}

/// Whether events that only other copies have may be given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// They must not be given up.
    Refused,
    /// They are given up: an operator has said so.
    Accepted,
}

/// What one database says about the map and about one log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fact {
    /// The copy of the map that the database keeps.
    pub map: LogMap,
    /// The number of the last stay of the log in this database, as the database has noted itself.
    pub arrived: i64,
    /// Whether the log is closed in the database.
    pub closed: bool,
    /// The last row of the log in the database; the row that closes the log does not count.
    pub last: RowMark,
    /// For each database, in the order of the newest map, whether this one has the last row of that one, or has
    /// scavenged it.
    pub shows: Vec<bool>,
    /// For each database, whether what this one has can be copied behind what that one has: this one has the last row
    /// of that one, and that one has no names of later events.
    pub continues: Vec<bool>,
    /// Whether this database has the last row that came along when the log moved the last time, or has scavenged it.
    pub shows_arrival: bool,
    /// How many events of the log were scavenged here.
    pub scavenged: u64,
}

impl Fact {
    fn has_rows(&self) -> bool {
        self.last.position > Position::START
    }
}

/// What is to be done next. Each step but copying and comparing is one transaction in one database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Replace the copy of the map at this place, if the copy has version `expected`.
    Put {
        /// The place of the database.
        place: usize,
        /// The version that the copy has before.
        expected: u64,
        /// The new map.
        map: Box<LogMap>,
        /// The log that comes to this database with the change. Only then the database notes that the log came.
        arriving: Option<LogId>,
    },
    /// Close the log at this place, if its copy of the map has version `expected`. Once this is done, no append to the
    /// log is under way there.
    Close {
        /// The place of the database.
        place: usize,
        /// The version that the copy of the map has.
        expected: u64,
    },
    /// Open the log at this place, if its copy of the map has version `expected`.
    Open {
        /// The place of the database.
        place: usize,
        /// The version that the copy of the map has.
        expected: u64,
    },
    /// Copy the next rows of the log, if it is closed in the database that is copied to, and the copy of the map there
    /// has version `expected`.
    Copy {
        /// The place of the database to copy from.
        from: usize,
        /// The place of the database to copy to.
        to: usize,
        /// The rows after this position are copied.
        after: Position,
        /// The version that the copy of the map has.
        expected: u64,
    },
    /// Compare the copied rows with those in the old database by position and writer, and remove from the copy what was
    /// scavenged since, and names after the last row that stays, under the same conditions.
    Compare {
        /// The place of the database that was copied from.
        from: usize,
        /// The place of the database that holds the copy.
        to: usize,
        /// The version that the copy of the map has.
        expected: u64,
    },
    /// Compare a copy with the log by position and writer, and remove from the copy all rows from the first one on that
    /// the log has never had, under the same conditions.
    GiveUp {
        /// The place of the database in which the log lies.
        from: usize,
        /// The place of the database that holds the copy.
        at: usize,
        /// The version that the copy of the map has.
        expected: u64,
    },
    /// There is nothing to do: the goal is reached.
    Done,
}

/// Returns the next step towards a goal. `facts` are those of all databases, in the order of the newest map among them.
/// `compared` are the places of the databases whose copies have been compared since the log was last looked at with
/// another goal, or changed: after [`Step::Compare`] alone that of the copy, after [`Step::GiveUp`] all since the
/// beginning.
///
/// # Errors
/// `InvalidArgument` if the goal is no database, there is no such log, or what the goal would give up must not be given
/// up; `Unsupported` if another log is being moved, or this one to another database; `Corrupt` if the log is lost, so
/// that it must be recovered first.
pub fn next_step(
    log: LogId,
    goal: Goal,
    facts: &[Fact],
    compared: &BTreeSet<usize>,
) -> Result<Step> {
    let stand = Stand::of(log, facts)?;
    let map = stand.map;
    let is_older = |place: &usize| facts[*place].map.version() < map.version();
    if let Some(place) = (0..facts.len()).find(is_older) {
        return Ok(Step::Put {
            place,
            expected: facts[place].map.version(),
            map: Box::new(map.clone()),
            arriving: None,
        });
    }
    match (map.moving(), goal) {
        (None, Goal::Recover { from, loss }) => stand.recover(from, loss, compared),
        (None, goal) => stand.at_rest(goal),
        (Some(moving), _) if moving.log != log => Err(busy(map, moving)),
        (Some(moving), Goal::Undo | Goal::Recover { .. }) => {
            Ok(put(moving.to, map, map.withdrawn(), None))
        }
        (Some(moving), Goal::Move(to)) if to != moving.to => Err(busy(map, moving)),
        (Some(_), Goal::Move(to)) => stand.moved(to, compared),
    }
}

/// Returns the place of the copy from which a lost log is recovered if nobody says otherwise: one that has, or has
/// scavenged, everything that any other copy has. `None` if there is no such copy, so that an operator must choose.
///
/// # Errors
/// `InvalidArgument` if there is no such log; `Corrupt` if a database is missing.
pub fn most_complete(log: LogId, facts: &[Fact]) -> Result<Option<usize>> {
    let stand = Stand::of(log, facts)?;
    if stand.check().is_ok() {
        return Ok(Some(stand.home));
    }
    let complete = (0..facts.len()).filter(|place| stand.unshown_by(*place).is_empty());
    // What was scavenged in one copy must not come back with another one.
    Ok(complete.max_by_key(|place| (facts[*place].scavenged, *place == stand.home)))
}

/// Where a log stands: what the databases hold, by the newest map among them.
struct Stand<'a> {
    log: LogId,
    facts: &'a [Fact],
    map: &'a LogMap,
    home: usize,
}

impl<'a> Stand<'a> {
    fn of(log: LogId, facts: &'a [Fact]) -> Result<Self> {
        let maps = facts.iter().map(|fact| &fact.map);
        let map = maps.max_by_key(|map| map.version());
        let map = map.ok_or_else(|| Error::corrupt("the store has no database"))?;
        let home = map.home(log).ok_or_else(|| {
            Error::invalid("log", format!("must be one of {}, found {log}", map.logs()))
        })?;
        if facts.len() != map.databases().len() {
            return Err(Error::corrupt("every database of the map must be known"));
        }
        Ok(Self {
            log,
            facts,
            map,
            home,
        })
    }

    /// Whether the home of the log has noted that the log came to it.
    fn has_arrived(&self) -> bool {
        let arrival = self.map.arrival(self.log).map(|arrival| arrival.stay);
        arrival == Some(self.facts[self.home].arrived)
    }

    /// Returns the places of the other databases whose last row is unknown to the database at this place.
    fn unshown_at(&self, place: usize) -> Vec<usize> {
        let others = (0..self.facts.len()).filter(|other| *other != place);
        let unknown = |other: &usize| {
            let is_shown = self.facts[place].shows.get(*other) == Some(&true);
            self.facts[*other].has_rows() && !is_shown
        };
        others.filter(unknown).collect()
    }

    /// Describes for people what is given up if the log is recovered from the database at this place.
    fn unshown_by(&self, place: usize) -> Vec<String> {
        let described = |other: usize| {
            let (last, at) = (self.facts[other].last.position, self.map.describe(other));
            format!("events up to position {last} in {at}")
        };
        let mut all: Vec<String> = self.unshown_at(place).into_iter().map(described).collect();
        if !self.facts[place].shows_arrival
            && let Some(arrival) = self.map.arrival(self.log)
        {
            let last = arrival.last.position;
            all.push(format!(
                "events up to position {last} that the log had when it moved"
            ));
        }
        all
    }

    /// Checks that the home of the log has all that every database knows of the log.
    fn check(&self) -> Result<()> {
        if !self.has_arrived() {
            return Err(Error::corrupt(lost(self.map, self.log)));
        }
        match self.unshown_at(self.home).first() {
            None => Ok(()),
            Some(other) => {
                let last = self.facts[*other].last.position;
                let text = unshown(self.map, self.log, *other, last);
                Err(Error::corrupt(text))
            }
        }
    }

    /// Returns the step that closes the log in a database, if it is open there and should not be.
    fn close(&self, is_to_be_closed: impl Fn(usize) -> bool) -> Option<Step> {
        let mut places = 0..self.facts.len();
        let place = places.find(|place| !self.facts[*place].closed && is_to_be_closed(*place))?;
        Some(Step::Close {
            place,
            expected: self.map.version(),
        })
    }

    fn open(&self) -> Step {
        Step::Open {
            place: self.home,
            expected: self.map.version(),
        }
    }

    /// Returns the next step when no log is being moved and all copies of the map are the same.
    fn at_rest(&self, goal: Goal) -> Result<Step> {
        // If the log is open elsewhere, a fail-over has lost the row that closed it there.
        let elsewhere = |place: usize| place != self.home && self.facts[place].has_rows();
        if self.has_arrived()
            && let Some(close) = self.close(elsewhere)
        {
            return Ok(close);
        }
        self.check()?;
        if self.facts[self.home].closed {
            // A move has ended, or was taken back.
            return Ok(self.open());
        }
        let (log, map) = (self.log, self.map);
        match goal {
            Goal::Move(to) if to != self.home => {
                Ok(put(to, map, map.announced(Moving { log, to })?, None))
            }
            _ => Ok(Step::Done),
        }
    }

    /// Returns the next step when the log is being moved and all copies of the map say so.
    fn moved(&self, to: usize, compared: &BTreeSet<usize>) -> Result<Step> {
        self.check()?;
        let from = self.home;
        let (old, new) = (&self.facts[from], &self.facts[to]);
        let expected = self.map.version();
        let after = new.last.position;
        let missing = old.last.position.0.saturating_sub(after.0);
        let is_behind = missing > if old.closed { 0 } else { NEAR };
        let continues = old.continues.get(to) == Some(&true);
        Ok(if !new.closed {
            Step::Close {
                place: to,
                expected,
            }
        } else if is_behind && continues {
            Step::Copy {
                from,
                to,
                after,
                expected,
            }
        } else if !continues || !compared.contains(&to) {
            Step::Compare { from, to, expected }
        } else if !old.closed {
            Step::Close {
                place: from,
                expected,
            }
        } else {
            put(to, self.map, self.map.switched(old.last), Some(self.log))
        })
    }

    /// Returns the next step when a copy is to be the log and all copies of the map are the same.
    fn recover(&self, from: usize, loss: Loss, compared: &BTreeSet<usize>) -> Result<Step> {
        let Some(fact) = self.facts.get(from) else {
            return Err(Error::invalid("from", "must be a database of the store"));
        };
        if from != self.home && self.check().is_ok() {
            let (log, home) = (self.log, self.map.describe(self.home));
            let rule = format!("must be {home}, in which log {log} is whole: `move-log` moves it");
            return Err(Error::invalid("from", rule));
        }
        let unshown = self.unshown_by(from);
        if loss == Loss::Refused && !unshown.is_empty() {
            let (from, unshown) = (self.map.describe(from), unshown.join(" and "));
            return Err(Error::invalid(
                "from",
                format!(
                    "must have all that is left of the log, but {from} lacks {unshown}, which only --accept-loss gives up"
                ),
            ));
        }
        if from != self.home || !self.has_arrived() || !fact.shows_arrival {
            // The log is closed everywhere first, so that nothing is appended to a copy that is given up.
            let everywhere =
                |place: usize| place == self.home || place == from || self.facts[place].has_rows();
            let recovered = self.map.recovered(self.log, from, fact.last);
            let put = put(from, self.map, recovered, Some(self.log));
            return Ok(self.close(everywhere).unwrap_or(put));
        }
        let elsewhere = |place: usize| place != from && self.facts[place].has_rows();
        if let Some(close) = self.close(elsewhere) {
            return Ok(close);
        }
        let expected = self.map.version();
        let give_up = |at| Step::GiveUp { from, at, expected };
        if let Some(at) = self.unshown_at(from).first() {
            return Ok(give_up(*at));
        }
        if fact.closed {
            return Ok(self.open());
        }
        let mut copies = (0..self.facts.len()).filter(|place| elsewhere(*place));
        let uncompared = copies.find(|place| !compared.contains(place));
        Ok(match uncompared {
            Some(at) if loss == Loss::Accepted => give_up(at),
            _ => Step::Done,
        })
    }
}

fn put(place: usize, now: &LogMap, map: LogMap, arriving: Option<LogId>) -> Step {
    Step::Put {
        place,
        expected: now.version(),
        map: Box::new(map),
        arriving,
    }
}

fn busy(map: &LogMap, Moving { log, to }: Moving) -> Error {
    let to = map.describe(to);
    let text = format!(
        "log {log} is being moved to {to}: finish that, or undo it, before anything else is moved"
    );
    ErrorKind::Unsupported(text).into()
}
