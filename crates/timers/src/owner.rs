//! The task of one service: it stands by, claims, reads, fires, and hands over.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use gesta_core::{
    BackOff, Clock, EventId, EventStore, Incarnation, Moment, Result, Revision, Subscription,
    SubscriptionMessage,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::book::Book;
use crate::config::Config;
use crate::firing::{self, Fire, Firing};
use crate::lease::OwnerLease;
use crate::load::{hidden, load};
use crate::record::{Kept, State, Through, What, parts};
use crate::requests::{Fate, Place, Requests};
use crate::running::{Phase, Status};
use crate::states::{Head, Last, States};

/// The longest sleep while timers are pending: the clock may be set meanwhile.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The pauses before a store that does not answer is asked again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Returns the time now, by the clock of the runtime.
fn moment() -> Moment {
    Moment::of(Instant::now().into_std())
}

/// What the task of a service needs.
pub(crate) struct Own {
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) name: String,
    pub(crate) requests: Requests,
    pub(crate) states: States,
    pub(crate) config: Config,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) node: Uuid,
    pub(crate) status: watch::Sender<Status>,
    pub(crate) stopping: CancellationToken,
    pub(crate) fire: Arc<Fire>,
}

/// Why an owner has ended.
enum Ended {
    /// The process stops.
    Stopping,
    /// Another process has taken over, or the store has another history.
    Lost,
    /// No timer is pending.
    Idle,
}

/// What a process waits for that does not own the timers.
enum Wait {
    /// For nothing: they are free.
    Nothing,
    /// For the first request after this one.
    Request(Option<Through>),
    /// Until their owner has not been heard for a lease.
    Lease,
    /// The same, but the states cannot be read: so nobody knows whether they have an owner.
    Hidden,
}

/// Runs a service until the process stops.
pub(crate) async fn run(own: Own) {
    let mut back_off = BackOff::new(PAUSES.0, PAUSES.1);
    let mut firing = Firing::default();
    while !own.stopping.is_cancelled() {
        let ended = match own.claim().await {
            Ok(None) => break,
            Ok(Some((claimed, since))) => {
                let ended = own.fire_all(claimed, since, &mut firing).await;
                if since.elapsed() >= PAUSES.1 {
                    // What went wrong before is over.
                    back_off.reset();
                }
                ended
            }
            Err(error) => Err(error),
        };
        match ended {
            Ok(Ended::Stopping) => break,
            Ok(Ended::Lost | Ended::Idle) => back_off.reset(),
            Err(error) => {
                tracing::warn!(timers = own.name, %error, "the timers are not run, trying again");
                own.tell(Phase::Away, Some(error.to_string()));
                tokio::select! {
                    () = own.stopping.cancelled() => {}
                    () = sleep(back_off.pause()) => {}
                }
            }
        }
    }
    // Those that have begun end what they do, also if another process fires by now.
    let until = Instant::now() + own.within();
    while firing.next_until(until).await.is_some() {}
    own.tell(Phase::Stopped, None);
}

impl Own {
    fn tell(&self, phase: Phase, error: Option<String>) {
        self.status.send_modify(|status| {
            *status = Status {
                phase,
                error,
                fired: status.fired,
                ..Status::default()
            };
        });
    }

    /// For how long the owner tries to append a state: the lease is not over then.
    fn within(&self) -> Duration {
        self.config.lease / 2
    }

    /// Returns after the store has got another history.
    async fn history_changes(&self, known: Incarnation) -> Result<()> {
        while self.store.incarnation().await? == known {
            sleep(self.config.lease / 3).await;
        }
        Ok(())
    }

    // ---- standing by ----

    /// Stands by until this process may fire. Returns its first state, and when it was begun to be appended; `None` if
    /// the process stops.
    async fn claim(&self) -> Result<Option<(Head, Instant)>> {
        let mut back_off = BackOff::new(PAUSES.0, PAUSES.1);
        while !self.stopping.is_cancelled() {
            let known = self.store.incarnation().await?;
            let last = self.states.last().await?;
            let after = last.revision();
            let wait = match last {
                Last::None => Wait::Request(None),
                Last::Hidden(_) => Wait::Hidden,
                Last::State(_, state) => match (state.owner, state.does) {
                    (Some(owner), _) if owner != self.node => Wait::Lease,
                    (None, What::Idle { through }) => Wait::Request(through),
                    _ => Wait::Nothing,
                },
            };
            let may = tokio::select! {
                () = self.stopping.cancelled() => return Ok(None),
                changed = self.history_changes(known) => changed.map(|()| false),
                may = self.wait(wait, after) => may,
            };
            if !may? {
                continue;
            }
            let now = Instant::now();
            let state = self.state(What::Owned);
            let claimed = self.states.claim(after, known, &state, self.within());
            if let Some(claimed) = claimed.await? {
                return Ok(Some((claimed, now)));
            }
            tokio::select! {
                () = self.stopping.cancelled() => {}
                () = sleep(back_off.pause()) => {}
            }
        }
        Ok(None)
    }

    /// Waits. Returns whether the timers may be claimed; otherwise there is another state.
    async fn wait(&self, wait: Wait, after: Option<Revision>) -> Result<bool> {
        match wait {
            Wait::Nothing => Ok(true),
            Wait::Request(through) => {
                // After a place that is lost nothing would ever come.
                if let Some(through) = through
                    && self.requests.fate(through).await? == Fate::Lost
                {
                    return Ok(true);
                }
                let mut requests = self.requests.follow(through).await?;
                let mut states = self.states.follow(after).await?;
                self.tell(Phase::Idle, None);
                tokio::select! {
                    next = requests.next_event() => next.map(|_| true),
                    next = states.next_event() => next.map(|_| false),
                }
            }
            Wait::Lease | Wait::Hidden => {
                let until = Instant::now() + self.config.lease;
                let mut states = self.states.follow(after).await?;
                let error = matches!(wait, Wait::Hidden).then(|| hidden(&self.states));
                self.tell(Phase::StandingBy, error);
                tokio::select! {
                    next = states.next_event() => next.map(|_| false),
                    () = sleep_until(until) => Ok(true),
                }
            }
        }
    }

    fn state(&self, does: What) -> State {
        State {
            owner: Some(self.node),
            does,
        }
    }

    // ---- firing ----

    async fn fire_all(&self, claimed: Head, since: Instant, firing: &mut Firing) -> Result<Ended> {
        let (history, to) = (claimed.history(), claimed.revision);
        firing.begin_in(history).await;
        let mut book = Book::new(self.config.bounds());
        let lease = self.config.lease;
        let mut owned = OwnerLease::new(&self.states, self.node, lease, (claimed, since));
        let loaded = load(&self.requests, &self.states, Some(to), &mut book);
        let Some((place, states)) = owned.during(loaded).await? else {
            return Ok(Ended::Lost);
        };
        owned.appended += states;
        let requests = self.requests.follow(place.through).await?;
        // All of it was read in one history.
        if self.store.incarnation().await? != history {
            return Ok(Ended::Lost);
        }
        let owner = Owner {
            own: self,
            history,
            looked_at: Instant::now(),
            busy_at: Instant::now(),
            lease: owned,
            book,
            place,
            firing,
            is_full: false,
        };
        owner.run(requests).await
    }
}

/// The owner of the timers.
struct Owner<'a> {
    own: &'a Own,
    /// The history of the store in which it owns them.
    history: Incarnation,
    /// When it last looked whether the store still has this history.
    looked_at: Instant,
    /// When a timer was last pending, or firing.
    busy_at: Instant,
    lease: OwnerLease<'a>,
    book: Book,
    place: Place,
    firing: &'a mut Firing,
    /// Whether there is more to read than there is room for.
    is_full: bool,
}

/// Returns that another process has taken over, or the store has another history, unless this is true.
macro_rules! or_lost {
    ($is_owner:expr) => {
        if !$is_owner {
            return Ok(Ended::Lost);
        }
    };
}

impl Owner<'_> {
    async fn run(mut self, mut requests: Subscription) -> Result<Ended> {
        loop {
            or_lost!(self.store_fired().await?);
            if self.own.stopping.is_cancelled() {
                return self.stop().await;
            }
            // A store behind a server is asked for it, so not too often.
            if self.looked_at.elapsed() >= SLEEP_MAX {
                or_lost!(self.has_history().await?);
            }
            let lease = self.own.config.lease;
            if self.is_busy() {
                self.busy_at = Instant::now();
                if self.lease.renews_at() <= Instant::now() {
                    or_lost!(self.lease.renew(What::Owned).await?);
                }
            } else if self.busy_at.elapsed() >= lease && !self.place.is_behind {
                let through = self.place.through;
                or_lost!(self.lease.end(What::Idle { through }).await?);
                return Ok(Ended::Idle);
            }
            or_lost!(self.keep_if_due().await?);
            or_lost!(self.fire_due().await?);
            self.tell();
            let wake = sleep_until(self.wake_at());
            tokio::select! {
                () = self.own.stopping.cancelled() => {}
                Some(ended) = self.firing.next() => self.ended(ended),
                message = requests.next() => match message {
                    Some(message) => self.heard(&message?, &mut requests)?,
                    None => return Err(gesta_core::Error::unavailable("the subscription has ended")),
                },
                () = wake => {}
            }
            while let Some(ended) = self.firing.try_next() {
                self.ended(ended);
            }
        }
    }

    /// Returns whether the store still has the history in which this process owns the timers. In another one, what was
    /// lost is not pending, and other requests may be in its place.
    async fn has_history(&mut self) -> Result<bool> {
        self.looked_at = Instant::now();
        Ok(self.own.store.incarnation().await? == self.history)
    }

    /// Returns whether a timer is pending, or one fires that was replaced or cancelled meanwhile.
    fn is_busy(&self) -> bool {
        self.book.len() > 0 || !self.firing.is_empty()
    }

    /// Fires what is due, as long as not too much does. Before that it reads what was set and cancelled until now.
    /// Returns false if another process has taken over.
    async fn fire_due(&mut self) -> Result<bool> {
        let config = &self.own.config;
        let now = self.own.clock.now();
        let moment = moment();
        let is_due = self.book.is_due(now, moment);
        let has_room = self.firing.len() < config.firing_max;
        if is_due && has_room || self.place.is_behind && self.book.has_room() {
            let (place, book) = (&mut self.place, &mut self.book);
            let requests = &self.own.requests;
            let read = requests.read_on(place, book);
            if self.lease.during(read).await?.is_none() || !self.has_history().await? {
                return Ok(false);
            }
        }
        while self.firing.len() < config.firing_max
            && let Some(timer) = self.book.take(now, moment)
        {
            self.firing.begin(timer, &self.own.fire);
        }
        Ok(true)
    }

    /// Takes the end of a handler.
    fn ended(&mut self, (id, outcome): firing::Ended) {
        let Err(why) = outcome else {
            self.own.status.send_modify(|status| status.fired += 1);
            self.firing.done.push(id);
            return;
        };
        // What was replaced or cancelled meanwhile does not fire again.
        if self.book.contains(id) {
            tracing::warn!(timers = self.own.name, timer = %id.0, error = why, "a timer fires again later");
            let pauses = self.own.config.back_off;
            self.book.failed(id, pauses, moment());
            let status = &self.own.status;
            status.send_modify(|status| status.error = Some(why));
        }
    }

    /// Takes a request, with those that have come with it.
    fn heard(&mut self, message: &SubscriptionMessage, more: &mut Subscription) -> Result<()> {
        self.hear(message);
        while let Some(Some(message)) = more.next().now_or_never() {
            self.hear(&message?);
        }
        Ok(())
    }

    fn hear(&mut self, message: &SubscriptionMessage) {
        let SubscriptionMessage::Event { event, .. } = message else {
            return;
        };
        let is_full = !self.book.has_room();
        match self.place.is_next(event.revision) {
            Some(true) if !is_full => {
                let requests = &self.own.requests;
                requests.take(event, &mut self.place, &mut self.book);
            }
            Some(_) => self.place.is_behind = true,
            None => {}
        }
    }

    fn wake_at(&self) -> Instant {
        let (config, now) = (&self.own.config, Instant::now());
        if !self.is_busy() {
            return self.busy_at + config.lease;
        }
        let has_room = self.firing.len() < config.firing_max;
        let due = self.book.next().filter(|_| has_room).map(|at| {
            let wait = at.0.saturating_sub(self.own.clock.now().0).max(0);
            now + Duration::from_micros(wait.unsigned_abs()).min(SLEEP_MAX)
        });
        let again = self.book.next_again().filter(|_| has_room);
        let again = again.map(|at| Instant::from_std(at.instant()));
        let renewal = self.lease.renews_at();
        [due, again]
            .into_iter()
            .flatten()
            .fold(renewal, Instant::min)
    }

    fn tell(&mut self) {
        let (pending, pending_bytes) = (self.book.len(), self.book.bytes());
        let (next, failing) = (self.book.next(), self.book.failing());
        let (skipped, unreadable) = (self.place.skipped, self.place.unreadable.as_ref());
        let full = self.book.full().filter(|_| self.place.is_behind);
        if let Some(full) = full.as_ref().filter(|_| !self.is_full) {
            tracing::warn!(timers = self.own.name, "{full}");
        }
        self.is_full = full.is_some();
        self.own.status.send_if_modified(|status| {
            let new = Status {
                phase: Phase::Firing,
                pending,
                pending_bytes,
                failing,
                fired: status.fired,
                next,
                skipped,
                error: match failing {
                    0 => full.or_else(|| unreadable.cloned()),
                    _ => status.error.clone(),
                },
            };
            let differs = *status != new;
            *status = new;
            differs
        });
    }

    // ---- states ----

    /// Stores what has fired.
    async fn store_fired(&mut self) -> Result<bool> {
        // What was replaced meanwhile is not pending in any case.
        let done = self.firing.done.iter().copied();
        let fired: Vec<EventId> = done.filter(|id| self.book.contains(*id)).collect();
        if !fired.is_empty() {
            let ids = fired.iter().map(|id| id.0).collect();
            let through = self.place.through;
            if !self.lease.renew(What::Fired { ids, through }).await? {
                return Ok(false);
            }
        }
        self.firing.done.clear();
        for id in fired {
            self.book.remove(id);
            // Who sets it again, with the same id, is late.
            self.place.fired.insert(id);
        }
        Ok(true)
    }

    /// Stores all timers together, if many events have come since the last time, and cuts both streams. Returns false
    /// if another process has taken over, or requests were lost that this one has read.
    async fn keep_if_due(&mut self) -> Result<bool> {
        let events = self.lease.appended + self.place.events;
        if events <= self.own.config.kept_every.max(self.book.len() as u64) {
            return Ok(true);
        }
        let through = self.place.through;
        let parts = parts(self.book.all());
        let of = parts.len();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut first = None;
        for (part, timers) in parts.into_iter().enumerate() {
            let kept = What::Kept {
                part: count(part),
                of: count(of),
                through,
                timers: timers.into_iter().map(Kept::of).collect(),
            };
            if !self.lease.renew(kept).await? {
                return Ok(false);
            }
            first.get_or_insert(self.lease.last().revision);
        }
        self.lease.appended = of as u64;
        self.place.events = 0;
        // From here on this process knows what another one would that starts from what was stored.
        self.place.fired.clear();
        self.book.forget_causes();
        match self.cut(first, through).await {
            Ok(is_there) => return Ok(is_there),
            Err(error) => {
                let timers = &self.own.name;
                tracing::warn!(timers, %error, "what is not needed any more stays readable until the next time");
            }
        }
        Ok(true)
    }

    /// Cuts both streams, after all timers were stored together from the state `first` on. Returns false, and cuts
    /// nothing, if the last request that was read is lost, or the store has another history.
    async fn cut(&self, first: Option<Revision>, through: Option<Through>) -> Result<bool> {
        let (states, requests) = (&self.own.states, &self.own.requests);
        let fate = match through {
            // What was stored is newer than the request. So once the request was found, a loss takes the state as well
            // by which it is cut; and what is sent after a loss is refused, though there is a state of the same number.
            Some(through) => Some(requests.fate(through).await?),
            None => None,
        };
        if fate == Some(Fate::Lost) {
            return Ok(false);
        }
        let cuts = [
            first.map(|first| (&states.stream, first)),
            // The last one stays, so that it can be found again.
            through
                .filter(|_| fate == Some(Fate::There))
                .map(|through| (&requests.stream, Revision(through.revision))),
        ];
        let cuts: Vec<_> = cuts.into_iter().flatten().collect();
        states.cut(&cuts, self.lease.last()).await
    }

    /// Waits for the handlers that run, stores what has fired, and gives the timers free.
    async fn stop(mut self) -> Result<Ended> {
        let until = Instant::now() + self.own.within();
        while let Some(ended) = self.firing.next_until(until).await {
            self.ended(ended);
        }
        self.firing.end().await;
        if self.store_fired().await? {
            self.lease.end(What::Owned).await?;
        }
        Ok(Ended::Stopping)
    }
}
