//! Generates requests: some good, so that the store has data, most of them bad in one way or several.

use std::fmt;

use rand::RngExt;
use rand::rngs::StdRng;

use crate::parameters::{wrong_metadata, wrong_parameter};
use crate::protocol;

/// The answers that a request may get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expect {
    /// The request may get any answer that is not a failure of the server.
    Anything,
    /// The request must get this status.
    Refused(u16),
    /// The request must get a 400 that names this field.
    Field(String),
    /// The bytes are hardly a request. They may get an answer, or none.
    Garbage,
}

/// A request as bytes, and the answers that it may get.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) bytes: Vec<u8>,
    pub(crate) expect: Expect,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.bytes[..self.bytes.len().min(2_000)];
        write!(
            f,
            "{:?}, wanted {:?}",
            String::from_utf8_lossy(shown),
            self.expect
        )
    }
}

impl Attempt {
    pub(crate) fn get(target: &str) -> Self {
        Self::request("GET", target, &[], b"")
    }

    pub(crate) fn json(method: &str, target: &str, body: impl AsRef<[u8]>) -> Self {
        let content_type = &[("Content-Type", "application/json")];
        Self::request(method, target, content_type, body.as_ref())
    }

    pub(crate) fn request(
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Self {
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || method == "POST" || method == "PUT" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        Self {
            bytes: [head.as_bytes(), body].concat(),
            expect: Expect::Anything,
        }
    }

    pub(crate) fn expect(self, expect: Expect) -> Self {
        Self { expect, ..self }
    }

    pub(crate) fn field(self, field: impl Into<String>) -> Self {
        self.expect(Expect::Field(field.into()))
    }

    pub(crate) fn is_head(&self) -> bool {
        self.bytes.starts_with(b"HEAD ")
    }
}

/// Returns one of `items`.
pub(crate) fn pick<T: Copy>(rng: &mut StdRng, items: &[T]) -> T {
    items[rng.random_range(0..items.len())]
}

pub(crate) fn random_bytes(rng: &mut StdRng, len_max: usize) -> Vec<u8> {
    let len = rng.random_range(0..=len_max);
    (0..len).map(|_| rng.random()).collect()
}

pub(crate) fn attempt(rng: &mut StdRng, body_bytes_max: usize) -> Attempt {
    match rng.random_range(0..100) {
        0..10 => good(rng),
        10..30 => wrong_field(rng),
        30..45 => broken_json(rng),
        45..60 => wrong_name(rng),
        60..78 => wrong_parameter(rng),
        78..84 => protocol::wrong_call(rng),
        84..86 => protocol::oversized(rng, body_bytes_max),
        86..93 => wrong_metadata(rng),
        _ => protocol::garbage(rng),
    }
}

const STREAMS: &[&str] = &["a-1", "a-2", "b-1", "caf%C3%A9", "x%2Fy", "gone", "closed"];

/// Targets of `GET`.
const TARGETS: &[&str] = &[
    "/",
    "/info",
    "/health/live",
    "/health/ready",
    "/streams",
    "/all/subscribe",
    "/streams/gone/subscribe?after=end",
    "/openapi.json",
];

fn good(rng: &mut StdRng) -> Attempt {
    let stream = pick(rng, STREAMS);
    let expected = pick(
        rng,
        &["\"any\"", "\"no_stream\"", "\"stream_exists\"", "0", "7"],
    );
    match rng.random_range(0..10) {
        0..4 => {
            let event = pick(rng, VALUES_OF_DATA);
            Attempt::json(
                "POST",
                &format!("/streams/{stream}"),
                format!(
                    r#"{{"expected":{expected},"events":[{{"type":"T","data":{event},"tags":["t"]}}]}}"#
                ),
            )
        }
        4 => Attempt::json(
            "POST",
            "/append",
            format!(
                r#"{{"appends":[{{"stream":"a-1","expected":{expected},"events":[{{"type":"T","data":1}}]}},{{"stream":"b-1","events":[{{"type":"U","data_base64":"AA=="}}]}}]}}"#
            ),
        ),
        5 => Attempt::get(&format!(
            "/streams/{stream}?limit=3&direction={}",
            pick(rng, &["forwards", "backwards"])
        )),
        6 => Attempt::get("/all?type=T&limit=3&tag=t"),
        7 => Attempt::request(
            "GET",
            &format!("/streams/{stream}?limit=2"),
            &[("Accept", "application/x-ndjson")],
            b"",
        ),
        8 => {
            let target = pick(rng, TARGETS);
            let method = pick(rng, &["GET", "HEAD"]);
            Attempt::request(method, target, &[], b"")
        }
        _ => {
            let target = pick(
                rng,
                &[
                    "/streams/gone",
                    "/streams/closed?tombstone=true",
                    "/streams/gone?expected=3",
                ],
            );
            Attempt::request("DELETE", target, &[], b"")
        }
    }
}

const VALUES_OF_DATA: &[&str] = &[
    "1",
    "null",
    "{}",
    "[[]]",
    "\"\\u0000\"",
    "1e400",
    "{\"a\":1,\"a\":2}",
    "-0",
    "\"\\ud800\"",
];

/// Values of every JSON type. Most of them are wrong wherever they stand.
const VALUES: &[&str] = &[
    "null",
    "true",
    "-1",
    "1.5",
    "1e3",
    "18446744073709551616",
    "9223372036854775807",
    "-9223372036854775809",
    "\"\"",
    "\"x\"",
    "\"\\u0000\"",
    "[]",
    "[1]",
    "{}",
    "{\"a\":{}}",
    "\"\\ud83d\"",
    "1e999",
    "\"none\"",
];

/// The members that an event needs.
const EVENT: &str = r#""type":"T","data":1"#;

/// A body, and the field that is wrong in it.
type WrongField = (String, &'static str);

fn append_with_wrong_field(rng: &mut StdRng) -> WrongField {
    let expected = &[
        "null",
        "true",
        "-1",
        "1.5",
        "18446744073709551616",
        "9223372036854775807",
        "\"\"",
        "\"0\"",
        "[]",
        "{}",
        "\"None\"",
    ];
    match rng.random_range(0..6) {
        0 => {
            let expected = pick(rng, expected);
            let body = format!(r#"{{"expected":{expected},"events":[{{{EVENT}}}]}}"#);
            (body, "expected")
        }
        1 => {
            let events = pick(rng, &["null", "true", "7", "\"x\"", "{}"]);
            (format!(r#"{{"events":{events}}}"#), "events")
        }
        2 => (r#"{"events":[]}"#.to_owned(), "events"),
        3 => ("{}".to_owned(), "events"),
        4 => {
            let event = pick(rng, &["null", "true", "7", "\"x\""]);
            (format!(r#"{{"events":[{event}]}}"#), "events[0]")
        }
        _ => {
            let value = pick(rng, VALUES);
            let body = format!(r#"{{"events":[{{{EVENT}}}],"expect":{value}}}"#);
            (body, "expect")
        }
    }
}

/// Makes an event without a type or data, or with a member that is wrong, unknown or repeated.
fn event_with_wrong_field(rng: &mut StdRng) -> WrongField {
    let value = pick(rng, VALUES);
    let base64 = pick(rng, &["\"*\"", "\"A\"", "\"AA=\"", "\"ü\"", "7", "[]"]);
    let (event, field) = match rng.random_range(0..8) {
        0 => (r#""data":1"#.to_owned(), "events[0].type"),
        1 => (r#""type":"T""#.to_owned(), "events[0].data"),
        2 => (
            format!(r#""type":"T","data_base64":{base64}"#),
            "events[0].data_base64",
        ),
        3 => (
            format!(r#"{EVENT},"metadata_base64":{base64}"#),
            "events[0].metadata_base64",
        ),
        4 => (format!(r#"{EVENT},"datum":{value}"#), "events[0].datum"),
        5 => (
            format!(r#"{EVENT}}},{{{EVENT},"data":{value}"#),
            "events[1].data",
        ),
        6 => {
            let content_type = pick(rng, &["\"\"", "7", "\"text/plain\"", "[]"]);
            (
                format!(r#"{EVENT},"content_type":{content_type}"#),
                "events[0].content_type",
            )
        }
        _ => (
            format!(r#"{EVENT},"data_base64":"AA==""#),
            "events[0].data_base64",
        ),
    };
    (format!(r#"{{"events":[{{{event}}}]}}"#), field)
}

/// Makes an event whose type, id or tags are wrong.
fn event_with_wrong_name(rng: &mut StdRng) -> WrongField {
    let long = format!("\"{}\"", "x".repeat(rng.random_range(1_025..3_000)));
    let types = &[
        "null",
        "true",
        "7",
        "\"\"",
        "[]",
        "{}",
        "\"\\u0000\"",
        "\"a\\nb\"",
        "\"\\u0085\"",
        &long,
    ];
    let ids = &[
        "\"\"",
        "\"x\"",
        "7",
        "\"0192f0c1-2f3a-7c11-9c55-5d4e2a3b1c0\"",
        "\"{0192f0c1-2f3a-7c11-9c55-5d4e2a3b1c00}\"",
        "[]",
    ];
    let (event, field) = match rng.random_range(0..4) {
        0 => (
            format!(r#""type":{},"data":1"#, pick(rng, types)),
            "events[0].type",
        ),
        1 => (
            format!(r#"{EVENT},"id":{}"#, pick(rng, ids)),
            "events[0].id",
        ),
        2 => {
            let tags = pick(rng, &["true", "7", "\"x\"", "{}"]);
            (format!(r#"{EVENT},"tags":{tags}"#), "events[0].tags")
        }
        _ => {
            let tag = pick(rng, &["null", "7", "\"\"", "\"\\u0001\"", "[]", &long]);
            (
                format!(r#"{EVENT},"tags":["a",{tag}]"#),
                "events[0].tags[1]",
            )
        }
    };
    (format!(r#"{{"events":[{{{event}}}]}}"#), field)
}

/// Makes a body that is JSON and wrong in one field, which the answer must name.
fn wrong_field(rng: &mut StdRng) -> Attempt {
    let (body, field) = match rng.random_range(0..18) {
        0..6 => append_with_wrong_field(rng),
        6..14 => event_with_wrong_field(rng),
        _ => event_with_wrong_name(rng),
    };
    if rng.random_range(0..3) > 0 || field == "expect" {
        return Attempt::json("POST", "/streams/a-1", body).field(field);
    }
    // The same as the second part of an append to several streams.
    let second = body
        .replacen('{', r#"{"stream":"b-1","#, 1)
        .replace(",}", "}");
    let first = r#"{"stream":"a-1","events":[{"type":"T","data":1}]}"#;
    let body = format!(r#"{{"appends":[{first},{second}]}}"#);
    let attempt = Attempt::json("POST", "/append", body);
    if field == "events" {
        // An empty list is found by the store, which has other names for the parts.
        return attempt.expect(Expect::Refused(400));
    }
    attempt.field(format!("appends[1].{field}"))
}

/// Makes a good body with bytes changed, cut, doubled or replaced.
fn broken_json(rng: &mut StdRng) -> Attempt {
    let mut body = pick(rng, &[
        r#"{"expected":"any","events":[{"id":"0192f0c1-2f3a-7c11-9c55-5d4e2a3b1c00","type":"T","data":{"a":[1,"x"]},"metadata":{"b":null},"tags":["x","y"]}]}"#,
        r#"{"appends":[{"stream":"a-1","expected":3,"events":[{"type":"T","data":1}]},{"stream":"b-1","events":[{"type":"T","data_base64":"AAEC"}]}]}"#,
    ]).as_bytes().to_vec();
    for _ in 0..rng.random_range(1..4) {
        if body.is_empty() {
            break;
        }
        let at = rng.random_range(0..body.len());
        match rng.random_range(0..7) {
            0 => body[at] = rng.random(),
            1 => body.truncate(at),
            2 => body.insert(at, rng.random()),
            3 => {
                body.remove(at);
            }
            4 => {
                let part = body[at..body.len().min(at + rng.random_range(1..30))].to_vec();
                body.splice(at..at, part);
            }
            5 => {
                let value = pick(rng, VALUES).bytes();
                body.splice(at..at, value);
            }
            _ => {
                let deep = pick(rng, &["[", "{\"a\":", "\"", "\\u", "]"])
                    .repeat(rng.random_range(1..2_000));
                body.splice(at..at, deep.bytes());
            }
        }
    }
    if rng.random_range(0..10) == 0 {
        body = random_bytes(rng, 300);
    }
    let target = pick(rng, &["/streams/a-1", "/append"]);
    Attempt::json("POST", target, body)
}

/// Makes a request with a stream name or a revision that cannot be.
fn wrong_name(rng: &mut StdRng) -> Attempt {
    let name = match rng.random_range(0..8) {
        0 => String::new(),
        1 => "x".repeat(rng.random_range(1_025..20_000)),
        2 => "%C3%BC".repeat(rng.random_range(513..2_000)),
        3 => format!("a%{:02x}b", pick(rng, &[0_u8, 1, 9, 10, 13, 27, 31, 127])),
        4 => pick(rng, &["%C2%85", "%c2%80x", "a%C2%9f"]).to_owned(),
        5 => pick(
            rng,
            &["%ff", "%C3", "%ed%a0%80", "%f4%90%80%80", "a%80", "%c0%af"],
        )
        .to_owned(),
        6 => pick(rng, &["%", "%2", "%zz", "a%", "%%20", "%u0041", "%-1"]).to_owned(),
        _ => format!("%24%24{}", "x".repeat(rng.random_range(1_025..2_000))),
    };
    let body = r#"{"events":[{"type":"T","data":1}]}"#;
    match rng.random_range(0..7) {
        0 => Attempt::get(&format!("/streams/{name}")).field("stream"),
        1 => Attempt::get(&format!("/streams/{name}/0")).field("stream"),
        2 => Attempt::get(&format!("/streams/{name}/metadata")).field("stream"),
        3 => Attempt::get(&format!("/streams/{name}/subscribe")).field("stream"),
        4 => Attempt::request("DELETE", &format!("/streams/{name}"), &[], b"").field("stream"),
        5 => {
            let revision = pick(
                rng,
                &[
                    "-1",
                    "x",
                    "1.0",
                    "9223372036854775807",
                    "18446744073709551616",
                    "%ff",
                    "%",
                    "0x1",
                    "+1",
                    "1e3",
                    "%20",
                ],
            );
            Attempt::get(&format!("/streams/a-1/{revision}")).field("revision")
        }
        _ => Attempt::json("POST", &format!("/streams/{name}"), body).field("stream"),
    }
}
