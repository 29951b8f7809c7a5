//! Random operations. Claims, retries and checkpoints are relative to what was done before, so that
//! most of them mean something.

use gesta_core::{DeleteKind, Direction, Filter, Query};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::support::{categories, prefixes, tags, types};

/// The names of streams: two of one log, and others that look alike.
pub(super) const STREAMS: [&str; 6] = ["a-{k}", "b-{k}", "a-1", "A-1", "größe", "a_1%"];
/// The types of events.
pub(super) const TYPES: [&str; 3] = ["added", "removed", "Added"];
/// The tags of events.
pub(super) const TAGS: [&str; 3] = ["red", "big", "sku:1"];
/// The metadata documents: all but the last two are valid.
const DOCUMENTS: [&str; 7] = [
    "{}",
    r#"{ "owner":"x" }"#,
    r#"{"$maxCount":2}"#,
    r#"{"$tb":3}"#,
    r#"{"$maxCount":3,"$tb":1,"$maxAge":1000000000}"#,
    "[]",
    r#"{"$maxCount":0}"#,
];

/// A claim about a stream.
#[derive(Debug, Clone, Copy)]
pub(super) enum Claim {
    Any,
    NoStream,
    StreamExists,
    /// The last revision of the model, plus this number.
    Last(i64),
}

/// Whether events carry ids.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Ids {
    Given,
    Missing,
}

/// The events for one stream.
#[derive(Debug, Clone)]
pub(super) struct AppendPart {
    pub(super) stream: &'static str,
    pub(super) claim: Claim,
    pub(super) events: Vec<Event>,
    pub(super) ids: Ids,
}

#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) event_type: &'static str,
    pub(super) tags: Vec<&'static str>,
    pub(super) data: Vec<u8>,
}

/// How an earlier append is changed when it is sent again.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    Nothing,
    /// The append has only its first event.
    Shorter,
    /// The append has one more new event.
    Longer,
    /// The append has another claim.
    Claim(Claim),
    /// The append lacks its last stream.
    FewerStreams,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum From {
    Start,
    End,
    /// A place among what the model holds now, in hundredths; it may be a little above the end.
    Within(u64),
}

#[derive(Debug, Clone)]
pub(super) enum Operation {
    Append(Vec<AppendPart>),
    /// Appends to one stream if others are as these claims say; the name may be that of a metadata stream.
    AppendIf(AppendPart, Vec<(String, Claim)>),
    /// Sends an earlier append again, counted back from the newest.
    Again(usize, Change),
    Delete(&'static str, Claim, DeleteKind),
    SetMetadata(&'static str, Claim, &'static str),
    /// Appends to `$$name`.
    AppendMetadata(&'static str, Claim, &'static str, Ids),
    Metadata(&'static str),
    ReadStream {
        stream: String,
        from: From,
        direction: Direction,
        limit: usize,
    },
    ReadAll {
        from: From,
        direction: Direction,
        limit: usize,
        filter: Filter,
    },
    List(&'static str, usize),
}

/// Generates the operations of one round.
pub(super) fn operations() -> impl Strategy<Value = Vec<Operation>> {
    vec(operation(), 1..60)
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::{
        Again, Append, AppendIf, AppendMetadata, Delete, List, Metadata, ReadAll, ReadStream,
        SetMetadata,
    };
    prop_oneof![
        12 => vec(part(), 1).prop_map(Append),
        3 => vec(part(), 2..4).prop_map(Append),
        3 => (part(), vec((name(), claim()), 1..3)).prop_map(|(part, conditions)| AppendIf(part, conditions)),
        5 => (0..6_usize, change()).prop_map(|(back, change)| Again(back, change)),
        2 => (a_stream(), claim(), kind()).prop_map(|(s, c, k)| Delete(s, c, k)),
        2 => (a_stream(), claim(), select(&DOCUMENTS[..5])).prop_map(|(s, c, d)| SetMetadata(s, c, d)),
        1 => (a_stream(), claim(), select(&DOCUMENTS[..]), ids())
            .prop_map(|(s, c, d, i)| AppendMetadata(s, c, d, i)),
        1 => a_stream().prop_map(Metadata),
        4 => (name(), from(), direction(), 1..8_usize).prop_map(|(stream, from, direction, limit)| {
            ReadStream { stream, from, direction, limit }
        }),
        3 => (from(), direction(), 1..20_usize, filter()).prop_map(|(from, direction, limit, filter)| {
            ReadAll { from, direction, limit, filter }
        }),
        1 => (select(&["", "a", "a-", "$", "$$a", "gr", "%", "_"][..]), 1..5_usize)
            .prop_map(|(prefix, limit)| List(prefix, limit)),
    ]
}

fn a_stream() -> impl Strategy<Value = &'static str> {
    select(&STREAMS[..])
}

/// Generates the name of a stream, now and then that of its metadata stream.
fn name() -> impl Strategy<Value = String> {
    (a_stream(), prop::bool::weighted(0.2)).prop_map(|(stream, metadata)| {
        let prefix = if metadata { "$$" } else { "" };
        format!("{prefix}{stream}")
    })
}

fn part() -> impl Strategy<Value = AppendPart> {
    (a_stream(), claim(), vec(event(), 1..4), ids()).prop_map(|(stream, claim, events, ids)| {
        AppendPart {
            stream,
            claim,
            events,
            ids,
        }
    })
}

fn event() -> impl Strategy<Value = Event> {
    let tags = proptest::sample::subsequence(&TAGS[..], 0..=TAGS.len());
    (select(&TYPES[..]), tags, vec(any::<u8>(), 0..12)).prop_map(|(event_type, tags, data)| Event {
        event_type,
        tags,
        data,
    })
}

fn ids() -> impl Strategy<Value = Ids> {
    prop_oneof![6 => Just(Ids::Given), 1 => Just(Ids::Missing)]
}

fn claim() -> impl Strategy<Value = Claim> {
    prop_oneof![
        4 => Just(Claim::Any),
        2 => Just(Claim::NoStream),
        2 => Just(Claim::StreamExists),
        4 => Just(Claim::Last(0)),
        1 => (-3..3_i64).prop_map(Claim::Last),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => Just(Change::Nothing),
        1 => Just(Change::Shorter),
        1 => Just(Change::Longer),
        1 => claim().prop_map(Change::Claim),
        1 => Just(Change::FewerStreams),
    ]
}

fn kind() -> impl Strategy<Value = DeleteKind> {
    prop_oneof![4 => Just(DeleteKind::Soft), 1 => Just(DeleteKind::Tombstone)]
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::Forwards), Just(Direction::Backwards)]
}

fn from() -> impl Strategy<Value = From> {
    prop_oneof![
        1 => Just(From::Start),
        1 => Just(From::End),
        2 => (0..115_u64).prop_map(From::Within),
    ]
}

fn filter() -> impl Strategy<Value = Filter> {
    let query = prop_oneof![
        vec(select(&TYPES[..]), 1..3).prop_map(|names| types(&names)),
        vec(select(&TAGS[..]), 1..3).prop_map(|names| tags(&names)),
        vec(select(&["a", "a-", "b", "$$", "gr", "a_"][..]), 1..3)
            .prop_map(|names| prefixes(&names)),
        vec(select(&["a", "A", "größe", "$$a", "a_1%"][..]), 1..3)
            .prop_map(|names| categories(&names)),
        Just(Query::default()),
        Just(Query {
            types: types(&["added"]).types,
            ..tags(&["red"])
        }),
    ];
    vec(query, 0..3).prop_map(|any_of| Filter { any_of })
}
