//! The target of a copy: its databases together.

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::try_join_all;
use gesta::{Database, Options};
use gesta_core::{Error, ErrorKind, Result};
use gesta_postgres::Config;
use gesta_sql::verify::AuditName;
use gesta_sqlite::{Location, SqliteConfig};

use crate::batch::{Batch, State};
use crate::compare::{Comparison, names_after};
use crate::digest::Digest;
use crate::part::{Finish, Found, Names, Part, used};
use crate::postgres::{COPY_NAME, PostgresPart};
use crate::refusal::refuse;
use crate::sqlite::SqlitePart;

/// The databases of a target.
pub(crate) struct Target {
    parts: Vec<Box<dyn Part>>,
    /// How many batches each of them has.
    written: Vec<u64>,
    /// Why the store cannot be opened: it is the unfinished target of a copy, or is not of this version.
    closed: Option<Error>,
}

/// What a target holds.
pub(crate) enum Stand {
    /// Nothing yet.
    Empty,
    /// A copy that goes on after this state.
    Unfinished(Box<State>),
    /// A store that a move has opened.
    Arrived,
}

/// Tells whether a URL names a SQLite file.
pub(crate) fn is_sqlite(url: &str) -> bool {
    url.starts_with("sqlite:")
}

/// Returns the URL of a source, by which its sessions are told from those of other programs of Gesta.
pub(crate) fn named(source: &str) -> String {
    let named = source.split_whitespace().map(|url| {
        if !url.starts_with("postgres") || url.contains("application_name=") {
            return url.to_owned();
        }
        let sign = if url.contains('?') { '&' } else { '?' };
        format!("{url}{sign}application_name={COPY_NAME}")
    });
    match is_sqlite(source) {
        // A path may have spaces.
        true => source.to_owned(),
        false => named.collect::<Vec<_>>().join(" "),
    }
}

/// Returns the file that a URL names; `None` if it names something else.
pub(crate) fn file_of(url: &str) -> Result<Option<PathBuf>> {
    if !is_sqlite(url) {
        return Ok(None);
    }
    match SqliteConfig::parse(url)?.location {
        Location::File(path) => Ok(Some(path)),
        Location::Memory => Err(Error::invalid("target", "must be a file, not memory")),
    }
}

/// Makes the store if there is none. Returns why it cannot be opened, if it cannot.
pub(crate) async fn make(url: &str, logs: u16) -> Result<Option<Error>> {
    let opened = Database::open(url, &Options::default()).await;
    let closed = match opened {
        Ok(database) => {
            database.close().await;
            return Ok(None);
        }
        Err(error) if matches!(error.kind(), ErrorKind::Schema(_)) => error,
        Err(error) => return Err(error),
    };
    // A file that holds something is not touched. What was killed while it made the store leaves one without
    // tables.
    if let Some(path) = file_of(url)?
        && path.exists()
        && !SqlitePart::is_blank(&path).await?
    {
        return Ok(Some(closed));
    }
    // What is there may have another number of logs than a store that is made.
    if !is_sqlite(url) && has_store(url).await? {
        return Ok(Some(closed));
    }
    match gesta::schema::create(url, logs).await {
        Ok(_) => Ok(None),
        Err(error) if matches!(error.kind(), ErrorKind::Schema(_)) => Ok(Some(closed)),
        Err(error) => Err(error),
    }
}

/// Tells whether a database without a mark is one that was opened when the copy was whole: it has all that was copied
/// to it. One that was set back to a moment before the copy has no mark either.
async fn was_opened(part: &mut dyn Part, found: &Found, whole: &State) -> Result<bool> {
    let at = |log: u16| usize::from(log);
    Ok(match found {
        Found::Empty => {
            let mut own = part.own().iter();
            own.all(|log| whole.last[at(*log)] == 0 && whole.next[at(*log)] <= 1)
        }
        // It may have got events since.
        Found::Used => {
            let ends = part.ends().await?;
            ends.iter().all(|(log, end)| *end >= whole.last[at(*log)])
        }
        Found::Unfinished(_) | Found::Arrived(_) => false,
    })
}

/// Tells whether each of the databases that a URL names has a store. It may be one that does not open.
async fn has_store(url: &str) -> Result<bool> {
    for url in url.split_whitespace() {
        if PostgresPart::open(&Config::parse(url)?).await?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Target {
    /// Opens the store at `url`, and makes it with this number of logs if there is none.
    pub(crate) async fn open(url: &str, logs: u16) -> Result<Self> {
        let closed = make(url, logs).await?;
        let mut parts: Vec<Box<dyn Part>> = Vec::new();
        match file_of(url)? {
            Some(path) => parts.push(Box::new(SqlitePart::open(&path).await?)),
            None => {
                for url in url.split_whitespace() {
                    let config = Config::parse(url)?;
                    let part = PostgresPart::open(&config).await?;
                    let gone =
                        || Error::unavailable(format!("{}: the store is gone", config.name()));
                    parts.push(Box::new(part.ok_or_else(gone)?));
                }
            }
        }
        let target = Self {
            written: vec![0; parts.len()],
            parts,
            closed,
        };
        let mut own: Vec<u16> = target
            .parts
            .iter()
            .flat_map(|part| part.own())
            .copied()
            .collect();
        own.sort_unstable();
        if own != (0..target.logs()).collect::<Vec<_>>() {
            return refuse(format!(
                "the target must be named with all of its databases: those named hold {} of {} logs",
                own.len(),
                target.logs()
            ));
        }
        Ok(target)
    }

    /// Returns how many logs the target has.
    pub(crate) fn logs(&self) -> u16 {
        self.parts.first().map_or(1, |part| part.logs())
    }

    /// Returns how many databases the target has.
    pub(crate) fn databases(&self) -> usize {
        self.parts.len()
    }

    /// Finds out what is there.
    ///
    /// # Errors
    /// `Unsupported` if the target had events before, or its databases do not belong to one copy.
    pub(crate) async fn stand(&mut self) -> Result<Stand> {
        let mut found = Vec::new();
        for part in &mut self.parts {
            found.push(part.look().await?);
        }
        if found.iter().any(|found| matches!(found, Found::Arrived(_))) {
            return Ok(Stand::Arrived);
        }
        let states = found.iter().filter_map(|found| match found {
            Found::Unfinished(state) => Some(state),
            Found::Empty | Found::Arrived(_) | Found::Used => None,
        });
        let Some(oldest) = states.clone().min_by_key(|state| state.batches) else {
            return match found.iter().position(|found| matches!(found, Found::Used)) {
                Some(at) => Err(used(self.parts[at].name())),
                None => match self.closed.take() {
                    Some(closed) => Err(closed),
                    None => Ok(Stand::Empty),
                },
            };
        };
        let oldest = oldest.clone();
        if states.clone().any(|state| state.origin != oldest.origin) {
            return refuse("the databases of the target belong to different copies");
        }
        // A verified copy was being opened, so some databases may be served already. A database that has lost batches
        // since is not what was compared.
        let verified = states.clone().find(|state| state.is_verified).cloned();
        let mut all = states.clone();
        let verified = verified.filter(|_| all.all(|state| state.batches == oldest.batches));
        for (at, found) in found.iter().enumerate() {
            let is_opened = match &verified {
                Some(state) => was_opened(&mut *self.parts[at], found, state).await?,
                None => false,
            };
            self.written[at] = match found {
                Found::Unfinished(state) => state.batches,
                _ if is_opened => u64::MAX,
                Found::Empty if oldest.batches == 0 => continue,
                Found::Empty | Found::Arrived(_) | Found::Used => {
                    return refuse(format!(
                        "one of {} has lost what was copied to it: begin with empty databases",
                        self.names_of_parts()
                    ));
                }
            };
        }
        if let Some(verified) = verified {
            return Ok(Stand::Unfinished(verified));
        }
        for (part, found) in self.parts.iter_mut().zip(&found) {
            if let Found::Unfinished(state) = found
                && state.is_verified
            {
                let compared_again = State {
                    is_verified: false,
                    ..(**state).clone()
                };
                part.put(&compared_again).await?;
            }
        }
        Ok(Stand::Unfinished(oldest))
    }

    fn names_of_parts(&self) -> String {
        let names: Vec<&str> = self.parts.iter().map(|part| part.name()).collect();
        names.join(", ")
    }

    /// Marks the databases that are not marked yet.
    pub(crate) async fn begin(&mut self, state: &State) -> Result<()> {
        for part in &mut self.parts {
            if matches!(part.look().await?, Found::Empty) {
                part.begin(state).await?;
            }
        }
        Ok(())
    }

    /// Writes a batch to the databases that have not got it yet. `state` is the one after it.
    pub(crate) async fn write(&mut self, batch: &Arc<Batch>, state: &State) -> Result<()> {
        let parts = self.parts.iter_mut().zip(&mut self.written);
        let behind = parts.filter(|(_, written)| **written < state.batches);
        let writes = behind.map(async |(part, written)| {
            part.write(batch, state).await?;
            *written = state.batches;
            Ok::<_, Error>(())
        });
        try_join_all(writes).await.map(drop)
    }

    /// Reads the names that a log of the target has: of streams and of types.
    pub(crate) async fn names(&mut self, log: u16) -> Result<(Vec<AuditName>, Vec<AuditName>)> {
        let part = &mut **self.part(log)?;
        let streams = names_after(part, Names::Streams, log, i64::MIN).await?;
        let types = names_after(part, Names::Types, log, i64::MIN).await?;
        Ok((streams, types))
    }

    /// Waits until no other program of Gesta uses a database of the target.
    pub(crate) async fn alone(&mut self) -> Result<()> {
        for part in &mut self.parts {
            part.alone().await?;
        }
        Ok(())
    }

    /// Names the target for people.
    pub(crate) fn name(&self) -> &str {
        self.parts.first().map_or("the target", |part| part.name())
    }

    fn part(&mut self, log: u16) -> Result<&mut Box<dyn Part>> {
        let mut parts = self.parts.iter_mut();
        let part = parts.find(|part| part.own().contains(&log));
        part.ok_or_else(|| Error::corrupt(format!("no database of the target has log {log}")))
    }

    /// Reads everything back, and computes what it shows. `observe` is told how many events were read.
    ///
    /// # Errors
    /// `Corrupt` if a row is damaged.
    pub(crate) async fn digest(&mut self, mut observe: impl FnMut(u64) + Send) -> Result<Digest> {
        let mut comparison = Comparison::new(self.logs());
        for log in 0..self.logs() {
            comparison
                .read_on(&mut **self.part(log)?, log, &mut observe)
                .await?;
            comparison.forget_names(log);
        }
        Ok(comparison.done.digest)
    }

    /// Notes in every database that the target shows what the source shows.
    pub(crate) async fn verified(&mut self, state: &State) -> Result<()> {
        for (part, written) in self.parts.iter_mut().zip(&self.written) {
            if *written != u64::MAX {
                part.put(state).await?;
            }
        }
        Ok(())
    }

    /// Opens the target for its users.
    pub(crate) async fn finish(&mut self, finish: Finish) -> Result<()> {
        for (part, written) in self.parts.iter_mut().zip(&self.written) {
            if *written != u64::MAX {
                part.finish(finish).await?;
            }
        }
        Ok(())
    }
}
