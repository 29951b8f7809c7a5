//! Shows as entities: brings the domain, its events on disk and the store together.

use std::convert::Infallible;
use std::sync::Arc;

use gesta::entity::{
    Builder, Entities, EntityType, Error, OwnerStore, Peers, Request, Snapshots, Stats,
};
use gesta::{Clock, ContentType};
use uuid::Uuid;

use crate::config::Config;
use crate::domain::{Command, Rejection, Show};
use crate::events::{self, CATEGORY, SNAPSHOT_VERSION, ShowEvents};

/// All shows. The handle is cheap to clone.
#[derive(Clone, Debug)]
pub struct Shows {
    entities: Entities<Show>,
    stale_reads: bool,
}

impl Shows {
    /// Starts the runtime of the shows of a store. With other nodes on its database, `peers`, commands and reads go to
    /// the node that owns the stream of the show.
    ///
    /// # Errors
    /// None: all names are valid.
    pub fn start(
        store: Arc<dyn OwnerStore>,
        peers: Option<Arc<dyn Peers>>,
        config: &Config,
        clock: Arc<dyn Clock>,
    ) -> gesta::Result<Self> {
        let mut kind = EntityType::new(CATEGORY, ShowEvents)?
            .idempotent_replies_by(events::form_of_command)
            .forwarded();
        if config.snapshot_every > 0 {
            let snapshots = Snapshots::with(
                SNAPSHOT_VERSION,
                ContentType::Binary,
                events::snapshot_of,
                events::show_of,
            );
            kind = kind.snapshots(snapshots.every(config.snapshot_every));
        }
        let runtime = gesta::entity::Config {
            commands_max: config.commands_max,
            reads_max: config.commands_max,
            active_max: config.active_max,
            idle_after: config.idle_after,
            forward_within: config.forward_within,
            ..gesta::entity::Config::default()
        };
        let mut builder = Builder::new().config(runtime).clock(clock);
        if let Some(peers) = peers {
            builder = builder.peers(peers);
        }
        Ok(Self {
            entities: builder.start(store, kind),
            stale_reads: config.stale_reads,
        })
    }

    /// Carries out a command. A retry with its key gets the first answer; another command with that key is refused.
    ///
    /// # Errors
    /// The rejection, or the reason why there is no answer.
    ///
    /// # Cancel safety
    /// Once the future was polled, the command is carried out even if the future is dropped.
    pub async fn execute(
        &self,
        show_id: Uuid,
        command: Command,
        idempotency_key: Option<String>,
    ) -> Result<(), Error<Rejection>> {
        let request = Request {
            command,
            idempotency_key,
        };
        let done = self.entities.submit(&show_id.to_string(), request).await;
        done.map(|done| done.reply)
    }

    /// Returns a show; `None` if it was not created. With `--stale-reads` changes by another process may be missing.
    ///
    /// # Errors
    /// The reason why there is no answer.
    pub async fn show(&self, show_id: Uuid) -> Result<Option<Show>, Error<Infallible>> {
        let id = show_id.to_string();
        let read = |show: &Show| show.exists().then(|| show.clone());
        match self.stale_reads {
            false => self.entities.read(&id, read).await,
            true => self.entities.read_stale(&id, read).await,
        }
    }

    /// Returns what the runtime has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.entities.stats()
    }

    /// Takes no more commands, and answers those that wait.
    pub async fn shutdown(&self) {
        self.entities.shutdown().await;
    }
}
