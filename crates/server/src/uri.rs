//! Strict reading of paths and query strings: what cannot be understood is refused and named, never guessed.

use std::borrow::Cow;

use gesta_core::{ExpectedRevision, Revision, StreamId, limits};

use crate::problem::{Problem, Result};

/// Decodes `%XX`. With `plus_is_space`, as query strings have it, `+` stands for a space.
pub(crate) fn percent_decode<'a>(field: &str, raw: &'a str, plus: Plus) -> Result<Cow<'a, str>> {
    let special = |b: &u8| *b == b'%' || (*b == b'+' && plus == Plus::Space);
    if !raw.as_bytes().iter().any(special) {
        return Ok(Cow::Borrowed(raw));
    }
    let mut decoded = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digits = (bytes.next().and_then(hex), bytes.next().and_then(hex));
                let (Some(high), Some(low)) = digits else {
                    return Err(Problem::invalid(
                        field,
                        "must be percent-encoded: two hexadecimal digits follow each %",
                    ));
                };
                high << 4 | low
            }
            b'+' if plus == Plus::Space => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded)
        .map(Cow::Owned)
        .map_err(|_| Problem::invalid(field, "must be UTF-8 once it is percent-decoded"))
}

/// What `+` stands for: itself in paths, a space in query strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plus {
    Itself,
    Space,
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// The stream that a path segment names.
pub(crate) fn stream(segment: &str) -> Result<StreamId> {
    let name = percent_decode("stream", segment, Plus::Itself)?;
    stream_named("stream", &name)
}

/// A stream by its name; the metadata stream of the longest name is two bytes longer than other names.
pub(crate) fn stream_named(field: &str, name: &str) -> Result<StreamId> {
    let found = match name.strip_prefix("$$") {
        Some(described) if name.len() > limits::STREAM_NAME_BYTES_MAX => {
            StreamId::new(described).map(|stream| stream.metadata_stream())
        }
        _ => StreamId::new(name),
    };
    found.map_err(|error| Problem::invalid_at(field, &error))
}

/// A beginning of stream names, or a category: as a name, but it may be empty.
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

/// A text from a request in quotes, shortened.
pub(crate) fn shown(text: &str) -> String {
    format!("{:?}", shortened(text, 60))
}

/// At most `bytes_max` bytes of a text, cut between characters.
pub(crate) fn shortened(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}…", &text[..text.floor_char_boundary(bytes_max)]))
}

/// The parameters of a query string. Each must be asked for: [`Parameters::end`] refuses the others.
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
                return Err(Problem::invalid(
                    shortened(&name, 60),
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

    /// The value of a parameter that may stand once.
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

    /// The values of a parameter that may be repeated.
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

    /// `expected=`; `any` if absent.
    pub(crate) fn expected(&self) -> Result<ExpectedRevision> {
        let value = self.one("expected")?;
        match value.as_deref() {
            None | Some("any") => Ok(ExpectedRevision::Any),
            Some("no_stream") => Ok(ExpectedRevision::NoStream),
            Some("stream_exists") => Ok(ExpectedRevision::StreamExists),
            Some(text) => match number("expected", text, Revision::MAX.0) {
                Ok(revision) => Ok(ExpectedRevision::Exact(Revision(revision))),
                Err(_) => Err(Problem::invalid(
                    "expected",
                    format!("{}, found {}", crate::decode::EXPECTED_RULE, shown(text)),
                )),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoding_is_read_strictly() {
        let read = |raw| percent_decode("stream", raw, Plus::Itself).map_err(|p| p.detail);
        assert_eq!(read("cart-1").as_deref(), Ok("cart-1"));
        assert_eq!(read("a%2Fb+%C3%BC%e2%98%83").as_deref(), Ok("a/b+ü☃"));
        for bad in ["%", "a%2", "%zz", "%+1", "%ff", "%C3%28", "%ed%a0%80"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert_eq!(
            percent_decode("q", "a+b%2B", Plus::Space).as_deref(),
            Ok("a b+")
        );
    }

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
