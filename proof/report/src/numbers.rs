//! Numbers as people write them, with their units. Between a number and its unit the line does not break.

use serde::{Deserialize, Serialize};

use crate::units::grouped;

/// Does not break.
const SPACE: char = '\u{a0}';

/// What a column, a fact or an axis counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nothing: words.
    #[default]
    Words,
    /// Things, or things per second.
    Count,
    /// Milliseconds.
    Millis,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// A share of one.
    Share,
    /// How many times something is another.
    Times,
    /// Processor time in cores.
    Cores,
}

impl Unit {
    /// A label of an axis: short.
    pub fn tick(self, value: f64) -> String {
        match self {
            Unit::Count | Unit::Words => short(value),
            other => other.told(value),
        }
    }

    /// A value with its unit.
    pub fn told(self, value: f64) -> String {
        match self {
            Unit::Count | Unit::Words => count(value),
            Unit::Millis => millis(value),
            Unit::Seconds => seconds(value),
            Unit::Bytes => bytes(value),
            Unit::Share => percent(value),
            Unit::Times => by(value),
            Unit::Cores => trimmed(value, 2),
        }
    }
}

/// A count or rate: `12,345`, `0.7`.
pub fn count(value: f64) -> String {
    if value.abs() >= 1e15 {
        return format!("{value:.1e}");
    }
    let sign = if value < 0.0 { "-" } else { "" };
    let size = value.abs();
    if size < 10.0 && size.fract() > 0.0 {
        return format!("{sign}{}", trimmed(size, if size < 1.0 { 2 } else { 1 }));
    }
    format!("{sign}{}", grouped(size))
}

/// `1,000`, `10k`, `1.5M`.
fn short(value: f64) -> String {
    let size = value.abs();
    if size >= 1e15 {
        format!("{value:.0e}")
    } else if size >= 999_500_000.0 {
        format!("{}G", trimmed(value / 1e9, 1))
    } else if size >= 999_500.0 {
        format!("{}M", trimmed(value / 1e6, 1))
    } else if size >= 10_000.0 {
        format!("{}k", trimmed(value / 1e3, 1))
    } else {
        count(value)
    }
}

/// Of steps (from which size on, divided by, decimals, unit) the first that fits.
fn scaled(value: f64, steps: &[(f64, f64, usize, &str)]) -> String {
    let fits = |step: &&(f64, f64, usize, &str)| value.abs() >= step.0;
    let (_, scale, decimals, unit) = steps.iter().find(fits).unwrap_or(&(0.0, 1.0, 0, ""));
    format!("{}{SPACE}{unit}", trimmed(value / scale, *decimals))
}

/// `0.42 ms`, `5.3 ms`, `120 ms`, `1.2 s`.
pub fn millis(value: f64) -> String {
    if value.abs() >= 999.5 {
        return seconds(value / 1_000.0);
    }
    let from = [(19.95, 0), (0.995, 1), (0.01, 2), (0.001, 3), (0.0, 0)];
    scaled(
        value,
        &from.map(|(from, decimals)| (from, 1.0, decimals, "ms")),
    )
}

/// `0.5 s`, `42 s`, `12 min`, `3.5 h`.
pub fn seconds(value: f64) -> String {
    let (long, short) = ([(5_400.0, 3_600.0, 1, "h"), (119.5, 60.0, 1, "min")], 1.0);
    let rest = [
        (19.95, short, 0, "s"),
        (0.995, short, 1, "s"),
        (0.0, short, 2, "s"),
    ];
    scaled(value, &[&long[..], &rest].concat())
}

/// `231 bytes`, `21.7 kB`, `1.5 GB`: powers of a thousand.
pub fn bytes(value: f64) -> String {
    let (large, giant) = ((999.5e3, 1e6, 1, "MB"), (999.5e6, 1e9, 1, "GB"));
    let (small, least) = ((9_995.0, 1e3, 1, "kB"), (0.0, 1.0, 0, "bytes"));
    scaled(
        value,
        &[(999.5e9, 1e12, 1, "TB"), giant, large, small, least],
    )
}

/// `6 %` of a share of one.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let digits = usize::from(percent.abs() < 9.95 && percent != 0.0);
    format!("{}{SPACE}%", trimmed(percent, digits))
}

/// `5.3 times`; `0.02 times`.
pub fn times(ratio: f64) -> String {
    format!("{}{SPACE}times", factor(ratio))
}

/// `2.4 to 5.5 times`, of several ratios.
pub fn times_between(ratios: &[f64]) -> String {
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    if most > least * 1.005 {
        return format!("{} to {}", factor(least), times(most));
    }
    times(most)
}

/// `5.3×`.
pub fn by(ratio: f64) -> String {
    format!("{}×", factor(ratio))
}

fn factor(ratio: f64) -> String {
    match ratio.abs() {
        size if size >= 19.95 => grouped(ratio),
        size if size >= 1.995 => trimmed(ratio, 1),
        size if size >= 0.095 => trimmed(ratio, 2),
        _ => trimmed(ratio, 3),
    }
}

/// At most so many decimals, without zeros at the end.
pub fn trimmed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    let text = if text == "-0" { "0" } else { text };
    match text.parse::<f64>() {
        Ok(whole) if whole >= 1_000.0 && whole.fract() == 0.0 => grouped(whole),
        _ => text.to_owned(),
    }
}

/// `1 line`, `2 lines`.
pub fn plural(count: usize, one: &str) -> String {
    format!("{count}{SPACE}{one}{}", if count == 1 { "" } else { "s" })
}

/// `1 caller`, `1,000 callers`, of a number that was measured.
pub fn several(number: f64, one: &str) -> String {
    let s = if number == 1.0 { "" } else { "s" };
    format!("{}{SPACE}{one}{s}", count(number))
}

/// `a`, `a and b`, `a, b and c`.
pub fn list(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// `2026-11-21 10:59` of `2026-11-21T10:59:48.942865Z`; another text as it is.
pub fn moment(started: &str) -> String {
    match (started.get(..10), started.get(10..11), started.get(11..16)) {
        (Some(day), Some("T"), Some(time)) => format!("{day} {time}"),
        _ => started.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: String) -> String {
        text.replace(SPACE, " ")
    }

    #[test]
    fn numbers_as_people_write_them() {
        let counts = [0.0, 0.25, 7.0, 7.25, 1234.6, -12.0, 1e18].map(count);
        assert_eq!(counts, ["0", "0.25", "7", "7.2", "1,235", "-12", "1.0e18"]);
        let ticks = [1_000.0, 10_000.0, 12_500.0, 1e6, 2.5e9].map(|n| Unit::Count.tick(n));
        assert_eq!(ticks, ["1,000", "10k", "12.5k", "1M", "2.5G"]);
        let latencies = [0.0, 0.004, 0.42, 1.0, 5.34, 120.4, 1_200.0, 600_000.0].map(millis);
        assert_eq!(
            latencies.map(plain),
            [
                "0 ms", "0.004 ms", "0.42 ms", "1 ms", "5.3 ms", "120 ms", "1.2 s", "10 min"
            ]
        );
        let spans = [0.5, 42.0, 150.0, 7_200.0].map(seconds).map(plain);
        assert_eq!(spans, ["0.5 s", "42 s", "2.5 min", "2 h"]);
        let sizes = [231.0, 1_138.0, 21_677.0, 1.5e9].map(bytes).map(plain);
        assert_eq!(sizes, ["231 bytes", "1,138 bytes", "21.7 kB", "1.5 GB"]);
    }
}
