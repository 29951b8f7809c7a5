//! The arguments of `gesta copy`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::values::number;

/// `gesta copy`.
#[derive(Debug, Args)]
#[command(
    after_help = "SOURCE and TARGET are sqlite:PATH or postgres://…, several databases of one store separated by spaces in one \
    argument. The target is made if it is not there; else it must never have had an event. What is copied is what the source \
    holds when the copy begins: stop its servers before. Events keep their ids, times, tags and revisions; with as many logs \
    as before also their positions, so that consumers go on with their checkpoints. A copy that was stopped or killed is \
    simply repeated, and goes on where it was. Until everything was read back and compared, no program serves the target. \
    See docs/operating/copying.md.\n\n\
    Examples:\n  \
    gesta copy sqlite:gesta-data/gesta.db postgres://app@db/gesta\n  \
    gesta copy postgres://app@db/gesta 'postgres://app@db1/gesta postgres://app@db2/gesta' --logs 4"
)]
pub(crate) struct CopyStore {
    /// The store that is copied.
    #[arg(
        value_name = "SOURCE",
        env = "GESTA_COPY_SOURCE",
        hide_env_values = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub(crate) source: String,
    /// The empty store to which it is copied.
    #[arg(
        value_name = "TARGET",
        env = "GESTA_COPY_TARGET",
        hide_env_values = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub(crate) target: String,
    /// How many logs the target gets if it is made. Default: as many as the source has; SQLite has one.
    #[arg(long, value_name = "NUMBER", value_parser = number(1_u16..=1_024))]
    pub(crate) logs: Option<u16>,
}
