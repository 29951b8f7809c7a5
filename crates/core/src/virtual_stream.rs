//! Virtual streams: which ones exist, which events stand in them, and their links.
//!
//! Why: users want the events of a category, the events of a type, and the first event of each stream as streams of
//! their own, with revisions that stay. These streams hold no events but *links*, which name an event by its stream and
//! revision.
//! Invariants: this is the only place that decides in which virtual streams an event stands; the link at a place is the
//! same for ever, its id included.
//! Not here: how the entries are stored (`backend`, [`VirtualIndex`](crate::backend::VirtualIndex)), when they are
//! written (`gesta-store`).

use std::sync::Arc;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::{ContentType, RecordedEvent, Tags};
use crate::filter::{Filter, Query};
use crate::ids::{EventId, EventType, LogId, Position, Revision, StreamId};
use crate::slice::fnv1a;

/// Text with which the name of the stream of a category starts.
pub const CATEGORY_PREFIX: &str = "$ce-";
/// Text with which the name of the stream of an event type starts.
pub const TYPE_PREFIX: &str = "$et-";
/// Name of the stream that names every stream.
pub const STREAMS: &str = "$streams";
/// Name that stands for all events in the protocols of clients and in the names of consumer groups. No stream has it.
pub const ALL_EVENTS: &str = "$all";
/// Type of the events that are links.
pub const LINK_TYPE: &str = "$>";

impl StreamId {
    /// Returns true for the streams that the store makes itself: `$ce-…`, `$et-…` and `$streams`.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        let name = self.as_str();
        name.starts_with(CATEGORY_PREFIX) || name.starts_with(TYPE_PREFIX) || name == STREAMS
    }

    /// Refuses an append to a stream that clients could not read back, or a change of its metadata: a virtual stream,
    /// or `$all`, which stands for all events. A stream of this name that an earlier version has stored can be read and
    /// deleted.
    ///
    /// # Errors
    /// `InvalidArgument` with the name of the stream.
    pub fn refuse_if_reserved(&self) -> Result<()> {
        let described = self.described_stream();
        if described.as_ref().unwrap_or(self).as_str() == ALL_EVENTS {
            let rule =
                format!("must not be {ALL_EVENTS}, which stands for all events, found {self}");
            return Err(Error::invalid("stream", rule));
        }
        self.refuse_if_virtual()
    }

    /// Refuses a change of a virtual stream, or of the metadata of one.
    ///
    /// # Errors
    /// `InvalidArgument` with the name of the stream.
    pub fn refuse_if_virtual(&self) -> Result<()> {
        let described = self.described_stream();
        if !described.as_ref().unwrap_or(self).is_virtual() {
            return Ok(());
        }
        let rule = format!(
            "must not be a virtual stream ($ce-…, $et-…, $streams), for the store makes those itself, found {self}"
        );
        Err(Error::invalid("stream", rule))
    }
}

/// The refusal of a filter that lets through virtual streams alone. Their links are not among all events, so it would
/// find nothing for ever.
pub const ONLY_VIRTUAL: &str = "must not be of virtual streams ($ce-…, $et-…) alone, for their links are not among all \
                                events: read or follow such a stream itself";

/// Returns true if every stream whose name begins with this is virtual.
#[must_use]
pub fn begins_virtual_streams(prefix: &str) -> bool {
    prefix.starts_with(CATEGORY_PREFIX) || prefix.starts_with(TYPE_PREFIX)
}

impl Query {
    /// Returns true if only virtual streams meet the conditions, which no event of a log does.
    fn is_of_virtual_streams(&self) -> bool {
        let mut prefixes = self.stream_prefixes.iter();
        !self.stream_prefixes.is_empty() && prefixes.all(|prefix| begins_virtual_streams(prefix))
    }
}

impl Filter {
    /// Returns true if only streams whose names are those of virtual streams pass. The links of virtual streams are not
    /// among all events, so the filter finds nothing, unless an older version stored streams of such names.
    #[must_use]
    pub fn is_of_virtual_streams(&self) -> bool {
        !self.any_of.is_empty() && self.any_of.iter().all(Query::is_of_virtual_streams)
    }
}

/// The kinds of virtual streams. An event stands at most once in a stream of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum VirtualKind {
    /// `$ce-…` holds the events of the streams of a category.
    Category,
    /// `$et-…` holds the events of a type.
    Type,
    /// `$streams` holds the first event of each stream.
    Streams,
}

impl VirtualKind {
    /// Returns the number that stands for the kind in what is stored: 0 to 2.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            VirtualKind::Category => 0,
            VirtualKind::Type => 1,
            VirtualKind::Streams => 2,
        }
    }
}

/// Returns the virtual streams in which an event stands, each with its kind.
///
/// Events of streams whose names begin with `$` stand in no category and not in `$streams`; types that begin with `$`
/// have no stream. A category or type that is too long for the name of a stream has none either.
#[must_use]
pub fn virtual_streams_of(
    stream: &StreamId,
    revision: Revision,
    event_type: &EventType,
) -> Vec<(VirtualKind, StreamId)> {
    let mut found = Vec::with_capacity(2);
    let mut add = |kind, name: String| found.extend(StreamId::new(name).map(|name| (kind, name)));
    if !stream.is_system() {
        let category = stream.category();
        add(
            VirtualKind::Category,
            format!("{CATEGORY_PREFIX}{category}"),
        );
        if revision == Revision(0) {
            add(VirtualKind::Streams, STREAMS.to_owned());
        }
    }
    if !event_type.as_str().starts_with('$') {
        add(VirtualKind::Type, format!("{TYPE_PREFIX}{event_type}"));
    }
    found
}

/// The event to which a link leads.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LinkTarget {
    /// Stream of the event.
    pub stream: StreamId,
    /// Revision of the event in its stream.
    pub revision: Revision,
}

impl LinkTarget {
    /// Returns what an event of type `$>` with the data `<revision>@<stream>` names; `None` if the event is no such
    /// link.
    #[must_use]
    pub fn of(event: &RecordedEvent) -> Option<Self> {
        if event.event_type.as_str() != LINK_TYPE {
            return None;
        }
        let text = std::str::from_utf8(&event.data).ok()?;
        let (revision, stream) = text.split_once('@')?;
        // `parse` would take a sign.
        if !revision.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let revision = revision.parse().ok().map(Revision);
        Some(Self {
            stream: StreamId::new(stream).ok()?,
            revision: revision.filter(|revision| *revision <= Revision::MAX)?,
        })
    }
}

/// What a link shows of the event to which it leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkTo<'a> {
    /// Stream of the event.
    pub stream: &'a StreamId,
    /// Revision of the event in its stream.
    pub revision: Revision,
    /// Position of the event.
    pub position: Position,
    /// Time at which the event was stored.
    pub created: Timestamp,
}

impl<'a> From<&'a RecordedEvent> for LinkTo<'a> {
    fn from(event: &'a RecordedEvent) -> Self {
        Self {
            stream: &event.stream,
            revision: event.revision,
            position: event.position,
            created: event.created,
        }
    }
}

/// Makes the link at one place of a virtual stream, as readers see it. Its data are `<revision>@<stream>`. It has the
/// position and the time of the event to which it leads.
#[must_use]
pub fn virtual_link<'a>(
    stream: &StreamId,
    revision: Revision,
    to: impl Into<LinkTo<'a>>,
) -> RecordedEvent {
    let to = to.into();
    RecordedEvent {
        stream: stream.clone(),
        revision,
        log: LogId(0),
        position: to.position,
        id: link_id(stream, revision),
        event_type: EventType::from_stored(Arc::from(LINK_TYPE)),
        created: to.created,
        content_type: ContentType::Binary,
        data: Bytes::from(format!("{}@{}", to.revision.0, to.stream)),
        metadata: Bytes::new(),
        tags: Tags::NONE,
    }
}

/// Makes the id of the link at a place. No store keeps it, so it is computed from the stream and the revision.
fn link_id(stream: &StreamId, revision: Revision) -> EventId {
    let place = format!("{}@{stream}", revision.0);
    let high = fnv1a(place.as_bytes());
    let low = fnv1a(format!("{place}>").as_bytes());
    let bytes = (u128::from(high) << 64 | u128::from(low.rotate_left(17))).to_be_bytes();
    EventId(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

/// Returns the number that stands for a virtual stream in what is stored. It is made of the kind and of the position of
/// the first event: no two events have a position in common, and an event stands in one stream of each kind.
#[must_use]
pub fn virtual_number(kind: VirtualKind, first: Position) -> u64 {
    first.0.saturating_mul(4).saturating_add(kind.number())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::backend::{EventRef, RowId, WriterEpoch};
    use crate::limits::STREAM_NAME_BYTES_MAX;

    fn names(stream: &str, revision: u64, event_type: &str) -> Vec<String> {
        let stream = StreamId::new(stream).expect("valid");
        let event_type = EventType::new(event_type).expect("valid");
        let found = virtual_streams_of(&stream, Revision(revision), &event_type);
        found
            .into_iter()
            .map(|(_, name)| name.to_string())
            .collect()
    }

    #[test]
    fn an_event_stands_in_its_category_its_type_and_the_first_one_among_the_streams() {
        assert_eq!(
            names("cart-1-2", 0, "added"),
            ["$ce-cart", "$streams", "$et-added"]
        );
        assert_eq!(names("cart-1", 1, "added"), ["$ce-cart", "$et-added"]);
        assert_eq!(names("cart", 1, "added"), ["$ce-cart", "$et-added"]);
        assert_eq!(names("-1", 1, "added"), ["$ce-", "$et-added"]);
    }

    #[test]
    fn what_is_of_the_system_is_left_out() {
        assert_eq!(names("$$cart-1", 0, "$metadata"), [""; 0]);
        assert_eq!(names("$mine-1", 0, "added"), ["$et-added"]);
        assert_eq!(names("cart-1", 0, "$>"), ["$ce-cart", "$streams"]);
        let long = "x".repeat(STREAM_NAME_BYTES_MAX);
        assert_eq!(names(&long, 1, "added"), ["$et-added"]);
    }

    /// A stream with this name could be written, and clients that ask for `$all` read all events instead.
    #[test]
    fn the_name_of_all_events_is_no_stream() {
        for name in ["$all", "$$$all", "$ce-cart", "$streams"] {
            let stream = StreamId::new(name).expect("valid");
            let error = stream.refuse_if_reserved().expect_err("refused");
            assert!(error.to_string().contains(name), "{error}");
        }
        for name in ["$all-1", "all", "$$all", "$alle", "$ALL"] {
            let stream = StreamId::new(name).expect("valid");
            assert!(stream.refuse_if_reserved().is_ok(), "{name}");
        }
    }

    #[test]
    fn virtual_streams_are_known_by_name_and_not_to_be_changed() {
        for name in ["$ce-cart", "$ce-", "$et-added", "$streams"] {
            let stream = StreamId::new(name).expect("valid");
            assert!(stream.is_virtual(), "{name}");
            let error = stream.refuse_if_virtual().expect_err("refused").to_string();
            assert!(error.contains(name), "{error}");
            assert!(stream.metadata_stream().refuse_if_virtual().is_err());
        }
        for name in ["cart-1", "$streams-1", "$ce", "$$cart", "ce-cart"] {
            let stream = StreamId::new(name).expect("valid");
            assert!(
                !stream.is_virtual() && stream.refuse_if_virtual().is_ok(),
                "{name}"
            );
        }
    }

    fn reference() -> EventRef {
        EventRef {
            position: Position(9),
            writer: WriterEpoch(1),
            created: Timestamp(5),
            stream: StreamId::new("cart-1@x").expect("valid"),
            stream_row: RowId(3),
            revision: Revision(7),
            id: EventId(Uuid::from_u128(1)),
            event_type: EventType::new("added").expect("valid"),
            type_row: RowId(3),
        }
    }

    #[test]
    fn a_link_leads_back_to_its_event() {
        let category = StreamId::new("$ce-cart").expect("valid");
        let link = virtual_link(&category, Revision(2), &reference());
        assert_eq!(&link.data[..], b"7@cart-1@x");
        assert_eq!((link.revision, link.position), (Revision(2), Position(9)));
        let target = LinkTarget::of(&link).expect("a link");
        assert_eq!(
            (target.stream.as_str(), target.revision),
            ("cart-1@x", Revision(7))
        );
        let again = virtual_link(&category, Revision(2), &reference());
        assert_eq!(link.id, again.id);
        let other = virtual_link(&category, Revision(3), &reference());
        assert_ne!(link.id, other.id);
    }

    #[test]
    fn what_is_no_link_leads_nowhere() {
        let category = StreamId::new("$ce-cart").expect("valid");
        let link = virtual_link(&category, Revision(2), &reference());
        for data in [
            "",
            "7",
            "@cart-1",
            "7@",
            "-7@cart-1",
            "+7@cart-1",
            "x@cart-1",
            "99999999999999999999@cart-1",
            "18446744073709551615@cart-1",
        ] {
            let data = Bytes::copy_from_slice(data.as_bytes());
            let event = RecordedEvent {
                data: data.clone(),
                ..link.clone()
            };
            assert_eq!(LinkTarget::of(&event), None, "{data:?}");
        }
        let other = RecordedEvent {
            event_type: EventType::new("added").expect("valid"),
            ..link
        };
        assert_eq!(LinkTarget::of(&other), None);
    }
}
