//! A store in PostgreSQL that moves.

use async_trait::async_trait;
use gesta::{Database, Options};
use gesta_core::{LogId, Result};
use gesta_postgres::{Blocker, Config, Departure, Ends, LogMark, Moved, NotClosed, Stand};
use gesta_sql::verify::AuditSource;
use uuid::Uuid;

use crate::moving::{Note, SourceStand};
use crate::source::{Closing, Copied, Look, Source};
use crate::target::named;

/// How many rows may be missing in the copy when the source is closed. They are copied while nothing can be appended.
const NEAR: i64 = 1_000;

/// A store in one database.
pub(crate) struct PostgresSource {
    departure: Departure,
    url: String,
    /// The store as it is read; `None` until it is needed.
    database: Option<Database>,
}

impl PostgresSource {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let url = named(url);
        Ok(Self {
            departure: Departure::open(&Config::parse(&url)?).await?,
            url,
            database: None,
        })
    }
}

fn note(moved: Moved) -> Note {
    Note {
        id: moved.id,
        place: moved.place,
        copied: moved.copied,
    }
}

/// What was copied, as the database compares it with what it holds.
fn ends_of(copied: &Copied) -> Ends {
    let marks = copied.look.ends.iter().zip(&copied.marks);
    let mark = |(position, checksum): (&i64, &i64)| LogMark {
        position: *position,
        checksum: *checksum,
    };
    Ends {
        incarnation: copied.look.incarnation,
        marks: marks.map(mark).collect(),
        scavenged: copied.look.scavenged,
        virtual_streams: copied.look.virtual_streams,
    }
}

fn closing(done: std::result::Result<(), NotClosed>) -> Closing {
    match done {
        Ok(()) => Closing::Done,
        Err(NotClosed::Busy) => Closing::Later,
        Err(NotClosed::Changed) => Closing::Changed,
        Err(NotClosed::Scavenged) => Closing::Scavenged,
        Err(NotClosed::OtherHistory) => Closing::OtherHistory,
    }
}

#[async_trait]
impl Source for PostgresSource {
    fn near(&self) -> i64 {
        NEAR
    }

    async fn lock(&mut self) -> Result<()> {
        self.departure.lock().await
    }

    async fn logs(&mut self) -> Result<u16> {
        self.departure.logs().await
    }

    async fn stand(&mut self) -> Result<SourceStand> {
        Ok(match self.departure.stand().await? {
            Stand::Open => SourceStand::Open,
            Stand::Closed(moved) => SourceStand::Closed(note(moved)),
            Stand::Shut(moved) => SourceStand::Shut(note(moved)),
            Stand::Opening(moved, opening) => SourceStand::Opening(note(moved), opening),
            Stand::Opened(moved, opening) => SourceStand::Opened(note(moved), opening),
        })
    }

    async fn look(&mut self) -> Result<Look> {
        let ends = self.departure.ends().await?;
        Ok(Look {
            incarnation: ends.incarnation,
            ends: ends.marks.iter().map(|mark| mark.position).collect(),
            scavenged: ends.scavenged,
            virtual_streams: ends.virtual_streams,
        })
    }

    async fn has(&mut self, log: u16, position: i64, checksum: i64) -> Result<bool> {
        let mark = LogMark { position, checksum };
        self.departure.has(LogId(log), mark).await
    }

    async fn rows(&mut self) -> Result<Box<dyn AuditSource>> {
        if self.database.is_none() {
            self.database = Some(Database::open(&self.url, &Options::default()).await?);
        }
        match &self.database {
            Some(database) => database.rows().await,
            None => Err(gesta_core::Error::unavailable("the source is closed")),
        }
    }

    async fn close(&mut self, to: &Note, copied: &Copied) -> Result<Closing> {
        let to = Moved {
            id: to.id,
            place: to.place.clone(),
            copied: None,
        };
        self.departure
            .close(&to, &ends_of(copied))
            .await
            .map(closing)
    }

    async fn shut(&mut self, id: Uuid, digest: &str, copied: &Copied) -> Result<Closing> {
        self.end().await;
        let seen = ends_of(copied);
        self.departure.shut(id, digest, &seen).await.map(closing)
    }

    async fn note_opening(&mut self, id: Uuid, opening: Uuid) -> Result<()> {
        self.departure.note_opening(id, opening).await
    }

    async fn note_opened(&mut self, id: Uuid, opening: Uuid) -> Result<()> {
        self.departure.note_opened(id, opening).await
    }

    async fn blockers(&mut self) -> Result<Vec<Blocker>> {
        self.departure.blockers().await
    }

    async fn reopen(&mut self, id: Uuid) -> Result<Closing> {
        self.end().await;
        Ok(match self.departure.reopen(id).await? {
            true => Closing::Done,
            false => Closing::Later,
        })
    }

    async fn end(&mut self) {
        if let Some(database) = self.database.take() {
            database.close().await;
        }
    }
}
