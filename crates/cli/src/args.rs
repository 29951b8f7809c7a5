//! The command line: commands are noun and verb, data commands take a store URL or a server URL.
//!
//! Not here: what the commands do (`commands`), configuration of the server (`config`).

mod access;
mod cluster;
mod confirm;
mod copy;
mod group;
mod index;
mod journal;
mod projection;
pub(crate) mod timer;
mod values;
mod virtual_streams;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use gesta_core::{Checkpoint, EventId, EventType, ExpectedRevision, Revision, StreamId, Tag};

pub(crate) use self::access::{
    AccessMode, NewPassword, TokenCommand, TokenCreate, TokenScope, UserAdd, UserCommand,
};
pub(crate) use self::cluster::{
    ClusterCommand, ClusterDrain, ClusterMove, ClusterMoveLog, ClusterPin, ClusterRecoverLog,
};
pub(crate) use self::confirm::Confirm;
pub(crate) use self::copy::CopyStore;
pub(crate) use self::group::{GroupCommand, GroupCreate};
pub(crate) use self::index::{Index, IndexCommand, IndexRun};
pub(crate) use self::journal::ImportJournal;
pub(crate) use self::projection::{NamedVersion, Projection, ProjectionCommand, Version};
pub(crate) use self::values::{After, ReadFrom};
use self::values::{
    after_checkpoint, after_revision, event_id, event_type, expected, from_checkpoint,
    from_revision, stream, tag,
};
pub(crate) use self::virtual_streams::VirtualStreamsCommand;
use crate::units::Span;

/// The server that data commands talk to unless told otherwise.
pub(crate) const DEFAULT_SERVER: &str = "http://127.0.0.1:2113";

const AFTER_HELP: &str = "\
Default store: http://127.0.0.1:2113 for stream, all, import, group, index, timer and info; sqlite:gesta-data/gesta.db for the others.
Only serve, stream append, all import, import, copy, schema create, user add and restore create a store that does not exist.

Exit codes:
  0    done
  1    another failure
  2    wrong usage or an invalid value
  3    stream or event not found, or closed by a tombstone
  4    the stream was not at the expected revision
  5    store or server unavailable, or overloaded: try again
  6    outcome unknown: repeat with the same event ids
  7    stored data is damaged
  8    the checkpoint cannot be used with this store
  9    who calls is not known, or may not do this
  130  stopped by Ctrl-C before it was done (serve: by a second one)";

/// An event store on the SQL database that you already run.
#[derive(Debug, Parser)]
#[command(name = "gesta", version = crate::version::LONG, after_help = AFTER_HELP, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command: one line each, since every help page has them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Global {
    /// The store: sqlite:PATH, postgres://… (repeated for each of its databases), or a server: http(s)://HOST:PORT
    /// [env: GESTA_STORE]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Vec<String>,
    /// Authorities to believe for https, in PEM form, instead of the system's [env: GESTA_CA_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// A file that holds the API token for a server [env: GESTA_TOKEN_FILE, or the token in GESTA_TOKEN]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Send tokens over http to other machines too, readable on the way
    #[arg(long, global = true)]
    pub(crate) plain_http: bool,
    /// A file that holds the URL of the store, or one for each database on a line of its own [env: GESTA_STORE_FILE]
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "store")]
    pub(crate) store_file: Option<PathBuf>,
    /// Data on standard output: pretty or json, one object per line
    #[arg(long, global = true, value_enum, default_value_t = OutputFormat::Pretty, hide_possible_values = true, hide_default_value = true)]
    pub(crate) output: OutputFormat,
    /// Log on standard error: text or json [env: GESTA_LOG_FORMAT]
    #[arg(long, global = true, value_enum, hide_possible_values = true)]
    pub(crate) log_format: Option<LogFormat>,
    /// Log lines, such as `debug` or `gesta_postgres=debug` [env: GESTA_LOG_FILTER]
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log_filter: Option<String>,
}

impl Global {
    /// Returns the store that the flags name. Several URLs are separated by spaces.
    pub(crate) fn store_urls(&self) -> Option<String> {
        (!self.store.is_empty()).then(|| self.store.join(" "))
    }
}

/// The form of data on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Text for people, which may change.
    Pretty,
    /// One JSON object per line.
    Json,
}

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the server.
    Serve(Serve),
    /// Append to, read, follow, list and delete streams.
    #[command(subcommand)]
    Stream(StreamCommand),
    /// Read, follow and import events of all streams.
    #[command(subcommand)]
    All(AllCommand),
    /// Import the journal of another event store, or of Akka, Pekko and the like; also while it is written.
    Import(ImportJournal),
    /// Copy a whole store into an empty one: on another database, or with another number of logs.
    Copy(CopyStore),
    /// Show, create and change consumer groups, and deliver parked events again.
    #[command(subcommand)]
    Group(GroupCommand),
    /// Show and steer projections: lag, parked events, pause, reset, versions.
    Projection(Projection),
    /// Keep an index over JSON paths, and find events by it.
    Index(Index),
    /// List and cancel timers that programs have set.
    #[command(subcommand)]
    Timer(timer::TimerCommand),
    /// Create, migrate and print the schema of a store.
    #[command(subcommand)]
    Schema(SchemaCommand),
    /// Show and direct the nodes that share a PostgreSQL database.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Create and change users. Once there is one, callers must log in.
    #[command(subcommand)]
    User(UserCommand),
    /// Create, list and revoke API tokens.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Read a whole store and check every promise that data can show.
    #[command(
        after_help = "A SQLite store that a server has open is checked through the server, by an administrator, or on a loopback address without users:\n  \
        gesta verify --store http://127.0.0.1:2113"
    )]
    Verify,
    /// Copy a SQLite store to a new file, also while a server has it open.
    Backup(Backup),
    /// Create a SQLite store from a backup, after checking it.
    Restore(Restore),
    /// Free what deletes and the metadata of streams hide.
    Scavenge(Scavenge),
    /// Switch virtual streams on or off: `$ce-…`, `$et-…` and `$streams`.
    #[command(subcommand)]
    VirtualStreams(VirtualStreamsCommand),
    /// Show what a store or server is.
    Info,
    /// Ask a server whether it is alive, or with --ready whether it can take appends: for probes where there is no
    /// curl. Without --store it is the server that the environment (GESTA_LISTEN, GESTA_CONFIG, …) configures.
    Health {
        /// Ask whether appends can succeed.
        #[arg(long)]
        ready: bool,
    },
    /// Show the version, and the commit from which the program was built.
    Version,
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command into a folder, for packages.
    Man {
        /// The folder; it must exist.
        folder: PathBuf,
    },
}

/// `gesta serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Address and port to listen on. Default: 127.0.0.1:2113. Environment: GESTA_LISTEN.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Host and port at which clients reach this server, if that is not the address of --listen: shown to clients that
    /// ask for the nodes, and without users the only name, beside localhost, by which requests may call the server.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise_clients: Option<String>,
    /// Allow an address that is not loopback without TLS and users; the Host is checked if --advertise-clients tells
    /// it.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Allow an address that is not loopback without TLS, because a proxy in front speaks TLS to clients. Callers must
    /// say who they are.
    #[arg(long)]
    pub(crate) behind_proxy: bool,
    /// When callers must say who they are: auto (as soon as the store has a user, and on addresses that are not
    /// loopback), on, or off.
    #[arg(long, value_enum, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) access: Option<AccessMode>,
    /// Let pages of this site, such as https://app.example.org, call the server from a browser; may be repeated.
    #[arg(long = "cors-origin", value_name = "ORIGIN")]
    pub(crate) cors_origins: Vec<String>,
    /// Believe a proxy at this address, or in this network, such as 10.0.0.0/8, from whom a request came
    /// (X-Forwarded-For); may be repeated.
    #[arg(long = "trusted-proxy", value_name = "NETWORK")]
    pub(crate) trusted_proxies: Vec<String>,
    /// Speak TLS with this certificate, in PEM form, and those that lead from it to an authority.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_certificate: Option<String>,
    /// The private key of the certificate, in PEM form.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_key: Option<String>,
    /// Let only clients connect that show a certificate of an authority in this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<String>,
    /// For trying out: speak TLS with a certificate of its own, created in this folder unless it exists. Clients must
    /// be given ca.pem of the folder.
    #[arg(long, value_name = "DIR", conflicts_with = "tls_certificate")]
    pub(crate) tls_self_signed: Option<String>,
    /// Be one of several nodes on this PostgreSQL database, and listen for the others here, such as 127.0.0.1:2114.
    #[arg(long, value_name = "ADDR")]
    pub(crate) node: Option<String>,
    /// Host and port at which the other nodes reach this one, if that is not the address of --node.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    /// File with the secret that all nodes share: at least 16 bytes.
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_secret_file: Option<String>,
    /// If the database does not answer yet, try for so long (such as 60s) instead of giving up at once.
    #[arg(long, value_name = "TIME")]
    pub(crate) wait_for_store: Option<Span>,
    /// Read settings from a TOML file; crates/cli/reference.toml documents each key. Environment: GESTA_CONFIG.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

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
    #[arg(long, value_name = "EVENTS", conflicts_with = "event_type", value_parser = clap::value_parser!(u16).range(1..=10_000))]
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
    #[arg(long, value_name = "EVENTS", value_parser = clap::value_parser!(u64).range(1..))]
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
    #[arg(long, value_name = "EVENTS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
}

/// `gesta stream list`.
#[derive(Debug, Args)]
pub(crate) struct StreamList {
    /// Only names that start with this. System streams are listed only if this starts with `$`.
    #[arg(long, default_value = "")]
    pub(crate) prefix: String,
    /// Only names after this one.
    #[arg(long, value_name = "STREAM", value_parser = stream)]
    pub(crate) after: Option<StreamId>,
    /// Stop after so many streams.
    #[arg(long, value_name = "STREAMS", value_parser = clap::value_parser!(u64).range(1..))]
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
    Events keep their order, id, data, metadata and tags; positions, revisions and times are made anew. An event without id gets one \
    from the text up to its line. An event whose id its stream has already is passed over, so an import that was stopped is simply \
    repeated; --skip only saves the time. Metadata of streams (`$$…`) are set at their place. Deletes, tombstones and $maxAge \
    cannot be imported: an input that has them is refused, since what they hide could be read. Consumer groups are made anew at \
    their place, with what they have parked; the report names each of them. A group on all events needs a file."
)]
pub(crate) struct AllImport {
    /// The file; standard input if absent or `-`.
    pub(crate) file: Option<PathBuf>,
    /// The stream of lines that name none.
    #[arg(long, value_name = "STREAM", value_parser = stream)]
    pub(crate) stream: Option<StreamId>,
    /// Pass over so many lines at the beginning.
    #[arg(long, value_name = "LINES", default_value_t = 0)]
    pub(crate) skip: u64,
    /// Most events that are appended at a time.
    #[arg(long, value_name = "EVENTS", default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) batch: u16,
    /// Let the events of streams that were deleted, tombstoned or bounded by $maxAge be read in the copy.
    #[arg(long)]
    pub(crate) revive_deleted: bool,
}

/// The events to show: values of one option are alternatives (tags: all of them), different options must all hold.
#[derive(Debug, Args)]
pub(crate) struct FilterArgs {
    /// Only events of this type; may be repeated: any of them.
    #[arg(long = "type", value_name = "TYPE", value_parser = event_type)]
    pub(crate) types: Vec<EventType>,
    /// Only streams whose name starts with this; may be repeated: any of them.
    #[arg(long = "stream-prefix", value_name = "PREFIX")]
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
    #[arg(long, value_name = "start|end|CHECKPOINT", value_parser = from_checkpoint)]
    pub(crate) from: Option<ReadFrom<Checkpoint>>,
    /// Newest first.
    #[arg(long)]
    pub(crate) backwards: bool,
    /// Stop after so many events.
    #[arg(long, value_name = "EVENTS", value_parser = clap::value_parser!(u64).range(1..))]
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
    #[arg(long, value_name = "EVENTS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

/// `gesta schema …`.
#[derive(Debug, Subcommand)]
pub(crate) enum SchemaCommand {
    /// Create the tables of a new store.
    Create {
        /// Number of logs. SQLite has one. It cannot be changed later.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
        logs: u16,
        /// Do nothing if the store exists and has so many logs: for scripts, and for several that begin at once.
        #[arg(long)]
        if_missing: bool,
        #[command(flatten)]
        on: On,
    },
    /// Bring the tables up to this version. Older servers can no longer use the store afterwards.
    Migrate,
    /// Print the statements that `create` would run.
    Print {
        /// Number of logs.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
        logs: u16,
        #[command(flatten)]
        on: On,
    },
    /// Give the store a new incarnation: old checkpoints are refused. Needed after every restore from a backup.
    NewIncarnation {
        #[command(flatten)]
        confirm: Confirm,
    },
}

/// The databases in which a new store is created.
#[derive(Debug, Args)]
pub(crate) struct On {
    /// A PostgreSQL database that gets its share of the logs; repeated for each. Instead of --store.
    #[arg(long = "on", value_name = "URL", conflicts_with_all = ["store", "store_file"])]
    databases: Vec<String>,
}

impl On {
    /// Returns these databases, or the store if none are given.
    pub(crate) fn urls(&self, store: &str) -> String {
        match self.databases.as_slice() {
            [] => store.to_owned(),
            databases => databases.join(" "),
        }
    }
}

/// `gesta backup`.
#[derive(Debug, Args)]
#[command(
    after_help = "A store that a server has open is copied through the server, by an administrator, or on a loopback address without users:\n  \
    gesta backup --store http://127.0.0.1:2113 copy.db\n\
    A store that nobody has open:\n  \
    gesta backup --store sqlite:gesta-data/gesta.db copy.db\n\
    PostgreSQL makes its own backups: pg_basebackup, pg_dump. Put a backup in place with `gesta restore`."
)]
pub(crate) struct Backup {
    /// The new file. It must not exist.
    pub(crate) to: PathBuf,
}

/// `gesta restore`.
#[derive(Debug, Args)]
#[command(
    after_help = "The new store is the one that --store names; nothing may be there yet:\n  \
    gesta restore copy.db --store sqlite:gesta-data/gesta.db\n\
    The copy is checked as by `gesta verify` and gets a new incarnation, so that checkpoints of the old store are refused. \
    Users, tokens and rights are those of the time of the backup: revoke again what was revoked since."
)]
pub(crate) struct Restore {
    /// The backup, a file made by `gesta backup`. It is not changed.
    pub(crate) from: PathBuf,
    /// FROM was made by SQLite itself from a store that was in use, and so is whole: by `sqlite3 .backup`, `VACUUM
    /// INTO` or Litestream. A file copied by cp, rsync or the like need not be whole, and is not to be restored this
    /// way.
    #[arg(long)]
    pub(crate) sqlite_copy: bool,
}

/// `gesta scavenge`.
#[derive(Debug, Args)]
#[command(
    after_help = "A SQLite store that a server has open is scavenged through the server, by an administrator, or on a loopback address without users:\n  \
    gesta scavenge --store http://127.0.0.1:2113"
)]
pub(crate) struct Scavenge {
    /// Only report what would be freed.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Make the file of a SQLite store smaller afterwards; without it, the room is used for new events. Needs room for
    /// two more files of that size.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) compact: bool,
    #[command(flatten)]
    pub(crate) confirm: Confirm,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_tree_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bad_arguments_are_refused() {
        for bad in [
            &["gesta", "stream", "read", ""][..],
            &["gesta", "stream", "read", "a\u{1}b"],
            &["gesta", "stream", "append", "a", "--data", "{}"],
            &["gesta", "stream", "append", "a", "--type", "t"],
            &["gesta", "stream", "append", "a", "--type", "t", "--id", "x"],
            &["gesta", "stream", "append", "a", "--batch", "0"],
            &["gesta", "stream", "read", "a", "--limit", "0"],
            &["gesta", "stream", "read", "a", "--from", "-1"],
            &["gesta", "all", "tail", "--after", "nonsense"],
            &["gesta", "schema", "create", "--logs", "0"],
            &["gesta", "schema", "create", "--logs", "1025"],
            &["gesta", "stream", "list", "--colour"],
            &["gesta"],
        ] {
            assert!(Cli::try_parse_from(bad).is_err(), "{bad:?}");
        }
    }
}
