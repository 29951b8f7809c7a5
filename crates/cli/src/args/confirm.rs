//! Consent to what cannot be undone.

use clap::Args;

/// Consent to a command that cannot be undone.
#[derive(Debug, Args)]
pub(crate) struct Confirm {
    /// Do not ask for consent.
    #[arg(long)]
    pub(crate) yes: bool,
}
