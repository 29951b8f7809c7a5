//! The arguments of `gesta move`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

/// `gesta move`.
#[derive(Debug, Args)]
#[command(
    after_help = "SOURCE is postgres://… or sqlite:PATH, TARGET is postgres://…, each one database. The target is made if it is \
    not there; else it must never have had an event. The source is copied while it is used. When few events are missing it \
    is closed for good, the rest is copied and compared, and the target is opened: positions, revisions and checkpoints are \
    as they were, so consumers go on. From then on the source refuses every program and says where the store is. A SQLite \
    file belongs to one process, so stop what has opened it before; it is copied at once.\n\n\
    A move that was stopped or killed is repeated with the same arguments and goes on where it was. Until the target is \
    open, --undo leaves the store where it is. The two never accept events both. See docs/operating/moving.md.\n\n\
    Examples:\n  \
    gesta move postgres://app@db1/gesta postgres://app@db2/gesta\n  \
    gesta move sqlite:gesta-data/gesta.db postgres://app@db/gesta\n  \
    gesta move postgres://app@db1/gesta postgres://app@db2/gesta --undo"
)]
pub(crate) struct MoveStore {
    /// The store that moves.
    #[arg(
        value_name = "SOURCE",
        env = "GESTA_MOVE_SOURCE",
        hide_env_values = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub(crate) source: String,
    /// The database to which it moves.
    #[arg(
        value_name = "TARGET",
        env = "GESTA_MOVE_TARGET",
        hide_env_values = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub(crate) target: String,
    /// Leave the store in the source. This is possible until the target was opened.
    #[arg(long)]
    pub(crate) undo: bool,
    /// With --undo: the target is gone for good and will never be served again, so it is not asked.
    #[arg(long, requires = "undo")]
    pub(crate) target_is_gone: bool,
    /// Move a store with virtual streams too: they are made again, checkpoints are refused, and consumers begin again.
    #[arg(long, conflicts_with = "undo")]
    pub(crate) new_incarnation: bool,
}
