//! What callers send over HTTP: bodies of appends, addresses, hosts, filters.

use std::net::Ipv4Addr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gesta_core::{
    Append, Checkpoint, Condition, Direction, EventType, ExpectedRevision, Filter, Position, Query,
    Revision, StreamAppend, StreamId, Tag, Tags, limits, printable,
};
use gesta_server::core as server;
use gesta_wire::problem::Document;
use gesta_wire::request::{self, QueryBody};
use gesta_wire::{Expected, percent};

use crate::Seed;
use crate::sample::{after, byte, event_type, incarnation, nested, proposed, stream, tags};

/// The longest text that an error answer may have, in bytes, whatever the request was.
const DETAIL_BYTES_MAX: usize = 4_096;

/// An error answer names the field, is small, and can be read as it was written.
fn check_problem(document: &Document) {
    let (detail, status) = (&document.detail, document.kind.status);
    assert!((400..500).contains(&status), "{document:?}");
    let field = document.members.field.as_deref().unwrap_or_default();
    assert!(!field.is_empty(), "no field: {document:?}");
    assert!(detail.starts_with(field), "{document:?}");
    assert!(detail.len() <= DETAIL_BYTES_MAX, "{} bytes", detail.len());
    let read = Document::read(&document.to_json()).expect("what is written can be read");
    assert_eq!(read.kind, document.kind);
    assert_eq!(read.members, document.members);
    assert_eq!(read.detail, printable(detail));
}

/// Bodies of appends: what is read is what our own client writes, and is read again as the same.
pub(crate) fn body(mut input: &[u8]) {
    let kind = byte(&mut input);
    let (is_several, owned) = (kind & 1 == 1, kind & 2 == 2);
    let read = |bytes: Bytes| match is_several {
        true => server::append_several(bytes, owned),
        false => server::append_to(stream("cart-1"), bytes, owned),
    };
    let append = match read(Bytes::copy_from_slice(input)) {
        Ok(append) => append,
        Err(document) => return check_problem(&document),
    };
    assert!(append.events() <= limits::APPEND_EVENTS_MAX);
    assert!(append.payload_bytes() <= input.len(), "more than came");
    let written = match is_several {
        true => request::append_several(&append),
        false => request::append_to(&append.streams[0]),
    };
    let again = read(written).expect("what a client writes can be read");
    assert_eq!(again, append);
}

pub(crate) fn body_seeds() -> Vec<Seed> {
    let usual = StreamAppend {
        stream: stream("cart-1"),
        expected: ExpectedRevision::Exact(Revision(7)),
        events: vec![proposed(r#"{"item": "book",  "n": 1.0}"#), proposed("null")],
    };
    let mut binary = proposed("");
    binary.content_type = gesta_core::ContentType::Binary;
    binary.data = Bytes::from_static(b"\0\xff");
    binary.metadata = Bytes::from_static(b"null");
    binary.tags = Tags::NONE;
    let others = StreamAppend {
        stream: stream("größe/1"),
        expected: ExpectedRevision::NoStream,
        events: vec![binary.without_id(), proposed("no JSON")],
    };
    let read = Query::category("cart")
        .or_event_type("item-added")
        .expect("valid");
    let conditions = vec![
        Condition::Stream {
            stream: stream("cart-2"),
            expected: ExpectedRevision::StreamExists,
        },
        Condition::NoMatch {
            filter: Filter::any_of([read, Query::tag("cart:1").expect("valid")]),
            after: Some(Checkpoint::logs(incarnation(), vec![Position(300)])),
        },
    ];
    let several = Append {
        streams: vec![usual.clone(), others.clone()],
        conditions,
    };
    let by_hand = r#" {"expected": 1e1, "events": [{"type":"T \u00fc","data_base64":"WzFd","content_type":"application/json"}]}"#;
    let nested = STANDARD.encode(nested(200));
    let deep = format!(
        r#"{{"events":[{{"type":"T","content_type":"application/json","data_base64":"{nested}"}}]}}"#
    );
    vec![
        ("usual", after(&[0], request::append_to(&usual))),
        ("others", after(&[2], request::append_to(&others))),
        ("several", after(&[1], request::append_several(&several))),
        ("by_hand", after(&[0], by_hand)),
        ("deep", after(&[0], deep)),
    ]
}

/// Addresses and hosts: streams and filters are written as they were read.
pub(crate) fn address(mut input: &[u8]) {
    let kind = byte(&mut input);
    if kind == 2 {
        return host(input);
    }
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    match kind {
        0 => path(text),
        _ => query(text),
    }
}

fn path(text: &str) {
    let stream = match server::path(text) {
        Ok((_, Some(stream))) => stream,
        Ok((template, None)) => return assert!(!template.contains("{stream}"), "{template}"),
        Err(document) => return check_problem(&document),
    };
    let mut written = "/streams/".to_owned();
    percent::encode(&mut written, stream.as_str());
    let (template, again) = server::path(&written).expect("what a client writes can be read");
    assert_eq!((template, again), ("/streams/{stream}", Some(stream)));
}

fn query(text: &str) {
    let read = match server::query(text) {
        Ok(read) => read,
        Err(document) => return check_problem(&document),
    };
    let again = server::query(&written(&read)).expect("what a client writes can be read");
    assert_eq!(again.filter, read.filter);
    assert_eq!(again.from, read.from);
    assert_eq!((again.direction, again.limit), (read.direction, read.limit));
    assert_eq!(again.expected, read.expected);
    check_filter(&read.filter);
}

/// Writes a query string as clients do.
fn written(read: &server::Query) -> String {
    let mut text = String::new();
    let mut add = |name: &str, value: &str| {
        text.push_str(name);
        text.push('=');
        percent::encode(&mut text, value);
        text.push('&');
    };
    if !read.filter.any_of.is_empty() {
        add("filter", &filter_text(&read.filter));
    }
    if let Some(from) = &read.from {
        add("from", &from.to_string());
    }
    if let Some(limit) = read.limit {
        add("limit", &limit.to_string());
    }
    add("expected", &Expected(read.expected).to_string());
    add(
        "direction",
        match read.direction {
            Direction::Forwards => "forwards",
            Direction::Backwards => "backwards",
        },
    );
    text
}

/// A host that counts as this machine is an address, or ends with `localhost`.
fn host(value: &[u8]) {
    match server::host(value) {
        None | Some(Ok(false)) => {}
        Some(Err(document)) => check_problem(&document),
        Some(Ok(true)) => {
            let text = std::str::from_utf8(value).expect("a host is text").trim();
            let host = text.split_once(':').map_or(text, |(host, _)| host);
            let name = host.trim_end_matches('.').to_ascii_lowercase();
            let is_local = name.is_empty()
                || text.starts_with('[')
                || name.ends_with("localhost")
                || host.parse::<Ipv4Addr>().is_ok();
            assert!(is_local, "{text:?}");
        }
    }
}

pub(crate) fn address_seeds() -> Vec<Seed> {
    let read = server::Query {
        filter: every_list(),
        from: Some(Checkpoint::logs(incarnation(), vec![Position(300)])),
        direction: Direction::Backwards,
        limit: Some(17),
        expected: ExpectedRevision::Exact(Revision(7)),
    };
    let simple = "type=item-added&stream_prefix=cart-&category=cart&tag=a%26b&from=start&limit=007";
    let mut stream = "/streams/".to_owned();
    percent::encode(&mut stream, "größe/1 +%");
    vec![
        ("stream", after(&[0], &stream)),
        ("event", after(&[0], format!("{stream}/7"))),
        ("group", after(&[0], format!("{stream}/groups/g%2Fh/ack"))),
        ("all", after(&[0], "/all/groups/g/consume")),
        ("dots", after(&[0], "/streams/%2E%2E")),
        ("query", after(&[1], written(&read))),
        ("simple", after(&[1], simple)),
        ("localhost", after(&[2], "localhost:2113")),
        ("ipv6", after(&[2], "[::1]:2113")),
        ("ipv4", after(&[2], "127.0.0.1")),
        ("name", after(&[2], "gesta.example.org.")),
    ]
}

/// Filters as documents hold them.
pub(crate) fn filter(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let filter = match server::filter(text) {
        Ok(filter) => filter,
        Err(document) => return check_problem(&document),
    };
    let again = server::filter(&filter_text(&filter)).expect("what a client writes can be read");
    assert_eq!(again, filter);
    check_filter(&filter);
}

fn filter_text(filter: &Filter) -> String {
    let queries: Vec<QueryBody> = filter.any_of.iter().map(QueryBody::from).collect();
    serde_json::to_string(&queries).expect("plain values")
}

/// Which events pass is what the documentation says, of events that are made of the filter itself.
fn check_filter(filter: &Filter) {
    let (mut streams, mut types) = (vec![stream("cart-1")], vec![event_type("item-added")]);
    let mut all_tags = Vec::new();
    for query in &filter.any_of {
        let prefixes = query.stream_prefixes.iter().chain(&query.categories);
        let names = prefixes.flat_map(|name| [name.clone(), format!("{name}-1")]);
        streams.extend(names.flat_map(StreamId::new).take(4));
        types.extend(query.types.iter().take(2).cloned());
        all_tags.extend(query.tags.iter().take(4).cloned());
    }
    all_tags.dedup();
    all_tags.truncate(limits::TAGS_MAX);
    let all_tags = Tags::from_stored(all_tags);
    for stream in streams.iter().take(12) {
        for event_type in types.iter().take(6) {
            for tags in [&Tags::NONE, &all_tags] {
                let passes = filter.matches_event(stream, event_type, tags);
                assert_eq!(passes, passes_plainly(filter, stream, event_type, tags));
                if passes && filter.is_of_virtual_streams() {
                    assert!(stream.is_virtual(), "{stream:?}");
                }
                if passes && filter.asks_for_system_streams() {
                    assert!(stream.is_system(), "{stream:?}");
                }
            }
        }
    }
}

/// Tells whether an event passes, written from the documentation alone.
fn passes_plainly(filter: &Filter, stream: &StreamId, event_type: &EventType, tags: &Tags) -> bool {
    let name = stream.as_str();
    let category = name.split('-').next().unwrap_or(name);
    let passes = |query: &Query| {
        let mut met = Vec::new();
        if !query.types.is_empty() {
            met.push(query.types.iter().any(|one| one == event_type));
        }
        if !query.stream_prefixes.is_empty() {
            met.push(
                query
                    .stream_prefixes
                    .iter()
                    .any(|one| name.starts_with(one)),
            );
        }
        if !query.categories.is_empty() {
            met.push(query.categories.iter().any(|one| one == category));
        }
        let has = |tag: &Tag| tags.as_slice().iter().any(|one| one == tag);
        met.push(query.tags.iter().all(has));
        met.iter().all(|met| *met)
    };
    filter.any_of.is_empty() || filter.any_of.iter().any(passes)
}

fn every_list() -> Filter {
    let query = Query::category("cart").or_category("größe");
    let query = query.or_event_type("item-added").expect("valid");
    let query = Query {
        stream_prefixes: vec!["cart-".to_owned(), String::new()],
        tags: tags(&["cart:1", "a&b"]).as_slice().to_vec(),
        ..query
    };
    Filter::any_of([query, Query::default()])
}

pub(crate) fn filter_seeds() -> Vec<Seed> {
    let of = |filter: Filter| filter_text(&filter).into_bytes();
    vec![
        ("all", of(Filter::ALL)),
        ("every_list", of(every_list())),
        ("system", of(Filter::stream_prefix("$timers-"))),
        ("virtual", of(Filter::stream_prefix("$ce-cart"))),
        ("tag", of(Filter::tag("cart:1").expect("valid"))),
    ]
}
