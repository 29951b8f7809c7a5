//! Regular expressions and prefixes of names and types, as clients write them.
//!
//! An input is a line for each prefix, or one for the expression, and a last line with a name. How long an input may
//! take is what libFuzzer watches (`-timeout`): a test must not know the time.

use std::sync::LazyLock;

use gesta_core::{ErrorKind, RecordedEvent, StreamId, begins_virtual_streams};
use gesta_pattern::{METADATA, Of, Passes, Pattern, PatternText, STREAM_DELETED, shown_as};

use crate::Seed;
use crate::sample::{after, byte, event_type, recorded};

/// The most memory that a pattern may hold, in bytes: 64 parts of 16 KiB, each with its states.
const MEMORY_BYTES_MAX: usize = 6 * 1_024 * 1_024;

/// Patterns: what is refused names the field, memory is bounded, and what the store is asked for leaves nothing out.
pub(crate) fn pattern(mut input: &[u8]) {
    let kind = byte(&mut input);
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let (pattern, name) = text.rsplit_once('\n').unwrap_or((text, "cart-1"));
    let passes = match kind & 2 {
        0 => Passes::Expression(pattern.to_owned()),
        _ => Passes::Prefixes(pattern.split('\n').map(str::to_owned).collect()),
    };
    let of = match kind & 1 {
        0 => Of::Stream,
        _ => Of::Type,
    };
    check_pattern(&PatternText { of, passes }, name);
}

/// Checks a pattern against events of this name.
pub(crate) fn check_pattern(text: &PatternText, name: &str) {
    let pattern = match Pattern::new(text.clone()) {
        Ok(pattern) => pattern,
        Err(error) => return check_refusal(&error),
    };
    assert_eq!(pattern.text(), text);
    assert!(pattern.memory_bytes() <= MEMORY_BYTES_MAX);
    for event in events(name) {
        let passes = match pattern.matches(&event) {
            Ok(passes) => passes,
            Err(error) => {
                assert!(!pattern.is_quick(), "{error}");
                check_refusal(&error);
                continue;
            }
        };
        let (stream, event_type) = shown_as(&event);
        if let Passes::Prefixes(prefixes) = &text.passes {
            let shown = match text.of {
                Of::Stream => stream,
                Of::Type => event_type,
            };
            assert_eq!(
                passes,
                prefixes.iter().any(|prefix| shown.starts_with(prefix))
            );
        }
        if passes {
            assert!(pattern.in_store().matches(&event), "{text:?} {event:?}");
            if pattern.is_of_virtual_streams() {
                assert!(begins_virtual_streams(stream), "{text:?} {stream:?}");
            }
        }
    }
}

fn check_refusal(error: &gesta_core::Error) {
    let ErrorKind::InvalidArgument { field, rule } = error.kind() else {
        panic!("{error}");
    };
    assert_eq!(field, "filter");
    assert!((1..=8_192).contains(&rule.len()), "{} bytes", rule.len());
}

/// Events of this name: of a stream, of its metadata stream, and those by which Gesta notes deletes.
fn events(name: &str) -> Vec<RecordedEvent> {
    static USUAL: LazyLock<RecordedEvent> = LazyLock::new(|| recorded("{}", ""));
    let stream = StreamId::new(name).unwrap_or_else(|_| USUAL.stream.clone());
    let of_name = name.try_into().unwrap_or_else(|_| USUAL.event_type.clone());
    let of = |stream: &StreamId, event_type| RecordedEvent {
        stream: stream.clone(),
        event_type,
        ..USUAL.clone()
    };
    let metadata = stream.metadata_stream();
    vec![
        of(&stream, of_name),
        of(&stream, event_type(METADATA)),
        of(&metadata, event_type("$deleted")),
        of(&metadata, event_type("$tombstone")),
        of(&metadata, event_type(STREAM_DELETED)),
    ]
}

pub(crate) fn seeds() -> Vec<Seed> {
    vec![
        ("no_system", after(&[1], "^[^\\$].*\nitem-added")),
        ("looks_ahead", after(&[1], "^(?!(\\$.+$))\nitem-added")),
        ("list", after(&[0], "^(?!(cart$|\\$.+$))\ncart-late")),
        ("choice", after(&[0], "^cart|order$\ncart-1")),
        ("back", after(&[0], "^(a|b)\\1$\naa")),
        ("behind", after(&[1], "(?<!a)foo(?=bar)\nfoobar")),
        ("classes", after(&[1], "^[\\p{L}\\d_.-]{3,40}$\ngröße")),
        ("virtual", after(&[0], "^\\$ce-\n$ce-cart")),
        ("prefixes", after(&[2], "cart-\norder-\nca\ncart-1")),
        ("of_types", after(&[3], "$metadata\nitem\nitem-added")),
    ]
}
