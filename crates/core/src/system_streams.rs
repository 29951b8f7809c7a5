//! Streams in which Gesta itself keeps something: the beginnings of their names, and how they keep their last events
//! alone.
//!
//! Why here: what such a stream holds comes from other streams, so who may read it is decided by the rights of those
//! (`gesta-access`), which must know the names that other crates make.

use crate::error::{Error, Result};
use crate::ids::StreamId;
use crate::lifecycle::StreamMetadata;
use crate::request::{ExpectedRevision, SetStreamMetadata, StreamMetadataRecord};

/// The key in the metadata of a stream that says how many of its last events the stream keeps.
const MAX_COUNT: &str = "$maxCount";

/// Text before the name of a stream, in the name of the stream of the snapshots of its entity.
pub const SNAPSHOT_PREFIX: &str = "$snapshot-";
/// Text with which the name of the stream of a group's configuration starts. `SOURCE::GROUP` follows.
pub const GROUP_CONFIGURATION_PREFIX: &str = "$persistentsubscriptionconfig-";
/// Text with which the names of the streams of a group's checkpoints and parked events start. `SOURCE::GROUP` follows.
pub const GROUP_STATE_PREFIX: &str = "$persistentsubscription-";
/// Text between the source and the name of a group, which does not contain it.
pub const GROUP_SEPARATOR: &str = "::";
/// Text with which the names of the streams of timers start, unless the program says another.
pub const TIMERS_PREFIX: &str = "$timers-";
/// Text with which the name of the stream of an effect's state starts.
pub const EFFECT_PREFIX: &str = "$effect-";
/// Text with which the name of the stream of an import's checkpoints starts.
pub const IMPORT_PREFIX: &str = "$import-";

/// Makes the request by which a stream keeps its last events alone, so many of them; `None` if its metadata say a
/// number already. What else they say stays, above all who may use the stream, and what is changed since they were
/// read: then the request is refused with `WrongExpectedRevision`.
///
/// # Errors
/// `Corrupt` if the metadata cannot be read; `InvalidArgument` if they become too large.
pub fn keep_last(
    stream: &StreamId,
    found: &StreamMetadataRecord,
    count: u32,
) -> Result<Option<SetStreamMetadata>> {
    if found.metadata.max_count.is_some() {
        return Ok(None);
    }
    let mut document: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(found.metadata.json()).map_err(|error| {
            Error::corrupt(format!("the metadata of {stream:?}")).caused_by(error)
        })?;
    document.insert(MAX_COUNT.to_owned(), count.into());
    let metadata = StreamMetadata::parse(serde_json::Value::Object(document).to_string())?;
    Ok(Some(SetStreamMetadata {
        stream: stream.clone(),
        expected: found
            .revision
            .map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact),
        metadata,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Revision;

    /// Goal: nothing of what the metadata say is lost, also not what is said after they were read.
    #[test]
    fn what_metadata_say_stays_when_a_stream_keeps_its_last_events() {
        let stream = StreamId::new("$import-a").expect("valid");
        let found = |json: &'static str, revision| StreamMetadataRecord {
            metadata: StreamMetadata::parse(json).expect("valid"),
            revision,
        };
        let request = |found| keep_last(&stream, &found, 2).expect("readable");
        let first = request(found("{}", None)).expect("a request");
        assert_eq!(first.expected, ExpectedRevision::NoStream);
        assert_eq!(first.metadata.max_count, Some(2));
        let said = found(r#"{"$acl":{"$r":["a"]},"own":1}"#, Some(Revision(4)));
        let next = request(said).expect("a request");
        assert_eq!(next.expected, ExpectedRevision::Exact(Revision(4)));
        assert_eq!(
            next.metadata.json().as_ref(),
            br#"{"$acl":{"$r":["a"]},"$maxCount":2,"own":1}"#
        );
        assert_eq!(request(found(r#"{"$maxCount":9}"#, None)), None);
    }
}
