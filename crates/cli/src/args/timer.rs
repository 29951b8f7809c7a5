//! `gesta timer …`.

use clap::{Args, Subcommand};
use gesta_core::system_streams::TIMERS_PREFIX;

use super::values::at_least;

/// `gesta timer …`.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "A program sets timers by the library (feature timers), and fires them. NAME is the name under which it does; its timers lie \
    in the streams $timers-{NAME} and $timers-{NAME}-state, or begin with another --prefix. The store must not be open elsewhere if it is a SQLite \
    file: ask its server."
)]
pub(crate) enum TimerCommand {
    /// List the pending timers of a name, the next one first; without a name, the names that there are.
    List {
        #[command(flatten)]
        of: TimersOf,
        /// At most so many.
        #[arg(long, value_name = "COUNT", value_parser = at_least(0))]
        limit: Option<u64>,
    },
    /// Cancel the timer of a key, if one is pending.
    Cancel {
        /// The name of the timers.
        name: String,
        /// The key of the timer.
        key: String,
        /// What the names of their streams begin with.
        #[arg(long, value_name = "TEXT", default_value = TIMERS_PREFIX)]
        prefix: String,
    },
}

/// Which timers are listed.
#[derive(Debug, Args)]
pub(crate) struct TimersOf {
    /// The name of the timers.
    pub(crate) name: Option<String>,
    /// What the names of their streams begin with.
    #[arg(long, value_name = "TEXT", default_value = TIMERS_PREFIX)]
    pub(crate) prefix: String,
}
