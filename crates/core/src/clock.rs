//! Time, injected: tests must be able to set it.

use std::fmt;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::error::{Error, Result};

/// A moment in UTC, in microseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Latest moment that has a text form: 9999-12-31T23:59:59.999999Z.
    pub const MAX: Timestamp = Timestamp(253_402_300_799_999_999);

    /// Microseconds since 1970-01-01T00:00:00Z.
    #[must_use]
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// Reads an RFC 3339 text such as `2026-11-21T09:30:00.000001Z`.
    ///
    /// # Errors
    /// `InvalidArgument` if the text is not RFC 3339.
    pub fn parse(text: &str) -> Result<Self> {
        let moment = OffsetDateTime::parse(text, &Rfc3339)
            .map_err(|error| Error::invalid("created", format!("must be RFC 3339: {error}")))?;
        i64::try_from(moment.unix_timestamp_nanos() / 1_000)
            .map(Timestamp)
            .map_err(|_| Error::invalid("created", "is out of range"))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with six decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(t) = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000) else {
            return write!(f, "{}us", self.0);
        };
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
            t.year(),
            u8::from(t.month()),
            t.day(),
            t.hour(),
            t.minute(),
            t.second(),
            t.microsecond()
        )
    }
}

/// Source of the current time.
pub trait Clock: Send + Sync + 'static {
    /// The current time. May step backwards; stores guard against that.
    fn now(&self) -> Timestamp;
}

/// The clock of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        #[expect(
            clippy::disallowed_methods,
            reason = "the one place that reads the system clock"
        )]
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Timestamp(
            since
                .ok()
                .and_then(|d| i64::try_from(d.as_micros()).ok())
                .unwrap_or(0),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_and_back() {
        let t = Timestamp(1_790_000_000_000_001);
        assert_eq!(t.to_string(), "2026-09-21T14:13:20.000001Z");
        assert_eq!(Timestamp::parse(&t.to_string()).expect("valid"), t);
    }
}
