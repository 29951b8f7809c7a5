//! The command line: commands are noun and verb, data commands take a store URL or a server URL.
//!
//! Not here: what the commands do (`commands`), configuration of the server (`config`).

mod access;
mod all;
mod cluster;
mod confirm;
mod copy;
mod group;
mod index;
mod journal;
mod maintenance;
mod projection;
mod relocation;
mod schema;
mod serve;
mod stream;
pub(crate) mod timer;
mod values;
mod virtual_streams;

use std::path::PathBuf;

use clap::builder::{NonEmptyStringValueParser, StyledStr};
use clap::error::{ContextKind, ContextValue};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

pub(crate) use self::access::{
    AccessMode, NewPassword, TokenCommand, TokenCreate, TokenScope, UserAdd, UserCommand,
};
pub(crate) use self::all::{AllCommand, AllImport, AllRead, FilterArgs};
pub(crate) use self::cluster::{
    ClusterCommand, ClusterDrain, ClusterMove, ClusterMoveLog, ClusterPin, ClusterRecoverLog,
};
pub(crate) use self::confirm::Confirm;
pub(crate) use self::copy::CopyStore;
pub(crate) use self::group::{GroupCommand, GroupCreate};
pub(crate) use self::index::{Index, IndexCommand, IndexRun};
pub(crate) use self::journal::ImportJournal;
pub(crate) use self::maintenance::{Backup, Restore, Scavenge};
pub(crate) use self::projection::{NamedVersion, Projection, ProjectionCommand, Version};
pub(crate) use self::relocation::MoveStore;
pub(crate) use self::schema::SchemaCommand;
pub(crate) use self::serve::Serve;
pub(crate) use self::stream::{
    StreamAppend, StreamCommand, StreamDelete, StreamList, StreamMetadata, StreamRead,
};
pub(crate) use self::values::{After, ReadFrom};
pub(crate) use self::virtual_streams::VirtualStreamsCommand;

/// The server that data commands talk to unless told otherwise.
pub(crate) const DEFAULT_SERVER: &str = "http://127.0.0.1:2113";

const AFTER_HELP: &str = "\
Default store: http://127.0.0.1:2113 for stream, all, import, group, index, timer and info; sqlite:gesta-data/gesta.db for the others.
Only serve, stream append, all import, import, copy, move, schema create, user add and restore create a store that does not exist.

Exit codes:
  0    done
  1    another failure
  2    wrong usage or an invalid value
  3    stream or event not found, or closed by a tombstone
  4    the stream was not at the expected revision, or the events were stored before and it was deleted since
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
    /// The store: sqlite:PATH, postgres://… or http(s)://HOST:PORT, a server; repeated for several databases or nodes
    /// [env: GESTA_STORE]
    #[arg(long, global = true, value_name = "URL", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) store: Vec<String>,
    /// Authorities to believe for https, in PEM form, instead of the system's [env: GESTA_CA_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// A file that holds the API token for a server [env: GESTA_TOKEN_FILE, or the token in GESTA_TOKEN]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Send tokens and passwords without TLS to other machines too
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

/// Takes the options of every command out of the usage line of an error. The line repeats each option that was given
/// beside those that must be given, so that `--store` would look like one of the latter.
pub(crate) fn without_common_options(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else {
        return error;
    };
    let command = Cli::command();
    let common = command.get_arguments().filter(|arg| arg.is_global_set());
    let common: Vec<(String, bool)> = common
        .filter_map(|arg| {
            Some((
                format!("--{}", arg.get_long()?),
                arg.get_action().takes_values(),
            ))
        })
        .collect();
    let styled = usage.ansi().to_string();
    let mut words = styled.split(' ').peekable();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let shown = plain(word);
        match common.iter().find(|(option, _)| *option == shown) {
            // Its value goes with it.
            Some((_, has_value)) => {
                words.next_if(|_| *has_value);
            }
            None => kept.push(word),
        }
    }
    let usage = StyledStr::from(kept.join(" "));
    error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    error
}

/// Returns a word without the sequences that change its looks on a terminal.
fn plain(word: &str) -> String {
    let mut parts = word.split('\u{1b}');
    let begin = parts.next().unwrap_or_default();
    let rest = parts.map(|part| part.split_once('m').map_or("", |(_, text)| text));
    std::iter::once(begin).chain(rest).collect()
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
    /// Move a store to another database while it is in use, or take that back.
    Move(MoveStore),
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
        /// The folder; it is made if it does not exist.
        folder: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_tree_is_sound() {
        Cli::command().debug_assert();
    }

    fn refusal(arguments: &[&str]) -> String {
        let refused = Cli::try_parse_from(arguments).expect_err("refused");
        without_common_options(refused).to_string()
    }

    /// What happened: whoever gave `--store` and forgot something else was shown `--store` as if it were required.
    #[test]
    fn usage_lines_show_what_must_be_given() {
        let append = ["gesta", "stream", "append"];
        for options in [
            &["--store", "sqlite:x"][..],
            &["--store=a", "--store=b", "--plain-http", "--output", "json"],
            &["--plain-http"],
            &[],
        ] {
            let told = refusal(&[&append[..], options].concat());
            assert!(
                told.contains("Usage: gesta stream append <STREAM>"),
                "{told}"
            );
        }
        let told = refusal(&["gesta", "cluster", "move", "3", "--store", "x"]);
        assert!(
            told.contains("Usage: gesta cluster move --to <NODE> <LOG>"),
            "{told}"
        );
        // What the option lacks is still told of it.
        let told = refusal(&["gesta", "info", "--store", ""]);
        assert!(told.contains("--store <URL>"), "{told}");
        assert_eq!(plain("\u{1b}[1m--store\u{1b}[0m"), "--store");
    }

    /// What happened: errors of numbers and ids were those of Rust, such as *invalid digit found in string*.
    #[test]
    fn wrong_numbers_and_ids_are_refused_with_the_rule() {
        for wrong in ["abc", "-1", "1.5", "99999999999999999999999"] {
            for command in [
                "stream read a --limit",
                "stream tail a --limit",
                "stream list --limit",
                "stream read a --from",
                "stream append a --batch",
                "stream append a --type t --data 1 --id",
                "all read --limit",
                "all tail --limit",
                "all import --skip",
                "all import --batch",
                "schema create --logs",
                "schema print --logs",
                "copy a b --logs",
                "index find i a=1 --limit",
                "index run i --path a --version",
                "projection info p --version",
                "projection parked p --limit",
                "timer list --limit",
                "group replay-parked s::g --stop-at",
                "group reset s::g --to",
                "cluster unpin",
                "cluster pin",
                "cluster move",
                "cluster move-log",
                "cluster recover-log",
                "cluster history --limit",
                "cluster drain n --wait",
            ] {
                let command = format!("gesta {command}");
                // An option takes a value that begins with a hyphen only if they are one word.
                let is_option = command.contains(" --");
                let between = if is_option { "=" } else { " " };
                if !is_option && wrong.starts_with('-') {
                    continue;
                }
                let command = format!("{command}{between}{wrong}");
                let told = refusal(&command.split(' ').collect::<Vec<_>>());
                assert!(told.contains(": must be "), "{command}: {told}");
                for word in ["digit", "string", "character", " not in "] {
                    assert!(!told.contains(word), "{command}: {told}");
                }
            }
        }
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
