//! Durations as people write them: `10ms`, `1.5s`, `10m`.

use std::time::Duration;

/// Reads a duration: a number with one of the units `us`, `ms`, `s`, `m`, `h`; `0` needs none.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let unit_at = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let number: f64 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a number with a unit, such as 10ms"))?;
    let factor = match unit.trim() {
        "us" => 0.000_001,
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "" if number == 0.0 => 1.0,
        "" => return Err(format!("{text:?} has no unit (us, ms, s, m, h)")),
        unit => return Err(format!("unknown unit {unit:?}, use us, ms, s, m or h")),
    };
    Duration::try_from_secs_f64(number * factor).map_err(|error| format!("{text:?}: {error}"))
}

/// A large number with commas between thousands.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_people_write_them() {
        assert_eq!(duration("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1_500)));
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for bad in ["", "10", "ms", "-1s", "1.2.3s", "5 days", "9e999s", "1e9h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(grouped(0.0), "0");
        assert_eq!(grouped(999.6), "1,000");
        assert_eq!(grouped(1_234_567.0), "1,234,567");
    }
}
