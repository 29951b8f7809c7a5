//! `gesta schema …`.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};

use super::Confirm;
use super::values::number;

/// `gesta schema …`.
#[derive(Debug, Subcommand)]
pub(crate) enum SchemaCommand {
    /// Create the tables of a new store.
    Create {
        /// Number of logs. SQLite has one. It cannot be changed later.
        #[arg(long, default_value_t = 1, value_parser = number(1_u16..=1_024))]
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
        #[arg(long, default_value_t = 1, value_parser = number(1_u16..=1_024))]
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
    #[arg(long = "on", value_name = "URL", conflicts_with_all = ["store", "store_file"], value_parser = NonEmptyStringValueParser::new())]
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
