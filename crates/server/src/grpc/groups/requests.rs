//! Reads messages about groups as requests of `gesta_groups`.

use gesta_core::Position;
use gesta_groups::{GroupId, NUMBER_MAX, Settings, Source, Start, Strategy};
use gesta_grpc::messages::groups::create_req::all_options::filter_options::{
    Filter as Subject, Window,
};
use gesta_grpc::messages::groups::create_req::all_options::{
    AllOption, FilterOption, FilterOptions,
};
use gesta_grpc::messages::groups::create_req::options::StreamOption;
use gesta_grpc::messages::groups::create_req::settings::{CheckpointAfter, MessageTimeout};
use gesta_grpc::messages::groups::create_req::stream_options::RevisionOption;
use gesta_grpc::messages::groups::create_req::{
    AllOptions, ConsumerStrategy, Options, Settings as RequestedSettings, StreamOptions,
};
use gesta_grpc::messages::shared::StreamIdentifier;
use gesta_grpc::{Positions, Refusal, filter, ids};
use gesta_pattern::{Of, PatternText};

use super::super::Result;
use super::answers;

/// Number of ticks of the protocol, a tenth of a microsecond each, in a millisecond.
const TICKS_PER_MILLISECOND: u64 = 10_000;

/// A group that is to be created or changed.
pub(super) struct Wanted {
    pub(super) group: GroupId,
    pub(super) settings: Settings,
    pub(super) pattern: Option<PatternText>,
}

/// Reads which group is to be created or changed, and its settings.
pub(super) fn wanted(options: Option<Options>, positions: Positions) -> Result<Wanted> {
    let options = options.ok_or_else(|| Refusal::invalid("the options must be given"))?;
    let source = match &options.stream_option {
        Some(StreamOption::Stream(of)) => {
            Source::Stream(ids::stream(of.stream_identifier.as_ref())?)
        }
        Some(StreamOption::All(_)) => Source::All,
        // Older clients name the stream elsewhere.
        None => Source::Stream(ids::stream(options.stream_identifier.as_ref())?),
    };
    let group = GroupId::new(source, &options.group_name)?;
    match to_be(options, positions) {
        Ok((settings, pattern)) => Ok(Wanted {
            group,
            settings,
            pattern,
        }),
        Err(refusal) => Err(answers::of_settings(&group, refusal)),
    }
}

/// Reads the settings and the pattern of a group.
fn to_be(options: Options, positions: Positions) -> Result<(Settings, Option<PatternText>)> {
    let asked = options
        .settings
        .ok_or_else(|| Refusal::invalid("the settings must be given"))?;
    let (start, pattern) = match options.stream_option {
        Some(StreamOption::Stream(stream)) => (of_stream(&stream, asked.revision), None),
        Some(StreamOption::All(all)) => of_all(all, positions)?,
        // Older clients name the first revision elsewhere.
        None => (at_revision(asked.revision), None),
    };
    Ok((settings(&asked, start)?, pattern))
}

fn no_start() -> Refusal {
    Refusal::invalid("where to begin must be given")
}

/// Returns where a group on a stream begins. `old` is the number in the field that this was once written in: some
/// clients still write it there alone.
fn of_stream(options: &StreamOptions, old: u64) -> Start {
    match options.revision_option {
        Some(RevisionOption::Start(_)) => Start::Start,
        Some(RevisionOption::End(_)) => Start::End,
        Some(RevisionOption::Revision(revision)) => at_revision(revision),
        None => at_revision(old),
    }
}

/// Reads a revision: the greatest number is the end, and 0 is the start.
fn at_revision(revision: u64) -> Start {
    match revision {
        0 => Start::Start,
        u64::MAX => Start::End,
        revision => Start::At(revision),
    }
}

fn of_all(options: AllOptions, positions: Positions) -> Result<(Start, Option<PatternText>)> {
    let start = match options.all_option {
        Some(AllOption::Start(_)) => Start::Start,
        Some(AllOption::End(_)) => Start::End,
        Some(AllOption::Position(at)) => match at.commit_position {
            u64::MAX => Start::End,
            // A bound of its own, with the name of the setting.
            shown if shown > Position::MAX.0 => Start::At(shown),
            shown => match positions.read(shown)?.0 {
                0 => Start::Start,
                position => Start::At(position),
            },
        },
        None => return Err(no_start()),
    };
    let pattern = match options.filter_option {
        Some(FilterOption::Filter(filter)) => Some(pattern(filter)?),
        Some(FilterOption::NoFilter(_)) | None => None,
    };
    Ok((start, pattern))
}

fn pattern(options: FilterOptions) -> Result<PatternText> {
    if matches!(options.window, Some(Window::Max(0))) {
        return Err(Refusal::invalid("the window must be at least 1"));
    }
    let (of, expression) = match options.filter {
        Some(Subject::StreamIdentifier(expression)) => (Of::Stream, expression),
        Some(Subject::EventType(expression)) => (Of::Type, expression),
        None => {
            return Err(Refusal::invalid(
                "the filter must be of stream names or of types",
            ));
        }
    };
    Ok(filter::pattern(of, expression.regex, expression.prefix))
}

fn settings(asked: &RequestedSettings, start: Start) -> Result<Settings> {
    let defaults = Settings::default();
    let min_checkpoint_count = count("min_checkpoint_count", asked.min_checkpoint_count)?;
    let settings = Settings {
        start,
        resolve_links: asked.resolve_links,
        extra_statistics: asked.extra_statistics,
        message_timeout_ms: match asked.message_timeout {
            Some(MessageTimeout::MessageTimeoutMs(time)) => count("message_timeout_ms", time)?,
            Some(MessageTimeout::MessageTimeoutTicks(ticks)) => {
                milliseconds("message_timeout_ticks", ticks)?
            }
            None => defaults.message_timeout_ms,
        },
        max_retry_count: count("max_retry_count", asked.max_retry_count)?,
        checkpoint_after_ms: match asked.checkpoint_after {
            Some(CheckpointAfter::CheckpointAfterMs(time)) => count("checkpoint_after_ms", time)?,
            Some(CheckpointAfter::CheckpointAfterTicks(ticks)) => {
                milliseconds("checkpoint_after_ticks", ticks)?
            }
            None => defaults.checkpoint_after_ms,
        },
        min_checkpoint_count,
        // To these clients the greater of the two is meant.
        max_checkpoint_count: match count("max_checkpoint_count", asked.max_checkpoint_count)? {
            0 => 0,
            max => max.max(min_checkpoint_count),
        },
        max_subscriber_count: count("max_subscriber_count", asked.max_subscriber_count)?,
        live_buffer_size: count("live_buffer_size", asked.live_buffer_size)?,
        read_batch_size: count("read_batch_size", asked.read_batch_size)?,
        history_buffer_size: count("history_buffer_size", asked.history_buffer_size)?,
        strategy: strategy(asked)?,
    };
    settings.validate()?;
    Ok(settings)
}

/// Reads a number that must not be negative.
pub(super) fn count(field: &str, number: i32) -> Result<u32> {
    u32::try_from(number)
        .map_err(|_| Refusal::invalid(format!("{field} must not be negative, found {number}")))
}

/// Reads a time in the unit of older clients. Their longest time means that there is no end to it, so one that is
/// longer than a setting may be is the longest that it may be.
fn milliseconds(field: &str, ticks: i64) -> Result<u32> {
    let ticks = u64::try_from(ticks)
        .map_err(|_| Refusal::invalid(format!("{field} must not be negative, found {ticks}")))?;
    let time = ticks / TICKS_PER_MILLISECOND;
    Ok(u32::try_from(time).unwrap_or(NUMBER_MAX).min(NUMBER_MAX))
}

/// The names of strategies in this protocol.
const STRATEGIES: [(&str, Strategy); 4] = [
    ("RoundRobin", Strategy::RoundRobin),
    ("DispatchToSingle", Strategy::DispatchToSingle),
    ("Pinned", Strategy::Pinned),
    ("PinnedByCorrelation", Strategy::PinnedByCorrelation),
];

/// Returns the name of a strategy in this protocol.
pub(super) fn strategy_name(strategy: Strategy) -> &'static str {
    let named = STRATEGIES.iter().find(|(_, known)| *known == strategy);
    named.map_or("", |(name, _)| name)
}

fn strategy(asked: &RequestedSettings) -> Result<Strategy> {
    let name = asked.consumer_strategy.as_str();
    if name.is_empty() {
        return match ConsumerStrategy::try_from(asked.named_consumer_strategy) {
            Ok(ConsumerStrategy::RoundRobin) => Ok(Strategy::RoundRobin),
            Ok(ConsumerStrategy::DispatchToSingle) => Ok(Strategy::DispatchToSingle),
            Ok(ConsumerStrategy::Pinned) => Ok(Strategy::Pinned),
            Err(_) => Err(Refusal::invalid(format!(
                "named_consumer_strategy must be 0, 1 or 2, found {}",
                asked.named_consumer_strategy
            ))),
        };
    }
    let named = STRATEGIES.iter().find(|(known, _)| *known == name);
    named.map(|(_, strategy)| *strategy).ok_or_else(|| {
        let known = STRATEGIES.map(|(name, _)| name).join(", ");
        let shown: String = name.chars().take(60).collect();
        Refusal::invalid(format!(
            "consumer_strategy must be one of {known}, found {shown:?}"
        ))
    })
}

/// What a group, or the groups of a list, are on.
pub(super) enum Asks {
    Stream(Option<StreamIdentifier>),
    All,
}

impl Asks {
    pub(super) fn source(self) -> Result<Source> {
        match self {
            Asks::All => Ok(Source::All),
            Asks::Stream(stream) => Ok(Source::Stream(ids::stream(stream.as_ref())?)),
        }
    }

    pub(super) fn group(self, name: &str) -> Result<GroupId> {
        Ok(GroupId::new(self.source()?, name)?)
    }
}

/// Makes [`Asks`] of a choice between a stream and all events. Each message has that choice as a type of its own.
macro_rules! asks {
    ($choice:expr, $kind:path, $stream:ident) => {{
        use $kind as Choice;
        match $choice {
            Some(Choice::$stream(stream)) => {
                Ok(crate::grpc::groups::requests::Asks::Stream(Some(stream)))
            }
            Some(Choice::All(_)) => Ok(crate::grpc::groups::requests::Asks::All),
            None => Err(gesta_grpc::Refusal::invalid(
                "a stream, or all events, must be named",
            )),
        }
    }};
}
pub(super) use asks;
