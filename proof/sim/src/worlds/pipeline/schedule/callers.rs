//! What callers ask for.

use super::faults::Ending;
use super::*;

impl World<'_> {
    pub(super) fn pick_stream(&mut self) -> StreamId {
        let which = self.choices.index(self.emphasis.streams);
        StreamId::from_stored(STREAMS[which].into())
    }

    pub(super) fn next_id(&mut self) -> EventId {
        self.ids += 1;
        EventId(uuid::Uuid::from_u128(self.ids))
    }

    pub(super) fn submit(&mut self) {
        if self.emphasis.goes_on_instead(self.choices) {
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
        asked: Vec<StreamRequest>,
        request: Option<Request>,
    ) -> usize {
        let ticket = self.model.records.len();
        self.note(|| format!("process {process} is given {ticket}: {asked:?}"));
        self.model.add(Record {
            asked,
            conditions: Vec::new(),
            no_match: None,
            is_poison: false,
            since: self.database.moment(),
            original: ticket,
            process,
            given: self.clocks[process].shows(self.time),
            troubles: self.processes[process].troubles(),
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
        let event = |id: EventId| {
            let tags = vec![tag(id.0.as_u128() % TAGS)];
            let event = EventData::json(event_type.clone(), data(id)).with_id(id);
            event.with_tags(Tags::from_stored(tags))
        };
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
            let ids = events.iter().filter_map(|event| event.id).collect();
            let claim = StreamClaim::Expected(expected);
            asked.push(StreamRequest::of(stream.clone(), claim, ids));
            parts.push(StreamAppend {
                stream,
                expected,
                events,
            });
        }
        let (mut conditions, required) = self.conditions(&parts);
        let no_match = self.no_match(&parts);
        conditions.extend(no_match.as_ref().map(condition_of));
        let mut events = parts.iter().flat_map(|part| &part.events);
        let is_poison = events.any(|event| event.event_type.as_str() == POISON);
        let request = Append {
            streams: parts,
            conditions,
        };
        let kept = are_ids_known.then(|| Request::Append(request.clone()));
        let ticket = self.record(number, asked, kept);
        let record = &mut self.model.records[ticket];
        (record.conditions, record.is_poison) = (required, is_poison);
        record.no_match = no_match;
        let ids = match are_ids_known {
            true => Ids::OfTheCaller,
            false => Ids::OfTheStore,
        };
        self.give(number, ticket, Request::Append(request), ids);
    }

    /// Makes the conditions of an append, each with what the model knows of it.
    fn conditions(&mut self, parts: &[StreamAppend]) -> (Vec<Condition>, Vec<StreamRequest>) {
        let of = [8, 2][usize::from(self.emphasis.has_conditions)];
        let mut made = (Vec::new(), Vec::new());
        if !self.choices.chance(1, of) {
            return made;
        }
        for _ in 0..1 + self.choices.pick(2) {
            let described = self.pick_stream();
            let (stream, about) = match self.choices.chance(1, 4) {
                true => (described.metadata_stream(), About::Metadata),
                false => (described.clone(), About::Events),
            };
            let is_written = parts.iter().any(|part| part.stream == stream);
            let is_named = made
                .1
                .iter()
                .any(|asked: &StreamRequest| asked.target == stream);
            if is_written || is_named {
                continue;
            }
            let expected = match about {
                About::Events => self.expected(&described),
                About::Metadata => self.expected_of_metadata(&described),
            };
            self.reach("condition");
            made.1.push(StreamRequest {
                stream: described,
                target: stream.clone(),
                about,
                claim: StreamClaim::Expected(expected),
                ids: Vec::new(),
            });
            made.0.push(Condition::Stream { stream, expected });
        }
        made
    }

    /// Makes the condition that no event carries a tag: after the end of the log, which may have grown since, after an
    /// older place, after a place of an older history, or ever. Often the events of the append carry it themselves, as
    /// those of a decision do: then a retry fails by its own events if it is not recognised first.
    fn no_match(&mut self, parts: &[StreamAppend]) -> Option<NoMatch> {
        let of = [8, 2][usize::from(self.emphasis.has_conditions)];
        if !self.choices.chance(1, of) {
            return None;
        }
        self.reach("condition on all events");
        let (end, history) = (self.database.end().position, self.database.history());
        let is_costly = self.choices.chance(1, 2);
        let after = match self.choices.pick(8) {
            // It holds in any history.
            0 | 7 => None,
            // Many events to compare.
            4..=5 if is_costly => Some((history, Position(end.0.saturating_sub(10)))),
            1 => {
                let before = self.choices.index(usize::try_from(end.0).unwrap_or(0) + 1);
                Some((history, Position(before as u64)))
            }
            2 => Some((history.saturating_sub(1), end)),
            3 => Some((history, end.next())),
            _ => Some((history, end)),
        };
        let mut events = parts.iter().flat_map(|part| &part.events);
        let own = events
            .next()
            .and_then(|event| event.tags.as_slice().first());
        let tag = match own.filter(|_| self.choices.chance(1, 2)) {
            Some(own) => own.clone(),
            // Few events carry the last one.
            None => tag(u128::from(self.choices.pick(4)) * (TAGS - 1) / 3),
        };
        Some(NoMatch {
            tag,
            after,
            is_costly,
        })
    }

    fn expected_of_metadata(&mut self, described: &StreamId) -> ExpectedRevision {
        match (self.choices.pick(4), self.database.truth(described).meta) {
            (0, _) => ExpectedRevision::Any,
            (1, _) => ExpectedRevision::StreamExists,
            (2, Some(last)) => ExpectedRevision::Exact(last),
            _ => ExpectedRevision::NoStream,
        }
    }

    /// Repeats a request with the same event ids, perhaps through another process, perhaps with the streams in another
    /// order.
    pub(super) fn repeat(&mut self, number: usize) {
        if self.requests.is_empty() {
            return;
        }
        let count = match self.is_window_narrow() && self.choices.chance(1, 2) {
            // One that may have left the window.
            true => self.requests.len().div_ceil(4),
            false => self.requests.len(),
        };
        let which = self.choices.index(count);
        self.repeat_request(number, which);
    }

    /// Chooses one of the newest appends that can be repeated, among this number of them.
    pub(super) fn pick_append(&mut self, newest: usize) -> Option<usize> {
        let is_append = |which: &usize| matches!(self.requests[*which], Some(Request::Append(_)));
        let appends = (0..self.requests.len()).rev().filter(is_append);
        let appends: Vec<usize> = appends.take(newest).collect();
        (!appends.is_empty()).then(|| appends[self.choices.index(appends.len())])
    }

    /// Repeats an append right after a stranger has ended its stream, of which the process has not heard.
    pub(super) fn repeat_after_end(&mut self, number: usize, which: usize) {
        let endings = [Ending::Tombstone, Ending::Delete, Ending::Scavenge];
        let ending = endings[self.choices.index(endings.len())];
        let stream = self.model.records[which].asked[0].stream.clone();
        self.end_unseen(&stream, ending);
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
        let first = &self.model.records[which];
        let (asked, original) = (first.asked.clone(), first.original);
        let (conditions, is_poison) = (first.conditions.clone(), first.is_poison);
        let no_match = first.no_match.clone();
        let ticket = self.record(number, asked, None);
        let record = &mut self.model.records[ticket];
        record.original = original;
        (record.conditions, record.is_poison) = (conditions, is_poison);
        record.no_match = no_match;
        self.give(number, ticket, request, Ids::OfTheCaller);
    }

    /// Gives a process a request. It goes to the process's own sequencer, unless another node owns the log.
    pub(super) fn give(&mut self, number: usize, record: usize, request: Request, ids: Ids) {
        if self.nodes.get(number).is_some_and(|node| !node.is_mine()) {
            return self.forward_request(number, record, request, ids);
        }
        let arrived = self.now_of(number).moment;
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
        let now = self.now_of(number);
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
            Some(false) => self.forward_question(number, stream),
            // It is asked by an entity that was loaded earlier: what it remembers may be outdated.
            _ => {
                let after = self.remembered(&stream);
                self.own(number, stream, after, Vec::new());
            }
        }
    }

    pub(super) fn own(
        &mut self,
        number: usize,
        stream: StreamId,
        after: After,
        events: Vec<EventData>,
    ) {
        let ids = events.iter().filter_map(|event| event.id).collect();
        let asked = vec![StreamRequest::of(
            stream.clone(),
            StreamClaim::After(after),
            ids,
        )];
        let record = self.record(number, asked, None);
        let mut types = events.iter().map(|event| event.event_type.as_str());
        self.model.records[record].is_poison = types.any(|event_type| event_type == POISON);
        let (ticket, arrived) = (Ticket::Own(record), self.now_of(number).moment);
        if let Ok(command) = Command::owned(ticket, stream, after, events, arrived) {
            self.hand_over(number, command);
        }
    }

    pub(super) fn submit_metadata(&mut self, number: usize) {
        let stream = self.pick_stream();
        let expected = match self.choices.chance(1, 2) {
            true => self.expected_of_metadata(&stream),
            false => ExpectedRevision::Any,
        };
        if self.choices.chance(1, 3) {
            return self.submit_metadata_event(number, &stream, expected);
        }
        let truncate_before = self.choices.pick(4);
        let metadata = match truncate_before {
            0 => StreamMetadata::default(),
            revision => {
                StreamMetadata::parse(format!("{{\"$tb\":{revision}}}")).unwrap_or_default()
            }
        };
        let request = SetStreamMetadata {
            stream: stream.clone(),
            expected,
            metadata,
        };
        let asked = about(&stream, About::Metadata, expected);
        self.change_life(number, asked, |id| Request::Metadata(request, id));
    }

    /// Appends an event to the metadata stream, as clients of other stores delete a stream, or truncate it.
    fn submit_metadata_event(
        &mut self,
        number: usize,
        stream: &StreamId,
        expected: ExpectedRevision,
    ) {
        let truncate_before = match self.choices.chance(1, 2) {
            true => i64::MAX,
            false => i64::from(self.choices.pick(3)),
        };
        let id = self.next_id();
        let data = format!("{{\"$tb\":{truncate_before}}}");
        let event = EventData::json(EventType::from_stored("$metadata".into()), data);
        let event = event.with_id(id);
        let request = Append::to(stream.metadata_stream(), expected, vec![event]);
        let mut asked = about(stream, About::Metadata, expected);
        asked.ids.push(id);
        let request = Request::Append(request);
        let record = self.record(number, vec![asked], Some(request.clone()));
        self.give(number, record, request, Ids::OfTheCaller);
    }

    pub(super) fn submit_delete(&mut self, number: usize, kind: DeleteKind) {
        let stream = self.pick_stream();
        let request = DeleteStream {
            stream: stream.clone(),
            expected: self.expected(&stream),
            kind,
        };
        let asked = about(&stream, About::Events, request.expected);
        self.change_life(number, asked, |id| Request::Delete(request, id));
    }

    /// Changes the life of a stream. The caller may know the id of the event and try again.
    fn change_life(
        &mut self,
        number: usize,
        mut asked: StreamRequest,
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

/// Returns what a change of the metadata stream asks, with a claim about the stream or about its metadata.
fn about(stream: &StreamId, about: About, expected: ExpectedRevision) -> StreamRequest {
    StreamRequest {
        stream: stream.clone(),
        target: stream.metadata_stream(),
        about,
        claim: StreamClaim::Expected(expected),
        ids: Vec::new(),
    }
}

/// Number of tags; each event carries one.
const TAGS: u128 = 7;

pub(super) fn tag(number: u128) -> Tag {
    Tag::from_stored(format!("t{number}").into())
}

pub(super) fn condition_of(no_match: &NoMatch) -> Condition {
    let query = |tags: Vec<Tag>| Query {
        tags,
        ..Query::default()
    };
    // Each event carries one tag.
    let never = (0..3).map(|number| query(vec![tag(number), tag(number + 1)]));
    let never = never.filter(|_| no_match.is_costly);
    let queries = never.chain([query(vec![no_match.tag.clone()])]);
    let place = no_match
        .after
        .map(|(history, position)| Checkpoint::in_log(incarnation(history), 1, LogId(0), position));
    Condition::NoMatch {
        filter: Filter::any_of(queries),
        after: place,
    }
}
