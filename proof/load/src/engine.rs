//! The load generator: one thread, a task for each virtual user, connections that the tasks share.
//!
//! It shares the machine with what it measures, so nothing moves between threads and nothing is locked.
//! Closed loop: a user asks again as soon as it is answered and has thought. Open loop: the places of the schedule are
//! taken in their order by the users who are ready first; a place that is taken late counts from its time all the same.
//! Invariants: every request that was intended ends in the figures, as ended or unsent. There are never more
//! connections than places in the pool: a connection that is given up is closed before another is opened in its place.
//! A request has a time-out, and an answer a largest length, so nothing waits for ever and nothing grows.

mod request;
mod user;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::check::{Answer, Wrong};
use crate::client::{Connection, Target};
use crate::feeder::Deck;
use crate::figures::{Figures, Outcome};
use crate::pool::{Pool, Taken};
use crate::random::Random;
use crate::scenario::Scenario;
use crate::schedule::{Drive, PAUSE_OF_CLOSED, Stretch, Window};
use crate::step::Step;
use user::{User, Using};

/// Passes of the setup under way at once.
const SETUP_AT_ONCE: usize = 16;

/// What a generator may do.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most connections at once.
    pub connections: usize,
    /// Longest time for a request, from when it is sent until its answer has come.
    pub timeout: Duration,
    /// Longest body of an answer.
    pub body_bytes_max: usize,
    /// Headers of all requests, which go before those of the file.
    pub headers: HeaderMap,
    /// Seed of all choices; ids and `{{run}}` are new in each run.
    pub seed: u64,
}

/// A generator of load.
#[derive(Debug)]
pub struct Engine {
    scenario: Scenario,
    target: Target,
    limits: Limits,
    pool: Pool<Connection>,
    run: String,
    state: RefCell<State>,
    passes: Cell<u64>,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// Shared by all users, one for each feeder.
    decks: Vec<Deck>,
    /// Those that are not asking.
    users: Vec<Option<User>>,
    /// What the setup has captured.
    captured: Vec<Value>,
    figures: Figures,
    /// The next place of the schedule.
    next: u64,
}

/// How a request has ended.
struct Ended {
    outcome: Outcome,
    at: Instant,
    captured: Vec<(usize, Value)>,
    wrong: Option<Wrong>,
}

impl Ended {
    fn failed(cause: impl Into<String>) -> Self {
        Self {
            outcome: Outcome::Failed,
            at: Instant::now(),
            captured: Vec::new(),
            wrong: Some(Wrong::new(cause, "")),
        }
    }
}

impl Engine {
    /// A generator that has asked for nothing yet.
    #[must_use]
    pub fn new(scenario: Scenario, target: Target, limits: Limits) -> Rc<Self> {
        let own = uuid::Uuid::new_v4().as_u64_pair().0;
        let decks = scenario.feeders.iter().enumerate().map(|(number, feeder)| {
            // Ids must not come again in the next run.
            let seed = if feeder.len().is_none() {
                own
            } else {
                limits.seed
            };
            Deck::new(Random::fork(seed, number as u64))
        });
        let pool = Pool::new();
        pool.add((0..limits.connections.max(1)).map(|_| None).collect());
        let state = State {
            random: Random::fork(limits.seed, u64::MAX),
            decks: decks.collect(),
            users: Vec::new(),
            captured: vec![Value::Null; scenario.captured],
            figures: Figures::default(),
            next: 0,
        };
        Rc::new(Self {
            scenario,
            target,
            limits,
            pool,
            run: format!("{:08x}", own >> 32),
            state: RefCell::new(state),
            passes: Cell::new(0),
        })
    }

    /// The names of the kinds of request.
    pub fn calls(&self) -> Vec<String> {
        self.scenario.calls()
    }

    /// Opens a connection, and then does once what the file wants before the clock starts.
    ///
    /// # Errors
    /// The server takes no connection, or a request of the setup did not pass its checks: which, and why.
    pub async fn set_up(self: &Rc<Self>, stop: &CancellationToken) -> Result<(), String> {
        let mut taken = self.pool.take().await;
        let opened = timeout(self.limits.timeout, Connection::open(&self.target)).await;
        let opened = opened.unwrap_or_else(|_| Err("no answer".into()));
        taken.connection =
            Some(opened.map_err(|why| format!("{} takes no connection: {why}", self.target))?);
        drop(taken);
        let passes = self.scenario.setup.as_ref().map_or(0, |setup| setup.passes);
        let next = Rc::new(Cell::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..SETUP_AT_ONCE.min(passes as usize) {
            let (engine, next, stop) = (Rc::clone(self), Rc::clone(&next), stop.clone());
            tasks.spawn_local(async move {
                while next.get() < passes && !stop.is_cancelled() {
                    next.set(next.get() + 1);
                    if let Err(why) = engine.pass_of_setup(next.get() - 1, &stop).await {
                        next.set(passes);
                        return Err(why);
                    }
                }
                Ok(())
            });
        }
        let mut result = Ok(());
        while let Some(ended) = tasks.join_next().await {
            let ended = ended.unwrap_or_else(|error| Err(error.to_string()));
            result = result.and(ended);
        }
        result
    }

    async fn pass_of_setup(&self, number: u32, stop: &CancellationToken) -> Result<(), String> {
        let Some(setup) = &self.scenario.setup else {
            return Ok(());
        };
        let mut user = self.user(number as usize);
        user.pass = self.next_pass();
        for step in &setup.steps {
            for _ in 0..step.repeat {
                if !step.think.1.is_zero() {
                    sleep_until(Instant::now() + self.thought(step)).await;
                }
                self.draw(&mut user, step);
                let mut taken = self.pool.take().await;
                let ended = self.perform(&mut taken, &user, step, true, stop).await;
                if let Some(wrong) = ended.wrong {
                    return Err(
                        format!("setup, {}: {} {}", step.name, wrong.cause, wrong.example)
                            .trim_end()
                            .to_owned(),
                    );
                }
                user.keep(ended.captured);
            }
        }
        self.state.borrow_mut().captured.clone_from(&user.captured);
        Ok(())
    }

    /// Runs a stretch of load, and waits until everything has ended.
    pub async fn run<P: Copy + 'static>(
        self: &Rc<Self>,
        window: &Window<P>,
        stretch: Stretch,
        stop: &CancellationToken,
    ) -> Figures {
        let window = Window {
            number: window.number,
            phase: stretch.drive,
            begin: window.begin,
            from: window.from,
            end: window.end,
            until: window.until,
        };
        let (Drive::Closed(users) | Drive::Open { users, .. }) = stretch.drive;
        {
            let mut users_now = self.state.borrow().users.len();
            while users_now < users {
                let user = self.user(users_now);
                self.state.borrow_mut().users.push(Some(user));
                users_now += 1;
            }
            let state = &mut *self.state.borrow_mut();
            state.figures = Figures::new(self.calls().len());
            state.next = 0;
        }
        let mut tasks = JoinSet::new();
        for number in 0..users {
            let (engine, stop) = (Rc::clone(self), stop.clone());
            tasks.spawn_local(async move {
                let user = engine.state.borrow_mut().users[number].take();
                let Some(mut user) = user else { return };
                match window.phase {
                    Drive::Closed(_) => engine.closed_loop(&mut user, &window, &stop).await,
                    Drive::Open { rate, .. } => {
                        engine.open_loop(&mut user, &window, rate, &stop).await
                    }
                }
                engine.state.borrow_mut().users[number] = Some(user);
            });
        }
        tokio::select! {
            () = sleep_until(window.end) => {}
            () = stop.cancelled() => {}
        }
        let now = Instant::now();
        while let Some(ended) = tasks.join_next().await {
            // A user who is gone would make the load smaller than it says.
            if let Err(error) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        if let Drive::Open { rate, .. } = window.phase
            && now >= window.end
        {
            // Nobody was free for the rest.
            while let Some(intended) = self.next_place(&window, rate) {
                self.unsent(&window, intended);
            }
        }
        let mut figures = std::mem::take(&mut self.state.borrow_mut().figures);
        figures.seconds = window
            .end
            .min(now)
            .saturating_duration_since(window.from)
            .as_secs_f64();
        figures.complete = now >= window.end;
        figures
    }

    async fn closed_loop(&self, user: &mut User, window: &Window<Drive>, stop: &CancellationToken) {
        loop {
            tokio::select! {
                () = sleep_until(user.ready.max(window.begin)) => {}
                () = sleep_until(window.end) => return,
                () = stop.cancelled() => return,
            }
            let now = Instant::now();
            if now >= window.end || !self.once(user, window, now, now, stop).await {
                return;
            }
        }
    }

    async fn open_loop(
        &self,
        user: &mut User,
        window: &Window<Drive>,
        rate: f64,
        stop: &CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = sleep_until(user.ready) => {}
                () = sleep_until(window.until) => return,
                () = stop.cancelled() => return,
            }
            let freed = Instant::now();
            let Some(intended) = self.next_place(window, rate) else {
                return;
            };
            tokio::select! {
                () = sleep_until(intended) => {}
                () = stop.cancelled() => return,
            }
            if !self
                .once(user, window, intended, intended.max(freed), stop)
                .await
            {
                return;
            }
        }
    }

    /// Takes the next place of the schedule; none if all are taken.
    fn next_place(&self, window: &Window<Drive>, rate: f64) -> Option<Instant> {
        let state = &mut *self.state.borrow_mut();
        let place = window.start(state.next, rate)?;
        state.next += 1;
        Some(place)
    }

    /// One request, as soon as a connection is free; false if it was never sent. `ready`: from when on it could be.
    async fn once(
        &self,
        user: &mut User,
        window: &Window<Drive>,
        intended: Instant,
        ready: Instant,
        stop: &CancellationToken,
    ) -> bool {
        let asked = Instant::now();
        let mut taken = tokio::select! {
            biased;
            () = stop.cancelled() => return false,
            () = sleep_until(window.until) => {
                self.unsent(window, intended);
                return false;
            }
            taken = self.pool.take() => taken,
        };
        let sent = Instant::now();
        let flow = *user.flow.get_or_insert_with(|| self.chosen_flow());
        let flow = &self.scenario.flows[flow];
        let step = &flow.steps[user.step];
        if !user.again {
            if user.step == 0 && user.done == 0 {
                let captured = &self.state.borrow().captured;
                user.begin(self.next_pass(), &self.scenario.feeders, captured);
            }
            self.draw(user, step);
        }
        let ended = self.perform(&mut taken, user, step, false, stop).await;
        drop(taken);
        let (outcome, at) = (ended.outcome, ended.at);
        user.keep(ended.captured);
        let is_over = user.settle(flow, outcome);
        user.ready = Instant::now();
        match window.phase {
            Drive::Closed(_) if matches!(outcome, Outcome::Refused | Outcome::Failed) => {
                user.ready += PAUSE_OF_CLOSED;
            }
            // The schedule is its pause.
            Drive::Open { .. } if outcome == Outcome::Refused => {}
            _ => {
                let next = user.flow.unwrap_or_else(|| self.chosen_flow());
                user.flow = Some(next);
                user.ready += self.thought(&self.scenario.flows[next].steps[user.step]);
            }
        }
        let state = &mut *self.state.borrow_mut();
        let (figures, call) = (
            &mut state.figures,
            flow.first_call + step_number(flow, step),
        );
        if intended >= window.from {
            figures
                .user_wait
                .record(ready.saturating_duration_since(intended));
            figures.lag.record(asked.saturating_duration_since(ready));
            figures.connection_wait.record(sent - asked);
            figures.record(call, outcome, at.saturating_duration_since(intended));
        }
        let measured = window.from..window.end;
        figures.sent += u64::from(measured.contains(&sent));
        if measured.contains(&at) {
            figures.ended[outcome as usize] += 1;
            figures.passes += u64::from(is_over && outcome == Outcome::Passed);
        }
        if let Some(wrong) = ended.wrong {
            figures.trouble(call, wrong.cause, wrong.example);
        }
        true
    }

    fn unsent(&self, window: &Window<Drive>, intended: Instant) {
        if intended >= window.from {
            self.state
                .borrow_mut()
                .figures
                .unsent
                .record(intended.elapsed());
        }
    }

    /// Sends a request and judges its answer, within its time.
    async fn perform(
        &self,
        taken: &mut Taken<'_, Connection>,
        user: &User,
        step: &Step,
        is_setup: bool,
        stop: &CancellationToken,
    ) -> Ended {
        let using = Using::of(&self.scenario, &self.run, user);
        let secrets = || self.secrets(step, &using, is_setup);
        let request = match self.request(step, &using, is_setup) {
            Ok(request) => request,
            Err(why) => return Ended::failed(secrets().hidden(&why)),
        };
        let asked = tokio::select! {
            asked = timeout(self.limits.timeout, self.ask(taken, request)) => asked,
            () = stop.cancelled() => Ok(Err("given up, because the run was interrupted".into())),
        };
        let at = Instant::now();
        let asked =
            asked.unwrap_or_else(|_| Err(format!("no answer within {:?}", self.limits.timeout)));
        let answer = match asked {
            Ok(answer) => answer,
            Err(why) => {
                if let Some(connection) = taken.connection.take() {
                    connection.close().await;
                }
                return Ended {
                    at,
                    ..Ended::failed(why)
                };
            }
        };
        let shown = |text: &str| request::shown(text, secrets(), step, &answer);
        let judged = step.checks.judge(&step.captures, &answer, &using, &shown);
        let (outcome, captured, wrong) = match judged {
            Ok(captured) => (Outcome::Passed, captured, None),
            Err(wrong) if step.checks.is_refusal(answer.status) => {
                (Outcome::Refused, Vec::new(), Some(wrong))
            }
            Err(wrong) => (Outcome::Wrong, Vec::new(), Some(wrong)),
        };
        Ended {
            outcome,
            at,
            captured,
            wrong,
        }
    }

    /// Sends a request over the connection of a place, or over a new one, and reads the whole answer.
    async fn ask(
        &self,
        taken: &mut Taken<'_, Connection>,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer, String> {
        let mut request = Some(request);
        while let Some(next) = request.take() {
            let was_used = match &mut taken.connection {
                Some(connection) => connection.is_ready().await,
                None => false,
            };
            if !was_used {
                if let Some(old) = taken.connection.take() {
                    old.close().await;
                }
                taken.connection = Some(Connection::open(&self.target).await?);
            }
            let Some(connection) = &mut taken.connection else {
                break;
            };
            match connection.send(next).await {
                Ok(answer) => {
                    let (head, body) = answer.into_parts();
                    return Ok(Answer {
                        status: head.status.as_u16(),
                        headers: head.headers,
                        body: self.body(body).await?,
                    });
                }
                // The server has closed an idle connection meanwhile.
                Err(error) if was_used && error.unsent.is_some() => request = error.unsent,
                Err(error) => return Err(error.cause),
            }
        }
        Err("the connection cannot be used".into())
    }

    async fn body(&self, mut body: Incoming) -> Result<Bytes, String> {
        let (mut all, most) = (Vec::new(), self.limits.body_bytes_max);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| crate::client::causes(&error))?;
            if let Some(data) = frame.data_ref() {
                if all.len() + data.len() > most {
                    return Err(format!("an answer of more than {most} bytes"));
                }
                all.extend_from_slice(data);
            }
        }
        Ok(all.into())
    }

    fn user(&self, number: usize) -> User {
        let state = self.state.borrow();
        User::new(number, &self.scenario, &state.captured, self.limits.seed)
    }

    fn next_pass(&self) -> u64 {
        self.passes.set(self.passes.get() + 1);
        self.passes.get()
    }

    /// Gives a user the rows of a request.
    fn draw(&self, user: &mut User, step: &Step) {
        let decks = &mut self.state.borrow_mut().decks;
        user.draw(&self.scenario.feeders, &step.feeders, decks);
    }

    /// Which flow a user takes, by chance and weight.
    fn chosen_flow(&self) -> usize {
        let weights = || self.scenario.flows.iter().map(|flow| flow.weight as usize);
        let mut drawn = self
            .state
            .borrow_mut()
            .random
            .below(weights().sum::<usize>().max(1));
        for (number, weight) in weights().enumerate() {
            if drawn < weight {
                return number;
            }
            drawn -= weight;
        }
        0
    }

    /// How long a user thinks before a request.
    fn thought(&self, step: &Step) -> Duration {
        let (least, most) = step.think;
        match least == most {
            true => least,
            false => least + (most - least).mul_f64(self.state.borrow_mut().random.fraction()),
        }
    }
}

fn step_number(flow: &crate::scenario::Flow, step: &Step) -> usize {
    flow.steps
        .iter()
        .position(|other| std::ptr::eq(other, step))
        .unwrap_or(0)
}
