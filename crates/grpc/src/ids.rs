//! Names of streams and ids of events, as messages carry them.

use ::uuid::Uuid;
use bytes::Bytes;
use gesta_core::{EventId, StreamId};

use crate::Result;
use crate::messages::shared::{self, StreamIdentifier, uuid as parts};
use crate::refusal::{Refusal, shown};

/// The form in which a client wants ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UuidForm {
    /// The id is two signed numbers of 64 bits.
    Structured,
    /// The id is text with hyphens.
    Text,
}

/// Writes an id in the form that the client wants.
#[must_use]
pub fn uuid(id: Uuid, form: UuidForm) -> shared::Uuid {
    let value = match form {
        UuidForm::Text => parts::Value::String(id.to_string()),
        UuidForm::Structured => {
            let (most, least) = halves(id);
            parts::Value::Structured(parts::Structured {
                most_significant_bits: most,
                least_significant_bits: least,
            })
        }
    };
    shared::Uuid { value: Some(value) }
}

/// Returns the 16 bytes of an id as two signed numbers.
#[must_use]
pub fn halves(id: Uuid) -> (i64, i64) {
    let (most, least) = id.as_u64_pair();
    (most.cast_signed(), least.cast_signed())
}

/// Reads an id, and the form in which it came.
///
/// # Errors
/// `InvalidArgument` if there is no id, or its text is no UUID.
pub fn read_uuid(field: &str, id: Option<&shared::Uuid>) -> Result<(Uuid, UuidForm)> {
    match id.and_then(|id| id.value.as_ref()) {
        None => Err(Refusal::invalid(format!("{field} must be given"))),
        Some(parts::Value::Structured(halves)) => {
            let most = halves.most_significant_bits.cast_unsigned();
            let least = halves.least_significant_bits.cast_unsigned();
            Ok((Uuid::from_u64_pair(most, least), UuidForm::Structured))
        }
        Some(parts::Value::String(text)) => match Uuid::parse_str(text) {
            Ok(id) => Ok((id, UuidForm::Text)),
            Err(_) => Err(Refusal::invalid(format!(
                "{field} must be a UUID, found {}",
                shown(text)
            ))),
        },
    }
}

/// Reads the id of an event.
///
/// # Errors
/// `InvalidArgument` if there is no id, its text is no UUID, or it is all zeros.
pub fn event_id(id: Option<&shared::Uuid>) -> Result<EventId> {
    let (id, _) = read_uuid("the id of an event", id)?;
    if id.is_nil() {
        return Err(Refusal::invalid("the id of an event must not be all zeros"));
    }
    Ok(EventId(id))
}

/// Reads the name of a stream.
///
/// # Errors
/// `InvalidArgument` if there is no name, or the name breaks a rule.
pub fn stream(identifier: Option<&StreamIdentifier>) -> Result<StreamId> {
    let Some(identifier) = identifier else {
        return Err(Refusal::invalid("the stream must be named"));
    };
    match std::str::from_utf8(&identifier.stream_name) {
        Ok(name) => Ok(StreamId::new(name)?),
        Err(_) => Err(Refusal::invalid("the name of a stream must be UTF-8")),
    }
}

/// Writes the name of a stream as messages carry it.
#[must_use]
pub fn identifier(stream: &StreamId) -> StreamIdentifier {
    StreamIdentifier {
        stream_name: Bytes::copy_from_slice(stream.as_str().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_travel_in_both_forms() {
        let id = Uuid::from_u128(0xfedc_ba98_7654_3210_8000_0000_0000_0001);
        for form in [UuidForm::Structured, UuidForm::Text] {
            let message = uuid(id, form);
            assert_eq!(read_uuid("id", Some(&message)).expect("good"), (id, form));
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        let text = |text: &str| shared::Uuid {
            value: Some(parts::Value::String(text.into())),
        };
        for wrong in ["", "x", "00000000-0000-0000-0000-000000000000"] {
            assert!(event_id(Some(&text(wrong))).is_err(), "{wrong}");
        }
        assert!(event_id(None).is_err());
        assert!(event_id(Some(&shared::Uuid { value: None })).is_err());
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let named = |name: &'static [u8]| StreamIdentifier {
            stream_name: Bytes::from_static(name),
        };
        assert!(stream(Some(&named(b"cart-1"))).is_ok());
        for wrong in [&b""[..], b"\xff", b"a\0b"] {
            assert!(stream(Some(&named(wrong))).is_err(), "{wrong:?}");
        }
        assert!(stream(None).is_err());
    }
}
