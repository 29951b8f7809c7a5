//! What operators are shown of projections: one report, which the command line, HTTP and metrics write in their form.

use std::fmt::Write as _;

use gesta_core::{ErrorKind, EventStore, RecordedEvent};
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::control::Control;
use crate::error::Error;
use crate::lag::{LAG_PAGES_MAX, Lag};
use crate::state::{Life, State};
use crate::target::{Parked, Stored, Target};

/// Parked events of a version that are counted at most.
pub const PARKED_COUNTED_MAX: usize = 10_000;

/// A version of a projection, as operators see it.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct VersionReport {
    /// Name of the projection.
    pub name: String,
    /// Version of its code.
    pub version: u32,
    /// What the version is to readers: `building`, `active`, `previous` or `retired`.
    pub life: &'static str,
    /// Whether it applies events: `running`, `paused` or `stopped`.
    pub state: &'static str,
    /// The process that runs it; none if nobody does.
    pub owner: Option<Uuid>,
    /// Age of the oldest event that is not applied yet, in seconds: 0 if there is none, nothing if the store was not
    /// asked, or it is unknown.
    pub lag_seconds: Option<f64>,
    /// Positions of the store that were not looked at yet, whether their events match or not.
    pub lag_positions: Option<u64>,
    /// Why it is not known how far it is behind, though the store was asked.
    pub lag_unknown: Option<String>,
    /// Events applied since the last reset.
    pub events: i64,
    /// Events that were put aside; [`PARKED_COUNTED_MAX`] stands for as many or more.
    pub parked: usize,
    /// When events were applied last, in UTC.
    pub applied_at: Option<String>,
    /// How often it was reset.
    pub resets: i64,
    /// The place up to which all events were applied, or put aside.
    pub checkpoint: String,
    /// The place at which it began.
    pub floor: String,
    /// Why it has stopped, or its last error.
    pub error: Option<String>,
    #[serde(skip)]
    applied_seconds: Option<f64>,
}

impl VersionReport {
    /// Returns true if it should run and nobody runs it.
    #[must_use]
    pub fn is_deserted(&self) -> bool {
        let should_run = self.state == State::Running.as_str();
        should_run && self.life != Life::Retired.as_str() && self.owner.is_none()
    }
}

/// An event that was put aside, as operators see it.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct ParkedReport {
    /// The key that it blocks; none if it was skipped.
    pub key: Option<String>,
    /// Log of the event.
    pub log: u16,
    /// Position of the event.
    pub position: u64,
    /// Identity of the event.
    pub event: Uuid,
    /// How often it was tried.
    pub attempts: u32,
    /// Why it was put aside; empty for one that stands behind another of its key.
    pub error: String,
    /// When it was put aside, in UTC.
    pub at: String,
}

impl From<Parked> for ParkedReport {
    fn from(parked: Parked) -> Self {
        Self {
            key: parked.key,
            log: parked.log.0,
            position: parked.position.0,
            event: parked.event.0,
            attempts: parked.attempts,
            error: parked.error,
            at: parked.at.to_string(),
        }
    }
}

/// An event that an index has found. Its fields are those of the HTTP API of a store.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct EventReport<'a> {
    /// Stream of the event.
    pub stream: &'a str,
    /// Its revision in the stream.
    pub revision: u64,
    /// Its log.
    pub log: u16,
    /// Its position in the log.
    pub position: u64,
    /// Its identity.
    pub id: Uuid,
    /// Its type.
    #[serde(rename = "type")]
    pub event_type: &'a str,
    /// When it was stored, in UTC.
    pub created: String,
    /// Its data, which are JSON: others are in no index.
    pub data: Option<&'a RawValue>,
}

impl<'a> From<&'a RecordedEvent> for EventReport<'a> {
    fn from(event: &'a RecordedEvent) -> Self {
        Self {
            stream: event.stream.as_str(),
            revision: event.revision.0,
            log: event.log.0,
            position: event.position.0,
            id: event.id.0,
            event_type: event.event_type.as_str(),
            created: event.created.to_string(),
            data: serde_json::from_slice(&event.data).ok(),
        }
    }
}

/// How far a version is behind, and why that is not known.
type LagOrWhy = (Option<Lag>, Option<String>);

/// Returns how far a version is behind. How far that is of one whose checkpoint the store does not know, nobody can
/// say; but it must not hide the others.
fn lag_or_why(asked: Result<Option<Lag>, Error>) -> Result<LagOrWhy, Error> {
    let why = match asked {
        Ok(Some(lag)) if lag.age.is_some() => return Ok((Some(lag), None)),
        Ok(Some(lag)) => {
            let why = format!(
                "no event that matches was found in {LAG_PAGES_MAX} pages of the store after its checkpoint"
            );
            return Ok((Some(lag), Some(why)));
        }
        Ok(None) => {
            "its filter is not stored: a program of an earlier release has registered it".into()
        }
        Err(Error::Store(error)) if matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)) => {
            error.to_string()
        }
        Err(error) => return Err(error),
    };
    Ok((None, Some(why)))
}

impl<T: Target> Control<T> {
    /// Returns what operators are shown of all versions; with a store also how far each is behind. A version that is
    /// not of the events of this store is shown too, with its lag unknown.
    ///
    /// # Errors
    /// `Target` or `Store` if they do not answer.
    pub async fn reports(
        &self,
        store: Option<&dyn EventStore>,
    ) -> Result<Vec<VersionReport>, Error> {
        let mut reports = Vec::new();
        for version in self.list().await? {
            reports.push(self.report(store, &version).await?);
        }
        Ok(reports)
    }

    /// Returns what operators are shown of a version.
    ///
    /// # Errors
    /// As [`reports`](Self::reports).
    pub async fn report(
        &self,
        store: Option<&dyn EventStore>,
        version: &Stored,
    ) -> Result<VersionReport, Error> {
        let (lag, lag_unknown) = match store {
            Some(store) if version.life != Life::Retired => {
                lag_or_why(self.lag(store, version).await)?
            }
            _ => (None, None),
        };
        let counted = self.target().count_parked(&version.id, PARKED_COUNTED_MAX);
        let parked = counted.await?;
        let seconds = |micros: i64| micros as f64 / 1e6;
        Ok(VersionReport {
            name: version.id.name.clone(),
            version: version.id.version,
            life: version.life.as_str(),
            state: version.state.as_str(),
            owner: version.owner.filter(|_| version.owned),
            lag_seconds: lag.and_then(|lag| lag.age).map(|age| age.as_secs_f64()),
            lag_positions: lag.map(|lag| lag.positions),
            lag_unknown,
            events: version.events,
            parked,
            applied_at: version.applied_at.map(|at| at.to_string()),
            resets: version.resets,
            checkpoint: version.checkpoint.to_string(),
            floor: version.floor.to_string(),
            error: version.error.clone(),
            applied_seconds: version.applied_at.map(|at| seconds(at.as_micros())),
        })
    }
}

/// A metric: its name, what it tells, and its value, if it is known.
type Gauge = (
    &'static str,
    &'static str,
    fn(&VersionReport) -> Option<f64>,
);

fn is(condition: bool) -> Option<f64> {
    Some(f64::from(u8::from(condition)))
}

const GAUGES: [Gauge; 10] = [
    (
        "gesta_projection_lag_seconds",
        "Age of the oldest event that is not applied yet; 0 if there is none",
        |version| version.lag_seconds,
    ),
    (
        "gesta_projection_lag_positions",
        "Positions of the store that were not looked at yet",
        |version| version.lag_positions.map(|positions| positions as f64),
    ),
    (
        "gesta_projection_lag_unknown",
        "1 if it cannot be told how old the oldest event is that is not applied yet",
        |version| is(version.lag_unknown.is_some()),
    ),
    (
        "gesta_projection_events",
        "Events applied since the last reset",
        |version| Some(version.events as f64),
    ),
    (
        "gesta_projection_parked_events",
        "Events that were put aside, 10,000 at most",
        |version| Some(version.parked as f64),
    ),
    (
        "gesta_projection_applied_timestamp_seconds",
        "When events were applied last; 0 if none were since the last reset",
        // Without a value a rule for alerts would pass over the version, whatever is wrong with it.
        |version| Some(version.applied_seconds.unwrap_or(0.0)),
    ),
    (
        "gesta_projection_active",
        "1 if readers see the version",
        |version| is(version.life == Life::Active.as_str()),
    ),
    (
        "gesta_projection_paused",
        "1 if somebody has paused it",
        |version| is(version.state == State::Paused.as_str()),
    ),
    (
        "gesta_projection_stopped",
        "1 if it cannot go on until somebody acts",
        |version| is(version.state == State::Stopped.as_str()),
    ),
    (
        "gesta_projection_deserted",
        "1 if readers see it, or will, and no process runs it",
        |version| is(version.is_deserted() && version.life != Life::Previous.as_str()),
    ),
];

/// Returns the reports as metrics, in the text format of Prometheus; retired versions have none.
#[must_use]
pub fn metrics_text(reports: &[VersionReport]) -> String {
    let mut text = String::new();
    for (name, help, value) in GAUGES {
        let _ = write!(text, "# HELP {name} {help}.\n# TYPE {name} gauge\n");
        for report in reports {
            let value = value(report).filter(|_| report.life != Life::Retired.as_str());
            if let Some(value) = value {
                // Names of projections hold nothing that has to be escaped.
                let (projection, version) = (&report.name, report.version);
                let labels = format!("projection=\"{projection}\",version=\"{version}\"");
                let _ = writeln!(text, "{name}{{{labels}}} {value}");
            }
        }
    }
    text
}
