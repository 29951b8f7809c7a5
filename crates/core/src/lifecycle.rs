//! Metadata, deletion and tombstones of a stream, kept as events in its metadata stream `$$name`.
//!
//! Why events: whatever may change the answer to an append must move the end of the log, because appends compare the
//! end of the log. Each such event carries the whole state, so only the *last* event is ever needed. Its data are the
//! metadata document of the user. Its metadata, written by the store alone, are `{"deleted_before": N}` or
//! `{"tombstone": true}`.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::{ContentType, EventData, Tags};
use crate::ids::{EventType, Revision};
use crate::limits::STREAM_METADATA_BYTES_MAX;

/// Type of the event that records new metadata.
const TYPE_METADATA: &str = "$metadata";
/// Type of the event that records a soft delete.
const TYPE_DELETED: &str = "$deleted";
/// Type of the event that records a tombstone.
const TYPE_TOMBSTONE: &str = "$tombstone";

/// What `$tb` says in EventStoreDB and in its clients of a stream that is deleted: no event can be read until the next
/// one is appended, which then is the first.
pub const TRUNCATED_UNTIL_WRITTEN: u64 = i64::MAX.cast_unsigned();

/// The metadata document of a stream: the user's JSON object, and the keys in it that reads honour.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamMetadata {
    json: Bytes,
    /// `$maxAge`: readers do not see events that are older than this.
    pub max_age: Option<Duration>,
    /// `$maxCount`: readers see only this number of the newest events.
    pub max_count: Option<u64>,
    /// `$tb`: readers do not see events before this revision.
    pub truncate_before: Option<Revision>,
}

impl Default for StreamMetadata {
    fn default() -> Self {
        Self {
            json: Bytes::from_static(b"{}"),
            max_age: None,
            max_count: None,
            truncate_before: None,
        }
    }
}

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "$maxAge")]
    max_age: Option<serde_json::Value>,
    #[serde(rename = "$maxCount")]
    max_count: Option<serde_json::Value>,
    #[serde(rename = "$tb")]
    truncate_before: Option<serde_json::Value>,
}

/// Returns true if a value of `$tb` says that the stream is deleted. Clients that know numbers of 53 bits only round
/// the mark, so what differs from it by rounding alone counts too.
fn is_deleted(truncate_before: Option<&serde_json::Value>) -> bool {
    #[expect(
        clippy::cast_precision_loss,
        reason = "the rounded number is what is meant"
    )]
    let rounded = TRUNCATED_UNTIL_WRITTEN as f64;
    truncate_before.is_some_and(|value| {
        let is_revision = value
            .as_u64()
            .is_some_and(|number| number <= Revision::MAX.0);
        !is_revision && value.as_f64().is_some_and(|number| number == rounded)
    })
}

/// Reads a whole number in this range, which JSON may write as `1`, `1.0` or `1e0`. `null` counts as absent.
fn whole_number(
    key: &str,
    value: Option<serde_json::Value>,
    range: std::ops::RangeInclusive<u64>,
) -> Result<Option<u64>> {
    let value = match value {
        None | Some(serde_json::Value::Null) => return Ok(None),
        Some(value) => value,
    };
    let whole = value.as_u64().or_else(|| {
        let number = value.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0)?;
        format!("{number:.0}").trim_start_matches('-').parse().ok()
    });
    match whole.filter(|number| range.contains(number)) {
        Some(number) => Ok(Some(number)),
        None => {
            let found: String = value.to_string().chars().take(60).collect();
            let (min, max) = (range.start(), range.end());
            Err(Error::invalid(
                format!("metadata.{key}"),
                format!("must be a whole number from {min} to {max}, found {found}"),
            ))
        }
    }
}

/// Reads a document as far as the keys go that the store knows.
fn document_of(json: &Bytes) -> Result<Document> {
    check_size(json)?;
    if json.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Error::invalid("metadata", "must be a JSON object"));
    }
    serde_json::from_slice(json).map_err(|error| no_object(&error))
}

fn check_size(json: &Bytes) -> Result<()> {
    if json.len() > STREAM_METADATA_BYTES_MAX {
        return Err(Error::invalid(
            "metadata",
            format!(
                "must be at most {STREAM_METADATA_BYTES_MAX} bytes, found {}",
                json.len()
            ),
        ));
    }
    Ok(())
}

fn no_object(error: &serde_json::Error) -> Error {
    Error::invalid("metadata", format!("must be a JSON object: {error}"))
}

impl StreamMetadata {
    /// Returns true if readers do not see all events because of this metadata, or will not: scavenging removes these.
    #[must_use]
    pub fn hides_events(&self) -> bool {
        self.max_age.is_some() || self.max_count.is_some() || self.truncate_before.is_some()
    }

    /// Checks a JSON object and takes it. The keys are `$maxAge` (seconds, at least 1), `$maxCount` (at least 1) and
    /// `$tb` (a revision). Others are kept as they are.
    ///
    /// # Errors
    /// `InvalidArgument` if the text is no JSON object or larger than 64 KiB, or if one of these keys has another type
    /// or range. So it is if `$tb` says that the stream is deleted: a stream is deleted by a call of its own.
    pub fn parse(json: impl Into<Bytes>) -> Result<Self> {
        let json = json.into();
        let document = document_of(&json)?;
        if is_deleted(document.truncate_before.as_ref()) {
            return Err(Error::invalid(
                "metadata.$tb",
                format!(
                    "must be a revision, at most {}: {TRUNCATED_UNTIL_WRITTEN} means that the stream is deleted; \
                     delete the stream instead",
                    Revision::MAX
                ),
            ));
        }
        Self::of_document(json, document)
    }

    /// Checks the data of an event that a client appends to a metadata stream, as [`parse`](Self::parse) does. If `$tb`
    /// says that the stream is deleted, which is how clients of EventStoreDB delete, the change is a soft delete, and
    /// the document is what else stands there.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse), but for a `$tb` that says so.
    pub fn parse_event(json: impl Into<Bytes>) -> Result<(LifecycleChange, Self)> {
        let json = json.into();
        let mut document = document_of(&json)?;
        if !is_deleted(document.truncate_before.as_ref()) {
            let metadata = Self::of_document(json, document)?;
            return Ok((LifecycleChange::Metadata, metadata));
        }
        document.truncate_before = None;
        let mut rest: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&json).map_err(|error| no_object(&error))?;
        rest.remove("$tb");
        // What is written anew may be longer than it was.
        let rest = Bytes::from(serde_json::Value::Object(rest).to_string());
        check_size(&rest)?;
        let metadata = Self::of_document(rest, document)?;
        Ok((LifecycleChange::Deleted, metadata))
    }

    fn of_document(json: Bytes, document: Document) -> Result<Self> {
        let max_age = whole_number("$maxAge", document.max_age, 1..=u64::MAX)?;
        let last = Revision::MAX.0;
        Ok(Self {
            json,
            max_age: max_age.map(Duration::from_secs),
            max_count: whole_number("$maxCount", document.max_count, 1..=u64::MAX)?,
            truncate_before: whole_number("$tb", document.truncate_before, 0..=last)?.map(Revision),
        })
    }

    /// Returns the document, byte for byte.
    #[must_use]
    pub fn json(&self) -> &Bytes {
        &self.json
    }
}

/// The state of a stream that the last event of `$$name` describes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lifecycle {
    /// Metadata of the user; empty after a delete.
    pub metadata: StreamMetadata,
    /// Revision before which all events were deleted.
    pub deleted_before: Revision,
    /// True if the stream is closed for ever.
    pub tombstoned: bool,
}

#[derive(Serialize, Deserialize, Default)]
struct SystemState {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deleted_before: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tombstone: Option<bool>,
}

impl Lifecycle {
    /// Reads the state from the last event of a metadata stream.
    ///
    /// # Errors
    /// `Corrupt` if [`Lifecycle::to_event`] cannot have written the event.
    pub fn from_event(data: &Bytes, metadata: &Bytes) -> Result<Self> {
        let state: SystemState = if metadata.is_empty() {
            SystemState::default()
        } else {
            serde_json::from_slice(metadata)
                .map_err(|error| Error::corrupt("state of a metadata stream").caused_by(error))?
        };
        Ok(Self {
            metadata: StreamMetadata::parse(data.clone()).map_err(|error| {
                Error::corrupt("document of a metadata stream").caused_by(error)
            })?,
            deleted_before: Revision(state.deleted_before.unwrap_or(0)),
            tombstoned: state.tombstone.unwrap_or(false),
        })
    }

    /// Makes the event that records this state.
    #[must_use]
    pub fn to_event(&self, change: LifecycleChange) -> EventData {
        let state = SystemState {
            deleted_before: (self.deleted_before.0 > 0).then_some(self.deleted_before.0),
            tombstone: self.tombstoned.then_some(true),
        };
        let plain = state.deleted_before.is_none() && state.tombstone.is_none();
        let metadata = if plain {
            Vec::new()
        } else {
            serde_json::to_vec(&state).unwrap_or_default()
        };
        EventData {
            id: None,
            event_type: change.event_type(),
            content_type: ContentType::Json,
            data: self.metadata.json().clone(),
            metadata: metadata.into(),
            tags: Tags::NONE,
        }
    }

    /// Returns true if readers can see a stream whose last revision is `last`.
    #[must_use]
    pub fn exists(&self, last: Option<Revision>) -> bool {
        !self.tombstoned && last.is_some_and(|last| last >= self.deleted_before)
    }

    /// Returns which events readers may see at `now`, of a stream whose last revision is `last`.
    #[must_use]
    pub fn visibility(&self, last: Revision, now: Timestamp) -> Visibility {
        let by_count = self
            .metadata
            .max_count
            .map_or(0, |count| (last.0 + 1).saturating_sub(count));
        let from = self.deleted_before.0.max(by_count).max(
            self.metadata
                .truncate_before
                .map_or(0, |revision| revision.0),
        );
        let created_from = self.metadata.max_age.map(|age| {
            let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
            Timestamp(now.0.saturating_sub(age))
        });
        Visibility {
            from: Revision(from),
            created_from,
        }
    }
}

/// The change of a stream that a lifecycle event records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LifecycleChange {
    /// The metadata of the stream were replaced.
    Metadata,
    /// The stream was soft-deleted.
    Deleted,
    /// The stream was closed by a tombstone.
    Tombstone,
}

impl LifecycleChange {
    /// Returns the type of the event that records the change.
    #[must_use]
    pub fn event_type(self) -> EventType {
        let name = match self {
            LifecycleChange::Metadata => TYPE_METADATA,
            LifecycleChange::Deleted => TYPE_DELETED,
            LifecycleChange::Tombstone => TYPE_TOMBSTONE,
        };
        EventType::from_stored(name.into())
    }
}

/// The events of a stream that readers may see.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Visibility {
    /// Revision of the first event that readers may see.
    pub from: Revision,
    /// Time before which events are hidden too; `None` hides none by time.
    pub created_from: Option<Timestamp>,
}

impl Visibility {
    /// Returns true if readers may see an event of this revision and time.
    #[must_use]
    pub fn shows(&self, revision: Revision, created: Timestamp) -> bool {
        revision >= self.from && self.created_from.is_none_or(|from| created >= from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_travels_through_its_event() {
        let state = Lifecycle {
            metadata: StreamMetadata::parse(r#"{"$maxCount": 3, "owner":"x"}"#).expect("valid"),
            deleted_before: Revision(5),
            tombstoned: false,
        };
        let event = state.to_event(LifecycleChange::Metadata);
        assert_eq!(
            Lifecycle::from_event(&event.data, &event.metadata).expect("readable"),
            state
        );
        assert_eq!(
            state.visibility(Revision(9), Timestamp(0)).from,
            Revision(7)
        );
        assert!(!state.exists(Some(Revision(4))));
        assert!(state.exists(Some(Revision(5))));
    }

    #[test]
    fn wrong_documents_are_refused() {
        for bad in [
            "",
            "[]",
            "1",
            "{",
            r#"{"$maxCount":0}"#,
            r#"{"$maxAge":-1}"#,
            r#"{"$tb":"x"}"#,
            r#"{"$tb":1.5}"#,
            r#"{"$tb":9223372036854775807}"#,
            r#"{"$maxCount":1,"$maxCount":1}"#,
        ] {
            assert!(StreamMetadata::parse(bad).is_err(), "{bad}");
        }
        let error = StreamMetadata::parse(r#"{"$maxAge":"x"}"#).expect_err("refused");
        let text = error.to_string();
        assert!(
            text.contains("metadata.$maxAge must be a whole number"),
            "{text}"
        );
    }

    /// What happened: the mark by which clients of EventStoreDB delete a stream was refused as a number out of range.
    /// Goal: as an event it is a delete, with the rest of the document, however a client rounds it; elsewhere the
    /// refusal says what to do. One less is a revision.
    #[test]
    fn the_mark_of_a_deleted_stream_is_a_delete_in_an_event_alone() {
        for mark in [
            "9223372036854775807",
            "9223372036854775808",
            "9223372036854776000",
            "9.223372036854775807e18",
        ] {
            let json = format!(r#"{{"$tb":{mark},"$maxCount":3,"owner":"x"}}"#);
            let (change, metadata) = StreamMetadata::parse_event(json.clone()).expect("a delete");
            assert_eq!(change, LifecycleChange::Deleted, "{mark}");
            assert_eq!(
                (metadata.max_count, metadata.truncate_before),
                (Some(3), None)
            );
            assert_eq!(metadata.json(), r#"{"$maxCount":3,"owner":"x"}"#);
            let text = StreamMetadata::parse(json)
                .expect_err("refused")
                .to_string();
            assert!(text.contains("delete the stream instead"), "{text}");
        }
        let json = r#"{"$tb":9223372036854775806}"#;
        let (change, metadata) = StreamMetadata::parse_event(json).expect("a revision");
        assert_eq!(change, LifecycleChange::Metadata);
        assert_eq!(metadata.truncate_before, Some(Revision::MAX));
        for wrong in ["9223372036854780000", "18446744073709551615", "-1", "1e300"] {
            let json = format!(r#"{{"$tb":{wrong}}}"#);
            assert!(StreamMetadata::parse_event(json).is_err(), "{wrong}");
        }
    }

    /// What happened: the rest of a document that deletes its stream was written anew, longer than it was, and stored
    /// although nobody could read it any more: the stream was lost. Goal: what is too large once it is written anew is
    /// refused.
    #[test]
    fn the_rest_of_a_deleting_document_can_be_read() {
        let of = |numbers: usize| {
            let numbers = vec!["1e9"; numbers].join(",");
            format!(r#"{{"$tb":9223372036854775807,"numbers":[{numbers}]}}"#)
        };
        let (change, metadata) = StreamMetadata::parse_event(of(1_000)).expect("a delete");
        assert_eq!(change, LifecycleChange::Deleted);
        assert!(
            metadata.json().len() > of(1_000).len(),
            "it has become longer"
        );
        assert_eq!(
            StreamMetadata::parse(metadata.json().clone()).expect("readable"),
            metadata
        );
        assert!(of(10_000).len() < STREAM_METADATA_BYTES_MAX);
        let error = StreamMetadata::parse_event(of(10_000)).expect_err("too large");
        assert!(error.to_string().contains("at most 65536 bytes"), "{error}");
    }

    /// `null` was taken and `1.0` was not, but the OpenAPI document said the contrary of both.
    #[test]
    fn numbers_may_be_null_or_written_as_fractions() {
        let json = r#"{"$maxAge":null,"$maxCount":1e1,"$tb":3.0}"#;
        let metadata = StreamMetadata::parse(json).expect("valid");
        assert_eq!((metadata.max_age, metadata.max_count), (None, Some(10)));
        assert_eq!(metadata.truncate_before, Some(Revision(3)));
    }
}
