//! What a timer carries: JSON as the text in which it was written.
//!
//! Why: parsed JSON takes up to two hundred times the memory of its text, and forgets the order of keys and how numbers
//! were written. So the text is kept, and parsed by whoever asks for it.
//! Invariant: the text is one JSON value.

use gesta_core::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// What a timer carries, as JSON that is not parsed. Null is nothing.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Data(Option<Box<RawValue>>);

impl PartialEq for Data {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Data {}

impl Data {
    /// Writes a value as JSON.
    pub(crate) fn of(value: &impl Serialize) -> Result<Self> {
        let data = to_raw_value(value)
            .map_err(|error| Error::invalid("data", format!("must have a JSON form: {error}")))?;
        Ok(Self(Some(data).filter(|data| data.get() != "null")))
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn raw(&self) -> &RawValue {
        self.0.as_deref().unwrap_or(RawValue::NULL)
    }

    pub(crate) fn text(&self) -> &str {
        self.raw().get()
    }

    /// Returns the number of bytes that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |data| data.get().len())
    }

    /// Returns how many arrays and objects lie in one another.
    pub(crate) fn depth(&self) -> usize {
        let (mut depth, mut deepest) = (0_usize, 0);
        let (mut is_in_text, mut is_escaped) = (false, false);
        for byte in self.text().bytes() {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => is_in_text = !is_in_text,
                b'[' | b'{' if !is_in_text => {
                    depth += 1;
                    deepest = deepest.max(depth);
                }
                b']' | b'}' if !is_in_text => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        deepest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Data {
        serde_json::from_str(text).unwrap()
    }

    /// Goal: what is kept is the text that was written: the order of keys, the digits of numbers, blanks and escapes.
    #[test]
    fn the_text_stays_as_it_was_written() {
        for text in [
            r#"{"b": 1,  "a":2}"#,
            "1e400",
            "0.10",
            "-0.0",
            "123456789012345678901234567890",
            r#""\u00e9\ud800""#,
            r#"{"a":1,"a":2}"#,
        ] {
            assert_eq!(read(text).text(), text);
            assert_eq!(serde_json::to_string(&read(text)).unwrap(), text);
            assert_eq!(read(text).bytes(), text.len());
        }
        for nothing in [read("null"), Data::default(), Data::of(&()).unwrap()] {
            assert!(nothing.is_none());
            assert_eq!((nothing.text(), nothing.bytes()), ("null", 0));
        }
        assert_eq!(
            Data::of(&("a", 0.5)).unwrap().text(),
            r#"["a",0.5]"#.to_owned()
        );
        assert!(serde_json::from_str::<Data>("[1").is_err());
    }

    /// Goal: depth counts arrays and objects, and no brackets within texts.
    #[test]
    fn depth_is_that_of_arrays_and_objects() {
        for (text, depth) in [
            ("1", 0),
            (r#""[[\"[[""#, 0),
            (r#""\\""#, 0),
            ("[]", 1),
            (r#"{"a{[": [1, {"b": "]]"}], "c": []}"#, 3),
            (r#"["\\", [[]]]"#, 3),
            ("[[],[],[[]]]", 3),
        ] {
            assert_eq!(read(text).depth(), depth, "{text}");
        }
    }
}
