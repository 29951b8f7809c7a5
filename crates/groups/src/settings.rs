//! The settings of a group, as callers give them and as they are stored.
//!
//! Invariant: settings that [`Settings::validate`] has passed can be run. Not here: names (`names`), the document that
//! holds them in the store (`record`).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use gesta_core::{Error, Result};
use gesta_wire::json::whole_number;
use serde::{Deserialize, Serialize};

/// Most events that wait in a group for a consumer.
pub const BUFFER_EVENTS_MAX: u32 = 10_000;
/// Most events that one consumer may hold without an answer.
pub const CONSUMER_EVENTS_MAX: u32 = 10_000;
/// Most consumers of a group, whatever its settings say.
pub const CONSUMERS_MAX: usize = 1_000;
/// Longest time, in milliseconds, and greatest count that settings may have.
pub const NUMBER_MAX: u32 = i32::MAX.unsigned_abs();

/// Where a group begins that has no checkpoint yet. Unlike with a subscription, the event that is named is delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// The group begins with the first event.
    #[default]
    Start,
    /// The group begins with the first event that is stored after the group was created.
    End,
    /// The group begins with this revision of its stream, or with this position of all events.
    At(#[serde(deserialize_with = "whole_number")] u64),
}

/// The rule by which the consumer that gets an event is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Each consumer gets an event in turn.
    #[default]
    RoundRobin,
    /// The consumer that joined first gets all events, as long as it has room.
    DispatchToSingle,
    /// One consumer gets all events of one stream, as long as the consumers stay the same.
    Pinned,
    /// One consumer gets all events that have the same `$correlationId` in their metadata. Events without it are shared
    /// out as with `Pinned`.
    PinnedByCorrelation,
}

impl Strategy {
    const ALL: [Strategy; 4] = [
        Strategy::RoundRobin,
        Strategy::DispatchToSingle,
        Strategy::Pinned,
        Strategy::PinnedByCorrelation,
    ];

    /// Returns the name of the strategy in documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Strategy::RoundRobin => "round_robin",
            Strategy::DispatchToSingle => "dispatch_to_single",
            Strategy::Pinned => "pinned",
            Strategy::PinnedByCorrelation => "pinned_by_correlation",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Strategy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|known| known.as_str() == text);
        found.ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str).join(", ");
            let shown: String = text.chars().take(60).collect();
            Error::invalid(
                "strategy",
                format!("must be one of {known}, found {shown:?}"),
            )
        })
    }
}

/// The settings of a group. Settings that a document leaves out have the values of [`Settings::default`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where the group begins while it has no checkpoint.
    pub start: Start,
    /// True if consumers are to get the event to which a link points. A group delivers links as they are; the code that
    /// serves a consumer follows them, as the gRPC calls of the server do.
    pub resolve_links: bool,
    /// True if the group measures how long its consumers take to answer.
    pub extra_statistics: bool,
    /// Time that a consumer may take to answer for an event before the event is delivered again, in milliseconds. 0:
    /// there is no such time.
    #[serde(deserialize_with = "whole_number")]
    pub message_timeout_ms: u32,
    /// How many times an event is delivered again before it is parked.
    #[serde(deserialize_with = "whole_number")]
    pub max_retry_count: u32,
    /// How long finished events wait for a checkpoint, in milliseconds, if there are at least `min_checkpoint_count` of
    /// them.
    #[serde(deserialize_with = "whole_number")]
    pub checkpoint_after_ms: u32,
    /// Fewest finished events that are worth a checkpoint.
    #[serde(deserialize_with = "whole_number")]
    pub min_checkpoint_count: u32,
    /// Number of finished events from which on a checkpoint is written at once. 0: no number is enough by itself.
    #[serde(deserialize_with = "whole_number")]
    pub max_checkpoint_count: u32,
    /// Most consumers at once. 0: there is no limit but [`CONSUMERS_MAX`].
    #[serde(deserialize_with = "whole_number")]
    pub max_subscriber_count: u32,
    /// Most events that wait for a consumer while the group reads live, 1 to [`BUFFER_EVENTS_MAX`].
    #[serde(deserialize_with = "whole_number")]
    pub live_buffer_size: u32,
    /// Number of events that a read takes while the group catches up, 1 to [`BUFFER_EVENTS_MAX`] - 1. The group checks
    /// and shows this value, and does not use it otherwise.
    #[serde(deserialize_with = "whole_number")]
    pub read_batch_size: u32,
    /// Most events that wait for a consumer while the group catches up, up to [`BUFFER_EVENTS_MAX`]. It must be greater
    /// than `read_batch_size`.
    #[serde(deserialize_with = "whole_number")]
    pub history_buffer_size: u32,
    /// Rule by which the consumer that gets an event is chosen.
    pub strategy: Strategy,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            start: Start::default(),
            resolve_links: false,
            extra_statistics: false,
            message_timeout_ms: 30_000,
            max_retry_count: 10,
            checkpoint_after_ms: 2_000,
            min_checkpoint_count: 10,
            max_checkpoint_count: 1_000,
            max_subscriber_count: 0,
            live_buffer_size: 500,
            read_batch_size: 20,
            history_buffer_size: 500,
            strategy: Strategy::default(),
        }
    }
}

impl Settings {
    /// Sets where the group begins while it has no checkpoint.
    #[must_use]
    pub fn with_start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Sets how long a consumer may take to answer for an event before it is delivered again, in whole milliseconds.
    /// With no time at all there is no such bound.
    #[must_use]
    pub fn with_message_timeout(mut self, timeout: Duration) -> Self {
        self.message_timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        self
    }

    /// Sets how many times an event is delivered again before it is parked.
    #[must_use]
    pub fn with_max_retry_count(mut self, count: u32) -> Self {
        self.max_retry_count = count;
        self
    }

    /// Sets the rule by which the consumer that gets an event is chosen.
    #[must_use]
    pub fn with_strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Delivers what a link leads to in its place.
    #[must_use]
    pub fn with_resolved_links(mut self) -> Self {
        self.resolve_links = true;
        self
    }

    /// Checks every value, and the relations between the values.
    ///
    /// # Errors
    /// `InvalidArgument` that names the first value that is out of range.
    pub fn validate(&self) -> Result<()> {
        for (field, found, min, max) in self.ranges() {
            if !(min..=max).contains(&found) {
                return Err(Error::invalid(
                    field,
                    format!("must be {min} to {max}, found {found}"),
                ));
            }
        }
        self.check_relations()?;
        match self.start {
            Start::At(at) if at > gesta_core::Position::MAX.0 => {
                let max = gesta_core::Position::MAX;
                Err(Error::invalid(
                    "start.at",
                    format!("must be at most {max}, found {at}"),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns each number with its name, its least value and its greatest value.
    fn ranges(&self) -> [(&'static str, u32, u32, u32); 9] {
        const BUFFER: u32 = BUFFER_EVENTS_MAX;
        const ANY: u32 = NUMBER_MAX;
        #[rustfmt::skip]
        let ranges = [
            ("message_timeout_ms", self.message_timeout_ms, 0, ANY),
            ("max_retry_count", self.max_retry_count, 0, ANY),
            ("checkpoint_after_ms", self.checkpoint_after_ms, 0, ANY),
            ("min_checkpoint_count", self.min_checkpoint_count, 0, ANY),
            ("max_checkpoint_count", self.max_checkpoint_count, 0, ANY),
            ("max_subscriber_count", self.max_subscriber_count, 0, ANY),
            ("live_buffer_size", self.live_buffer_size, 1, BUFFER),
            ("read_batch_size", self.read_batch_size, 1, BUFFER - 1),
            ("history_buffer_size", self.history_buffer_size, 1, BUFFER),
        ];
        ranges
    }

    /// Checks what must hold between two values.
    fn check_relations(&self) -> Result<()> {
        let less = |field: &str, of: &str, least: u32, found: u32| {
            let rule = format!("must be at least {least}, for {of}, found {found}");
            Err(Error::invalid(field, rule))
        };
        let (batch, buffer) = (self.read_batch_size, self.history_buffer_size);
        if buffer <= batch {
            let of = format!("read_batch_size is {batch}");
            return less("history_buffer_size", &of, batch + 1, buffer);
        }
        let (min, max) = (self.min_checkpoint_count, self.max_checkpoint_count);
        if max != 0 && max < min {
            return less(
                "max_checkpoint_count",
                &format!("min_checkpoint_count is {min}"),
                min,
                max,
            );
        }
        Ok(())
    }

    /// Returns how long a consumer may take to answer; `None` if it may take as long as it wants.
    #[must_use]
    pub fn message_timeout(&self) -> Option<Duration> {
        (self.message_timeout_ms > 0)
            .then(|| Duration::from_millis(u64::from(self.message_timeout_ms)))
    }

    /// Returns how long finished events wait for a checkpoint.
    #[must_use]
    pub fn checkpoint_after(&self) -> Duration {
        Duration::from_millis(u64::from(self.checkpoint_after_ms))
    }

    /// Returns the most consumers that the group may have at once.
    #[must_use]
    pub fn consumers_max(&self) -> usize {
        match usize::try_from(self.max_subscriber_count) {
            Ok(1..CONSUMERS_MAX) => {
                usize::try_from(self.max_subscriber_count).unwrap_or(CONSUMERS_MAX)
            }
            _ => CONSUMERS_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_may_leave_settings_out_but_not_invent_some() {
        let read = |text: &str| serde_json::from_str::<Settings>(text);
        assert_eq!(read("{}").expect("valid"), Settings::default());
        let settings = read(r#"{"start":{"at":7},"strategy":"pinned_by_correlation"}"#);
        let settings = settings.expect("valid");
        assert_eq!(settings.start, Start::At(7));
        assert_eq!(settings.strategy, Strategy::PinnedByCorrelation);
        assert_eq!(read(r#"{"start":"end"}"#).expect("valid").start, Start::End);
        assert!(read(r#"{"max_retries":1}"#).is_err());
        let shown = serde_json::to_string(&settings).expect("JSON");
        assert_eq!(read(&shown).expect("valid"), settings);
    }

    #[test]
    fn a_value_out_of_range_is_named() {
        let wrong = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.validate().expect_err("out of range").to_string()
        };
        assert_eq!(
            wrong(|s| s.live_buffer_size = 0),
            "live_buffer_size must be 1 to 10000, found 0"
        );
        assert_eq!(
            wrong(|s| s.read_batch_size = 500),
            "history_buffer_size must be at least 501, for read_batch_size is 500, found 500"
        );
        assert_eq!(
            wrong(|s| s.max_checkpoint_count = 9),
            "max_checkpoint_count must be at least 10, for min_checkpoint_count is 10, found 9"
        );
        assert!(wrong(|s| s.start = Start::At(u64::MAX)).starts_with("start.at must be at most"));
        assert!(Settings::default().validate().is_ok());
    }

    #[test]
    fn consumers_are_limited_whatever_is_asked_for() {
        for (asked, max) in [(0, CONSUMERS_MAX), (5, 5), (NUMBER_MAX, CONSUMERS_MAX)] {
            let settings = Settings {
                max_subscriber_count: asked,
                ..Settings::default()
            };
            assert_eq!(settings.consumers_max(), max);
        }
    }

    #[test]
    fn strategies_have_one_name_each() {
        for strategy in Strategy::ALL {
            assert_eq!(
                strategy.as_str().parse::<Strategy>().expect("known"),
                strategy
            );
            let shown = serde_json::to_value(strategy).expect("JSON");
            assert_eq!(shown, strategy.as_str());
        }
        assert!("Pinned".parse::<Strategy>().is_err());
    }
}
