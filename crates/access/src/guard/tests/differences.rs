//! What a caller can infer of events that they may not see: two stores that differ in such events alone must give the
//! same answers.
//!
//! A random store is built twice. In the first comparison the hidden events stand at the same positions, and their
//! streams, types, tags, sizes and data differ: then every answer must be the same, byte by byte. In the second one
//! there are fewer of them: then the answers must be the same but for positions and checkpoints, which count all
//! events, and for the checkpoints that a subscription sends between events. The revisions of the links of a virtual
//! stream count its hidden links, and are left out of both.

use std::fmt::Write as _;

use gesta_core::{
    Checkpoint, Clock, ContentType, EventData, EventId, EventType, ExpectedRevision, Filter,
    Incarnation, LogId, Place, Position, Query, SubscribeFrom, SubscriptionMessage, Tag, Tags,
    Timestamp, log_of,
};
use gesta_memory::MemoryStore;

use super::super::*;
use super::world::*;
use crate::Scope;

/// The generator splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(n).expect("small")).expect("small")
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len())]
    }
}

/// The types of visible events, and then those of hidden ones alone.
const TYPES: [&str; 4] = ["Ordered", "Paid", "SalaryCut", "Dismissed"];
const TYPES_VISIBLE: usize = 2;
const TAGS: [&str; 3] = ["patient:alice", "patient:zoe", "red"];
const VISIBLE: [&str; 4] = ["orders-1", "orders-2", "open-1", "payroll-open"];
/// The beginnings of the names of hidden streams; some are those of visible ones.
const HIDDEN: [&str; 5] = [
    "payroll-",
    "orders-secret",
    "$mine-",
    "open-",
    "dismissals-",
];
const PREFIXES: [&str; 10] = [
    "",
    "payroll-",
    "payroll-m",
    "orders-",
    "orders-s",
    "open-",
    "$",
    "$$",
    "$$payroll-",
    "$user-",
];
const CATEGORIES: [&str; 4] = ["orders", "payroll", "open", "dismissals"];
const VIRTUAL: [&str; 8] = [
    "$ce-orders",
    "$ce-payroll",
    "$ce-open",
    "$ce-dismissals",
    "$et-SalaryCut",
    "$et-Dismissed",
    "$et-Ordered",
    "$streams",
];

struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Timestamp {
        Timestamp(1_000_000)
    }
}

/// A step that fills both stores.
enum Step {
    Visible(&'static str, Vec<EventData>),
    /// So many events for a hidden stream. The stores differ in what they are.
    Hidden {
        slot: usize,
        events: usize,
    },
}

fn some_event(random: &mut Random, types: &[&str]) -> EventData {
    let tags: Vec<Tag> = TAGS
        .iter()
        .filter(|_| random.one_in(3))
        .map(|tag| Tag::new(*tag).expect("valid"))
        .collect();
    EventData {
        tags: Tags::new(tags).expect("few"),
        id: Some(EventId(uuid::Uuid::from_u128(u128::from(random.next())))),
        data: "x".repeat(random.below(200)).into(),
        content_type: ContentType::Binary,
        ..EventData::json(EventType::new(random.of(types)).expect("valid"), "")
    }
}

/// A name that begins so, and whose log is this one.
fn hidden_name(random: &mut Random, begin: &str, logs: u16, log: LogId) -> StreamId {
    loop {
        let name = id(&format!("{begin}m{:04x}", random.next() & 0xffff));
        if log_of(&name, logs) == log {
            return name;
        }
    }
}

/// The name of a stream that holds something of a hidden one, or of many streams, and whose log is this one.
fn made_of(random: &mut Random, hidden: &StreamId, logs: u16, log: LogId) -> StreamId {
    loop {
        let own = random.next() & 0xffff;
        let name = id(&match random.below(6) {
            0 => format!("$snapshot-{hidden}"),
            1 => format!("$persistentsubscriptionconfig-{hidden}::m{own:04x}"),
            2 => format!("$persistentsubscription-{hidden}::m{own:04x}-parked"),
            3 => format!("$persistentsubscription-$ce-payroll::m{own:04x}-parked"),
            4 => format!("$persistentsubscription-$all::m{own:04x}-parked"),
            _ => format!("$timers-m{own:04x}"),
        });
        if log_of(&name, logs) == log {
            return name;
        }
    }
}

fn plan(random: &mut Random) -> Vec<Step> {
    let steps = 10 + random.below(60);
    (0..steps)
        .map(|_| match random.one_in(2) {
            true => {
                let events = 1 + random.below(2);
                let types = &TYPES[..TYPES_VISIBLE];
                let events = (0..events).map(|_| some_event(random, types)).collect();
                Step::Visible(random.of(&VISIBLE), events)
            }
            false => Step::Hidden {
                slot: random.below(HIDDEN.len()),
                events: match random.below(12) {
                    0 => 500 + random.below(1_500),
                    n => 1 + n % 3,
                },
            },
        })
        .collect()
}

struct Setting {
    logs: u16,
    incarnation: Incarnation,
    accounts: Vec<(StreamId, EventData)>,
    opens_system: bool,
}

const CLOSED: &str = r#"{"$acl":{"$r":[],"$w":[],"$d":[],"$mr":[],"$mw":[]}}"#;

/// Fills a store. `kept` tells how many of each thousand hidden events are stored.
async fn store(
    setting: &Setting,
    steps: &[Step],
    random: &mut Random,
    kept: usize,
) -> Arc<dyn EventStore> {
    let store = MemoryStore::with_config(gesta_memory::Config {
        logs: setting.logs,
        incarnation: setting.incarnation,
        clock: Arc::new(Stopped),
    });
    let append = |stream: StreamId, events: Vec<EventData>| {
        let store = store.clone();
        async move {
            let request = Append::to(stream, ExpectedRevision::Any, events);
            store.append(request).await.expect("stored");
        }
    };
    for (stream, account) in &setting.accounts {
        append(stream.clone(), vec![account.clone()]).await;
    }
    let system = if setting.opens_system {
        r#"{"$systemStreamAcl":{"$r":["$all"],"$w":["$all"]}}"#
    } else {
        "{}"
    };
    append(id("$settings"), vec![event(system)]).await;
    let mut names = Vec::new();
    for (slot, begin) in HIDDEN.iter().enumerate() {
        let log = LogId(u16::try_from(slot).expect("small") % setting.logs);
        let name = hidden_name(random, begin, setting.logs, log);
        let request = SetStreamMetadata {
            stream: name.clone(),
            expected: ExpectedRevision::Any,
            metadata: StreamMetadata::parse(CLOSED).expect("valid"),
        };
        store.set_stream_metadata(request).await.expect("set");
        names.push(name);
    }
    for step in steps {
        match step {
            Step::Visible(name, events) => append(id(name), events.clone()).await,
            Step::Hidden { slot, events } => {
                let mut stored = Vec::new();
                for _ in 0..*events {
                    let event = some_event(random, &TYPES);
                    if random.below(1_000) < kept {
                        stored.push(event);
                    }
                }
                let mut target = names[*slot].clone();
                if random.one_in(3) {
                    let log = log_of(&target, setting.logs);
                    target = made_of(random, &target, setting.logs, log);
                }
                let events = stored;
                if !events.is_empty() {
                    append(target, events).await;
                }
            }
        }
    }
    Arc::new(store)
}

fn some_filter(random: &mut Random) -> Filter {
    let mut query = || {
        let mut query = Query::default();
        if random.one_in(2) {
            query.types = vec![EventType::new(random.of(&TYPES)).expect("valid")];
        }
        if random.one_in(3) {
            query.tags = vec![Tag::new(random.of(&TAGS)).expect("valid")];
        }
        if random.one_in(3) {
            query.stream_prefixes = vec![random.of(&PREFIXES).to_owned()];
        }
        if random.one_in(6) {
            query.categories = vec![random.of(&CATEGORIES).to_owned()];
        }
        query
    };
    let first = query();
    let second = query();
    let own = Query {
        stream_prefixes: vec![random.of(&VISIBLE).to_owned()],
        ..Query::default()
    };
    match random.below(5) {
        0 => Filter::ALL,
        1 => Filter::query(first),
        2 => Filter {
            any_of: vec![first, second],
        },
        _ => Filter {
            any_of: vec![first, own],
        },
    }
}

/// A question that a caller asks.
#[derive(Debug, Clone)]
enum Question {
    All(ReadAll),
    List(ListStreams),
    Virtual(ReadStream, bool),
    Follow(Filter, Option<u64>),
    FollowVirtual(StreamId, Option<u64>),
}

fn some_question(random: &mut Random, setting: &Setting) -> Question {
    let limit = random.of(&[1, 1, 2, 3, 10, 1_000, 10_000]);
    let direction = random.of(&[
        gesta_core::Direction::Forwards,
        gesta_core::Direction::Backwards,
    ]);
    match random.below(11) {
        0..=4 => Question::All(ReadAll {
            direction,
            limit,
            filter: some_filter(random),
            from: match direction {
                gesta_core::Direction::Forwards => gesta_core::AllFrom::Start,
                gesta_core::Direction::Backwards => gesta_core::AllFrom::End,
            },
            only: None,
        }),
        5 | 6 => Question::List(ListStreams {
            prefix: random.of(&PREFIXES).to_owned(),
            after: random.one_in(3).then(|| id(random.of(&VISIBLE))),
            limit,
        }),
        7 | 8 if setting.logs == 1 => {
            let stream = id(random.of(&VIRTUAL));
            let request = match direction {
                gesta_core::Direction::Forwards => ReadStream::forwards(stream),
                gesta_core::Direction::Backwards => ReadStream::backwards(stream),
            };
            Question::Virtual(request.limit(limit), random.one_in(2))
        }
        9 if setting.logs == 1 => {
            let after = random.one_in(2).then(|| random.next() % 400);
            Question::FollowVirtual(id(random.of(&VIRTUAL)), after)
        }
        _ => {
            let after = random.one_in(2).then(|| random.next() % 100);
            Question::Follow(some_filter(random), after)
        }
    }
}

/// How much of an answer is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Compared {
    Everything,
    AllButPositions,
}

/// Writes an event as it is compared.
fn write_event(out: &mut String, event: &RecordedEvent, compared: Compared) {
    let mut event = event.clone();
    if event.stream.is_virtual() {
        event.revision = gesta_core::Revision(0);
        event.id = EventId(uuid::Uuid::nil());
    }
    if compared == Compared::AllButPositions {
        event.position = Position(0);
    }
    writeln!(out, "{event:?}").expect("written");
}

fn write_checkpoint(out: &mut String, checkpoint: &Checkpoint, compared: Compared) {
    if compared == Compared::Everything && matches!(checkpoint.place, Place::Logs(_)) {
        writeln!(out, "{checkpoint:?}").expect("written");
    }
}

/// The pages after which a question is answered enough.
const PAGES_MAX: usize = 12;

async fn answer(of: &Guarded, question: &Question, compared: Compared) -> String {
    let mut out = String::new();
    if let Err(error) = ask(&mut out, of, question, compared).await {
        writeln!(out, "{error} {:?}", error.kind()).expect("written");
    }
    out
}

async fn ask(
    out: &mut String,
    of: &Guarded,
    question: &Question,
    compared: Compared,
) -> Result<()> {
    match question.clone() {
        Question::All(mut request) => {
            for _ in 0..PAGES_MAX {
                let page = of.read_all(request.clone()).await?;
                for event in &page.events {
                    write_event(out, event, compared);
                }
                write_checkpoint(out, &page.next, compared);
                writeln!(out, "page ends: {}", page.end).expect("written");
                if page.end {
                    break;
                }
                request = request.from(gesta_core::AllFrom::Checkpoint(page.next));
            }
        }
        Question::List(mut request) => {
            for _ in 0..PAGES_MAX {
                let page = of.list_streams(request.clone()).await?;
                writeln!(out, "{page:?}").expect("written");
                match page.next {
                    None => break,
                    next => request.after = next,
                }
            }
        }
        Question::Virtual(mut request, resolved) => {
            for _ in 0..PAGES_MAX {
                let page = match resolved {
                    false => of.read_stream(request.clone()).await?,
                    true => {
                        let page =
                            gesta_core::EventStoreExt::read_stream_resolved(of, request.clone());
                        let page = page.await?;
                        let events = page.events.iter().map(|it| (*it.event).clone());
                        StreamPage {
                            events: events.collect(),
                            next: page.next,
                            end: page.end,
                            last_revision: page.last_revision,
                        }
                    }
                };
                for event in &page.events {
                    write_event(out, event, compared);
                }
                writeln!(out, "{} {}", page.end, page.next.is_some()).expect("written");
                let Some(next) = page.next.filter(|_| !page.end) else {
                    break;
                };
                request = request.from(gesta_core::StreamFrom::Revision(next));
            }
        }
        Question::Follow(filter, after) => {
            let from = match after {
                Some(after) if compared == Compared::Everything => {
                    let info = of.info().await?;
                    let at = info.heads.iter().map(|head| Position(head.0.min(after)));
                    let at = Checkpoint::logs(info.incarnation, at.collect());
                    SubscribeFrom::Checkpoint(at)
                }
                _ => SubscribeFrom::Start,
            };
            let to = SubscribeTo::All(filter);
            follow(out, of, Subscribe { to, from }, compared).await?;
        }
        Question::FollowVirtual(stream, after) => {
            let from = match after {
                Some(after) if compared == Compared::Everything && after % 7 == 0 => {
                    SubscribeFrom::Revision(gesta_core::Revision(1_000_000 + after))
                }
                _ => SubscribeFrom::Start,
            };
            let to = SubscribeTo::Stream(stream);
            follow(out, of, Subscribe { to, from }, compared).await?;
        }
    }
    Ok(())
}

async fn follow(
    out: &mut String,
    of: &Guarded,
    request: Subscribe,
    compared: Compared,
) -> Result<()> {
    let mut subscription = of.subscribe(request).await?;
    loop {
        match soon(subscription.next()).await.expect("running")? {
            SubscriptionMessage::Event { event, checkpoint } => {
                write_event(out, &event, compared);
                write_checkpoint(out, &checkpoint, compared);
            }
            SubscriptionMessage::Checkpoint(checkpoint) => {
                if compared == Compared::Everything {
                    writeln!(out, "checkpoint").expect("written");
                    write_checkpoint(out, &checkpoint, compared);
                }
            }
            // When that comes depends on how fast the test reads.
            SubscriptionMessage::FellBehind(_) => {}
            SubscriptionMessage::CaughtUp(checkpoint) => {
                writeln!(out, "caught up").expect("written");
                write_checkpoint(out, &checkpoint, compared);
                return Ok(());
            }
        }
    }
}

/// Accounts, and tokens of the user u: one for everything, and two with prefixes.
type Made = (Vec<(StreamId, EventData)>, Vec<String>);

/// Returns accounts, which are made once, because hashing their passwords takes long.
async fn accounts() -> Made {
    static MADE: tokio::sync::OnceCell<Made> = tokio::sync::OnceCell::const_new();
    MADE.get_or_init(make_accounts).await.clone()
}

async fn make_accounts() -> Made {
    let world = World::open().await;
    world.add("root", &["$admins"]).await.expect("added");
    world.add("u", &[]).await.expect("added");
    let mut tokens = Vec::new();
    for prefixes in [
        &[][..],
        &["orders-"],
        &["open-", "payroll-", "$ce-", "$streams"],
    ] {
        let scopes = [Scope::Read, Scope::Append];
        tokens.push(world.token("u", &scopes, prefixes).await.0);
    }
    let all = world
        .store
        .read_all(ReadAll::forwards())
        .await
        .expect("read");
    let accounts = all.events.into_iter().map(|event| {
        let data = EventData {
            id: Some(event.id),
            data: event.data,
            ..EventData::json(event.event_type, "")
        };
        (event.stream, data)
    });
    (accounts.collect(), tokens)
}

/// The callers of a store, in the order of the tokens.
async fn callers(store: Arc<dyn EventStore>, tokens: &[String]) -> (World, Vec<Guarded>) {
    let world = World::over(store, config()).await;
    let mut callers = Vec::new();
    for token in tokens {
        let caller = world.bearer(token).await.expect("loaded");
        callers.push(world.guard(caller));
    }
    (world, callers)
}

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Once a page of all events told by its length, its end and its checkpoint whether a hidden event matched the filter:
/// with `limit=1` and a filter for a hidden event or one's own, names were asked out letter by letter. Lists and
/// subscriptions told it by `next` and by checkpoints, and virtual streams by being there.
#[tokio::test]
async fn answers_do_not_depend_on_what_is_hidden() {
    let (accounts, tokens) = accounts().await;
    let seed = env("GESTA_SEED");
    let stores = env("GESTA_STORES").unwrap_or(20);
    let begin = seed.unwrap_or_else(rand::random);
    println!("GESTA_SEED={begin}");
    for n in 0..stores {
        let seed = begin.wrapping_add(n);
        let mut random = Random(seed);
        let setting = Setting {
            logs: random.of(&[1, 1, 3]),
            incarnation: Incarnation(uuid::Uuid::from_u128(7)),
            accounts: accounts.clone(),
            opens_system: random.one_in(2),
        };
        let steps = plan(&mut random);
        let kept = random.of(&[0, 300]);
        let first = store(&setting, &steps, &mut random, 1_000).await;
        let other = store(&setting, &steps, &mut random, 1_000).await;
        let fewer = store(&setting, &steps, &mut random, kept).await;
        let (_first, of_first) = callers(first, &tokens).await;
        let (_other, of_other) = callers(other, &tokens).await;
        let (_fewer, of_fewer) = callers(fewer, &tokens).await;
        for _ in 0..25 {
            let question = some_question(&mut random, &setting);
            let who = random.below(tokens.len());
            let told =
                |of: &'static str| format!("{of}: {question:?} of caller {who}, GESTA_SEED={seed}");
            for (others, compared) in [
                (&of_other, Compared::Everything),
                (&of_fewer, Compared::AllButPositions),
            ] {
                // Several logs are read in an order that depends on positions.
                if setting.logs > 1 && compared == Compared::AllButPositions {
                    continue;
                }
                let first = answer(&of_first[who], &question, compared).await;
                let other = answer(&others[who], &question, compared).await;
                let of = match compared {
                    Compared::Everything => "same positions",
                    Compared::AllButPositions => "fewer events",
                };
                assert_eq!(first, other, "{}", told(of));
            }
        }
    }
}

/// A filter by a tag alone is answered from an index, without a bound of positions. For a caller who may not see all
/// the page ends where it would end without hidden events that match.
#[tokio::test]
async fn a_page_ends_after_so_many_positions_whatever_stands_there() {
    let (accounts, tokens) = accounts().await;
    let mut answers = Vec::new();
    for seed in [1, 2] {
        let setting = Setting {
            logs: 1,
            incarnation: Incarnation(uuid::Uuid::from_u128(7)),
            accounts: accounts.clone(),
            opens_system: false,
        };
        let tagged = Step::Visible(
            "orders-1",
            vec![EventData {
                id: Some(EventId(uuid::Uuid::from_u128(9))),
                tags: Tags::new(vec![Tag::new("red").expect("valid")]).expect("few"),
                ..EventData::json(EventType::new("Ordered").expect("valid"), "{}")
            }],
        );
        let hidden = || Step::Hidden {
            slot: 0,
            events: 9_000,
        };
        let steps = [
            hidden(),
            hidden(),
            hidden(),
            hidden(),
            hidden(),
            hidden(),
            tagged,
        ];
        let store = store(&setting, &steps, &mut Random(seed), 1_000).await;
        let (_world, callers) = callers(store, &tokens).await;
        let red = Filter::query(Query {
            tags: vec![Tag::new("red").expect("valid")],
            ..Query::default()
        });
        let question = Question::All(ReadAll::forwards().limit(1).filter(red));
        let answer = answer(&callers[0], &question, Compared::Everything).await;
        assert_eq!(answer.matches("page ends: false").count(), 1, "{answer}");
        assert_eq!(answer.matches("orders-1").count(), 1, "{answer}");
        assert!(answer.contains("Position(50000)"), "{answer}");
        answers.push(answer);
    }
    assert_eq!(answers[0], answers[1]);
}

/// What happened: while a subscriber caught up with several logs, these took turns by pages, which ended after so many
/// events that matched the filter, and checkpoints of different logs came in an order that depended on where hidden
/// events matched. Goal: neither does. The matching events that this caller may not see change nothing.
#[tokio::test]
async fn the_order_of_logs_does_not_depend_on_what_is_hidden() {
    let (accounts, tokens) = accounts().await;
    for matching in [&[][..], &[1_100], &[1_800], &[700, 999, 2_400]] {
        let setting = Setting {
            logs: 2,
            incarnation: Incarnation(uuid::Uuid::from_u128(7)),
            accounts: accounts.clone(),
            opens_system: false,
        };
        let mut random = Random(1);
        let store = store(&setting, &[], &mut random, 1_000).await;
        for (log, end) in [(0, 2_500), (1, 1_500)] {
            let shown = hidden_name(&mut random, "orders-", setting.logs, LogId(log));
            let hidden = hidden_name(&mut random, "others-", setting.logs, LogId(log));
            let begun = store.info().await.expect("open").heads[usize::from(log)];
            for position in begun.0 + 1..=end {
                let (stream, event_type) = match (log, position) {
                    (0, 600) => (&shown, "Ordered"),
                    (0, _) if matching.contains(&position) => (&hidden, "SalaryCut"),
                    _ => (&hidden, "Ordered"),
                };
                let event = EventData::json(EventType::new(event_type).expect("valid"), "{}");
                let request = Append::to(stream.clone(), ExpectedRevision::Any, vec![event]);
                store.append(request).await.expect("stored");
            }
        }
        let (_world, callers) = callers(store, &tokens).await;
        let types = Query {
            types: vec![EventType::new("SalaryCut").expect("valid")],
            ..Query::default()
        };
        let own = Query {
            stream_prefixes: vec!["orders-".to_owned()],
            ..Query::default()
        };
        let filter = Filter::any_of([types, own]);
        let at = vec![Position(950), Position(100)];
        let at = SubscribeFrom::Checkpoint(Checkpoint::logs(setting.incarnation, at));
        // From the second place the first log comes to its next checkpoint soon after the other one.
        let from_start = [
            ("event", [600, 0]),
            ("checkpoint", [1_000, 0]),
            ("checkpoint", [1_000, 1_000]),
            ("checkpoint", [2_000, 1_000]),
            ("caught up", [2_500, 1_500]),
        ];
        let from_there = [
            ("checkpoint", [1_000, 100]),
            ("checkpoint", [1_000, 1_000]),
            ("checkpoint", [2_000, 1_000]),
            ("caught up", [2_500, 1_500]),
        ];
        for (from, expected) in [(SubscribeFrom::Start, &from_start[..]), (at, &from_there)] {
            let to = SubscribeTo::All(filter.clone());
            let subscribed = callers[1].subscribe(Subscribe { to, from }).await;
            let told = places_told(&mut subscribed.expect("allowed")).await;
            assert_eq!(told, expected, "{matching:?} match");
        }
    }
}

/// Returns the messages up to the one that the subscription has caught up, with the places in two logs.
async fn places_told(subscription: &mut Subscription) -> Vec<(&'static str, [u64; 2])> {
    let mut told: Vec<(&str, [u64; 2])> = Vec::new();
    while told.last().is_none_or(|(what, _)| *what != "caught up") {
        let message = soon(subscription.next()).await.expect("running");
        let (what, checkpoint) = match message.expect("running") {
            SubscriptionMessage::Event { checkpoint, .. } => ("event", checkpoint),
            SubscriptionMessage::Checkpoint(checkpoint) => ("checkpoint", checkpoint),
            SubscriptionMessage::CaughtUp(checkpoint) => ("caught up", checkpoint),
            SubscriptionMessage::FellBehind(checkpoint) => ("fell behind", checkpoint),
        };
        let Place::Logs(at) = checkpoint.place else {
            panic!("not of all events");
        };
        told.push((what, [at[0].0, at[1].0]));
    }
    told
}
