//! Asking until there is an answer, whatever happens meanwhile.

use std::time::{Duration, Instant};

use gesta_core::{AllFrom, Append, Appended, Checkpoint, Error, ReadAll, RecordedEvent};
use gesta_report::failure::{Failure, Result, fail};
use tokio_util::sync::CancellationToken;

use super::CurrentStore;

/// Pause before an attempt is made again.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// How long after the end of a run an append is still asked for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Events per page.
const PAGE: usize = 5_000;

/// How often waits look.
const LOOK: Duration = Duration::from_millis(10);

/// The last word on one append.
#[derive(Debug)]
pub enum Answer {
    /// Stored here.
    Stored(Appended),
    /// Not stored.
    Refused(Error),
    /// Given up without an answer: it may be stored or not.
    Open,
}

/// What happens while an append is asked for.
pub enum Attempt<'a> {
    /// An attempt begins.
    Begins,
    /// It has ended.
    Ended(&'a gesta_core::Result<Appended>),
}

/// Appends, with the same event ids as often as it takes to get an answer; gives up some time after the end of the run.
pub async fn ask(
    store: &CurrentStore,
    request: &Append,
    over: &CancellationToken,
    mut told: impl FnMut(Attempt<'_>),
) -> Answer {
    let given_up = async {
        over.cancelled().await;
        tokio::time::sleep(PATIENCE).await;
    };
    let asked = async {
        loop {
            told(Attempt::Begins);
            let attempt = store.get().append(request.clone()).await;
            told(Attempt::Ended(&attempt));
            match attempt {
                Ok(appended) => return Answer::Stored(appended),
                Err(error) if error.is_retryable() => tokio::time::sleep(RETRY_PAUSE).await,
                Err(error) => return Answer::Refused(error),
            }
        }
    };
    tokio::select! {
        biased;
        answer = asked => answer,
        () = given_up => Answer::Open,
    }
}

/// Shows the whole log from a place on, and gives its end. The store may be unavailable for so long.
pub async fn read_all(
    store: &CurrentStore,
    from: AllFrom,
    patience: Duration,
    mut see: impl FnMut(RecordedEvent),
) -> Result<Checkpoint> {
    let mut request = ReadAll::forwards().from(from).limit(PAGE);
    let mut deadline = Instant::now() + patience;
    loop {
        match store.get().read_all(request.clone()).await {
            Ok(page) => {
                page.events.into_iter().for_each(&mut see);
                if page.end {
                    return Ok(page.next);
                }
                request.from = AllFrom::Checkpoint(page.next);
                deadline = Instant::now() + patience;
            }
            Err(error) if error.is_retryable() && Instant::now() < deadline => {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => return Err(Failure::from(error)),
        }
    }
}

/// Waits until something is so.
pub async fn until(
    what: &str,
    within: Duration,
    mut is_so: impl AsyncFnMut() -> bool,
) -> Result<()> {
    let deadline = Instant::now() + within;
    while !is_so().await {
        if Instant::now() > deadline {
            return fail(format!("not within {within:?}: {what}"));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
