//! [`ProtoEvents`]: events as Protocol Buffers by prost.
//!
//! Not here: chains of upcasts (`upcast`).

use std::collections::HashMap;
use std::fmt;

use bytes::Bytes;
use gesta_core::{ContentType, Error, EventType, Result};
use prost::{DecodeError, Message};

use super::upcast::{UpcastStep, Upcasts};
use super::{CodecError, Encoded, EventCodec, Stored, refuse_json};

/// A codec for events as Protocol Buffers, by prost. This is the smallest and fastest form, with a schema that other
/// languages share.
///
/// `E` is an enum of your own with one prost message per variant. Each message is declared with its type on disk, with
/// the way in which it becomes an event, and with the way in which an event gives it back. Fields may be added to a
/// message at any time, by the rules of Protocol Buffers. A greater change is a new type, with an upcast from the old
/// type.
///
/// Events that are no messages themselves are declared with [`mapped_event`](ProtoEventsBuilder::mapped_event).
///
/// Nesting deeper than 100 levels is refused before it is stored and when it is read. An event that was stored as JSON
/// is refused when it is read.
///
/// ```
/// use gesta_entity::{EventCodec, ProtoEvents, Stored};
///
/// #[derive(Clone, PartialEq, prost::Message)]
/// struct SeatReserved {
///     #[prost(uint32, tag = "1")]
///     number: u32,
/// }
/// #[derive(Debug, PartialEq)]
/// enum ShowEvent {
///     SeatReserved(SeatReserved),
///     Closed(()),
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let codec = ProtoEvents::<ShowEvent>::new()
///     .event("seat-reserved", ShowEvent::SeatReserved, |event| match event {
///         ShowEvent::SeatReserved(message) => Some(message),
///         _ => None,
///     })
///     .event("closed", ShowEvent::Closed, |event| match event {
///         ShowEvent::Closed(message) => Some(message),
///         _ => None,
///     })
///     .build()?;
///
/// let event = ShowEvent::SeatReserved(SeatReserved { number: 7 });
/// let encoded = codec.encode(&event)?;
/// assert_eq!(encoded.event_type.as_str(), "seat-reserved");
/// assert_eq!(&encoded.data[..], [0x08, 0x07]);
/// assert_eq!(codec.decode(Stored::from(&encoded))?, event);
/// # Ok(()) }
/// ```
pub struct ProtoEvents<E> {
    kinds: Vec<MessageKind<E>>,
    by_name: HashMap<EventType, usize>,
    upcasts: Upcasts,
}

/// One type of event.
struct MessageKind<E> {
    name: EventType,
    encode: Encode<E>,
    decode: Decode<E>,
}

impl<E> MessageKind<E> {
    /// Makes a type of event. The name that is returned beside it is for messages, because it may not be a valid event
    /// type.
    fn new<M: Message + Default>(
        name: String,
        encode: impl Fn(&E) -> Option<Written> + Send + Sync + 'static,
        from_message: impl Fn(M) -> std::result::Result<E, String> + Send + Sync + 'static,
    ) -> (String, Result<Self>) {
        let kind = EventType::new(name.as_str()).map(|name| Self {
            name,
            encode: Box::new(encode),
            decode: Box::new(move |data| {
                from_message(M::decode(data).map_err(|error| error.to_string())?)
            }),
        });
        (name, kind)
    }
}

/// Returns the message of an event as bytes, if the event is of this type.
type Encode<E> = Box<dyn Fn(&E) -> Option<Written> + Send + Sync>;
type Written = std::result::Result<Vec<u8>, DecodeError>;
type Decode<E> = Box<dyn Fn(&[u8]) -> std::result::Result<E, String> + Send + Sync>;

impl<E: 'static> ProtoEvents<E> {
    /// Begins a codec that knows no event yet.
    #[expect(
        clippy::new_ret_no_self,
        reason = "reads like the other codecs; what is not built is no codec"
    )]
    pub fn new() -> ProtoEventsBuilder<E> {
        ProtoEventsBuilder {
            kinds: Vec::new(),
            steps: Vec::new(),
        }
    }
}

/// The events of a [`ProtoEvents`] as they are declared. [`build`](Self::build) checks them.
#[must_use = "call build()"]
pub struct ProtoEventsBuilder<E> {
    kinds: Vec<(String, Result<MessageKind<E>>)>,
    steps: Vec<UpcastStep>,
}

impl<E: 'static> ProtoEventsBuilder<E> {
    /// Stores the message `M` as an event of type `name`.
    ///
    /// `wrap` makes the event from the message; usually the event is a variant of the enum. `unwrap` gives the message
    /// of an event, or `None` if the event is of another type. The first declared type whose `unwrap` gives a message
    /// wins.
    pub fn event<M: Message + Default>(
        mut self,
        name: impl Into<String>,
        wrap: impl Fn(M) -> E + Send + Sync + 'static,
        unwrap: impl Fn(&E) -> Option<&M> + Send + Sync + 'static,
    ) -> Self {
        self.kinds.push(MessageKind::new(
            name.into(),
            move |event| unwrap(event).map(write),
            move |message| Ok(wrap(message)),
        ));
        self
    }

    /// Stores an event as the message `M` of type `name`, if the two are different types. This is for a domain that
    /// knows nothing of Protocol Buffers.
    ///
    /// `to_message` makes the message of an event, or gives `None` if the event is of another type. The first declared
    /// type that gives a message wins. `from_message` makes the event again; its error says what is wrong with the
    /// message and makes the event malformed.
    ///
    /// ```
    /// # use gesta_entity::ProtoEvents;
    /// use std::net::IpAddr;
    ///
    /// #[derive(Clone, PartialEq, prost::Message)]
    /// struct PeerJoined {
    ///     #[prost(string, tag = "1")]
    ///     address: String,
    /// }
    /// enum Event {
    ///     Joined { address: IpAddr },
    /// }
    ///
    /// let codec = ProtoEvents::<Event>::new()
    ///     .mapped_event(
    ///         "peer-joined",
    ///         |event| match event {
    ///             Event::Joined { address } => Some(PeerJoined { address: address.to_string() }),
    ///         },
    ///         |message| match message.address.parse() {
    ///             Ok(address) => Ok(Event::Joined { address }),
    ///             Err(error) => Err(format!("address: {error}")),
    ///         },
    ///     )
    ///     .build();
    /// assert!(codec.is_ok());
    /// ```
    pub fn mapped_event<M: Message + Default>(
        mut self,
        name: impl Into<String>,
        to_message: impl Fn(&E) -> Option<M> + Send + Sync + 'static,
        from_message: impl Fn(M) -> std::result::Result<E, String> + Send + Sync + 'static,
    ) -> Self {
        self.kinds.push(MessageKind::new(
            name.into(),
            move |event| to_message(event).map(|message| write(&message)),
            from_message,
        ));
        self
    }

    /// Reads messages `Old` that are stored as `from` as messages `New` of type `to`, which is declared as an event or
    /// begins another upcast.
    ///
    /// The error of `convert` says what is wrong with the message and makes the event malformed. `convert` runs at
    /// each read of an old event and must always give the same answer. What is stored never changes.
    ///
    /// ```
    /// # use gesta_entity::ProtoEvents;
    /// # #[derive(Clone, PartialEq, prost::Message)]
    /// # struct Paid { #[prost(uint64, tag = "1")] cents: u64 }
    /// # #[derive(Clone, PartialEq, prost::Message)]
    /// # struct PaidV1 { #[prost(uint32, tag = "1")] euros: u32 }
    /// # struct Event(Paid);
    /// let codec = ProtoEvents::<Event>::new()
    ///     .event("paid.v2", Event, |event| Some(&event.0))
    ///     .upcast("paid", "paid.v2", |old: PaidV1| Ok(Paid { cents: u64::from(old.euros) * 100 }))
    ///     .build();
    /// assert!(codec.is_ok());
    /// ```
    pub fn upcast<Old: Message + Default, New: Message>(
        mut self,
        from: impl Into<String>,
        to: impl Into<String>,
        convert: impl Fn(Old) -> std::result::Result<New, String> + Send + Sync + 'static,
    ) -> Self {
        self.steps.push(UpcastStep {
            from: from.into(),
            to: to.into(),
            convert: Box::new(move |data| {
                let old = Old::decode(data).map_err(|error| error.to_string())?;
                Ok(convert(old)?.encode_to_vec())
            }),
        });
        self
    }

    /// Checks what was declared and returns the codec.
    ///
    /// # Errors
    /// `InvalidArgument` if the name of a type is no [`EventType`] or was declared twice. The error is also returned if
    /// an upcast is declared twice, begins at the type of an event, leads in a circle, or leads to a type that is
    /// neither declared nor upcast.
    pub fn build(self) -> Result<ProtoEvents<E>> {
        let mut kinds: Vec<MessageKind<E>> = Vec::with_capacity(self.kinds.len());
        let mut by_name = HashMap::with_capacity(self.kinds.len());
        for (name, kind) in self.kinds {
            let kind =
                kind.map_err(|error| Error::invalid("codec", format!("event {name:?}: {error}")))?;
            if by_name.insert(kind.name.clone(), kinds.len()).is_some() {
                return Err(Error::invalid(
                    "codec",
                    format!("event {name:?}: is declared twice"),
                ));
            }
            kinds.push(kind);
        }
        let upcasts = Upcasts::new(self.steps, |name| by_name.contains_key(name))?;
        Ok(ProtoEvents {
            kinds,
            by_name,
            upcasts,
        })
    }
}

/// The length in bytes from which on a message may be nested deeper than the 100 levels that prost reads: a level takes
/// two bytes.
const MAY_BE_TOO_DEEP_BYTES: usize = 200;

/// Returns the bytes of a message, which can surely be read back.
///
/// prost writes any nesting. An event that is stored and cannot be read locks its entity for ever. So a message that is
/// long enough to be too deep is read before it is stored.
fn write<M: Message + Default>(message: &M) -> Written {
    let data = message.encode_to_vec();
    if data.len() >= MAY_BE_TOO_DEEP_BYTES {
        M::decode(data.as_slice())?;
    }
    Ok(data)
}

impl<E: 'static> EventCodec<E> for ProtoEvents<E> {
    fn encode(&self, event: &E) -> std::result::Result<Encoded, CodecError> {
        let found = self
            .kinds
            .iter()
            .find_map(|kind| Some((kind, (kind.encode)(event)?)));
        let Some((kind, data)) = found else {
            return Err(CodecError::Unwritable(format!(
                "it is none of the types {:?}",
                self.kinds.iter().map(|kind| &kind.name).collect::<Vec<_>>()
            )));
        };
        let data = data.map_err(|error| CodecError::Unwritable(error.to_string()))?;
        Ok(Encoded {
            event_type: kind.name.clone(),
            content_type: ContentType::Binary,
            data: Bytes::from(data),
        })
    }

    fn decode(&self, stored: Stored<'_>) -> std::result::Result<E, CodecError> {
        refuse_json(stored)?;
        let upcast = self.upcasts.apply(stored.event_type, stored.data)?;
        let (name, data) = match &upcast {
            Some((name, data)) => (*name, data.as_slice()),
            None => (stored.event_type, stored.data.as_ref()),
        };
        let kind = self
            .by_name
            .get(name)
            .and_then(|index| self.kinds.get(*index))
            .ok_or_else(|| CodecError::UnknownType(name.to_owned()))?;
        (kind.decode)(data).map_err(|error| CodecError::malformed(stored.event_type, name, error))
    }
}

impl<E> fmt::Debug for ProtoEvents<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.kinds.iter().map(|kind| &kind.name).collect();
        f.debug_struct("ProtoEvents")
            .field("events", &names)
            .field("upcasts", &self.upcasts)
            .finish()
    }
}

impl<E> fmt::Debug for ProtoEventsBuilder<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.kinds.iter().map(|(name, _)| name).collect();
        f.debug_struct("ProtoEventsBuilder")
            .field("events", &names)
            .field("upcasts", &self.steps.len())
            .finish()
    }
}
