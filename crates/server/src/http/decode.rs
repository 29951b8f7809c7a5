//! Decodes append bodies: JSON becomes [`Append`], with the data byte for byte.
//!
//! Invariants: unknown and repeated fields are refused, and so is JSON that many readers could not read again. Not
//! here: reading JSON strictly (`document`), the limits of events and appends (`gesta_core`), reading the body
//! (`body`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gesta_core::{
    Append, Condition, ContentType, EventData, EventId, EventType, StreamAppend, StreamId, Tag,
    Tags, limits,
};
use gesta_wire::json::{Bounded, DEPTH_MAX, Object, Text, is_too_deep};
use gesta_wire::request::{AppendBody, ConditionBody, EventBody, Events, PartBody, SeveralBody};
use gesta_wire::shown;
use serde_json::value::RawValue;

use crate::http::document::parse;
use crate::shared::body::Payload;
use crate::shared::problem::{Problem, Result};
use crate::shared::queries;

/// Decodes the body of an append to one stream.
pub(crate) fn append_to(stream: StreamId, payload: &Payload) -> Result<Append> {
    let Object(body): Object<AppendBody<'_>> = parse(&payload.bytes, "")?;
    let events = events(payload, "", body.events)?;
    Ok(Append::to(stream, body.expected.0, events))
}

/// Decodes the body of an append to several streams.
pub(crate) fn append_several(payload: &Payload) -> Result<Append> {
    let Object(body): Object<SeveralBody<&RawValue>> = parse(&payload.bytes, "")?;
    let mut streams = Vec::with_capacity(body.appends.0.len());
    let mut events_count = 0;
    for (i, raw) in body.appends.0.into_iter().enumerate() {
        let prefix = format!("appends[{i}].");
        let Object(part): Object<PartBody<'_>> = parse(raw.get().as_bytes(), &prefix)?;
        events_count += part.events.0.len();
        if events_count > limits::APPEND_EVENTS_MAX {
            return Err(Problem::invalid(
                format!("{prefix}events"),
                format!(
                    "must not bring the append above {} events",
                    limits::APPEND_EVENTS_MAX
                ),
            ));
        }
        let stream = StreamId::new(part.stream.0.as_ref())
            .map_err(|error| Problem::invalid_at(format!("{prefix}stream"), &error))?;
        streams.push(StreamAppend {
            stream,
            expected: part.expected.0,
            events: events(payload, &prefix, part.events)?,
        });
    }
    let conditions = body.conditions.0.into_iter().enumerate();
    let conditions = conditions.map(|(i, Object(condition))| condition_of(i, condition));
    Ok(Append {
        streams,
        conditions: conditions.collect::<Result<_>>()?,
    })
}

fn condition_of(number: usize, body: ConditionBody) -> Result<Condition> {
    let field = |name: &str| format!("conditions[{number}]{name}");
    let ConditionBody {
        stream,
        expected,
        no_match,
        after,
    } = body;
    match (stream, expected, no_match, after) {
        (Some(stream), Some(expected), None, None) => Ok(Condition::Stream {
            stream: StreamId::new(stream)
                .map_err(|error| Problem::invalid_at(field(".stream"), &error))?,
            expected: expected.0,
        }),
        (None, None, Some(queries), after) => Ok(Condition::NoMatch {
            filter: queries::filter_of(&field(".no_match"), queries)?,
            after: after
                .map(|after| {
                    let wrong = |error| Problem::invalid_at(field(".after"), &error);
                    after.parse().map_err(wrong)
                })
                .transpose()?,
        }),
        (Some(_), None, None, None) => Err(Problem::invalid(field(".expected"), "is missing")),
        (None, Some(_), None, None) => Err(Problem::invalid(field(".stream"), "is missing")),
        (None, None, None, Some(_)) => Err(Problem::invalid(field(".no_match"), "is missing")),
        _ => Err(Problem::invalid(
            field(""),
            "must have either stream and expected, or no_match and, if not all events count, after",
        )),
    }
}

fn events(payload: &Payload, prefix: &str, bodies: Events<'_>) -> Result<Vec<EventData>> {
    let mut events = Vec::with_capacity(bodies.0.len());
    for (i, Object(body)) in bodies.0.into_iter().enumerate() {
        let event = event(payload, body)
            .map_err(|wrong| wrong.in_event(&format!("{prefix}events[{i}]")))?;
        events.push(event);
    }
    Ok(events)
}

/// A rule that a field of an event breaks.
struct Wrong {
    field: String,
    rule: String,
}

impl Wrong {
    fn new(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            rule: rule.into(),
        }
    }

    fn of(field: impl Into<String>, error: &gesta_core::Error) -> Self {
        match error.kind() {
            gesta_core::ErrorKind::InvalidArgument { rule, .. } => Self::new(field, rule),
            other => Self::new(field, other.to_string()),
        }
    }

    fn in_event(self, path: &str) -> Problem {
        Problem::invalid(format!("{path}.{}", self.field), self.rule)
    }
}

fn event(payload: &Payload, body: EventBody<'_>) -> std::result::Result<EventData, Wrong> {
    let id = body.id.map(|id| event_id(&id.0)).transpose()?;
    let event_type =
        EventType::new(body.event_type.0.as_ref()).map_err(|error| Wrong::of("type", &error))?;
    let content_type = body.content_type.map(|t| content_type(&t.0)).transpose()?;
    let (content_type, data) = match (body.data, body.data_base64) {
        (Some(_), Some(_)) => {
            return Err(Wrong::new("data_base64", "must not stand beside data"));
        }
        (None, None) => return Err(Wrong::new("data", "or data_base64 must be given")),
        (Some(_), None) if content_type == Some(ContentType::Binary) => {
            return Err(Wrong::new(
                "data",
                "is JSON: give application/octet-stream as data_base64",
            ));
        }
        (Some(data), None) => (ContentType::Json, json(payload, "data", data)?),
        (None, Some(text)) => (
            content_type.unwrap_or(ContentType::Binary),
            from_base64("data_base64", &text.0)?,
        ),
    };
    let metadata = match (body.metadata, body.metadata_base64) {
        (Some(_), Some(_)) => {
            return Err(Wrong::new(
                "metadata_base64",
                "must not stand beside metadata",
            ));
        }
        (None, None) => Bytes::new(),
        (Some(metadata), None) => json(payload, "metadata", metadata)?,
        (None, Some(text)) => from_base64("metadata_base64", &text.0)?,
    };
    Ok(EventData {
        id,
        event_type,
        content_type,
        data,
        metadata,
        tags: body.tags.map_or(Ok(Tags::NONE), tags)?,
    })
}

/// Returns JSON as it stands in the body, unless it is nested too deep.
fn json(payload: &Payload, field: &str, found: &RawValue) -> std::result::Result<Bytes, Wrong> {
    if is_too_deep(found.get().as_bytes()) {
        return Err(Wrong::new(
            field,
            format!(
                "must not be nested deeper than {DEPTH_MAX}, which many readers refuse: send it as {field}_base64"
            ),
        ));
    }
    Ok(payload.keep(found.get()))
}

fn event_id(text: &str) -> std::result::Result<EventId, Wrong> {
    let hyphenated = matches!(text.len(), 36) && text.as_bytes().get(8) == Some(&b'-');
    uuid::Uuid::try_parse(text)
        .ok()
        .filter(|_| hyphenated || text.len() == 32)
        .map(EventId)
        .ok_or_else(|| Wrong::new("id", format!("must be a UUID, found {}", shown(text))))
}

fn content_type(text: &str) -> std::result::Result<ContentType, Wrong> {
    [ContentType::Json, ContentType::Binary]
        .into_iter()
        .find(|known| known.as_str() == text)
        .ok_or_else(|| {
            Wrong::new(
                "content_type",
                format!(
                    "must be {} or {}, found {}",
                    ContentType::Json.as_str(),
                    ContentType::Binary.as_str(),
                    shown(text)
                ),
            )
        })
}

fn from_base64(field: &str, text: &str) -> std::result::Result<Bytes, Wrong> {
    STANDARD
        .decode(text)
        .map(Bytes::from)
        .map_err(|error| Wrong::new(field, format!("must be base64: {error}")))
}

fn tags<const MAX: usize>(texts: Bounded<Text<'_>, MAX>) -> std::result::Result<Tags, Wrong> {
    let tags = texts
        .0
        .into_iter()
        .enumerate()
        .map(|(i, text)| {
            Tag::new(text.0.as_ref()).map_err(|error| Wrong::of(format!("tags[{i}]"), &error))
        })
        .collect::<std::result::Result<Vec<_>, _>>()?;
    Tags::new(tags).map_err(|error| Wrong::of("tags", &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::{ExpectedRevision, Revision};

    fn payload(text: impl Into<Bytes>) -> Payload {
        Payload {
            bytes: text.into(),
            owned: true,
        }
    }

    fn stream() -> StreamId {
        StreamId::new("cart-1").expect("valid")
    }

    fn one(body: &'static str) -> Result<Append> {
        append_to(stream(), &payload(body))
    }

    #[test]
    fn an_event_keeps_its_data_byte_for_byte() {
        let append = one(r#" {"expected": 7, "events": [{"id":"01890dd5-ea3f-7a4e-8e3a-5b1f0e7b9c11","type":"Added \u00fc",
            "data":  { "b":1.0,  "a" : "\u00fc" } ,"metadata":[1, 2], "tags":["x","y"]},
            {"type":"T","data":null}, {"type":"B","data_base64":"AP8="},
            {"type":"J","data_base64":"", "content_type":"application/json","metadata_base64":"bnVsbA=="}]}"#)
            .expect("valid");
        let part = &append.streams[0];
        assert_eq!(part.expected, ExpectedRevision::Exact(Revision(7)));
        let [first, null, binary, json] = part.events.as_slice() else {
            panic!("four events: {part:?}");
        };
        assert_eq!(first.event_type.as_str(), "Added ü");
        assert_eq!(first.data, r#"{ "b":1.0,  "a" : "\u00fc" }"#);
        assert_eq!(first.metadata, "[1, 2]");
        assert_eq!(first.tags.as_slice().len(), 2);
        assert_eq!((&*null.data, null.metadata.len()), (&b"null"[..], 0));
        assert_eq!(
            (&*binary.data, binary.content_type),
            (&b"\0\xff"[..], ContentType::Binary)
        );
        assert_eq!(
            (&*json.data, json.content_type),
            (&b""[..], ContentType::Json)
        );
        assert_eq!(json.metadata, "null");
    }

    #[test]
    fn expected_is_any_unless_given() {
        for (text, expected) in [
            ("", ExpectedRevision::Any),
            (r#""expected":"any","#, ExpectedRevision::Any),
            (r#""expected":"no_stream","#, ExpectedRevision::NoStream),
            (
                r#""expected":"stream_exists","#,
                ExpectedRevision::StreamExists,
            ),
            (r#""expected":0,"#, ExpectedRevision::Exact(Revision(0))),
        ] {
            let body = format!(r#"{{{text}"events":[{{"type":"T","data":1}}]}}"#);
            let append = append_to(stream(), &payload(body)).expect("valid");
            assert_eq!(append.streams[0].expected, expected);
        }
    }

    /// What happened: a list of an object's values was taken for the object, and the text of an error told the name of
    /// a type.
    #[test]
    fn a_list_is_not_an_object() {
        for (body, field) in [
            (r#"["any",[{"type":"T","data":1}]]"#, "body"),
            (r#"{"events":[[null,"T",null,1]]}"#, "events[0]"),
            (r#"{"events":["T"]}"#, "events[0]"),
        ] {
            let problem = one(body).expect_err(body);
            let (detail, rule) = (&problem.detail, "expected an object");
            assert!(
                detail.starts_with(field) && detail.ends_with(rule),
                "{detail}"
            );
        }
        for body in [
            r#"[[{"stream":"a","events":[{"type":"T","data":1}]}]]"#,
            r#"{"appends":[["a","any",[{"type":"T","data":1}]]]}"#,
        ] {
            let problem = append_several(&payload(body)).expect_err(body);
            assert!(
                problem.detail.ends_with("expected an object"),
                "{problem:?}"
            );
        }
    }

    /// What happened: JSON that is nested deeper than readers can read was stored, and readers could read no page with
    /// it.
    #[test]
    fn json_that_is_too_deep_is_refused_with_advice() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        let append = |field: &str, text: &str| {
            let data = if field == "data" { "" } else { r#""data":1,"# };
            let body = format!(r#"{{"events":[{{"type":"T",{data}"{field}":{text}}}]}}"#);
            append_to(stream(), &payload(body))
        };
        let in_text = format!("[\"\\\"{}\"]", "[".repeat(300));
        for field in ["data", "metadata"] {
            append(field, &nested(DEPTH_MAX)).expect("deep, but not too deep");
            append(field, &in_text).expect("a text is not nested");
            let problem = append(field, &nested(DEPTH_MAX + 1)).expect_err("too deep");
            let detail = &problem.detail;
            assert!(
                detail.starts_with(&format!(
                    "events[0].{field} must not be nested deeper than 128"
                )),
                "{detail}"
            );
            assert!(
                detail.ends_with(&format!("send it as {field}_base64")),
                "{detail}"
            );
        }
    }

    /// Goal: `1.0` is an integer, as JSON Schema and so the OpenAPI document say.
    #[test]
    fn a_revision_may_be_written_as_a_fraction() {
        for (text, revision) in [("7.0", 7), ("1e3", 1_000), ("-0.0", 0)] {
            let body = format!(r#"{{"expected":{text},"events":[{{"type":"T","data":1}}]}}"#);
            let append = append_to(stream(), &payload(body)).expect("valid");
            let expected = ExpectedRevision::Exact(Revision(revision));
            assert_eq!(append.streams[0].expected, expected);
        }
        for bad in ["1.5", "-1.0", "1e30", "9223372036854775808.0"] {
            let body = format!(r#"{{"expected":{bad},"events":[{{"type":"T","data":1}}]}}"#);
            assert!(append_to(stream(), &payload(body)).is_err(), "{bad}");
        }
    }

    /// Checks that the problem names the field, whatever is wrong.
    fn assert_names_the_field(cases: &[(&'static str, &str)]) {
        for (body, field) in cases {
            let problem = one(body).expect_err(body);
            let json = String::from_utf8(problem.to_json()).expect("text");
            assert!(
                json.contains(&format!("\"field\":\"{field}\"")),
                "{body}: {json}"
            );
            assert_eq!(problem.kind.status, 400);
        }
    }

    #[test]
    fn wrong_bodies_are_refused_with_the_path_of_the_field() {
        assert_names_the_field(&[
            ("", "body"),
            ("[]", "body"),
            ("{\"events\":[]} x", "body"),
            ("{}", "events"),
            ("{\"events\":{}}", "events"),
            ("{\"events\":[1]}", "events[0]"),
            ("{\"event\":[]}", "event"),
        ]);
    }

    #[test]
    fn wrong_claims_are_refused_with_the_field() {
        assert_names_the_field(&[
            ("{\"expected\":-1,\"events\":[]}", "expected"),
            (
                "{\"expected\":99999999999999999999,\"events\":[]}",
                "expected",
            ),
            (
                "{\"expected\":9223372036854775807,\"events\":[]}",
                "expected",
            ),
            ("{\"expected\":\"None\",\"events\":[]}", "expected"),
            ("{\"expected\":null,\"events\":[]}", "expected"),
            ("{\"expected\":1.5,\"events\":[]}", "expected"),
            ("{\"expected\":1,\"expected\":1,\"events\":[]}", "expected"),
        ]);
    }

    #[test]
    fn wrong_types_and_data_are_refused_with_the_path_of_the_field() {
        assert_names_the_field(&[
            (r#"{"events":[{"data":1}]}"#, "events[0].type"),
            (r#"{"events":[{"type":"","data":1}]}"#, "events[0].type"),
            (
                r#"{"events":[{"type":"a\u0000","data":1}]}"#,
                "events[0].type",
            ),
            (r#"{"events":[{"type":7,"data":1}]}"#, "events[0].type"),
            (
                r#"{"events":[{"type":"T","data":1},{"type":"T"}]}"#,
                "events[1].data",
            ),
            (r#"{"events":[{"type":"T","data":}]}"#, "events[0].data"),
            (
                r#"{"events":[{"type":"T","data":1,"data":2}]}"#,
                "events[0].data",
            ),
            (
                r#"{"events":[{"type":"T","data":1,"datum":2}]}"#,
                "events[0].datum",
            ),
            (
                r#"{"events":[{"type":"T","data":1,"data_base64":""}]}"#,
                "events[0].data_base64",
            ),
            (
                r#"{"events":[{"type":"T","data":1,"data_base64":null}]}"#,
                "events[0].data_base64",
            ),
            (
                r#"{"events":[{"type":"T","data_base64":"*"}]}"#,
                "events[0].data_base64",
            ),
        ]);
    }

    #[test]
    fn wrong_ids_tags_and_content_types_are_refused_with_the_path_of_the_field() {
        assert_names_the_field(&[
            (
                r#"{"events":[{"type":"T","data":1,"id":"x"}]}"#,
                "events[0].id",
            ),
            (
                r#"{"events":[{"type":"T","data":1,"tags":"x"}]}"#,
                "events[0].tags",
            ),
            (
                r#"{"events":[{"type":"T","data":1,"tags":["x",""]}]}"#,
                "events[0].tags[1]",
            ),
            (
                r#"{"events":[{"type":"T","data":1,"tags":["x",5]}]}"#,
                "events[0].tags[1]",
            ),
            (
                r#"{"events":[{"type":"T","data":1,"tags":["x","x"]}]}"#,
                "events[0].tags",
            ),
            (
                r#"{"events":[{"type":"T","data":1,"content_type":"text/plain"}]}"#,
                "events[0].content_type",
            ),
            (
                r#"{"events":[{"type":"T","data":1,"content_type":"application/octet-stream"}]}"#,
                "events[0].data",
            ),
        ]);
    }

    #[test]
    fn appends_to_several_streams_name_the_part() {
        let several = |body: &'static str| append_several(&payload(body));
        let append = several(
            r#"{"appends":[{"stream":"a","events":[{"type":"T","data":1}]},{"stream":"b","expected":"no_stream","events":[]}]}"#,
        )
        .expect("valid");
        assert_eq!(append.streams.len(), 2);
        for (body, field) in [
            (r#"{"appends":[{"events":[]}]}"#, "appends[0].stream"),
            (
                r#"{"appends":[{"stream":"","events":[]}]}"#,
                "appends[0].stream",
            ),
            (
                r#"{"appends":[{"stream":"a","events":[{"type":"T","data":1,"x":1}]}]}"#,
                "appends[0].events[0].x",
            ),
            (
                r#"{"appends":[{"stream":"a","events":[{"type":"","data":1}]}]}"#,
                "appends[0].events[0].type",
            ),
            (r#"{"appends":{}}"#, "appends"),
            (r#"{"appends":[7]}"#, "appends[0]"),
        ] {
            let json = several(body).expect_err(body).to_json();
            let json = String::from_utf8(json).expect("text");
            assert!(
                json.contains(&format!("\"field\":\"{field}\"")),
                "{body}: {json}"
            );
        }
    }

    #[test]
    fn invalid_utf_8_and_too_many_events_are_refused() {
        for part in [
            &b"{\"type\":\"\xff\",\"data\":1}"[..],
            b"{\"type\":\"T\",\"data\":\"\xff\"}",
        ] {
            let body = [b"{\"events\":[", part, b"]}"].concat();
            let problem = append_to(stream(), &payload(body)).expect_err("refused");
            assert_eq!(problem.kind, gesta_wire::problem::INVALID_ARGUMENT);
        }
        let one = r#"{"type":"T","data":1}"#;
        let many = vec![one; limits::APPEND_EVENTS_MAX + 1].join(",");
        let problem =
            append_to(stream(), &payload(format!("{{\"events\":[{many}]}}"))).expect_err("refused");
        assert!(problem.detail.contains("at most 10000"), "{problem:?}");
        let many = vec![one; limits::APPEND_EVENTS_MAX / 2 + 1].join(",");
        let part = format!("{{\"stream\":\"a\",\"events\":[{many}]}}");
        let problem = append_several(&payload(format!("{{\"appends\":[{part},{part}]}}")))
            .expect_err("refused");
        assert!(
            problem.detail.starts_with("appends[1].events"),
            "{problem:?}"
        );
    }

    #[test]
    fn a_huge_wrong_value_does_not_make_a_huge_answer() {
        let body = format!(
            r#"{{"events":[{{"type":"T","data":1,"{}":1}}]}}"#,
            "ü".repeat(100_000)
        );
        let problem = append_to(stream(), &payload(body)).expect_err("refused");
        assert!(
            problem.to_json().len() < 1_500,
            "{}",
            problem.to_json().len()
        );
    }
}
