//! Whoever moves the log: looks, decides, and does what was decided, perhaps much later.

use std::collections::BTreeSet;

use gesta_core::{Error, Position, Result};
use gesta_postgres::RowMark;
use gesta_postgres::core::several::{Fact, Goal, Loss, Step, most_complete, next_step};

use super::{DATABASES, Database, LOG, Row, World};

/// What a mover is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worlds::moves) enum Goals {
    Move(usize),
    Undo,
    /// From the copy that has all that is left.
    Recover,
    From(usize, Loss),
}

#[derive(Debug)]
pub(super) struct Mover {
    goal: Goals,
    /// What was decided. It may be done much later, even after the mover has died.
    step: Option<(Goal, Step)>,
    /// Whether a database was set back since the step was decided.
    is_late: bool,
    compared: BTreeSet<usize>,
}

impl Mover {
    pub(super) fn new(goal: Goals) -> Self {
        Self {
            goal,
            step: None,
            is_late: false,
            compared: BTreeSet::new(),
        }
    }
}

/// The databases in which a step is done.
fn places(step: &Step) -> Vec<usize> {
    match step {
        Step::Put { place, .. } | Step::Close { place, .. } | Step::Open { place, .. } => {
            vec![*place]
        }
        Step::Copy { from, to, .. } | Step::Compare { from, to, .. } => vec![*from, *to],
        Step::GiveUp { from, at, .. } => vec![*from, *at],
        Step::Done => Vec::new(),
    }
}

impl World {
    /// A database was set back: the connection of the mover to it has ended. A step that is done elsewhere may have
    /// been sent before.
    pub(super) fn break_off(&mut self, place: usize) {
        let is_sent = self.below(2) == 0;
        let mover = &mut self.mover;
        mover.compared.clear();
        let is_elsewhere = |(_, step): &(Goal, Step)| !places(step).contains(&place);
        mover.is_late = is_sent && mover.step.as_ref().is_some_and(is_elsewhere);
        if !mover.is_late {
            mover.step = None;
        }
    }

    pub(in crate::worlds::moves) fn facts(&self) -> Vec<Fact> {
        let arrival = self.newest().arrival(LOG).expect("some");
        let fact = |database: &Database| Fact {
            map: database.copy.map.clone(),
            arrived: database.copy.arrived(LOG),
            closed: database.closed,
            last: database.last(),
            shows: (self.databases.iter())
                .map(|other| {
                    other
                        .rows
                        .last()
                        .is_none_or(|row| database.shows(&row.held()))
                })
                .collect(),
            continues: (self.databases.iter())
                .map(|other| {
                    let last = other.rows.last();
                    let names = other.names.keys();
                    last.is_none_or(|row| database.rows.contains(row))
                        && names.max().is_none_or(|id| *id <= other.last().position.0)
                })
                .collect(),
            shows_arrival: database.shows_mark(arrival.last),
            scavenged: database.scavenged,
        };
        self.databases.iter().map(fact).collect()
    }

    /// A mover dies, and the next one begins with another goal. What the dead one had decided may still be done: the
    /// next one waits for that.
    pub(in crate::worlds::moves) fn begin(&mut self) {
        if self.below(2) == 0 {
            self.carry_out();
        }
        let goal = match self.below(8) {
            0 => Goals::Undo,
            1 | 2 => Goals::Recover,
            3 => {
                let from = self.below(DATABASES);
                let loss = [Loss::Refused, Loss::Accepted][self.below(2)];
                Goals::From(from, loss)
            }
            _ => Goals::Move(self.below(DATABASES)),
        };
        self.mover = Mover::new(goal);
    }

    /// The mover looks and decides, or does what it has decided.
    pub(in crate::worlds::moves) fn work(&mut self) {
        match self.mover.step {
            Some(_) => self.carry_out(),
            // One that cannot go on ends.
            None => drop(self.decide()),
        }
    }

    fn goal(&mut self, facts: &[Fact]) -> Result<Goal> {
        Ok(match self.mover.goal {
            Goals::Move(to) => Goal::Move(to),
            Goals::Undo => Goal::Undo,
            Goals::From(from, loss) => Goal::Recover { from, loss },
            Goals::Recover => {
                let from = most_complete(LOG, facts)?;
                let from = from.ok_or_else(|| Error::invalid("from", "no copy has all"))?;
                self.mover.goal = Goals::From(from, Loss::Refused);
                let loss = Loss::Refused;
                Goal::Recover { from, loss }
            }
        })
    }

    fn decide(&mut self) -> Result<()> {
        if self.away.contains(&true) {
            return Err(Error::unavailable("a database does not answer"));
        }
        let facts = self.facts();
        let goal = self.goal(&facts)?;
        let step = next_step(LOG, goal, &facts, &self.mover.compared)?;
        if !matches!(goal, Goal::Recover { .. }) {
            self.mover.compared.clear();
        }
        (self.mover.step, self.mover.is_late) = (Some((goal, step)), false);
        Ok(())
    }

    fn carry_out(&mut self) {
        let Some((goal, step)) = self.mover.step.take() else {
            return;
        };
        if places(&step).into_iter().any(|place| self.away[place]) {
            // The step is done when the database is back, or never.
            if self.below(2) == 0 {
                self.mover.step = Some((goal, step));
            }
            return;
        }
        self.perform(goal, &step);
        if std::mem::take(&mut self.mover.is_late) {
            // Who has done it does not look any more.
            self.mover.compared.clear();
        }
    }

    /// What the databases make of a step. A step that is refused changes nothing.
    fn perform(&mut self, goal: Goal, step: &Step) {
        let is_at = |world: &Self, place: usize, expected: u64| {
            world.databases[place].copy.map.version() == expected
        };
        match step {
            Step::Put {
                place,
                expected,
                map,
                arriving,
            } => {
                if !is_at(self, *place, *expected) {
                    return;
                }
                let is_newest = map.version() > self.newest().version();
                let is_surprise = self.mover.is_late && (arriving.is_some() || is_newest);
                match (arriving, goal) {
                    _ if is_surprise => self.left_open = [true; DATABASES],
                    (Some(_), Goal::Recover { loss, .. }) => self.recovered(*place, loss),
                    _ => {}
                }
                self.change(*place, |database| {
                    database.copy.map = (**map).clone();
                    if let Some(log) = arriving {
                        let stay = map.arrival(*log).expect("a log").stay;
                        database.copy.arrived[usize::from(log.0)] = stay;
                    }
                });
                if is_surprise {
                    if arriving.is_some() && matches!(goal, Goal::Recover { .. }) {
                        self.histories[*place] += 1;
                    }
                    self.surprise();
                }
            }
            Step::Close { place, expected } if is_at(self, *place, *expected) => {
                self.change(*place, |database| database.closed = true);
            }
            Step::Open { place, expected } if is_at(self, *place, *expected) => {
                self.change(*place, |database| database.closed = false);
            }
            Step::Copy {
                from,
                to,
                after,
                expected,
            } if is_at(self, *to, *expected) && self.databases[*to].closed => {
                let rows = self.databases[*from].rows.iter();
                let rows = rows.filter(|row| row.mark.position > *after).take(3);
                let page: Vec<Row> = rows.copied().collect();
                let Some(last) = page.last().map(|row| row.mark.position) else {
                    return;
                };
                let names = self.databases[*from].names.range(after.0 + 1..=last.0);
                let names: Vec<(u64, u8)> = names.map(|(id, name)| (*id, *name)).collect();
                // A row or a name that is there already refuses the page.
                let there = &self.databases[*to];
                let is_name_new = |(id, name): &(u64, u8)| {
                    there
                        .names
                        .iter()
                        .all(|(other, one)| other != id && one != name)
                };
                let is_new = page[0].mark.position > there.last().position;
                if is_new && names.iter().all(is_name_new) {
                    self.change(*to, |database| {
                        database.rows.extend(page);
                        database.names.extend(names);
                    });
                }
            }
            Step::Compare { from, to, expected }
                if is_at(self, *to, *expected)
                    && self.databases[*to].closed
                    && self.compare(*from, *to).is_none() =>
            {
                self.mover.compared.insert(*to);
            }
            Step::GiveUp { from, at, expected }
                if is_at(self, *at, *expected) && self.databases[*at].closed =>
            {
                if let Some(first) = self.compare(*from, *at) {
                    self.change(*at, |database| {
                        database.rows.retain(|row| row.mark.position < first);
                        database.names.retain(|id, _| *id < first.0);
                    });
                    assert_eq!(self.compare(*from, *at), None);
                    self.gave_up(*from, goal);
                }
                self.mover.compared.insert(*at);
            }
            _ => {}
        }
    }

    /// Compares a copy as the product does: by position and writer, and what only the copy has by what was scavenged.
    /// Returns where it differs.
    fn compare(&mut self, from: usize, to: usize) -> Option<Position> {
        let (home, copy) = (self.databases[from].clone(), &self.databases[to]);
        let end = copy.last().position;
        let upto = |row: &&Row| row.mark.position <= end;
        let missing = home.rows.iter().filter(upto);
        let missing = missing.filter(|row| !copy.rows.contains(row));
        let unknown = copy.rows.iter().filter(|row| !home.shows(&row.held()));
        let first = missing.chain(unknown).map(|row| row.mark.position).min();
        if first.is_none() {
            self.change(to, |database| {
                database.rows.retain(|row| home.rows.contains(row));
                let last = database.last().position;
                database.names.retain(|id, _| *id <= last.0);
                database.scavenges.clone_from(&home.scavenges);
                database.scavenged = home.scavenged;
                let removed = home.removed.iter().copied();
                database.removed = removed.filter(|mark| mark.position < last).collect();
            });
        }
        first
    }

    /// Rows of a copy were given up in favour of the log at this place, which stays where it is.
    fn gave_up(&mut self, home: usize, goal: Goal) {
        let database = &self.databases[home];
        if self.log.last() == database.rows.last() {
            return;
        }
        // It may also have been set forward to rows that the log did not have any more.
        if (self.log.last()).is_some_and(|row| !database.shows(&row.held())) {
            let loss = Loss::Accepted;
            assert_eq!(goal, Goal::Recover { from: home, loss }, "given up");
        }
        self.log.clone_from(&database.rows);
        self.gone.clear();
        self.losses += 1;
    }

    /// The copy at this place becomes the log.
    fn recovered(&mut self, place: usize, loss: Loss) {
        let rows = self.databases[place].rows.clone();
        let shows_all =
            (self.log.last()).is_none_or(|row| self.databases[place].shows(&row.held()));
        assert!(
            shows_all || loss == Loss::Accepted || self.is_mistaken(place),
            "given up without a word: {:#?} {:#?}",
            self.log.last(),
            self.databases
        );
        self.log = rows;
        self.gone.clear();
        self.losses += 1;
        self.histories[place] += 1;
    }

    /// The log has come to another place by a step that was decided before a loss, or has done so again, if each
    /// database had lost the map that says so. A process may have found out since that the log lies elsewhere, and is
    /// open there.
    fn surprise(&mut self) {
        for process in &mut self.processes {
            process.is_surprised = true;
        }
        self.begin_again();
    }

    /// Moves the log until it is closed in its home. Then the mover dies.
    pub(in crate::worlds::moves) fn close_to_move(&mut self, to: usize) {
        let home = self.home();
        self.mover = Mover::new(Goals::Move(to));
        while !self.databases[home].closed {
            self.decide().expect("the log is whole");
            self.carry_out();
        }
    }

    /// Drives to a goal without interruption.
    pub(in crate::worlds::moves) fn finish(&mut self, goal: Goals) -> Result<()> {
        self.mover = Mover::new(goal);
        for _ in 0..1_000 {
            self.decide()?;
            let is_done = matches!(self.mover.step, Some((_, Step::Done)));
            let is_compare = matches!(self.mover.step, Some((_, Step::Compare { .. })));
            self.carry_out();
            if is_done {
                return Ok(());
            }
            if is_compare && self.mover.compared.is_empty() {
                return Err(Error::corrupt("the copy differs"));
            }
        }
        panic!("never ends: {:#?}", self.databases);
    }

    /// Ends all trouble: undoes what was begun, recovers the log if it is lost, and moves it.
    pub(in crate::worlds::moves) fn settle(&mut self, to: usize) {
        if self.finish(Goals::Undo).is_err() && self.finish(Goals::Recover).is_err() {
            let from = self.below(DATABASES);
            self.finish(Goals::From(from, Loss::Accepted))
                .expect("a lost log is recovered from any copy");
        }
        self.finish(Goals::Undo).expect("nothing is lost");
        if self.finish(Goals::Move(to)).is_err() {
            // The copy lacks events that had been scavenged, until the home was set back.
            let home = self.home();
            let anew = Goals::From(home, Loss::Accepted);
            self.finish(Goals::Undo).expect("the move is taken back");
            self.finish(anew).expect("the copy is cut");
            self.finish(Goals::Move(to)).expect("free");
        }
        assert_eq!(self.home(), to);
        assert!(!self.databases[to].closed);
        let last = self.log.last().map_or(RowMark::NONE, |row| row.mark);
        assert_eq!(self.databases[to].last(), last);
    }
}
