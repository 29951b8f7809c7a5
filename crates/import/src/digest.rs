//! Digests that tell whether an event that a source shows again is the one that was stored.
//!
//! Why: a file of lines has no places that last, and the number of an event may be counted from the lines before it. So
//! what the source showed is written with each event, and compared when an event of this number comes again. The digest
//! is of what the source has, before a command turns it.

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::convert::is_json_document;
use crate::event::SourceEvent;

/// Returns the digest of an event, of everything that the source says but where it stands.
pub(crate) fn of_event(event: &SourceEvent) -> u128 {
    let mut tags: Vec<&[u8]> = event.tags.iter().map(String::as_bytes).collect();
    tags.sort_unstable();
    let time = event.time.map(|time| time.to_string());
    let optional = |text: Option<&str>| {
        text.map(|text| text.as_bytes().to_vec())
            .unwrap_or_default()
    };
    let data = match event.data_is_json {
        true => without_blanks(&event.data),
        false => event.data.to_vec(),
    };
    let fixed = [
        event
            .id
            .map(|id| id.as_bytes().to_vec())
            .unwrap_or_default(),
        optional(event.event_type.as_deref()),
        optional(time.as_deref()),
        vec![u8::from(event.data_is_json)],
        data,
        match is_json_document(&event.metadata) {
            true => without_blanks(&event.metadata),
            false => event.metadata.to_vec(),
        },
    ];
    let mut hasher = Xxh3::new();
    for part in fixed.iter().map(Vec::as_slice).chain(tags) {
        // With its length each part is told from the next.
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    hasher.digest128()
}

/// Returns the digest of a payload alone.
pub(crate) fn of_data(data: &[u8]) -> u128 {
    xxh3_128(data)
}

/// Returns JSON without the blanks between its values, which another program writes otherwise.
fn without_blanks(json: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(json.len());
    let (mut is_text, mut is_escaped) = (false, false);
    for &byte in json {
        if !is_text && byte.is_ascii_whitespace() {
            continue;
        }
        kept.push(byte);
        if byte == b'"' && !is_escaped {
            is_text = !is_text;
        }
        is_escaped = is_text && byte == b'\\' && !is_escaped;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an event is told from every other one, and not from itself written by another program.
    #[test]
    fn a_digest_is_of_the_event_and_not_of_its_blanks() {
        let event = |data: &'static str, change: fn(&mut SourceEvent)| {
            let mut event = SourceEvent {
                event_type: Some("t".into()),
                data: data.into(),
                data_is_json: true,
                tags: vec!["a".into(), "b".into()],
                ..SourceEvent::default()
            };
            change(&mut event);
            of_event(&event)
        };
        let one = event(r#"{"a":"x \" y","b":[1,2]}"#, |_| ());
        assert_eq!(
            one,
            event(r#"{ "a": "x \" y", "b": [1, 2]}"#, |e| e.tags.reverse())
        );
        for other in [
            event(r#"{"a":"x \"y","b":[1,2]}"#, |_| ()),
            event(r#"{"a":"x \" y","b":[1,2]}"#, |e| e.event_type = None),
            event(r#"{"a":"x \" y","b":[1,2]}"#, |e| e.tags = vec!["a".into()]),
            event(r#"{"a":"x \" y","b":[1,2]}"#, |e| e.data_is_json = false),
            event(r#"{"a":"x \" y","b":[1,2]}"#, |e| {
                e.time = Some(gesta_core::Timestamp(1))
            }),
            event(r#"{"a":"x \" y","b":[1,2]}"#, |e| {
                e.id = Some(uuid::Uuid::from_u128(1))
            }),
            event(r#"{"a":"x \" y","b":[1,2]}"#, |e| e.metadata = "{}".into()),
        ] {
            assert_ne!(one, other);
        }
    }
}
