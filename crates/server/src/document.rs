//! JSON documents of requests: read strictly, and what is wrong is told by the path of its field.
//!
//! Why two passes on errors: the first pass is plain and fast; only a text that it refuses is read a
//! second time, slowly, to learn the path of the field.
//! Invariants: an object is only read from an object (serde alone would take a list of its values too); no list grows
//! beyond its limit, so a text cannot take much more memory than its own size.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::problem::{INVALID_ARGUMENT, Problem, Result};
use crate::uri::shortened;

/// Longest text of a decoding error, in bytes: it may repeat what the body contains.
const DETAIL_BYTES_MAX: usize = 400;

/// Deepest nesting of JSON that is stored and shown as JSON: many readers, serde's among them, give up below.
pub(crate) const DEPTH_MAX: usize = 128;

/// True if valid JSON is nested deeper than [`DEPTH_MAX`].
pub(crate) fn is_too_deep(json: &[u8]) -> bool {
    // Each level takes two bytes.
    if json.len() <= 2 * DEPTH_MAX {
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

/// An object, from a JSON object and nothing else.
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
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
        deserializer.deserialize_map(Members(PhantomData))
    }
}

/// A list that stops at its limit instead of filling the memory.
pub(crate) struct Bounded<T, const MAX: usize>(pub(crate) Vec<T>);

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

/// A text, borrowed from the body where it has no escapes.
#[derive(Deserialize)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// A whole number that is written as a fraction, `1.0` or `1e3`: JSON Schema calls it an integer.
pub(crate) fn whole(number: f64) -> Option<u64> {
    if number.fract() != 0.0 || number < 0.0 {
        return None;
    }
    // Its digits are exact; a conversion would hide what does not fit.
    format!("{number:.0}").trim_start_matches('-').parse().ok()
}

/// Decodes any small JSON text of a request, such as the value of a parameter.
pub(crate) fn parse_owned<T: DeserializeOwned>(text: &str, prefix: &str) -> Result<T> {
    parse(text.as_bytes(), prefix)
}

pub(crate) fn parse<'a, T: Deserialize<'a>>(json: &'a [u8], prefix: &str) -> Result<T> {
    serde_json::from_slice(json).map_err(|_| explain::<T>(json, prefix))
}

/// Reads a refused text again, keeping track of the path, to say what is wrong where.
#[cold]
fn explain<'a, T: Deserialize<'a>>(json: &'a [u8], prefix: &str) -> Problem {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let (path, error) = match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Err(error) => (error.path().to_string(), error.into_inner()),
        Ok(_) => match deserializer.end() {
            Err(error) => (".".to_owned(), error),
            Ok(()) => return Problem::invalid("body", "must be JSON"),
        },
    };
    let message = error.to_string();
    let path = match path.as_str() {
        "." | "?" => "",
        path => path,
    };
    let named = |after: &str| message.strip_prefix(after)?.split('`').next();
    let field = match named("missing field `").or_else(|| named("duplicate field `")) {
        Some(name) if path.is_empty() => name.to_owned(),
        Some(name) if !path.ends_with(&format!(".{name}")) && path != name => {
            format!("{path}.{name}")
        }
        _ => path.to_owned(),
    };
    let field = shortened(&format!("{prefix}{field}"), DETAIL_BYTES_MAX / 2).into_owned();
    let field = match field.trim_end_matches('.') {
        "" => "body".to_owned(),
        field => field.to_owned(),
    };
    // Positions count from the beginning of this text: right only if it is the whole body.
    let message = match message.rfind(" at line ") {
        Some(at) if error.is_data() || !prefix.is_empty() => &message[..at],
        _ => message.as_str(),
    };
    let message = shortened(message, DETAIL_BYTES_MAX);
    Problem::new(INVALID_ARGUMENT, format!("{field}: {message}")).field(field)
}
