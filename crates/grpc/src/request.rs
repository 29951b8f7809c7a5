//! The messages that clients send, and how much one of them may hold once it is decoded.
//!
//! Why: an element of a list takes two bytes in a message and up to 700 bytes once it is decoded, so the size of a
//! message does not bound the memory that it takes. The elements are therefore counted before anything is decoded.
//! Invariants: only fields that are lists or maps in the schema count, and only fields that hold such fields are looked
//! into, so the data of events are never taken for messages; what the count cannot read is refused, so that the decoder
//! reads nothing that was not counted; a test compares the shapes below with the schema.

use bytes::Buf;
use gesta_core::limits;
use prost::Message;
use prost::encoding::decode_varint;

use crate::Result;
use crate::messages::{
    groups, health, monitoring, operations, projections, shared, streams, users, v2,
};
use crate::refusal::{Code, Refusal};

/// How much a message may hold.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most bytes of the message as it is sent.
    pub bytes_max: usize,
    /// Most elements of all its lists and maps together, whatever they are nested in.
    pub elements_max: usize,
    /// Makes the refusal of a message that holds more. It takes the reason, and the bytes of the message.
    pub refuse: fn(String, usize) -> Refusal,
}

/// Bounds of a message that holds events. The largest append has 10,000 events, so each of them may have 49 elements of
/// its own; most clients send two. A message with that many elements takes about 350 MB once it is decoded. Each thread
/// of the server holds one such message at most: a message is decoded and made events without waiting in between.
const EVENTS: Bounds = Bounds {
    bytes_max: limits::APPEND_BYTES_MAX + 4 * 1_024 * 1_024,
    elements_max: 50 * limits::APPEND_EVENTS_MAX,
    refuse: |text, _| Refusal::too_large(text, limits::APPEND_BYTES_MAX),
};

/// Bounds of a message of the second version that holds events.
const RECORDS_V2: Bounds = Bounds {
    refuse: |text, bytes| crate::v2::too_large(bytes, text),
    ..EVENTS
};

impl Bounds {
    /// Bounds of a message without events. The largest filter has 64 KiB and 10,000 prefixes.
    pub const OTHERS: Bounds = Bounds {
        bytes_max: 1_024 * 1_024,
        elements_max: 50_000,
        refuse: |text, _| Refusal::new(Code::ResourceExhausted, text),
    };
}

const OTHERS: Bounds = Bounds::OTHERS;

/// Levels of messages within messages that are read. The decoder refuses those that are deeper.
const DEPTH_MAX: usize = 100;

/// A message that clients send.
pub trait Request: Message + Default {
    /// How much the message may hold.
    const BOUNDS: Bounds;

    /// Checks that the bytes of a message have no more elements than they may.
    ///
    /// # Errors
    /// The refusal of [`Bounds::refuse`] if there are more; `InvalidArgument` if the bytes are no message.
    fn check(bytes: &[u8]) -> Result<()>;
}

/// The fields of a message that are lists or maps, or that lead to such fields.
struct Shape(&'static [Field]);

struct Field {
    number: u64,
    times: Times,
    /// Shape of the message in the field; `None` if nothing in it counts, or if it is no message.
    inside: Option<&'static Shape>,
}

/// Whether a field is an element each time it comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Times {
    Once,
    Many,
}

/// Makes a shape: the number of each field, how often it comes, and what is inside.
macro_rules! shape {
    ($name:ident, $($number:literal $times:ident $($inside:ident)?),*) => {
        static $name: Shape = Shape(&[$(Field {
            number: $number,
            times: Times::$times,
            inside: shape!(@inside $($inside)?),
        }),*]);
    };
    (@inside) => { None };
    (@inside $inside:ident) => { Some(&$inside) };
}

shape!(PLAIN,);
shape!(EXPRESSION, 2 Many);
shape!(FILTER, 1 Once EXPRESSION, 2 Once EXPRESSION);
shape!(READ_OPTIONS, 7 Once FILTER);
shape!(READ, 1 Once READ_OPTIONS);
shape!(EVENT, 2 Many);
shape!(APPEND, 2 Once EVENT);
shape!(BATCH, 3 Many EVENT);
shape!(VALUE, 5 Once STRUCT, 6 Once LIST);
shape!(LIST, 1 Many VALUE);
shape!(STRUCT, 1 Many ENTRY);
shape!(ENTRY, 2 Once VALUE);
shape!(RECORD, 2 Many ENTRY);
shape!(SESSION, 2 Many RECORD);
shape!(RECORDS, 1 Many RECORD, 2 Many);
shape!(ANSWERED, 2 Many);
shape!(CONSUME, 2 Once ANSWERED, 3 Once ANSWERED);
shape!(ALL_OPTIONS, 4 Once FILTER);
shape!(GROUP_OPTIONS, 5 Once ALL_OPTIONS);
shape!(GROUP, 1 Once GROUP_OPTIONS);
shape!(USER_OPTIONS, 4 Many);
shape!(USER, 1 Once USER_OPTIONS);

/// Lists the messages that clients send, by their names in the schema.
macro_rules! requests {
    ($($bounds:ident $shape:ident $message:path = $name:literal;)*) => {
        $(impl Request for $message {
            const BOUNDS: Bounds = $bounds;

            fn check(bytes: &[u8]) -> Result<()> {
                check(bytes, &$shape, $bounds)
            }
        })*

        #[cfg(test)]
        const SHAPES: &[(&str, &Shape)] = &[$(($name, &$shape)),*];
    };
}

requests! {
    OTHERS PLAIN shared::Empty = "event_store.client.Empty";
    OTHERS READ streams::ReadReq = "event_store.client.streams.ReadReq";
    EVENTS APPEND streams::AppendReq = "event_store.client.streams.AppendReq";
    EVENTS BATCH streams::BatchAppendReq = "event_store.client.streams.BatchAppendReq";
    OTHERS PLAIN streams::DeleteReq = "event_store.client.streams.DeleteReq";
    OTHERS PLAIN streams::TombstoneReq = "event_store.client.streams.TombstoneReq";
    RECORDS_V2 SESSION v2::AppendRequest = "kurrentdb.protocol.v2.streams.AppendRequest";
    RECORDS_V2 RECORDS v2::AppendRecordsRequest = "kurrentdb.protocol.v2.streams.AppendRecordsRequest";
    OTHERS CONSUME groups::ReadReq = "event_store.client.persistent_subscriptions.ReadReq";
    OTHERS GROUP groups::CreateReq = "event_store.client.persistent_subscriptions.CreateReq";
    OTHERS GROUP groups::UpdateReq = "event_store.client.persistent_subscriptions.UpdateReq";
    OTHERS PLAIN groups::DeleteReq = "event_store.client.persistent_subscriptions.DeleteReq";
    OTHERS PLAIN groups::GetInfoReq = "event_store.client.persistent_subscriptions.GetInfoReq";
    OTHERS PLAIN groups::ReplayParkedReq = "event_store.client.persistent_subscriptions.ReplayParkedReq";
    OTHERS PLAIN groups::ListReq = "event_store.client.persistent_subscriptions.ListReq";
    OTHERS PLAIN monitoring::StatsReq = "event_store.client.monitoring.StatsReq";
    OTHERS PLAIN operations::StartScavengeReq = "event_store.client.operations.StartScavengeReq";
    OTHERS PLAIN operations::StopScavengeReq = "event_store.client.operations.StopScavengeReq";
    OTHERS PLAIN operations::SetNodePriorityReq = "event_store.client.operations.SetNodePriorityReq";
    OTHERS PLAIN projections::StatisticsReq = "event_store.client.projections.StatisticsReq";
    OTHERS PLAIN projections::EnableReq = "event_store.client.projections.EnableReq";
    OTHERS PLAIN projections::DisableReq = "event_store.client.projections.DisableReq";
    OTHERS PLAIN health::HealthCheckRequest = "grpc.health.v1.HealthCheckRequest";
    OTHERS USER users::CreateReq = "event_store.client.users.CreateReq";
    OTHERS USER users::UpdateReq = "event_store.client.users.UpdateReq";
    OTHERS PLAIN users::DeleteReq = "event_store.client.users.DeleteReq";
    OTHERS PLAIN users::DisableReq = "event_store.client.users.DisableReq";
    OTHERS PLAIN users::EnableReq = "event_store.client.users.EnableReq";
    OTHERS PLAIN users::DetailsReq = "event_store.client.users.DetailsReq";
    OTHERS PLAIN users::ResetPasswordReq = "event_store.client.users.ResetPasswordReq";
    OTHERS PLAIN users::ChangePasswordReq = "event_store.client.users.ChangePasswordReq";
}

fn check(bytes: &[u8], shape: &Shape, bounds: Bounds) -> Result<()> {
    let elements_max = bounds.elements_max;
    let mut left = elements_max;
    walk(bytes, shape, 0, &mut left).map_err(|stop| match stop {
        Stop::TooMany => (bounds.refuse)(
            format!("the lists and maps of a message must have at most {elements_max} elements"),
            bytes.len(),
        ),
        Stop::Unreadable(rule) => unreadable(rule),
    })
}

/// Refuses bytes that are no message.
pub(crate) fn unreadable(reason: impl std::fmt::Display) -> Refusal {
    Refusal::invalid(format!("the message cannot be read: {reason}"))
}

/// The reason why a count ended early.
enum Stop {
    TooMany,
    Unreadable(&'static str),
}

/// Takes each element of a message from `left`. Each byte is looked at once for each level that it lies in.
fn walk(
    mut bytes: &[u8],
    shape: &Shape,
    depth: usize,
    left: &mut usize,
) -> std::result::Result<(), Stop> {
    if depth > DEPTH_MAX {
        return Err(Stop::Unreadable("it is nested too deep"));
    }
    while !bytes.is_empty() {
        let Some((number, content)) = next_field(&mut bytes).map_err(Stop::Unreadable)? else {
            continue;
        };
        let Some(field) = shape.0.iter().find(|field| field.number == number) else {
            continue;
        };
        if field.times == Times::Many {
            *left = left.checked_sub(1).ok_or(Stop::TooMany)?;
        }
        if let Some(inside) = field.inside {
            walk(content, inside, depth + 1, left)?;
        }
    }
    Ok(())
}

/// Takes a field. Returns its number and its content; `None` if it is a number, which has no content.
fn next_field<'a>(
    bytes: &mut &'a [u8],
) -> std::result::Result<Option<(u64, &'a [u8])>, &'static str> {
    let key = varint(bytes)?;
    let fixed = match key & 7 {
        0 => {
            varint(bytes)?;
            return Ok(None);
        }
        1 => 8,
        5 => 4,
        2 => {
            let length = usize::try_from(varint(bytes)?).map_err(|_| CUT)?;
            let (content, rest) = bytes.split_at_checked(length).ok_or(CUT)?;
            *bytes = rest;
            return Ok(Some((key >> 3, content)));
        }
        // Groups are older than this protocol. The decoder would pass over them.
        _ => return Err("a field has a type that the protocol does not have"),
    };
    if bytes.len() < fixed {
        return Err(CUT);
    }
    bytes.advance(fixed);
    Ok(None)
}

const CUT: &str = "a field is cut";

/// Reads a number as the decoder does.
fn varint(bytes: &mut &[u8]) -> std::result::Result<u64, &'static str> {
    decode_varint(bytes).map_err(|_| "a number is cut or too large")
}

#[cfg(test)]
mod tests;
