//! `gesta group …`.

use clap::{Args, Subcommand};
use gesta_groups::{GroupId, ResetTo};

use super::values::at_least;
use super::{Confirm, FilterArgs};

const ABOUT_GROUPS: &str = "A group shares the events of a stream, or of all streams, out among consumers. GROUP is the name of the stream and \
    the name of the group, such as orders::billing; that of a group on all events begins with $all::, in quotes. \
    These commands ask a server. Consumers join by HTTP, by a client library or by the clients of KurrentDB.";

/// `gesta group …`.
#[derive(Debug, Subcommand)]
#[command(after_help = ABOUT_GROUPS)]
pub(crate) enum GroupCommand {
    /// List the groups, or those of one stream.
    List {
        /// The stream; $all lists the groups on all events.
        stream: Option<String>,
    },
    /// Show how far a group has come, its consumers and its settings.
    Info {
        /// The group.
        group: GroupId,
    },
    /// Create a group.
    Create(GroupCreate),
    /// Replace the settings of a group; its consumers have to join again.
    Update {
        /// The group.
        group: GroupId,
        /// All settings; those that are left out get their defaults.
        #[arg(long, value_name = "JSON")]
        settings: String,
    },
    /// Deliver the parked events of a group again.
    ReplayParked {
        /// The group.
        group: GroupId,
        /// Only those before this revision of the stream of parked events.
        #[arg(long, value_name = "REVISION", value_parser = at_least(0))]
        stop_at: Option<u64>,
    },
    /// Continue a group at another place. A halted group, whose place was lost, needs this.
    Reset {
        /// The group.
        group: GroupId,
        /// Where it goes on: start, end, surviving (the last place that it knows of before a loss), or a revision or
        /// position, which is the first that it delivers.
        #[arg(long, value_name = "PLACE", value_parser = reset_to)]
        to: ResetTo,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Delete a group, with what it knows of finished and parked events. The events stay.
    Delete {
        /// The group.
        group: GroupId,
        #[command(flatten)]
        confirm: Confirm,
    },
}

/// `gesta group create`.
#[derive(Debug, Args)]
pub(crate) struct GroupCreate {
    /// The group.
    pub(crate) group: GroupId,
    /// Settings that are not to be the defaults, such as {"max_retry_count": 5}.
    #[arg(long, value_name = "JSON", default_value = "{}")]
    pub(crate) settings: String,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

fn reset_to(text: &str) -> Result<ResetTo, String> {
    match text {
        "start" => Ok(ResetTo::Start),
        "end" => Ok(ResetTo::End),
        "surviving" => Ok(ResetTo::Surviving),
        number => number
            .parse()
            .map(ResetTo::At)
            .map_err(|_| "must be start, end, surviving or a number".to_owned()),
    }
}
