//! What callers ask for.

use super::*;

impl World {
    pub(super) fn pick_stream(&mut self) -> StreamId {
        let which = self.choices.index(STREAMS.len());
        StreamId::from_stored(STREAMS[which].into())
    }

    pub(super) fn next_id(&mut self) -> EventId {
        self.ids += 1;
        EventId(uuid::Uuid::from_u128(self.ids))
    }

    pub(super) fn submit(&mut self) {
        let number = self.pick_process();
        match self.choices.pick(20) {
            0..=9 => self.submit_append(number),
            10..=12 => self.repeat(number),
            13..=15 => self.submit_owned(number),
            16 => self.submit_question(number),
            17 => self.submit_metadata(number),
            18 => self.submit_delete(number, DeleteKind::Soft),
            _ => {
                let kind = match self.choices.chance(1, 4) {
                    true => DeleteKind::Tombstone,
                    false => DeleteKind::Soft,
                };
                self.submit_delete(number, kind);
            }
        }
    }

    pub(super) fn record(
        &mut self,
        process: usize,
        asked: Vec<Asked>,
        request: Option<Request>,
    ) -> usize {
        let ticket = self.model.records.len();
        self.note(|| format!("process {process} is given {ticket}: {asked:?}"));
        self.model.records.push(Record {
            asked,
            since: self.database.moment(),
            original: ticket,
            process,
            given: self.time,
            answer: None,
            is_orphaned: false,
        });
        self.requests.push(request);
        ticket
    }

    pub(super) fn expected(&mut self, stream: &StreamId) -> ExpectedRevision {
        match self.choices.pick(8) {
            0..=3 => ExpectedRevision::Any,
            4 => ExpectedRevision::NoStream,
            5 => ExpectedRevision::StreamExists,
            _ => match self.database.truth(stream).last {
                Some(last) => ExpectedRevision::Exact(last),
                None => ExpectedRevision::NoStream,
            },
        }
    }

    pub(super) fn events(&mut self) -> Vec<EventData> {
        let count = 1 + self.choices.pick(3) / 2;
        let event_type = match self.choices.pick(12) {
            11 => POISON,
            0..=6 => "added",
            _ => "removed",
        };
        let event_type = EventType::from_stored(event_type.into());
        let event = |id| EventData::json(event_type.clone(), "{}").with_id(id);
        (0..count).map(|_| self.next_id()).map(event).collect()
    }

    pub(super) fn submit_append(&mut self, number: usize) {
        let mut streams = vec![self.pick_stream()];
        let second = self.pick_stream();
        if self.choices.chance(1, 5) && second != streams[0] {
            streams.push(second);
        }
        let are_ids_known = !self.choices.chance(1, 3);
        let mut asked = Vec::new();
        let mut parts = Vec::new();
        for stream in streams {
            let expected = self.expected(&stream);
            let events = self.events();
            asked.push(Asked {
                stream: stream.clone(),
                target: stream.clone(),
                claim: Claim::Expected(expected),
                ids: events.iter().filter_map(|event| event.id).collect(),
            });
            parts.push(StreamAppend {
                stream,
                expected,
                events,
            });
        }
        let request = Append { streams: parts };
        let kept = are_ids_known.then(|| Request::Append(request.clone()));
        let ticket = self.record(number, asked, kept);
        let now = self.now();
        let made = match are_ids_known {
            true => Command::append(ticket, request, now.instant),
            false => Command::append_with_ids_of_the_store(ticket, request, now.instant),
        };
        if let Ok(command) = made {
            self.processes[number].input(Input::Command(command), now);
        }
    }

    /// A caller tries again with the same event ids, perhaps through another process, perhaps with the streams in
    /// another order.
    pub(super) fn repeat(&mut self, number: usize) {
        if self.requests.is_empty() {
            return;
        }
        let which = self.choices.index(self.requests.len());
        let Some(mut request) = self.requests[which].clone() else {
            return;
        };
        if let Request::Append(append) = &mut request
            && self.choices.chance(1, 3)
        {
            append.streams.reverse();
        }
        let record = &self.model.records[which];
        let (asked, original) = (record.asked.clone(), record.original);
        let ticket = self.record(number, asked, None);
        self.model.records[ticket].original = original;
        self.give(number, ticket, request);
    }

    fn give(&mut self, number: usize, ticket: usize, request: Request) {
        let now = self.now();
        let command = match request {
            Request::Append(request) => Command::append(ticket, request, now.instant),
            Request::Delete(request, id) => {
                Ok(Command::delete(ticket, request, Some(id), now.instant))
            }
            Request::Metadata(request, id) => Ok(Command::set_metadata(
                ticket,
                request,
                Some(id),
                now.instant,
            )),
        };
        if let Ok(command) = command {
            self.processes[number].input(Input::Command(command), now);
        }
    }

    pub(super) fn after(&self, stream: &StreamId) -> After {
        let truth = self.database.truth(stream);
        match (truth.visible, truth.last_id) {
            (Some(_), Some(id)) => After::Event(id),
            _ => After::NoStream,
        }
    }

    pub(super) fn submit_owned(&mut self, number: usize) {
        let stream = self.pick_stream();
        let after = self.after(&stream);
        let events = self.events();
        self.own(number, stream, after, events);
    }

    pub(super) fn submit_question(&mut self, number: usize) {
        let stream = self.pick_stream();
        let after = self.after(&stream);
        self.own(number, stream, after, Vec::new());
    }

    pub(super) fn own(
        &mut self,
        number: usize,
        stream: StreamId,
        after: After,
        events: Vec<EventData>,
    ) {
        let asked = vec![Asked {
            stream: stream.clone(),
            target: stream.clone(),
            claim: Claim::After(after),
            ids: events.iter().filter_map(|event| event.id).collect(),
        }];
        let ticket = self.record(number, asked, None);
        let now = self.now();
        if let Ok(command) = Command::owned(ticket, stream, after, events, now.instant) {
            self.processes[number].input(Input::Command(command), now);
        }
    }

    pub(super) fn submit_metadata(&mut self, number: usize) {
        let stream = self.pick_stream();
        let request = SetStreamMetadata {
            stream: stream.clone(),
            expected: ExpectedRevision::Any,
            metadata: StreamMetadata::default(),
        };
        let asked = about_metadata(&stream, request.expected);
        self.change_life(number, asked, |id| Request::Metadata(request, id));
    }

    pub(super) fn submit_delete(&mut self, number: usize, kind: DeleteKind) {
        let stream = self.pick_stream();
        let request = DeleteStream {
            stream: stream.clone(),
            expected: self.expected(&stream),
            kind,
        };
        let asked = about_metadata(&stream, request.expected);
        self.change_life(number, asked, |id| Request::Delete(request, id));
    }

    /// A change of a stream's life, whose caller may know the id of its event and try again.
    fn change_life(
        &mut self,
        number: usize,
        mut asked: Asked,
        request: impl FnOnce(EventId) -> Request,
    ) {
        if self.choices.chance(1, 2) {
            let id = self.next_id();
            asked.ids.push(id);
            let request = request(id);
            let ticket = self.record(number, vec![asked], Some(request.clone()));
            return self.give(number, ticket, request);
        }
        let ticket = self.record(number, vec![asked], None);
        let now = self.now();
        let command = match request(EventId::random()) {
            Request::Delete(request, _) => Command::delete(ticket, request, None, now.instant),
            Request::Metadata(request, _) => {
                Command::set_metadata(ticket, request, None, now.instant)
            }
            Request::Append(_) => return,
        };
        self.processes[number].input(Input::Command(command), now);
    }
}

fn about_metadata(stream: &StreamId, expected: ExpectedRevision) -> Asked {
    Asked {
        stream: stream.clone(),
        target: stream.metadata_stream(),
        claim: Claim::Expected(expected),
        ids: Vec::new(),
    }
}
