//! Fair shares: what all callers use together, and how much of it one caller may hold.
//!
//! Why: a bound on the sum alone lets one caller take everything, and a fixed bound on each caller either is too small
//! for a caller who is alone, or lets a few callers together take everything. So the share moves: **whoever holds most
//! may hold as much as is left free**, so that there is room for those who come (Choudhury and Hahne, *Dynamic queue
//! length thresholds for shared-memory packet switches*, 1998), and **whoever would hold less than the largest holder
//! is not refused**: if nothing is left, the largest holder gives up what they took last (max-min fairness, Bertsekas
//! and Gallager, *Data Networks*, 1992, section 6.5.2). So callers who keep what they take, however many they are, take
//! nothing from one who wants no more than each of them has.
//! What is given up is not free at once: its holder is [told](Share::gave_way), and gives it back soon. Meanwhile it
//! counts for its holder, who gets nothing anew instead. It counts as room for others, so that nobody else gives way
//! for the same need; and at most a quarter of the maximum is above the maximum in this way, then who would come is
//! refused until some was given back: colluders who give nothing back make the sum a quarter larger, and no more.
//! Callers of whom only an address is known may have many addresses. What a caller holds who has
//! [proved](Share::prove) who they are gives way to them only as long as they hold less than an eighth together.
//! Where a caller waits instead of being refused, those who wait take turns by caller, so that a caller who asks a
//! thousand times waits behind one request of each other caller, and nobody waits behind the thousand. A caller who
//! holds nothing, and for whom too little is left, is waited for: nobody gets anything before them, so that large
//! requests do not starve beside small ones. They say how long. If that was in vain, because what is held is not given
//! back, others pass, and nobody is waited for again until all that was held then was given back: work that hangs keeps
//! nobody from what is left.
//! Invariants: the sum of what is held, without what was given up and is not given back yet, is never above the
//! maximum, and with it never above five quarters of it; who is refused takes nothing, and nobody gives way for them;
//! nobody gives way while there is room without that.
//! Not here: who a caller is, and what is held.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{self, Either};

use crate::newcomers::whom;
use crate::turns::{Look, Turns};

/// A caller, as shares count it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Holder {
    /// A user, with all tokens of the user, from whatever address.
    User(Arc<str>),
    /// An address, of callers of whom nothing else is known.
    Address(IpAddr),
    /// All callers of a store where nobody has to prove who they are, and what is done for nobody in particular. Only
    /// the bound on the sum holds for them.
    Everybody,
    /// A part of the server that works for many callers at once, by its name. It takes turns as a caller does.
    Part(&'static str),
    /// What the server has to read so that it goes on, such as its accounts and the ends of its logs. One place more
    /// than there is for callers is [kept](Shares::of_few) for it, so it never waits behind them. Nothing that callers
    /// can ask for as often as they like may be done as the server: it would wait behind that.
    Server,
}

impl Holder {
    /// Returns the holder for callers from this address: see [`whom`].
    #[must_use]
    pub fn at(address: IpAddr) -> Self {
        Self::Address(whom(address))
    }
}

thread_local! {
    /// For whom this thread works at this moment.
    static CURRENT: RefCell<Holder> = const { RefCell::new(Holder::Everybody) };
}

/// Returns for whom this thread works at this moment. So what lies deep below a call, as the connections of a database,
/// can be shared by caller without each request naming its caller on the way.
#[must_use]
pub fn current() -> Holder {
    CURRENT.with_borrow(Clone::clone)
}

/// Does something for a caller.
pub fn acting<T>(holder: &Holder, work: impl FnOnce() -> T) -> T {
    /// Restores whom the thread worked for before, also if the work panics.
    struct Before(Option<Holder>);
    impl Drop for Before {
        fn drop(&mut self) {
            if let Some(before) = self.0.take() {
                CURRENT.set(before);
            }
        }
    }
    // Each poll of each call comes here.
    if CURRENT.with_borrow(|current| current == holder) {
        return work();
    }
    let _before = Before(Some(CURRENT.replace(holder.clone())));
    work()
}

/// Waits for work for a caller. What it spawns works for nobody, unless it is told to.
///
/// # Cancel safety
/// That of the work.
pub async fn act<T>(holder: &Holder, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| acting(holder, || work.as_mut().poll(context))).await
}

/// Does the same as [`act`], for a task that is spawned.
///
/// # Cancel safety
/// That of the work.
pub async fn act_as<T>(holder: Holder, work: impl Future<Output = T>) -> T {
    act(&holder, work).await
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user {name:?}"),
            Self::Address(address) => write!(f, "address {address}"),
            Self::Everybody => f.write_str("everybody"),
            Self::Part(name) => f.write_str(name),
            Self::Server => f.write_str("the server"),
        }
    }
}

/// Something that all callers use together.
#[derive(Debug)]
pub struct Shares {
    max: usize,
    leaves: Leaves,
    /// Number of the last share, or of the last request for a turn.
    last: AtomicU64,
    state: Mutex<State>,
}

/// What one caller must leave to others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leaves {
    /// As much as the caller holds.
    AsMuch,
    /// One place.
    One,
}

/// What one caller holds of it. Dropping the share gives it back.
#[derive(Debug)]
pub struct Share {
    of: Arc<Shares>,
    holder: Holder,
    held: usize,
    /// The share does not grow while all shares together would hold more than this.
    max: usize,
    /// What tells the share from others. Later shares have greater numbers.
    number: u64,
    kind: Kind,
}

/// To whom a share gives way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// To everybody who would hold less.
    Proved,
    /// The same. The share grows less than others do, so that others of this kind alone give way to it.
    Limited,
    /// To everybody who would hold less. Nobody has proved who holds it.
    Unproved,
    /// To nobody: it is held for a moment only.
    Turn,
}

impl Kind {
    /// Returns those that give way to a share of this kind before others do.
    fn first(self) -> &'static [Kind] {
        match self {
            Kind::Proved => &[Kind::Proved, Kind::Limited, Kind::Unproved],
            Kind::Limited => &[Kind::Limited],
            Kind::Unproved => &[Kind::Unproved],
            Kind::Turn => &[],
        }
    }
}

/// The reason why nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooMuch {
    /// All callers together would hold more than the maximum, and no caller holds more than this one would.
    InSum,
    /// The caller holds most, and would hold more than is left free.
    OfOne,
    /// The share has given way to another caller. What it holds is to be given back.
    GaveWay,
}

/// What is held now, and what happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// The maximum of the sum.
    pub max: usize,
    /// What all callers hold together.
    pub taken: usize,
    /// What the caller holds who holds most.
    pub largest: usize,
    /// Number of callers who hold something.
    pub holders: usize,
    /// Number of requests that wait for a turn.
    pub waiting: usize,
    /// How often somebody was refused because all callers together held too much.
    pub refused_in_sum: u64,
    /// How often somebody was refused, or had to wait, because they held too much themselves.
    pub refused_of_one: u64,
    /// How many shares have given way to callers who held less.
    pub gave_way: u64,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    /// What of it was given up, and is not given back yet.
    given_up: usize,
    /// What limited shares gave up beyond what was needed: the next that grow use it before others give way.
    spare: usize,
    held: HashMap<Holder, Held>,
    /// What is held by callers who have not proved who they are.
    unproved: usize,
    /// Those who wait for a turn.
    waiting: Turns<Holder, Waiter>,
    /// True if one who waits holds nothing, and gets the next that there is.
    starves: bool,
    /// What is not given back yet of what was held when somebody was waited for in vain.
    in_vain: Option<InVain>,
    refused_in_sum: u64,
    refused_of_one: u64,
    gave_way: u64,
}

/// What was held when somebody was waited for in vain.
#[derive(Debug)]
struct InVain {
    /// The shares with lesser numbers were held then.
    before: u64,
    left: usize,
}

/// What one caller holds.
#[derive(Debug, Default)]
struct Held {
    /// What the caller holds by turns, and what was given up and is not given back yet.
    other: usize,
    /// What may give way, by kind, and in the order in which it was taken.
    proved: usize,
    limited: usize,
    unproved: usize,
    shares: BTreeMap<u64, Kept>,
}

/// A share that may give way.
#[derive(Debug)]
struct Kept {
    kind: Kind,
    amount: usize,
    /// Those to tell when it has: they are told when these are dropped.
    told: Vec<oneshot::Sender<()>>,
}

impl Held {
    fn amount(&self) -> usize {
        self.other + self.proved + self.limited + self.unproved
    }

    fn of(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Proved => &mut self.proved,
            Kind::Limited => &mut self.limited,
            Kind::Unproved => &mut self.unproved,
            Kind::Turn => &mut self.other,
        }
    }

    /// Returns how much may give way of these kinds.
    fn may_give(&self, kinds: &[Kind]) -> usize {
        let each = kinds.iter().map(|kind| match kind {
            Kind::Proved => self.proved,
            Kind::Limited => self.limited,
            Kind::Unproved => self.unproved,
            Kind::Turn => 0,
        });
        each.sum()
    }
}

/// One who waits for a turn.
#[derive(Debug)]
struct Waiter {
    number: u64,
    amount: usize,
    sender: oneshot::Sender<Share>,
}

/// The wait for a turn. Dropping it gives up the turn, so that others need not wait for it.
struct Line<'a> {
    of: &'a Arc<Shares>,
    holder: &'a Holder,
    number: u64,
    receiver: oneshot::Receiver<Share>,
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        let is_own = |waiter: &Waiter| waiter.number == self.number;
        let own = state.waiting.remove(self.holder, is_own);
        drop(state);
        if own.is_some() {
            self.of.give_turns();
        }
    }
}

/// The wait until a share has given way. It ends too when the share is dropped. A share that holds nothing, or a turn,
/// gives way to nobody.
#[derive(Debug)]
pub struct GaveWay(Option<oneshot::Receiver<()>>);

impl Future for GaveWay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Some(told) => told.poll_unpin(cx).map(|_| ()),
            None => Poll::Pending,
        }
    }
}

impl Shares {
    /// Makes shares of so much in sum; at least 1.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Self::leaving(max, Leaves::AsMuch)
    }

    /// Makes shares of a few places that are held for a moment only, as connections to a database: callers take turns,
    /// and a caller who already has a place leaves one free, so that whoever comes next need not wait for theirs. There
    /// is one place beyond the maximum for [`Holder::Server`], as long as it has no other.
    #[must_use]
    pub fn of_few(max: usize) -> Arc<Self> {
        Self::leaving(max, Leaves::One)
    }

    fn leaving(max: usize, leaves: Leaves) -> Arc<Self> {
        Arc::new(Self {
            max: max.max(1),
            leaves,
            last: AtomicU64::new(0),
            state: Mutex::default(),
        })
    }

    /// Returns how much a caller may hold however little is left free, as long as there is room for it: a thousandth,
    /// and at least 1.
    #[must_use]
    pub fn least(&self) -> usize {
        (self.max / 1_024).max(1)
    }

    /// Returns how much may be held above the maximum, by those who have given it up and not given it back yet.
    fn pending_max(&self) -> usize {
        (self.max / 4).max(1)
    }

    /// Returns the maximum of the sum.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// Takes so much for a caller, or nothing. Others may have to give way for it.
    ///
    /// # Errors
    /// [`TooMuch`], if nothing was taken.
    pub fn take(self: &Arc<Self>, holder: &Holder, amount: usize) -> Result<Share, TooMuch> {
        let mut share = self.empty(holder.clone(), self.max);
        share.grow(amount)?;
        Ok(share)
    }

    /// Makes a share that holds nothing yet. It grows as long as all shares together hold at most `max`.
    #[must_use]
    pub fn empty(self: &Arc<Self>, holder: Holder, max: usize) -> Share {
        let kind = match &holder {
            Holder::Address(_) => Kind::Unproved,
            _ if max < self.max => Kind::Limited,
            _ => Kind::Proved,
        };
        self.share(holder, max.min(self.max), kind)
    }

    fn share(self: &Arc<Self>, holder: Holder, max: usize, kind: Kind) -> Share {
        Share {
            of: Arc::clone(self),
            holder,
            held: 0,
            max,
            number: self.number(),
            kind,
        }
    }

    fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes 1 for a caller, as [`Shares::turn_for`] does.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the turn.
    pub async fn turn(self: &Arc<Self>, holder: &Holder) -> Share {
        // Who finds no room for 1 holds up nobody: there is none for others either.
        self.turn_for(holder, 1, future::pending()).await
    }

    /// Takes so much for a caller, and waits for it if there is too little left for this caller. Callers take turns,
    /// and what one of them asks for comes in the order in which they asked. Of more than half of all, half is taken.
    /// A caller who holds nothing is waited for by all others until `stops` ends.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the turn.
    pub async fn turn_for(
        self: &Arc<Self>,
        holder: &Holder,
        amount: usize,
        stops: impl Future<Output = ()>,
    ) -> Share {
        let amount = amount.clamp(1, (self.max / 2).max(1));
        let mut stops = pin!(stops.fuse());
        loop {
            match self.turn_or_line(holder, amount) {
                Ok(share) => return share,
                // The sender is dropped only after it has sent, or when nobody waits any more.
                Err(mut line) => {
                    let got = match future::select(&mut line.receiver, stops.as_mut()).await {
                        Either::Left((got, _)) => got,
                        Either::Right(((), waiting)) => {
                            self.waited_in_vain(holder);
                            waiting.await
                        }
                    };
                    if let Ok(share) = got {
                        return share;
                    }
                }
            }
        }
    }

    /// Notes that a caller has stopped others long enough.
    fn waited_in_vain(self: &Arc<Self>, holder: &Holder) {
        let mut state = self.lock();
        // Who holds something stops nobody.
        if !state.starves || state.held.contains_key(holder) {
            return;
        }
        state.in_vain = Some(InVain {
            before: self.number(),
            left: state.taken,
        });
        drop(state);
        self.give_turns();
    }

    /// Takes so much for a caller, or lets the caller wait for it.
    fn turn_or_line<'a>(
        self: &'a Arc<Self>,
        holder: &'a Holder,
        amount: usize,
    ) -> Result<Share, Line<'a>> {
        let mut state = self.lock();
        let may = state.may_add(self, holder, amount, self.max);
        // Whoever waits of the same caller came earlier.
        let is_first = !state.starves || is_kept_for(self, &state.held, holder);
        if may.is_ok() && is_first && !state.waiting.has(holder) {
            state.add_turn(holder, amount);
            // With the lock: the number tells whether it was held when somebody was waited for in vain.
            return Ok(self.given(holder.clone(), amount));
        }
        state.refused_of_one += u64::from(may == Err(TooMuch::OfOne));
        state.starves |= state.in_vain.is_none() && !state.held.contains_key(holder);
        let (number, (sender, receiver)) = (self.number(), oneshot::channel());
        state.waiting.push(
            holder.clone(),
            Waiter {
                number,
                amount,
                sender,
            },
        );
        Err(Line {
            of: self,
            holder,
            number,
            receiver,
        })
    }

    /// Returns what is held now, and what happened so far.
    #[must_use]
    pub fn load(&self) -> Load {
        let state = self.lock();
        Load {
            max: self.max,
            taken: state.taken,
            largest: state.held.values().map(Held::amount).max().unwrap_or(0),
            holders: state.held.len(),
            waiting: state.waiting.len(),
            refused_in_sum: state.refused_in_sum,
            refused_of_one: state.refused_of_one,
            gave_way: state.gave_way,
        }
    }

    /// Returns what all callers hold together.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    /// Makes the share of so much that was counted already.
    fn given(self: &Arc<Self>, holder: Holder, amount: usize) -> Share {
        let mut share = self.share(holder, self.max, Kind::Turn);
        share.held = amount;
        share
    }

    /// Gives turns to those who wait, as long as there is something left for them.
    fn give_turns(self: &Arc<Self>) {
        let mut given = Vec::new();
        let mut state = self.lock();
        state.starves = false;
        if state.waiting.has(&Holder::Server) {
            let State { held, waiting, .. } = &mut *state;
            // Its place is free whoever else waits.
            let next = waiting.next(|holder, _| match is_kept_for(self, held, holder) {
                true => Look::Take,
                false => Look::Pass,
            });
            if let Some((holder, waiter)) = next {
                state.add_turn(&holder, waiter.amount);
                given.push((waiter.sender, self.given(holder, waiter.amount)));
            }
        }
        loop {
            let State {
                taken,
                held,
                waiting,
                starves,
                in_vain,
                ..
            } = &mut *state;
            let next = waiting.next(|holder, waiter| {
                if may_add(self, *taken, held, holder, waiter.amount, self.max).is_ok() {
                    Look::Take
                } else if held.contains_key(holder) || in_vain.is_some() {
                    // What is missing is what the caller gives back, or what nobody seems to give back.
                    Look::Pass
                } else {
                    *starves = true;
                    Look::Stop
                }
            });
            let Some((holder, waiter)) = next else {
                break;
            };
            state.add_turn(&holder, waiter.amount);
            given.push((waiter.sender, self.given(holder, waiter.amount)));
        }
        drop(state);
        // Without the lock: who was given up meanwhile gives it back at once.
        for (sender, share) in given {
            let _ = sender.send(share);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells whether the place that is kept for the server is free, and is for this holder.
fn is_kept_for(of: &Shares, held: &HashMap<Holder, Held>, holder: &Holder) -> bool {
    *holder == Holder::Server && of.leaves == Leaves::One && !held.contains_key(holder)
}

/// Tells whether there is room for so much more of a caller, without that anybody gives way.
fn may_add(
    of: &Shares,
    taken: usize,
    held: &HashMap<Holder, Held>,
    holder: &Holder,
    amount: usize,
    max: usize,
) -> Result<(), TooMuch> {
    if is_kept_for(of, held, holder) {
        return Ok(());
    }
    let taken = taken.saturating_add(amount);
    let left = max.checked_sub(taken).ok_or(TooMuch::InSum)?;
    let own = held
        .get(holder)
        .map_or(amount, |held| held.amount() + amount);
    let leaves_enough = match (holder, of.leaves) {
        (Holder::Everybody | Holder::Server, _) => true,
        (_, Leaves::AsMuch) => own <= left,
        (_, Leaves::One) => left >= 1,
    };
    let is_little = || {
        let largest = || held.values().map(Held::amount).max().unwrap_or(0);
        // The room that larger holders have to leave free is for those who come.
        own <= of.least() || (own == amount && amount < largest())
    };
    match leaves_enough || is_little() {
        true => Ok(()),
        false => Err(TooMuch::OfOne),
    }
}

impl State {
    fn may_add(
        &self,
        of: &Shares,
        holder: &Holder,
        amount: usize,
        max: usize,
    ) -> Result<(), TooMuch> {
        may_add(of, self.taken, &self.held, holder, amount, max)
    }

    fn of(&mut self, holder: &Holder) -> &mut Held {
        self.held.entry(holder.clone()).or_default()
    }

    fn add_turn(&mut self, holder: &Holder, amount: usize) {
        self.taken += amount;
        self.of(holder).other += amount;
    }

    fn add(&mut self, share: &Share, amount: usize) {
        self.taken += amount;
        if share.kind == Kind::Unproved {
            self.unproved += amount;
        }
        let held = self.of(&share.holder);
        *held.of(share.kind) += amount;
        let kept = held.shares.entry(share.number).or_insert_with(|| Kept {
            kind: share.kind,
            amount: 0,
            told: Vec::new(),
        });
        kept.amount += amount;
    }

    fn remove(&mut self, share: &Share, amount: usize) {
        self.taken -= amount;
        if let Some(in_vain) = &mut self.in_vain
            && share.number < in_vain.before
        {
            in_vain.left = in_vain.left.saturating_sub(amount);
            if in_vain.left == 0 {
                self.in_vain = None;
            }
        }
        let Some(held) = self.held.get_mut(&share.holder) else {
            return;
        };
        match held.shares.get_mut(&share.number) {
            None => {
                held.other -= amount;
                if share.kind != Kind::Turn {
                    self.given_up -= amount;
                }
            }
            Some(kept) => {
                kept.amount -= amount;
                let (kind, is_empty) = (kept.kind, kept.amount == 0);
                *held.of(kind) -= amount;
                if is_empty {
                    held.shares.remove(&share.number);
                }
                if kind == Kind::Unproved {
                    self.unproved -= amount;
                }
            }
        }
        if held.amount() == 0 {
            self.held.remove(&share.holder);
        }
    }

    /// Returns true if the share has given way, and what it holds was not given back yet.
    fn has_given_way(&self, share: &Share) -> bool {
        let held = self.held.get(&share.holder);
        share.kind != Kind::Turn
            && share.held > 0
            && held.is_none_or(|held| !held.shares.contains_key(&share.number))
    }

    /// Finds room for a share that grows by so much, and for which there was none, for its holder would still hold less
    /// than another one holds. Returns what that one gives up, which is to be dropped without the lock.
    fn make_way(&mut self, of: &Shares, share: &Share, amount: usize) -> Option<Vec<Kept>> {
        let strangers_have_little = self.unproved.saturating_add(amount) <= (of.max / 8).max(1);
        self.give_up(share, amount, share.kind.first())
            .or_else(|| match share.kind {
                Kind::Unproved if strangers_have_little => {
                    self.give_up(share, amount, Kind::Proved.first())
                }
                _ => None,
            })
    }

    /// Lets the largest holder of shares of these kinds give up the last of them, if there is no room without that.
    fn give_up(&mut self, share: &Share, amount: usize, kinds: &[Kind]) -> Option<Vec<Kept>> {
        let own = self.held.get(&share.holder);
        let own = own.map_or(0, |held| held.other + held.may_give(kinds));
        let each = self.held.iter();
        let (largest, most) = each
            .map(|(holder, held)| (holder, held.may_give(kinds)))
            .max_by_key(|(_, most)| *most)?;
        if own.saturating_add(amount) >= most {
            return None;
        }
        let of = &share.of;
        // Colluders who give nothing back cannot make the sum as large as they like.
        if self.taken.saturating_add(amount) > of.max.saturating_add(of.pending_max()) {
            return None;
        }
        // What was given up is room already, though it is not given back yet. The room that larger holders have to
        // leave free is for those who hold less.
        let above = |max: usize| (self.taken - self.given_up + amount).saturating_sub(max);
        let (above_all, above_own) = (above(of.max), above(share.max).min(amount));
        let spare = match share.kind {
            Kind::Limited => self.spare,
            _ => 0,
        };
        let missing = above_own.saturating_sub(spare).max(above_all);
        let largest = largest.clone();
        let held = self.held.get_mut(&largest)?;
        let (mut newest, mut found) = (Vec::new(), 0);
        let mut giving = held.shares.iter().rev();
        while found < missing {
            let (number, kept) = giving.find(|(_, kept)| kinds.contains(&kept.kind))?;
            found += kept.amount;
            newest.push(*number);
        }
        // One share that is larger than that may give way all the same.
        if self.given_up > 0 && found > 0 && self.given_up + found > of.pending_max() {
            return None;
        }
        if share.kind == Kind::Limited {
            self.spare = match above_own {
                0 => 0,
                _ => (spare + found).saturating_sub(above_own),
            };
        }
        let mut given_up = Vec::new();
        for number in newest {
            let kept = held.shares.remove(&number)?;
            *held.of(kept.kind) -= kept.amount;
            held.other += kept.amount;
            if kept.kind == Kind::Unproved {
                self.unproved -= kept.amount;
            }
            self.given_up += kept.amount;
            self.gave_way += 1;
            given_up.push(kept);
        }
        Some(given_up)
    }
}

impl Share {
    /// Returns how much the share holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    /// Returns who holds it.
    #[must_use]
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Returns how much all shares together may hold for this one to grow.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// Takes so much more, or nothing. Others may have to give way for it.
    ///
    /// # Errors
    /// [`TooMuch`]; the share then holds what it held.
    pub fn grow(&mut self, amount: usize) -> Result<(), TooMuch> {
        if amount == 0 {
            return Ok(());
        }
        let mut state = self.of.lock();
        if state.has_given_way(self) {
            return Err(TooMuch::GaveWay);
        }
        let mut given_up = None;
        if let Err(refused) = state.may_add(&self.of, &self.holder, amount, self.max) {
            given_up = state.make_way(&self.of, self, amount);
            if given_up.is_none() {
                match refused {
                    TooMuch::InSum => state.refused_in_sum += 1,
                    TooMuch::OfOne | TooMuch::GaveWay => state.refused_of_one += 1,
                }
                return Err(refused);
            }
        }
        state.add(self, amount);
        drop(state);
        drop(given_up);
        self.held += amount;
        Ok(())
    }

    /// Gives back what the share holds above this amount.
    pub fn shrink_to(&mut self, amount: usize) {
        let less = self.held.saturating_sub(amount);
        if less == 0 {
            return;
        }
        let mut state = self.of.lock();
        state.remove(self, less);
        let somebody_waits = !state.waiting.is_empty();
        drop(state);
        self.held -= less;
        if somebody_waits {
            self.of.give_turns();
        }
    }

    /// Notes that its holder, of whom only the address was known, has proved who they are.
    pub fn prove(&mut self) {
        if self.kind != Kind::Unproved {
            return;
        }
        self.kind = Kind::Proved;
        let mut state = self.of.lock();
        let State { held, unproved, .. } = &mut *state;
        if let Some(held) = held.get_mut(&self.holder)
            && let Some(kept) = held.shares.get_mut(&self.number)
        {
            kept.kind = Kind::Proved;
            let amount = kept.amount;
            held.unproved -= amount;
            held.proved += amount;
            *unproved -= amount;
        }
    }

    /// Returns a future that waits until the share has given way to a caller who holds less. What it holds is to be
    /// given back then.
    #[must_use]
    pub fn gave_way(&self) -> GaveWay {
        if self.held == 0 || self.kind == Kind::Turn {
            return GaveWay(None);
        }
        let (sender, receiver) = oneshot::channel();
        let mut state = self.of.lock();
        let held = state.held.get_mut(&self.holder);
        match held.and_then(|held| held.shares.get_mut(&self.number)) {
            Some(kept) => kept.told.push(sender),
            None => drop(sender),
        }
        GaveWay(Some(receiver))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests;
