//! The clock of the shell: it counts the time in which the machine was suspended, and nobody sets it.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::membership::Moment;

/// On macOS the monotonic clock counts suspension.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;
#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;

/// The time now.
///
/// A clock that cannot be read shows the start of time: then nobody is ever declared dead by this process.
pub(crate) fn now() -> Moment {
    Moment(clock_gettime(CLOCK).map(Duration::from).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on() {
        let before = now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(now().since(before) >= Duration::from_millis(2));
        assert!(before > Moment::default());
    }
}
