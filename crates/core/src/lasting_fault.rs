//! A fault that lasts is told once when it begins, and once when it is over.
//!
//! Why: who tries again a hundred times has one fault, and a log that repeats it hides what else happens. The first
//! failure is a warning that says what happens next; those after it are for whoever looks closely; the first success is
//! told as well, so that the log says how long it lasted.

/// Whether a fault was told.
///
/// ```
/// # use gesta_core::LastingFault;
/// let mut told = LastingFault::default();
/// assert!(told.begins() && !told.begins());
/// assert!(told.ends() && !told.ends());
/// assert!(told.begins());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastingFault(bool);

impl LastingFault {
    /// Something has failed. True if it is the first failure of this fault.
    pub fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.0, true)
    }

    /// Something has succeeded. True if a fault is over by that.
    pub fn ends(&mut self) -> bool {
        std::mem::take(&mut self.0)
    }
}

/// Logs a failure: a warning if it is the first of a fault by this [`LastingFault`], else at level debug. What follows
/// is as for `tracing::warn!`.
#[macro_export]
macro_rules! warn_once {
    ($told:expr, $($what:tt)+) => {
        if $crate::LastingFault::begins(&mut $told) {
            tracing::warn!($($what)+);
        } else {
            tracing::debug!($($what)+);
        }
    };
}
