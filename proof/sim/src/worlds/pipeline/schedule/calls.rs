//! Calls between nodes: what an edge forwards, what an owner takes, and what comes back.

use std::time::Duration;

use gesta_link::core::{CallVerdict, Input as LinkInput, Output, Refusal, Violation};
use gesta_link::{ForwardError, Hint, Patience, ReturnReason, RouteOwner};
use gesta_node::core::{Change, Changed, Next, encode, hint, next};

use super::*;
use gesta_core::KnownEnd;

use crate::worlds::pipeline::nodes::{
    Back, Forth, LOG, Payload, Reply, SentChange, Taken, What, node_at,
};

/// Longest time that a frame is under way. A frame that takes longer is lost: the link is dead after a few seconds
/// without an answer.
const UNDER_WAY_MAX: Duration = Duration::from_secs(60);

impl World<'_> {
    // ---- the edge ----

    /// Forwards what a caller asks for. Events without ids get ids now, before the first attempt.
    pub(super) fn forward_request(
        &mut self,
        number: usize,
        record: usize,
        request: Request,
        ids: Ids,
    ) {
        let change = match (request, ids) {
            (Request::Append(request), Ids::OfTheCaller) => Change::append(request),
            (Request::Append(mut request), Ids::OfTheStore) => {
                let parts = request.streams.iter_mut();
                parts
                    .flat_map(|part| &mut part.events)
                    .for_each(|event| event.id = None);
                Change::append(request)
            }
            (Request::Delete(request, id), Ids::OfTheCaller) => Change::Delete(request, id),
            (Request::Delete(request, _), Ids::OfTheStore) => Change::delete(request),
            (Request::Metadata(request, id), Ids::OfTheCaller) => Change::SetMetadata(request, id),
            (Request::Metadata(request, _), Ids::OfTheStore) => Change::set_metadata(request),
        };
        if let Err(error) = change.check() {
            return self.settled.push((record, Err(error)));
        }
        if let (Change::Delete(_, id) | Change::SetMetadata(_, id), Ids::OfTheStore) =
            (&change, ids)
        {
            let asked = self.model.records[record].asked.iter_mut();
            asked.for_each(|asked| asked.ids.push(*id));
            self.model.know_firsts(record);
        }
        let known = self.processes[number].known_end();
        let deadline = self.deadline(number);
        let sent = SentChange::new(change, known, deadline);
        self.forward(number, record, Payload::Change(sent), deadline);
    }

    /// Forwards a confirmed read.
    pub(super) fn forward_question(&mut self, number: usize, stream: StreamId) {
        // The owner will say what it takes for the state.
        let claim = StreamClaim::After(After::NOTHING);
        let asked = StreamRequest::of(stream.clone(), claim, Vec::new());
        let record = self.record(number, vec![asked], None);
        let deadline = self.deadline(number);
        self.forward(number, record, Payload::Question(stream), deadline);
    }

    fn deadline(&mut self, number: usize) -> Moment {
        let within = match self.is_at_peace {
            true => 60,
            false => [10, 30, 1][self.choices.index(3)],
        };
        self.now_of(number).moment + Duration::from_secs(within)
    }

    fn forward(&mut self, number: usize, record: usize, payload: Payload, deadline: Moment) {
        let now = self.now_of(number).moment;
        let node = &mut self.nodes[number];
        // What only the owner can do waits for it longer.
        let patience = match payload {
            Payload::Question(_) => Patience::UntilUnreachable,
            _ => Patience::UntilSilent,
        };
        let call = LinkInput::Call {
            ticket: record,
            bytes: payload.bytes(),
            deadline,
            patience,
        };
        node.sender.on(call, now);
        node.calls.insert(record, payload);
    }

    /// Lets the forwarders do what they can, as their tasks do after each input.
    pub(super) fn pump(&mut self) {
        for number in 0..self.nodes.len() {
            if self.is_asleep(number) {
                continue;
            }
            let now = self.now_of(number).moment;
            let node = &mut self.nodes[number];
            if let Some(owner) = node.sender.node().cloned() {
                let link = node.links[node_at(&owner)];
                node.sender.on(LinkInput::Link(owner, link), now);
            }
            node.sender.work(now);
            loop {
                self.take_outputs(number);
                let node = &mut self.nodes[number];
                let Some(write) = node.sender.next_write(now) else {
                    break;
                };
                let record = *write.ticket;
                let (Some(lane), Some(payload)) = (node.lane, node.calls.get(&record)) else {
                    self.violation = Some(format!("call {record} is written without a lane"));
                    return;
                };
                self.lanes[lane].forth.push_back(Forth {
                    seq: write.seq,
                    payload: payload.clone(),
                    record,
                    is_in_doubt: write.is_in_doubt,
                    remaining: write.remaining,
                    written_at: self.time,
                });
            }
            self.take_outputs(number);
            let wakes = self.nodes[number].sender.wake_at();
            if wakes.is_some_and(|at| at <= now) {
                let what = "wants to be woken at a time that has passed";
                self.violation = Some(format!("the forwarder of node {number} {what}"));
            }
        }
    }

    pub(super) fn take_outputs(&mut self, number: usize) {
        for output in self.nodes[number].sender.take_outputs() {
            match output {
                Output::OpenLane { lane, route } => {
                    let RouteOwner::Node(address) = route.owner else {
                        continue;
                    };
                    let owner = self.nodes[node_at(&address)].own;
                    let node = &mut self.nodes[number];
                    node.lane = Some(self.lanes.len());
                    self.lanes.push(Lane::new(lane, node.own, owner));
                }
                Output::CloseLane { lane } => self.end_lane(number, lane),
                Output::Hint(_) => {}
                // All of these nodes run the same code.
                Output::Broken { lane, rule } => {
                    self.violation = Some(format!("a rule of lane {lane} is broken: {rule}"));
                }
                Output::Reply {
                    ticket,
                    reply,
                    is_in_doubt,
                } => self.end_call(number, ticket, Ok((reply, is_in_doubt))),
                Output::Return {
                    ticket,
                    reason,
                    was_written,
                } => {
                    let returned = ForwardError::Returned {
                        reason,
                        was_written,
                    };
                    self.note(|| format!("call {ticket} comes back: {returned:?}"));
                    self.end_call(number, ticket, Err(returned));
                }
            }
        }
    }

    /// Ends a lane that the forwarder has closed. Only the first of the frames that it has written may arrive.
    fn end_lane(&mut self, number: usize, lane: u64) {
        let own = self.nodes[number].own;
        let open = &mut self.nodes[number].lane;
        if let Some(place) = open.take_if(|place| self.lanes[*place].number == lane) {
            debug_assert_eq!(self.lanes[place].edge, own);
            self.lanes[place].is_ended = true;
            self.lose_frames(place);
        }
    }

    pub(super) fn lose_frames(&mut self, place: usize) {
        let keep = match self.lanes[place].forth.len() {
            0 => 0,
            frames => self.choices.index(frames + 1),
        };
        self.lanes[place].forth.truncate(keep);
    }

    /// Ends a call for the forwarder.
    fn end_call(
        &mut self,
        number: usize,
        record: usize,
        outcome: std::result::Result<(Reply, bool), ForwardError>,
    ) {
        let Some(payload) = self.nodes[number].calls.remove(&record) else {
            self.violation = Some(format!("call {record} has a second outcome"));
            return;
        };
        self.reach(name_of(&outcome));
        let outcome = match outcome {
            Ok((Reply::Answered(after, answer), _)) => {
                self.model.records[record].asked[0].claim = StreamClaim::After(after);
                return self.settled.push((record, answer));
            }
            Ok((Reply::Changed(body), is_in_doubt)) => Ok(gesta_link::Reply { body, is_in_doubt }),
            Err(error) => Err(error),
        };
        let known = match (&payload, &outcome) {
            (Payload::Change(sent), _) => sent.known,
            (Payload::Question(_), Err(error)) if !is_local(error) => {
                // A read has no effect, so it has not been done.
                let error = Error::unavailable("the owner is not reached");
                return self.settled.push((record, Err(error)));
            }
            (Payload::Question(_), _) => KnownEnd::NOTHING,
        };
        let is_certain = outcome.as_ref().is_ok_and(|reply| !reply.is_in_doubt);
        match (next(known, outcome), payload) {
            (Next::Answer(answer), payload) => {
                let is_afresh = matches!(&payload, Payload::Change(sent) if sent.is_afresh);
                if is_certain && !is_afresh {
                    self.model.records[record].way = Some(Way::Lane);
                }
                let answer = answer.map(|Changed(appended)| appended);
                if let Ok(appended) = &answer {
                    self.processes[number].hear_of_end(KnownEnd {
                        incarnation: appended.checkpoint.incarnation,
                        position: appended.position,
                    });
                }
                self.settled.push((record, answer));
            }
            (Next::Here(here), payload) => {
                self.nodes[number].returned.push((record, payload, here));
            }
            (Next::Afresh(end), Payload::Change(sent)) => {
                self.send_afresh(number, record, sent, end);
            }
            (Next::Afresh(_), Payload::Question(_)) => {
                self.violation = Some(format!("question {record} was overtaken"));
            }
        }
    }

    /// Sends a change once more of which no attempt was stored, nor can be.
    fn send_afresh(&mut self, number: usize, record: usize, sent: SentChange, end: KnownEnd) {
        self.reach("sent afresh");
        self.note(|| format!("{record} is sent afresh: {end:?}"));
        if self.nodes[number].is_leaving {
            let error = Error::unavailable("the store is shut down");
            return self.settled.push((record, Err(error)));
        }
        let mut sent = SentChange::new(sent.change, end, sent.deadline);
        sent.is_afresh = true;
        let deadline = sent.deadline;
        self.forward(number, record, Payload::Change(sent), deadline);
    }

    /// Returns true if the metadata of a stream of a command were changed after this end of the log, as a delete does,
    /// or hide events. Then the command may have been stored, and be gone: unless it has a claim that holds only if it
    /// was not stored.
    pub(super) fn may_be_gone(&self, record: usize, known: KnownEnd) -> bool {
        let record = &self.model.records[record];
        let truth = |asked: &StreamRequest| self.database.truth(&asked.stream);
        let was_never_stored = record.asked.iter().any(|asked| {
            let is_exact = matches!(
                asked.claim,
                StreamClaim::Expected(ExpectedRevision::Exact(_))
            );
            is_exact || asked.target == asked.stream && truth(asked).last.is_none()
        });
        let mut asked = record.asked.iter();
        !was_never_stored
            && asked.any(|asked| {
                let metadata = asked.stream.metadata_stream();
                let hides_events = truth(asked).hides_events && asked.target != metadata;
                let mut was_changed = false;
                self.database.look(|rows, history, _| {
                    let known = known.within(incarnation(history));
                    let mut later = rows.iter().filter(|of| of.row.position > known);
                    was_changed = later.any(|of| of.row.stream == metadata);
                });
                !asked.ids.is_empty() && (was_changed || hides_events)
            })
    }

    /// Lets this node do a call that has come back.
    pub(super) fn do_returned(&mut self, number: usize, which: usize) {
        let node = &mut self.nodes[number];
        let (record, payload, here) = node.returned.swap_remove(which);
        if node.is_leaving {
            let error = Error::unavailable("the store is shut down");
            return self.settled.push((record, here.answer(Err(error))));
        }
        let arrived = self.now_of(number).moment;
        match payload {
            Payload::Change(sent) => {
                let ticket = Ticket::Returned(record, here, sent.known);
                match command(ticket, sent.change, arrived) {
                    Ok(command) => {
                        self.hand_over(number, command.as_attempt(here.attempt(sent.known)));
                    }
                    Err(error) => self.settled.push((record, here.answer(Err(error)))),
                }
            }
            Payload::Question(stream) => {
                let after = self.remembered(&stream);
                self.model.records[record].asked[0].claim = StreamClaim::After(after);
                let ticket = Ticket::Own(record);
                match Command::owned(ticket, stream, after, Vec::new(), arrived) {
                    Ok(command) => self.hand_over(number, command),
                    Err(error) => self.settled.push((record, Err(error))),
                }
            }
        }
    }

    // ---- the owner ----

    /// Delivers the next frame of a lane to the owner. Returns true if a frame was under way.
    pub(super) fn deliver_forth(&mut self, place: usize) -> bool {
        let owner = self.lanes[place].owner.node;
        let now = self.now_of(owner).moment;
        if self.lanes[place].is_mute_forth || self.is_asleep(owner) {
            return false;
        }
        let written = self.lanes[place]
            .forth
            .front()
            .map(|frame| frame.written_at);
        let written_at = written.map_or(now, |then| self.moment_then(owner, then));
        let lane = &mut self.lanes[place];
        let Some(frame) = lane.forth.pop_front() else {
            return false;
        };
        let node = &mut self.nodes[lane.owner.node];
        let newest = node.newest.entry(lane.edge).or_default();
        let is_first = !std::mem::replace(&mut lane.is_open, true);
        let is_dead =
            lane.is_reset || lane.owner != node.own || self.time - frame.written_at > UNDER_WAY_MAX;
        if is_dead || is_first && !newest.open(lane.number) || !newest.serves(lane.number) {
            lane.is_reset = true;
            lane.forth.clear();
            return true;
        }
        // The head of the frame may have arrived long before its end.
        let since = match lane.forth.len().is_multiple_of(2) {
            true => now,
            false => written_at,
        };
        let bytes = frame.payload.bytes();
        let verdict = lane
            .receiver
            .call(now, frame.seq, bytes, since, frame.remaining);
        match verdict {
            Err(violation) => self.broken(place, &violation),
            Ok(CallVerdict::Refused) => self.reach("refused after not here"),
            Ok(CallVerdict::DeadlineOver) => {
                if lane.receiver.answered(frame.seq, bytes) {
                    lane.back.push_back(Back::DeadlineOver(frame.seq));
                }
                self.reach("too late at the owner");
            }
            Ok(CallVerdict::HandOver(_)) => self.take_call(place, frame),
        }
        true
    }

    fn take_call(&mut self, place: usize, frame: Forth) {
        let number = self.lanes[place].owner.node;
        let bytes = frame.payload.bytes();
        if !self.nodes[number].is_mine() {
            self.reach("not here");
            let hint = hint(&self.nodes[number].placement, LOG);
            return self.refuse(place, frame.seq, bytes, hint);
        }
        self.lanes[place].receiver.taken(frame.seq);
        let taken = |what| Taken {
            lane: place,
            seq: frame.seq,
            bytes,
            what,
        };
        let arrived = self.now_of(number).moment;
        let (taken, command) = match frame.payload {
            Payload::Question(stream) => {
                let after = self.remembered(&stream);
                let taken = taken(What::Question(after));
                let ticket = Ticket::Taken(taken.clone());
                let command = Command::owned(ticket, stream, after, Vec::new(), arrived);
                (taken, command)
            }
            Payload::Change(SentChange { change, body, .. }) => {
                let taken = taken(match &change {
                    Change::Append(_) => What::Append,
                    _ => What::Lifecycle,
                });
                let sent = Change::decode(change.kind(), body);
                let ticket = Ticket::Taken(taken.clone());
                let command = sent.and_then(|sent| {
                    let attempt = sent.attempt(frame.is_in_doubt);
                    Ok(command(ticket, sent.change, arrived)?.as_attempt(attempt))
                });
                (taken, command)
            }
        };
        self.note(|| format!("node {number} takes {}: {taken:?}", frame.record));
        self.lanes[place].taken.push(taken.clone());
        match command {
            Ok(command) => self.hand_over(number, command),
            Err(error) => self.answer_call(taken, Err(error)),
        }
    }

    /// Sends the answer of a sequencer to a call of another node.
    pub(super) fn answer_call(&mut self, taken: Taken, result: Result<Appended>) {
        let lane = &mut self.lanes[taken.lane];
        let Some(place) = lane.taken.iter().position(|open| open.seq == taken.seq) else {
            return;
        };
        lane.taken.remove(place);
        let end = self.processes[lane.owner.node].known_end();
        let is_sent = lane.receiver.answered(taken.seq, taken.bytes);
        if !is_sent || lane.is_reset {
            return;
        }
        let reply = match taken.what {
            What::Append => Reply::Changed(encode(&result.map(Changed), || end)),
            What::Lifecycle => {
                let deleted = result.map(|appended| gesta_core::Deleted {
                    log: appended.log,
                    position: appended.position,
                    checkpoint: appended.checkpoint,
                });
                Reply::Changed(encode(&deleted.map(Changed::from), || end))
            }
            What::Question(after) => Reply::Answered(after, result),
        };
        lane.back.push_back(Back::Reply(taken.seq, reply));
    }

    /// Lets an owner refuse a question that it answers no longer, because its entities have gone with the log.
    pub(super) fn disown(&mut self) {
        let is_question = |taken: &Taken| matches!(taken.what, What::Question(_));
        let found = self.lanes.iter().enumerate().find_map(|(place, lane)| {
            let is_alive = self.nodes[lane.owner.node].own == lane.owner && !lane.is_reset;
            let number = lane.owner.node;
            let is_mine = self.nodes[number].is_mine() || self.is_asleep(number);
            let mut taken = lane.taken.iter();
            let taken = taken.find(|taken| is_question(taken));
            taken
                .filter(|_| is_alive && !is_mine)
                .map(|taken| (place, taken.clone()))
        });
        if let Some((place, taken)) = found {
            let lane = &mut self.lanes[place];
            let hint = hint(&self.nodes[lane.owner.node].placement, LOG);
            lane.taken.retain(|open| open.seq != taken.seq);
            self.reach("disowned");
            self.note(|| format!("an owner disowns {taken:?}"));
            self.refuse(place, taken.seq, taken.bytes, hint);
        }
    }

    fn refuse(&mut self, place: usize, seq: u64, bytes: usize, hint: Hint) {
        let lane = &mut self.lanes[place];
        if let Refusal::From { from, untaken } = lane.receiver.not_here(seq, bytes) {
            lane.back.push_back(Back::NotHere {
                from,
                untaken,
                hint,
            });
        }
    }

    /// Delivers the next answer of a lane to the edge. Returns true if an answer was under way.
    pub(super) fn deliver_back(&mut self, place: usize) -> bool {
        let edge = self.lanes[place].edge.node;
        let now = self.now_of(edge).moment;
        if self.lanes[place].is_mute_back || self.is_asleep(edge) {
            return false;
        }
        let lane = &mut self.lanes[place];
        let Some(answer) = lane.back.pop_front() else {
            return false;
        };
        let (number, edge) = (lane.number, lane.edge);
        let node = &mut self.nodes[edge.node];
        if node.own != edge {
            return true;
        }
        let input = match answer {
            Back::Reply(seq, reply) => LinkInput::Replied {
                lane: number,
                seq,
                reply,
            },
            Back::DeadlineOver(seq) => LinkInput::Dropped { lane: number, seq },
            Back::NotHere {
                from,
                untaken,
                hint,
            } => LinkInput::NotHere {
                lane: number,
                from,
                untaken,
                hint,
            },
        };
        node.sender.on(input, now);
        self.take_outputs(edge.node);
        true
    }

    /// Notes a violation of the rules of a lane. There must be none, because all of these nodes run the same code.
    fn broken(&mut self, place: usize, violation: &Violation) {
        let lane = &self.lanes[place];
        self.violation = Some(format!(
            "the rules of a lane are broken: {violation:?}: {lane:?}"
        ));
    }

    /// Returns the state of a stream as the memory of an owner may have it: that of now, or of some time ago.
    pub(super) fn remembered(&mut self, stream: &StreamId) -> After {
        if !self.choices.chance(1, 2) {
            return self.after(stream);
        }
        let ids = self.database.ids_of(stream);
        match ids.len().checked_sub(2 + self.choices.index(2)) {
            None => After::NOTHING,
            Some(place) => After::Event(ids[place]),
        }
    }
}

fn is_local(error: &ForwardError) -> bool {
    matches!(error, ForwardError::Returned { reason, .. } if *reason == ReturnReason::Local)
}

/// Returns the name of the way in which a call has ended for the forwarder.
fn name_of(outcome: &std::result::Result<(Reply, bool), ForwardError>) -> &'static str {
    match outcome {
        Ok((Reply::Answered(..), _)) => "read",
        Ok((Reply::Changed(_), false)) => "answered",
        Ok((Reply::Changed(_), true)) => "answered in doubt",
        Err(ForwardError::Returned {
            reason,
            was_written,
        }) => match (reason, was_written) {
            (ReturnReason::Local, false) => "local",
            (ReturnReason::Local, true) => "local in doubt",
            (ReturnReason::Unreachable, false) => "unreachable",
            (ReturnReason::Unreachable, true) => "unreachable in doubt",
            (ReturnReason::Silent, false) => "silent",
            (ReturnReason::Silent, true) => "silent in doubt",
            (ReturnReason::NoOwner, false) => "no owner",
            (ReturnReason::NoOwner, true) => "no owner in doubt",
            (ReturnReason::DeadlineOver, false) => "late",
            (ReturnReason::DeadlineOver, true) => "late in doubt",
            _ => "closed",
        },
        Err(_) => "not taken",
    }
}

/// Makes the command of a change.
fn command(ticket: Ticket, change: Change, arrived: Moment) -> Result<Command<Ticket>> {
    match change {
        Change::Append(request) => Command::append(ticket, request, arrived),
        Change::Delete(request, id) => Ok(Command::delete(ticket, request, Some(id), arrived)),
        Change::SetMetadata(request, id) => {
            Ok(Command::set_metadata(ticket, request, Some(id), arrived))
        }
    }
}
