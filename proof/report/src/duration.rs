//! Durations as people write them: `10ms`, `1.5s`, `10m`.

use std::time::Duration;

/// Reads a duration: a number with one of the units `us`, `ms`, `s`, `m`, `h`; `0` needs none.
///
/// # Errors
/// A sentence that names the text and what is wrong with it.
pub fn parse(text: &str) -> Result<Duration, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_people_write_them() {
        assert_eq!(parse("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1_500)));
        assert_eq!(parse("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(parse("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        for bad in ["", "10", "ms", "-1s", "1.2.3s", "5 days", "9e999s", "1e9h"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
