//! The clock of the shell: it counts the time in which the machine was suspended, and nobody sets it.

use gesta_core::Moment;

/// Returns the time now.
///
/// A clock that cannot be read shows the start of time. Then this process never declares another node dead.
pub(crate) fn now() -> Moment {
    Moment(gesta_core::uptime())
}
