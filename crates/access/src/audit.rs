//! The log of who did what, for administrators: target `gesta::audit`.
//!
//! Four kinds of lines. *Administrative* ones tell of changes of accounts, groups and the server, and of what
//! administrators do; those of full administrators are few, and none is left out. *Changes* are deletes and changes of
//! metadata by others, *refusals* are calls that were refused, and *logins* tell once an hour that a user or a token
//! came from an address. *Uses* are all other calls; they are told only if the log takes lines of the level `DEBUG`,
//! and then none is left out.
//! Invariants: of each caller at most [`LINES_MAX`] lines are written at once and [`LINES_PER_SECOND`] after that, and
//! of all callers who proved nothing [`UNKNOWN_LINES_MAX`] and [`UNKNOWN_LINES_PER_SECOND`]. Administrative acts that a
//! user has done are counted apart, with as many lines, so that nobody hides what they do behind refusals, failures and
//! changes. Lines that are left out are counted in the next line of the same caller and count, unless it comes so late
//! that the caller was forgotten. So nobody fills a disk, and nobody keeps the lines of another out; names are escaped,
//! so that no name makes a line of its own; no secret comes here.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gesta_core::newcomers::whom;
use gesta_core::{printable, uptime};
use quick_cache::sync::Cache;
use tracing::field::display;

/// The lines of one caller.
const LINES_MAX: u32 = 200;
const LINES_PER_SECOND: u32 = 20;
/// The lines of one address of callers who proved nothing.
const ADDRESS_LINES_MAX: u32 = 100;
const ADDRESS_LINES_PER_SECOND: u32 = 5;
/// The lines of all callers together who proved nothing.
const UNKNOWN_LINES_MAX: u32 = 1_000;
const UNKNOWN_LINES_PER_SECOND: u32 = 50;
/// The most callers whose lines are counted apart. The others share one count.
const CALLERS_MAX: usize = 4_096;
/// How often idle callers are forgotten at most.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// The longest name in a line, in characters.
const SHOWN_MAX: usize = 200;
/// How long nothing is told of a user or a token that comes again from the same address.
const LOGIN_EVERY: Duration = Duration::from_secs(3_600);
/// How long it takes until a login is told for which there was no line.
const LOGIN_AGAIN: Duration = Duration::from_secs(1);
/// The most pairs of a user or a token and an address that are remembered.
const LOGINS_MAX: usize = 10_000;

/// Counts how many lines may be written now.
#[derive(Debug)]
struct Bucket {
    lines: f64,
    max: u32,
    per_second: u32,
    at: Duration,
    unwritten: u64,
}

impl Bucket {
    fn new(max: u32, per_second: u32, now: Duration) -> Self {
        Self {
            lines: f64::from(max),
            max,
            per_second,
            at: now,
            unwritten: 0,
        }
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = now;
        self.lines = (self.lines + passed * f64::from(self.per_second)).min(f64::from(self.max));
    }

    /// Tells whether the bucket is full, so that a new one would let through as many lines.
    fn is_idle(&mut self, now: Duration) -> bool {
        self.fill(now);
        self.lines >= f64::from(self.max)
    }

    /// Takes a line from the bucket. Returns how many lines were left out since the last written one; `None` if this
    /// one must be left out too.
    fn take(&mut self, now: Duration) -> Option<u64> {
        self.fill(now);
        if self.lines < 1.0 {
            self.unwritten += 1;
            return None;
        }
        self.lines -= 1.0;
        Some(std::mem::take(&mut self.unwritten))
    }
}

/// The outcome of what was done.
pub(crate) const DONE: &str = "done";

/// Which lines of a user are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lines {
    /// Administrative acts that were done.
    Done,
    /// All others, of which a user can cause as many as they like.
    Any,
}

/// Whose lines are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Counted {
    /// The user, who has proved who they are.
    User(String),
    /// An address of callers who proved nothing.
    Address(Option<IpAddr>),
}

/// The lines of callers of one kind.
#[derive(Debug)]
struct Callers<K> {
    of: HashMap<K, Bucket>,
    /// The lines of callers beyond [`CALLERS_MAX`].
    others: Bucket,
    max: u32,
    per_second: u32,
    /// When idle callers were last forgotten. To look at all of them for each stranger would cost much.
    swept: Duration,
}

impl<K: Eq + std::hash::Hash> Callers<K> {
    fn new(max: u32, per_second: u32, now: Duration) -> Self {
        Self {
            of: HashMap::new(),
            others: Bucket::new(max, per_second, now),
            max,
            per_second,
            swept: now,
        }
    }

    fn bucket(&mut self, caller: K, now: Duration) -> &mut Bucket {
        let is_new = !self.of.contains_key(&caller);
        if is_new && self.of.len() >= CALLERS_MAX && now.saturating_sub(self.swept) >= SWEEP_EVERY {
            self.swept = now;
            self.of.retain(|_, bucket| !bucket.is_idle(now));
        }
        if is_new && self.of.len() >= CALLERS_MAX {
            return &mut self.others;
        }
        let (max, per_second) = (self.max, self.per_second);
        self.of
            .entry(caller)
            .or_insert_with(|| Bucket::new(max, per_second, now))
    }
}

/// The lines of each caller. Users stand apart, so that no number of strangers takes their places.
#[derive(Debug)]
struct Buckets {
    users: Callers<String>,
    /// The lines of users about administrative acts that were done.
    done: Callers<String>,
    addresses: Callers<Option<IpAddr>>,
    /// The lines of all callers who proved nothing.
    unknown: Bucket,
}

impl Buckets {
    fn new(now: Duration) -> Self {
        Self {
            users: Callers::new(LINES_MAX, LINES_PER_SECOND, now),
            done: Callers::new(LINES_MAX, LINES_PER_SECOND, now),
            addresses: Callers::new(ADDRESS_LINES_MAX, ADDRESS_LINES_PER_SECOND, now),
            unknown: Bucket::new(UNKNOWN_LINES_MAX, UNKNOWN_LINES_PER_SECOND, now),
        }
    }

    fn take(&mut self, counted: Counted, lines: Lines, now: Duration) -> Option<u64> {
        let users = match lines {
            Lines::Done => &mut self.done,
            Lines::Any => &mut self.users,
        };
        let address = match counted {
            Counted::User(user) => return users.bucket(user, now).take(now),
            Counted::Address(address) => address,
        };
        let bucket = self.addresses.bucket(address, now);
        let unwritten = bucket.take(now)?;
        if self.unknown.take(now).is_none() {
            bucket.unwritten += unwritten + 1;
            return None;
        }
        Some(unwritten)
    }
}

/// What a line tells of the caller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct By<'a> {
    /// The user, as far as they have proved who they are; else what they claim to be.
    pub(crate) who: &'a str,
    /// The user whose lines are counted; `None` if the caller has proved nothing.
    pub(crate) user: Option<&'a str>,
    pub(crate) from: Option<IpAddr>,
    /// Number of the call, the same in all its lines.
    pub(crate) request: u64,
}

impl By<'_> {
    fn counted(&self) -> Counted {
        match self.user {
            Some(user) => Counted::User(user.to_owned()),
            None => Counted::Address(self.from.map(whom)),
        }
    }
}

/// What a caller is, as far as that bounds their lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    Other,
    /// An administrator by a token that may not do everything.
    Administrator,
    /// An administrator who may do everything. Whoever is that can turn the log off as well.
    FullAdministrator,
}

/// What was done, or was to be done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) verb: &'a str,
    /// The stream, the group, or what was asked for.
    pub(crate) what: &'a str,
    /// What the names alone do not tell, such as the label of a token.
    pub(crate) detail: &'a str,
    /// `done`, or why it failed.
    pub(crate) outcome: &'a str,
}

/// A login that is to be told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewLogin(u64);

#[derive(Debug)]
pub(crate) struct Audit {
    buckets: Mutex<Buckets>,
    /// The moments until which no login is told, by a hash of who came from where.
    logins: Cache<u64, Duration>,
    hasher: RandomState,
    /// How many lines were left out.
    left_out: AtomicU64,
}

impl Default for Audit {
    fn default() -> Self {
        Self {
            buckets: Mutex::new(Buckets::new(uptime())),
            logins: Cache::new(LOGINS_MAX),
            hasher: RandomState::new(),
            left_out: AtomicU64::new(0),
        }
    }
}

/// Shows a name as it stands in a line: shortened, and with escapes for what does not show or makes another line.
/// Quotes stay as they are: the format of the log escapes them itself.
fn shown(name: &str) -> String {
    let cut: String = name.chars().take(SHOWN_MAX).collect();
    printable(&cut).replace('\n', "\\n").replace('\t', "\\t")
}

/// Shows a name if there is any.
fn some(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| shown(name))
}

impl Audit {
    fn take(&self, by: By<'_>, lines: Lines) -> Option<u64> {
        let taken = self
            .buckets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(by.counted(), lines, uptime());
        if taken.is_none() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Returns how many lines were left out since the process began.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self, by: By<'_>, verb: &str, what: &str, why: &str) {
        let Some(unwritten) = self.take(by, Lines::Any) else {
            return;
        };
        let (from, request) = (by.from.map(display), by.request);
        tracing::warn!(target: "gesta::audit", request, who = shown(by.who), from, call = verb, what = shown(what), why = shown(why), unwritten, "refused");
    }

    /// Writes that something administrative was done. Lines about full administrators have no bound.
    pub(crate) fn administrative(&self, by: By<'_>, rank: Rank, lines: Lines, entry: Entry<'_>) {
        let unwritten = match rank {
            Rank::FullAdministrator => None,
            Rank::Other | Rank::Administrator => match self.take(by, lines) {
                Some(unwritten) => Some(unwritten),
                None => return,
            },
        };
        let (from, request) = (by.from.map(display), by.request);
        tracing::info!(target: "gesta::audit", request, who = shown(by.who), from, call = entry.verb, what = shown(entry.what), detail = some(entry.detail), outcome = shown(entry.outcome), unwritten, "administrative");
    }

    pub(crate) fn changed(&self, by: By<'_>, entry: Entry<'_>) {
        let Some(unwritten) = self.take(by, Lines::Any) else {
            return;
        };
        let (from, request) = (by.from.map(display), by.request);
        tracing::info!(target: "gesta::audit", request, who = shown(by.who), from, call = entry.verb, what = shown(entry.what), outcome = shown(entry.outcome), unwritten, "change");
    }

    /// Tells whether lines about uses are written.
    pub(crate) fn tells_uses() -> bool {
        tracing::enabled!(target: "gesta::audit", tracing::Level::DEBUG)
    }

    pub(crate) fn used(by: By<'_>, entry: Entry<'_>) {
        let (from, request) = (by.from.map(display), by.request);
        tracing::debug!(target: "gesta::audit", request, who = shown(by.who), from, call = entry.verb, what = shown(entry.what), detail = some(entry.detail), outcome = shown(entry.outcome), "use");
    }

    /// Tells whether a login of this user or token (`whose`) from this address is to be told now. Returns the login,
    /// for [`Audit::login`].
    pub(crate) fn new_login(&self, whose: impl std::hash::Hash, from: IpAddr) -> Option<NewLogin> {
        let now = uptime();
        let key = self.hasher.hash_one((whose, from));
        if self.logins.get(&key).is_some_and(|until| now < until) {
            return None;
        }
        // If there is no line for it now, it is told soon, and not as late as one that was told.
        self.logins.insert(key, now + LOGIN_AGAIN);
        Some(NewLogin(key))
    }

    /// Tells that a user or a token came, with what they proved who they are.
    pub(crate) fn login(&self, by: By<'_>, login: NewLogin, with: &str) {
        let Some(unwritten) = self.take(by, Lines::Any) else {
            return;
        };
        self.logins.insert(login.0, uptime() + LOGIN_EVERY);
        let (from, request) = (by.from.map(display), by.request);
        tracing::info!(target: "gesta::audit", request, who = shown(by.who), from, with, unwritten, "login");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn lines_are_bounded_and_the_others_counted() {
        let mut bucket = Bucket::new(2, 20, SECOND);
        let takes: Vec<_> = (0..4).map(|_| bucket.take(SECOND)).collect();
        assert_eq!(takes, [Some(0), Some(0), None, None]);
        assert_eq!(bucket.take(SECOND * 2), Some(2));
        let mut bucket = Bucket::new(LINES_MAX, LINES_PER_SECOND, SECOND);
        let after_long = (0..1_000)
            .filter(|_| bucket.take(SECOND * 1_000).is_some())
            .count();
        assert_eq!(after_long, 200);
    }

    fn address(n: u32) -> Counted {
        Counted::Address(Some(IpAddr::V4(n.into())))
    }

    /// A user who was refused often, or deleted much, took all lines of the others.
    #[test]
    fn nobody_takes_the_lines_of_others() {
        let mut buckets = Buckets::new(SECOND);
        let user = |name: &str| Counted::User(name.to_owned());
        for _ in 0..10_000 {
            buckets.take(user("alice"), Lines::Any, SECOND);
            buckets.take(address(1), Lines::Any, SECOND);
        }
        assert_eq!(buckets.take(user("alice"), Lines::Any, SECOND), None);
        assert_eq!(buckets.take(address(1), Lines::Any, SECOND), None);
        assert_eq!(buckets.take(user("bob"), Lines::Any, SECOND), Some(0));
        assert_eq!(buckets.take(address(2), Lines::Any, SECOND), Some(0));
        assert_eq!(
            buckets.take(user("alice"), Lines::Any, SECOND * 2),
            Some(9_801)
        );
    }

    #[test]
    fn many_callers_fill_neither_the_memory_nor_the_log() {
        let mut buckets = Buckets::new(SECOND);
        let written =
            (0..100_000).filter(|n| buckets.take(address(*n), Lines::Any, SECOND).is_some());
        assert_eq!(written.count(), 1_000);
        assert!(buckets.addresses.of.len() <= CALLERS_MAX);
        // Users keep lines of their own meanwhile, and other addresses get places of their own later.
        let user = || Counted::User("bob".to_owned());
        for _ in 0..LINES_MAX {
            assert_eq!(buckets.take(user(), Lines::Any, SECOND), Some(0));
        }
        assert_eq!(
            buckets.take(address(200_000), Lines::Any, SECOND * 3_600),
            Some(0)
        );
        assert_eq!(buckets.addresses.of.len(), 1);
    }

    #[test]
    fn a_login_is_told_once_for_each_address() {
        let audit = Audit::default();
        let [here, there] = [1, 2].map(|n| IpAddr::V4(n.into()));
        let is_new = |whose: &str, from| audit.new_login(whose, from).is_some();
        assert!(is_new("alice", here) && is_new("alice", there) && is_new("bob", here));
        assert!(!is_new("alice", here) && !is_new("bob", here));
    }

    /// What happened: a login for which the user had no line left was not told for an hour.
    #[test]
    fn a_login_without_a_line_is_told_soon() {
        let audit = Audit::default();
        let here = IpAddr::V4(1.into());
        let by = By {
            who: "alice",
            user: Some("alice"),
            from: Some(here),
            request: 1,
        };
        let until = |login: NewLogin| audit.logins.get(&login.0).expect("noted");
        let told = audit.new_login("alice", here).expect("new");
        audit.login(by, told, "password");
        assert!(until(told) > uptime() + LOGIN_EVERY / 2);
        for _ in 0..10_000 {
            audit.refused(by, "read", "a", "no");
        }
        let untold = audit.new_login("a token", here).expect("new");
        audit.login(by, untold, "token");
        assert!(until(untold) <= uptime() + LOGIN_AGAIN);
    }

    /// What happened: an operator, or whoever had their password, was refused often, and their administrative acts were
    /// not told.
    #[test]
    fn refusals_and_changes_do_not_hide_what_was_done() {
        let mut buckets = Buckets::new(SECOND);
        let user = || Counted::User("ops".to_owned());
        for _ in 0..10_000 {
            buckets.take(user(), Lines::Any, SECOND);
        }
        assert_eq!(buckets.take(user(), Lines::Any, SECOND), None);
        for _ in 0..LINES_MAX {
            assert_eq!(buckets.take(user(), Lines::Done, SECOND), Some(0));
        }
        assert_eq!(buckets.take(user(), Lines::Done, SECOND), None);
    }

    #[test]
    fn names_make_no_lines() {
        assert_eq!(shown("a\nb\u{1b}[0m\u{2028}"), r"a\nb\u{1b}[0m\u{2028}");
        assert_eq!(shown(&"x".repeat(5_000)).len(), SHOWN_MAX);
        // The log would escape an escaped one again.
        let quoted = "the caller may not append to stream \"cart-1\"";
        assert_eq!(shown(quoted), quoted);
    }
}
