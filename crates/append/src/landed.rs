//! Appends whose connection died, and whose events turn up in the log after all.
//!
//! A lost statement may land after recovery has looked for it. The append is then being decided again, and its own
//! events stand in its way: without recognising them it would be stored twice, or refused although it is stored.
//! Every such landing makes the next batch miss, so it is seen while catching up, before anything is decided.
//! Invariant: an append that may still land is answered *outcome unknown*, never as refused.

use std::collections::HashMap;

use gesta_core::backend::EventRef;
use gesta_core::{
    Appended, AppendedStream, Error, ErrorKind, EventId, Position, Result, Revision, StreamId,
};

use crate::command::{Command, Part};
use crate::sequencer::Sequencer;

/// Events of lost appends, as far as they were seen in the log.
#[derive(Default)]
pub(crate) struct Landed {
    /// The events sought, and where they are.
    events: HashMap<EventId, Option<(StreamId, Revision, Position)>>,
}

impl Landed {
    /// Sees an event that others, or lost statements, have stored.
    pub(crate) fn observe(&mut self, event: &EventRef) {
        if let Some(place) = self.events.get_mut(&event.id) {
            *place = Some((event.stream.clone(), event.revision, event.position));
        }
    }

    /// Where a part is stored, if it is: all of its events, one behind the other.
    fn find(&self, part: &Part) -> Option<AppendedStream> {
        let stream = part.target();
        let mut found: Option<AppendedStream> = None;
        for id in part.ids() {
            let (of, revision, position) = self.events.get(&id)?.as_ref()?;
            let follows = found
                .as_ref()
                .is_none_or(|found| found.last_revision.next() == *revision);
            if *of != stream || !follows {
                return None;
            }
            found = Some(AppendedStream {
                stream: stream.clone(),
                first_revision: found.map_or(*revision, |found| found.first_revision),
                last_revision: *revision,
                position: *position,
            });
        }
        found
    }
}

impl Sequencer {
    /// Begins to look out for the events of all lost appends; keeps what it has seen of them.
    pub(crate) fn seek_landed(&mut self) {
        let lost = self.inbox.iter().filter(|c| c.lost_behind.is_some());
        for id in lost.flat_map(|command| &command.parts).flat_map(Part::ids) {
            self.landed.events.entry(id).or_default();
        }
    }

    /// Answers those that were found; they are durable then.
    pub(crate) async fn answer_landed(&mut self) -> Result<()> {
        if self.landed.events.values().any(Option::is_some)
            && let Some(writer) = &mut self.writer
        {
            writer.barrier().await?;
        }
        let landed = std::mem::take(&mut self.landed);
        if landed.events.is_empty() {
            return Ok(());
        }
        for command in std::mem::take(&mut self.inbox) {
            let found = |command: &Command| command.parts.iter().map(|p| landed.find(p)).collect();
            let stored: Option<Vec<AppendedStream>> = match command.lost_behind {
                Some(_) => found(&command),
                None => None,
            };
            match stored {
                Some(streams) => {
                    let answer = self.answer_of(streams);
                    self.answer(command, Ok(answer));
                }
                None => self.inbox.push_back(command),
            }
        }
        Ok(())
    }

    /// What others have stored will not be looked at: nobody knows any more what became of lost appends.
    pub(crate) fn doubt_lost(&mut self) {
        self.landed = Landed::default();
        for command in &mut self.inbox {
            if command.lost_behind.is_some() {
                command.lost_behind = Some(Position(u64::MAX));
            }
        }
    }

    /// The answer to a command, made *unknown* if it claims that nothing was stored while that may yet happen.
    ///
    /// It cannot happen any more once there is another row behind the one that the lost statement has to follow.
    pub(crate) fn certain(&self, command: &Command, result: Result<Appended>) -> Result<Appended> {
        let behind = command.lost_behind;
        match result {
            Err(error)
                if behind.is_some_and(|behind| self.committed.position <= behind)
                    && !matches!(error.kind(), ErrorKind::OutcomeUnknown(_)) =>
            {
                let detail = "the connection was lost during the commit, which may yet be stored";
                let unknown = ErrorKind::OutcomeUnknown(detail.into());
                Err(Error::new(unknown).during("append").caused_by(error))
            }
            result => result,
        }
    }
}
