//! The clock of the machine that nobody sets, which counts the time in which the machine was suspended.
//!
//! Why: [`std::time::Instant`] and the timers of the runtime stand still while a Linux machine is suspended, but the world
//! goes on. A deadline, or the time since somebody was last seen, must not.

use std::time::Duration;

/// The time since some moment before the process was started.
///
/// A clock that cannot be read shows the start of time.
#[must_use]
pub fn uptime() -> Duration {
    clock::uptime()
}

/// How long the machine was suspended since some moment before the process was started. Only differences mean something,
/// and they may be wrong by milliseconds.
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
    /// On macOS the monotonic clock counts suspension.
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

/// Where suspension cannot be told, there is none.
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
        let (before, suspended_before) = (uptime(), suspended());
        std::thread::sleep(Duration::from_millis(2));
        assert!(uptime() >= before + Duration::from_millis(2));
        assert!(before > Duration::ZERO);
        // Nobody suspends the machine while it tests.
        let more = suspended().saturating_sub(suspended_before);
        assert!(more < Duration::from_millis(100), "{more:?}");
    }
}
