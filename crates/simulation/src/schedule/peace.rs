//! The end: no more faults, everything is answered, and everything is checked.

use super::*;

impl World {
    /// No more faults: everything must be answered soon, and appends must succeed again.
    pub(super) fn end_in_peace(&mut self) -> Result<(), String> {
        self.note(|| "peace".to_owned());
        self.calm_down()?;
        let before = self.model.records.len();
        for number in 0..PROCESSES {
            let stream = StreamId::from_stored(format!("last-{number}").into());
            let event = EventData::json(EventType::from_stored("last".into()), "{}");
            let id = self.next_id();
            let request = Append::to(
                stream.clone(),
                ExpectedRevision::Any,
                vec![event.with_id(id)],
            );
            let asked = vec![Asked {
                stream: stream.clone(),
                target: stream,
                claim: Claim::Expected(ExpectedRevision::Any),
                ids: vec![id],
            }];
            let ticket = self.record(number, asked, None);
            let now = self.now();
            if let Ok(command) = Command::append(ticket, request, now.instant) {
                self.processes[number].input(Input::Command(command), now);
            }
        }
        self.calm_down()?;
        for record in &self.model.records[before..] {
            if !matches!(record.answer, Some(Ok(_))) {
                return Err(format!("an append in peace does not succeed: {record:?}"));
            }
        }
        for number in 0..PROCESSES {
            if let Some(why) = self.processes[number].why_not_ready(self.now()) {
                return Err(format!("process {number} is not ready in peace: {why}"));
            }
            let now = self.now();
            self.processes[number].input(Input::Close, now);
        }
        self.calm_down()?;
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
        self.model.check_end(&self.archive)
    }

    /// Lets everything under way go on until nothing is.
    pub(super) fn calm_down(&mut self) -> Result<(), String> {
        self.limbo.clear();
        for _ in 0..PEACE_STEPS_MAX {
            let mut is_quiet = true;
            for number in 0..PROCESSES {
                is_quiet &= !self.go_on_in_peace(number);
            }
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

    /// True if something was under way.
    pub(super) fn go_on_in_peace(&mut self, number: usize) -> bool {
        let now = self.now();
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
            process.go_on_reading(0, &self.database, false, now);
            went_on = true;
        }
        let history = process.history();
        went_on |= process.hub.work(history);
        if process.hub.is_reading() {
            process.go_on_with_hub(&self.database, now);
            went_on = true;
        }
        process.work(now);
        went_on
    }

    pub(super) fn wait_for_the_next_wake_up(&mut self) {
        let wakes = self.processes.iter().filter_map(Process::wake_at).min();
        let now = self.now();
        let wait = wakes.map_or(Duration::from_millis(100), |at| {
            at.saturating_duration_since(now.instant)
        });
        self.time += wait.max(Duration::from_micros(1));
        let now = self.now();
        for process in &mut self.processes {
            process.work(now);
        }
        let end = self.database.end().position;
        for process in &mut self.processes {
            let signal = Signal::Appended {
                log: LogId(0),
                position: end.max(Position::START),
            };
            process.input(Input::Signal(signal), now);
        }
    }
}
