//! Which build this is.

/// The version of the program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit that the program was built from; empty if that is not known.
pub(crate) const COMMIT: &str = env!("GESTA_COMMIT");
/// What `--version` says after the name of the program.
pub(crate) const LONG: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("GESTA_BUILD"), ")");
