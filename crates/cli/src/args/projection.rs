//! `gesta projection …`.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use gesta_core::Checkpoint;
use gesta_core::units::Span;

use super::Confirm;
use super::values::{checkpoint, number};

const ABOUT_PROJECTIONS: &str = "A projection is a read model that a process of yours keeps; its state lies beside its rows, in the database of the \
    read model. These commands look there, and steer whichever process runs it. NAME is that of the projection: its \
    active version, unless --version says another. With --store they also tell how far it is behind.";

/// `gesta projection …`.
#[derive(Debug, Args)]
#[command(after_help = ABOUT_PROJECTIONS)]
pub(crate) struct Projection {
    /// The database in which the rows are: sqlite:PATH or postgres://… [env: GESTA_PROJECTION_TARGET]
    #[arg(long, value_name = "URL", global = true, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) target: Option<String>,
    /// The schema of a PostgreSQL database in which the tables are, unless it is that of the user's search path
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) schema: Option<String>,
    #[command(subcommand)]
    pub(crate) command: ProjectionCommand,
}

/// A version of a projection.
#[derive(Debug, Args)]
pub(crate) struct Version {
    /// The projection.
    pub(crate) name: String,
    /// The version; without it the active one.
    #[arg(long, value_name = "NUMBER", value_parser = number(0..=u32::MAX))]
    pub(crate) version: Option<u32>,
}

/// A version of a projection that has to be named.
#[derive(Debug, Args)]
pub(crate) struct NamedVersion {
    /// The projection.
    pub(crate) name: String,
    /// The version.
    #[arg(long, value_name = "NUMBER", value_parser = number(0..=u32::MAX))]
    pub(crate) version: u32,
}

/// `gesta projection …`.
#[derive(Debug, Subcommand)]
pub(crate) enum ProjectionCommand {
    /// List all versions of all projections: state, events, parked events, error; with --store also how far each is
    /// behind.
    List,
    /// Show one version in full.
    #[command(visible_alias = "show")]
    Info(Version),
    /// Wait until a version shows everything that is stored now, with a progress bar: while a new one is built, for
    /// example.
    Wait {
        #[command(flatten)]
        version: Version,
        /// Wait for this place instead, such as the checkpoint of an append.
        #[arg(long, value_name = "CHECKPOINT", value_parser = checkpoint)]
        checkpoint: Option<Checkpoint>,
        /// Give up after this time.
        #[arg(long, value_name = "TIME", default_value = "1h")]
        timeout: Span,
    },
    /// Pause a version: no batch is begun any more, whichever process runs it.
    Pause(Version),
    /// Let a version go on that was paused, or that has stopped.
    Resume(Version),
    /// Delete the rows and build them again from where the version began. Readers see them grow: a new version, which
    /// is built beside, is better. A version that has stopped goes on then: after a restore of the store nothing else
    /// leads on, but a new version.
    #[command(visible_alias = "rebuild")]
    Reset {
        #[command(flatten)]
        version: Version,
        #[command(flatten)]
        order: Order,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Let readers see this version, also an earlier one again. It must have come as far as the one that they see. If
    /// they see one that was made before the store was restored, name the store (--store): then it must have come to
    /// the end of that.
    Switch(NamedVersion),
    /// Delete the rows of a version that readers do not see.
    Retire {
        #[command(flatten)]
        version: NamedVersion,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// List the events that were put aside, with their errors, in the order in which they are applied again.
    Parked {
        #[command(flatten)]
        version: Version,
        /// Only those of this key.
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// Stop after so many events.
        #[arg(long, value_name = "EVENTS", default_value_t = 1_000, value_parser = number(1..=u32::MAX))]
        limit: u32,
    },
    /// Apply parked events again, once the code is put right.
    Replay {
        #[command(flatten)]
        version: Version,
        /// Only those of this key; without it all.
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        #[command(flatten)]
        order: Order,
    },
    /// Forget parked events: they are never applied.
    Drop {
        #[command(flatten)]
        version: Version,
        /// Only those of this key; without it all, and all skipped ones.
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        #[command(flatten)]
        order: Order,
        #[command(flatten)]
        confirm: Confirm,
    },
}

/// What is done by the process that runs the projection.
#[derive(Debug, Args)]
pub(crate) struct Order {
    /// Wait so long until it is done. It stays ordered if no process has done it by then, and is done by the next one
    /// that runs the projection.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(crate) timeout: Span,
}
