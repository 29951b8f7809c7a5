//! `gesta cluster …`: the nodes that share a database.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use gesta_core::units::Span;

use super::values::number;

/// `gesta cluster …`.
#[derive(Clone, Debug, Subcommand)]
#[command(
    after_help = "NODE is the number of a node or its address, as `gesta cluster status` shows them; LOG is a number from 0. \
    The commands work on the PostgreSQL database (--store postgres://…) that the nodes share; no server need run."
)]
pub(crate) enum ClusterCommand {
    /// Show the nodes, and which of them appends to which log.
    Status,
    /// Make a node hand over all of its logs and receive none, for example before a long stop.
    Drain(ClusterDrain),
    /// Move a log to another node.
    Move(ClusterMove),
    /// Add an empty database to the store, to which logs can be moved.
    AddDatabase {
        /// The database: postgres://…
        #[arg(value_name = "URL")]
        database: String,
    },
    /// Move a log to another database of the store, while the store is in use.
    MoveLog(ClusterMoveLog),
    /// Make a log whole again, as far as possible, after one of several databases was restored or failed over.
    RecoverLog(ClusterRecoverLog),
    /// Keep a log at one node whenever that node is up.
    Pin(ClusterPin),
    /// Undo `pin`.
    Unpin {
        /// The log.
        #[arg(value_parser = number(0..=u16::MAX))]
        log: u16,
    },
    /// Stop all moves of logs but for deaths, drains and requests.
    Freeze,
    /// Undo `freeze`.
    Thaw,
    /// Let the nodes use what is new in their build, once all run it. After that no node can go back to the build
    /// before.
    Finalize,
    /// Show which logs would move now, because of pins and balance.
    Balance {
        /// Only report, and move nothing. It must be given: the nodes balance by themselves, once none has come or gone
        /// for 20 s.
        #[arg(long, required = true)]
        dry_run: bool,
    },
    /// Show the last moves of logs, newest first.
    History {
        /// Stop after so many moves; the database keeps 1,000.
        #[arg(long, value_name = "MOVES", value_parser = number(1..=u16::MAX))]
        limit: Option<u16>,
    },
}

/// `gesta cluster move-log`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "--store names all databases of the store. Every process that uses the store must have been started with all of them. \
    Appends to the log wait for a moment at the end. A move that was stopped is finished by the same command, or undone by --undo."
)]
pub(crate) struct ClusterMoveLog {
    /// The log.
    #[arg(value_parser = number(0..=u16::MAX))]
    pub(crate) log: u16,
    /// The database that gets it.
    #[arg(long, value_name = "URL", required_unless_present = "undo")]
    pub(crate) to: Option<String>,
    /// Leave the log where it was before a move that was stopped.
    #[arg(long, conflicts_with = "to")]
    pub(crate) undo: bool,
}

/// `gesta cluster recover-log`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "--store names all databases of the store. The log is closed, one of its copies becomes the log, and a new incarnation \
    begins: all checkpoints of consumers become invalid. Without --from it is the copy that has everything that any other copy \
    has; if there is none, the command says what each has and changes nothing."
)]
pub(crate) struct ClusterRecoverLog {
    /// The log.
    #[arg(value_parser = number(0..=u16::MAX))]
    pub(crate) log: u16,
    /// The database whose copy becomes the log.
    #[arg(long, value_name = "URL", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) from: Option<String>,
    /// Give up, for ever, the events that other copies have and this one has not.
    #[arg(long, requires = "from")]
    pub(crate) accept_loss: bool,
}

/// `gesta cluster drain`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "The node goes on serving; it forwards appends to the new owners. A node that is started again takes part again, unless it \
    is held. --hold and --undo also work for a node that is not running, by its address."
)]
pub(crate) struct ClusterDrain {
    /// The node.
    #[arg(required_unless_present = "this_node", conflicts_with = "this_node")]
    pub(crate) node: Option<String>,
    /// Drain the node that the environment (GESTA_CLUSTER_ADVERTISE, GESTA_CLUSTER_NODE, GESTA_CONFIG) configures: for
    /// hooks that run beside a server before it is stopped.
    #[arg(long)]
    pub(crate) this_node: bool,
    /// Let the drain outlast restarts of the node, until --undo.
    #[arg(long)]
    pub(crate) hold: bool,
    /// Let the node take part again.
    #[arg(long, conflicts_with = "hold")]
    pub(crate) undo: bool,
    /// Return when the node has no log any more, or fail after this time; the drain goes on then. 0s: return at once.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        conflicts_with = "undo"
    )]
    pub(crate) wait: Span,
    /// Return only so long after that, while load balancers learn that the node is about to stop.
    #[arg(long, value_name = "TIME", conflicts_with = "undo")]
    pub(crate) linger: Option<Span>,
}

impl ClusterDrain {
    /// Returns the number or the address of the node; nothing if `this_node` was not replaced by its address yet.
    pub(crate) fn name(&self) -> &str {
        self.node.as_deref().unwrap_or_default()
    }
}

/// `gesta cluster move`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "The owner is asked, and hands the log over: nothing is lost, and appends wait for some milliseconds. \
    The log may move again for the sake of balance; `gesta cluster pin` keeps it where it is."
)]
pub(crate) struct ClusterMove {
    /// The log.
    #[arg(value_parser = number(0..=u16::MAX))]
    pub(crate) log: u16,
    /// The node that is to have it.
    #[arg(long, value_name = "NODE")]
    pub(crate) to: String,
    /// Return when the log has moved, or fail after this time; the owner stays asked then. 0s: return at once.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) wait: Span,
}

/// `gesta cluster pin`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "The log moves there once no node has come or gone for 20 s, and comes back after the node was away. At once: `gesta cluster move`."
)]
pub(crate) struct ClusterPin {
    /// The log.
    #[arg(value_parser = number(0..=u16::MAX))]
    pub(crate) log: u16,
    /// The node.
    #[arg(long, value_name = "NODE")]
    pub(crate) to: String,
}
