//! Moves that die, race and are undone, while writers append by maps that may be old: a model of the databases.

use gesta_core::{DatabaseId, NamedDatabase};
use proptest::prelude::*;

use super::*;

const LOG: LogId = LogId(1);
const DATABASES: usize = 3;

/// What one database holds: the events of the log by number, in order of position.
#[derive(Clone, Debug)]
struct Database {
    map: LogMap,
    closed: bool,
    rows: Vec<u32>,
}

#[derive(Debug)]
struct World {
    databases: Vec<Database>,
    acknowledged: Vec<u32>,
    next: u32,
}

impl World {
    fn new() -> Self {
        let named = |n| NamedDatabase {
            id: DatabaseId::random(),
            name: format!("h{n}"),
        };
        let map = LogMap::new(4, (0..DATABASES).map(named).collect()).expect("valid");
        let database = Database {
            map,
            closed: false,
            rows: Vec::new(),
        };
        Self {
            databases: vec![database; DATABASES],
            acknowledged: Vec::new(),
            next: 0,
        }
    }

    fn facts(&self) -> Vec<Fact> {
        let fact = |database: &Database| Fact {
            map: database.map.clone(),
            closed: database.closed,
            last: Position(u64::try_from(database.rows.len()).expect("few")),
        };
        self.databases.iter().map(fact).collect()
    }

    fn newest(&self) -> &LogMap {
        let maps = self.databases.iter().map(|database| &database.map);
        maps.max_by_key(|map| map.version()).expect("some")
    }

    /// A process appends where it believes the log to be; `known` is how many rows it believes the log to have.
    fn append(&mut self, place: usize, known: usize) {
        let database = &mut self.databases[place];
        if database.closed || database.rows.len() != known {
            return;
        }
        database.rows.push(self.next);
        self.acknowledged.push(self.next);
        self.next += 1;
    }

    /// What the databases make of a step, which may have been decided long ago. False if it is refused.
    fn perform(&mut self, step: &Step) -> bool {
        match step {
            Step::Put {
                place,
                expected,
                map,
            } => {
                let database = &mut self.databases[*place];
                if database.map.version() != *expected {
                    return false;
                }
                database.map = (**map).clone();
            }
            Step::Close { place, expected } => {
                let database = &mut self.databases[*place];
                if database.map.version() != *expected {
                    return false;
                }
                database.closed = true;
            }
            Step::Open { place, expected } => {
                let database = &mut self.databases[*place];
                if database.map.version() != *expected {
                    return false;
                }
                database.closed = false;
            }
            Step::Copy { from, to, after } => {
                let after = usize::try_from(after.0).expect("few");
                let page: Vec<u32> = self.databases[*from]
                    .rows
                    .iter()
                    .skip(after)
                    .take(3)
                    .copied()
                    .collect();
                let database = &mut self.databases[*to];
                // A row that is there already, or a log that is open, refuses the page.
                if database.rows.len() != after || !database.closed {
                    return false;
                }
                database.rows.extend(page);
            }
            Step::Compare { from, to } => {
                let (from, to) = (&self.databases[*from].rows, &self.databases[*to].rows);
                return from.starts_with(to);
            }
            Step::Done => {}
        }
        true
    }

    fn check(&self) {
        let mut open = Vec::new();
        for (place, database) in self.databases.iter().enumerate() {
            let holds = !database.rows.is_empty();
            if holds && !database.closed {
                open.push(place);
            }
        }
        assert!(open.len() <= 1, "open in {open:?}: {self:#?}");
        if let [place] = open.as_slice() {
            assert_eq!(self.databases[*place].rows, self.acknowledged);
        }
    }

    /// Drives to a goal without interruption.
    fn finish(&mut self, goal: Goal) -> Result<()> {
        let mut compared = false;
        for _ in 0..10_000 {
            let step = next_step(LOG, goal, &self.facts(), compared)?;
            compared = matches!(step, Step::Compare { .. });
            if step == Step::Done {
                return Ok(());
            }
            assert!(self.perform(&step), "alone: {step:?}");
            self.check();
        }
        panic!("never ends: {self:#?}");
    }
}

/// Somebody who moves: what he has looked at, which may be old.
#[derive(Clone, Debug)]
struct Mover {
    goal: Goal,
    step: Option<Step>,
    compared: bool,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    /// A process appends, where the map of this version says that the log is.
    Append { believes: usize },
    /// A mover looks and decides.
    Look(usize),
    /// A mover does what it has decided.
    Do(usize),
    /// A mover dies, and comes back with a goal.
    Begin(usize, Goal),
}

fn goal() -> impl Strategy<Value = Goal> {
    prop_oneof![
        3 => (0..DATABASES).prop_map(Goal::Move),
        1 => Just(Goal::Undo),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..DATABASES).prop_map(|believes| Act::Append { believes }),
        4 => (0..2_usize).prop_map(Act::Look),
        4 => (0..2_usize).prop_map(Act::Do),
        1 => (0..2_usize, goal()).prop_map(|(mover, goal)| Act::Begin(mover, goal)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    /// Goal: whatever dies and races, the log is never open in two places, and no event is lost or doubled; whoever
    /// comes last reaches his goal.
    #[test]
    fn no_log_is_open_in_two_places(acts in prop::collection::vec(act(), 0..120), last in goal()) {
        let mut world = World::new();
        let mover = Mover { goal: Goal::Undo, step: None, compared: false };
        let mut movers = [mover.clone(), mover];
        let home = world.newest().home(LOG).expect("some");
        for _ in 0..5 {
            world.append(home, world.acknowledged.len());
        }
        for act in acts {
            match act {
                // Nobody believes that a log is where it has never been: only where it holds rows can it be open.
                Act::Append { believes } if !world.databases[believes].rows.is_empty() => {
                    world.append(believes, world.databases[believes].rows.len());
                }
                Act::Append { .. } => {}
                Act::Look(at) => {
                    let mover = &mut movers[at];
                    let step = next_step(LOG, mover.goal, &world.facts(), mover.compared);
                    mover.step = step.ok();
                    mover.compared = false;
                }
                Act::Do(at) => {
                    let mover = &mut movers[at];
                    if let Some(step) = mover.step.take() {
                        let done = world.perform(&step);
                        mover.compared = done && matches!(step, Step::Compare { .. });
                    }
                }
                Act::Begin(at, goal) => movers[at] = Mover { goal, step: None, compared: false },
            }
            world.check();
        }
        world.finish(Goal::Undo).expect("what was begun is undone");
        world.finish(last).expect("free");
        let home = world.newest().home(LOG).expect("some");
        prop_assert!(!world.databases[home].closed);
        prop_assert_eq!(&world.databases[home].rows, &world.acknowledged);
        if let Goal::Move(to) = last {
            prop_assert_eq!(home, to);
        }
    }
}

#[test]
fn another_log_or_another_way_waits_its_turn() {
    let mut world = World::new();
    let moving = Moving {
        log: LogId(2),
        to: 0,
    };
    let announced = world.newest().announced(moving).expect("may go");
    for database in &mut world.databases {
        database.map = announced.clone();
    }
    let error = next_step(LOG, Goal::Move(0), &world.facts(), false).expect_err("busy");
    assert!(
        error
            .to_string()
            .contains("log 2 is being moved to database 1 of 3"),
        "{error}"
    );
    assert!(next_step(LOG, Goal::Undo, &world.facts(), false).is_err());
    assert!(next_step(LogId(2), Goal::Move(1), &world.facts(), false).is_err());
    assert!(next_step(LogId(9), Goal::Undo, &world.facts(), false).is_err());
}

/// Goal: a fail-over of the old database that loses the row which closed the log there leaves it open only until the
/// next look.
#[test]
fn a_log_that_a_fail_over_has_opened_again_is_closed() {
    let mut world = World::new();
    let home = world.newest().home(LOG).expect("some");
    for known in 0..5 {
        world.append(home, known);
    }
    world.finish(Goal::Move(2)).expect("free");
    world.databases[home].closed = false;
    let step = next_step(LOG, Goal::Move(2), &world.facts(), false).expect("a step");
    let expected = world.newest().version();
    assert_eq!(
        step,
        Step::Close {
            place: home,
            expected
        }
    );
    world.finish(Goal::Undo).expect("free");
    assert!(world.databases[home].closed);
}
