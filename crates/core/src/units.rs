//! Reads and shows values with their unit in the text: `"5s"`, `"64MiB"`.
//!
//! Why: a bare number in a configuration file leaves its unit to memory. Why here: the bounds and times of every crate
//! are written in one form, in files, variables and flags. Why not humantime and bytesize: bytesize takes a bare number
//! for bytes and `5MB` for 5,000,000 of them, and humantime shows a day as `1day`; what is shown here can be read again
//! and is what `reference.toml` says. One reader of 20 lines serves both kinds of values.
//!
//! A field that is a [`Duration`] or a number of bytes says `#[serde(with = "units::span")]` or
//! `#[serde(with = "units::size")]`. Not here: parts of a unit and microseconds, which measurements need
//! (`gesta_load::duration`).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const TIMES: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];
const SIZES: [(&str, u64); 4] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

/// A time span, such as `500ms`, `5s`, `10m`, `2h`, `1d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

/// A size in bytes, such as `512B`, `64KiB`, `8MiB`, `1GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

/// Reads a number with its unit, and multiplies the two.
fn parse(text: &str, units: &[(&str, u64)], what: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = units.iter().find(|(name, _)| *name == unit.trim_start());
    match (number.parse::<u64>(), factor) {
        (Ok(number), Some((_, factor))) => number
            .checked_mul(*factor)
            .ok_or_else(|| format!("{text:?} is too large")),
        _ => {
            let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
            Err(format!(
                "must be {what} with a unit ({}), found {text:?}",
                names.join(", ")
            ))
        }
    }
}

/// Shows a value in the largest unit that leaves a whole number.
fn show(value: u64, units: &[(&str, u64)]) -> String {
    let whole = |(_, factor): &&(&str, u64)| value != 0 && value.is_multiple_of(*factor);
    match units.iter().rev().find(whole) {
        Some((name, factor)) => format!("{}{name}", value / factor),
        None => format!("{value}{}", units[0].0),
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, &TIMES, "a time").map(|ms| Self(Duration::from_millis(ms)))
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, &SIZES, "a size").map(Self)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(
            u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX),
            &TIMES,
        ))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(self.0, &SIZES))
    }
}

macro_rules! as_text {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }
    };
}
as_text!(Span);
as_text!(Size);

/// A [`Duration`] as a [`Span`], for `#[serde(with = …)]`.
pub mod span {
    use super::{Deserialize, Deserializer, Duration, Serialize, Serializer, Span};

    /// Writes the duration as text.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        Span(*span).serialize(serializer)
    }

    /// Reads the duration from text.
    ///
    /// # Errors
    /// Those of the deserializer; a text that is no time with a unit.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Span::deserialize(deserializer).map(|span| span.0)
    }
}

/// A number of bytes as a [`Size`], for `#[serde(with = …)]`.
pub mod size {
    use super::{Deserialize, Deserializer, Serialize, Serializer, Size};

    /// Writes the number as text.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T, S>(bytes: &T, serializer: S) -> Result<S::Ok, S::Error>
    where
        T: Copy + TryInto<u64>,
        S: Serializer,
    {
        Size((*bytes).try_into().unwrap_or(u64::MAX)).serialize(serializer)
    }

    /// Reads the number from text.
    ///
    /// # Errors
    /// Those of the deserializer; a text that is no size with a unit, or is larger than the number may be.
    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: TryFrom<u64>,
        D: Deserializer<'de>,
    {
        let size = Size::deserialize(deserializer)?;
        let too_large = |_| serde::de::Error::custom(format!("\"{size}\" is too large"));
        T::try_from(size.0).map_err(too_large)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_written() {
        for text in ["500ms", "5s", "10m", "2h", "1d", "0ms"] {
            assert_eq!(text.parse::<Span>().expect(text).to_string(), text);
        }
        for text in ["512B", "64KiB", "8MiB", "1GiB", "0B"] {
            assert_eq!(text.parse::<Size>().expect(text).to_string(), text);
        }
        assert_eq!("120s".parse::<Span>().expect("valid").to_string(), "2m");
        assert_eq!("8 MiB".parse::<Size>().expect("valid").0, 8 << 20);
    }

    #[test]
    fn missing_units_signs_and_overflow_are_refused() {
        for bad in [
            "",
            "5",
            "s",
            "-5s",
            "5 parsecs",
            "1.5s",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
        for bad in [
            "",
            "5",
            "5MB",
            "-1B",
            "99999999999GiB99",
            "18446744073709551615GiB",
        ] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }
}
