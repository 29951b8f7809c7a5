//! The events in which the store keeps a group: its configuration, its checkpoints and its parked events.
//!
//! The documents are JSON, so that people can read them. A parked event is a link, in the form that other tools know:
//! type `$>`, data `REVISION@STREAM`. Invariants: fields that a newer version has added are passed over, except in
//! filters and patterns, which refuse them: a group must not deliver what it was not to take. A document without a
//! field that is needed is `Corrupt`. Not here: where the events are written (`storage`).

use gesta_core::{
    Error, EventData, EventId, EventType, Filter, Query, RecordedEvent, Result, Revision, StreamId,
    Tag, Timestamp,
};
use gesta_pattern::PatternText;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_128;

use crate::machine::{Origin, ParkOrder};
use crate::mark::{Mark, is_zero};
use crate::names::Source;
use crate::settings::Settings;

const TYPE_CONFIGURATION: &str = "$GroupConfigured";
const TYPE_CHECKPOINT: &str = "$SubscriptionCheckpoint";
const TYPE_LINK: &str = "$>";

/// The configuration of a group as the group was created or changed last.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Configuration {
    /// Random number of the life of the group. A group that is deleted and created again begins a new life.
    pub(crate) life: Uuid,
    /// First place that the group delivers while it has no checkpoint.
    pub(crate) begin: u64,
    /// Revision of the parked stream with which this life begins.
    pub(crate) parked_from: u64,
    /// Number of that parked stream. This life uses all of the streams with greater numbers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) parked_stream: u16,
    /// Random number of the last change of `begin`; `None` if it is as the group was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) moved: Option<Uuid>,
    #[serde(deserialize_with = "stored_settings")]
    pub(crate) settings: Settings,
    #[serde(default, skip_serializing_if = "FilterDocument::is_all")]
    pub(crate) filter: FilterDocument,
    /// Pattern that an event which passes the filter must match too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pattern: Option<PatternText>,
    /// Incarnation of the store in which `begin` was chosen; `None` if an older version chose it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) incarnation: Option<Uuid>,
    /// The event before `begin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mark: Option<Mark>,
}

/// Reads settings, and passes over those that a newer version has added: callers may invent no settings, but a group
/// must go on if an older node runs it beside newer ones.
fn stored_settings<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> std::result::Result<Settings, D::Error> {
    use serde::de::Error;
    let mut found = serde_json::Map::deserialize(from)?;
    let known = serde_json::to_value(Settings::default()).map_err(D::Error::custom)?;
    found.retain(|key, _| known.get(key).is_some());
    serde_json::from_value(found.into()).map_err(D::Error::custom)
}

/// A checkpoint, or the claim of a process that it runs the group from now on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Progressed {
    /// Life of the group in which the document was written.
    pub(crate) life: Uuid,
    /// Random number of the run that wrote the document. Each process makes one when it begins to run the group.
    pub(crate) run: Uuid,
    /// Revision or position below which everything is finished; `None` if the group never had a checkpoint.
    pub(crate) next: Option<u64>,
    /// Incarnation of the store in which `next` was reached; `None` if an older version wrote the document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) incarnation: Option<Uuid>,
    /// Events before `next`, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) marks: Vec<Mark>,
    /// Random number of the last time that the group was moved to another place; `None` if it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) moved: Option<Uuid>,
}

/// A part of the life of a group in which its place only grew. When the group is moved, another one begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Course {
    /// Life of the group.
    pub(crate) life: Uuid,
    /// Random number of the move with which the course began; `None` if the group was never moved.
    pub(crate) moved: Option<Uuid>,
}

/// A filter as documents hold it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct FilterDocument {
    any_of: Vec<QueryDocument>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct QueryDocument {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    types: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stream_prefixes: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    categories: Vec<String>,
}

impl FilterDocument {
    fn is_all(&self) -> bool {
        self.any_of.is_empty()
    }

    /// Makes the filter.
    ///
    /// # Errors
    /// `InvalidArgument` if a name is not valid, or a list is too long.
    pub(crate) fn to_filter(&self) -> Result<Filter> {
        let query = |document: &QueryDocument| {
            let types = document
                .types
                .iter()
                .map(|name| EventType::new(name.as_str()));
            let tags = document.tags.iter().map(|name| Tag::new(name.as_str()));
            Ok(Query {
                types: types.collect::<Result<_>>()?,
                tags: tags.collect::<Result<_>>()?,
                stream_prefixes: document.stream_prefixes.clone(),
                categories: document.categories.clone(),
            })
        };
        let filter = Filter {
            any_of: self.any_of.iter().map(query).collect::<Result<_>>()?,
        };
        filter.validate()?;
        Ok(filter)
    }
}

impl From<&Filter> for FilterDocument {
    fn from(filter: &Filter) -> Self {
        let query = |query: &Query| QueryDocument {
            types: query.types.iter().map(ToString::to_string).collect(),
            tags: query.tags.iter().map(ToString::to_string).collect(),
            stream_prefixes: query.stream_prefixes.clone(),
            categories: query.categories.clone(),
        };
        Self {
            any_of: filter.any_of.iter().map(query).collect(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ParkedMetadata<'a> {
    added: String,
    reason: &'a str,
    subscription_event_number: u64,
    event_id: Uuid,
    life: Uuid,
}

/// What a link to a parked event tells of itself. Older versions have written less.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ParkedLink {
    /// Id of the event for which the link is.
    event_id: Option<Uuid>,
    /// Life of the group that has parked the event.
    life: Option<Uuid>,
}

impl ParkedLink {
    /// Reads the metadata of a link.
    pub(crate) fn of(link: &RecordedEvent) -> Self {
        serde_json::from_slice(&link.metadata).unwrap_or_default()
    }

    /// Returns true if the link is for this event, as far as it tells.
    pub(crate) fn is_for(&self, event: &RecordedEvent) -> bool {
        self.event_id.is_none_or(|id| id == event.id.0)
    }

    /// Returns true if this life of the group has parked the event, as far as the link tells.
    pub(crate) fn is_of(&self, life: Uuid) -> bool {
        self.life.is_none_or(|of| of == life)
    }
}

fn system_event(event_type: &'static str, document: &impl Serialize) -> Result<EventData> {
    let json = serde_json::to_vec(document)
        .map_err(|error| Error::corrupt("a document of a group").caused_by(error))?;
    let event_type = EventType::from_stored(event_type.into());
    Ok(EventData::json(event_type, json).with_id(EventId::random()))
}

/// Makes the event that records a configuration.
pub(crate) fn configured(configuration: &Configuration) -> Result<EventData> {
    system_event(TYPE_CONFIGURATION, configuration)
}

/// Makes the event that records a checkpoint.
pub(crate) fn progressed(progressed: &Progressed) -> Result<EventData> {
    system_event(TYPE_CHECKPOINT, progressed)
}

/// Makes the event that records that an event is parked: a link to that event.
pub(crate) fn parked(
    source: &Source,
    course: Course,
    order: &ParkOrder,
    added: Timestamp,
) -> Result<EventData> {
    let event = &*order.event;
    let metadata = ParkedMetadata {
        added: added.to_string(),
        reason: &order.reason,
        subscription_event_number: place_of(source, event),
        event_id: event.id.0,
        life: course.life,
    };
    let metadata = serde_json::to_vec(&metadata)
        .map_err(|error| Error::corrupt("a document of a group").caused_by(error))?;
    let link = format!("{}@{}", event.revision, event.stream);
    let event_type = EventType::from_stored(TYPE_LINK.into());
    let data = EventData::binary(event_type, link).with_metadata(metadata);
    Ok(data.with_id(parked_id(course, order.origin, event.id)))
}

/// Makes the id under which an event is parked. It is made of the event's id and origin, and of the course of the
/// group. So if the event is parked again, because a process died or another one has claimed the group meanwhile, the
/// store recognises that, and nothing is stored a second time: for as long as the store remembers ids of appends that
/// expect nothing of their stream. If the group runs again only after that, and its last checkpoint is from before the
/// event was parked, the event is parked a second time. Another event that stands at the place after a loss has another
/// id. A group that was moved delivers events anew: what fails then is parked anew, whatever has become of the first
/// link. A replay delivers each link once, whatever the course: what fails in it has the revision of the link in its
/// id.
fn parked_id(course: Course, origin: Origin, event: EventId) -> EventId {
    let (lane, place, moved) = match origin {
        Origin::Source(place) => (0, place, course.moved),
        Origin::Parked(revision) => (1, revision, None),
    };
    let mut key = Vec::with_capacity(57);
    key.extend_from_slice(course.life.as_bytes());
    key.push(lane);
    key.extend_from_slice(&place.to_be_bytes());
    key.extend_from_slice(event.0.as_bytes());
    // Without a move the id is the one that earlier versions have made.
    if let Some(moved) = moved {
        key.extend_from_slice(moved.as_bytes());
    }
    let bytes = xxh3_128(&key).to_be_bytes();
    EventId(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

/// Reads the document of an event that [`configured`] or [`progressed`] has made.
///
/// # Errors
/// `Corrupt`, with stream and revision, if the document cannot be read.
pub(crate) fn read<'a, T: Deserialize<'a>>(event: &'a RecordedEvent) -> Result<T> {
    serde_json::from_slice(&event.data).map_err(|error| {
        let (stream, revision) = (&event.stream, event.revision);
        Error::corrupt(format!("event {revision} of {stream}: {error}")).caused_by(error)
    })
}

/// Returns the stream and the revision to which a link points; `None` if the event is no link.
pub(crate) fn target(event: &RecordedEvent) -> Option<(StreamId, Revision)> {
    target_of(&event.event_type, &event.data)
}

fn target_of(event_type: &EventType, data: &[u8]) -> Option<(StreamId, Revision)> {
    if event_type.as_str() != TYPE_LINK {
        return None;
    }
    let (revision, stream) = std::str::from_utf8(data).ok()?.split_once('@')?;
    let revision = revision.parse().ok()?;
    // The metadata stream of the longest name is longer than other names.
    let stream = StreamId::new(stream)
        .or_else(|error| {
            let described = stream.strip_prefix("$$").ok_or(error)?;
            StreamId::new(described).map(|stream| stream.metadata_stream())
        })
        .ok()?;
    Some((stream, Revision(revision)))
}

/// Returns the stream and the revision to which the link to a parked event points, and the id of that event; `None` if
/// it is no such link, or one of a version that stored no id.
#[must_use]
pub fn parked_event(link: &EventData) -> Option<(StreamId, Revision, EventId)> {
    let told: ParkedLink = serde_json::from_slice(&link.metadata).ok()?;
    let (stream, revision) = target_of(&link.event_type, &link.data)?;
    Some((stream, revision, EventId(told.event_id?)))
}

/// Returns the place of an event in the source of a group: its revision in a stream, or its position.
pub(crate) fn place_of(source: &Source, event: &RecordedEvent) -> u64 {
    match source {
        Source::Stream(_) => event.revision.0,
        Source::All => event.position.0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::machine::Token;
    use gesta_core::{ContentType, LogId, Position, Tags};

    fn recorded(data: &EventData) -> RecordedEvent {
        RecordedEvent {
            stream: StreamId::new("cart-1").expect("valid"),
            revision: Revision(7),
            log: LogId(0),
            position: Position(99),
            id: data.id.expect("an id"),
            event_type: data.event_type.clone(),
            created: Timestamp(0),
            content_type: ContentType::Json,
            data: data.data.clone(),
            metadata: data.metadata.clone(),
            tags: Tags::NONE,
        }
    }

    #[test]
    fn a_parked_event_points_to_the_event_and_says_why() {
        let event = recorded(
            &EventData::json(EventType::new("T").expect("valid"), "1").with_id(EventId::random()),
        );
        let order = |origin| ParkOrder {
            token: Token(1),
            event: Arc::new(event.clone()),
            origin,
            reason: "too \"odd\"".into(),
        };
        let life = Uuid::from_u128(1);
        let course = Course { life, moved: None };
        let parked = |course, origin| parked(&Source::All, course, &order(origin), Timestamp(0));
        let link = parked(course, Origin::Source(99)).expect("valid");
        assert_eq!(link.data, "7@cart-1");
        let metadata = format!(
            r#"{{"added":"1970-01-01T00:00:00.000000Z","reason":"too \"odd\"","subscriptionEventNumber":99,"eventId":"{}","life":"{life}"}}"#,
            event.id
        );
        assert_eq!(link.metadata, metadata);
        let told = ParkedLink::of(&recorded(&link));
        assert!(told.is_for(&event) && told.is_of(life));
        assert!(!told.is_of(Uuid::from_u128(2)));
        let older = ParkedLink::of(&event);
        assert!(older.is_for(&event) && older.is_of(life));
        let (stream, revision) = target(&recorded(&link)).expect("a link");
        assert_eq!((stream.as_str(), revision), ("cart-1", Revision(7)));
        // What is parked again from the same place has the same id, and nothing else has.
        let id = |course, origin| parked(course, origin).expect("valid").id;
        assert_eq!(id(course, Origin::Source(99)), link.id);
        let life = Uuid::from_u128(2);
        let moved = Course {
            moved: Some(Uuid::from_u128(3)),
            ..course
        };
        for (course, origin) in [
            (course, Origin::Source(98)),
            (course, Origin::Parked(99)),
            (Course { life, ..course }, Origin::Source(99)),
            (moved, Origin::Source(99)),
        ] {
            assert_ne!(id(course, origin), link.id, "{course:?} {origin:?}");
        }
        // A link that is replayed is one act, whether the group was moved meanwhile or not.
        let replayed = Origin::Parked(7);
        assert_eq!(id(moved, replayed), id(course, replayed));
        // After a loss another event may stand at the place.
        let mut other = event.clone();
        other.id = EventId::random();
        let other = ParkOrder {
            event: Arc::new(other),
            ..order(Origin::Source(99))
        };
        let other = super::parked(&Source::All, course, &other, Timestamp(0)).expect("valid");
        assert_ne!(other.id, link.id);
    }

    #[test]
    fn what_is_no_link_is_known() {
        let link = |data: &'static str| {
            let link = EventData::binary(EventType::new("$>").expect("valid"), data);
            target(&recorded(&link.with_id(EventId::random())))
        };
        for data in [
            "",
            "@",
            "7@",
            "@cart",
            "x@cart",
            "-1@cart",
            "99999999999999999999@a",
            "7",
        ] {
            assert_eq!(link(data), None, "{data}");
        }
        let (stream, _) = link("7@a@b").expect("a link to a stream with an odd name");
        assert_eq!(stream.as_str(), "a@b");
    }

    #[test]
    fn documents_come_back_as_they_were() {
        let filter = Filter::query(Query {
            types: vec![EventType::new("T").expect("valid")],
            categories: vec!["cart".to_owned()],
            ..Query::default()
        });
        let document = FilterDocument::from(&filter);
        assert_eq!(document.to_filter().expect("valid"), filter);
        let configuration = Configuration {
            life: Uuid::from_u128(1),
            begin: 3,
            parked_from: 4,
            parked_stream: 0,
            moved: None,
            settings: Settings::default(),
            filter: document,
            pattern: None,
            incarnation: Some(Uuid::from_u128(2)),
            mark: None,
        };
        let event = recorded(&configured(&configuration).expect("valid"));
        assert_eq!(read::<Configuration>(&event).expect("valid"), configuration);
        // What a newer version may store: a setting is passed over, and a filter is not.
        let newer = |from: &str, to: &str| {
            let text = String::from_utf8(event.data.to_vec()).expect("text");
            assert!(text.contains(from), "{text}");
            let mut newer = event.clone();
            newer.data = text.replacen(from, to, 1).into();
            read::<Configuration>(&newer)
        };
        let settings = newer(r#""settings":{"#, r#""settings":{"pace":"slow","#);
        assert_eq!(settings.expect("valid"), configuration);
        let filter = newer(r#"{"types":"#, r#"{"colours":["red"],"types":"#);
        assert!(
            filter
                .expect_err("it restricts")
                .to_string()
                .contains("colours")
        );
        // What an older version has stored.
        let mut old = event.clone();
        old.data = r#"{"life":"00000000-0000-0000-0000-000000000001","run":"00000000-0000-0000-0000-000000000002","next":7}"#.into();
        let old = read::<Progressed>(&old).expect("readable");
        assert_eq!(
            (old.next, old.incarnation, old.marks.len()),
            (Some(7), None, 0)
        );
        assert!(
            read::<Progressed>(&event)
                .expect_err("another document")
                .to_string()
                .contains("cart-1")
        );
    }
}
