//! [`EntityType`]: how entities of one kind are named and stored.

use gesta_core::{EventData, EventId, Result, StreamId, Tag, Tags};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::{EventCodec, Stored};
use crate::decider::Decider;
use crate::forms::Forms;
use crate::guard::guarded;
use crate::keys::{KeyCodec, sorted_json};
use crate::snapshot::Snapshots;

/// Returns the tags of an event, from the id of its entity and the event.
type Tagging<E> = Box<dyn Fn(&str, &E) -> Vec<Tag> + Send + Sync>;

/// How entities of one kind are named and stored.
pub struct EntityType<D: Decider> {
    pub(crate) kind: EntityKind<D>,
}

pub(crate) struct EntityKind<D: Decider> {
    category: String,
    codec: Box<dyn EventCodec<D::Event>>,
    tagging: Option<Tagging<D::Event>>,
    pub(crate) snapshots: Option<Snapshots<D>>,
    pub(crate) keys: Option<KeyCodec<D::Command, D::Reply>>,
    /// How the requests and answers of these entities are written for other nodes, if they are forwarded.
    pub(crate) forms: Option<Forms<D>>,
    /// Whether an entity may be loaded although events before the readable ones are missing.
    pub(crate) may_be_truncated: bool,
}

impl<D: Decider> std::fmt::Debug for EntityType<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EntityType")
            .field("category", &self.kind.category)
            .finish_non_exhaustive()
    }
}

impl<D: Decider> EntityType<D> {
    /// Makes the type of entities whose streams are named `category-id` and whose events are stored by `codec`.
    ///
    /// # Errors
    /// `InvalidArgument` if the category is empty, too long, holds control characters or a `-` (which ends a category),
    /// or begins with `$`.
    pub fn new(category: &str, codec: impl EventCodec<D::Event>) -> Result<Self> {
        let named = StreamId::new(format!("{category}-x"))?;
        if named.category() != category || named.is_system() || category.is_empty() {
            return Err(gesta_core::Error::invalid(
                "category",
                format!("must not be empty, hold a `-` or begin with `$`, found {category:?}"),
            ));
        }
        Ok(Self {
            kind: EntityKind {
                category: category.to_owned(),
                codec: Box::new(codec),
                tagging: None,
                snapshots: None,
                keys: None,
                forms: None,
                may_be_truncated: false,
            },
        })
    }

    /// Sets the function that gives events their tags, from the id of their entity and the event (at most 32 tags, all
    /// different).
    #[must_use]
    pub fn tags(
        mut self,
        tags: impl Fn(&str, &D::Event) -> Vec<Tag> + Send + Sync + 'static,
    ) -> Self {
        self.kind.tagging = Some(Box::new(tags));
        self
    }

    /// Keeps snapshots, so that entities with many events load fast.
    #[must_use]
    pub fn snapshots(mut self, snapshots: Snapshots<D>) -> Self {
        self.kind.snapshots = Some(snapshots);
        self
    }

    /// Says that the streams of these entities are truncated on purpose, by `$tb`, `$maxAge` or `$maxCount`, and that
    /// the events that stay readable tell all that counts. An entity is then made of these events alone. The last event
    /// must stay readable, and commands of truncated events are no longer known by their idempotency keys.
    ///
    /// Without this, an entity is made of all its events since the last delete of its stream, or of a snapshot and all
    /// events after it. If one is missing, the entity is not loaded, and the error names the metadata. To truncate what
    /// a snapshot holds already, set `$tb` to the revision of the snapshot: the event of that revision must stay.
    #[must_use]
    pub fn may_be_truncated(mut self) -> Self {
        self.kind.may_be_truncated = true;
        self
    }

    /// Allows idempotency keys. The reply to a command is stored with the last event of the command, as JSON, together
    /// with a fingerprint of the command, which is made from its JSON. So a retry gets the first reply, and another
    /// command with the same key gets [`Error::KeyReused`](crate::Error::KeyReused).
    ///
    /// Equal commands must have equal JSON, also in later versions of the program. Otherwise a retry after an upgrade
    /// is taken for another command, and refused. The order of the keys of objects does not matter, but the order of a
    /// `HashSet` does.
    #[must_use]
    pub fn idempotent_replies(mut self) -> Self
    where
        D::Command: Serialize,
        D::Reply: Serialize + DeserializeOwned,
    {
        self.kind.keys = Some(KeyCodec::new(sorted_json));
        self
    }

    /// Allows idempotency keys as [`idempotent_replies`](Self::idempotent_replies) does, for commands that are not
    /// `Serialize` or have parts that may differ in a retry. `form` must return bytes that are equal for a command and
    /// its retry, and differ for other commands.
    #[must_use]
    pub fn idempotent_replies_by(
        mut self,
        form: impl Fn(&D::Command) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self
    where
        D::Reply: Serialize + DeserializeOwned,
    {
        self.kind.keys = Some(KeyCodec::new(move |command: &D::Command| Ok(form(command))));
        self
    }

    /// Forwards commands and reads, as JSON, to the node that owns the stream of the entity, if [`Builder::peers`]
    /// names the other nodes. A command that is forwarded without a key gets one. So this also allows idempotency keys
    /// as [`idempotent_replies`](Self::idempotent_replies) does, unless the type allows them in another way already.
    ///
    /// Reads are forwarded if the type has [`snapshots`](Self::snapshots), because the state is sent in their form.
    /// Without snapshots the node that is asked loads the entity for a read.
    ///
    /// [`Builder::peers`]: crate::Builder::peers
    #[must_use]
    pub fn forwarded(mut self) -> Self
    where
        D::Command: Serialize + DeserializeOwned,
        D::Reply: Serialize + DeserializeOwned,
        D::Rejection: Serialize + DeserializeOwned,
    {
        self.kind.forms = Some(Forms::json());
        match self.kind.keys {
            Some(_) => self,
            None => self.idempotent_replies(),
        }
    }
}

impl<D: Decider> EntityKind<D> {
    /// Returns the name under which nodes serve each other's commands and reads of this kind.
    pub(crate) fn service(&self) -> String {
        format!("entity:{}", self.category)
    }

    /// Returns whether the stream is that of an entity of this kind.
    pub(crate) fn has(&self, stream: &StreamId) -> bool {
        stream.category() == self.category && !self.id(stream).is_empty()
    }

    /// Returns the stream of an entity.
    pub(crate) fn stream(&self, id: &str) -> Result<StreamId> {
        if id.is_empty() {
            return Err(gesta_core::Error::invalid("id", "must not be empty"));
        }
        StreamId::new(format!("{}-{id}", self.category))
    }

    /// Returns the id of the entity of a stream.
    pub(crate) fn id<'a>(&self, stream: &'a StreamId) -> &'a str {
        stream.as_str().get(self.category.len() + 1..).unwrap_or("")
    }

    /// Turns an event into the form in which it is stored. This runs code of the user, which may panic.
    pub(crate) fn encode(&self, id: &str, event: &D::Event) -> Result<EventData> {
        let encoded = self
            .codec
            .encode(event)
            .map_err(|error| gesta_core::Error::invalid("event", error.to_string()))?;
        let tags = match &self.tagging {
            Some(tagging) => Tags::new(tagging(id, event))?,
            None => Tags::NONE,
        };
        Ok(EventData {
            id: Some(EventId::random()),
            event_type: encoded.event_type,
            content_type: encoded.content_type,
            data: encoded.data,
            metadata: bytes::Bytes::new(),
            tags,
        })
    }

    /// Decodes a stored event.
    pub(crate) fn decode(&self, event: &gesta_core::RecordedEvent) -> Result<D::Event> {
        let stored = Stored {
            event_type: event.event_type.as_str(),
            content_type: event.content_type,
            data: &event.data,
        };
        match guarded("the codec", || self.codec.decode(stored)) {
            Ok(decoded) => decoded.map_err(|error| unreadable(event, &error)),
            Err(panicked) => Err(unreadable(event, &panicked)),
        }
    }
}

/// Makes the error for an event that this program cannot fold.
pub(crate) fn unreadable(
    event: &gesta_core::RecordedEvent,
    why: &dyn std::fmt::Display,
) -> gesta_core::Error {
    gesta_core::Error::corrupt(format!(
        "stream {}, revision {}: {why}",
        event.stream, event.revision
    ))
}
