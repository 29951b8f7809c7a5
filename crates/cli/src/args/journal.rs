//! The arguments of `gesta import`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use gesta_core::units::Span;
use gesta_import::{Kind, NameRule};

/// `gesta import`.
#[derive(Debug, Args)]
#[command(after_help = "Kinds and what SOURCE is for each:\n  \
    akka-persistence-jdbc, pekko-persistence-jdbc     postgres://…\n  \
    akka-persistence-r2dbc, pekko-persistence-r2dbc   postgres://…\n  \
    akka-persistence-postgres (SwissBorg)             postgres://…\n  \
    akka-persistence-sql (.NET)                       postgres://… or sqlite:PATH\n  \
    elixir-eventstore, message-db, marten             postgres://…\n  \
    emmett                                            postgres://… or sqlite:PATH\n  \
    kurrentdb                                         kurrentdb://USER:PASSWORD@HOST:PORT, or esdb://…\n  \
    lines                                             a file, or - for standard input\n\
    The target is the store of --store; straight into a database it is quicker than through a server. An import that was \
    stopped is simply repeated, and goes on where it was; nothing is stored twice. Where each event stood, and when it was \
    written, is in its metadata under $source. --names is a text with {key}, {category}, {id}, {tenant}, each perhaps with \
    :lower; without it Account|7 becomes account-7. See docs/reference/import.md.")]
pub(crate) struct ImportJournal {
    /// Where the journal is. A password need not stand here: PGPASSWORD, ~/.pgpass and this variable work too.
    #[arg(
        value_name = "SOURCE",
        env = "GESTA_IMPORT_SOURCE",
        hide_env_values = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub(crate) source: String,
    /// Which journal it is; see below.
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Kind,
    /// Store nothing: read the whole source, count, and tell what cannot be imported.
    #[arg(long, conflicts_with = "follow")]
    pub(crate) dry_run: bool,
    /// Go on with what is written to the source from now on, until Ctrl-C.
    #[arg(long)]
    pub(crate) follow: bool,
    /// How names of streams are made, such as `{category:lower}-{id}` or `old-{key}`.
    #[arg(long, value_name = "RULE")]
    pub(crate) names: Option<NameRule>,
    /// How types of events are made: as-is, short (the last part of a class name), or a file with a JSON object from
    /// types of the source to types.
    #[arg(long, value_name = "RULE", default_value = "as-is")]
    pub(crate) types: String,
    /// Turn each event by this command, which is started once and answers each line with a line.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) transform: Option<String>,
    /// Import events that the source has marked as deleted or archived, too.
    #[arg(long)]
    pub(crate) keep_deleted: bool,
    /// Of lines: go on although a file begins behind what is stored of a stream. The events between are refused later.
    #[arg(long)]
    pub(crate) allow_gaps: bool,
    /// Leave out, and count, what cannot be an event of this store, instead of stopping there.
    #[arg(long)]
    pub(crate) skip_unmappable: bool,
    /// Name of this import in the target, if there are several of one kind. Default: the kind.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The schema of the journal's tables in PostgreSQL. Default: the search path of the user.
    #[arg(long, value_name = "SCHEMA")]
    pub(crate) schema: Option<String>,
    /// The table of the events, if it has another name than usual.
    #[arg(long, value_name = "TABLE")]
    pub(crate) table: Option<String>,
    /// Without --follow: how long transactions of the source that may still write are waited for.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(crate) wait: Span,
}
