//! Turns to append: what is handed to the store at once, of all callers and of each.
//!
//! Why: a log has one writer, which stores what has arrived in one batch, and everybody in the batch waits for all of
//! it. A caller who sends appends of many events on many connections would make each batch so large that the short
//! appends of others take tens of milliseconds. So appends count by their size; and while others append too, what one
//! caller has at the store is bounded in sum, whatever its pieces: small appends of [`FREE_UNITS`] at once, and beside
//! them one *wave*, which is one large append, or some that are as much together. After a wave the next one rests for
//! as long as it took. So the waves of a caller have half of the writer's time then, and all of it while nobody else
//! wants any.
//! Invariants: callers take turns, for waves too; small appends of one caller are let in in the order in which they
//! come; whoever appends alone is not slowed down; a wave that hangs keeps the next one for [`HANGS`], not longer.
//! Not here: who a caller is, and how the log forms its batches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gesta_core::shares::{Holder, Load};
use gesta_core::{Append, ErrorKind};
use tokio::sync::{Mutex as Queue, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::shared::gate::{Gate, Ticket};

/// Most small appends that are handed to the store at once, and how many of them the largest counts as.
const PLACES: usize = 4_096;
const PLACES_OF_ONE_MAX: usize = 512;
/// An append that counts as more than so many small ones is large.
const SMALL_MAX: usize = 8;
/// A unit is an event, or this many bytes of payload.
const UNIT_BYTES: usize = 1_024;
/// Most units of small appends that one caller has at the store beside others without waiting.
const FREE_UNITS: usize = 256;
/// Most units of a wave. A larger append is a wave of its own.
const WAVE_UNITS: u32 = 512;
/// How long an append waits for the turn of its caller.
pub(crate) const APPEND_TURN_MAX: Duration = Duration::from_secs(10);
/// How long a large append that finds too little room stops smaller ones of others.
const STOPS_MAX: Duration = Duration::from_secs(2);
/// A caller who has appended within this time appends still.
const RECENT: Duration = Duration::from_millis(100);
/// A wave that takes longer hangs, perhaps at a database that others do not need.
const HANGS: Duration = Duration::from_secs(1);
/// The longest rest. Whatever takes longer does not keep the writer busy all the time.
const REST_MAX: Duration = Duration::from_millis(20);

/// The turns of all callers.
pub(crate) struct Appends {
    turns: Gate,
    recent: Mutex<Recent>,
    /// What each caller has at the store who appends beside others.
    beside: Mutex<HashMap<Holder, Arc<Beside>>>,
}

#[derive(Default)]
struct Recent {
    /// Who appended last, and when.
    last: Option<(Holder, Instant)>,
    /// When somebody else appended last.
    other: Option<Instant>,
}

/// What one caller has at the store beside others.
struct Beside {
    /// Held by the first of the small appends that wait. The others stand behind it, in the order in which they came.
    order: Queue<()>,
    /// Units of small appends that may still go at once.
    free: Arc<Semaphore>,
    /// Units that may still join the wave.
    room: Semaphore,
    wave: Mutex<Wave>,
}

/// The appends of one caller that were let in together.
#[derive(Default)]
struct Wave {
    /// Number of appends that have not ended, and units of all that have joined.
    appends: usize,
    units: u32,
    /// Since when the first one is at the store.
    since: Option<Instant>,
    /// End of the rest after the wave before.
    rests_until: Option<Instant>,
}

/// The turn of an append. It ends when this is dropped.
pub(crate) struct AppendTurn {
    _place: Ticket,
    _beside: Option<BesideTurn>,
}

/// What an append has of the bounds of its caller beside others.
enum BesideTurn {
    Free { _units: OwnedSemaphorePermit },
    InWave { _place: WavePlace },
}

/// The place of an append in a wave.
struct WavePlace(Arc<Beside>);

impl Drop for WavePlace {
    fn drop(&mut self) {
        let mut wave = lock(&self.0.wave);
        wave.appends -= 1;
        if wave.appends > 0 {
            return;
        }
        if let Some(since) = wave.since.take() {
            let now = Instant::now();
            wave.rests_until = Some(now + (now - since).min(REST_MAX));
        }
        let units = std::mem::take(&mut wave.units);
        self.0.room.add_permits(units.try_into().unwrap_or(0));
    }
}

impl Appends {
    pub(crate) fn new() -> Self {
        Self {
            turns: Gate::new("appends", PLACES),
            recent: Mutex::default(),
            beside: Mutex::default(),
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
            let beside = match has_company {
                true => self.beside_of(holder).turn(append, places).await,
                false => None,
            };
            let places = places.min(PLACES_OF_ONE_MAX);
            let place = self.turns.turn_for(holder, places, sleep(STOPS_MAX));
            AppendTurn {
                _place: place.await,
                _beside: beside,
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

    /// Returns what a caller has at the store beside others.
    fn beside_of(&self, holder: &Holder) -> Arc<Beside> {
        let mut all = lock(&self.beside);
        if let Some(beside) = all.get(holder) {
            return Arc::clone(beside);
        }
        // Who has nothing at the store, nothing that waits, and no rest before it, is forgotten.
        let now = Instant::now();
        all.retain(|_, beside| !beside.is_idle(now));
        let beside = Arc::new(Beside::new());
        all.insert(holder.clone(), Arc::clone(&beside));
        beside
    }

    /// Returns how much of the places is held, and by how many.
    pub(crate) fn load(&self) -> Load {
        self.turns.load()
    }
}

impl Beside {
    fn new() -> Self {
        Self {
            order: Queue::new(()),
            free: Arc::new(Semaphore::new(FREE_UNITS)),
            room: Semaphore::new(WAVE_UNITS.try_into().unwrap_or(usize::MAX)),
            wave: Mutex::default(),
        }
    }

    fn is_idle(self: &Arc<Self>, now: Instant) -> bool {
        // Whoever waits or has a place in the wave has a reference too, and a free one has units.
        let rests = lock(&self.wave).rests_until.is_some_and(|end| end > now);
        Arc::strong_count(self) == 1 && self.free.available_permits() == FREE_UNITS && !rests
    }

    /// Lets a small append go at once, if none waits and there are units left for it; else it waits for such units or
    /// for a place in a wave, and a large one for a wave. `None` if the wave before hangs.
    async fn turn(self: Arc<Self>, append: &Append, places: usize) -> Option<BesideTurn> {
        let units = append.events() + append.payload_bytes() / UNIT_BYTES;
        let units = u32::try_from(units.max(1)).unwrap_or(u32::MAX);
        if places > SMALL_MAX {
            return self.in_wave(units.min(WAVE_UNITS)).await;
        }
        if let Ok(_first) = self.order.try_lock()
            && let Ok(units) = Arc::clone(&self.free).try_acquire_many_owned(units)
        {
            return Some(BesideTurn::Free { _units: units });
        }
        let _first = self.order.lock().await;
        tokio::select! {
            biased;
            // The semaphore is never closed.
            free = Arc::clone(&self.free).acquire_many_owned(units) => {
                free.ok().map(|units| BesideTurn::Free { _units: units })
            }
            turn = Arc::clone(&self).in_wave(units) => turn,
        }
    }

    async fn in_wave(self: Arc<Self>, units: u32) -> Option<BesideTurn> {
        let place = self.join_wave(units).await?;
        Some(BesideTurn::InWave { _place: place })
    }

    /// Waits for a place in a wave, and until the rest before it is over; `None` if the wave before hangs.
    async fn join_wave(self: Arc<Self>, units: u32) -> Option<WavePlace> {
        {
            let mut room = std::pin::pin!(self.room.acquire_many(units));
            let room = loop {
                let since = lock(&self.wave).since;
                let hangs_at = since.unwrap_or_else(Instant::now) + HANGS;
                if let Ok(room) = timeout_at(hangs_at, &mut room).await {
                    // The semaphore is never closed.
                    break room.ok()?;
                }
                let since = lock(&self.wave).since;
                if since.is_some_and(|since| since.elapsed() >= HANGS) {
                    return None;
                }
            };
            // There is room again when the whole wave has ended.
            room.forget();
            let mut wave = lock(&self.wave);
            wave.appends += 1;
            wave.units += units;
        }
        let place = WavePlace(self);
        let rests_until = lock(&place.0.wave).rests_until;
        if let Some(end) = rests_until.filter(|end| *end > Instant::now()) {
            sleep_until(end).await;
        }
        lock(&place.0.wave).since.get_or_insert_with(Instant::now);
        Some(place)
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

    /// What happened: beside one caller, another evaded the bound on large appends with 64 connections that each
    /// appended 63 events, and was twice as fast for it, while the first kept a fifth of its rate. Goal: what a caller
    /// has at the store beside others is bounded in sum, whatever the pieces, and there are pauses.
    #[tokio::test(start_paused = true)]
    async fn many_small_appends_of_one_caller_come_as_large_ones_beside_others() {
        for events in [1, 7, 63] {
            let appends = Appends::new();
            let (one, other, piece) = (user("one"), user("other"), append(events));
            let _ = appends.turn(&other, &append(1)).await.expect("room");
            let mut held = Vec::new();
            // Without a budget, by which the runtime would make one of so many wait.
            let turn = || tokio::task::unconstrained(appends.turn(&one, &piece)).now_or_never();
            while let Some(turn) = turn() {
                held.push(turn.expect("room"));
                let units = held.len() * events;
                assert!(units <= FREE_UNITS + WAVE_UNITS as usize, "{units}");
            }
            let units = held.len() * events;
            let most = FREE_UNITS + WAVE_UNITS as usize - 2 * events;
            assert!(units > most, "{units} with {events} events each");
            let of_other = appends.turn(&other, &piece).now_or_never();
            assert!(of_other.is_some(), "it does not wait for another caller");

            let free = FREE_UNITS / events;
            let mut wave = held.split_off(free);
            tokio::time::advance(5 * MILLI).await;
            let last = wave.pop();
            drop(wave);
            let next = appends.turn(&one, &piece).now_or_never();
            assert!(next.is_none(), "the wave has not ended");
            drop(last);
            let ended = Instant::now();
            let next = appends.turn(&one, &piece).await.expect("room");
            let rested = ended.elapsed();
            assert!((5 * MILLI..10 * MILLI).contains(&rested), "{rested:?}");
            drop((next, held));
        }
    }

    /// What happened: of batches of one client, which it sends one after the other without waiting, a later one took
    /// the units of one that had ended, and was stored before those that waited. Goal: they go in the order in which
    /// they came, and units that become free are taken.
    #[tokio::test(start_paused = true)]
    async fn small_appends_of_one_caller_do_not_overtake_each_other() {
        let appends = Appends::new();
        let (one, other, piece) = (user("one"), user("other"), append(32));
        let _ = appends.turn(&other, &append(1)).await.expect("room");
        let mut held = Vec::new();
        while let Some(turn) = appends.turn(&one, &piece).now_or_never() {
            held.push(turn.expect("room"));
        }
        let mut first = std::pin::pin!(appends.turn(&one, &piece));
        let mut second = std::pin::pin!(appends.turn(&one, &piece));
        assert!(first.as_mut().now_or_never().is_none(), "no room");
        assert!(second.as_mut().now_or_never().is_none(), "no room");
        drop(held.remove(0));
        let third = appends.turn(&one, &append(1)).now_or_never();
        assert!(third.is_none(), "two wait, and it came after them");
        assert!(second.as_mut().now_or_never().is_none(), "one waits");
        let first = first.now_or_never().expect("there are units");
        assert!(second.as_mut().now_or_never().is_none(), "no room");
        drop(held.pop());
        let still = second.as_mut().now_or_never().is_none();
        assert!(still, "the wave has not ended, and has had its units");
        drop(held.remove(0));
        assert!(second.now_or_never().is_some(), "there are units");
        drop(first);
    }

    /// Goal: what waits in order behind a wave that hangs is let in together a second after it began.
    #[tokio::test(start_paused = true)]
    async fn small_appends_wait_together_for_a_wave_that_hangs() {
        let appends = Appends::new();
        let (one, other, piece) = (user("one"), user("other"), append(32));
        let _ = appends.turn(&other, &append(1)).await.expect("room");
        let mut held = Vec::new();
        while let Some(turn) = appends.turn(&one, &piece).now_or_never() {
            held.push(turn.expect("room"));
        }
        let began = Instant::now();
        let waiting = (0..100).map(|_| appends.turn(&one, &piece));
        let turns = futures::future::join_all(waiting).await;
        assert!(turns.iter().all(Result::is_ok));
        assert!(began.elapsed() <= 2 * HANGS, "{:?}", began.elapsed());
    }

    /// Goal: a caller of few small appends at once is never made to wait, however many follow one another.
    #[tokio::test(start_paused = true)]
    async fn few_small_appends_at_once_never_wait() {
        let appends = Appends::new();
        let (one, other, single) = (user("one"), user("other"), append(1));
        for _ in 0..20 {
            let _ = appends.turn(&other, &single).await.expect("room");
            let turns = (0..FREE_UNITS).map(|_| appends.turn(&one, &single).now_or_never());
            let turns: Vec<_> = turns.collect();
            assert!(turns.iter().all(Option::is_some));
        }
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
        assert!(lock(&appends.beside).len() <= 2);
    }
}
