//! Revisions in `gesta all import`: what says a revision, and would mean another event in the copy.
//!
//! Why: an export has no events that were scavenged, so those after them get other revisions in the copy. `$tb` of such
//! a stream would hide other events, which the next scavenge removes for good, and a link would lead to another event.
//! So it is refused, whichever comes first: the event that gets another revision, or what says one.
//! Invariant: nothing here knows a store; whether the target's own metadata have `$tb` is told by who asks.

use std::collections::HashSet;

use gesta_core::{Error, EventData, Result, Revision, StreamId, StreamMetadata};

use super::import::CURE;

/// The type of links.
const LINK: &str = "$>";

/// What was seen of the input so far.
#[derive(Default)]
pub(super) struct Revisions {
    /// Streams of which an event has another revision than its line says.
    renumbered: HashSet<StreamId>,
    /// Streams whose metadata have `$tb`.
    truncated: HashSet<String>,
    /// Streams to which links lead.
    linked: HashSet<StreamId>,
}

/// Returns the event to which a link leads.
pub(super) fn link_of(event: &EventData) -> Option<(Revision, StreamId)> {
    if event.event_type.as_str() != LINK {
        return None;
    }
    let text = std::str::from_utf8(&event.data).ok()?;
    let (revision, stream) = text.split_once('@')?;
    Some((
        Revision(revision.parse().ok()?),
        StreamId::new(stream).ok()?,
    ))
}

/// Returns the metadata of a stream without `$tb`.
pub(super) fn without_truncation(metadata: &StreamMetadata) -> Result<StreamMetadata> {
    let mut json: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(metadata.json())
            .map_err(|error| Error::corrupt(format!("metadata of a stream: {error}")))?;
    json.remove("$tb");
    StreamMetadata::parse(serde_json::Value::Object(json).to_string())
}

impl Revisions {
    /// Tells whether events of the stream have other revisions.
    pub(super) fn is_renumbered(&self, stream: &StreamId) -> bool {
        self.renumbered.contains(stream)
    }

    /// Notes that an event of the stream gets another revision. `is_truncated` tells whether the metadata that the
    /// target has of it have `$tb`. Returns what that would make wrong.
    pub(super) fn renumber(&mut self, stream: &StreamId, is_truncated: bool) -> Option<String> {
        self.renumbered.insert(stream.clone());
        let what = match () {
            () if is_truncated || self.truncated.contains(stream.as_str()) => {
                "is truncated, and $tb would hide others"
            }
            () if self.linked.contains(stream) => "has links, which would lead to others",
            () => return None,
        };
        Some(format!(
            "gets another revision in this store, and its stream {:?} {what}; {CURE}",
            stream.as_str()
        ))
    }

    /// Notes whether the metadata of a stream have `$tb`. Returns what that would make wrong.
    pub(super) fn set_metadata(&mut self, described: &str, is_truncated: bool) -> Option<String> {
        if !is_truncated {
            self.truncated.remove(described);
            return None;
        }
        self.truncated.insert(described.to_owned());
        let mut renumbered = self.renumbered.iter();
        let is_renumbered = renumbered.any(|stream| stream.as_str() == described);
        is_renumbered.then(|| {
            format!(
                "truncates the stream {described:?}, whose events have other revisions in this store ($tb would hide others); \
                 {CURE}"
            )
        })
    }

    /// Notes a link. Returns what it would make wrong.
    pub(super) fn link(&mut self, event: &EventData) -> Option<String> {
        let (_, stream) = link_of(event)?;
        let why = self.is_renumbered(&stream).then(|| {
            format!(
                "is a link to the stream {:?}, whose events have other revisions in this store (it would lead to another \
                 event); {CURE}",
                stream.as_str()
            )
        });
        self.linked.insert(stream);
        why
    }
}
