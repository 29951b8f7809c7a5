//! The faults of a schedule.

use super::*;

/// What becomes of a stream at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The stream is tombstoned.
    Tombstone,
    /// The stream is deleted.
    Delete,
    /// The stream is deleted, and its events are scavenged.
    Scavenge,
}

impl World<'_> {
    /// Lets the database execute a statement whose connection was lost, or never see it.
    pub(super) fn execute_lost(&mut self) {
        if let Some((batch, epoch)) = self.limbo.pop_front()
            && !self.choices.chance(1, 4)
        {
            let is_stored = self.database.insert(&batch, epoch);
            self.note(|| format!("a lost statement is executed, stored: {is_stored}"));
        }
    }

    pub(super) fn cut(&mut self) {
        let number = self.pick_process();
        let lost = self.processes[number].cut();
        self.note(|| format!("the connection of process {number} is cut"));
        self.limbo.extend(lost);
    }

    pub(super) fn give_up(&mut self) {
        let number = self.pick_process();
        if self.processes[number].can_give_up() {
            self.note(|| format!("process {number} gives up waiting for its oldest batch"));
            self.processes[number].give_up();
        }
    }

    pub(super) fn fail_read(&mut self) {
        if let Some(number) = self.pick_process_that(|process| process.reads() > 0) {
            let which = self.choices.index(self.processes[number].reads());
            let error = match self.choices.chance(1, self.emphasis.lasting_of) {
                false => Error::unavailable("the database is away"),
                true => ErrorKind::Unsupported("the file cannot be read".into()).into(),
            };
            self.note(|| format!("a read of process {number} fails, or ends: {error}"));
            let now = self.now_of(number);
            self.processes[number].go_on_reading(which, &self.database, Some(error), now);
        }
    }

    pub(super) fn fail_batch(&mut self) {
        let Some(number) = self.pick_process_that(Process::has_sent) else {
            return;
        };
        let lasts = self.choices.chance(1, self.emphasis.lasting_of);
        let outcome = match self.choices.pick(3) {
            _ if lasts => {
                BatchOutcome::Failed(ErrorKind::Unsupported("the disk is full".into()).into())
            }
            0..=1 => BatchOutcome::Failed(Error::unavailable("a lock was not had in time")),
            // As by a rule that somebody has added, and takes away again.
            _ => BatchOutcome::Refused(ErrorKind::Refused("a rule".into()).into()),
        };
        self.note(|| format!("a batch of process {number} fails: {outcome:?}"));
        // What was sent after it finds that the row before it is missing, as a real database does.
        self.processes[number].execute(&self.database, Some(outcome));
    }

    pub(super) fn refuse_connection(&mut self) {
        let Some(number) = self.pick_process_that(Process::is_connecting) else {
            return;
        };
        let error = match self.choices.chance(1, self.emphasis.lasting_of) {
            false => Error::unavailable("the database does not answer"),
            true => ErrorKind::Unsupported("the database is read only".into()).into(),
        };
        let now = self.now_of(number);
        self.processes[number].not_connected(error, now);
    }

    /// Removes events of a stream. Only what a delete or metadata hide is scavenged, so an operator sets such metadata
    /// if there are none.
    pub(super) fn scavenge(&mut self) {
        if let Some((number, stream)) = self.stored_call()
            && self.choices.chance(1, 2)
        {
            return self.lose_traces(number, &stream);
        }
        let stream = self.pick_stream();
        let truth = self.database.truth(&stream);
        let Some(last) = truth.last else {
            return;
        };
        let keep = u64::from(self.choices.chance(1, 2));
        let Some(through) = last.0.checked_sub(keep) else {
            return;
        };
        if through >= truth.deleted_before.0 && !truth.hides_events {
            // What readers see is not simulated: it is enough that they may not see all.
            let lifecycle = Lifecycle {
                metadata: StreamMetadata::parse(r#"{"$maxAge":1000000000}"#).unwrap_or_default(),
                deleted_before: truth.deleted_before,
                tombstoned: truth.is_tombstoned,
            };
            let event = lifecycle.to_event(LifecycleChange::Metadata);
            self.append_unseen(&stream.metadata_stream(), event);
        }
        self.note(|| format!("{stream} is scavenged through {through}"));
        self.database.scavenge(&stream, Revision(through));
    }

    /// Returns the newest call between nodes whose events are stored, and whose answer has not come: the node that has
    /// sent it, and its stream.
    pub(super) fn stored_call(&self) -> Option<(usize, StreamId)> {
        let calls = self.nodes.iter().flat_map(|node| {
            let returned = node.returned.iter().map(|(record, ..)| record);
            let records = node.calls.keys().chain(returned);
            records.map(|record| (*record, node.own.node))
        });
        let is_stored = |call: &(usize, usize)| {
            let asked = &self.model.records[call.0].asked[0];
            let mut copies = asked.ids.iter().flat_map(|id| self.archive.copies(*id));
            copies.any(|copy| !copy.is_removed && copy.stream == asked.stream)
        };
        let (record, number) = calls.filter(is_stored).max()?;
        Some((number, self.model.records[record].asked[0].stream.clone()))
    }

    /// Lets nothing be left of a call that is stored, and whose answer is lost, so that its node sends it again: its
    /// stream is deleted, its events are scavenged, and perhaps the process dies that remembers their ids.
    pub(super) fn lose_traces(&mut self, number: usize, stream: &StreamId) {
        self.end_unseen(stream, Ending::Scavenge);
        let lane = self.nodes[number].lane;
        if let Some(place) = lane.filter(|_| !self.is_asleep(number)) {
            self.note(|| format!("lane {place} breaks"));
            self.lose_lane(place);
            if self.choices.chance(1, 2) {
                self.start_again(self.lanes[place].owner.node);
            }
        }
    }

    /// A process that is not simulated ends a stream, if it is there.
    pub(super) fn end_unseen(&mut self, stream: &StreamId, ending: Ending) {
        let truth = self.database.truth(stream);
        let Some(last) = truth.visible else {
            return;
        };
        let (kind, deleted_before) = match ending {
            Ending::Tombstone => (LifecycleChange::Tombstone, truth.deleted_before),
            Ending::Delete | Ending::Scavenge => (LifecycleChange::Deleted, last.next()),
        };
        let lifecycle = Lifecycle {
            metadata: StreamMetadata::default(),
            deleted_before,
            tombstoned: kind == LifecycleChange::Tombstone,
        };
        self.note(|| format!("{stream} is ended by a stranger: {ending:?}"));
        self.append_unseen(&stream.metadata_stream(), lifecycle.to_event(kind));
        if ending == Ending::Scavenge {
            self.database.scavenge(stream, last);
        }
    }

    /// A process that is not simulated appends an event.
    fn append_unseen(&mut self, stream: &StreamId, event: EventData) {
        self.epochs += 1;
        let (now, epoch) = (self.database.end().created, WriterEpoch(self.epochs));
        let event = event.with_id(self.next_id());
        self.database.append(stream, event, now, epoch);
    }

    /// Lets a process die, and starts another one in its place.
    pub(super) fn restart(&mut self) {
        let number = self.pick_process();
        self.start_again(number);
    }

    pub(super) fn start_again(&mut self, number: usize) {
        let lost = self.processes[number].cut();
        self.limbo.extend(lost);
        for record in &mut self.model.records {
            if record.process == number && record.answer.is_none() {
                record.is_orphaned = true;
            }
        }
        self.note(|| format!("process {number} is restarted"));
        self.messages.retain(|(to, _)| *to != number);
        let progress = self.processes[number].hub.end_subscription();
        let resumed = self.processes[number].hub.resumed;
        self.clocks[number] = Clock::right(self.time);
        self.restart_node(number);
        let now = self.now_of(number);
        self.processes[number] = Process::start(&self.database, self.bounds, now);
        self.processes[number].hub.resume(progress);
        self.processes[number].hub.resumed = resumed;
    }

    /// Makes a fail-over: the newest rows are lost, and all connections; statements under way die with the old server.
    pub(super) fn lose_commits(&mut self) {
        let count = self.choices.index(6);
        for process in &mut self.processes {
            process.cut();
        }
        self.limbo.clear();
        let is_mean = self.choices.chance(1, 2);
        if is_mean {
            self.end_reads();
        }
        self.note(|| format!("a fail-over loses {count} rows"));
        self.update_archive();
        self.database.lose_newest(count);
        if is_mean && self.database.end().position != Position::START {
            self.go_on_unseen();
        }
    }

    /// Lets the answers of reads come, of what is lost right after.
    fn end_reads(&mut self) {
        for number in 0..self.processes.len() {
            let now = self.now_of(number);
            let reads = self.processes[number].reads();
            for _ in 0..reads {
                if !self.is_asleep(number) && self.processes[number].reads() > 0 {
                    self.note(|| format!("process {number} goes on reading"));
                    self.processes[number].go_on_reading(0, &self.database, None, now);
                }
            }
        }
    }

    /// A process that is not simulated is the first that appends after a loss: at the places of what was lost stands
    /// something else then. Often it is what a condition excludes that is under way.
    fn go_on_unseen(&mut self) {
        let open = self.model.records.iter().filter(|of| of.answer.is_none());
        let mut excluded = open.filter_map(|record| record.no_match.as_ref());
        let mut excluded = excluded.next_back().map(|condition| condition.tag.clone());
        for _ in 0..=self.choices.pick(3) {
            let stream = self.pick_stream();
            let mut event = self.events().swap_remove(0);
            if let Some(tag) = excluded.take() {
                event = event.with_tags(Tags::from_stored(vec![tag]));
            }
            self.note(|| format!("a stranger appends to {stream}"));
            self.append_unseen(&stream, event);
        }
    }

    // ---- callers ----
}
