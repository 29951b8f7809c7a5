//! JSON: reading objects and lists strictly, and writing straight into a buffer, for which small answers need no tree
//! of values.
//!
//! Invariants: an object is only read from an object (serde alone would take a list of its values too); no list grows
//! beyond its limit, so a text cannot take much more memory than its own size.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize};

/// The deepest nesting of JSON that is stored and shown as JSON. Many readers, serde among them, refuse deeper JSON.
pub const DEPTH_MAX: usize = 128;

/// Tells whether valid JSON is nested deeper than [`DEPTH_MAX`].
#[must_use]
pub fn is_too_deep(json: &[u8]) -> bool {
    // Almost all JSON has fewer brackets than levels that are allowed, and counting them is quick.
    if memchr::memchr2_iter(b'[', b'{', json)
        .nth(DEPTH_MAX)
        .is_none()
    {
        return false;
    }
    let (mut depth, mut in_text) = (0_usize, false);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if in_text => drop(bytes.next()),
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return true;
                }
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// A value that is read from a JSON object and from nothing else.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct MembersVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for MembersVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                map: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(MembersVisitor(PhantomData))
    }
}

/// A list that refuses more than `MAX` elements while it is read, so that it cannot fill the memory.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Bounded<T, const MAX: usize>(pub Vec<T>);

impl<T, const MAX: usize> Bounded<T, MAX> {
    /// Returns whether the list has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T, const MAX: usize> Default for Bounded<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Bounded<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct List<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
            type Value = Bounded<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX}")
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    if items.len() == MAX {
                        return Err(A::Error::custom(format!("must be a list of at most {MAX}")));
                    }
                    items.push(item);
                }
                Ok(Bounded(items))
            }
        }
        deserializer.deserialize_seq(List(PhantomData))
    }
}

/// A text that borrows from the body if it has no escapes there.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// Returns the whole number that a fraction such as `1.0` or `1e3` stands for, since JSON Schema calls it an integer;
/// `None` if the number is negative, not whole or too large.
#[must_use]
pub fn whole(number: f64) -> Option<u64> {
    if number.fract() != 0.0 || number < 0.0 {
        return None;
    }
    // The digits of this text are exact; a conversion would hide what does not fit.
    format!("{number:.0}").trim_start_matches('-').parse().ok()
}

/// A whole number that JSON may also write as a fraction, such as `1.0`.
#[derive(Debug, Clone, Copy)]
pub struct Whole<N>(pub N);

impl<'de, N: TryFrom<u64>> Deserialize<'de> for Whole<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        whole_number(deserializer).map(Whole)
    }
}

/// Reads a [`Whole`] number as the number alone.
///
/// # Errors
/// If the value is no number, negative, not whole or too large for `N`.
pub fn whole_number<'de, N: TryFrom<u64>, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<N, D::Error> {
    struct Number;

    impl Visitor<'_> for Number {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number that is not negative")
        }

        fn visit_u64<E: Error>(self, number: u64) -> std::result::Result<u64, E> {
            Ok(number)
        }

        fn visit_f64<E: Error>(self, number: f64) -> std::result::Result<u64, E> {
            whole(number).ok_or_else(|| E::invalid_type(Unexpected::Float(number), &self))
        }
    }

    let number = deserializer.deserialize_any(Number)?;
    N::try_from(number).map_err(|_| D::Error::custom(format!("{number} is too large")))
}

/// Appends a value as JSON to `out`. Writing to memory cannot fail, and no value here can refuse to be written.
pub fn value(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let written = serde_json::to_writer(out, value);
    debug_assert!(written.is_ok(), "JSON of a plain value: {written:?}");
}

/// Appends a string with its quotes to `out`.
pub fn string(out: &mut Vec<u8>, text: &str) {
    value(out, text);
}

/// Appends a number to `out`.
pub fn number(out: &mut Vec<u8>, number: u64) {
    value(out, &number);
}

/// Appends a number to `out`, or `null`.
pub fn optional_number(out: &mut Vec<u8>, number: Option<u64>) {
    value(out, &number);
}

/// Appends `,"name":` to `out`, as it stands before the value of every member of an object but the first.
pub fn key(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

/// Appends the text of `shown` in quotes to `out`. The text must have no quotes and no backslashes.
pub fn plain(out: &mut Vec<u8>, shown: impl std::fmt::Display) {
    use std::io::Write;
    out.push(b'"');
    let written = write!(out, "{shown}");
    debug_assert!(written.is_ok(), "writing to memory: {written:?}");
    out.push(b'"');
}
