//! How projections are run.

use std::time::Duration;

use crate::error::Error;

/// What becomes of an event that cannot be applied after all attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnPoison {
    /// The projection stops before the event, and says why. Nothing is skipped.
    #[default]
    Stop,
    /// The event is parked, and the later ones of its key with it, in order; all other keys go on. A projection without
    /// keys stops.
    Park,
    /// The event is recorded among the parked ones and left out for good.
    Skip,
}

/// What becomes of a version whose checkpoint is not of the store as it is now, because that was restored or replaced:
/// its rows may be of events that are there no longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnRestore {
    /// It stops, and says why. Readers go on to see its rows until somebody resets it.
    #[default]
    Stop,
    /// It is reset by itself, as by [`Order::Reset`](crate::Order::Reset): for rows that can always be built again from
    /// the events. The log says so, at level error. If it cannot be told where the version begins now, it stops.
    Reset,
}

/// Bounds and times of the projections of a process.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the process for people, as the host or the pod.
    pub node_name: String,
    /// Largest number of events of a batch while catching up: 1 to 10,000.
    pub batch_events_max: usize,
    /// Largest number of events of a batch when live: its transaction should take at most some 100 ms, so that other
    /// writers of the database are not held up.
    pub live_events_max: usize,
    /// Shortest time between two batches when live, unless the first has [`live_events_max`](Self::live_events_max)
    /// events: none unless said otherwise. With it fewer and larger batches are written, at the price of this lag: what
    /// is stored less than this time after the last batch waits for the rest of it, and so does
    /// [`wait_for`](crate::Running::wait_for). What is stored after a longer silence is applied at once.
    pub live_every: Duration,
    /// Memory for rows that a view keeps so that they need not be read again, roughly, in bytes.
    pub row_cache_bytes_max: usize,
    /// For how long a process that is not heard keeps its projections. All processes should have about the same: one
    /// that finds a lease of more than ten times its own shortens it, since it may be of before a clock was set back.
    pub lease: Duration,
    /// Time between two looks at the states, leases and commands of all projections: two statements.
    pub look_every: Duration,
    /// Longest time for which a position is kept in memory alone when no event matches.
    pub store_position_every: Duration,
    /// Attempts to apply an event before it is taken for poison.
    pub attempts_max: u32,
    /// How often the process may end without a word while one event alone is applied, before the event is taken for
    /// poison.
    pub deaths_max: u32,
    /// What becomes of an event that cannot be applied.
    pub on_poison: OnPoison,
    /// What becomes of a version if the store was restored.
    pub on_restore: OnRestore,
    /// Whether [`start`](crate::Projections::start) succeeds although the store or the target does not answer: then the
    /// projections are registered and begin once both do, tried again after pauses as after any failure. Until then
    /// their phase is [`StoreAway`](crate::Phase::StoreAway) or [`TargetAway`](crate::Phase::TargetAway); if they are
    /// refused then, it is [`Stopped`](crate::Phase::Stopped) with the reason.
    pub start_waits: bool,
    /// Largest number of keys that may have parked events; the projection stops at the next one.
    pub parked_keys_max: usize,
    /// Shortest and longest pause after a failure.
    pub back_off: (Duration, Duration),
    /// Whether a version that has caught up with the active one becomes the active one by itself.
    pub switch_when_caught_up: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_name: "gesta".to_owned(),
            batch_events_max: 10_000,
            live_events_max: 2_000,
            live_every: Duration::ZERO,
            row_cache_bytes_max: 64 * 1024 * 1024,
            lease: Duration::from_secs(15),
            look_every: Duration::from_secs(1),
            store_position_every: Duration::from_secs(10),
            attempts_max: 3,
            deaths_max: 3,
            on_poison: OnPoison::Stop,
            on_restore: OnRestore::Stop,
            start_waits: false,
            parked_keys_max: 1_000,
            back_off: (Duration::from_millis(100), Duration::from_secs(5)),
            switch_when_caught_up: true,
        }
    }
}

impl Config {
    /// Checks the bounds.
    ///
    /// # Errors
    /// `Invalid` that names the bound.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let refuse = |what: &str, rule: String| Err(Error::Invalid(format!("{what} {rule}")));
        for (what, found) in [
            ("batch_events_max", self.batch_events_max),
            ("live_events_max", self.live_events_max),
        ] {
            if !(1..=10_000).contains(&found) {
                return refuse(what, format!("must be 1 to 10,000, found {found}"));
            }
        }
        for (what, found) in [
            ("attempts_max", self.attempts_max),
            ("deaths_max", self.deaths_max),
        ] {
            if found == 0 {
                return refuse(what, "must be at least 1, found 0".to_owned());
            }
        }
        if self.lease < self.look_every.saturating_mul(2) || self.look_every.is_zero() {
            return refuse(
                "lease",
                format!(
                    "must be at least twice look_every, which is not zero; found {:?} and {:?}",
                    self.lease, self.look_every
                ),
            );
        }
        Ok(())
    }
}
