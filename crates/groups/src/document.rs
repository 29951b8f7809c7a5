//! The documents in which the API shows groups. The server writes them, and clients read them.

use std::time::Duration;

use gesta_pattern::PatternText;
use gesta_wire::request::QueryBody;
use serde::{Deserialize, Serialize};

use crate::info::{ConsumerInfo, GroupInfo, Running};
use crate::machine::Counts;
use crate::mark::Halt;
use crate::names::GroupId;
use crate::settings::Settings;

/// The name of a group, in two parts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Name {
    /// Name of the stream that the group reads, or `$all`.
    pub source: String,
    /// Name of the group on that source.
    pub group: String,
}

impl From<&GroupId> for Name {
    fn from(group: &GroupId) -> Self {
        Self {
            source: group.source().to_string(),
            group: group.name().to_owned(),
        }
    }
}

/// A page of names of groups.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Names {
    /// The names, in order.
    pub groups: Vec<Name>,
    /// True if no more names follow.
    pub end: bool,
}

/// A group as the API shows it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Group {
    /// Name of the group.
    #[serde(flatten)]
    pub name: Name,
    /// State of the group: `idle`, `catching_up`, `live`, `replaying` or `halted`.
    pub status: String,
    /// Last revision or position up to which all events are finished, as stored; `null` if there is none.
    pub checkpoint: Option<u64>,
    /// Number of parked events.
    pub parked: u64,
    /// Stream of the parked events, if it is not the usual one because somebody has closed that with a tombstone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked_stream: Option<String>,
    /// Why the group is halted, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted: Option<Halted>,
    /// Settings of the group.
    pub settings: Settings,
    /// Filter for the events that a group on all events takes; if it is empty, the group takes all of them.
    #[serde(default)]
    pub filter: Vec<QueryBody>,
    /// Pattern that an event which passes the filter must match too; without it the group takes every event that passes
    /// the filter. Clients of other protocols give one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<PatternText>,
    /// What the group does, if it runs.
    #[serde(default)]
    pub running: Option<RunningGroup>,
}

/// What the API shows of a group that cannot go on until it is reset.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Halted {
    /// Last revision or position that the group has finished, in a history that the store does not have any more.
    pub finished: Option<u64>,
    /// Greatest revision or position at which the group may go on without passing anything over, as far as it knows;
    /// `null` if it knows none.
    pub surviving: Option<u64>,
    /// Reason for people.
    pub why: String,
}

impl From<&Halt> for Halted {
    fn from(halt: &Halt) -> Self {
        Self {
            finished: halt.place.checked_sub(1),
            surviving: halt.surviving,
            why: halt.why.clone(),
        }
    }
}

/// What the API shows of a group that runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunningGroup {
    /// Last revision or position that was read; `null` if there is none.
    pub read_to: Option<u64>,
    /// Last revision or position up to which all events are finished, also those that no checkpoint holds yet; `null`
    /// if there is none.
    #[serde(default)]
    pub finished_to: Option<u64>,
    /// Number of events that wait to be delivered for the first time.
    pub waiting: usize,
    /// Number of events that wait to be delivered again.
    pub waiting_again: usize,
    /// Number of events that consumers hold.
    pub in_flight: usize,
    /// Bytes of all events that the group holds.
    pub held_bytes: usize,
    /// Seconds since the group began to run.
    pub seconds: u64,
    /// What the group has done since it began to run.
    pub counts: Counts,
    /// Consumers of the group, in the order in which they joined.
    pub consumers: Vec<Consumer>,
}

/// A consumer as the API shows it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Consumer {
    /// Number of the consumer, with which it answers; told only to those who may manage groups.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub consumer: String,
    /// Name that the consumer gives itself.
    pub name: String,
    /// Most events that the consumer may hold at once.
    pub buffer: u32,
    /// Number of events that the consumer holds.
    pub in_flight: usize,
    /// Number of events that were delivered to the consumer.
    pub delivered: u64,
    /// Times that the consumer took lately to answer, if they are measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<Latencies>,
}

/// Times from delivery to answer, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Latencies {
    /// Time within which half of the answers came.
    pub p50_us: u64,
    /// Time within which 99 of 100 answers came.
    pub p99_us: u64,
    /// Longest time.
    pub max_us: u64,
}

impl Latencies {
    fn of(sorted: &[Duration]) -> Option<Self> {
        let at = |percent: usize| {
            let index = (sorted.len() * percent / 100).min(sorted.len().checked_sub(1)?);
            u64::try_from(sorted.get(index)?.as_micros()).ok()
        };
        Some(Self {
            p50_us: at(50)?,
            p99_us: at(99)?,
            max_us: at(100)?,
        })
    }
}

impl From<&GroupInfo> for Group {
    fn from(info: &GroupInfo) -> Self {
        Self {
            name: Name::from(&info.group),
            status: status(info).to_owned(),
            checkpoint: info.checkpoint.and_then(|next| next.checked_sub(1)),
            parked: info.parked,
            parked_stream: (info.parked_stream != info.group.parked_stream())
                .then(|| info.parked_stream.to_string()),
            halted: info.halted.as_ref().map(Halted::from),
            settings: info.settings.clone(),
            filter: info.filter.any_of.iter().map(QueryBody::from).collect(),
            pattern: info.pattern.clone(),
            running: info.running.as_ref().map(RunningGroup::from),
        }
    }
}

fn status(info: &GroupInfo) -> &'static str {
    match &info.running {
        None if info.halted.is_some() => "halted",
        None => "idle",
        Some(running) if running.is_replaying => "replaying",
        Some(running) if running.is_live => "live",
        Some(_) => "catching_up",
    }
}

impl From<&Running> for RunningGroup {
    fn from(running: &Running) -> Self {
        Self {
            read_to: running.read_to.checked_sub(1),
            finished_to: running.finished_to.checked_sub(1),
            waiting: running.waiting,
            waiting_again: running.waiting_again,
            in_flight: running.in_flight,
            held_bytes: running.held_bytes,
            seconds: running.seconds,
            counts: running.counts,
            consumers: running.consumers.iter().map(Consumer::from).collect(),
        }
    }
}

impl From<&ConsumerInfo> for Consumer {
    fn from(info: &ConsumerInfo) -> Self {
        Self {
            consumer: info.counts.consumer.to_string(),
            name: info.identity.name.clone(),
            buffer: info.counts.buffer,
            in_flight: info.counts.in_flight,
            delivered: info.counts.delivered,
            answers: Latencies::of(&info.counts.latencies),
        }
    }
}
