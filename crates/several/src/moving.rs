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
//! Invariants: a log is closed in every database that holds rows of it, but for the one that the map names; it is
//! opened only when all copies of the map agree; the new database decides between arriving and being taken back, since
//! both are changes of its copy from the same version. Not here: doing the steps.

use gesta_core::{Error, ErrorKind, LogId, LogMap, Moving, Position, Result};

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
}

/// What one database says about the map and about one log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fact {
    /// The copy of the map that the database keeps.
    pub map: LogMap,
    /// Whether the log is closed in the database.
    pub closed: bool,
    /// The position of the last row of the log in the database; the row that closes the log does not count.
    pub last: Position,
}

/// What is to be done next. Each step but copying is one transaction in one database.
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
    /// Copy the next rows of the log.
    Copy {
        /// The place of the database to copy from.
        from: usize,
        /// The place of the database to copy to.
        to: usize,
        /// The rows after this position are copied.
        after: Position,
    },
    /// Compare the copied rows with those in the old database, and remove from the copy what was scavenged since.
    Compare {
        /// The place of the database that was copied from.
        from: usize,
        /// The place of the database that holds the copy.
        to: usize,
    },
    /// There is nothing to do: the goal is reached.
    Done,
}

/// Returns the next step towards a goal. `facts` are those of all databases, in the order of the newest map among them.
/// `compared` says that the step before was [`Step::Compare`].
///
/// # Errors
/// `InvalidArgument` if the goal is no database or there is no such log; `Unsupported` if another log is being moved,
/// or this one to another database; `Corrupt` if the databases contradict each other.
pub fn next_step(log: LogId, goal: Goal, facts: &[Fact], compared: bool) -> Result<Step> {
    let newest = facts
        .iter()
        .map(|fact| &fact.map)
        .max_by_key(|map| map.version());
    let map = newest.ok_or_else(|| Error::corrupt("the store has no database"))?;
    let home = map.home(log).ok_or_else(|| {
        Error::invalid("log", format!("must be one of {}, found {log}", map.logs()))
    })?;
    if facts.len() != map.databases().len() {
        return Err(Error::corrupt("every database of the map must be known"));
    }
    if let Some(place) = (0..facts.len()).find(|place| facts[*place].map.version() < map.version())
    {
        return Ok(Step::Put {
            place,
            expected: facts[place].map.version(),
            map: Box::new(map.clone()),
        });
    }
    match map.moving() {
        None => at_rest(log, goal, facts, map, home),
        Some(moving) if moving.log != log => Err(busy(map, moving)),
        Some(moving) => match goal {
            Goal::Undo => Ok(put(moving.to, map, map.withdrawn())),
            Goal::Move(to) if to != moving.to => Err(busy(map, moving)),
            Goal::Move(to) => moved(facts, map, home, to, compared),
        },
    }
}

/// Returns the next step when no log is being moved and all copies of the map are the same.
fn at_rest(log: LogId, goal: Goal, facts: &[Fact], map: &LogMap, home: usize) -> Result<Step> {
    if facts[home].closed {
        // A move has ended, or was taken back. If the new database has lost rows since, they are still in the old one.
        let after = facts[home].last;
        let longer =
            (0..facts.len()).find(|place| facts[*place].closed && facts[*place].last > after);
        let expected = map.version();
        return Ok(match longer {
            Some(from) => Step::Copy {
                from,
                to: home,
                after,
            },
            None => Step::Open {
                place: home,
                expected,
            },
        });
    }
    let has_rows = |fact: &Fact| fact.last > Position::START;
    let open_elsewhere = (0..facts.len())
        .find(|place| *place != home && !facts[*place].closed && has_rows(&facts[*place]));
    if let Some(place) = open_elsewhere {
        // A fail-over has lost the row that closed the log there.
        return Ok(Step::Close {
            place,
            expected: map.version(),
        });
    }
    match goal {
        Goal::Undo => Ok(Step::Done),
        Goal::Move(to) if to == home => Ok(Step::Done),
        Goal::Move(to) => Ok(put(to, map, map.announced(Moving { log, to })?)),
    }
}

/// Returns the next step when the log is being moved and all copies of the map say so.
fn moved(facts: &[Fact], map: &LogMap, from: usize, to: usize, compared: bool) -> Result<Step> {
    let (old, new) = (&facts[from], &facts[to]);
    let expected = map.version();
    if new.last > old.last {
        return Err(Error::corrupt(format!(
            "{} holds the log up to position {}, and {} only up to {}",
            map.describe(to),
            new.last,
            map.describe(from),
            old.last
        )));
    }
    let missing = old.last.0 - new.last.0;
    Ok(if !new.closed {
        Step::Close {
            place: to,
            expected,
        }
    } else if missing > if old.closed { 0 } else { NEAR } {
        Step::Copy {
            from,
            to,
            after: new.last,
        }
    } else if !compared {
        Step::Compare { from, to }
    } else if !old.closed {
        Step::Close {
            place: from,
            expected,
        }
    } else {
        put(to, map, map.switched())
    })
}

fn put(place: usize, now: &LogMap, map: LogMap) -> Step {
    Step::Put {
        place,
        expected: now.version(),
        map: Box::new(map),
    }
}

fn busy(map: &LogMap, Moving { log, to }: Moving) -> Error {
    let to = map.describe(to);
    let text = format!(
        "log {log} is being moved to {to}: finish that, or undo it, before anything else is moved"
    );
    ErrorKind::Unsupported(text).into()
}

#[cfg(test)]
mod tests;
