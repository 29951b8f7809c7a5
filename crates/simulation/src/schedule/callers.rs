//! What callers ask for.

use super::*;

impl World {
    pub(super) fn pick_stream(&mut self) -> StreamId {
        let which = self.choices.index(self.emphasis.streams);
        StreamId::from_stored(STREAMS[which].into())
    }

    pub(super) fn next_id(&mut self) -> EventId {
        self.ids += 1;
        EventId(uuid::Uuid::from_u128(self.ids))
    }

    pub(super) fn submit(&mut self) {
        if self.emphasis.goes_on_instead(&mut self.choices) {
            return self.go_on();
        }
        let number = self.pick_process();
        if self.nodes.get(number).is_some_and(|node| node.is_leaving) {
            return;
        }
        // Nodes are asked more often: what they know is outdated more often.
        let kinds = if self.nodes.is_empty() { 20 } else { 25 };
        match self.choices.pick(kinds) {
            0..=9 => self.submit_append(number),
            10..=12 => self.repeat(number),
            13..=15 => self.submit_owned(number),
            16 | 20.. => self.submit_question(number),
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
            way: None,
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
        let is_poison = self.choices.chance(1, self.emphasis.poison_of);
        let event_type = match self.choices.pick(11) {
            _ if is_poison => POISON,
            0..=6 => "added",
            _ => "removed",
        };
        let event_type = EventType::from_stored(event_type.into());
        let data = |id: EventId| id.0.as_u128().to_string();
        let event = |id| EventData::json(event_type.clone(), data(id)).with_id(id);
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
                claim: StreamClaim::Expected(expected),
                ids: events.iter().filter_map(|event| event.id).collect(),
            });
            parts.push(StreamAppend {
                stream,
                expected,
                events,
            });
        }
        let request = Append {
            streams: parts,
            conditions: Vec::new(),
        };
        let kept = are_ids_known.then(|| Request::Append(request.clone()));
        let ticket = self.record(number, asked, kept);
        let ids = match are_ids_known {
            true => Ids::OfTheCaller,
            false => Ids::OfTheStore,
        };
        self.give(number, ticket, Request::Append(request), ids);
    }

    /// Repeats a request with the same event ids, perhaps through another process, perhaps with the streams in another
    /// order.
    pub(super) fn repeat(&mut self, number: usize) {
        if self.requests.is_empty() {
            return;
        }
        let which = self.choices.index(self.requests.len());
        self.repeat_request(number, which);
    }

    pub(super) fn repeat_request(&mut self, number: usize, which: usize) {
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
        self.give(number, ticket, request, Ids::OfTheCaller);
    }

    /// Gives a process a request. It goes to the process's own sequencer, unless another node owns the log.
    pub(super) fn give(&mut self, number: usize, record: usize, request: Request, ids: Ids) {
        if self.nodes.get(number).is_some_and(|node| !node.is_mine()) {
            return self.forward_request(number, record, request, ids);
        }
        let arrived = self.now().instant;
        let ticket = Ticket::Own(record);
        let known = |id| (ids == Ids::OfTheCaller).then_some(id);
        let command = match request {
            Request::Append(request) => match ids {
                Ids::OfTheCaller => Command::append(ticket, request, arrived),
                Ids::OfTheStore => Command::append_with_ids_of_the_store(ticket, request, arrived),
            },
            Request::Delete(request, id) => {
                Ok(Command::delete(ticket, request, known(id), arrived))
            }
            Request::Metadata(request, id) => {
                Ok(Command::set_metadata(ticket, request, known(id), arrived))
            }
        };
        if let Ok(command) = command {
            self.model.records[record].way = Some(Way::Here);
            self.hand_over(number, command);
        }
    }

    /// Hands a command to a sequencer.
    pub(super) fn hand_over(&mut self, number: usize, command: Command<Ticket>) {
        let now = self.now();
        self.processes[number].input(Input::Command(command), now);
    }

    pub(super) fn after(&self, stream: &StreamId) -> After {
        let truth = self.database.truth(stream);
        match (truth.visible, truth.last_id) {
            (Some(_), Some(id)) => After::Event(id),
            _ => After::NoStream {
                next: truth.last.map_or(Revision(0), Revision::next),
            },
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
        match self.nodes.get(number).map(Node::is_mine) {
            None => {
                let after = self.after(&stream);
                self.own(number, stream, after, Vec::new());
            }
            Some(true) => {
                let after = self.remembered(&stream);
                self.own(number, stream, after, Vec::new());
            }
            Some(false) => self.forward_question(number, stream),
        }
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
            claim: StreamClaim::After(after),
            ids: events.iter().filter_map(|event| event.id).collect(),
        }];
        let record = self.record(number, asked, None);
        let (ticket, arrived) = (Ticket::Own(record), self.now().instant);
        if let Ok(command) = Command::owned(ticket, stream, after, events, arrived) {
            self.hand_over(number, command);
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

    /// Changes the life of a stream. The caller may know the id of the event and try again.
    fn change_life(
        &mut self,
        number: usize,
        mut asked: Asked,
        request: impl FnOnce(EventId) -> Request,
    ) {
        let id = self.next_id();
        let request = request(id);
        let (kept, ids) = match self.choices.chance(1, 2) {
            true => {
                asked.ids.push(id);
                (Some(request.clone()), Ids::OfTheCaller)
            }
            false => (None, Ids::OfTheStore),
        };
        let record = self.record(number, vec![asked], kept);
        self.give(number, record, request, ids);
    }
}

fn about_metadata(stream: &StreamId, expected: ExpectedRevision) -> Asked {
    Asked {
        stream: stream.clone(),
        target: stream.metadata_stream(),
        claim: StreamClaim::Expected(expected),
        ids: Vec::new(),
    }
}
