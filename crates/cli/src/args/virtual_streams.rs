//! `gesta virtual-streams …`.

use clap::Subcommand;

/// `gesta virtual-streams …`.
#[derive(Debug, Clone, Copy, Subcommand)]
#[command(
    after_help = "Virtual streams hold links to events: $ce-CATEGORY to those of the streams of a category, $et-TYPE to those of a type, \
    $streams to the first one of each stream. They cost about two small rows for each event, so they are off in a new store. \
    On PostgreSQL servers may run meanwhile. A SQLite store that a server has open is switched through it: --store http://127.0.0.1:2113."
)]
pub(crate) enum VirtualStreamsCommand {
    /// Switch them on, and write the entries of all events that are stored. Stopped, it goes on when it is run again,
    /// or when somebody reads.
    On,
    /// Switch them off. What was written stays, so that revisions go on when they are switched on again.
    Off,
    /// Show whether they are on, and how far their entries are written.
    Status,
}
