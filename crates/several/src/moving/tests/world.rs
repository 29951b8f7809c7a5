//! The databases, what they have been, and whoever moves the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gesta_core::backend::{LogEnd, RowId, WriterEpoch};
use gesta_core::{
    DatabaseId, Error, HeldRow, LogId, LogMap, MapCopy, NamedDatabase, Position, Result, Revision,
    RowMark,
};

use crate::moving::{Fact, Goal, Loss, Step, most_complete, next_step};

pub(super) const LOG: LogId = LogId(1);
pub(super) const DATABASES: usize = 3;
pub(super) const LOGS: u16 = 4;

pub(super) type SharedWorld = Arc<Mutex<World>>;

pub(super) fn lock(world: &SharedWorld) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Row {
    pub(super) mark: RowMark,
    pub(super) stream: u64,
    pub(super) revision: u64,
}

impl Row {
    pub(super) fn held(&self) -> HeldRow {
        HeldRow {
            mark: self.mark,
            stream: RowId(self.stream),
            revision: Revision(self.revision),
        }
    }
}

/// What one database holds of the log.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Database {
    pub(super) copy: MapCopy,
    pub(super) closed: bool,
    pub(super) rows: Vec<Row>,
    /// For each stream the last revision that was scavenged.
    scavenges: BTreeMap<u64, u64>,
    scavenged: u64,
}

impl Database {
    pub(super) fn last(&self) -> RowMark {
        self.rows.last().map_or(RowMark::NONE, |row| row.mark)
    }

    /// What the product asks by `show_rows.sql`.
    pub(super) fn shows(&self, asked: &HeldRow) -> bool {
        let mut rows = self.rows.iter();
        match rows.find(|row| row.mark.position == asked.mark.position) {
            Some(row) => row.mark.writer == asked.mark.writer,
            None => {
                let gone = self.scavenges.get(&asked.stream.0);
                let is_gone = gone.is_some_and(|last| *last >= asked.revision.0);
                asked.mark.position < self.last().position && is_gone
            }
        }
    }

    /// The same of a row of which the mark alone is known.
    fn shows_mark(&self, mark: RowMark) -> bool {
        let mut rows = self.rows.iter();
        match rows.find(|row| row.mark.position == mark.position) {
            Some(row) => row.mark.writer == mark.writer,
            None => mark == RowMark::NONE || mark.position < self.last().position,
        }
    }
}

/// What a mover is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Goals {
    Move(usize),
    Undo,
    /// From the copy that has all that is left.
    Recover,
    From(usize, Loss),
}

#[derive(Debug)]
struct Mover {
    goal: Goals,
    /// What was decided. It may be done much later, even after the mover has died.
    step: Option<(Goal, Step)>,
    compared: BTreeSet<usize>,
}

pub(super) struct World {
    pub(super) databases: Vec<Database>,
    /// The number of the history of each database.
    pub(super) histories: Vec<u64>,
    /// Which databases do not answer.
    pub(super) away: [bool; DATABASES],
    /// Every state that each database has had in its present history.
    past: Vec<Vec<Database>>,
    /// The rows of the log that must be there: what was acknowledged and has survived.
    log: Vec<Row>,
    /// The rows of the log that were scavenged since the last loss.
    gone: Vec<RowMark>,
    losses: u64,
    mover: Mover,
    random: u64,
    next_writer: i64,
    revisions: [u64; 2],
    /// Whether something happens within calls.
    pub(super) trouble: bool,
}

impl World {
    pub(super) fn shared(seed: u64) -> SharedWorld {
        let named = |n| NamedDatabase {
            id: DatabaseId::random(),
            name: format!("h{n}"),
        };
        let map = LogMap::new(LOGS, (0..DATABASES).map(named).collect()).expect("valid");
        let database = |place: usize| Database {
            copy: MapCopy::new(map.databases()[place].id, map.clone()),
            closed: false,
            rows: Vec::new(),
            scavenges: BTreeMap::new(),
            scavenged: 0,
        };
        let databases: Vec<Database> = (0..DATABASES).map(database).collect();
        let past = databases.iter().map(|one| vec![one.clone()]).collect();
        Arc::new(Mutex::new(Self {
            databases,
            histories: vec![0; DATABASES],
            away: [false; DATABASES],
            past,
            log: Vec::new(),
            gone: Vec::new(),
            losses: 0,
            mover: Mover {
                goal: Goals::Undo,
                step: None,
                compared: BTreeSet::new(),
            },
            random: seed,
            next_writer: 1,
            revisions: [0; 2],
            trouble: false,
        }))
    }

    /// splitmix64 (Steele et al. 2014).
    pub(super) fn below(&mut self, count: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let z = z ^ (z >> 31);
        usize::try_from(z % u64::try_from(count).expect("few")).expect("few")
    }

    pub(super) fn next_writer(&mut self) -> WriterEpoch {
        self.next_writer += 1;
        WriterEpoch(self.next_writer)
    }

    /// The stream of the next event, and its revision there. Revisions are not checked, and only grow.
    pub(super) fn next_revision(&mut self) -> (u64, u64) {
        let stream = self.below(2);
        self.revisions[stream] += 1;
        (u64::try_from(stream).expect("few"), self.revisions[stream])
    }

    pub(super) fn newest(&self) -> &LogMap {
        let maps = self.databases.iter().map(|database| &database.copy.map);
        maps.max_by_key(|map| map.version()).expect("some")
    }

    pub(super) fn home(&self) -> usize {
        self.newest().home(LOG).expect("some")
    }

    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    /// Whether the home of the log has noted that it came, and has, or has scavenged, the last row of every other copy.
    pub(super) fn is_whole(&self) -> bool {
        let home = &self.databases[self.home()];
        if !home.copy.has(LOG, self.newest()) {
            return false;
        }
        let lasts = self.databases.iter().filter_map(|other| other.rows.last());
        lasts.into_iter().all(|last| home.shows(&last.held()))
    }

    pub(super) fn is_closed(&self, place: usize) -> bool {
        self.databases[place].closed
    }

    /// Changes a database.
    fn change(&mut self, place: usize, change: impl FnOnce(&mut Database)) {
        change(&mut self.databases[place]);
        self.past[place].push(self.databases[place].clone());
    }

    /// Something happens while a call is under way.
    pub(super) fn disturb(&mut self) {
        if !self.trouble {
            return;
        }
        match self.below(60) {
            0..=13 => self.work(),
            14 => self.lose(),
            15 => self.scavenge(),
            16 => self.leave(),
            17..=19 => self.away = [false; DATABASES],
            _ => {}
        }
    }

    /// A database does not answer for a while.
    pub(super) fn leave(&mut self) {
        let place = self.below(DATABASES);
        self.away[place] = true;
    }

    /// A batch is stored in a database, if the row that it names is the last one there.
    pub(super) fn append(&mut self, place: usize, after: LogEnd, rows: &[Row]) -> bool {
        let after = RowMark {
            position: after.position,
            writer: after.writer,
        };
        let refuses = self.away[place] || self.databases[place].closed;
        if refuses || self.databases[place].last() != after {
            return false;
        }
        assert!(
            self.is_whole(),
            "acknowledged in a log that is lost, in {place}: {:#?}",
            self.databases
        );
        let last = self.log.last().map_or(RowMark::NONE, |row| row.mark);
        assert_eq!(
            last, after,
            "acknowledged beside the log, in {place}: {:#?}",
            self.databases
        );
        self.log.extend(rows);
        let rows = rows.to_vec();
        self.change(place, |database| database.rows.extend(rows));
        true
    }

    /// A process that was not told has appended to a copy that was open by mistake.
    pub(super) fn append_beside(&mut self, place: usize) {
        let writer = self.next_writer();
        let position = self.databases[place].last().position.next();
        let mark = RowMark { position, writer };
        let row = Row {
            mark,
            stream: 0,
            revision: 99,
        };
        self.change(place, |database| database.rows.push(row));
    }

    pub(super) fn open_again(&mut self, place: usize) {
        self.change(place, |database| database.closed = false);
    }

    pub(super) fn put_everywhere(&mut self, map: &LogMap) {
        for place in 0..DATABASES {
            self.change(place, |database| database.copy.map = map.clone());
        }
    }

    /// Removes the oldest events of one stream where the log is open, but never the last row.
    pub(super) fn scavenge(&mut self) {
        let home = self.home();
        let is_proven = self.databases[home].copy.has(LOG, self.newest());
        if self.databases[home].closed || !is_proven || self.databases[home].rows.len() < 2 {
            return;
        }
        let stream = u64::try_from(self.below(2)).expect("few");
        let rows = &self.databases[home].rows;
        let (last, of_stream) = (
            rows.last().copied(),
            rows.iter().filter(|row| row.stream == stream),
        );
        let Some(first) = of_stream.copied().next().filter(|row| Some(*row) != last) else {
            return;
        };
        self.gone.push(first.mark);
        self.change(home, |database| {
            database.rows.retain(|row| *row != first);
            database.scavenges.insert(stream, first.revision);
            database.scavenged += 1;
        });
    }

    /// A database loses its newest changes, or is set back to any earlier state.
    pub(super) fn lose(&mut self) {
        let place = self.below(DATABASES);
        let states = self.past[place].len();
        let moment = match self.below(2) {
            0 => states.saturating_sub(1 + self.below(5)),
            _ => self.below(states),
        };
        self.restore_to(place, moment);
    }

    pub(super) fn moment(&self, place: usize) -> usize {
        self.past[place].len() - 1
    }

    pub(super) fn restore_to(&mut self, place: usize, moment: usize) {
        // What came later is of a history that is gone, and is in no backup of the present one.
        self.past[place].truncate(moment + 1);
        self.databases[place] = self.past[place][moment].clone();
        self.histories[place] += 1;
        self.losses += 1;
        self.gone.clear();
        self.mover.step = None;
        self.mover.compared.clear();
        // What must be there from now on: if the log is whole in its home, what that one has; else all that any
        // database has.
        if self.is_whole() {
            self.log.clone_from(&self.databases[self.home()].rows);
            return;
        }
        let survives = |row: &Row| {
            let mut databases = self.databases.iter();
            databases.any(|database| database.shows(&row.held()))
        };
        let kept = self.log.iter().rposition(survives).map_or(0, |at| at + 1);
        self.log.truncate(kept);
    }

    pub(super) fn facts(&self) -> Vec<Fact> {
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
            shows_arrival: database.shows_mark(arrival.last),
            scavenged: database.scavenged,
        };
        self.databases.iter().map(fact).collect()
    }

    /// A mover dies, and the next one begins with another goal. What the dead one had decided may still be done: the
    /// next one waits for that.
    pub(super) fn begin(&mut self) {
        if self.below(2) == 0 {
            self.carry_out();
        }
        let goal = match self.below(8) {
            0 => Goals::Undo,
            1 | 2 => Goals::Recover,
            3 => Goals::From(self.below(DATABASES), Loss::Refused),
            _ => Goals::Move(self.below(DATABASES)),
        };
        self.mover = Mover {
            goal,
            step: None,
            compared: BTreeSet::new(),
        };
    }

    /// The mover looks and decides, or does what it has decided.
    pub(super) fn work(&mut self) {
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
        self.mover.step = Some((goal, step));
        Ok(())
    }

    fn carry_out(&mut self) {
        if let Some((goal, step)) = self.mover.step.take() {
            self.perform(goal, &step);
        }
    }

    /// What the databases make of a step. A step that is refused changes nothing.
    fn perform(&mut self, goal: Goal, step: &Step) {
        if self.away.contains(&true) {
            return;
        }
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
                if let (Some(_), Goal::Recover { loss, .. }) = (arriving, goal) {
                    self.recovered(*place, loss);
                }
                self.change(*place, |database| {
                    database.copy.map = (**map).clone();
                    if let Some(log) = arriving {
                        let stay = map.arrival(*log).expect("a log").stay;
                        database.copy.arrived[usize::from(log.0)] = stay;
                    }
                });
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
                let there = self.databases[*to].last().position;
                // A row that is there already refuses the page.
                if page.first().is_some_and(|row| row.mark.position > there) {
                    self.change(*to, |database| database.rows.extend(page));
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
                    });
                    assert_eq!(self.compare(*from, *at), None);
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
                database.scavenges.clone_from(&home.scavenges);
                database.scavenged = home.scavenged;
            });
        }
        first
    }

    /// The copy at this place becomes the log.
    fn recovered(&mut self, place: usize, loss: Loss) {
        let rows = self.databases[place].rows.clone();
        let shows_all =
            (self.log.last()).is_none_or(|row| self.databases[place].shows(&row.held()));
        assert!(
            shows_all || loss == Loss::Accepted,
            "given up without a word: {:#?} {:#?}",
            self.log.last(),
            self.databases
        );
        self.log = rows;
        self.gone.clear();
        self.losses += 1;
        self.histories[place] += 1;
    }

    /// What must never be.
    pub(super) fn check(&self) {
        let home = self.home();
        for (place, database) in self.databases.iter().enumerate() {
            if place != home && !database.rows.is_empty() && !database.closed {
                // Only a loss opens a log beside its home.
                assert!(self.losses > 0, "open in {place} and {home}");
            }
        }
    }

    /// Drives to a goal without interruption.
    pub(super) fn finish(&mut self, goal: Goals) -> Result<()> {
        self.mover = Mover {
            goal,
            step: None,
            compared: BTreeSet::new(),
        };
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
    pub(super) fn settle(&mut self, to: usize) {
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

    pub(super) fn expected(&self) -> Expected {
        Expected {
            rows: self.log.clone(),
            gone: self.gone.clone(),
            losses: self.losses,
        }
    }

    /// Checks what a read has found that began when `before` was expected.
    pub(super) fn check_read(&self, before: &Expected, found: &[Position]) {
        if before.losses != self.losses {
            let home = &self.databases[self.home()];
            let is_lost = !home.copy.has(LOG, self.newest());
            assert!(!is_lost, "answered although the log was lost meanwhile");
            return;
        }
        let is_gone = |row: &&Row| self.gone.contains(&row.mark);
        let missing = before.rows.iter().filter(|row| !is_gone(row));
        let missing = missing.filter(|row| !found.contains(&row.mark.position));
        let missing: Vec<&Row> = missing.filter(|row| self.is_in_log(row)).collect();
        assert!(
            missing.is_empty(),
            "not read: {missing:?} {:#?}",
            self.databases
        );
        if self.trouble {
            // A process that does not know of a move yet reads the old copy, from which nothing is scavenged any more.
            return;
        }
        for position in found {
            let was_gone = before.gone.iter().any(|mark| mark.position == *position);
            assert!(!was_gone, "scavenged, and read: {position}");
        }
    }

    /// Whether the log has this row, which it may have scavenged before the last loss.
    fn is_in_log(&self, row: &Row) -> bool {
        let home = &self.databases[self.home()];
        home.rows.contains(row) || !home.shows(&row.held())
    }
}

/// What a read must show.
pub(super) struct Expected {
    rows: Vec<Row>,
    gone: Vec<RowMark>,
    losses: u64,
}

impl Expected {
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }
}
