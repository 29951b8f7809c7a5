//! Links: events of type `$>` that name another event by `<revision>@<stream>`.

use gesta_core::{RecordedEvent, Revision, StreamId};

/// The type of events that are links.
pub const TYPE: &str = "$>";

/// The event that a link leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Its stream.
    pub stream: StreamId,
    /// Its revision.
    pub revision: Revision,
}

/// Where an event leads, if it is a link. One whose data cannot be read is an ordinary event.
#[must_use]
pub fn target(event: &RecordedEvent) -> Option<Target> {
    if event.event_type.as_str() != TYPE {
        return None;
    }
    let text = std::str::from_utf8(&event.data).ok()?;
    let (revision, stream) = text.split_once('@')?;
    if !revision.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(Target {
        stream: StreamId::new(stream).ok()?,
        revision: Revision(revision.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tests::event;

    #[test]
    fn links_name_a_revision_and_a_stream() {
        let lead = |event_type: &str, data: &'static str| {
            let mut link = event(event_type);
            link.data = data.into();
            target(&link).map(|t| (t.revision.0, t.stream.as_str().to_owned()))
        };
        assert_eq!(lead("$>", "7@cart-1"), Some((7, "cart-1".into())));
        assert_eq!(lead("$>", "0@a@b"), Some((0, "a@b".into())));
        for wrong in [
            "",
            "@",
            "7@",
            "@a",
            "x@a",
            "+7@a",
            "-1@a",
            "7",
            "99999999999999999999@a",
        ] {
            assert_eq!(lead("$>", wrong), None, "{wrong}");
        }
        assert_eq!(lead("linked", "7@cart-1"), None);
    }
}
