//! The configuration of a store in memory, and what the store and its subscriptions share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gesta_core::{
    AllFrom, AllPage, Checkpoint, Clock, Direction, ErrorKind, Incarnation, LogId, Position,
    ReadAll, Result, SystemClock, Timestamp,
};
use tokio::sync::watch;

use crate::state::State;

/// The configuration of a [`MemoryStore`](crate::MemoryStore).
#[derive(Clone)]
pub struct Config {
    /// Number of logs, 1 to 1,024.
    pub logs: u16,
    /// Incarnation of the store: this life of it.
    pub incarnation: Incarnation,
    /// Source of the times at which events are stored.
    pub clock: Arc<dyn Clock>,
}

impl Default for Config {
    /// Configures one log, a new random incarnation, and the clock of the operating system.
    fn default() -> Self {
        Self {
            logs: 1,
            incarnation: Incarnation::random(),
            clock: Arc::new(SystemClock),
        }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("logs", &self.logs)
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}

/// What a store and its subscriptions share.
pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) state: Mutex<State>,
    /// Number of changes so far. A change of it wakes subscriptions.
    pub(crate) changed: watch::Sender<u64>,
}

impl Inner {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock; if it did, the collections would still agree.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.config.clock.now()
    }

    /// Makes a change, then wakes the subscriptions.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut State, Timestamp) -> Result<T>,
    ) -> Result<T> {
        let changed = {
            let mut state = self.lock();
            change(state.open()?, self.now())
        };
        self.changed
            .send_modify(|count| *count = count.wrapping_add(1));
        changed
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&State) -> Result<T>) -> Result<T> {
        look(self.lock().open()?)
    }

    /// Returns the positions of a checkpoint, if it can be used.
    pub(crate) fn positions(
        &self,
        state: &State,
        checkpoint: &Checkpoint,
    ) -> Result<Vec<Position>> {
        let positions = checkpoint.positions_for(self.config.incarnation, self.config.logs)?;
        for (log, (position, head)) in positions.iter().zip(state.heads()).enumerate() {
            if *position > head {
                return Err(ErrorKind::InvalidCheckpoint(format!(
                    "position {position} of log {log} is above its end {head}"
                ))
                .into());
            }
        }
        Ok(positions.to_vec())
    }

    pub(crate) fn after(&self, log: LogId, position: Position) -> Checkpoint {
        Checkpoint::in_log(self.config.incarnation, self.config.logs, log, position)
    }

    pub(crate) fn read_all(&self, state: &State, request: &ReadAll) -> Result<AllPage> {
        request.validate()?;
        let mut at = match &request.from {
            AllFrom::Start => vec![Position::START; state.logs.len()],
            AllFrom::Checkpoint(checkpoint) => self.positions(state, checkpoint)?,
            AllFrom::End => state.heads(),
        };
        let found = match request.direction {
            Direction::Forwards => state.read_forwards(&mut at, request)?,
            Direction::Backwards => state.read_backwards(&mut at, request)?,
        };
        Ok(AllPage {
            events: found.events,
            next: Checkpoint::logs(self.config.incarnation, at),
            end: found.end,
        })
    }
}
