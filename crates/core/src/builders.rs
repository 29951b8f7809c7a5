//! How the requests of [`EventStore`](crate::EventStore) are made, part by part.
//!
//! Not here: what the requests say and what they must obey (`request`).

use crate::error::Error;
use crate::event::EventData;
use crate::filter::Filter;
use crate::ids::StreamId;
use crate::lifecycle::StreamMetadata;
use crate::request::{
    Append, DeleteKind, DeleteStream, ExpectedRevision, ListStreams, SetStreamMetadata,
    StreamAppend, Subscribe, SubscribeFrom, SubscribeTo,
};

impl Append {
    /// Adds events for another stream of the same log. They are stored together with the others, or none is.
    #[must_use]
    pub fn and_to(
        mut self,
        stream: StreamId,
        expected: ExpectedRevision,
        events: Vec<EventData>,
    ) -> Self {
        self.streams.push(StreamAppend {
            stream,
            expected,
            events,
        });
        self
    }
}

impl ListStreams {
    /// Makes a request for all streams but those whose names start with `$`, with pages of at most 1,000 names.
    #[must_use]
    pub fn all() -> Self {
        Self::of_prefix("")
    }

    /// Makes a request for the streams whose names start with this text, with pages of at most 1,000 names.
    #[must_use]
    pub fn of_prefix(prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
            after: None,
            limit: 1_000,
        }
    }

    /// Sets the name after which the page begins.
    #[must_use]
    pub fn after(mut self, stream: StreamId) -> Self {
        self.after = Some(stream);
        self
    }

    /// Sets the largest number of streams in the page.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

impl DeleteStream {
    /// Makes a request for a delete after which a later append begins the stream again. It claims nothing about the
    /// stream.
    #[must_use]
    pub fn soft(stream: StreamId) -> Self {
        Self {
            stream,
            expected: ExpectedRevision::Any,
            kind: DeleteKind::Soft,
        }
    }

    /// Makes a request that closes the stream for ever. It claims nothing about the stream.
    #[must_use]
    pub fn tombstone(stream: StreamId) -> Self {
        Self {
            kind: DeleteKind::Tombstone,
            ..Self::soft(stream)
        }
    }

    /// Sets the claim about the stream.
    #[must_use]
    pub fn expecting(mut self, expected: ExpectedRevision) -> Self {
        self.expected = expected;
        self
    }
}

impl SetStreamMetadata {
    /// Makes a request that claims nothing about the metadata that there are.
    #[must_use]
    pub fn new(stream: StreamId, metadata: StreamMetadata) -> Self {
        Self {
            stream,
            expected: ExpectedRevision::Any,
            metadata,
        }
    }

    /// Sets the claim about the last revision of the *metadata*, not of the stream.
    #[must_use]
    pub fn expecting(mut self, expected: ExpectedRevision) -> Self {
        self.expected = expected;
        self
    }
}

impl Subscribe {
    /// Makes a request for a subscription from the start: to the events of a stream, or to all that pass a filter.
    #[must_use]
    pub fn to(to: impl Into<SubscribeTo>) -> Self {
        Self {
            to: to.into(),
            from: SubscribeFrom::Start,
        }
    }

    /// Sets where the subscription begins.
    #[must_use]
    pub fn from(mut self, from: SubscribeFrom) -> Self {
        self.from = from;
        self
    }
}

impl From<Filter> for SubscribeTo {
    fn from(filter: Filter) -> Self {
        SubscribeTo::All(filter)
    }
}

impl From<StreamId> for SubscribeTo {
    fn from(stream: StreamId) -> Self {
        SubscribeTo::Stream(stream)
    }
}

impl From<&StreamId> for SubscribeTo {
    fn from(stream: &StreamId) -> Self {
        SubscribeTo::Stream(stream.clone())
    }
}

impl TryFrom<&str> for SubscribeTo {
    type Error = Error;

    /// Takes the text as the name of a stream.
    fn try_from(stream: &str) -> Result<Self, Error> {
        StreamId::new(stream).map(Self::Stream)
    }
}

impl TryFrom<&String> for SubscribeTo {
    type Error = Error;

    /// Takes the text as the name of a stream.
    fn try_from(stream: &String) -> Result<Self, Error> {
        Self::try_from(stream.as_str())
    }
}
