//! Reads paths and query strings strictly: what cannot be understood is refused and named, never guessed.

use std::borrow::Cow;

use gesta_core::{ExpectedRevision, StreamId, limits};
use gesta_wire::percent::{self, Plus};
use gesta_wire::{Expected, shortened, shown};

use crate::shared::problem::{Problem, Result};

/// Decodes a percent-encoded text.
pub(crate) fn percent_decode<'a>(field: &str, raw: &'a str, plus: Plus) -> Result<Cow<'a, str>> {
    percent::decode(raw, plus).map_err(|rule| Problem::invalid(field, rule))
}

/// Reads the stream that a path segment names.
pub(crate) fn stream(segment: &str) -> Result<StreamId> {
    let name = percent_decode("stream", segment, Plus::Itself)?;
    stream_named("stream", &name)
}

/// Reads the name of a stream. The metadata stream of the longest name is two bytes longer than other names.
pub(crate) fn stream_named(field: &str, name: &str) -> Result<StreamId> {
    let found = match name.strip_prefix("$$") {
        Some(described) if name.len() > limits::STREAM_NAME_BYTES_MAX => {
            StreamId::new(described).map(|stream| stream.metadata_stream())
        }
        _ => StreamId::new(name),
    };
    found.map_err(|error| Problem::invalid_at(field, &error))
}

/// Reads a prefix of stream names, or a category. It must be the name of a stream or empty.
pub(crate) fn name_part(field: &str, text: &str) -> Result<String> {
    if !text.is_empty() {
        stream_named(field, text)?;
    }
    Ok(text.to_owned())
}

/// Reads a number without sign, at most `max`.
pub(crate) fn number(field: &str, text: &str, max: u64) -> Result<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits
        .then(|| text.parse::<u64>().ok())
        .flatten()
        .filter(|number| *number <= max)
        .ok_or_else(|| {
            Problem::invalid(
                field,
                format!(
                    "must be a whole number from 0 to {max}, found {}",
                    shown(text)
                ),
            )
        })
}

/// The parameters of a query string. Unknown parameters are refused.
#[derive(Debug)]
pub(crate) struct Parameters<'a> {
    pairs: Vec<(Cow<'a, str>, &'a str)>,
    known: &'static [&'static str],
}

impl<'a> Parameters<'a> {
    /// Splits a query string, and refuses parameters that are not among `known`.
    pub(crate) fn parse(query: Option<&'a str>, known: &'static [&'static str]) -> Result<Self> {
        let mut pairs = Vec::new();
        for pair in query
            .unwrap_or_default()
            .split('&')
            .filter(|p| !p.is_empty())
        {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = percent_decode("query", name, Plus::Space)?;
            if !known.contains(&name.as_ref()) {
                let field: &str = if name.is_empty() { "query" } else { &name };
                return Err(Problem::invalid(
                    shortened(field, 60),
                    if known.is_empty() {
                        "is unknown: the call has no parameters".to_owned()
                    } else {
                        format!("is unknown: the parameters are {}", known.join(", "))
                    },
                ));
            }
            pairs.push((name, value));
        }
        Ok(Self { pairs, known })
    }

    /// Returns the value of a parameter that may stand once.
    pub(crate) fn one(&self, name: &'static str) -> Result<Option<Cow<'a, str>>> {
        let mut values = self.raw(name);
        let Some(value) = values.next() else {
            return Ok(None);
        };
        if values.next().is_some() {
            return Err(Problem::invalid(name, "must stand only once"));
        }
        percent_decode(name, value, Plus::Space).map(Some)
    }

    /// Returns the values of a parameter that may be repeated.
    pub(crate) fn many(&self, name: &'static str) -> Result<Vec<Cow<'a, str>>> {
        self.raw(name)
            .map(|value| percent_decode(name, value, Plus::Space))
            .collect()
    }

    fn raw(&self, name: &'static str) -> impl Iterator<Item = &'a str> {
        debug_assert!(self.known.contains(&name), "{name} is declared");
        self.pairs
            .iter()
            .filter(move |(n, _)| n == name)
            .map(|(_, value)| *value)
    }

    /// Reads the parameter `expected`; the default is `any`.
    pub(crate) fn expected(&self) -> Result<ExpectedRevision> {
        let Some(text) = self.one("expected")? else {
            return Ok(ExpectedRevision::Any);
        };
        text.parse::<Expected>()
            .map(|expected| expected.0)
            .map_err(|rule| Problem::invalid("expected", rule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_repeated_parameters_are_refused_by_name() {
        let known = &["limit", "tag"];
        let parse = |q| Parameters::parse(Some(q), known);
        let p = parse("limit=1&tag=a&&tag=b%26").expect("valid");
        assert_eq!(p.one("limit").expect("one").as_deref(), Some("1"));
        assert_eq!(p.many("tag").expect("many"), ["a", "b&"]);
        assert!(
            p.one("tag")
                .expect_err("twice")
                .detail
                .starts_with("tag must")
        );
        assert!(
            parse("Limit=1")
                .expect_err("unknown")
                .detail
                .starts_with("Limit is unknown")
        );
        assert!(parse("%ff=1").is_err());
        // Something must be named, also if the parameter has no name.
        let nameless = parse("=1").expect_err("unknown").into_document();
        assert_eq!(nameless.members.field.as_deref(), Some("query"));
    }

    #[test]
    fn numbers_have_no_sign_and_do_not_overflow() {
        assert_eq!(number("n", "007", 10).expect("number"), 7);
        for bad in [
            "",
            "-1",
            "+1",
            " 1",
            "1.0",
            "1e3",
            "11",
            "99999999999999999999",
            "٣",
        ] {
            assert!(number("n", bad, 10).is_err(), "{bad}");
        }
    }
}
