//! Who sends what and when: closed loop or strict open loop, phase after phase.
//!
//! Open loop: command `c` belongs to user `c` modulo users and is intended at its place in the schedule. While the
//! user's request before is under way it waits, and waiting counts. So no queue is needed: a user's backlog is the
//! number of its turns that have passed. Reads have a schedule of their own and wait for nobody.

use std::time::{Duration, Instant};

use mio::Events;
use nix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

use crate::failure::Result;
use crate::reservation::connection::Job;
use crate::reservation::generator::{Generator, Wish, nanos};
use crate::reservation::measure::{Measures, PhaseResult};
use crate::reservation::model::{Call, Op, Outcome};
use crate::reservation::pace::Pace;
use crate::reservation::script::User;

/// The user of scheduled reads.
pub(crate) const READER: u32 = u32::MAX - 1;

/// How requests come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Drive {
    /// So many users, each with the next request as soon as the last is answered.
    Closed(usize),
    /// So many requests a second, shared in turn by so many users.
    Open {
        /// Requests a second.
        rate: f64,
        /// Users.
        users: usize,
    },
}

/// A stretch of load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phase {
    /// How requests come.
    pub(crate) drive: Drive,
    /// Share of reads among requests.
    pub(crate) reads: f64,
    /// The first part, kept apart.
    pub(crate) warm_up: Duration,
    /// The measured part.
    pub(crate) duration: Duration,
    /// Answers slower than this are marked in the time line.
    pub(crate) slow: Duration,
    /// How long after the end the backlog is still sent.
    pub(crate) grace: Duration,
}

impl Phase {
    /// The whole length.
    pub(crate) fn length(&self) -> Duration {
        self.warm_up + self.duration
    }
}

/// A virtual user in the generator.
#[derive(Debug, Default)]
pub(crate) struct Rider {
    user: User,
    /// A request of it is under way or waits.
    busy: bool,
    /// Open loop: turns taken in this phase.
    turns: u64,
}

/// A phase under way.
pub(crate) struct Course {
    phase: Phase,
    begin: u64,
    from: u64,
    end: u64,
    commands: Option<Pace>,
    reads: Option<Pace>,
    commands_due: u64,
    reads_due: u64,
    own_from: Option<Duration>,
    /// What it came to.
    pub(crate) result: PhaseResult,
}

impl Course {
    fn new(phase: Phase, begin: u64, servers: usize) -> Self {
        let (commands, reads) = match phase.drive {
            Drive::Open { rate, .. } => (rate * (1.0 - phase.reads), rate * phase.reads),
            Drive::Closed(_) => (0.0, 0.0),
        };
        let from = begin + nanos(phase.warm_up);
        Self {
            phase,
            begin,
            from,
            end: from + nanos(phase.duration),
            commands: Pace::new(begin, commands),
            reads: Pace::new(begin, reads),
            commands_due: 0,
            reads_due: 0,
            own_from: None,
            result: PhaseResult {
                by_target: vec![[0; 2]; servers],
                ..PhaseResult::default()
            },
        }
    }

    /// The figures that a request intended then belongs to.
    fn measures(&mut self, intended: u64) -> &mut Measures {
        if intended < self.from {
            &mut self.result.warm_up
        } else {
            &mut self.result.measures
        }
    }

    /// Number of users that take turns.
    fn turn_takers(&self) -> u64 {
        match self.phase.drive {
            Drive::Open { users, .. } => users as u64,
            _ => 0,
        }
    }

    fn unsent(&mut self, intended: u64, now: u64) {
        self.measures(intended)
            .record_unsent(now.saturating_sub(intended));
        let since = intended - self.begin;
        self.result.slot(since).intended += 1;
    }
}

fn own_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

impl Generator {
    /// Runs phases without a pause between them, the first from `begin` on; then lets everything end.
    pub(crate) fn run(
        &mut self,
        phases: &[Phase],
        begin: Instant,
        stop: &CancellationToken,
    ) -> Result<Vec<PhaseResult>> {
        let mut events = Events::with_capacity(1_024);
        let mut begin = self.now() + nanos(begin.saturating_duration_since(Instant::now()));
        self.courses.clear();
        let mut complete = true;
        for (number, phase) in phases.iter().enumerate() {
            if number > 0 {
                self.leave_off();
            }
            self.prepare(phase);
            complete = complete && self.turns(&mut events, stop, |_, now| now >= begin)?;
            self.enter(*phase, begin)?;
            complete = complete && self.ride(&mut events, stop)?;
            self.close_course(complete);
            begin += nanos(phase.length());
        }
        self.settle(&mut events, stop)?;
        let results = self.courses.drain(..).map(|course| course.result);
        Ok(results.collect())
    }

    /// Makes the users of a phase, before its clock starts.
    fn prepare(&mut self, phase: &Phase) {
        let (Drive::Closed(users) | Drive::Open { users, .. }) = phase.drive;
        while self.riders.len() < users {
            self.riders.push(Rider {
                user: self.script.user(),
                ..Rider::default()
            });
        }
    }

    fn enter(&mut self, phase: Phase, begin: u64) -> Result<()> {
        let course = Course::new(phase, begin, self.targets.len());
        for rider in &mut self.riders {
            rider.turns = 0;
        }
        self.courses.push(course);
        self.issuing = true;
        self.tick(!matches!(phase.drive, Drive::Closed(_)))?;
        if let Drive::Closed(users) = phase.drive {
            for user in 0..users {
                if !self.riders[user].busy {
                    self.wish_next(number(user), begin);
                }
            }
        }
        Ok(())
    }

    /// The time of a phase; false if it was interrupted.
    fn ride(&mut self, events: &mut Events, stop: &CancellationToken) -> Result<bool> {
        self.turns(events, stop, |generator, now| {
            let Some(course) = generator.courses.last_mut() else {
                return true;
            };
            if course.own_from.is_none() && now >= course.from {
                course.own_from = Some(own_time());
            }
            let end = course.end;
            generator.launch(now.min(end - 1));
            now >= end
        })
    }

    /// The measured part is over.
    fn close_course(&mut self, complete: bool) {
        let now = self.now();
        if let Some(course) = self.courses.last_mut() {
            course.end = course.end.min(now);
            let measured = Duration::from_nanos(course.end.saturating_sub(course.from));
            course.result.seconds = measured.as_secs_f64();
            course.result.own = course
                .own_from
                .map_or(Duration::ZERO, |from| own_time().saturating_sub(from));
            course.result.complete = complete;
        }
    }

    /// After the last phase: sends the backlog for a while, then waits for what is under way.
    fn settle(&mut self, events: &mut Events, stop: &CancellationToken) -> Result<()> {
        let open = self
            .courses
            .last()
            .is_some_and(|course| course.turn_takers() > 0);
        let grace = self
            .courses
            .last()
            .map_or(Duration::ZERO, |course| course.phase.grace);
        if open {
            let until = self.now() + nanos(grace);
            self.turns(events, stop, |generator, now| {
                let idle = generator.riders.iter().all(|rider| !rider.busy)
                    && generator.targets.iter().all(|t| t.waiting.is_empty());
                idle || now >= until
            })?;
        }
        self.issuing = false;
        self.leave_off();
        self.tick(false)?;
        // Ends by itself: what gets no answer runs into its time-out.
        let never = CancellationToken::new();
        self.turns(events, &never, |generator, _| generator.under_way() == 0)?;
        Ok(())
    }

    /// What the current phase has not sent, it never will.
    fn leave_off(&mut self) {
        let now = self.now();
        let Some(course) = self.courses.last_mut() else {
            return;
        };
        for target in &mut self.targets {
            for wish in target.waiting.drain(..) {
                course.unsent(wish.intended, now);
                if let Some(rider) = self.riders.get_mut(wish.user as usize) {
                    rider.busy = false;
                }
            }
        }
        let takers = course.turn_takers();
        if let Some(pace) = course.commands {
            for (first, rider) in (0..takers).zip(&self.riders) {
                let mut turn = rider.turns;
                while first + turn * takers < course.commands_due {
                    course.unsent(pace.at(first + turn * takers), now);
                    turn += 1;
                }
            }
        }
    }

    /// Begins everything that is due.
    fn launch(&mut self, now: u64) {
        let Some(course) = self.courses.last_mut() else {
            return;
        };
        let takers = course.turn_takers();
        let (commands, reads) = (course.commands, course.reads);
        if let Some(pace) = commands {
            while let Some(due) = self.next_due(pace, now, |course| &mut course.commands_due) {
                let rider = usize::try_from(due % takers).expect("an index");
                if !self.riders[rider].busy {
                    self.take_turn(rider, pace, takers, pace.at(due));
                }
            }
        }
        if let Some(pace) = reads {
            while let Some(due) = self.next_due(pace, now, |course| &mut course.reads_due) {
                if let Some(show) = self.recent_show() {
                    let intended = pace.at(due);
                    self.wish(Wish {
                        user: READER,
                        read: Some(show),
                        intended,
                        ready: intended,
                    });
                }
            }
        }
    }

    /// The number of the next start if it is due, which is thereby counted.
    fn next_due(
        &mut self,
        pace: Pace,
        now: u64,
        count: impl FnOnce(&mut Course) -> &mut u64,
    ) -> Option<u64> {
        let count = count(self.courses.last_mut()?);
        (pace.at(*count) <= now).then(|| {
            *count += 1;
            *count - 1
        })
    }

    /// Open loop: the user's next turn has come, and it is free.
    fn take_turn(&mut self, rider: usize, pace: Pace, takers: u64, ready: u64) {
        let turn = self.riders[rider].turns;
        let intended = pace.at(rider as u64 + turn * takers);
        self.riders[rider].turns += 1;
        self.riders[rider].busy = true;
        self.wish(Wish {
            user: number(rider),
            read: None,
            intended,
            ready: ready.max(intended),
        });
    }

    /// The user's next request can be sent at once.
    fn wish_next(&mut self, user: u32, intended: u64) {
        let Some(course) = self.courses.last() else {
            return;
        };
        let share = course.phase.reads;
        let read = if share > 0.0 && self.chance(share) {
            self.recent_show()
        } else {
            None
        };
        self.riders[user as usize].busy = true;
        self.wish(Wish {
            user,
            read,
            intended,
            ready: intended,
        });
    }

    #[expect(clippy::cast_precision_loss, reason = "53 bits are chance enough")]
    fn chance(&mut self, share: f64) -> bool {
        ((self.random.next() >> 11) as f64) < share * (1_u64 << 53) as f64
    }

    /// The show of a command that was acknowledged a moment ago.
    fn recent_show(&mut self) -> Option<u32> {
        if self.recent.is_empty() {
            return None;
        }
        let at = self.random.below(self.recent.len());
        Some(self.recent[at].0)
    }

    /// Sends a request as soon as a connection is free.
    fn wish(&mut self, wish: Wish) {
        let target = self.target_of(&wish);
        match self.targets[target].free.pop() {
            Some(index) => self.send_wish(index, wish, false),
            None => self.targets[target].waiting.push_back(wish),
        }
    }

    /// Users keep to one server; reads go where the show was not changed last.
    fn target_of(&self, wish: &Wish) -> usize {
        let servers = self.targets.len();
        if servers == 1 {
            return 0;
        }
        let changed = wish
            .read
            .and_then(|show| self.recent.iter().rev().find(|(other, _)| *other == show));
        match changed {
            Some((_, server)) => (server + 1) % servers,
            None => wish.user as usize % servers,
        }
    }

    /// Sends a wish on a free connection.
    pub(crate) fn send_wish(&mut self, index: usize, wish: Wish, waited: bool) {
        let op = match wish.read {
            Some(show) => Op {
                call: Call::Read,
                show,
                seat: 0,
            },
            None => self.script.next(&mut self.riders[wish.user as usize].user),
        };
        let phase = number(self.courses.len() - 1);
        let now = self.now();
        let course = &mut self.courses[phase as usize];
        if wish.intended >= course.from {
            let wait = Duration::from_nanos(now.saturating_sub(wish.ready));
            if waited {
                course.result.connection_wait.record(wait);
            } else {
                course.result.lag.record(wait);
            }
            if wish.ready > wish.intended {
                let turn = Duration::from_nanos(wish.ready - wish.intended);
                course.result.turn_wait.record(turn);
            }
        }
        if now >= course.from && now < course.end {
            course.result.sent += 1;
        }
        self.send(
            index,
            Job {
                user: wish.user,
                op,
                phase,
                intended: wish.intended,
                sent: now,
                begin: 0,
            },
        );
    }

    /// Puts the end of a request into the figures.
    pub(crate) fn account(&mut self, job: &Job, target: usize, outcome: Outcome) {
        let now = self.now();
        let Some(course) = self.courses.get_mut(job.phase as usize) else {
            return;
        };
        let latency = now.saturating_sub(job.intended);
        course
            .measures(job.intended)
            .record(job.op.call, outcome, latency);
        let slow = latency > nanos(course.phase.slow);
        let since = job.intended.saturating_sub(course.begin);
        let slot = course.result.slot(since);
        slot.intended += 1;
        slot.accepted += u64::from(outcome == Outcome::Accepted);
        slot.refused += u64::from(outcome == Outcome::Refused);
        slot.slow += u64::from(slow && outcome == Outcome::Accepted);
        // Goodput is what is answered in the time of a phase, whichever phase it was asked in.
        if let Some(current) = self.courses.last_mut()
            && now >= current.from
            && now < current.end
        {
            current.result.answered[outcome as usize] += 1;
            if outcome == Outcome::Accepted {
                let kind = usize::from(job.op.call == Call::Read);
                current.result.by_target[target][kind] += 1;
            }
        }
    }

    /// The user goes on.
    pub(crate) fn advance(&mut self, job: &Job, outcome: Outcome) {
        if job.user == READER {
            return;
        }
        let index = job.user as usize;
        if job.op.call != Call::Read {
            self.script.settle(&mut self.riders[index].user, outcome);
        }
        self.riders[index].busy = false;
        if !self.issuing {
            return;
        }
        let now = self.now();
        let Some(course) = self.courses.last_mut() else {
            return;
        };
        match course.phase.drive {
            Drive::Closed(users) if index < users && now < course.end => {
                self.wish_next(job.user, now);
            }
            Drive::Open { users, .. } if index < users => {
                let takers = course.turn_takers();
                let turn = self.riders[index].turns;
                if index as u64 + turn * takers < course.commands_due
                    && let Some(pace) = course.commands
                {
                    self.take_turn(index, pace, takers, now);
                }
            }
            _ => {}
        }
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("users and phases are counted in 32 bits")
}
