//! `gesta stream …`.

use clap::{Args, Subcommand};
use gesta_core::{EventId, EventType, ExpectedRevision, Revision, StreamId, Tag};

use super::Confirm;
use super::values::{
    After, ReadFrom, after_revision, at_least, event_id, event_type, expected, from_revision,
    number, stream, tag,
};

/// `gesta stream …`.
#[derive(Debug, Subcommand)]
pub(crate) enum StreamCommand {
    /// Append events: one from arguments, or one JSON object per line from standard input.
    Append(StreamAppend),
    /// Read a stream to its end.
    Read(StreamRead),
    /// Follow a stream.
    Tail(StreamTail),
    /// List streams in the binary order of their names.
    List(StreamList),
    /// Delete a stream. Its revisions go on if it is created again.
    Delete(StreamDelete),
    /// Show the metadata of a stream, or replace them.
    Metadata(StreamMetadata),
}

/// `gesta stream append`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without --type, events are read from standard input, one JSON object per line:\n  \
    {\"type\": \"item-added\", \"data\": {\"item\": \"book\"}, \"id\"?: UUID, \"metadata\"?: JSON, \"tags\"?: [\"…\"]}\n\
    \"data_base64\" instead of \"data\" holds binary data. All lines are one append, stored whole or not at all, unless --batch is given. \
    Events without id get one before they are sent; a lost answer is asked for again with the same ids, so nothing is stored twice."
)]
pub(crate) struct StreamAppend {
    /// The stream.
    #[arg(value_parser = stream)]
    pub(crate) stream: StreamId,
    /// Type of the event.
    #[arg(long = "type", value_name = "TYPE", requires = "data", value_parser = event_type)]
    pub(crate) event_type: Option<EventType>,
    /// Data of the event: JSON.
    #[arg(long, value_name = "JSON", requires = "event_type")]
    pub(crate) data: Option<String>,
    /// Metadata of the event: JSON.
    #[arg(long, value_name = "JSON", requires = "event_type")]
    pub(crate) metadata: Option<String>,
    /// A tag of the event; may be repeated.
    #[arg(long = "tag", value_name = "TAG", requires = "event_type", value_parser = tag)]
    pub(crate) tags: Vec<Tag>,
    /// Id of the event; a repeat with the same id stores nothing.
    #[arg(long, value_name = "UUID", requires = "event_type", value_parser = event_id)]
    pub(crate) id: Option<EventId>,
    /// What the stream must be: any, no-stream, stream-exists, or its last revision.
    #[arg(long, value_name = "WHAT", default_value = "any", allow_negative_numbers = true, value_parser = expected)]
    pub(crate) expected: ExpectedRevision,
    /// Append so many lines at a time, each batch as soon as it is complete, instead of all lines as one.
    #[arg(long, value_name = "EVENTS", conflicts_with = "event_type", value_parser = number(1_u16..=10_000))]
    pub(crate) batch: Option<u16>,
}

/// `gesta stream read`.
#[derive(Debug, Args)]
pub(crate) struct StreamRead {
    /// The stream.
    #[arg(value_parser = stream)]
    pub(crate) stream: StreamId,
    /// First revision to show (with --backwards: the last one).
    #[arg(long, value_name = "start|end|REVISION", value_parser = from_revision)]
    pub(crate) from: Option<ReadFrom<Revision>>,
    /// Newest first.
    #[arg(long)]
    pub(crate) backwards: bool,
    /// Stop after so many events.
    #[arg(long, value_name = "EVENTS", value_parser = at_least(1))]
    pub(crate) limit: Option<u64>,
}

/// `gesta stream tail`.
#[derive(Debug, Args)]
pub(crate) struct StreamTail {
    /// The stream; it need not exist yet.
    #[arg(value_parser = stream)]
    pub(crate) stream: StreamId,
    /// Begin after this revision, at the start, or at the end (only what is new).
    #[arg(long, value_name = "start|end|REVISION", default_value = "end", value_parser = after_revision)]
    pub(crate) after: After<Revision>,
    /// Stop after so many events.
    #[arg(long, value_name = "EVENTS", value_parser = at_least(1))]
    pub(crate) limit: Option<u64>,
}

/// `gesta stream list`.
#[derive(Debug, Args)]
pub(crate) struct StreamList {
    /// Only names that start with this. System streams are listed only if this starts with `$`.
    #[arg(long, alias = "stream-prefix", default_value = "")]
    pub(crate) prefix: String,
    /// Only names after this one.
    #[arg(long, value_name = "STREAM", value_parser = stream)]
    pub(crate) after: Option<StreamId>,
    /// Stop after so many streams.
    #[arg(long, value_name = "STREAMS", value_parser = at_least(1))]
    pub(crate) limit: Option<u64>,
}

/// `gesta stream delete`.
#[derive(Debug, Args)]
pub(crate) struct StreamDelete {
    /// The stream.
    #[arg(value_parser = stream)]
    pub(crate) stream: StreamId,
    /// What the stream must be: any, no-stream, stream-exists, or its last revision.
    #[arg(long, value_name = "WHAT", default_value = "any", allow_negative_numbers = true, value_parser = expected)]
    pub(crate) expected: ExpectedRevision,
    /// Close the name for ever.
    #[arg(long)]
    pub(crate) tombstone: bool,
    #[command(flatten)]
    pub(crate) confirm: Confirm,
}

/// `gesta stream metadata`.
#[derive(Debug, Args)]
pub(crate) struct StreamMetadata {
    /// The stream.
    #[arg(value_parser = stream)]
    pub(crate) stream: StreamId,
    /// Replace the metadata by this JSON object. Known keys: $maxAge (seconds), $maxCount, $tb (truncate before this
    /// revision), $acl (who may do what).
    #[arg(long, value_name = "JSON")]
    pub(crate) set: Option<String>,
    /// What the metadata stream must be: any, no-stream, stream-exists, or its last revision.
    #[arg(long, value_name = "WHAT", default_value = "any", requires = "set", allow_negative_numbers = true, value_parser = expected)]
    pub(crate) expected: ExpectedRevision,
}
