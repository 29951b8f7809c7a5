//! The end of a copy or a move in the database that gets the store: it is opened, or a move is given up. Both take the
//! mark of the same row from the same state, so only one of the two happens.

use gesta_core::{Error, ErrorKind, Result};
use gesta_sql::UNFINISHED_COPY;
use uuid::Uuid;

use super::{PostgresPart, failed};
use crate::batch::State;
use crate::part::{Finish, state_of};

/// Begins a transaction whose commit is on the disk at its end, with all before it, and on the standbys for which
/// commits wait.
const BEGIN: &str = "BEGIN; SET LOCAL synchronous_commit TO on";

impl PostgresPart {
    /// Prepares what would take long when nobody can append.
    pub(crate) async fn analyze(&self) -> Result<()> {
        self.run("ANALYZE events; ANALYZE streams; ANALYZE types; ANALYZE tags")
            .await
    }

    /// Gives the id of its opening to the target of this move, which has everything.
    ///
    /// # Errors
    /// `Unsupported` if the move was undone, this is not its target, or something else writes here; `Unavailable` or
    /// `OutcomeUnknown`: it may have the id or not.
    pub(crate) async fn prepare(&self, id: Uuid, opening: Uuid) -> Result<()> {
        self.run(BEGIN).await?;
        let prepared = async {
            let mut state = self.of_move(id).await?;
            self.check_ends(&state.last).await?;
            if let Some(moving) = &mut state.moving {
                moving.opening = Some(opening);
            }
            self.put_state(&state).await
        };
        let prepared = prepared.await;
        self.end(prepared).await
    }

    /// Opens the store here, by this opening of this move.
    ///
    /// # Errors
    /// `Unsupported` if the move was undone, this is not its target, it is to be opened by another opening, or
    /// something else writes here; `Unavailable` or `OutcomeUnknown`: it may have been opened or not.
    pub(crate) async fn arrive(&self, id: Uuid, opening: Uuid, finish: Finish) -> Result<()> {
        self.run(BEGIN).await?;
        let arrived = async {
            let state = self.of_move(id).await?;
            if state.moving.as_ref().and_then(|moving| moving.opening) != Some(opening) {
                return Err(not_ours());
            }
            let unmark = "ALTER TABLE copying RENAME TO moved_here";
            self.open_for_users(&state, unmark, finish).await
        };
        let arrived = arrived.await;
        self.end(arrived).await
    }

    /// Makes certain that the store stays open here, by a commit that changes nothing: also if the commit that opened
    /// it was cut off while it waited for a synchronous standby.
    ///
    /// # Errors
    /// `Unavailable` or `OutcomeUnknown`: nothing is certain. `Corrupt` if the store was not opened here.
    pub(crate) async fn confirm_arrival(&self) -> Result<()> {
        self.run(BEGIN).await?;
        let sql = "UPDATE moved_here SET state = state";
        let confirmed = match self.client.execute(sql, &[]).await {
            Ok(1) => Ok(()),
            Ok(_) => Err(Error::corrupt(
                "the target does not say which move opened it",
            )),
            Err(error) => Err(failed(&error)),
        };
        self.end(confirmed).await
    }

    /// Opens the store here, of which a copy is whole. In the transaction of the caller.
    pub(super) async fn open_copy(&self, finish: Finish) -> Result<()> {
        let row = self.client.query_one(LOCK_STATE, &[]).await;
        let row = row.map_err(|error| failed(&error))?;
        let state = state_of(row.get(0))?;
        self.open_for_users(&state, "DROP TABLE copying", finish)
            .await
    }

    /// Opens the store, whose mark is taken away by `unmark`, unless something else has written to it. In the
    /// transaction of the caller.
    async fn open_for_users(&self, state: &State, unmark: &str, finish: Finish) -> Result<()> {
        self.check_ends(&state.last).await?;
        // From here on what is committed is on the disk: this commit, and all before it.
        let open = format!(
            "SET LOCAL synchronous_commit TO on; {unmark}; \
             UPDATE store SET schema_version = schema_version - {UNFINISHED_COPY}"
        );
        self.run(&open).await?;
        let sql = "UPDATE store SET incarnation = $1";
        let put = self.client.execute(sql, &[&finish.incarnation.0]).await;
        put.map_err(|error| failed(&error))?;
        match finish.virtual_streams {
            true => self.run("UPDATE virtual_index SET is_on = true").await,
            false => Ok(()),
        }
    }

    /// Gives up what was copied here by this move: from now on it is never opened.
    ///
    /// # Errors
    /// `Unsupported` if this is not the target of the move; `Unavailable` or `OutcomeUnknown`: it may have been given
    /// up or not.
    pub(crate) async fn abandon(&self, id: Uuid) -> Result<()> {
        self.run(BEGIN).await?;
        let abandoned = async {
            let mut state = self.of_move(id).await?;
            if let Some(moving) = &mut state.moving {
                moving.is_undone = true;
            }
            self.put_state(&state).await
        };
        let abandoned = abandoned.await;
        self.end(abandoned).await
    }

    /// Takes the mark of this move away, if nothing was copied here.
    ///
    /// # Errors
    /// `Unsupported` if this is not the target of the move, or has events; `Unavailable` or `OutcomeUnknown`.
    pub(crate) async fn unmark(&self, id: Uuid) -> Result<()> {
        self.run(BEGIN).await?;
        let unmarked = async {
            if self.of_move(id).await?.batches > 0 {
                return Err(not_ours());
            }
            self.check_ends(&vec![0; usize::from(self.logs)]).await?;
            self.run(&format!(
                "DROP TABLE copying; UPDATE store SET schema_version = schema_version - {UNFINISHED_COPY}"
            ))
            .await
        };
        let unmarked = unmarked.await;
        self.end(unmarked).await
    }

    /// Reads the state of this move, and keeps others from changing it until the transaction ends.
    async fn of_move(&self, id: Uuid) -> Result<Box<State>> {
        let row = self.client.query_opt(LOCK_STATE, &[]).await;
        let row = row.map_err(|error| failed(&error))?;
        let state = row.map(|row| state_of(row.get(0))).transpose()?;
        let is_ours = |state: &State| {
            let moving = state.moving.as_ref();
            moving.is_some_and(|moving| moving.id == id && !moving.is_undone)
        };
        state.filter(|state| is_ours(state)).ok_or_else(not_ours)
    }
}

/// Reads how far the copy has come, and keeps others from changing it until the transaction ends.
const LOCK_STATE: &str = "SELECT state FROM copying FOR UPDATE";

fn not_ours() -> Error {
    let text = "the target is not that of this move any more, or the move was undone";
    ErrorKind::Unsupported(text.into()).into()
}
