//! [`Several`]: each call goes to the database of its log.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::{BoxStream, select_all};
use gesta_core::backend::{
    Backend, BackendInfo, EventLookup, EventRef, History, LoadRequest, Loaded, LogEnd, LogSlice,
    LogWriter, Purpose, Removed, RowId, Rows, RunMode, Signal, StoredId, StreamSlice,
};
use gesta_core::registry::Registry;
use gesta_core::{
    ContentType, Error, ErrorKind, LogId, LogMap, MapCopy, Position, Result, StreamId, Visibility,
    log_of,
};

use crate::check::{arrange, with_logs};
use crate::info::Joined;

/// One database of a store, open.
#[derive(Clone)]
pub struct Part {
    /// Its copy of the map of the logs.
    pub copy: Arc<MapCopy>,
    /// The database. It knows all logs of the store by their numbers, and holds events of some.
    pub backend: Arc<dyn Backend>,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Part").field(&self.copy.here).finish()
    }
}

/// A store whose logs lie in several databases.
///
/// If one of them loses commits in a fail-over, or is restored, the whole store has another incarnation: a checkpoint
/// names a position of every log.
pub struct Several {
    map: LogMap,
    /// In the order of the map.
    parts: Vec<Arc<dyn Backend>>,
    info: Joined,
}

impl std::fmt::Debug for Several {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Several").field(&self.map).finish()
    }
}

impl Several {
    /// Puts the databases of a store together, in any order, after checking that they are all of them and agree.
    ///
    /// # Errors
    /// `InvalidArgument` if a database is missing, there twice, or of another store; `Corrupt` if their maps differ, or
    /// one holds events of a log that lies in another; `Unavailable` if one does not answer.
    pub async fn open(parts: &[Part]) -> Result<Self> {
        let copies: Vec<&MapCopy> = parts.iter().map(|part| &*part.copy).collect();
        let places = arrange(&copies)?;
        let map = copies[places[0]].map.clone();
        let parts: Vec<_> = places
            .into_iter()
            .map(|at| Arc::clone(&parts[at].backend))
            .collect();
        let info = Joined::new(parts.iter().map(|part| part.info()).collect());
        let several = Self { map, parts, info };
        several.check_contents().await?;
        Ok(several)
    }

    /// Where each log lies.
    #[must_use]
    pub fn map(&self) -> &LogMap {
        &self.map
    }

    /// No database may hold events of a log that lies in another one.
    async fn check_contents(&self) -> Result<()> {
        let all = self.ends_of_parts(Purpose::Read).await?;
        for (place, ends) in all.iter().enumerate() {
            let not_empty = ends.iter().enumerate();
            let not_empty = not_empty.filter(|(_, end)| end.position > Position::START);
            for (log, end) in not_empty {
                let log = LogId(u16::try_from(log).unwrap_or(u16::MAX));
                let home = self.home(log)?;
                if home != place {
                    return Err(Error::corrupt(format!(
                        "log {log} lies in {}, but {} holds events of it, up to position {}",
                        self.map.describe(home),
                        self.map.describe(place),
                        end.position
                    )));
                }
            }
        }
        Ok(())
    }

    fn home(&self, log: LogId) -> Result<usize> {
        let home = self.map.home(log);
        home.ok_or_else(|| Error::corrupt(format!("the store has no log {log}")))
    }

    /// The database of a log, and a call of it whose error names the database.
    async fn at<'a, T, F: Future<Output = Result<T>>>(
        &'a self,
        log: LogId,
        call: impl FnOnce(&'a Arc<dyn Backend>) -> F,
    ) -> Result<T> {
        let home = self.home(log)?;
        let answer = call(&self.parts[home]).await;
        answer.map_err(|error| self.named(home, error))
    }

    /// Asks all databases at once.
    async fn all<'a, T, F: Future<Output = Result<T>>>(
        &'a self,
        call: impl Fn(&'a Arc<dyn Backend>) -> F,
    ) -> Result<Vec<T>> {
        let answers = join_all(self.parts.iter().map(call)).await;
        let answers = answers.into_iter().enumerate();
        let answers = answers.map(|(at, answer)| answer.map_err(|error| self.named(at, error)));
        let (done, failed): (Vec<_>, Vec<_>) = answers.partition(Result::is_ok);
        let mut failed = failed.into_iter().filter_map(Result::err);
        match failed.next() {
            None => Ok(done.into_iter().flatten().collect()),
            Some(first) => Err(failed.fold(first, and)),
        }
    }

    /// The ends that each database knows of all logs of the store.
    async fn ends_of_parts(&self, purpose: Purpose) -> Result<Vec<Vec<LogEnd>>> {
        let all = self.all(|part| part.log_ends(purpose)).await?;
        let logs = self.map.logs();
        for (place, ends) in all.iter().enumerate() {
            if ends.len() != usize::from(logs) {
                return Err(Error::corrupt(format!(
                    "the store has {logs} logs, but {} has {}",
                    self.map.describe(place),
                    ends.len()
                )));
            }
        }
        Ok(all)
    }

    /// Says which database is away.
    fn named(&self, place: usize, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Unavailable(why) => {
                let which = with_logs(&self.map, place);
                Error::unavailable(format!("{which}: {why}")).caused_by(error)
            }
            _ => error,
        }
    }
}

/// Two databases are away.
fn and(one: Error, other: Error) -> Error {
    match (one.kind(), other.kind()) {
        (ErrorKind::Unavailable(first), ErrorKind::Unavailable(second)) => {
            Error::unavailable(format!("{first}; {second}"))
        }
        (ErrorKind::Unavailable(_), _) => other,
        _ => one,
    }
}

#[async_trait]
impl Backend for Several {
    fn info(&self) -> Arc<BackendInfo> {
        self.info.get(self.parts.iter().map(|part| part.info()))
    }

    /// Each database's number only grows, so their sum changes whenever one of them does.
    fn history(&self) -> History {
        let of_parts: Vec<History> = self.parts.iter().map(|part| part.history()).collect();
        let incarnations = of_parts.iter().map(|history| history.incarnation);
        History {
            number: of_parts.iter().map(|history| history.number).sum(),
            incarnation: self.map.incarnation(incarnations),
        }
    }

    fn pack(&self, stream: &StreamId, content_type: ContentType, data: &Bytes) -> Option<Bytes> {
        let home = self.map.home(log_of(stream, self.map.logs()))?;
        self.parts[home].pack(stream, content_type, data)
    }

    async fn open_writer(&self, log: LogId) -> Result<Box<dyn LogWriter>> {
        self.at(log, |part| part.open_writer(log)).await
    }

    async fn log_end(&self, log: LogId, purpose: Purpose) -> Result<LogEnd> {
        self.at(log, |part| part.log_end(log, purpose)).await
    }

    async fn log_ends(&self, purpose: Purpose) -> Result<Vec<LogEnd>> {
        let of_parts = self.ends_of_parts(purpose).await?;
        let end = |log: LogId| Ok(of_parts[self.home(log)?][usize::from(log.0)]);
        (0..self.map.logs()).map(LogId).map(end).collect()
    }

    async fn load(&self, log: LogId, request: LoadRequest, purpose: Purpose) -> Result<Loaded> {
        self.at(log, |part| part.load(log, request, purpose)).await
    }

    async fn lookup(
        &self,
        log: LogId,
        lookup: EventLookup,
        purpose: Purpose,
    ) -> Result<Vec<EventRef>> {
        self.at(log, |part| part.lookup(log, lookup, purpose)).await
    }

    async fn read_ids(&self, log: LogId, after: Position, to: Position) -> Result<Vec<StoredId>> {
        self.at(log, |part| part.read_ids(log, after, to)).await
    }

    async fn read_stream(&self, slice: StreamSlice) -> Result<Rows> {
        self.at(slice.log, |part| part.read_stream(slice)).await
    }

    async fn read_streams(&self, log: LogId, slices: Vec<StreamSlice>) -> Result<Vec<Rows>> {
        self.at(log, |part| part.read_streams(log, slices)).await
    }

    async fn read_log(&self, slice: LogSlice) -> Result<Rows> {
        self.at(slice.log, |part| part.read_log(slice)).await
    }

    async fn list_streams(
        &self,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
    ) -> Result<Vec<StreamId>> {
        let found = self
            .all(|part| part.list_streams(prefix, after, limit))
            .await?;
        let mut names = found.concat();
        names.sort_unstable();
        names.truncate(limit);
        Ok(names)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        select_all(self.parts.iter().map(|part| part.signals())).boxed()
    }

    async fn send_signal(&self, signal: Signal) {
        let log = match signal {
            Signal::Appended { log, .. }
            | Signal::TurnRequested { log, .. }
            | Signal::TurnGranted { log, .. } => log,
            // Only within a process.
            Signal::Interrupted | Signal::HistoryChanged => return,
        };
        if let Some(home) = self.map.home(log) {
            self.parts[home].send_signal(signal).await;
        }
    }

    async fn remove_hidden(
        &self,
        log: LogId,
        stream: RowId,
        visibility: Visibility,
        mode: RunMode,
    ) -> Result<Removed> {
        self.at(log, |part| {
            part.remove_hidden(log, stream, visibility, mode)
        })
        .await
    }

    /// None: leases are a matter of each database, and a node of several is not built yet.
    fn registry(&self) -> Option<Arc<dyn Registry>> {
        None
    }

    async fn close(&self) {
        join_all(self.parts.iter().map(|part| part.close())).await;
    }
}
