//! Names of groups, and the names of the streams that keep a group.
//!
//! A group is known by its source and by its own name, written `SOURCE::GROUP`. Invariant: two groups never share such
//! a text, and all streams that are made of it have names that the store takes. Not here: what the streams hold
//! (`record`).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use gesta_core::system_streams::{
    GROUP_CONFIGURATION_PREFIX as CONFIGURATION, GROUP_SEPARATOR as BETWEEN,
    GROUP_STATE_PREFIX as STATE,
};
use gesta_core::{Error, Result, StreamId, limits};

/// Longest name of a group, in bytes of UTF-8. The shortest is 1.
pub const GROUP_NAME_BYTES_MAX: usize = 256;
/// The source of a group on all events, as text.
pub const ALL: &str = gesta_core::ALL_EVENTS;

const CHECKPOINT: &str = "-checkpoint";
const PARKED: &str = "-parked";
/// Greatest number of a parked stream. Its name is no longer than that of the checkpoint stream then.
pub(crate) const PARKED_STREAMS_MAX: u16 = 999;

/// What a group reads.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Source {
    /// The group reads one stream.
    Stream(StreamId),
    /// The group reads all events of a store that has one log.
    All,
}

impl Source {
    /// Returns the name of the stream, or `$all`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Source::Stream(stream) => stream.as_str(),
            Source::All => ALL,
        }
    }
}

impl From<StreamId> for Source {
    fn from(stream: StreamId) -> Self {
        Source::Stream(stream)
    }
}

impl From<&Source> for Source {
    fn from(source: &Source) -> Self {
        source.clone()
    }
}

impl TryFrom<&str> for Source {
    type Error = Error;

    /// Takes the name of a stream, or `$all`.
    fn try_from(text: &str) -> Result<Self> {
        match text {
            ALL => Ok(Source::All),
            stream => StreamId::new(stream).map(Source::Stream),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The identity of a group: its source, and its name there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId {
    source: Source,
    name: Arc<str>,
}

impl GroupId {
    /// Makes the identity of a group of this name on this source, which may be given as a text: the name of a stream,
    /// or
    /// `$all`.
    ///
    /// # Errors
    /// `InvalidArgument` if the text is no name of a stream; if the name is empty, too long, or contains control
    /// characters or `::`, if it begins with `:`,
    /// if the source is a stream named `$all`, or if the names of the group's streams would be too long.
    pub fn new(source: impl TryInto<Source, Error: Into<Error>>, name: &str) -> Result<Self> {
        Self::checked(source.try_into().map_err(Into::into)?, name)
    }

    fn checked(source: Source, name: &str) -> Result<Self> {
        let rule = |rule: String| Err(Error::invalid("group", rule));
        if name.is_empty() || name.len() > GROUP_NAME_BYTES_MAX {
            let found = name.len();
            return rule(format!(
                "must be 1 to {GROUP_NAME_BYTES_MAX} bytes, found {found}"
            ));
        }
        if name.chars().any(char::is_control) {
            return rule("must not contain control characters".to_owned());
        }
        // Else `a::` + `b` and `a` + `::b` would be one group.
        if name.starts_with(':') || name.contains(BETWEEN) {
            return rule(format!(
                "must not begin with a colon or contain two in a row, found {name:?}"
            ));
        }
        if matches!(&source, Source::Stream(stream) if stream.as_str() == ALL) {
            let text = format!("{ALL} is not the name of a stream: make a group on all events");
            return Err(Error::invalid("stream", text));
        }
        let group = Self {
            source,
            name: Arc::from(name),
        };
        let longest = STATE.len() + group.key().len() + CHECKPOINT.len();
        if longest > limits::STREAM_NAME_BYTES_MAX {
            let max = limits::STREAM_NAME_BYTES_MAX + group.key().len() - longest;
            return rule(format!(
                "and the name of its stream must be at most {} bytes together, found {}",
                max - BETWEEN.len(),
                group.key().len() - BETWEEN.len()
            ));
        }
        Ok(group)
    }

    pub(crate) fn is_on_all(&self) -> bool {
        self.source == Source::All
    }

    /// Returns what the group reads.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the name of the group on its source.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the stream of the group's configuration.
    #[must_use]
    pub fn configuration_stream(&self) -> StreamId {
        derived(format!("{CONFIGURATION}{}", self.key()))
    }

    /// Returns the stream of the group's checkpoints.
    #[must_use]
    pub fn checkpoint_stream(&self) -> StreamId {
        derived(format!("{STATE}{}{CHECKPOINT}", self.key()))
    }

    /// Returns the stream of the group's parked events, as long as nobody has closed it with a tombstone.
    #[must_use]
    pub fn parked_stream(&self) -> StreamId {
        self.parked_stream_of(0)
    }

    /// Returns the stream of the group's parked events that takes the place of so many others, which were closed with
    /// tombstones. The number is at most [`PARKED_STREAMS_MAX`].
    pub(crate) fn parked_stream_of(&self, number: u16) -> StreamId {
        let suffix = match number {
            0 => String::new(),
            number => format!("-{number}"),
        };
        derived(format!("{STATE}{}{PARKED}{suffix}", self.key()))
    }

    /// Returns the text with which the names of the configuration streams of all groups, or of all groups of one
    /// source, begin. Configuration streams of other sources may begin with it too.
    #[must_use]
    pub fn configuration_prefix(source: Option<&Source>) -> String {
        match source {
            None => CONFIGURATION.to_owned(),
            Some(source) => format!("{CONFIGURATION}{source}{BETWEEN}"),
        }
    }

    /// Returns the group whose configuration stream this is, or `None` if it is no such stream.
    #[must_use]
    pub fn of_configuration_stream(stream: &StreamId) -> Option<Self> {
        stream.as_str().strip_prefix(CONFIGURATION)?.parse().ok()
    }

    fn key(&self) -> String {
        format!("{}{BETWEEN}{}", self.source, self.name)
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{BETWEEN}{}", self.source, self.name)
    }
}

/// Reads what [`GroupId`] shows: the name of the source and that of the group, with `::` between them.
impl FromStr for GroupId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // No name of a group has two colons in a row.
        let Some((source, name)) = text.rsplit_once(BETWEEN) else {
            let rule = format!("must be STREAM::GROUP or {ALL}::GROUP, found {text:?}");
            return Err(Error::invalid("group", rule));
        };
        Self::new(source, name)
    }
}

/// Makes a stream of a name whose parts were checked when the identity of the group was made.
fn derived(name: String) -> StreamId {
    StreamId::from_stored(name.into())
}

/// Returns true for streams that keep checkpoints and parked events of groups, and for the metadata streams of these. A
/// group on all events does not deliver their events: its own checkpoints would be events that it has to finish.
#[must_use]
pub fn keeps_state_of_groups(stream: &StreamId) -> bool {
    let name = stream.as_str();
    name.strip_prefix("$$").unwrap_or(name).starts_with(STATE)
}

/// What a stream keeps of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keeps {
    Configuration,
    Checkpoint,
    /// The parked events; this is the number of the parked stream.
    Parked(u16),
}

/// Returns the group of which a stream of this name keeps something.
pub(crate) fn kept_by(stream: &str) -> Option<(GroupId, Keeps)> {
    if let Some(key) = stream.strip_prefix(CONFIGURATION) {
        return Some((key.parse().ok()?, Keeps::Configuration));
    }
    let rest = stream.strip_prefix(STATE)?;
    if let Some(key) = rest.strip_suffix(CHECKPOINT) {
        return Some((key.parse().ok()?, Keeps::Checkpoint));
    }
    let (key, number) = match rest.strip_suffix(PARKED) {
        Some(key) => (key, 0),
        None => {
            let (rest, number) = rest.rsplit_once('-')?;
            (rest.strip_suffix(PARKED)?, number.parse().ok()?)
        }
    };
    let group: GroupId = key.parse().ok()?;
    let is_made_so = group.parked_stream_of(number).as_str() == stream;
    is_made_so.then_some((group, Keeps::Parked(number)))
}

/// Returns true for the streams that keep the checkpoints and the parked events of groups on all events.
#[must_use]
pub fn keeps_state_of_a_group_on_all(stream: &StreamId) -> bool {
    // Most streams are none of groups, and the name of a group is not parsed for them.
    stream.as_str().starts_with(STATE)
        && kept_by(stream.as_str()).is_some_and(|(group, _)| group.is_on_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(stream: &str, name: &str) -> Result<GroupId> {
        GroupId::new(Source::Stream(StreamId::new(stream)?), name)
    }

    #[test]
    fn a_group_is_found_by_its_configuration_stream() {
        for (stream, name) in [
            ("cart-1", "mail"),
            ("a:", "b:"),
            ("a::b", "c"),
            ("$$x", "y"),
        ] {
            let group = group(stream, name).expect("valid");
            let found = GroupId::of_configuration_stream(&group.configuration_stream());
            assert_eq!(found, Some(group));
        }
        let all = GroupId::new(Source::All, "mail").expect("valid");
        assert_eq!(
            all.checkpoint_stream().as_str(),
            "$persistentsubscription-$all::mail-checkpoint"
        );
        assert_eq!(
            GroupId::of_configuration_stream(&all.configuration_stream()),
            Some(all)
        );
        let other = StreamId::new("cart-1").expect("valid");
        assert_eq!(GroupId::of_configuration_stream(&other), None);
    }

    #[test]
    fn names_that_are_no_names_are_refused() {
        for name in ["", ":a", "a::b", "a\n", &"x".repeat(257)] {
            assert!(group("cart-1", name).is_err(), "{name:?}");
        }
        assert!(group(ALL, "mail").is_err());
        for text in ["mail", "::mail", "a::", "a:mail"] {
            assert!(text.parse::<GroupId>().is_err(), "{text:?}");
        }
        let longest = "s".repeat(1_024 - 24 - 11 - 2 - 1);
        let made = group(&longest, "g").expect("as long as can be");
        assert!(StreamId::new(made.checkpoint_stream().as_str()).is_ok());
        assert_eq!(made.checkpoint_stream().as_str().len(), 1_024);
        let parked = made.parked_stream_of(PARKED_STREAMS_MAX);
        assert!(parked.as_str().len() <= 1_024);
        let error = group(&longest, "gg").expect_err("too long").to_string();
        assert!(
            error.contains("at most 987 bytes together, found 988"),
            "{error}"
        );
    }

    #[test]
    fn the_state_of_groups_is_known_by_its_name() {
        let group = group("cart-1", "mail").expect("valid");
        for stream in [group.checkpoint_stream(), group.parked_stream()] {
            assert!(keeps_state_of_groups(&stream));
            assert!(keeps_state_of_groups(&stream.metadata_stream()));
        }
        assert!(!keeps_state_of_groups(&group.configuration_stream()));
    }

    #[test]
    fn the_state_of_groups_on_all_events_is_told_from_that_of_others() {
        let all = GroupId::new(Source::All, "mail").expect("valid");
        let parked = [0, 1, PARKED_STREAMS_MAX].map(|number| all.parked_stream_of(number));
        for stream in parked.into_iter().chain([all.checkpoint_stream()]) {
            assert!(keeps_state_of_a_group_on_all(&stream));
            assert!(!keeps_state_of_a_group_on_all(&stream.metadata_stream()));
        }
        assert!(!keeps_state_of_a_group_on_all(&all.configuration_stream()));
        for source in ["cart-1", "$all::x", "x::$all"] {
            let of_stream = group(source, "mail").expect("valid");
            for stream in [of_stream.checkpoint_stream(), of_stream.parked_stream()] {
                assert!(!keeps_state_of_a_group_on_all(&stream), "{stream:?}");
            }
        }
    }
}
