//! The forwarder's end of the lanes of one log: which call is written when and to whom, and which calls come back.
//!
//! The module is pure: it does no I/O and has no clock. Inputs come in by [`Sender::on`], each with the time;
//! [`Sender::work`] does what can be done now; what is to be done outside comes out as [`Output`]s, in order. What is
//! to be written is pulled: the shell asks for the next call ([`Sender::next_write`]), so that it writes as much as its
//! stream takes.
//!
//! There is at most one lane. All unanswered calls are kept in the order of their invocation: first those in flight on
//! the lane, then those that wait. When the owner answers *not here* from some call on, that call and all later ones
//! wait again. The lane stays until the calls before it are answered or the lane is lost, and only then the next lane
//! is opened. So each lane begins with the first call that is unanswered, and nothing overtakes. When the database
//! names another owner while the old one can be reached, nothing more is written to the old one, and the lane stays for
//! a moment too: what the old owner has answered is certain, and what is sent again is in doubt.
//!
//! After an error one call is in flight until the first success, so that calls that the owner refuses are not sent by
//! the hundred repeatedly.

mod lane;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use gesta_core::{BackOff, Moment};

use self::lane::{Entry, Lane};
use crate::error::ReturnReason;
use crate::route::{Address, Epoch, Hint, Route, RouteOwner};

/// The pauses after hints that are not newer than the route.
const BACK_OFF: BackOff = BackOff::new(Duration::from_millis(5), Duration::from_millis(200));
/// The time left to a deadline below which a call is not written, because deadlines are sent in milliseconds.
const REMAINING_MIN: Duration = Duration::from_millis(1);
/// The time without an answer after which a lane is given up on which a call was given up. Whatever the owner has lost,
/// a new lane begins afresh.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// The time for which a lane is kept for answers that are still on their way. An owner that was replaced answers what
/// it has taken before it hands the log over.
const LEAVE_WITHIN: Duration = Duration::from_millis(250);
/// The shortest time between two searches for expired calls.
const EXPIRY_EVERY: Duration = Duration::from_millis(2);

/// The state of the link to the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// There is no link now; one may come soon.
    Down,
    /// There is a link, and its owner allows this credit on each lane.
    Up(Credit),
    /// The owner has not been heard for a moment. Nothing more is written, and calls that do not wait for a silent
    /// owner come back.
    Silent,
    /// The owner is unreachable. Calls that would need the link come back.
    Unreachable,
}

/// How long a call waits for an owner that is not heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Patience {
    /// The call waits until the owner counts as unreachable. This is for what only the owner can do.
    #[default]
    UntilUnreachable,
    /// The call waits until the owner is silent, which may be a false alarm. This is for what may be done twice, here
    /// and there, and takes effect once.
    UntilSilent,
}

/// What an owner takes on one lane before it answers. Each answer gives back what its call took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credit {
    /// The number of calls.
    pub calls: u32,
    /// The number of bytes of bodies. A larger body may be there alone.
    pub bytes: u32,
}

/// An input of the sender. `T` is the ticket of a call, `R` the reply of an owner.
#[derive(Debug)]
pub enum Input<T, R> {
    /// A call is made.
    Call {
        /// The ticket of the call, which is handed back with its outcome.
        ticket: T,
        /// The size of its body.
        bytes: usize,
        /// The moment at which it comes back at the latest.
        deadline: Moment,
        /// How long it waits for an owner that is not heard.
        patience: Patience,
    },
    /// This is the owner as the database knows it. An epoch that is older than one known this way is ignored. An epoch
    /// older than that of a hint is not ignored, because the hint may have promised too much. Another incarnation is
    /// believed, because incarnations have no order and only the database knows the present one.
    Route(Route),
    /// The link to this node is in this state. Only that of the node of the route matters ([`Sender::node`]).
    Link(Address, LinkState),
    /// The lane has ended although the owner has not said so, or has broken its rules.
    LaneLost(u64),
    /// The owner has done a call.
    Replied {
        /// The number of the lane.
        lane: u64,
        /// The number of the call on the lane.
        seq: u64,
        /// What the owner has replied.
        reply: R,
    },
    /// The owner has dropped a call because its deadline was over.
    Dropped {
        /// The number of the lane.
        lane: u64,
        /// The number of the call on the lane.
        seq: u64,
    },
    /// The owner refuses the call `from` and all later ones of the lane. The owner has not taken those from `untaken`
    /// on; those between may have been done.
    NotHere {
        /// The number of the lane.
        lane: u64,
        /// The number of the first call that is refused.
        from: u64,
        /// The number of the first call that was not handed over.
        untaken: u64,
        /// What the owner says about who owns the log.
        hint: Hint,
    },
    /// The forwarder closes: all calls come back, waiting and in flight.
    Close,
}

/// What is to be done outside.
#[derive(Debug)]
pub enum Output<T, R> {
    /// A lane with this number must be opened to the node of the route.
    OpenLane {
        /// The number of the lane.
        lane: u64,
        /// The route to which the lane leads.
        route: Route,
    },
    /// Nothing more comes or goes on the lane.
    CloseLane {
        /// The number of the lane.
        lane: u64,
    },
    /// The owner has broken the rules of the lane, which is given up.
    Broken {
        /// The number of the lane.
        lane: u64,
        /// Which rule that was.
        rule: &'static str,
    },
    /// The call is done.
    Reply {
        /// The ticket of the call.
        ticket: T,
        /// What the owner has replied.
        reply: R,
        /// Whether an earlier attempt of the call may have been done as well.
        is_in_doubt: bool,
    },
    /// The call comes back.
    Return {
        /// The ticket of the call.
        ticket: T,
        /// The reason why the call comes back.
        reason: ReturnReason,
        /// Whether an owner may have done the call, or may do it later.
        was_written: bool,
    },
    /// The hint is newer than the route was.
    Hint(Hint),
}

/// A call to write now.
#[derive(Debug)]
pub struct Write<'a, T> {
    /// The number of the call on the lane.
    pub seq: u64,
    /// The ticket of the call.
    pub ticket: &'a T,
    /// Whether an earlier attempt may have been done.
    pub is_in_doubt: bool,
    /// The time that is left to the deadline of the call.
    pub remaining: Duration,
}

/// The owner has broken the rules of a lane, so the lane must be given up.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation(pub(crate) &'static str);

/// The pure core of the calls of one log. `T` is the ticket of a call, handed back with its outcome; `R` is what an
/// owner replies.
///
/// It has more fields than most structs, for a call waits for the route, the link and the lane at once, and each of
/// them changes by itself.
#[derive(Debug)]
pub struct Sender<T, R> {
    own: Address,
    return_after: Duration,
    route: Route,
    /// The newest epoch that came by `set_route`. A hint may promise an ownership that never comes about. Then the
    /// route is newer than this, and the next `set_route` corrects it.
    known: Epoch,
    /// The moment since which nobody owns the log.
    without_owner_since: Option<Moment>,
    link: LinkState,
    lane: Option<Lane<T>>,
    lanes_opened: u64,
    waiting: VecDeque<Entry<T>>,
    /// Whether there may be calls that wait only until the owner is silent.
    has_impatient: bool,
    /// Whether one call is in flight until the first success.
    is_cautious: bool,
    back_off: BackOff,
    /// The moment before which no lane is opened.
    not_before: Option<Moment>,
    /// A moment before which no deadline of a call lies.
    earliest_deadline: Option<Moment>,
    expired_at: Option<Moment>,
    outputs: Vec<Output<T, R>>,
}

impl<T, R> Sender<T, R> {
    /// Makes a log without calls. `own` is this node's address: a hint that names it is not followed.
    pub fn new(own: Address, return_after: Duration, route: Route, now: Moment) -> Self {
        let without_owner = route.owner == RouteOwner::Nobody;
        Self {
            own,
            return_after,
            known: route.epoch,
            route,
            without_owner_since: without_owner.then_some(now),
            link: LinkState::Down,
            lane: None,
            lanes_opened: 0,
            waiting: VecDeque::new(),
            has_impatient: false,
            is_cautious: false,
            back_off: BACK_OFF,
            not_before: None,
            earliest_deadline: None,
            expired_at: None,
            outputs: Vec::new(),
        }
    }

    /// Returns the node whose link matters now. The shell tells the state of that link ([`Input::Link`]).
    pub fn node(&self) -> Option<&Address> {
        match &self.route.owner {
            RouteOwner::Node(address) => Some(address),
            RouteOwner::Nobody | RouteOwner::Local => None,
        }
    }

    /// Takes an input. The next [`work`](Self::work) does what can be done about it.
    pub fn on(&mut self, input: Input<T, R>, now: Moment) {
        match input {
            Input::Call {
                ticket,
                bytes,
                deadline,
                patience,
            } => self.call(ticket, bytes, deadline, patience),
            Input::Route(route) => self.set_route(now, route),
            Input::Link(node, link) => self.link(&node, link),
            Input::LaneLost(lane) => self.lane_lost(now, lane),
            Input::Replied { lane, seq, reply } => {
                let replied = self.replied(lane, seq, reply);
                self.keep_rules(replied, lane, now);
            }
            Input::Dropped { lane, seq } => {
                let dropped = self.dropped(lane, seq);
                self.keep_rules(dropped, lane, now);
            }
            Input::NotHere {
                lane,
                from,
                untaken,
                hint,
            } => {
                let refused = self.not_here(now, lane, from, untaken, hint);
                self.keep_rules(refused, lane, now);
            }
            Input::Close => self.close(),
        }
    }

    /// Takes the outputs, in order. What they say is to be done.
    pub fn take_outputs(&mut self) -> Vec<Output<T, R>> {
        std::mem::take(&mut self.outputs)
    }

    /// Gives a lane up whose owner has broken its rules.
    fn keep_rules(&mut self, kept: Result<(), Violation>, lane: u64, now: Moment) {
        if let Err(Violation(rule)) = kept {
            self.outputs.push(Output::Broken { lane, rule });
            self.lane_lost(now, lane);
        }
    }

    fn call(&mut self, ticket: T, bytes: usize, deadline: Moment, patience: Patience) {
        self.has_impatient |= patience == Patience::UntilSilent;
        let earliest = self.earliest_deadline.map_or(deadline, |e| e.min(deadline));
        self.earliest_deadline = Some(earliest);
        self.waiting.push_back(Entry {
            ticket,
            bytes,
            deadline,
            patience,
            is_in_doubt: false,
        });
    }

    fn set_route(&mut self, now: Moment, route: Route) {
        if self.known.is_newer_than(&route.epoch) {
            return;
        }
        self.known = route.epoch;
        if route.owner == self.route.owner {
            self.route.epoch = route.epoch;
            return;
        }
        self.leave_lane(now);
        self.change_route(now, route);
    }

    /// Writes nothing more to the previous owner. Its answers are awaited for a moment if it can be reached.
    fn leave_lane(&mut self, now: Moment) {
        let is_heard = matches!(self.link, LinkState::Up(_));
        match &mut self.lane {
            Some(lane) if is_heard || lane.is_leaving() => lane.leave(now + LEAVE_WITHIN),
            _ => self.lose_lane(),
        }
        self.end_drained_lane();
    }

    fn change_route(&mut self, now: Moment, route: Route) {
        self.without_owner_since = (route.owner == RouteOwner::Nobody).then_some(now);
        self.route = route;
        self.link = LinkState::Down;
        self.not_before = None;
        // The next owner may know a moment later than this node that it is the owner. It is asked again soon, however
        // often the one before has refused.
        self.back_off.reset();
    }

    fn link(&mut self, node: &Address, link: LinkState) {
        if self.node() != Some(node) {
            return;
        }
        self.link = link;
        if link == LinkState::Unreachable
            && self.lane.as_ref().is_some_and(|lane| lane.node == *node)
        {
            self.lose_lane();
        }
    }

    fn lane_lost(&mut self, now: Moment, lane: u64) {
        if let Some(open) = self.lane.as_ref().filter(|open| open.number == lane) {
            // The next lane leads to another owner, which has not lost any.
            let is_leaving = open.is_leaving();
            self.lose_lane();
            if !is_leaving {
                self.pause(now);
            }
        }
    }

    /// Gives the lane up. Calls in flight are in doubt and wait again.
    fn lose_lane(&mut self) {
        let Some(mut lane) = self.lane.take() else {
            return;
        };
        self.is_cautious |= lane.has_open_calls();
        lane.take_back(lane.first, |_| true, &mut self.waiting);
        self.outputs.push(Output::CloseLane { lane: lane.number });
    }

    fn pause(&mut self, now: Moment) {
        self.not_before = Some(now + self.back_off.pause());
    }

    /// Returns the next call to write to the lane, if there is one and the owner takes it. The call counts as written.
    pub fn next_write(&mut self, now: Moment) -> Option<Write<'_, T>> {
        let LinkState::Up(credit) = self.link else {
            return None;
        };
        let lane = self.lane.as_mut().filter(|lane| lane.is_open())?;
        loop {
            let next = self.waiting.front()?;
            let remaining = next.deadline.since(now);
            let is_over = remaining < REMAINING_MIN;
            if !is_over && (self.is_cautious && lane.calls > 0 || !lane.takes(next.bytes, credit)) {
                return None;
            }
            let next = self.waiting.pop_front()?;
            if !is_over {
                let (seq, entry) = lane.write(next);
                return Some(Write {
                    seq,
                    ticket: &entry.ticket,
                    is_in_doubt: entry.is_in_doubt,
                    remaining,
                });
            }
            self.outputs.push(next.over());
        }
    }

    /// Returns whether a hint is newer than the route.
    pub(crate) fn is_news(&self, hint: &Hint) -> bool {
        hint.epoch.is_newer_than(&self.route.epoch)
    }

    /// Returns whether only the owner keeps the next call from being written, because it takes no more before it has
    /// answered some.
    pub(crate) fn waits_for_credit(&self) -> bool {
        match (self.link, &self.lane, self.waiting.front()) {
            (LinkState::Up(credit), Some(lane), Some(next)) => {
                lane.is_open() && !lane.takes(next.bytes, credit)
            }
            _ => false,
        }
    }

    fn replied(&mut self, lane: u64, seq: u64, reply: R) -> Result<(), Violation> {
        let Some(open) = self.lane.as_mut().filter(|open| open.number == lane) else {
            return Ok(());
        };
        let entry = open.answered(seq)?;
        if open.is_open() {
            self.is_cautious = false;
            self.back_off.reset();
        }
        // A call that was given up meanwhile has come back.
        self.outputs.extend(entry.map(|entry| Output::Reply {
            ticket: entry.ticket,
            reply,
            is_in_doubt: entry.is_in_doubt,
        }));
        self.end_drained_lane();
        Ok(())
    }

    fn dropped(&mut self, lane: u64, seq: u64) -> Result<(), Violation> {
        let Some(open) = self.lane.as_mut().filter(|open| open.number == lane) else {
            return Ok(());
        };
        let entry = open.answered(seq)?;
        self.outputs.extend(entry.map(Entry::over));
        self.end_drained_lane();
        Ok(())
    }

    fn not_here(
        &mut self,
        now: Moment,
        lane: u64,
        from: u64,
        untaken: u64,
        hint: Hint,
    ) -> Result<(), Violation> {
        let Some(open) = self.lane.as_mut().filter(|open| open.number == lane) else {
            return Ok(());
        };
        let is_leaving = open.is_leaving();
        let refuses_calls = from < open.next();
        open.refuse(from)?;
        open.take_back(from, |seq| seq > from && seq < untaken, &mut self.waiting);
        self.is_cautious |= refuses_calls && !is_leaving;
        // An owner that was replaced refuses what it should refuse; the next one has refused nothing.
        if !self.follow(now, hint) && !is_leaving {
            self.pause(now);
        }
        self.end_drained_lane();
        Ok(())
    }

    /// Follows a hint that is newer than the route. Returns whether the owner of the route has changed.
    fn follow(&mut self, now: Moment, hint: Hint) -> bool {
        if !self.is_news(&hint) {
            return false;
        }
        self.outputs.push(Output::Hint(hint.clone()));
        if hint.owner.as_ref() == Some(&self.own) {
            // This node learns of its own logs from the database alone.
            return false;
        }
        let owner = hint.owner.map_or(RouteOwner::Nobody, RouteOwner::Node);
        let epoch = hint.epoch;
        if owner == self.route.owner {
            // The node has become the owner once more; it has still refused the call.
            self.route.epoch = epoch;
            return false;
        }
        self.change_route(now, Route { owner, epoch });
        true
    }

    /// Ends a lane that the owner refuses once the calls before are answered.
    fn end_drained_lane(&mut self) {
        if let Some(lane) = self.lane.take_if(|lane| lane.is_drained()) {
            self.outputs.push(Output::CloseLane { lane: lane.number });
        }
    }

    /// Does what can be done now.
    pub fn work(&mut self, now: Moment) {
        self.expire(now);
        if self.stuck_at().is_some_and(|at| at <= now) {
            self.lose_lane();
            self.is_cautious = true;
            self.pause(now);
        }
        if self.leaves_at().is_some_and(|at| at <= now) {
            self.lose_lane();
        }
        match (&self.route.owner, self.link) {
            (RouteOwner::Local, _) => self.return_waiting(ReturnReason::Local),
            (RouteOwner::Nobody, _)
                if self.returns_without_owner_at().is_some_and(|at| at <= now) =>
            {
                self.return_waiting(ReturnReason::NoOwner);
            }
            (RouteOwner::Node(_), LinkState::Unreachable) => {
                self.return_waiting(ReturnReason::Unreachable)
            }
            (RouteOwner::Node(_), LinkState::Silent) => self.return_impatient(now),
            (RouteOwner::Node(node), LinkState::Up(_))
                if self.lane.is_none()
                    && !self.waiting.is_empty()
                    && self.not_before.is_none_or(|at| at <= now) =>
            {
                self.lanes_opened += 1;
                self.lane = Some(Lane::new(self.lanes_opened, node.clone()));
                self.not_before = None;
                self.outputs.push(Output::OpenLane {
                    lane: self.lanes_opened,
                    route: self.route.clone(),
                });
            }
            _ => {}
        }
    }

    fn returns_without_owner_at(&self) -> Option<Moment> {
        Some(self.without_owner_since? + self.return_after)
    }

    /// Returns everything that waits, unless earlier calls are still in flight, because calls come back in their order.
    fn return_waiting(&mut self, reason: ReturnReason) {
        if self.lane.is_some() {
            return;
        }
        let returned = self.waiting.drain(..);
        self.outputs
            .extend(returned.map(|entry| entry.returned(reason)));
        self.earliest_deadline = None;
    }

    /// Returns the calls that do not wait for a silent owner, those in flight too. The other calls stay, because their
    /// answers may still come.
    fn return_impatient(&mut self, now: Moment) {
        if std::mem::take(&mut self.has_impatient) {
            let is_patient = |entry: &Entry<T>| entry.patience != Patience::UntilSilent;
            self.give_up(now, ReturnReason::Silent, is_patient);
        }
    }

    /// Returns the calls that `keep` does not keep, in flight and waiting.
    fn give_up(
        &mut self,
        now: Moment,
        reason: ReturnReason,
        mut keep: impl FnMut(&Entry<T>) -> bool,
    ) {
        if let Some(lane) = &mut self.lane {
            lane.give_up(now, reason, &mut keep, &mut self.outputs);
        }
        if !self.waiting.iter().all(&mut keep) {
            for entry in std::mem::take(&mut self.waiting) {
                match keep(&entry) {
                    true => self.waiting.push_back(entry),
                    false => self.outputs.push(entry.returned(reason)),
                }
            }
        }
        self.end_drained_lane();
    }

    /// Returns whether a call waits or is unanswered.
    pub(crate) fn has_calls(&self) -> bool {
        let in_flight = self.lane.as_ref().is_some_and(|lane| lane.calls > 0);
        in_flight || !self.waiting.is_empty()
    }

    fn close(&mut self) {
        self.lose_lane();
        self.return_waiting(ReturnReason::Closed);
    }

    /// Gives up calls whose deadlines are over. Most calls are answered long before, so the deadlines have no order of
    /// their own. All calls are checked when the earliest deadline that is known is over.
    fn expire(&mut self, now: Moment) {
        if self.expires_at().is_none_or(|at| at > now) {
            return;
        }
        self.expired_at = Some(now);
        let mut earliest = None;
        self.give_up(now, ReturnReason::DeadlineOver, |entry| {
            let is_kept = entry.deadline > now;
            if is_kept {
                let earlier = |e: Moment| e.min(entry.deadline);
                earliest = Some(earliest.map_or(entry.deadline, earlier));
            }
            is_kept
        });
        self.earliest_deadline = earliest;
    }

    fn stuck_at(&self) -> Option<Moment> {
        Some(self.lane.as_ref()?.silent_since? + STUCK_AFTER)
    }

    /// Returns whether answers of an owner that was replaced are awaited. Then the new route is not in force yet.
    pub(crate) fn is_leaving(&self) -> bool {
        self.lane.as_ref().is_some_and(Lane::is_leaving)
    }

    fn leaves_at(&self) -> Option<Moment> {
        self.lane.as_ref()?.leave_by
    }

    fn expires_at(&self) -> Option<Moment> {
        let earliest = self.earliest_deadline?;
        Some(
            self.expired_at
                .map_or(earliest, |at| earliest.max(at + EXPIRY_EVERY)),
        )
    }

    /// Returns the moment at which [`work`](Self::work) has something to do even if nothing happens before.
    pub fn wake_at(&self) -> Option<Moment> {
        let is_idle = self.waiting.is_empty();
        let opens = self
            .not_before
            .filter(|_| !is_idle && self.lane.is_none() && matches!(self.link, LinkState::Up(_)));
        let returns = self
            .returns_without_owner_at()
            .filter(|_| !is_idle && self.lane.is_none());
        let lane_ends = [self.stuck_at(), self.leaves_at()].into_iter().flatten();
        [opens, returns, self.expires_at(), lane_ends.min()]
            .into_iter()
            .flatten()
            .min()
    }
}
