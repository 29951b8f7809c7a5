//! The clock of the shell: it counts the time in which the machine was suspended, and nobody sets it.

use crate::membership::Moment;

/// The time now.
///
/// A clock that cannot be read shows the start of time: then nobody is ever declared dead by this process.
pub(crate) fn now() -> Moment {
    Moment(gesta_core::uptime())
}
