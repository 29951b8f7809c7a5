//! Time is injected, so that tests can set it.

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

    /// Returns the microseconds since 1970-01-01T00:00:00Z.
    #[must_use]
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// Reads an RFC 3339 text such as `2026-11-21T09:30:00.000001Z`. Digits after the sixth decimal are dropped.
    ///
    /// # Errors
    /// `InvalidArgument` if the text is not RFC 3339, or the moment is out of range.
    pub fn parse(text: &str) -> Result<Self> {
        let moment = OffsetDateTime::parse(text, &Rfc3339)
            .map_err(|error| Error::invalid("created", format!("must be RFC 3339: {error}")))?;
        i64::try_from(moment.unix_timestamp_nanos() / 1_000)
            .map(Timestamp)
            .map_err(|_| Error::invalid("created", "is out of range"))
    }
}

impl fmt::Display for Timestamp {
    /// Writes RFC 3339 in UTC with six decimals. A moment that has no such form is written as its microseconds, with
    /// `us`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = text_since_1970(self.0) {
            return match std::str::from_utf8(&text) {
                Ok(text) => f.write_str(text),
                Err(_) => Err(fmt::Error),
            };
        }
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

/// Returns the text form of a moment from 1970 to 9999; `None` for other moments.
///
/// Why by hand: each event that is read has a moment, and the general way costs 128-bit divisions. The date is found as
/// in Howard Hinnant's `civil_from_days` (public domain), with years that begin in March.
fn text_since_1970(micros: i64) -> Option<[u8; 27]> {
    if !(0..=Timestamp::MAX.0).contains(&micros) {
        return None;
    }
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, which are never negative here.
    let since = days + 719_468;
    let (era, day_of_era) = (since / 146_097, since % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let mut text = *b"0000-00-00T00:00:00.000000Z";
    let mut put = |from: usize, digits: usize, mut number: i64| {
        for place in text[from..from + digits].iter_mut().rev() {
            *place = b"0123456789"[usize::try_from(number % 10).unwrap_or(0)];
            number /= 10;
        }
    };
    put(0, 4, year);
    put(5, 2, month);
    put(8, 2, day);
    put(11, 2, second / 3_600);
    put(14, 2, second / 60 % 60);
    put(17, 2, second % 60);
    put(20, 6, fraction);
    Some(text)
}

/// A source of the current time, so that tests can set it.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time. It may step backwards; stores guard against that.
    fn now(&self) -> Timestamp;
}

/// The clock of the operating system, as a [`Clock`].
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

    proptest::proptest! {
        /// Goal: the fast way and the general way write the same.
        #[test]
        fn every_moment_is_written_as_the_general_way_does(micros in 0..=Timestamp::MAX.0, day in 0..2_932_897_i64) {
            for micros in [micros, day * 86_400_000_000, day * 86_400_000_000 + 86_399_999_999] {
                let shown = Timestamp(micros).to_string();
                proptest::prop_assert_eq!(Timestamp::parse(&shown).expect("valid"), Timestamp(micros));
                let general = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000).expect("in range");
                proptest::prop_assert_eq!(&shown[..10], general.date().to_string());
            }
        }
    }

    #[test]
    fn text_form_and_back() {
        let t = Timestamp(1_790_000_000_000_001);
        assert_eq!(t.to_string(), "2026-09-21T14:13:20.000001Z");
        assert_eq!(Timestamp::parse(&t.to_string()).expect("valid"), t);
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000000Z");
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-31T23:59:59.999999Z");
        assert_eq!(Timestamp(-1).to_string(), "1969-12-31T23:59:59.999999Z");
    }
}
