//! The end of a schedule: there are no more faults, everything is answered, and everything is checked.

use super::callers::{condition_of, tag};
use super::*;

/// Time after which a node that no caller waits for must be ready again. The node tells a lasting error of the
/// database, such as a full disk, that long if nothing is appended meanwhile.
const UNATTENDED_MAX: Duration = Duration::from_secs(120);

impl World<'_> {
    /// Ends the faults. Then everything must be answered soon, and appends must succeed again.
    pub(super) fn end_in_peace(&mut self) -> std::result::Result<(), String> {
        self.note(|| "peace".to_owned());
        self.is_at_peace = true;
        self.make_peace_with_time();
        self.make_peace_between_nodes();
        self.calm_down()?;
        self.replace_nodes_that_have_left();
        self.calm_down()?;
        self.repeat_in_peace()?;
        self.repeat_late()?;
        self.append_in_peace()?;
        self.wait_until(|process, now| process.why_not_ready(now).is_none())?;
        for number in 0..self.processes.len() {
            if let Some(why) = self.processes[number].why_not_ready(self.now_of(number)) {
                return Err(format!("process {number} is not ready in peace: {why}"));
            }
            let now = self.now_of(number);
            self.processes[number].input(Input::Close, now);
        }
        self.calm_down()?;
        self.wait_until(|process, _| process.is_stopped())?;
        for process in &mut self.processes {
            process.hub.poll();
        }
        self.calm_down()?;
        for process in &self.processes {
            process.hub.check(&self.database, true)?;
        }
        if !self.processes.iter().all(Process::is_stopped) {
            return Err("a process does not stop although everything is answered".into());
        }
        self.model.check_end(&self.database, &self.archive)
    }

    /// Lets callers repeat appends, some of which were stored only when there was peace, and some right after a
    /// stranger has ended their streams: each through a process that has not heard of the newest append, and perhaps
    /// not noticed that its connection was lost.
    fn repeat_in_peace(&mut self) -> std::result::Result<(), String> {
        let count = self.processes.len();
        for number in 0..count {
            if self.choices.chance(1, 2) {
                self.note(|| format!("the connection of process {number} is cut"));
                self.processes[number].cut();
            }
            self.submit_append((number + 1) % count);
            self.calm_down()?;
            let newest = [1, usize::MAX][self.choices.index(2)];
            let Some(which) = self.pick_append(newest) else {
                continue;
            };
            match self.choices.chance(1, 2) {
                true => self.repeat_request(number, which),
                false => self.repeat_after_end(number, which),
            }
            self.calm_down()?;
        }
        Ok(())
    }

    /// Lets events leave the window if it is narrow, and then lets callers repeat what they asked for.
    fn repeat_late(&mut self) -> std::result::Result<(), String> {
        if !self.is_window_narrow() {
            return Ok(());
        }
        self.wait(self.bounds.window.time * 2);
        self.leave_window();
        self.make_peace_between_nodes();
        self.calm_down()?;
        for number in 0..self.processes.len() {
            self.repeat(number);
        }
        self.calm_down()
    }

    /// Lets each process append, without a condition and with conditions on all events: one that holds, and one that
    /// does not.
    fn append_in_peace(&mut self) -> std::result::Result<(), String> {
        const EXCLUDED: u128 = 100;
        self.append_once_each(vec![tag(EXCLUDED)], |_| None, |answer| answer.is_ok())?;
        let after_the_end = |world: &Self| {
            let (history, end) = (world.database.history(), world.database.end().position);
            Some(NoMatch {
                tag: tag(EXCLUDED),
                after: Some((history, end)),
                is_costly: false,
            })
        };
        self.append_once_each(Vec::new(), after_the_end, |answer| answer.is_ok())?;
        let after_nothing = |_: &Self| {
            Some(NoMatch {
                tag: tag(EXCLUDED),
                after: None,
                is_costly: false,
            })
        };
        self.append_once_each(Vec::new(), after_nothing, |answer| {
            let error = answer.as_ref().err();
            error.is_some_and(|error| matches!(error.kind(), ErrorKind::ConditionFailed { .. }))
        })
    }

    /// Appends to each process, and asks again where the outcome is unknown, as it is on a connection that was lost
    /// without a notice. Each answer must be one that `is_right`.
    fn append_once_each(
        &mut self,
        tags: Vec<Tag>,
        no_match: impl Fn(&Self) -> Option<NoMatch>,
        is_right: impl Fn(&Result<Appended>) -> bool,
    ) -> std::result::Result<(), String> {
        let before = self.model.records.len();
        for number in 0..self.processes.len() {
            let stream = StreamId::from_stored(format!("last-{number}").into());
            let id = self.next_id();
            let data = id.0.as_u128().to_string();
            let event = EventData::json(EventType::from_stored("last".into()), data);
            let event = event.with_id(id).with_tags(Tags::from_stored(tags.clone()));
            let mut request = Append::to(stream.clone(), ExpectedRevision::Any, vec![event]);
            let no_match = no_match(self);
            request
                .conditions
                .extend(no_match.as_ref().map(condition_of));
            let claim = StreamClaim::Expected(ExpectedRevision::Any);
            let asked = vec![StreamRequest::of(stream, claim, vec![id])];
            let request = Request::Append(request);
            let record = self.record(number, asked, Some(request.clone()));
            self.model.records[record].no_match = no_match;
            self.give(number, record, request, Ids::OfTheCaller);
        }
        self.calm_down()?;
        let is_unknown = |record: &Record| {
            let answer = record.answer.as_ref();
            let error = answer.and_then(|answer| answer.as_ref().err());
            error.is_some_and(|error| matches!(error.kind(), ErrorKind::OutcomeUnknown(_)))
        };
        let after = self.model.records.len();
        for first in before..after {
            if is_unknown(&self.model.records[first]) {
                self.repeat_request(self.model.records[first].process, first);
            }
        }
        self.calm_down()?;
        let is_wrong = |record: &&Record| !record.answer.as_ref().is_some_and(&is_right);
        let (first, again) = self.model.records[before..].split_at(after - before);
        let first = first.iter().filter(|record| !is_unknown(record));
        match first.chain(again).find(is_wrong) {
            Some(record) => Err(format!(
                "an append in peace has another answer than is right: {record:?}"
            )),
            None => Ok(()),
        }
    }

    /// Lets time pass until `is_so` holds for all nodes. What they wait for may concern no caller any more: a node that
    /// owns nothing finds out by itself that the database is back, and a node that stops has calls of nodes that have
    /// died.
    fn wait_until(
        &mut self,
        is_so: impl Fn(&Process, Now) -> bool,
    ) -> std::result::Result<(), String> {
        let end = self.time + UNATTENDED_MAX;
        while !self.nodes.is_empty() && self.time < end {
            let mut processes = self.processes.iter().enumerate();
            if processes.all(|(number, process)| is_so(process, self.now_of(number))) {
                break;
            }
            self.wait_for_the_next_wake_up();
            self.calm_down()?;
        }
        Ok(())
    }

    /// Lets everything under way go on until nothing is.
    pub(super) fn calm_down(&mut self) -> std::result::Result<(), String> {
        self.limbo.clear();
        for _ in 0..PEACE_STEPS_MAX {
            let mut is_quiet = true;
            for number in 0..self.processes.len() {
                is_quiet &= !self.go_on_in_peace(number);
            }
            is_quiet &= !self.carry_calls_in_peace();
            self.look()?;
            for (to, signal) in std::mem::take(&mut self.messages) {
                self.tell(to, signal);
            }
            let all_answered = self
                .model
                .records
                .iter()
                .all(|record| record.answer.is_some() || record.is_orphaned);
            if is_quiet && all_answered {
                return Ok(());
            }
            if is_quiet {
                self.wait_for_the_next_wake_up();
            }
        }
        let waiting = self.model.records.iter().enumerate();
        let waiting = waiting.filter(|(_, one)| one.answer.is_none() && !one.is_orphaned);
        let tickets: Vec<usize> = waiting.map(|(ticket, _)| ticket).collect();
        Err(format!(
            "commands {tickets:?} are not answered although there is peace"
        ))
    }

    /// Lets one process go on in peace. Returns true if something was under way.
    pub(super) fn go_on_in_peace(&mut self, number: usize) -> bool {
        let now = self.now_of(number);
        let process = &mut self.processes[number];
        let mut went_on = false;
        if process.is_connecting() {
            self.epochs += 1;
            process.connected(WriterEpoch(self.epochs), self.database.history(), now);
            went_on = true;
        }
        while process.has_sent() {
            process.execute(&self.database, None);
            went_on = true;
        }
        if process.has_answer() {
            process.receive(now);
            went_on = true;
        }
        if process.reads() > 0 {
            process.go_on_reading(0, &self.database, None, now);
            went_on = true;
        }
        let history = process.history();
        went_on |= process.hub.work(history);
        if process.hub.is_reading() {
            process.go_on_with_hub(&self.database, now);
            went_on = true;
        }
        if process.hub.is_looking() {
            process.go_on_looking_with_hub(&self.database, now);
            went_on = true;
        }
        went_on |= process.wants_turn();
        process.work(now);
        went_on
    }

    pub(super) fn wait_for_the_next_wake_up(&mut self) {
        let wait_of = |number: usize| {
            let forwarder = self
                .nodes
                .get(number)
                .and_then(|node| node.sender.wake_at());
            let wakes = self.processes[number]
                .wake_at()
                .into_iter()
                .chain(forwarder);
            let at = wakes.min()?;
            Some(at.since(self.now_of(number).moment))
        };
        let wait = (0..self.processes.len()).filter_map(wait_of).min();
        let wait = wait.unwrap_or(Duration::from_millis(100));
        self.wait(wait.max(Duration::from_micros(1)));
        let end = self.database.end().position;
        for number in 0..self.processes.len() {
            let signal = Signal::Appended {
                log: LogId(0),
                position: end.max(Position::START),
            };
            let now = self.now_of(number);
            self.processes[number].input(Input::Signal(signal), now);
        }
    }
}
