//! Reads the values of arguments from their text.
//!
//! Invariant: a wrong value is refused with the rule, before anything is opened. The rule is in words of the product,
//! so numbers are read by [`number`] and [`at_least`]: the parsers of clap and of Rust speak of digits and strings.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use gesta_core::{Checkpoint, EventId, EventType, ExpectedRevision, Revision, StreamId, Tag};
use gesta_wire::Expected;
use uuid::Uuid;

/// Where reading begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadFrom<T> {
    /// Reading begins with the first event.
    Start,
    /// Reading begins with the last event.
    End,
    /// Reading begins at this place.
    Place(T),
}

/// Where following begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum After<T> {
    /// Following begins with the first event.
    Start,
    /// Following begins with the next event that is stored.
    End,
    /// Following begins after this place.
    Place(T),
}

/// Returns a reader of whole numbers within a range.
pub(super) fn number<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text: &str| {
        let number = text
            .parse::<T>()
            .ok()
            .filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            format!("must be a whole number from {least} to {most}")
        })
    }
}

/// Returns a reader of whole numbers that have a least value, and are as large as anybody needs.
pub(super) fn at_least(
    least: u64,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text: &str| {
        let number = text.parse::<u64>().ok().filter(|number| *number >= least);
        number.ok_or_else(|| format!("must be a whole number, {least} or more"))
    }
}

pub(super) fn stream(text: &str) -> Result<StreamId, gesta_core::Error> {
    StreamId::new(text)
}

pub(super) fn event_type(text: &str) -> Result<EventType, gesta_core::Error> {
    EventType::new(text)
}

pub(super) fn tag(text: &str) -> Result<Tag, gesta_core::Error> {
    Tag::new(text)
}

pub(super) fn event_id(text: &str) -> Result<EventId, String> {
    let id = Uuid::parse_str(text).map(EventId);
    id.map_err(|_| "must be a UUID, such as 0198c7e2-5a4b-7c3d-9e1f-2a3b4c5d6e7f".into())
}

pub(super) fn checkpoint(text: &str) -> Result<Checkpoint, gesta_core::Error> {
    text.parse()
}

fn revision(text: &str) -> Result<Revision, String> {
    match text.parse::<u64>() {
        Ok(n) if n <= Revision::MAX.0 => Ok(Revision(n)),
        _ => Err(format!("must be a revision from 0 to {}", Revision::MAX)),
    }
}

pub(super) fn expected(text: &str) -> Result<ExpectedRevision, String> {
    if let Some(expected) = Expected::named(&text.replace('-', "_")) {
        return Ok(expected.0);
    }
    revision(text)
        .map(ExpectedRevision::Exact)
        .map_err(|_| "must be any, no-stream, stream-exists or a revision".into())
}

pub(super) fn after_revision(text: &str) -> Result<After<Revision>, String> {
    match text {
        "start" => Ok(After::Start),
        "end" => Ok(After::End),
        _ => revision(text)
            .map(After::Place)
            .map_err(|_| "must be start, end or a revision".into()),
    }
}

pub(super) fn after_checkpoint(text: &str) -> Result<After<Checkpoint>, gesta_core::Error> {
    match text {
        "start" => Ok(After::Start),
        "end" => Ok(After::End),
        _ => text.parse().map(After::Place),
    }
}

pub(super) fn from_revision(text: &str) -> Result<ReadFrom<Revision>, String> {
    read_from(text, |text| {
        revision(text).map_err(|error| error.to_string())
    })
}

pub(super) fn from_checkpoint(text: &str) -> Result<ReadFrom<Checkpoint>, String> {
    read_from(text, |text| {
        checkpoint(text).map_err(|error| error.to_string())
    })
}

fn read_from<T>(
    text: &str,
    place: impl Fn(&str) -> Result<T, String>,
) -> Result<ReadFrom<T>, String> {
    match text {
        "start" => Ok(ReadFrom::Start),
        "end" => Ok(ReadFrom::End),
        text => place(text).map(ReadFrom::Place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectations_are_read() {
        assert_eq!(expected("any"), Ok(ExpectedRevision::Any));
        assert_eq!(expected("no-stream"), Ok(ExpectedRevision::NoStream));
        assert_eq!(expected("7"), Ok(ExpectedRevision::Exact(Revision(7))));
        for bad in ["", "-1", "none", "99999999999999999999", "1.5"] {
            assert!(expected(bad).is_err(), "{bad}");
        }
    }
}
