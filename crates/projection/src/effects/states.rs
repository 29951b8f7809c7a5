//! The states of an effect, the last of which counts: events of its stream.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::system_streams::keep_last;
use gesta_core::{
    Append, BackOff, Checkpoint, ErrorKind, EventData, EventStore, EventType, ExpectedRevision,
    ReadStream, RecordedEvent, Revision, StreamId,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::batch::not_of;
use crate::error::Error;

/// How many events are looked through for the last state, if some of them are none.
const LOOKED_BACK: usize = 100;
/// Shortest and longest pause before a state is appended once more.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
const TYPE: &str = "effect-state";
/// States that are kept readable, for people; older ones may be scavenged.
const KEPT: u32 = 100;

/// What an owner has said last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EffectState {
    pub(super) version: u32,
    /// The process that performs; none if it has ended in good order, or stopped.
    pub(super) owner: Option<Uuid>,
    #[serde(with = "as_text")]
    pub(super) checkpoint: Checkpoint,
    /// Why it has stopped, or what was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(default)]
    pub(super) is_stopped: bool,
}

/// A checkpoint as its text. What is none makes its event no state.
mod as_text {
    use gesta_core::Checkpoint;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(place: &Checkpoint, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(place)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Checkpoint, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// A state and its revision, under which the next one is appended.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) revision: Revision,
    pub(super) state: EffectState,
}

/// What the stream of an effect shows.
#[derive(Clone, Debug)]
pub(super) enum Last {
    /// The effect has never run.
    None,
    /// There are states, of which this is the last revision, but the metadata of the stream hide them all.
    Hidden(Revision),
    /// The last state.
    Kept(Kept),
}

impl Last {
    /// The revision under which the next state is appended.
    fn revision(&self) -> Option<Revision> {
        match self {
            Last::None => None,
            Last::Hidden(revision) => Some(*revision),
            Last::Kept(kept) => Some(kept.revision),
        }
    }
}

/// The stream that keeps the states of one effect.
#[derive(Clone)]
pub(super) struct EffectStates {
    store: Arc<dyn EventStore>,
    prefix: String,
    stream: StreamId,
    event_type: EventType,
    /// Whether the process stops.
    stopping: CancellationToken,
}

impl EffectStates {
    pub(super) fn new(
        store: Arc<dyn EventStore>,
        prefix: &str,
        name: &str,
        stopping: CancellationToken,
    ) -> Result<Self, Error> {
        Ok(Self {
            store,
            prefix: prefix.to_owned(),
            stream: StreamId::new(format!("{prefix}{name}"))?,
            event_type: EventType::new(TYPE)?,
            stopping,
        })
    }

    /// Returns true if an event is a state of an effect, or of the stream of one. Those of effects that are kept
    /// elsewhere are known by what they are: of two groups with all events in their filters each would else beget the
    /// states of the other.
    pub(super) fn keeps(&self, event: &RecordedEvent) -> bool {
        let name = event.stream.as_str();
        let is_here = name.strip_prefix("$$").unwrap_or(name);
        let is_state = || serde_json::from_slice::<EffectState>(&event.data).is_ok();
        is_here.starts_with(&self.prefix) || (event.event_type == self.event_type && is_state())
    }

    /// Returns the name of the stream.
    pub(super) fn stream(&self) -> &str {
        self.stream.as_str()
    }

    /// Says why it is not known how far an effect has come whose states are hidden.
    pub(super) fn hidden(&self) -> String {
        format!(
            "the metadata of stream {} hide all its states ($maxAge, $maxCount or $tb), so nobody knows how far the \
             effect has come: begin_again says where it goes on",
            self.stream
        )
    }

    /// Returns the last state.
    pub(super) async fn last(&self) -> Result<Last, Error> {
        let request = ReadStream::backwards(self.stream.clone()).limit(LOOKED_BACK);
        let page = match self.store.read_stream(request).await {
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
                return Ok(Last::None);
            }
            page => page?,
        };
        let Some(event) = page.events.first() else {
            return Ok(Last::Hidden(page.last_revision));
        };
        let mut read = page
            .events
            .iter()
            .map(|event| serde_json::from_slice(&event.data));
        let state = match read.next() {
            // What is no state was written by somebody else. The last one before it counts.
            Some(Err(error)) => {
                tracing::warn!(stream = %self.stream, %error, "an event is no state: who may append to this stream?");
                read.find_map(std::result::Result::ok).ok_or_else(|| {
                    Error::Invalid(format!("stream {} holds no states: {error}", self.stream))
                })?
            }
            Some(Ok(state)) => state,
            None => return Ok(Last::Hidden(page.last_revision)),
        };
        Ok(Last::Kept(Kept {
            revision: event.revision,
            state,
        }))
    }

    /// Appends a state after the last one. `None` if another process has appended meanwhile.
    ///
    /// It is appended once: a retry has the same id. After a lost answer there is one. While the store is away there
    /// are more, within this time, unless the process stops.
    pub(super) async fn append(
        &self,
        after: Option<Revision>,
        state: EffectState,
        within: Duration,
    ) -> Result<Option<Kept>, Error> {
        let data = serde_json::to_vec(&state)
            .map_err(|error| Error::Invalid(format!("a state cannot be written: {error}")))?;
        let event = EventData::json(self.event_type.clone(), data);
        let event = event.with_id(gesta_core::EventId::random());
        let expected = after.map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact);
        let append = Append::to(self.stream.clone(), expected, vec![event]);
        let (begun, mut back_off) = (Instant::now(), BackOff::new(PAUSES.0, PAUSES.1));
        let mut appended = self.store.append(append.clone()).await;
        if let Err(error) = &appended
            && matches!(error.kind(), ErrorKind::OutcomeUnknown(_))
        {
            appended = self.store.append(append.clone()).await;
        }
        while let Err(error) = &appended
            && matches!(
                error.kind(),
                ErrorKind::Unavailable(_) | ErrorKind::Overloaded(_) | ErrorKind::OutcomeUnknown(_)
            )
            && begun.elapsed() < within
        {
            tokio::select! {
                () = self.stopping.cancelled() => break,
                () = tokio::time::sleep(back_off.pause()) => {}
            }
            appended = self.store.append(append.clone()).await;
        }
        match appended {
            Ok(appended) => {
                let revision = appended.streams.first().map(|s| s.last_revision);
                Ok(revision.map(|revision| Kept { revision, state }))
            }
            Err(error) if matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. }) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Lets all but the last states be scavenged, unless somebody has set how many are kept. What else the metadata of
    /// the stream say is kept, above all who may append to it. What fails here only costs space: the next claim tries
    /// it again.
    pub(super) async fn keep_few(&self) {
        if let Err(error) = self.try_to_keep_few().await {
            tracing::warn!(stream = %self.stream, %error, "old states of an effect are kept: $maxCount was not set");
        }
    }

    async fn try_to_keep_few(&self) -> Result<(), Error> {
        let known = self.store.stream_metadata(self.stream.clone()).await?;
        if let Some(request) = keep_last(&self.stream, &known, KEPT)? {
            self.store.set_stream_metadata(request).await?;
        }
        Ok(())
    }

    /// Appends a state that lets a stopped effect go on.
    pub(super) async fn resume(&self) -> Result<(), Error> {
        loop {
            let kept = match self.last().await? {
                Last::None => return Ok(()),
                Last::Hidden(_) => return Err(Error::Invalid(self.hidden())),
                Last::Kept(kept) if !kept.state.is_stopped => return Ok(()),
                Last::Kept(kept) => kept,
            };
            if let Some(why) = not_of(&self.store.info().await?, &kept.state.checkpoint) {
                return Err(Error::Invalid(again(&why)));
            }
            let state = EffectState {
                is_stopped: false,
                owner: None,
                error: None,
                ..kept.state
            };
            let append = self.append(Some(kept.revision), state, Duration::ZERO);
            if append.await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Appends a state that lets an effect go on at a place, whatever it was doing.
    pub(super) async fn begin_again(&self, version: u32, place: &Checkpoint) -> Result<(), Error> {
        loop {
            let last = self.last().await?;
            let version = match &last {
                Last::Kept(kept) => kept.state.version,
                Last::None | Last::Hidden(_) => version,
            };
            let state = EffectState {
                version,
                owner: None,
                checkpoint: place.clone(),
                error: None,
                is_stopped: false,
            };
            let append = self.append(last.revision(), state, Duration::ZERO);
            if append.await?.is_some() {
                return Ok(());
            }
        }
    }
}

/// Says of a checkpoint of another life of the store how the effect can go on.
pub(super) fn again(why: &str) -> String {
    format!("{why}; begin_again says where it goes on")
}
