//! The states of an effect, the last of which counts: events of its stream.

use std::str::FromStr;
use std::sync::Arc;

use gesta_core::{
    Append, Checkpoint, ErrorKind, EventData, EventStore, EventType, ExpectedRevision, ReadStream,
    Revision, SetStreamMetadata, StreamId, StreamMetadata,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::Error;

const TYPE: &str = "effect-state";
/// EffectStates that are kept readable, for people; older ones may be scavenged.
const KEPT: u32 = 100;

/// What an owner has said last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EffectState {
    pub(super) version: u32,
    /// The process that performs; none if it has ended in good order, or stopped.
    pub(super) owner: Option<Uuid>,
    pub(super) checkpoint: String,
    /// Why it has stopped, or what was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(default)]
    pub(super) is_stopped: bool,
}

impl EffectState {
    pub(super) fn checkpoint(&self) -> Result<Checkpoint, Error> {
        Ok(Checkpoint::from_str(&self.checkpoint)?)
    }
}

/// A state and its revision, under which the next one is appended.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) revision: Revision,
    pub(super) state: EffectState,
}

/// The stream that keeps the states of one effect.
#[derive(Clone)]
pub(super) struct EffectStates {
    store: Arc<dyn EventStore>,
    prefix: String,
    stream: StreamId,
    event_type: EventType,
}

impl EffectStates {
    pub(super) fn new(store: Arc<dyn EventStore>, prefix: &str, name: &str) -> Result<Self, Error> {
        Ok(Self {
            store,
            prefix: prefix.to_owned(),
            stream: StreamId::new(format!("{prefix}{name}"))?,
            event_type: EventType::new(TYPE)?,
        })
    }

    /// Returns true if the stream keeps states of an effect.
    pub(super) fn keeps(&self, stream: &StreamId) -> bool {
        let name = stream.as_str();
        name.strip_prefix("$$")
            .unwrap_or(name)
            .starts_with(&self.prefix)
    }

    /// Returns the last state; `None` if the effect has never run.
    pub(super) async fn last(&self) -> Result<Option<Kept>, Error> {
        let request = ReadStream::backwards(self.stream.clone()).limit(1);
        let page = match self.store.read_stream(request).await {
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => return Ok(None),
            page => page?,
        };
        let Some(event) = page.events.first() else {
            return Ok(None);
        };
        let state = serde_json::from_slice(&event.data).map_err(|error| {
            Error::Invalid(format!("stream {} holds no states: {error}", self.stream))
        })?;
        Ok(Some(Kept {
            revision: event.revision,
            state,
        }))
    }

    /// Appends a state after the last one. `None` if another process has appended meanwhile.
    ///
    /// It is appended once: a retry after a lost answer has the same id.
    pub(super) async fn append(
        &self,
        after: Option<Revision>,
        state: EffectState,
    ) -> Result<Option<Kept>, Error> {
        let data = serde_json::to_vec(&state)
            .map_err(|error| Error::Invalid(format!("a state cannot be written: {error}")))?;
        let event = EventData::json(self.event_type.clone(), data);
        let event = event.with_id(gesta_core::EventId::random());
        let expected = after.map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact);
        let append = Append::to(self.stream.clone(), expected, vec![event]);
        let mut appended = self.store.append(append.clone()).await;
        if let Err(error) = &appended
            && matches!(error.kind(), ErrorKind::OutcomeUnknown(_))
        {
            appended = self.store.append(append).await;
        }
        match appended {
            Ok(appended) => {
                let revision = appended.streams.first().map(|s| s.last_revision);
                if after.is_none() {
                    self.keep_few().await?;
                }
                Ok(revision.map(|revision| Kept { revision, state }))
            }
            Err(error) if matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. }) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn keep_few(&self) -> Result<(), Error> {
        let metadata = StreamMetadata::parse(format!("{{\"$maxCount\":{KEPT}}}"))?;
        let request = SetStreamMetadata {
            stream: self.stream.clone(),
            expected: ExpectedRevision::Any,
            metadata,
        };
        self.store.set_stream_metadata(request).await?;
        Ok(())
    }

    /// Appends a state that lets a stopped effect go on.
    pub(super) async fn resume(&self) -> Result<(), Error> {
        while let Some(kept) = self.last().await? {
            if !kept.state.is_stopped {
                break;
            }
            let state = EffectState {
                is_stopped: false,
                owner: None,
                error: None,
                ..kept.state
            };
            if self.append(Some(kept.revision), state).await?.is_some() {
                break;
            }
        }
        Ok(())
    }
}
