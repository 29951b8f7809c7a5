//! Reads the header `grpc-timeout`.

use std::time::Duration;

/// Longest timeout that is kept. A longer one is cut to it.
const TIMEOUT_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// Reads a time like `250m`: at most eight digits and a unit. Returns `None` if the text has another form, which means
/// that there is no deadline.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let unit = text.char_indices().last()?;
    let number = &text[..unit.0];
    if number.is_empty() || number.len() > 8 || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    let time = match unit.1 {
        'H' => Duration::from_secs(number * 3_600),
        'M' => Duration::from_secs(number * 60),
        'S' => Duration::from_secs(number),
        'm' => Duration::from_millis(number),
        'u' => Duration::from_micros(number),
        'n' => Duration::from_nanos(number),
        _ => return None,
    };
    Some(time.min(TIMEOUT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_number_and_a_unit() {
        assert_eq!(parse("250m"), Some(Duration::from_millis(250)));
        assert_eq!(parse("1H"), Some(Duration::from_secs(3_600)));
        assert_eq!(parse("99999999H"), Some(TIMEOUT_MAX));
        for wrong in ["", "m", "1", "1x", "-1S", "123456789S", "1 S", "１S", "1é"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
