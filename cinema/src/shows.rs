//! Shows as entities: how the domain, its events on disk and the store come together.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use gesta::entity::{Config, Entities, EntityType, Error, Request, Snapshots, Stats};
use gesta::{ContentType, OwnerStore, SystemClock};
use uuid::Uuid;

use crate::domain::{Command, Rejection, Show};
use crate::events::{self, CATEGORY, SNAPSHOT_VERSION};

/// What answers of `GET /shows/{id}` rest on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// The state, confirmed by the store: nothing that was stored before the call is missing.
    Confirmed,
    /// The state as this process knows it: changes by another process may be missing.
    Stale,
}

/// How shows are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Most commands that may wait, over all shows.
    pub commands_max: usize,
    /// Most shows in memory.
    pub active_max: usize,
    /// How long a show that nobody uses stays in memory.
    pub idle_after: Duration,
    /// Events between two snapshots of a show; 0 for none.
    pub snapshot_every: u64,
    /// What reads rest on.
    pub reads: Reads,
}

/// All shows. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shows {
    entities: Entities<Show>,
    reads: Reads,
}

impl Shows {
    /// Starts the runtime of the shows of a store.
    ///
    /// # Errors
    /// None: all names are valid.
    pub fn start(store: Arc<dyn OwnerStore>, settings: Settings) -> gesta::Result<Self> {
        let mut kind = EntityType::new(CATEGORY, events::codec()?)?
            .idempotent_replies_by(events::form_of_command);
        if settings.snapshot_every > 0 {
            let snapshots = Snapshots::with(
                SNAPSHOT_VERSION,
                ContentType::Binary,
                events::snapshot_of,
                events::show_of,
            );
            kind = kind.snapshots(snapshots.every(settings.snapshot_every));
        }
        let config = Config {
            commands_max: settings.commands_max,
            reads_max: settings.commands_max,
            active_max: settings.active_max,
            idle_after: settings.idle_after,
            ..Config::default()
        };
        Ok(Self {
            entities: Entities::start(store, kind, config, Arc::new(SystemClock)),
            reads: settings.reads,
        })
    }

    /// Carries a command out. A retry with the same key gets the first answer; another command with it is refused.
    ///
    /// # Errors
    /// The rejection, or why there is no answer.
    ///
    /// # Cancel safety
    /// Once polled, the command is carried out whether or not the future lives.
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
        let id = show_id.hyphenated();
        let done = self
            .entities
            .submit(id.encode_lower(&mut Uuid::encode_buffer()), request);
        done.await.map(|done| done.reply)
    }

    /// A show; `None` if it was not created.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn show(&self, show_id: Uuid) -> Result<Option<Show>, Error<Infallible>> {
        let mut buffer = Uuid::encode_buffer();
        let id: &str = show_id.hyphenated().encode_lower(&mut buffer);
        let read = |show: &Show| show.exists().then(|| show.clone());
        match self.reads {
            Reads::Confirmed => self.entities.read(id, read).await,
            Reads::Stale => self.entities.read_stale(id, read).await,
        }
    }

    /// What the runtime has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.entities.stats()
    }

    /// Takes no more commands and answers those that wait.
    pub async fn shutdown(&self) {
        self.entities.shutdown().await;
    }
}
