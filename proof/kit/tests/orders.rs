//! The two ways in which answers are held against each other say the same as trying every order, and planted histories
//! are found.

#![allow(clippy::unwrap_used, reason = "tests")]

use gesta_kit::depth;
use gesta_kit::faulty::Random;
use gesta_kit::history::{Entry, NEVER, SeatEvent, Seats};
use gesta_kit::judge::order::{Misfit, Places, Statement, misfits};
use gesta_kit::judge::search::{Effect, Search, Span, search};
use gesta_kit::judge::seats;
use gesta_kit::verdict::Kind;

/// Places of the logs of these tests.
const END: u64 = 3;

fn random() -> Random {
    let seed = depth::seed();
    eprintln!("GESTA_SEED={seed}");
    Random::new(seed)
}

/// The times of so many operations, all different.
fn times(count: usize, random: &mut Random) -> Vec<(u64, u64)> {
    let mut times: Vec<u64> = (1..=2 * count as u64).collect();
    for end in (2..=times.len()).rev() {
        times.swap(end - 1, random.below(end));
    }
    let pairs = times.chunks(2);
    pairs
        .map(|pair| (pair[0].min(pair[1]), pair[0].max(pair[1])))
        .collect()
}

fn during(first: u64, last: u64) -> Places<'static> {
    Places::During((first, last))
}

fn change(from: u64) -> Places<'static> {
    let to = from + 1;
    Places::Change { from, to }
}

fn statement((began, ended): (u64, u64), places: Places<'static>) -> Statement<'static> {
    Statement {
        began,
        ended,
        caller: None,
        places,
    }
}

/// Goal: what does not fit the order of a log is told for what it is, and once.
#[test]
fn statements_are_held_against_a_log() {
    let named = |name: &str, wanted: Option<Misfit>, all: &[((u64, u64), Places<'static>)]| {
        let all: Vec<_> = all
            .iter()
            .map(|(times, at)| statement(*times, *at))
            .collect();
        let found: Vec<Misfit> = misfits(&all).into_iter().map(|(_, why)| why).collect();
        assert_eq!(found, Vec::from_iter(wanted), "{name}");
    };
    let (stale, early) = (Misfit::Stale { known: 0 }, Misfit::Early { change: 0 });
    let stored = ((3, 6), change(0));
    named("read after it", None, &[stored, ((7, 8), during(1, 9))]);
    named("read before it", None, &[stored, ((1, 2), during(0, 0))]);
    named("at the same time", None, &[stored, ((4, 5), during(0, 0))]);
    let read = ((7, 8), during(0, 0));
    named("a stale read", Some(stale), &[stored, read]);
    let read = ((1, 2), during(1, 9));
    named("out of the future", Some(early), &[stored, read]);
    let later = ((7, 8), change(0));
    named("another order", Some(early), &[later, ((1, 2), change(1))]);
    let read = ((1, 2), during(7, 3));
    named("at the end of nothing", None, &[read]);
    let none = Places::Any { of: &[], before: 9 };
    named("true nowhere", Some(Misfit::Never), &[((1, 2), none)]);
    let of = &[(0, 0), (2, 2)];
    let again = |before| ((7, 8), Places::Any { of, before });
    named("so again", None, &[stored, again(9)]);
    named("too late", Some(stale), &[stored, again(2)]);
}

/// Goal: who keeps the order of what is handed over may not answer the later one by less, whenever the answers come.
#[test]
fn the_order_of_a_caller_is_kept() {
    let of_caller = |caller, first: u64, second: u64| {
        let one = |times, place| Statement {
            caller: Some(caller),
            ..statement(times, during(place, place))
        };
        let other = Statement {
            caller: Some(7),
            ..one((2, 3), second)
        };
        misfits(&[one((1, 9), first), other])
    };
    assert_eq!(of_caller(7, 1, 1), []);
    assert_eq!(of_caller(8, 2, 1), []);
    let earlier = Misfit::Overtaken { earlier: 0 };
    assert_eq!(of_caller(7, 2, 1), [(1, earlier)]);
}

/// Goal: the quick check of a log says the same as trying every order.
#[test]
fn statements_agree_with_trying_every_order() {
    static STRETCHES: [&[(u64, u64)]; 4] =
        [&[(0, 0), (2, 2)], &[(1, 1), (3, 3)], &[(0, 1), (3, 3)], &[]];
    let (mut random, mut wrong) = (random(), 0);
    let count = depth::count(20_000, 500_000);
    for _ in 0..count {
        let statements = 1 + random.below(5);
        let mut free: Vec<u64> = (0..END).collect();
        let mut statements: Vec<Statement<'static>> = times(statements, &mut random)
            .into_iter()
            .map(|times| {
                let first = random.number() % (END + 1);
                let last = first + random.number() % (END + 1 - first);
                let places = match random.below(3) {
                    0 if !free.is_empty() => change(free.swap_remove(random.below(free.len()))),
                    1 => Places::Any {
                        of: STRETCHES[random.below(4)],
                        before: 1 + random.number() % (END + 1),
                    },
                    _ => during(first, last),
                };
                statement(times, places)
            })
            .collect();
        for one in &mut statements {
            if matches!(one.places, Places::Change { .. }) && random.chance(0.2) {
                one.ended = u64::MAX;
            }
        }
        let possible = every_place(&statements, 0, 0);
        wrong += usize::from(!possible);
        let found = misfits(&statements);
        assert_eq!(found.is_empty(), possible, "{statements:?} {found:?}");
    }
    assert!(wrong > count / 5 && wrong < count * 19 / 20, "{wrong}");
}

/// True if the statements not in `done` can follow in some order from this end of the log on. Where nobody has said who
/// changes the log, it changes by itself.
fn every_place(all: &[Statement<'_>], done: u32, end: u64) -> bool {
    let left = |at: usize| done >> at & 1 == 0;
    if (0..all.len()).all(|at| !left(at)) {
        return true;
    }
    let changes_here =
        |one: &Statement<'_>| matches!(one.places, Places::Change { from, .. } if from == end);
    if end < END && !all.iter().any(changes_here) && every_place(all, done, end + 1) {
        return true;
    }
    (0..all.len()).filter(|at| left(*at)).any(|at| {
        let one = &all[at];
        let overdue = (0..all.len()).any(|other| left(other) && all[other].ended < one.began);
        let is_within = |stretch: &(u64, u64)| (stretch.0..=stretch.1).contains(&end);
        let next = match one.places {
            Places::During(stretch) => is_within(&stretch).then_some(end),
            Places::Any { of, before } => (of.iter().any(is_within) && end < before).then_some(end),
            Places::Change { from, to } => (from == end).then_some(to),
        };
        !overdue && next.is_some_and(|end| every_place(all, done | 1 << at, end))
    })
}

/// Goal: the search says the same as trying every order, of seats, and of registers that many write.
#[test]
fn searches_agree_with_trying_every_order() {
    let mut random = random();
    let seat = |reserved: &bool, (needs, becomes): &(bool, bool)| {
        let effect = match needs == becomes {
            true => Effect::Nothing,
            false => Effect::Becomes(*becomes),
        };
        (*reserved == *needs).then_some(effect)
    };
    // Reads, writes of values that were there before, and comparisons.
    let compare = |held: &usize, (needs, becomes): &(Option<usize>, usize)| {
        let effect = match *needs == Some(*becomes) {
            true => Effect::Nothing,
            false => Effect::Becomes(*becomes),
        };
        let is_true = needs.is_none_or(|needs| needs == *held);
        is_true.then_some(effect)
    };
    let (mut wrong, count) = (0, depth::count(20_000, 500_000));
    for _ in 0..count {
        let operations = 1 + random.below(5);
        let spans = times(operations, &mut random);
        let seats = spans.iter().map(|times| {
            let (needs, becomes) = (random.chance(0.5), random.chance(0.5));
            // An unknown outcome is that of a change.
            let is_open = random.chance(0.3);
            let what = (needs, if is_open { !needs } else { becomes });
            span(*times, is_open, what)
        });
        let seats: Vec<_> = seats.collect();
        wrong += usize::from(!agrees(&seats, false, seat));
        let registers = spans.iter().map(|times| {
            let (value, is_open) = (random.below(3), random.chance(0.3));
            let needs = random.chance(0.7).then(|| random.below(3));
            // Some are reads.
            let becomes = match needs {
                Some(needs) if !is_open && random.chance(0.5) => needs,
                _ => value,
            };
            span(*times, is_open, (needs, becomes))
        });
        let registers: Vec<_> = registers.collect();
        wrong += usize::from(!agrees(&registers, 0, compare));
    }
    assert!(wrong > count / 4 && wrong < count * 19 / 10, "{wrong}");
}

fn span<T>((call, answered): (u64, u64), is_open: bool, what: T) -> Span<T> {
    Span {
        call,
        answered: (!is_open).then_some(answered),
        what,
    }
}

/// Whether there is an order, which both ways must say.
fn agrees<T: Eq + std::hash::Hash + std::fmt::Debug, S: Clone + Eq + std::hash::Hash>(
    spans: &[Span<T>],
    initial: S,
    step: impl Fn(&S, &T) -> Option<Effect<S>>,
) -> bool {
    let possible = every_order(spans, 0, &initial, &step);
    let found = search(spans, initial, &step);
    assert_eq!(found == Search::Fits, possible, "{spans:?} {found:?}");
    possible
}

/// True if the operations not in `done` can follow in some order.
fn every_order<T, S: Clone>(
    spans: &[Span<T>],
    done: u32,
    state: &S,
    step: &impl Fn(&S, &T) -> Option<Effect<S>>,
) -> bool {
    let left = |at: usize| done >> at & 1 == 0;
    if (0..spans.len()).all(|at| !left(at) || spans[at].answered.is_none()) {
        return true;
    }
    (0..spans.len()).filter(|at| left(*at)).any(|at| {
        let overdue = |other: usize| {
            let ended = spans[other].answered;
            left(other) && ended.is_some_and(|ended| ended < spans[at].call)
        };
        let is_overdue = (0..spans.len()).any(overdue);
        let next = match step(state, &spans[at].what) {
            Some(Effect::Nothing) => Some(state.clone()),
            Some(Effect::Becomes(state)) => Some(state),
            None => None,
        };
        let next = next.filter(|_| !is_overdue);
        next.is_some_and(|state| every_order(spans, done | 1 << at, &state, step))
    })
}

/// Goal: many outcomes that are unknown do not keep a search from its end, as long as they ask for the same.
#[test]
fn equal_operations_without_an_answer_stand_for_each_other() {
    let open = |call, what| Span {
        call,
        answered: None,
        what,
    };
    let step = |held: &u64, what: &(u64, bool)| match *what {
        (value, true) => Some(Effect::Becomes(value)),
        (value, false) => (value == *held).then_some(Effect::Nothing),
    };
    let mut spans: Vec<Span<(u64, bool)>> = (1..2_000)
        .map(|call| open(call, (call % 2, true)))
        .collect();
    spans.push(Span {
        call: 3_000,
        answered: Some(3_001),
        what: (1, false),
    });
    assert_eq!(search(&spans, 0, step), Search::Fits);
    spans[1_999].what = (2, false);
    assert_eq!(search(&spans, 0, step), Search::Impossible { at: 1_999 });
    let many = (0..200).map(|call| open(call, (call, true)));
    assert_eq!(
        search(&many.collect::<Vec<_>>(), 0, step),
        Search::Undecided
    );
}

/// Requests out of `reserved 1-2, maybe reserved 3`: what came of each, and when it began and ended.
fn parsed(history: &str) -> Vec<Entry> {
    let parse = |request: &str| {
        let (what, times) = request.rsplit_once(' ').unwrap();
        let what = match what {
            "reserved" => SeatEvent::Reserved,
            "cancelled" => SeatEvent::Cancelled,
            "seen reserved" => SeatEvent::SeenReserved,
            "seen free" => SeatEvent::SeenFree,
            "maybe reserved" => SeatEvent::MaybeReserved,
            _ => panic!("{what}"),
        };
        let (begin, end) = times.split_once('-').unwrap_or((times, ""));
        Entry {
            place: 1,
            begin: begin.parse().unwrap(),
            end: end.parse().unwrap_or(NEVER),
            what,
        }
    };
    history.split(", ").map(parse).collect()
}

/// Goal: what is wrong is named by its kind; at the same time any order is allowed, and an unknown outcome either way.
/// In particular: a seat that is held twice, and a stale answer.
#[test]
fn histories_of_seats_are_judged() {
    let future = "seen reserved 1-2, maybe reserved 3";
    for (history, wanted) in [
        (
            "seen free 1-2, reserved 3-4, cancelled 5-6, reserved 7-8",
            None,
        ),
        ("reserved 1-2, reserved 3-4", Some(Kind::HeldTwice)),
        ("cancelled 1-2", Some(Kind::CancelledTwice)),
        ("reserved 1-2, seen free 3-4", Some(Kind::Stale)),
        ("reserved 1-10, seen free 2-9, seen reserved 3-8", None),
        (
            "reserved 1-10, seen reserved 2-3, seen free 4-5",
            Some(Kind::Stale),
        ),
        ("maybe reserved 1, seen free 3-4, seen reserved 5-6", None),
        (
            "maybe reserved 1, seen reserved 3-4, seen free 5-6",
            Some(Kind::Stale),
        ),
        (future, Some(Kind::Stale)),
    ] {
        let mut all = Seats::new(3);
        all.create(0, gesta_kit::history::Creation::Created);
        parsed(history)
            .into_iter()
            .for_each(|entry| all.record(entry));
        let found = seats::judge(&all, 100, |_, seat| format!("seat {seat}"));
        let kinds: Vec<Kind> = found.counts().into_keys().collect();
        assert_eq!(kinds, Vec::from_iter(wanted), "{history}: {found}");
        assert_eq!(found.keys, 1);
        // The same out of a file.
        let operations = all.operations(|_, seat| format!("seat-{seat}"));
        let found = seats::seat(&operations);
        assert_eq!(found == Search::Fits, wanted.is_none(), "{history}");
        // What the last look shows is told as a loss.
        if wanted == Some(Kind::Stale) {
            let found = seats::judge(&all, 0, |_, seat| format!("seat {seat}"));
            assert_eq!(found.count(Kind::Lost), 1, "{history}: {found}");
        }
    }
}
