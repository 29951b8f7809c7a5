//! `gesta index …`.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};

use super::FilterArgs;
use super::values::number;

const ABOUT_INDEXES: &str = "An index is a table of values of JSON paths, kept up to date by `index run` in a database of yours: an \
    event is found by what is in it, by `index find`, by SQL, or over HTTP. It is a projection without code: `gesta projection` \
    shows and steers it. Names are lower-case letters, digits and _.";

/// `gesta index …`.
#[derive(Debug, Args)]
#[command(after_help = ABOUT_INDEXES)]
pub(crate) struct Index {
    /// The database in which the table is: sqlite:PATH or postgres://… [env: GESTA_PROJECTION_TARGET]
    #[arg(long, value_name = "URL", global = true, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) target: Option<String>,
    /// The schema of a PostgreSQL database in which the tables are, unless it is that of the user's search path
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) schema: Option<String>,
    #[command(subcommand)]
    pub(crate) command: IndexCommand,
}

/// `gesta index …`.
#[derive(Debug, Subcommand)]
pub(crate) enum IndexCommand {
    /// Make an index, unless it is there, and keep it up to date until this is stopped. Several of these stand by for
    /// each other.
    Run(IndexRun),
    /// List the versions of all indexes, or of one: which of them readers see, how many events it has, its paths. With
    /// --store also how far each is behind.
    List {
        /// The index; without it all.
        name: Option<String>,
    },
    /// Show the events that have these values.
    Find {
        /// The index.
        name: String,
        /// A path and its value, such as customer.id=7; with several, all must be so.
        #[arg(required = true, value_name = "PATH=VALUE", value_parser = pair)]
        values: Vec<(String, String)>,
        /// Stop after so many events.
        #[arg(long, value_name = "EVENTS", default_value_t = 100, value_parser = number(1..=u32::MAX))]
        limit: u32,
    },
}

/// `gesta index run`.
#[derive(Debug, Args)]
pub(crate) struct IndexRun {
    /// The index.
    pub(crate) name: String,
    /// A path to a value: customer.id, or with what its values are (text, number, int, bool) total:number; may be
    /// repeated. Where no name of a column can be made of it, with one: customer.e-mail=email, größe:int=size.
    #[arg(long = "path", required = true, value_name = "PATH[:KIND][=COLUMN]")]
    pub(crate) paths: Vec<String>,
    /// Number of the version. Other paths, or other events, need another one: it is built beside the one before.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = number(0..=u32::MAX))]
    pub(crate) version: u32,
    /// Catch up and end: stop as soon as it shows everything that was stored when this began, and readers see it.
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=');
    let (path, value) = pair.ok_or_else(|| "must be PATH=VALUE".to_owned())?;
    Ok((path.to_owned(), value.to_owned()))
}
