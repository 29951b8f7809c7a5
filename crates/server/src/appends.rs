//! Turns to append: what is handed to the store at once, of all callers and of each.
//!
//! Why: a log has one writer, which stores what has arrived in one batch, and everybody in the batch waits for all of
//! it. A caller who sends appends of many events on many connections would make each batch so large that the short
//! appends of others take tens of milliseconds. So appends count by their size; and while others append too, one
//! *large* append is handed over at a time, and after it large ones rest for as long as it took. So large appends have
//! half of the writer's time then, and all of it while nobody else wants any.
//! Invariants: callers take turns, for large appends too; whoever appends alone is not slowed down; an append that
//! hangs keeps other large ones for [`HANGS`], not longer.
//! Not here: who a caller is, and how the log forms its batches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gesta_core::shares::{Holder, Load};
use gesta_core::{Append, ErrorKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::gate::{Gate, Ticket};

/// Most small appends that are handed to the store at once, and how many of them the largest counts as.
const PLACES: usize = 4_096;
const PLACES_OF_ONE_MAX: usize = 512;
/// An append that counts as more than so many small ones is large.
const SMALL_MAX: usize = 8;
/// How long an append waits for the turn of its caller.
pub(crate) const APPEND_TURN_MAX: Duration = Duration::from_secs(10);
/// How long a large append that finds too little room stops smaller ones of others.
const STOPS_MAX: Duration = Duration::from_secs(2);
/// A caller who has appended within this time appends still.
const RECENT: Duration = Duration::from_millis(100);
/// A large append that takes longer hangs, perhaps at a database that others do not need.
const HANGS: Duration = Duration::from_secs(1);
/// The longest rest. Whatever takes longer does not keep the writer busy all the time.
const REST_MAX: Duration = Duration::from_millis(20);

/// The turns of all callers.
pub(crate) struct Appends {
    turns: Gate,
    recent: Mutex<Recent>,
    /// The large appends of each caller who has some beside others.
    large: Mutex<HashMap<Holder, Arc<Large>>>,
}

#[derive(Default)]
struct Recent {
    /// Who appended last, and when.
    last: Option<(Holder, Instant)>,
    /// When somebody else appended last.
    other: Option<Instant>,
}

/// The large appends of one caller, of which one is at the store at a time.
struct Large {
    place: Arc<Semaphore>,
    pace: Mutex<Pace>,
}

#[derive(Default)]
struct Pace {
    /// Since when one is at the store.
    since: Option<Instant>,
    rests_until: Option<Instant>,
}

/// The turn of an append. It ends when this is dropped.
pub(crate) struct AppendTurn {
    _place: Ticket,
    _large: Option<LargeTurn>,
}

/// The place of a large append beside others.
struct LargeTurn {
    of: Arc<Large>,
    since: Instant,
    _place: OwnedSemaphorePermit,
}

impl Drop for LargeTurn {
    fn drop(&mut self) {
        let mut pace = lock(&self.of.pace);
        pace.since = None;
        let now = Instant::now();
        pace.rests_until = Some(now + (now - self.since).min(REST_MAX));
    }
}

impl Appends {
    pub(crate) fn new() -> Self {
        Self {
            turns: Gate::new("appends", PLACES),
            recent: Mutex::default(),
            large: Mutex::default(),
        }
    }

    /// Waits for a caller's turn to append; `None` where nobody is told from anybody: there the bounds of the store
    /// alone hold.
    ///
    /// # Errors
    /// Overloaded if the turn does not come within [`APPEND_TURN_MAX`]; nothing was appended then.
    ///
    /// # Cancel safety
    /// Whoever drops the future has no turn, and stands in nobody's way.
    pub(crate) async fn turn(
        &self,
        holder: &Holder,
        append: &Append,
    ) -> gesta_core::Result<Option<AppendTurn>> {
        if *holder == Holder::Everybody {
            return Ok(None);
        }
        let places = 1 + append.events() / 8 + append.payload_bytes() / 8_192;
        let turn = async {
            let has_company = lock(&self.recent).appends(holder, Instant::now());
            let large = match has_company && places > SMALL_MAX {
                true => self.large_of(holder).turn().await,
                false => None,
            };
            let places = places.min(PLACES_OF_ONE_MAX);
            let place = self.turns.turn_for(holder, places, sleep(STOPS_MAX));
            AppendTurn {
                _place: place.await,
                _large: large,
            }
        };
        match timeout(APPEND_TURN_MAX, turn).await {
            Ok(turn) => Ok(Some(turn)),
            Err(_) => Err(ErrorKind::Overloaded(format!(
                "the turn of {holder} to append did not come within {} s, and nothing was appended: try again later",
                APPEND_TURN_MAX.as_secs()
            ))
            .into()),
        }
    }

    /// Returns the large appends of a caller.
    fn large_of(&self, holder: &Holder) -> Arc<Large> {
        let mut all = lock(&self.large);
        if let Some(large) = all.get(holder) {
            return Arc::clone(large);
        }
        // Who has none at the store, none that waits, and no rest before them, is forgotten.
        let now = Instant::now();
        all.retain(|_, large| Arc::strong_count(large) > 1 || lock(&large.pace).rests(now));
        let large = Arc::new(Large {
            place: Arc::new(Semaphore::new(1)),
            pace: Mutex::default(),
        });
        all.insert(holder.clone(), Arc::clone(&large));
        large
    }

    /// Returns how much of the places is held, and by how many.
    pub(crate) fn load(&self) -> Load {
        self.turns.load()
    }
}

impl Large {
    /// Waits for the place, and until the rest is over; `None` if the append before hangs.
    async fn turn(self: Arc<Self>) -> Option<LargeTurn> {
        let mut place = std::pin::pin!(Arc::clone(&self.place).acquire_owned());
        let place = loop {
            if let Ok(place) = timeout(HANGS, &mut place).await {
                // The semaphore is never closed.
                break place.ok()?;
            }
            let since = lock(&self.pace).since;
            if since.is_some_and(|since| since.elapsed() >= HANGS) {
                return None;
            }
        };
        let rests_until = lock(&self.pace).rests_until;
        if let Some(end) = rests_until {
            sleep_until(end).await;
        }
        let since = Instant::now();
        lock(&self.pace).since = Some(since);
        Some(LargeTurn {
            of: self,
            since,
            _place: place,
        })
    }
}

impl Pace {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|end| end > now)
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recent {
    /// Notes that a caller appends now. True if somebody else does so too.
    fn appends(&mut self, holder: &Holder, now: Instant) -> bool {
        match &mut self.last {
            Some((last, at)) if last == holder => *at = now,
            last => {
                let before = last.replace((holder.clone(), now));
                self.other = before.map(|(_, at)| at);
            }
        }
        self.other.is_some_and(|at| now - at < RECENT)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use gesta_core::{EventData, EventType, ExpectedRevision, StreamId};

    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    fn append(events: usize) -> Append {
        let event = || EventData::json(EventType::new("t").expect("valid"), "1");
        let events = (0..events).map(|_| event()).collect();
        let stream = StreamId::new("s").expect("valid");
        Append::to(stream, ExpectedRevision::Any, events)
    }

    fn user(name: &str) -> Holder {
        Holder::User(name.into())
    }

    /// What happened: an append waited for its turn without an end while the store did not go on. Goal: it is refused,
    /// and the caller's next goes on once there is room.
    #[tokio::test(start_paused = true)]
    async fn an_append_does_not_wait_for_its_turn_for_ever() {
        let (appends, user) = (Appends::new(), user("one"));
        let (large, small) = (append(8 * PLACES_OF_ONE_MAX), append(1));
        let mut held = Vec::new();
        for _ in 0..PLACES / 2 / PLACES_OF_ONE_MAX {
            let turn = appends.turn(&user, &large).await;
            held.push(turn.expect("one half is for one caller"));
        }
        let refused = appends.turn(&user, &small).await;
        let Err(refused) = refused.map(|_| ()) else {
            panic!("there is no room for this caller");
        };
        assert!(matches!(refused.kind(), ErrorKind::Overloaded(_)));
        assert!(
            refused.to_string().contains("nothing was appended"),
            "{refused}"
        );
        drop(held.pop());
        assert!(appends.turn(&user, &small).await.expect("room").is_some());
        let everybody = appends.turn(&Holder::Everybody, &small).await;
        assert!(everybody.expect("no turn is needed").is_none());
    }

    /// What happened: nine users who appended single events beside one with appends of 500 kept a ninth of their rate.
    /// Goal: while somebody else appends, large ones come one at a time with pauses; alone they do not.
    #[tokio::test(start_paused = true)]
    async fn large_appends_come_one_at_a_time_beside_others() {
        let appends = Appends::new();
        let (one, other, large, small) = (user("one"), user("other"), append(500), append(1));
        let alone = [
            appends.turn(&one, &large).now_or_never(),
            appends.turn(&one, &large).now_or_never(),
        ];
        assert!(alone.iter().all(Option::is_some), "nobody else appends");
        drop(alone);

        let _ = appends.turn(&other, &small).await.expect("room");
        let first = appends.turn(&one, &large).await.expect("room");
        let mut second = std::pin::pin!(appends.turn(&one, &large));
        assert!(second.as_mut().now_or_never().is_none(), "one at a time");
        let short = appends.turn(&one, &small).now_or_never();
        assert!(short.is_some(), "small ones of the same caller do not wait");
        tokio::time::advance(5 * MILLI).await;
        let ended = Instant::now();
        drop(first);
        let second = second.await.expect("room");
        assert!(ended.elapsed() >= 5 * MILLI, "{:?}", ended.elapsed());
        assert!(ended.elapsed() < 10 * MILLI, "{:?}", ended.elapsed());
        drop(second);

        tokio::time::advance(RECENT).await;
        let alone = [
            appends.turn(&one, &large).now_or_never(),
            appends.turn(&one, &large).now_or_never(),
        ];
        assert!(alone.iter().all(Option::is_some), "alone again");
    }

    /// Goal: a large append at a database that does not answer keeps other large ones of its caller for a second, not
    /// longer, and those of others not at all. Callers who are gone are forgotten.
    #[tokio::test(start_paused = true)]
    async fn a_large_append_that_hangs_keeps_few_others_shortly() {
        let appends = Appends::new();
        let (one, other, large) = (user("one"), user("other"), append(500));
        let _ = appends.turn(&other, &append(1)).await.expect("room");
        let hangs = appends.turn(&one, &large).await.expect("room");
        let of_other = appends.turn(&other, &large).now_or_never();
        assert!(of_other.is_some(), "it does not wait for another caller");
        let began = Instant::now();
        let next = appends.turn(&one, &large).await.expect("room");
        assert!(began.elapsed() <= 2 * HANGS, "{:?}", began.elapsed());
        drop((hangs, next, of_other));

        tokio::time::advance(RECENT).await;
        for number in 0..1_000 {
            let _ = appends.turn(&user(&format!("user-{number}")), &large).await;
            tokio::time::advance(REST_MAX).await;
        }
        assert!(lock(&appends.large).len() <= 2);
    }
}
