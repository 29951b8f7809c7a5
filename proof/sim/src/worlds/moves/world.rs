//! The databases, what they have been, and what each process has noticed of that.

mod expected;
mod mover;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use gesta_core::backend::{LogEnd, RowId, WriterEpoch};
use gesta_core::{LogId, Revision};
use gesta_postgres::{DatabaseId, HeldRow, LogMap, MapCopy, NamedDatabase, RowMark};

pub(super) use self::mover::Goals;
use self::mover::Mover;
use crate::choices::Choices;

pub(super) const LOG: LogId = LogId(1);
pub(super) const DATABASES: usize = 3;
pub(super) const LOGS: u16 = 4;
/// How many streams there are.
const STREAMS: usize = 3;

pub(super) type SharedWorld = Arc<Mutex<World>>;

/// Locks the world.
///
/// # Panics
/// If a check has failed in a task of the product, which would pass that over.
pub(super) fn lock(world: &SharedWorld) -> MutexGuard<'_, World> {
    world.lock().expect("no check has failed")
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Row {
    pub(super) mark: RowMark,
    /// The id of the stream: the position of its first event.
    stream: u64,
    pub(super) revision: u64,
    /// What whoever has appended the event calls the stream.
    name: u8,
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
    /// The names of streams by their ids.
    names: BTreeMap<u64, u8>,
    /// For each stream the last revision that was scavenged.
    scavenges: BTreeMap<u64, u64>,
    scavenged: u64,
    /// The rows that were scavenged, which no database remembers.
    removed: Vec<RowMark>,
}

impl Database {
    pub(super) fn last(&self) -> RowMark {
        self.rows.last().map_or(RowMark::NONE, |row| row.mark)
    }

    /// Stores an event of the stream with this name, and returns the row. It does not depend on what is stored in
    /// other databases, so another history may use the same stream and revision.
    fn append(&mut self, mark: RowMark, name: u8) -> Row {
        let known = self.names.iter().find(|(_, one)| **one == name);
        let (stream, revision) = match known.map(|(id, _)| *id) {
            None => (mark.position.0, 0),
            Some(id) => {
                let of_stream = self.rows.iter().filter(|row| row.stream == id);
                let last = of_stream.map(|row| row.revision).max();
                let last = last.max(self.scavenges.get(&id).copied());
                (id, last.map_or(0, |last| last + 1))
            }
        };
        let row = Row {
            mark,
            stream,
            revision,
            name,
        };
        self.names.insert(stream, name);
        self.rows.push(row);
        row
    }

    /// Whether the database has a row, or has scavenged that very row.
    fn has_had(&self, mark: RowMark) -> bool {
        self.rows.iter().any(|row| row.mark == mark) || self.removed.contains(&mark)
    }

    /// What the product asks by `show_rows.sql`. The row may be one of another history, if the database has scavenged
    /// one of the same stream and revision.
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

    /// Whether the database seems to have scavenged a row that it has never had.
    fn mistakes(&self, row: &Row) -> bool {
        self.shows(&row.held()) && !self.has_had(row.mark)
    }

    /// The same as [`shows`](Self::shows) of a row of which the mark alone is known.
    fn shows_mark(&self, mark: RowMark) -> bool {
        let mut rows = self.rows.iter();
        match rows.find(|row| row.mark.position == mark.position) {
            Some(row) => row.mark.writer == mark.writer,
            None => mark == RowMark::NONE || mark.position < self.last().position,
        }
    }
}

/// A state that a database has had.
struct State {
    database: Database,
    /// The state before it, in the same history or in the one before.
    before: Option<usize>,
}

/// What a process has noticed of the databases. It notices that one was set back with the first answer on a new
/// connection, and every connection of before has ended.
#[derive(Clone)]
struct Notes {
    /// The histories of the databases.
    histories: Vec<u64>,
    /// If a database did not answer the process, which of them have said since what they hold.
    answered: Option<[bool; DATABASES]>,
    /// Whether a step was done that had been decided before a loss: what a process has found out may have ended
    /// without another history.
    is_surprised: bool,
}

/// How often the databases were asked.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Count {
    pub(super) maps: usize,
    pub(super) held: usize,
}

pub(super) struct World {
    pub(super) databases: Vec<Database>,
    /// The number of the history of each database.
    pub(super) histories: Vec<u64>,
    /// Which databases do not answer.
    pub(super) away: [bool; DATABASES],
    /// Which databases take questions about the map and about what they hold, and never answer them.
    pub(super) hangs: [bool; DATABASES],
    /// Every state that each database has ever had.
    past: Vec<Vec<State>>,
    /// The present state of each database.
    present: Vec<usize>,
    /// In which databases a loss has left the log open although it does not lie there.
    left_open: [bool; DATABASES],
    /// What each process that was ever started has noticed.
    processes: Vec<Notes>,
    pub(super) count: Count,
    /// The rows of the log that must be there: what was acknowledged and has survived.
    log: Vec<Row>,
    /// The rows of the log that were scavenged since the last loss.
    gone: Vec<RowMark>,
    losses: u64,
    mover: Mover,
    pub(super) choices: Choices,
    next_writer: i64,
    /// The name of the stream of the next event, if a schedule names it.
    pub(super) planned: Option<u8>,
    /// How often a database was restored to a row that the home of the log took for one that it had scavenged.
    mistaken: u64,
    /// Whether something happens within calls.
    pub(super) trouble: bool,
}

impl World {
    pub(super) fn shared(choices: Choices) -> SharedWorld {
        let named = |n| NamedDatabase {
            id: DatabaseId::random(),
            name: format!("h{n}"),
        };
        let map = LogMap::new(LOGS, (0..DATABASES).map(named).collect()).expect("valid");
        let database = |place: usize| Database {
            copy: MapCopy::new(map.databases()[place].id, map.clone()),
            closed: false,
            rows: Vec::new(),
            names: BTreeMap::new(),
            scavenges: BTreeMap::new(),
            scavenged: 0,
            removed: Vec::new(),
        };
        let databases: Vec<Database> = (0..DATABASES).map(database).collect();
        let past = databases.iter().map(|one| {
            vec![State {
                database: one.clone(),
                before: None,
            }]
        });
        let past = past.collect();
        Arc::new(Mutex::new(Self {
            databases,
            histories: vec![0; DATABASES],
            away: [false; DATABASES],
            hangs: [false; DATABASES],
            past,
            present: vec![0; DATABASES],
            left_open: [false; DATABASES],
            processes: Vec::new(),
            count: Count::default(),
            log: Vec::new(),
            gone: Vec::new(),
            losses: 0,
            mover: Mover::new(Goals::Undo),
            choices,
            next_writer: 1,
            planned: None,
            mistaken: 0,
            trouble: false,
        }))
    }

    /// Chooses one of `count` things.
    pub(super) fn below(&mut self, count: usize) -> usize {
        self.choices.index(count)
    }

    /// The choices of another world, which has nothing to do with this one.
    pub(super) fn fork(&mut self) -> Choices {
        Choices::from_seed(u64::from(self.choices.pick(u32::MAX)))
    }

    pub(super) fn next_writer(&mut self) -> WriterEpoch {
        self.next_writer += 1;
        WriterEpoch(self.next_writer)
    }

    /// The name of the stream of the next event.
    pub(super) fn next_name(&mut self) -> u8 {
        let planned = self.planned.take();
        planned.unwrap_or_else(|| u8::try_from(self.below(STREAMS)).expect("few"))
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

    pub(super) fn mistaken(&self) -> u64 {
        self.mistaken
    }

    /// Whether the home of the log has noted that it came, and has, or has scavenged, the last row of every other copy.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole_by(|home, last| home.has_had(last.mark))
    }

    /// The same, as far as the databases can tell. A row of a history that was given up may pass for one that was
    /// scavenged; the log goes on then, which is what has been accepted.
    pub(super) fn seems_whole(&self) -> bool {
        self.is_whole_by(|home, last| home.shows(&last.held()))
    }

    fn is_whole_by(&self, has: impl Fn(&Database, &Row) -> bool) -> bool {
        let home = &self.databases[self.home()];
        let mut lasts = self.databases.iter().filter_map(|other| other.rows.last());
        home.copy.has(LOG, self.newest()) && lasts.all(|last| has(home, last))
    }

    /// Whether a database takes the last row of another one for one that it had itself.
    fn is_mistaken(&self, place: usize) -> bool {
        let mut lasts = self.databases.iter().filter_map(|other| other.rows.last());
        lasts.any(|last| self.databases[place].mistakes(last))
    }

    pub(super) fn is_closed(&self, place: usize) -> bool {
        self.databases[place].closed
    }

    /// Changes a database.
    fn change(&mut self, place: usize, change: impl FnOnce(&mut Database)) {
        change(&mut self.databases[place]);
        self.past[place].push(State {
            database: self.databases[place].clone(),
            before: Some(self.present[place]),
        });
        self.present[place] = self.past[place].len() - 1;
        self.check();
    }

    /// A process starts, and connects to all databases. Returns its number.
    pub(super) fn start(&mut self) -> usize {
        self.processes.push(Notes {
            histories: self.histories.clone(),
            answered: None,
            is_surprised: false,
        });
        self.processes.len() - 1
    }

    /// The history of a database, as far as a process has noticed.
    pub(super) fn noticed(&self, process: usize, place: usize) -> u64 {
        self.processes[process].histories[place]
    }

    /// A process connects to a database. Then it asks all of them before it goes on.
    pub(super) fn notice(&mut self, process: usize, place: usize) {
        let history = self.histories[place];
        let notes = &mut self.processes[process];
        if notes.histories[place] != history {
            notes.histories[place] = history;
            (notes.answered, notes.is_surprised) = (None, false);
        }
    }

    /// A process connects to all databases that answer.
    pub(super) fn notice_all(&mut self, process: usize) {
        for place in 0..DATABASES {
            if !self.away[place] {
                self.notice(process, place);
            }
        }
    }

    /// A database does not answer a process that asks all of them, and need not wait for it.
    pub(super) fn misses(&mut self, process: usize) {
        self.processes[process].answered = Some([false; DATABASES]);
    }

    /// A database says to a process what it holds.
    pub(super) fn answers(&mut self, process: usize, place: usize) {
        let notes = &mut self.processes[process];
        if let Some(answered) = &mut notes.answered {
            answered[place] = true;
            if *answered == [true; DATABASES] {
                notes.answered = None;
            }
        }
    }

    /// Whether a process has noticed everything, and could ask all databases since. Such a one must not go on with a
    /// log that is lost.
    pub(super) fn knows(&self, process: usize) -> bool {
        let notes = &self.processes[process];
        notes.histories == self.histories && notes.answered.is_none() && !notes.is_surprised
    }

    /// Something happens while a call is under way.
    pub(super) fn disturb(&mut self) {
        if !self.trouble {
            return;
        }
        match self.below(60) {
            0..=36 => {}
            37..=39 => {
                let process = self.below(self.processes.len());
                self.notice_all(process);
            }
            40..=42 => self.away = [false; DATABASES],
            43 => self.leave(),
            44 => self.scavenge(),
            45 => self.lose(),
            _ => self.work(),
        }
    }

    /// A database does not answer for a while.
    pub(super) fn leave(&mut self) {
        let place = self.below(DATABASES);
        self.away[place] = true;
    }

    /// A batch of events of streams with these names is stored in a database, if the row that it names is the last one
    /// there. `knows` tells whether the process knows everything that it must know.
    pub(super) fn append(
        &mut self,
        place: usize,
        after: LogEnd,
        events: &[(RowMark, u8)],
        knows: bool,
    ) -> bool {
        let after = RowMark {
            position: after.position,
            writer: after.writer,
        };
        let refuses = self.away[place] || self.databases[place].closed;
        if refuses || self.databases[place].last() != after {
            return false;
        }
        assert!(
            !knows || self.seems_whole(),
            "acknowledged in a log that is lost, in {place}: {:#?}",
            self.databases
        );
        let last = self.log.last().map_or(RowMark::NONE, |row| row.mark);
        assert_eq!(
            last, after,
            "acknowledged beside the log, in {place}: {:#?}",
            self.databases
        );
        let mut database = self.databases[place].clone();
        let rows = events.iter();
        let rows = rows.map(|(mark, name)| database.append(*mark, *name));
        self.log.extend(rows);
        self.change(place, |present| *present = database);
        true
    }

    /// A process that was not told has appended to a copy that was open by mistake.
    pub(super) fn append_beside(&mut self, place: usize) {
        let writer = self.next_writer();
        let position = self.databases[place].last().position.next();
        let mark = RowMark { position, writer };
        self.change(place, |database| {
            database.append(mark, 0);
        });
    }

    /// A fail-over loses the row that closes the log in a database, and nobody notices.
    pub(super) fn open_again(&mut self, place: usize) {
        self.left_open[place] = true;
        self.change(place, |database| database.closed = false);
    }

    pub(super) fn put(&mut self, place: usize, map: &LogMap) {
        self.change(place, |database| database.copy.map = map.clone());
    }

    /// Scavenges a stream where the log is open.
    pub(super) fn scavenge(&mut self) {
        let home = self.home();
        if self.databases[home].closed || !self.seems_whole() {
            return;
        }
        let streams: Vec<u64> = self.databases[home].names.keys().copied().collect();
        if !streams.is_empty() {
            let (stream, events) = (streams[self.below(streams.len())], 1 + self.below(3));
            self.remove_oldest(stream, events);
        }
    }

    /// Removes the oldest events of a stream from the home of the log, but never the last row.
    pub(super) fn remove_oldest(&mut self, stream: u64, events: usize) {
        let home = self.home();
        let rows = &self.databases[home].rows;
        let but_the_last = rows.iter().take(rows.len().saturating_sub(1));
        let of_stream = but_the_last.filter(|row| row.stream == stream);
        let removed: Vec<Row> = of_stream.take(events).copied().collect();
        let Some(newest) = removed.last().map(|row| row.revision) else {
            return;
        };
        let marks: Vec<RowMark> = removed.iter().map(|row| row.mark).collect();
        self.gone.extend(&marks);
        self.change(home, |database| {
            database.rows.retain(|row| !removed.contains(row));
            let last = database.scavenges.entry(stream).or_default();
            *last = newest.max(*last);
            database.scavenged += u64::try_from(marks.len()).expect("few");
            database.removed.extend(&marks);
        });
    }

    /// A database loses its newest changes, or is set back, or forward, to any state that it has ever had, at times to
    /// one with rows that the log has lost, or that were given up, whether the home of the log can tell that or not.
    pub(super) fn lose(&mut self) {
        let place = self.below(DATABASES);
        let beside = self.moments_with(place, |home, row| !home.shows(&row.held()));
        let alike = self.moments_with(place, Database::mistakes);
        let moment = match self.below(4) {
            0 => {
                let mut moment = self.present[place];
                for _ in 0..self.below(5) {
                    moment = self.past[place][moment].before.unwrap_or(moment);
                }
                moment
            }
            1 if !beside.is_empty() => beside[self.below(beside.len())],
            2 if !alike.is_empty() => alike[self.below(alike.len())],
            _ => self.below(self.past[place].len()),
        };
        if self.may_restore(place, moment) {
            self.mistaken += u64::from(alike.contains(&moment));
            self.restore_to(place, moment);
        }
    }

    /// The moments of a database at which it had such a last row, as the home of the log sees it, and to which it may
    /// be restored.
    fn moments_with(&self, place: usize, is_such: impl Fn(&Database, &Row) -> bool) -> Vec<usize> {
        let home = &self.databases[self.home()];
        let is_one = |moment: &usize| {
            let last = self.past[place][*moment].database.rows.last();
            last.is_some_and(|row| is_such(home, row)) && self.may_restore(place, *moment)
        };
        (0..self.past[place].len()).filter(is_one).collect()
    }

    /// Whether the maps agree after such a loss. Two maps of one version are refused by everybody, and a newer map than
    /// that of all other databases, of a history that was given up, may lead processes which have noticed nothing and
    /// those which have to different databases: an operator must not restore that.
    fn may_restore(&self, place: usize, moment: usize) -> bool {
        let map = &self.past[place][moment].database.copy.map;
        let others = (0..DATABASES).filter(|other| *other != place);
        let others: Vec<&LogMap> = others
            .map(|other| &self.databases[other].copy.map)
            .collect();
        let newest = others.iter().map(|other| other.version()).max();
        let newest = newest.unwrap_or_default();
        let is_newer = map.version() > newest && !self.is_before(place, moment);
        let version = newest.max(map.version());
        let of_version = others.iter().copied().chain([map]);
        let of_version = of_version.filter(|map| map.version() == version);
        let of_version: Vec<&LogMap> = of_version.collect();
        !is_newer && of_version.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Whether the present state of a database has come out of this one.
    fn is_before(&self, place: usize, moment: usize) -> bool {
        let mut at = Some(self.present[place]);
        while let Some(state) = at {
            if state == moment {
                return true;
            }
            at = self.past[place][state].before;
        }
        false
    }

    pub(super) fn moment(&self, place: usize) -> usize {
        self.present[place]
    }

    pub(super) fn restore_to(&mut self, place: usize, moment: usize) {
        self.databases[place] = self.past[place][moment].database.clone();
        self.present[place] = moment;
        self.histories[place] += 1;
        self.break_off(place);
        self.begin_again();
    }

    /// What must be there after a loss: if the log seems whole in its home, what that one has; else all that any
    /// database has.
    fn begin_again(&mut self) {
        self.losses += 1;
        self.gone.clear();
        let home = self.home();
        let is_left = |place: usize| place != home && !self.databases[place].closed;
        self.left_open = std::array::from_fn(is_left);
        if self.seems_whole() {
            self.log.clone_from(&self.databases[home].rows);
            return;
        }
        let survives = |row: &Row| {
            let mut databases = self.databases.iter();
            databases.any(|database| database.has_had(row.mark))
        };
        let kept = self.log.iter().rposition(survives).map_or(0, |at| at + 1);
        self.log.truncate(kept);
    }

    /// What must never be: the log is open where it does not lie, though no loss has left it open there; or an event
    /// is in another stream than the one that it was appended to.
    fn check(&mut self) {
        let home = self.home();
        for (place, database) in self.databases.iter().enumerate() {
            for row in &database.rows {
                let name = database.names.get(&row.stream);
                assert_eq!(
                    name,
                    Some(&row.name),
                    "the stream of {row:?} in {place}: {:#?}",
                    self.databases
                );
            }
        }
        for (place, database) in self.databases.iter().enumerate() {
            if place == home || database.closed {
                self.left_open[place] = false;
            }
            assert!(
                place == home
                    || database.closed
                    || database.rows.is_empty()
                    || self.left_open[place],
                "open in {place} and {home}: {:#?}",
                self.databases
            );
        }
    }
}
