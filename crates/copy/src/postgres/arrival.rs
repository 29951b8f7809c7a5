//! The end of a move in the database to which the store moves: it is opened, or given up. Both take the mark of the
//! same row from the same state, so only one of the two happens.

use gesta_core::{Error, ErrorKind, Result};
use gesta_sql::UNFINISHED_COPY;
use uuid::Uuid;

use super::{PostgresPart, failed};
use crate::batch::State;
use crate::part::{Finish, state_of, state_text};

impl PostgresPart {
    /// Prepares what would take long when nobody can append.
    pub(crate) async fn analyze(&self) -> Result<()> {
        self.run("ANALYZE events; ANALYZE streams; ANALYZE types; ANALYZE tags")
            .await
    }

    /// Opens the store here, by this move.
    ///
    /// # Errors
    /// `Unsupported` if the move was undone, or this is not its target; `Unavailable`: it may have been opened or not.
    pub(crate) async fn arrive(&self, id: Uuid, finish: Finish) -> Result<()> {
        self.run("BEGIN; SET LOCAL synchronous_commit TO on")
            .await?;
        let arrived = async {
            self.of_move(id).await?;
            let open = format!(
                "ALTER TABLE copying RENAME TO moved_here; \
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
        };
        let arrived = arrived.await;
        self.end(arrived).await
    }

    /// Gives up what was copied here by this move: from now on it is never opened.
    ///
    /// # Errors
    /// `Unsupported` if this is not the target of the move; `Unavailable`: it may have been given up or not.
    pub(crate) async fn abandon(&self, id: Uuid) -> Result<()> {
        self.run("BEGIN; SET LOCAL synchronous_commit TO on")
            .await?;
        let abandoned = async {
            let mut state = self.of_move(id).await?;
            if let Some(moving) = &mut state.moving {
                moving.is_undone = true;
            }
            let state = state_text(&state)?;
            let sql = "UPDATE copying SET state = $1";
            let put = self.client.execute(sql, &[&state]).await;
            put.map(drop).map_err(|error| failed(&error))
        };
        let abandoned = abandoned.await;
        self.end(abandoned).await
    }

    /// Reads the state of this move, and keeps others from changing it until the transaction ends.
    async fn of_move(&self, id: Uuid) -> Result<Box<State>> {
        let sql = "SELECT state FROM copying FOR UPDATE";
        let row = self.client.query_opt(sql, &[]).await;
        let row = row.map_err(|error| failed(&error))?;
        let state = row.map(|row| state_of(row.get(0))).transpose()?;
        let is_ours = |state: &State| {
            let moving = state.moving.as_ref();
            moving.is_some_and(|moving| moving.id == id && !moving.is_undone)
        };
        state.filter(|state| is_ours(state)).ok_or_else(|| {
            let text = "the target is not that of this move any more, or the move was undone";
            Error::new(ErrorKind::Unsupported(text.into()))
        })
    }
}
