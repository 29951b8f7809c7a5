//! Time: the clocks of the processes, processes that sleep, and subscribers that outlive them.

use super::*;

/// Longest time by which a clock is set wrong, in seconds.
const WRONG_BY_MAX: u32 = 7_200;
/// The same in a schedule whose deduplication window is narrow. Whoever begins to know a log has only the times that
/// are stored with events, so wrong clocks make its window shorter.
const WRONG_BY_IN_NARROW_WINDOW: u32 = 40;
/// Number of processes that are awake at any time.
const AWAKE_MIN: usize = 1;
/// The moment that the clocks of processes show at the start of a schedule.
pub(super) const START: Moment = Moment(Duration::from_secs(3_600));

impl World<'_> {
    /// Returns what the clocks of a process show.
    pub(super) fn now_of(&self, number: usize) -> Now {
        let clock = &self.clocks[number];
        Now {
            moment: START + clock.shows(self.time),
            wall: Timestamp(clock.wall(self.time)),
            database: self
                .knows_database_time
                .then(|| Timestamp(Clock::right_wall(self.time))),
        }
    }

    /// Returns what the clock of a process has shown when the schedule was at this time.
    pub(super) fn moment_then(&self, number: usize, then: Duration) -> Moment {
        let now = self.now_of(number).moment;
        now - self.time.saturating_sub(then)
    }

    pub(super) fn is_asleep(&self, number: usize) -> bool {
        self.clocks[number].is_asleep()
    }

    /// Returns the deduplication window that callers may rely on, with the clocks as they are.
    pub(super) fn window(&self) -> Window {
        let (low, high) = self.clock_errors;
        let spread = Duration::from_micros((high - low).unsigned_abs());
        Window {
            time: self.bounds.window.time.saturating_sub(spread) * 9 / 10,
            positions: self.bounds.window.positions,
            behind: Duration::from_micros(low.min(0).unsigned_abs()),
        }
    }

    pub(super) fn is_window_narrow(&self) -> bool {
        self.bounds.window == NARROW_WINDOW
    }

    /// Notes how wrong the clocks are.
    fn note_errors(&mut self) {
        let right = Clock::right_wall(self.time);
        for clock in &self.clocks {
            let error = clock.wall(self.time) - right;
            self.clock_errors.0 = self.clock_errors.0.min(error);
            self.clock_errors.1 = self.clock_errors.1.max(error);
        }
    }

    /// Lets time pass, for all processes that are awake.
    pub(super) fn wait(&mut self, wait: Duration) {
        self.time += wait;
        self.note(|| "time passes".to_owned());
        self.note_errors();
        for number in 0..self.processes.len() {
            if !self.is_asleep(number) {
                let now = self.now_of(number);
                self.processes[number].work(now);
            }
        }
    }

    /// Lets so much time pass that a process which slept meanwhile knows nothing of the present, or so much that events
    /// leave a narrow window.
    pub(super) fn wait_long(&mut self) {
        let wait = match self.is_window_narrow() {
            true => [60, 400],
            false => [20, 60],
        };
        let wait = wait[self.choices.index(2)];
        self.wait(Duration::from_secs(wait));
        if self.is_window_narrow() && self.choices.chance(1, 2) {
            self.leave_window();
        }
    }

    /// A process that is not simulated appends as many events as the window holds, and a process starts that has seen
    /// none of the older ones. Whoever has seen an event remembers it for longer.
    pub(super) fn leave_window(&mut self) {
        self.note(|| "a stranger appends".to_owned());
        for _ in 0..=self.bounds.window.positions {
            let id = self.next_id();
            let data = id.0.as_u128().to_string();
            let event = EventData::json(EventType::from_stored("added".into()), data).with_id(id);
            let now = Timestamp(Clock::right_wall(self.time));
            self.epochs += 1;
            let stream = StreamId::from_stored("elsewhere".into());
            let epoch = WriterEpoch(self.epochs);
            self.database.append(&stream, event, now, epoch);
        }
        self.restart();
    }

    /// Lets a process fall asleep. Another one is awake.
    pub(super) fn fall_asleep(&mut self) {
        let number = self.pick_process();
        let awake = self.clocks.iter().filter(|clock| !clock.is_asleep());
        if awake.count() > AWAKE_MIN {
            self.note(|| format!("process {number} falls asleep"));
            self.reach("fell asleep");
            self.clocks[number].fall_asleep(self.time);
        }
    }

    /// Wakes up a process that sleeps.
    pub(super) fn wake_one(&mut self) {
        let asleep = (0..self.clocks.len()).find(|number| self.is_asleep(*number));
        if let Some(number) = asleep {
            let stood_still = self.choices.chance(1, 3);
            self.wake(number, stood_still);
        }
    }

    fn wake(&mut self, number: usize, stood_still: bool) {
        self.note(|| format!("process {number} wakes up"));
        self.clocks[number].wake_up(self.time, stood_still);
        self.note_errors();
        let now = self.now_of(number);
        self.processes[number].work(now);
    }

    /// Sets a clock wrong, or right, or lets it go faster or slower than it should.
    pub(super) fn set_clock(&mut self) {
        let number = self.pick_process();
        let wrong_by = match self.is_window_narrow() {
            true => WRONG_BY_IN_NARROW_WINDOW,
            false => [40, WRONG_BY_MAX][self.choices.index(2)],
        };
        let ahead = i64::from(wrong_by) * 1_000_000;
        let clock = &mut self.clocks[number];
        match self.choices.pick(5) {
            0 => clock.correct(self.time),
            1 => clock.set(self.time, ahead),
            2 => clock.set(self.time, -ahead),
            3 => clock.drift(self.time, 1_050),
            _ => clock.drift(self.time, 950),
        }
        self.note(|| format!("clock of process {number}: {:?}", self.clocks[number]));
        self.note_errors();
        if !self.is_asleep(number) {
            let now = self.now_of(number);
            self.processes[number].work(now);
        }
    }

    /// Wakes up all processes, and sets their clocks right.
    pub(super) fn make_peace_with_time(&mut self) {
        for number in 0..self.processes.len() {
            self.clocks[number].correct(self.time);
            if self.is_asleep(number) {
                self.wake(number, false);
            }
        }
    }

    /// Lets the subscribers of two processes change places.
    pub(super) fn move_subscribers(&mut self) {
        let (one, other) = (self.pick_process(), self.pick_process());
        self.note(|| format!("the subscribers of {one} and {other} change places"));
        let progress = self.processes[one].hub.end_subscription();
        let progress = match one == other {
            true => progress,
            false => {
                let back = self.processes[other].hub.end_subscription();
                self.processes[one].hub.resume(back);
                progress
            }
        };
        self.processes[other].hub.resume(progress);
    }

    /// All processes die, and with them what they alone knew of the newest events, which are lost: nobody is left who
    /// could tell. Callers and subscribers are still there.
    pub(super) fn lose_unseen(&mut self) {
        if !self.choices.chance(1, 4) {
            return self.restart();
        }
        let count = self.choices.index(6);
        self.note(|| format!("all die, and {count} rows are lost"));
        self.reach("lost what nobody knows");
        for number in 0..self.processes.len() {
            self.processes[number].cut();
        }
        self.limbo.clear();
        self.update_archive();
        self.database.lose_newest(count);
        for number in 0..self.processes.len() {
            self.start_again(number);
        }
    }
}
