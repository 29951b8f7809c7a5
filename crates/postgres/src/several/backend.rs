//! [`Several`], a backend that passes each call on to the database of its log.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::{self, BoxStream, FuturesUnordered, select_all};
use gesta_core::backend::{
    Backend, BackendInfo, ClockReading, EventLookup, EventRef, History, LoadRequest, Loaded,
    LogEnd, LogSlice, LogTail, LogWriter, Purpose, Removed, RowId, Rows, RunMode, Signal, StoredId,
    StreamSlice, Topic,
};
use gesta_core::registry::Registry;
use gesta_core::{ContentType, Error, LogId, Position, Result, StreamId, Visibility, log_of};

use crate::log_map::LogMap;
use crate::several::check::OpenCopy;
use crate::several::info::Joined;
use crate::several::leases::Leases;
use crate::several::route::{DatabasePart, Routes};
use crate::several::writer::RoutedWriter;

/// A store whose logs lie in several databases.
///
/// If one of them loses commits in a fail-over, or is restored, the whole store has another incarnation: a checkpoint
/// names a position of every log. A log may move from one to another while this is open.
pub struct Several {
    routes: Arc<Routes>,
    /// How many logs the store has; this never changes.
    logs: u16,
    info: Joined,
}

impl std::fmt::Debug for Several {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Several").field(&self.map()).finish()
    }
}

impl Several {
    /// Opens a store out of its databases, which may be given in any order, after checking that they are all databases
    /// of one store and agree.
    ///
    /// # Errors
    /// `InvalidArgument` if a database is missing, given twice, or of another store; `Corrupt` if the copies of the map
    /// differ, or if the home of a log was set back and lacks what other databases know of the log; `Unavailable` if a
    /// database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn open(parts: &[DatabasePart]) -> Result<Self> {
        let routes = Arc::new(Routes::new(parts)?);
        let several = Self {
            logs: routes.map().logs(),
            info: Joined::new(routes.backends().map(|part| part.info()).collect()),
            routes,
        };
        several.check_contents().await?;
        Ok(several)
    }

    /// Returns the map that tells where each log lies, as far as this process knows.
    #[must_use]
    pub fn map(&self) -> Arc<LogMap> {
        self.routes.map()
    }

    /// Returns the copies of logs that were open when all databases were asked last. Each was warned of once.
    #[must_use]
    pub fn open_copies(&self) -> Vec<OpenCopy> {
        self.routes.open_copies()
    }

    /// Checks that every log is where the map says, and that its home has everything that any other database has of it.
    async fn check_contents(&self) -> Result<()> {
        for log in (0..self.logs).map(LogId) {
            let proven = self.routes.proven(log).await;
            proven.map_err(|error| match self.routes.why_lost(log) {
                Some(text) => Error::corrupt(text),
                None => error,
            })?;
        }
        Ok(())
    }

    /// Asks each database for the ends of all logs of the store, and returns the answers in the order of the databases.
    async fn ends_of_parts(&self, purpose: Purpose) -> Result<Vec<Vec<LogEnd>>> {
        let all = self.routes.all(|part| part.log_ends(purpose)).await?;
        let logs = self.logs;
        if let Some(ends) = all.iter().find(|ends| ends.len() != usize::from(logs)) {
            let found = ends.len();
            let text = format!("the store has {logs} logs, but a database of it has {found}");
            return Err(Error::corrupt(text));
        }
        Ok(all)
    }

    /// Asks one database for the ends of these logs, which lie in it by the map.
    async fn ends_at(
        &self,
        at: usize,
        logs: Vec<LogId>,
        purpose: Purpose,
    ) -> Vec<(LogId, Result<LogEnd>)> {
        let proven = logs.iter().copied().map(|log| self.routes.proven(log));
        let proven = join_all(proven).await;
        let ends = self.routes.backend(at).log_ends(purpose).await;
        let ends = ends.map_err(|error| self.routes.named(at, error));
        let mut each = Vec::with_capacity(logs.len());
        for (log, proven) in logs.into_iter().zip(proven) {
            let end = match (proven, &ends) {
                (Err(error), _) => Err(error),
                (_, Err(error)) => Err(error.clone()),
                (Ok(proven), Ok(ends)) => match ends.get(usize::from(log.0)) {
                    // The log has moved since the map was read, or moves just now.
                    Some(end) if proven.home != at || *end == LogEnd::CLOSED => {
                        self.log_end(log, purpose).await
                    }
                    Some(end) if self.routes.still_counts(proven) => Ok(*end),
                    Some(_) => Err(changed_meanwhile()),
                    None => Err(Error::corrupt(format!("a database lacks log {log}"))),
                },
            };
            each.push((log, end));
        }
        each
    }

    /// Checks that no database was set back since it had this history, so that its answers count.
    fn check_unchanged(&self, histories: &[u64]) -> Result<()> {
        if self.routes.histories() == histories {
            return Ok(());
        }
        Err(changed_meanwhile())
    }

    /// Reads a page of a log. If the page ends before the slice does, it is believed only if the log is still open in
    /// that database: where the log is closed, later rows lie in another database.
    async fn page(part: &Arc<dyn Backend>, slice: LogSlice) -> Result<Rows> {
        let (log, to) = (slice.log, slice.to);
        let rows = part.read_log(slice).await?;
        let highest = rows.events.iter().map(|event| event.position).max();
        if rows.complete && highest < Some(to) {
            part.log_end(log, Purpose::Read).await?;
        }
        Ok(rows)
    }

    /// Reads what follows a position of a log. A database that is one of several says itself that a log is closed in
    /// it, if the answer would have come to the end of the log. One that ends before a position that was named is
    /// believed as a page is.
    async fn tail(part: &Arc<dyn Backend>, tail: LogTail) -> Result<Rows> {
        let rows = part.read_tail(tail).await?;
        let highest = rows.events.last().map(|event| event.position);
        if rows.complete && tail.to.is_some_and(|to| highest < Some(to)) {
            part.log_end(tail.log, Purpose::Read).await?;
        }
        Ok(rows)
    }

    /// Lists the streams of one database whose logs lie in it. A database may also hold a copy of a log that was moved;
    /// the streams of that copy are left out.
    async fn names_at(
        &self,
        part: &Arc<dyn Backend>,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
    ) -> Result<Vec<StreamId>> {
        let mut names: Vec<StreamId> = Vec::new();
        let mut after = after.cloned();
        loop {
            let page = part.list_streams(prefix, after.as_ref(), limit).await?;
            let (count, last) = (page.len(), page.last().cloned());
            for name in page {
                let home = self.routes.home(log_of(&name, self.logs))?;
                if Arc::ptr_eq(self.routes.backend(home), part) && names.len() < limit {
                    names.push(name);
                }
            }
            if count < limit || names.len() >= limit {
                return Ok(names);
            }
            after = last;
        }
    }
}

#[async_trait]
impl Backend for Several {
    fn info(&self) -> Arc<BackendInfo> {
        self.info
            .get(self.routes.backends().map(|part| part.info()))
    }

    /// The number is the sum of those of all databases. Each of these only grows, so the sum changes whenever one of
    /// them does.
    fn history(&self) -> History {
        let of_parts: Vec<History> = self.routes.backends().map(|part| part.history()).collect();
        let incarnations = of_parts.iter().map(|history| history.incarnation);
        History {
            number: of_parts.iter().map(|history| history.number).sum(),
            incarnation: self.map().incarnation(incarnations),
        }
    }

    fn clock(&self, log: LogId) -> Option<ClockReading> {
        let home = self.routes.home(log).ok()?;
        self.routes.backend(home).clock(log)
    }

    fn refuses_appends(&self, log: LogId) -> Option<String> {
        let home = self.routes.home(log).ok()?;
        self.routes.backend(home).refuses_appends(log)
    }

    fn pack(&self, stream: &StreamId, content_type: ContentType, data: &Bytes) -> Option<Bytes> {
        let home = self.routes.home(log_of(stream, self.logs)).ok()?;
        self.routes.backend(home).pack(stream, content_type, data)
    }

    fn ready(&self) -> Result<()> {
        self.routes.backends().try_for_each(|part| part.ready())
    }

    async fn open_writer(&self, log: LogId) -> Result<Box<dyn LogWriter>> {
        let (at, history) = (self.routes.home(log)?, self.routes.history());
        let inner = self.routes.at(log, |part| part.open_writer(log)).await?;
        // If the log has moved since, or a database was set back, the writer says so with the first batch.
        Ok(Box::new(RoutedWriter {
            inner,
            routes: Arc::clone(&self.routes),
            log,
            at,
            history,
        }))
    }

    async fn log_end(&self, log: LogId, purpose: Purpose) -> Result<LogEnd> {
        self.routes.at(log, |part| part.log_end(log, purpose)).await
    }

    async fn log_ends(&self, purpose: Purpose) -> Result<Vec<LogEnd>> {
        let (map, histories) = self.routes.all_proven().await?;
        let of_parts = self.ends_of_parts(purpose).await?;
        self.check_unchanged(&histories)?;
        let mut ends = Vec::with_capacity(usize::from(self.logs));
        for log in (0..self.logs).map(LogId) {
            let end = of_parts[self.routes.home_in(&map, log)?][usize::from(log.0)];
            ends.push(match end == LogEnd::CLOSED {
                // The log has moved since the map was read, or moves just now.
                true => self.log_end(log, purpose).await?,
                false => end,
            });
        }
        Ok(ends)
    }

    fn each_log_end(&self, purpose: Purpose) -> BoxStream<'_, (LogId, Result<LogEnd>)> {
        let mut nowhere = Vec::new();
        let mut logs_at: BTreeMap<usize, Vec<LogId>> = BTreeMap::new();
        for log in (0..self.logs).map(LogId) {
            match self.routes.home(log) {
                Ok(at) => logs_at.entry(at).or_default().push(log),
                Err(error) => nowhere.push((log, Err(error))),
            }
        }
        let asked = logs_at.into_iter();
        let asked = asked.map(|(at, logs)| self.ends_at(at, logs, purpose));
        let asked: FuturesUnordered<_> = asked.collect();
        let told = asked.flat_map(stream::iter);
        stream::iter(nowhere).chain(told).boxed()
    }

    async fn load(&self, log: LogId, request: LoadRequest, purpose: Purpose) -> Result<Loaded> {
        self.routes
            .at(log, |part| part.load(log, request.clone(), purpose))
            .await
    }

    async fn lookup(
        &self,
        log: LogId,
        lookup: EventLookup,
        purpose: Purpose,
    ) -> Result<Vec<EventRef>> {
        self.routes
            .at(log, |part| part.lookup(log, lookup.clone(), purpose))
            .await
    }

    async fn read_ids(&self, log: LogId, after: Position, to: Position) -> Result<Vec<StoredId>> {
        self.routes
            .at(log, |part| part.read_ids(log, after, to))
            .await
    }

    async fn read_stream(&self, slice: StreamSlice) -> Result<Rows> {
        self.routes
            .at(slice.log, |part| part.read_stream(slice.clone()))
            .await
    }

    async fn read_streams(&self, log: LogId, slices: Vec<StreamSlice>) -> Result<Vec<Rows>> {
        self.routes
            .at(log, |part| part.read_streams(log, slices.clone()))
            .await
    }

    async fn read_log(&self, slice: LogSlice) -> Result<Rows> {
        self.routes
            .at(slice.log, |part| Self::page(part, slice.clone()))
            .await
    }

    async fn read_tail(&self, tail: LogTail) -> Result<Rows> {
        self.routes
            .at(tail.log, |part| Self::tail(part, tail))
            .await
    }

    async fn list_streams(
        &self,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
    ) -> Result<Vec<StreamId>> {
        let (_, histories) = self.routes.all_proven().await?;
        let found = self
            .routes
            .all(|part| self.names_at(part, prefix, after, limit))
            .await?;
        self.check_unchanged(&histories)?;
        let mut names = found.concat();
        names.sort_unstable();
        names.dedup();
        names.truncate(limit);
        Ok(names)
    }

    fn signals(&self, topic: Topic) -> BoxStream<'static, Signal> {
        let of_parts = self.routes.backends().enumerate().map(|(at, part)| {
            let routes = Arc::clone(&self.routes);
            let received = move |signal| followed(Arc::clone(&routes), at, signal);
            part.signals(topic).then(received).boxed()
        });
        select_all(of_parts).boxed()
    }

    async fn send_signal(&self, signal: Signal) {
        let log = match signal {
            Signal::Appended { log, .. } | Signal::GiveWay { log, .. } => log,
            // These signals stay within a process.
            Signal::Interrupted | Signal::HistoryChanged => return,
        };
        if let Ok(home) = self.routes.home(log) {
            self.routes.backend(home).send_signal(signal).await;
        }
    }

    async fn remove_hidden(
        &self,
        log: LogId,
        stream: RowId,
        visibility: Visibility,
        mode: RunMode,
    ) -> Result<Removed> {
        let histories = &self.routes.histories();
        self.routes
            .at(log, |part| async move {
                // In another history the row of the stream may be that of another stream.
                self.check_unchanged(histories)?;
                part.remove_hidden(log, stream, visibility, mode).await
            })
            .await
    }

    /// There is no registry of the whole store, since each database has its own.
    fn registry(&self) -> Option<Arc<dyn Registry>> {
        None
    }

    fn registries(&self) -> Vec<Arc<dyn Registry>> {
        let parts = self.routes.backends().map(|part| part.registry());
        let parts: Option<Vec<_>> = parts.collect();
        // A database without a registry is used by this process alone, and so is the whole store then.
        let parts = parts.unwrap_or_default().into_iter().enumerate();
        let leases =
            |(at, inner)| Arc::new(Leases::new(inner, &self.routes, at)) as Arc<dyn Registry>;
        parts.map(leases).collect()
    }

    async fn close(&self) {
        join_all(self.routes.backends().map(|part| part.close())).await;
    }
}

/// The error of a read during which a database was set back.
fn changed_meanwhile() -> Error {
    Error::unavailable("the history of a database has changed meanwhile: try again")
}

/// Passes on a message from the database at place `at`. If the message is about a log that this process believes to be
/// in another database, the log has moved, and the map is read again.
async fn followed(routes: Arc<Routes>, at: usize, signal: Signal) -> Signal {
    if let Signal::Appended { log, .. } = signal
        && routes.home(log).is_ok_and(|home| home != at)
    {
        routes.read_again(routes.map().version()).await;
    }
    signal
}
