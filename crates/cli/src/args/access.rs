//! `gesta user …` and `gesta token …`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use gesta_core::units::Span;

use super::Confirm;

/// When callers of a server must say who they are.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AccessMode {
    /// Callers must say who they are as soon as the store has a user, and on addresses that are not loopback.
    #[default]
    Auto,
    /// Callers must always say who they are.
    On,
    /// Callers never say who they are.
    Off,
}

const ABOUT_STORES: &str = "Without --store the command works on sqlite:gesta-data/gesta.db. A server (--store https://…) takes it from an \
    administrator; the first user is made on the store itself, while no server has a SQLite store open.";

/// `gesta user …`.
#[derive(Debug, Subcommand)]
#[command(after_help = ABOUT_STORES)]
pub(crate) enum UserCommand {
    /// Create a user. The first one must be an administrator; from then on callers must log in.
    Add(UserAdd),
    /// List the users.
    List,
    /// Change the password of a user.
    Password {
        /// The user.
        user: String,
        #[command(flatten)]
        password: NewPassword,
    },
    /// Disable a user and their tokens.
    Disable {
        /// The user.
        user: String,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Undo `disable`.
    Enable {
        /// The user.
        user: String,
    },
    /// Replace the groups of a user; without any, the user leaves all.
    Groups {
        /// The user.
        user: String,
        /// The groups. $admins may do everything, $ops may look at metrics; rights of streams name others.
        groups: Vec<String>,
        #[command(flatten)]
        confirm: Confirm,
    },
}

/// `gesta user add`.
#[derive(Debug, Args)]
pub(crate) struct UserAdd {
    /// The user: no spaces and colons, not beginning with $.
    pub(crate) user: String,
    /// Create an administrator: the same as --group '$admins'.
    #[arg(long)]
    pub(crate) admin: bool,
    /// A group; may be repeated.
    #[arg(long = "group", value_name = "GROUP")]
    pub(crate) groups: Vec<String>,
    #[command(flatten)]
    pub(crate) password: NewPassword,
    /// For the first user: keep rights of streams that were set while anybody could set them.
    #[arg(long)]
    pub(crate) keep_rights: bool,
}

/// Where a new password comes from. It never comes from an argument, which every user of the machine can read.
#[derive(Debug, Args)]
pub(crate) struct NewPassword {
    /// A file whose first line is the password. Without it: GESTA_NEW_PASSWORD, else it is asked for, or the first line
    /// of standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
}

/// `gesta token …`.
#[derive(Debug, Subcommand)]
#[command(after_help = ABOUT_STORES)]
pub(crate) enum TokenCommand {
    /// Create a token and print it. It cannot be shown again.
    Create(TokenCreate),
    /// List the tokens, without their secrets.
    List,
    /// Revoke a token: it is never valid again.
    Revoke {
        /// The id of the token, as `gesta token list` shows it.
        id: String,
    },
}

/// `gesta token create`.
#[derive(Debug, Args)]
pub(crate) struct TokenCreate {
    /// The user whose rights limit those of the token.
    pub(crate) user: String,
    /// What the token may be used for: read, consume (from groups), append, or admin (everything that the user may);
    /// may be repeated.
    #[arg(
        long = "scope",
        value_name = "SCOPE",
        required = true,
        value_enum,
        hide_possible_values = true
    )]
    pub(crate) scopes: Vec<TokenScope>,
    /// Limit the token to streams whose names begin with this; may be repeated: any of them.
    #[arg(long = "prefix", value_name = "PREFIX")]
    pub(crate) prefixes: Vec<String>,
    /// How long the token is valid, such as 90d. Without it: until it is revoked.
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<Span>,
    /// What the token is for.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) label: String,
}

/// What a token may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TokenScope {
    /// Read and follow events.
    Read,
    /// Consume from consumer groups, and answer for what they deliver. A token with `read` and `append` may do so too.
    Consume,
    /// Append events.
    Append,
    /// Do everything that the user may do.
    Admin,
}
