//! `gesta backup`, `gesta restore` and `gesta scavenge`.

use std::path::PathBuf;

use clap::Args;

use super::Confirm;

/// `gesta backup`.
#[derive(Debug, Args)]
#[command(
    after_help = "A store that a server has open is copied through the server, by an administrator, or on a loopback address without users:\n  \
    gesta backup --store http://127.0.0.1:2113 copy.db\n\
    A store that nobody has open:\n  \
    gesta backup --store sqlite:gesta-data/gesta.db copy.db\n\
    PostgreSQL makes its own backups: pg_basebackup, pg_dump. Put a backup in place with `gesta restore`."
)]
pub(crate) struct Backup {
    /// The new file. It must not exist.
    pub(crate) to: PathBuf,
}

/// `gesta restore`.
#[derive(Debug, Args)]
#[command(
    after_help = "The new store is the one that --store names; nothing may be there yet:\n  \
    gesta restore copy.db --store sqlite:gesta-data/gesta.db\n\
    The copy is checked as by `gesta verify` and gets a new incarnation, so that checkpoints of the old store are refused. \
    Users, tokens and rights are those of the time of the backup: revoke again what was revoked since."
)]
pub(crate) struct Restore {
    /// The backup, a file made by `gesta backup`. It is not changed.
    pub(crate) from: PathBuf,
    /// FROM was made by SQLite itself from a store that was in use, and so is whole: by `sqlite3 .backup`, `VACUUM
    /// INTO` or Litestream. A file copied by cp, rsync or the like need not be whole, and is not to be restored this
    /// way.
    #[arg(long)]
    pub(crate) sqlite_copy: bool,
}

/// `gesta scavenge`.
#[derive(Debug, Args)]
#[command(
    after_help = "A SQLite store that a server has open is scavenged through the server, by an administrator, or on a loopback address without users:\n  \
    gesta scavenge --store http://127.0.0.1:2113"
)]
pub(crate) struct Scavenge {
    /// Only report what would be freed.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Make the file of a SQLite store smaller afterwards; without it, the room is used for new events. Needs room for
    /// two more files of that size.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) compact: bool,
    #[command(flatten)]
    pub(crate) confirm: Confirm,
}
