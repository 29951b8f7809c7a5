//! `gesta all …`, and the filters of whatever shows events.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use gesta_core::{Checkpoint, EventType, StreamId, Tag};

use super::values::{
    After, ReadFrom, after_checkpoint, at_least, event_type, from_checkpoint, number, stream, tag,
};

/// `gesta all …`.
#[derive(Debug, Subcommand)]
pub(crate) enum AllCommand {
    /// Read all events, up to the present end.
    Read(AllRead),
    /// Follow all events; goes on after a restart of the server.
    Tail(AllTail),
    /// Append what `stream read` or `all read` has printed with --output json.
    Import(AllImport),
}

/// `gesta all import`.
#[derive(Debug, Args)]
#[command(
    after_help = "Each line is one event, as `gesta all read --output json` prints it:\n  \
    {\"stream\": \"cart-1\", \"type\": \"item-added\", \"data\": {\"item\": \"book\"}, \"id\"?: UUID, \"metadata\"?: JSON, \"tags\"?: [\"…\"]}\n\
    Events keep their order, id, data, metadata and tags; positions, revisions and times are those of the import. An event without id gets one \
    from the text up to its line. An event whose id its stream has already is passed over, so an import that was stopped is simply \
    repeated; --skip only saves the time. Metadata of streams (`$$…`) are set at their place. Deletes, tombstones and $maxAge \
    cannot be imported: an input that has them is refused, since what they hide could be read. Lines of users, tokens and \
    default rights (`$user-…`, `$token-…`, `$settings`, `$access`) are refused: on a store itself their author would be its \
    administrator. Consumer groups are created again at their place, with what they have parked; the report names each of them. A group \
    on all events needs a file."
)]
pub(crate) struct AllImport {
    /// The file; standard input if absent or `-`.
    pub(crate) file: Option<PathBuf>,
    /// The stream of lines that name none.
    #[arg(long, value_name = "STREAM", value_parser = stream)]
    pub(crate) stream: Option<StreamId>,
    /// Pass over so many lines at the beginning.
    #[arg(long, value_name = "LINES", default_value_t = 0, value_parser = at_least(0))]
    pub(crate) skip: u64,
    /// Most events that are appended at a time.
    #[arg(long, value_name = "EVENTS", default_value_t = 1_000, value_parser = number(1_u16..=10_000))]
    pub(crate) batch: u16,
    /// Let the events of streams that were deleted, tombstoned or bounded by $maxAge be read in the copy, and those
    /// that $tb would hide since they get other revisions.
    #[arg(long)]
    pub(crate) revive_deleted: bool,
    /// Take users, tokens and default rights of the input too, into a store that has none. Such an import is repeated
    /// from a file only.
    #[arg(long)]
    pub(crate) with_accounts: bool,
}

/// The events to show: values of one option are alternatives (tags: all of them), different options must all hold.
#[derive(Debug, Args)]
pub(crate) struct FilterArgs {
    /// Only events of this type; may be repeated: any of them.
    #[arg(long = "type", value_name = "TYPE", value_parser = event_type)]
    pub(crate) types: Vec<EventType>,
    /// Only streams whose name starts with this; may be repeated: any of them.
    #[arg(long = "stream-prefix", alias = "prefix", value_name = "PREFIX")]
    pub(crate) stream_prefixes: Vec<String>,
    /// Only streams of this category, the text before the first `-`; may be repeated: any of them.
    #[arg(long = "category", value_name = "CATEGORY")]
    pub(crate) categories: Vec<String>,
    /// Only events with this tag; may be repeated: all of them.
    #[arg(long = "tag", value_name = "TAG", value_parser = tag)]
    pub(crate) tags: Vec<Tag>,
}

/// `gesta all read`.
#[derive(Debug, Args)]
pub(crate) struct AllRead {
    /// Begin after this checkpoint (with --backwards: at it).
    #[arg(long, alias = "after", value_name = "start|end|CHECKPOINT", value_parser = from_checkpoint)]
    pub(crate) from: Option<ReadFrom<Checkpoint>>,
    /// Newest first.
    #[arg(long)]
    pub(crate) backwards: bool,
    /// Stop after so many events.
    #[arg(long, value_name = "EVENTS", value_parser = at_least(1))]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

/// `gesta all tail`.
#[derive(Debug, Args)]
pub(crate) struct AllTail {
    /// Begin after this checkpoint, at the start, or at the end (only what is new).
    #[arg(long, value_name = "start|end|CHECKPOINT", default_value = "end", value_parser = after_checkpoint)]
    pub(crate) after: After<Checkpoint>,
    /// Stop after so many events.
    #[arg(long, value_name = "EVENTS", value_parser = at_least(1))]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}
