//! Reads the JSON documents of requests strictly. An error names the path of the field that is wrong.
//!
//! Why there are two passes on errors: the first pass is plain and fast; only a text that it refuses is read a second
//! time, slowly, to learn the path of the field.
//! Not here: what is read (`gesta_wire`).

use gesta_wire::problem::INVALID_ARGUMENT;
use gesta_wire::shortened;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::shared::problem::{Problem, Result};

/// Longest text of a decoding error, in bytes. The text may repeat what the body contains.
const DETAIL_BYTES_MAX: usize = 400;

/// Decodes any small JSON text of a request, such as the value of a parameter.
pub(crate) fn parse_owned<T: DeserializeOwned>(text: &str, prefix: &str) -> Result<T> {
    parse(text.as_bytes(), prefix)
}

pub(crate) fn parse<'a, T: Deserialize<'a>>(json: &'a [u8], prefix: &str) -> Result<T> {
    serde_json::from_slice(json).map_err(|_| explain::<T>(json, prefix))
}

/// Reads a refused text again, and keeps track of the path, to tell what is wrong and where.
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
