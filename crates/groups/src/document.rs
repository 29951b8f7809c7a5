//! How the API shows a group, for the server that writes it and for clients that read it.

use std::time::Duration;

use gesta_pattern::PatternText;
use gesta_wire::request::QueryBody;
use serde::{Deserialize, Serialize};

use crate::info::{ConsumerInfo, GroupInfo, Running};
use crate::machine::Counts;
use crate::names::GroupId;
use crate::settings::Settings;

/// The name of a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Name {
    /// Its stream, or `$all`.
    pub source: String,
    /// Its name there.
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

/// Names of groups.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Names {
    /// The names.
    pub groups: Vec<Name>,
    /// Whether there are no more after them.
    pub end: bool,
}

/// A group.
#[derive(Debug, Serialize, Deserialize)]
pub struct Group {
    /// Its name.
    #[serde(flatten)]
    pub name: Name,
    /// What it does: `idle`, `catching_up`, `live` or `replaying`.
    pub status: String,
    /// The last revision or position up to which all is finished, as stored; `null` if there is none.
    pub checkpoint: Option<u64>,
    /// Parked events.
    pub parked: u64,
    /// Its settings.
    pub settings: Settings,
    /// What it takes of all events; empty: all of them.
    #[serde(default)]
    pub filter: Vec<QueryBody>,
    /// What it takes of those; none if it takes all. Clients of other protocols give one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<PatternText>,
    /// What it does, if it runs.
    #[serde(default)]
    pub running: Option<RunningGroup>,
}

/// A group that runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunningGroup {
    /// The last revision or position that was read; `null` if there is none.
    pub read_to: Option<u64>,
    /// Events that wait to be delivered for the first time.
    pub waiting: usize,
    /// Events that wait to be delivered again.
    pub waiting_again: usize,
    /// Events that consumers hold.
    pub in_flight: usize,
    /// Bytes of all events that it holds.
    pub held_bytes: usize,
    /// How long ago it began, in seconds.
    pub seconds: u64,
    /// What it has done since.
    pub counts: Counts,
    /// Its consumers.
    pub consumers: Vec<Consumer>,
}

/// A consumer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Consumer {
    /// Its number.
    pub consumer: String,
    /// The name that it gives itself.
    pub name: String,
    /// Events that it may hold at once.
    pub buffer: u32,
    /// Events that it holds.
    pub in_flight: usize,
    /// Events that were delivered to it.
    pub delivered: u64,
    /// How long it took to answer lately, if that is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<Latencies>,
}

/// Times to answer, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Latencies {
    /// Half of the answers came sooner.
    pub p50_us: u64,
    /// 99 of 100 answers came sooner.
    pub p99_us: u64,
    /// The slowest.
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
            status: status(info.running.as_ref()).to_owned(),
            checkpoint: info.checkpoint.and_then(|next| next.checked_sub(1)),
            parked: info.parked,
            settings: info.settings.clone(),
            filter: info.filter.any_of.iter().map(QueryBody::from).collect(),
            pattern: info.pattern.clone(),
            running: info.running.as_ref().map(RunningGroup::from),
        }
    }
}

fn status(running: Option<&Running>) -> &'static str {
    match running {
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
