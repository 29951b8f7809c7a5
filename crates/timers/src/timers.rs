//! What an application calls.

use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use gesta_core::system_streams::TIMERS_PREFIX;
use gesta_core::{
    Clock, Error, EventStore, RecordedEvent, Result, StreamId, SystemClock, routing_key,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::book::Book;
use crate::config::Config;
use crate::load;
use crate::owner::{self, Own};
use crate::requests::{Place, Requests};
use crate::running::{RunningTimers, Status};
use crate::states::States;
use crate::timer::{FireError, NewTimer, Timer, check_key};

/// The greatest number of bytes of a name.
pub const NAME_BYTES_MAX: usize = 40;

/// The timers of one name. Clones are cheap.
///
/// Anybody sets and cancels timers; each process that calls [`run`](Self::run) can fire them, and one at a time does.
#[derive(Clone)]
pub struct Timers {
    store: Arc<dyn EventStore>,
    name: String,
    requests: Requests,
    states: States,
    config: Config,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Timers").field(&self.name).finish()
    }
}

impl Timers {
    /// Returns the timers of a name in a store: a letter, then up to 39 lower-case letters, digits and `_`. They lie in
    /// the streams `$timers-{NAME}` and `$timers-{NAME}-state`, hence in one log.
    ///
    /// # Errors
    /// `InvalidArgument` if the name breaks the rule.
    pub fn on(store: &Arc<dyn EventStore>, name: &str) -> Result<Self> {
        let mut rest = name.chars();
        let begins = rest.next().is_some_and(|first| first.is_ascii_lowercase());
        let is_allowed =
            |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_';
        if !begins || !rest.all(is_allowed) || name.len() > NAME_BYTES_MAX {
            let rule = format!(
                "must be a lower-case letter, then up to {} lower-case letters, digits and _, found {name:?}",
                NAME_BYTES_MAX - 1
            );
            return Err(Error::invalid("name", rule));
        }
        Self::of(Arc::clone(store), name, TIMERS_PREFIX)
    }

    fn of(store: Arc<dyn EventStore>, name: &str, prefix: &str) -> Result<Self> {
        let (requests, states) = streams(prefix, name)?;
        Ok(Self {
            requests: Requests::new(Arc::clone(&store), requests)?,
            states: States::new(Arc::clone(&store), states)?,
            store,
            name: name.to_owned(),
            config: Config::default(),
            clock: Arc::new(SystemClock),
        })
    }

    /// Sets what the names of the streams begin with: `$timers-` unless said otherwise. Streams that begin with `$` are
    /// for administrators on a server with users. Others are for every user unless their `$acl` says otherwise, and
    /// whoever may append to them decides about the timers: give them to the user of the application alone.
    ///
    /// # Errors
    /// `InvalidArgument` if no stream can have such a name, or if both streams would not lie in one log (a prefix with
    /// `{}`).
    pub fn keep_in(self, prefix: &str) -> Result<Self> {
        let kept = Self::of(self.store, &self.name, prefix)?;
        Ok(Self {
            config: self.config,
            clock: self.clock,
            ..kept
        })
    }

    /// Sets bounds and times.
    #[must_use]
    pub fn config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Sets the clock by which timers fire.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// Sets a timer. Once this returns, the timer fires whatever dies, unless one of the same key is set in its place
    /// or it is cancelled.
    ///
    /// # Errors
    /// `InvalidArgument` if the key is empty, too long or holds control characters, the time is not from 1970 to 9999,
    /// or the data is too long; the errors of an append. After `OutcomeUnknown` the timer may be set: set the same
    /// value again.
    ///
    /// # Cancel safety
    /// If the future is dropped, the timer may be set.
    pub async fn set(&self, timer: &NewTimer) -> Result<()> {
        timer.validate()?;
        self.requests.set(timer).await
    }

    /// Cancels the timer of a key, if one is pending. One whose time has not come does not fire then; one that is
    /// firing ends what it does.
    ///
    /// # Errors
    /// `InvalidArgument` if no timer can have this key; the errors of an append.
    ///
    /// # Cancel safety
    /// If the future is dropped, the timer may be cancelled.
    pub async fn cancel(&self, key: &str) -> Result<()> {
        check_key(key)?;
        self.requests.cancel(key, None).await
    }

    /// Cancels the timer of a key because of an event, as [`cancel`](Self::cancel) does. Who handles the event again
    /// cancels nothing that was set since: the cancellation has the same id then, as has that of
    /// [`NewTimer::because_of`], and a timer that was set because of a later event of the same log stays.
    ///
    /// # Errors
    /// Those of [`cancel`](Self::cancel).
    ///
    /// # Cancel safety
    /// If the future is dropped, the timer may be cancelled.
    pub async fn cancel_because_of(&self, event: &RecordedEvent, key: &str) -> Result<()> {
        check_key(key)?;
        self.requests.cancel(key, Some(event)).await
    }

    /// Returns the pending timers, the next one first. They are read from the store, so this costs what a start costs;
    /// of more than the bounds of [`Config`] let be pending, those that were set first.
    ///
    /// # Errors
    /// The errors of reads; `Corrupt` if the streams hold something else.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn pending(&self) -> Result<Vec<Timer>> {
        let mut book = Book::new(self.config.bounds());
        self.load(&mut book).await?;
        Ok(book.into_all())
    }

    /// Reads the pending timers. Returns how far the requests are read, and the number of states.
    async fn load(&self, book: &mut Book) -> Result<(Place, u64)> {
        load::load(&self.requests, &self.states, None, book).await
    }

    /// Begins to fire. `fire` is called for each timer that is due, at least once, until it succeeds; several at once.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// `InvalidArgument` if a bound is zero.
    pub fn run<F, Done>(&self, fire: F) -> Result<RunningTimers>
    where
        F: Fn(Timer) -> Done + Send + Sync + 'static,
        Done: Future<Output = std::result::Result<(), FireError>> + Send + 'static,
    {
        self.config.validate()?;
        let (tell, status) = watch::channel(Status::default());
        let stopping = CancellationToken::new();
        let own = Own {
            store: Arc::clone(&self.store),
            name: self.name.clone(),
            requests: self.requests.clone(),
            states: self.states.clone(),
            config: self.config.clone(),
            clock: Arc::clone(&self.clock),
            node: Uuid::new_v4(),
            status: tell,
            stopping: stopping.clone(),
            fire: Arc::new(move |timer| fire(timer).boxed()),
        };
        Ok(RunningTimers {
            status,
            stopping,
            task: Some(tokio::spawn(owner::run(own))),
        })
    }
}

/// Returns the streams of requests and of states. They lie in one log: what is lost is the end of a log, so what cuts
/// the requests is never there without the timers that were stored before it.
fn streams(prefix: &str, name: &str) -> Result<(StreamId, StreamId)> {
    let requests = StreamId::new(format!("{prefix}{{{name}}}"))?;
    let states = StreamId::new(format!("{prefix}{{{name}}}-state"))?;
    if routing_key(&requests) != routing_key(&states) {
        let rule = format!(
            "must keep both streams in one log, so it must not hold {{}}, found {prefix:?}"
        );
        return Err(Error::invalid("prefix", rule));
    }
    Ok((requests, states))
}

#[cfg(test)]
mod tests {
    use gesta_core::limits::LOGS_MAX;
    use gesta_core::log_of;

    use super::*;

    /// Goal: the two streams lie in one log, hence in one database, however many logs there are; a prefix under which
    /// they would not is refused.
    #[test]
    fn both_streams_lie_in_one_log() {
        for prefix in [TIMERS_PREFIX, "timers-", "{tenant}-", "a{b", "a}b"] {
            for name in ["a", "orders", "unpaid_reservations"] {
                let (requests, states) = streams(prefix, name).unwrap();
                for logs in 1..=LOGS_MAX {
                    assert_eq!(
                        log_of(&requests, logs),
                        log_of(&states, logs),
                        "{prefix}{name}"
                    );
                }
            }
        }
        assert!(streams("{}-", "a").is_err());
    }
}
