//! The clock of the machine that nobody sets. It also counts the time in which the machine was suspended.
//!
//! Why: [`std::time::Instant`] and the timers of the runtime stand still while a Linux machine is suspended, but the
//! world goes on. Deadlines, and the time since a node was last seen, must count that time.

use std::time::Duration;

/// Returns the time since some moment before the process was started.
///
/// If the clock cannot be read, the answer is zero.
#[must_use]
pub fn uptime() -> Duration {
    clock::uptime()
}

/// Returns how long the machine was suspended since some moment before the process was started. Only differences mean
/// something, and they may be wrong by milliseconds.
#[must_use]
pub fn suspended() -> Duration {
    // In this order a pause between the two looks like less suspension, not like more.
    let (whole, awake) = (clock::uptime(), clock::awake());
    whole.saturating_sub(awake)
}

#[cfg(unix)]
mod clock {
    use std::time::Duration;

    use nix::time::{ClockId, clock_gettime};

    #[cfg(target_os = "linux")]
    const UPTIME: ClockId = ClockId::CLOCK_BOOTTIME;
    #[cfg(not(target_os = "linux"))]
    const UPTIME: ClockId = ClockId::CLOCK_MONOTONIC;
    /// The monotonic clock of macOS counts suspension, so this is another clock.
    #[cfg(target_os = "macos")]
    const AWAKE: ClockId = ClockId::from_raw(nix::libc::CLOCK_UPTIME_RAW);
    #[cfg(not(target_os = "macos"))]
    const AWAKE: ClockId = ClockId::CLOCK_MONOTONIC;

    pub(super) fn uptime() -> Duration {
        clock_gettime(UPTIME)
            .map(Duration::from)
            .unwrap_or_default()
    }

    pub(super) fn awake() -> Duration {
        clock_gettime(AWAKE).map(Duration::from).unwrap_or_default()
    }
}

/// Systems without these clocks cannot tell suspension; here it is always zero.
#[cfg(not(unix))]
mod clock {
    use std::sync::LazyLock;
    use std::time::{Duration, Instant};

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    pub(super) fn uptime() -> Duration {
        START.elapsed()
    }

    pub(super) fn awake() -> Duration {
        uptime()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on() {
        let before = uptime();
        // A pause between the two looks at clocks makes one of these less than it is.
        let suspended_before = (0..10).map(|_| suspended()).max();
        let suspended_before = suspended_before.unwrap_or_default();
        std::thread::sleep(Duration::from_millis(2));
        assert!(uptime() >= before + Duration::from_millis(2));
        assert!(before > Duration::ZERO);
        // Nobody suspends the machine while it tests.
        let more = suspended().saturating_sub(suspended_before);
        assert!(more < Duration::from_millis(100), "{more:?}");
    }
}
