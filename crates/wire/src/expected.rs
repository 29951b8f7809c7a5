//! Expected revisions as parameters and documents show them: by a name or a number.

use std::fmt;
use std::str::FromStr;

use gesta_core::{ExpectedRevision, Revision};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::json::whole;
use crate::shown;

/// The rule for an expected revision. The text continues a sentence that begins with the name of the field.
pub const EXPECTED_RULE: &str =
    r#"must be "any", "no_stream", "stream_exists" or a revision from 0 to 9223372036854775806"#;

const NAMES: [(ExpectedRevision, &str); 3] = [
    (ExpectedRevision::Any, "any"),
    (ExpectedRevision::NoStream, "no_stream"),
    (ExpectedRevision::StreamExists, "stream_exists"),
];

/// An expected revision as text or JSON; the default is [`ExpectedRevision::Any`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expected(pub ExpectedRevision);

impl Expected {
    /// Returns the expected revision that has this name, if there is one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let (expected, _) = NAMES.iter().find(|(_, known)| *known == name)?;
        Some(Self(*expected))
    }

    fn name(self) -> Option<&'static str> {
        let (_, name) = NAMES.iter().find(|(known, _)| *known == self.0)?;
        Some(name)
    }

    fn exact(revision: u64) -> Option<Self> {
        let revision = Revision(revision);
        (revision <= Revision::MAX).then_some(Self(ExpectedRevision::Exact(revision)))
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ExpectedRevision::Exact(revision) => revision.fmt(f),
            _ => f.write_str(self.name().unwrap_or_default()),
        }
    }
}

impl FromStr for Expected {
    type Err = String;

    /// Reads the text of a parameter. A number must have no sign.
    fn from_str(text: &str) -> Result<Self, String> {
        let is_number = text.bytes().all(|b| b.is_ascii_digit());
        let exact = || is_number.then(|| text.parse().ok().and_then(Self::exact))?;
        Self::named(text)
            .or_else(exact)
            .ok_or_else(|| format!("{EXPECTED_RULE}, found {}", shown(text)))
    }
}

impl Serialize for Expected {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            ExpectedRevision::Exact(revision) => serializer.serialize_u64(revision.0),
            _ => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Expected {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrNumber;
        impl Visitor<'_> for NameOrNumber {
            type Value = Expected;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED_RULE.trim_start_matches("must be "))
            }

            fn visit_u64<E: Error>(self, n: u64) -> Result<Expected, E> {
                Expected::exact(n).ok_or_else(|| E::custom(format!("{EXPECTED_RULE}, found {n}")))
            }

            fn visit_f64<E: Error>(self, n: f64) -> Result<Expected, E> {
                match whole(n) {
                    Some(n) => self.visit_u64(n),
                    None => Err(E::custom(format!("{EXPECTED_RULE}, found {n}"))),
                }
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Expected, E> {
                Expected::named(text)
                    .ok_or_else(|| E::custom(format!("{EXPECTED_RULE}, found {}", shown(text))))
            }
        }
        deserializer.deserialize_any(NameOrNumber)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_as_it_was_written() {
        let exact = ExpectedRevision::Exact(Revision::MAX);
        for expected in NAMES
            .map(|(expected, _)| expected)
            .into_iter()
            .chain([exact])
        {
            let expected = Expected(expected);
            assert_eq!(expected.to_string().parse(), Ok(expected));
            let json = serde_json::to_string(&expected).expect("written");
            assert_eq!(
                serde_json::from_str::<Expected>(&json).expect("read"),
                expected
            );
        }
        for bad in ["", "-1", "+1", "Any", "none", "1.5", "9223372036854775807"] {
            assert!(bad.parse::<Expected>().is_err(), "{bad}");
        }
    }
}
