//! Decisions over events of any streams: read, fold, decide, and append only if nothing has changed meanwhile.
//!
//! Why beside entities: a rule that spans several of them (a user name is unique, a course has a capacity, a student
//! takes at most so many courses) has no stream of its own. Its events are found by tags, and the query that has found
//! them becomes the condition of the append: *dynamic consistency boundary* (Bastian Waidelich, Sara Pellegrini and
//! others, dcb.events).
//! Invariants: the condition is the union of all queries, after the end of the very read on which the decision rests; a
//! model is shown only what its own query selects; an append whose outcome is not known is repeated as it is before
//! anything is decided anew.
//! Not here: who wins, which the append decides (`gesta-append`); rules of one entity (`gesta-entity`).

use std::time::Duration;

use gesta_core::{
    AllFrom, Append, Appended, Checkpoint, ErrorKind, EventId, EventStore, Filter, Query, ReadAll,
    RecordedEvent, StreamAppend,
};
use rand::RngExt;

/// How often is decided until somebody who always comes first is told to the caller.
pub const ATTEMPTS_MAX: u32 = 10;
/// How often an append whose outcome is not known is repeated.
const REPEATS_MAX: u32 = 5;
/// The longest pause after the first attempt that others have thwarted; the next ones are twice as long each.
const PAUSE: Duration = Duration::from_millis(2);
/// The pause before an append is repeated whose outcome is not known.
const REPEAT_PAUSE: Duration = Duration::from_millis(200);

/// A small fold: one fact on which a decision rests, such as *this user name is taken*.
pub trait DecisionModel {
    /// The fact. The default is what is true if no event says otherwise.
    type State: Default;

    /// Returns which events say something about the fact: for each query at least one tag, the most specific first.
    /// Events are found by the first tag of a query.
    fn queries(&self) -> Vec<Query>;

    /// Changes the fact as an event says. Only events that the queries select come here, in the order of their log.
    ///
    /// # Errors
    /// What is wrong with the event; then nothing is decided.
    fn evolve(
        &self,
        state: &mut Self::State,
        event: &RecordedEvent,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

/// Several models that are folded from one read: a tuple of up to six.
pub trait DecisionModels {
    /// The facts, in the order of the models.
    type States: Default;

    /// Returns the queries of all models.
    fn queries(&self) -> Vec<Query>;

    /// Shows an event to the models whose queries select it.
    ///
    /// # Errors
    /// That of a model.
    fn evolve(
        &self,
        states: &mut Self::States,
        event: &RecordedEvent,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

macro_rules! models {
    ($($model:ident $number:tt),+) => {
        impl<$($model: DecisionModel),+> DecisionModels for ($($model,)+) {
            type States = ($($model::State,)+);

            fn queries(&self) -> Vec<Query> {
                let mut queries = Vec::new();
                $(queries.extend(self.$number.queries());)+
                queries
            }

            fn evolve(
                &self,
                states: &mut Self::States,
                event: &RecordedEvent,
            ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
                $(
                    if self.$number.queries().iter().any(|query| query.matches(event)) {
                        self.$number.evolve(&mut states.$number, event)?;
                    }
                )+
                Ok(())
            }
        }
    };
}

models!(A 0);
models!(A 0, B 1);
models!(A 0, B 1, C 2);
models!(A 0, B 1, C 2, D 3);
models!(A 0, B 1, C 2, D 3, E 4);
models!(A 0, B 1, C 2, D 3, E 4, F 5);

/// Why nothing was decided or stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecisionError<R> {
    /// The decision itself: the rule says no. It rests on what was read.
    #[error("rejected")]
    Rejected(R),
    /// Others have changed the facts in each of [`ATTEMPTS_MAX`] attempts. Nothing was stored; trying again is right.
    #[error("others came first {ATTEMPTS_MAX} times")]
    Conflict,
    /// An event cannot be read.
    #[error("the event at position {position} cannot be read: {why}")]
    Unreadable {
        /// Position of the event in its log.
        position: gesta_core::Position,
        /// What is wrong.
        why: String,
    },
    /// The store has failed, or refuses the append. After `OutcomeUnknown` the events may be stored: the answer to an
    /// append was lost, and its repetition was answered by nothing that tells of it.
    #[error(transparent)]
    Store(#[from] gesta_core::Error),
}

/// Reads what the models need, lets `decide` make events of it or reject, and appends the events only if no event has
/// come meanwhile that any of the models would have been shown. If one has, it is read as well, and is decided again.
///
/// `decide` is called at least once, and must make the same events for the same facts. All streams that it appends to
/// must be of one log, and in a store with several logs so must be the events that the models need: names that share a
/// `{…}` part are. No events: nothing is appended, and the answer is `None`.
///
/// # Errors
/// [`DecisionError`].
///
/// # Cancel safety
/// The append goes on if the future is dropped while it is under way.
pub async fn decide<S, M, R>(
    store: &S,
    models: &M,
    mut decide: impl FnMut(&M::States) -> Result<Vec<StreamAppend>, R>,
) -> Result<Option<Appended>, DecisionError<R>>
where
    S: EventStore + ?Sized,
    M: DecisionModels,
{
    let filter = Filter {
        any_of: models.queries(),
    };
    let has_tags = |query: &Query| !query.tags.is_empty();
    if filter.is_all() || !filter.any_of.iter().all(has_tags) {
        let rule = "must be at least one, each with at least one tag: others read the whole store";
        return Err(gesta_core::Error::invalid("queries of the decision models", rule).into());
    }
    let mut states = M::States::default();
    let mut end = AllFrom::Start;
    for attempt in 0..ATTEMPTS_MAX {
        if attempt > 0 {
            let longest = PAUSE * 2_u32.pow(attempt - 1);
            let pause = longest.mul_f64(rand::rng().random());
            tokio::time::sleep(pause).await;
        }
        let checkpoint = read_on(store, models, &filter, &mut states, end).await?;
        let streams = decide(&states).map_err(DecisionError::Rejected)?;
        if streams.is_empty() {
            return Ok(None);
        }
        if let Some(system) = streams.iter().find(|append| append.stream.is_system()) {
            let rule = format!(
                "must not begin with `$`, found {:?}: its events do not count for conditions",
                system.stream
            );
            return Err(gesta_core::Error::invalid("stream", rule).into());
        }
        let request = Append {
            streams: streams.into_iter().map(with_ids).collect(),
            conditions: Vec::new(),
        };
        let request = request.provided_no_match(filter.clone(), Some(checkpoint.clone()));
        match append(store, request).await {
            Ok(appended) => return Ok(Some(appended)),
            Err(error) if matches!(error.kind(), ErrorKind::ConditionFailed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        end = AllFrom::Checkpoint(checkpoint);
    }
    Err(DecisionError::Conflict)
}

/// Folds everything after a place, and returns the end of what was read.
async fn read_on<S, M, R>(
    store: &S,
    models: &M,
    filter: &Filter,
    states: &mut M::States,
    mut from: AllFrom,
) -> Result<Checkpoint, DecisionError<R>>
where
    S: EventStore + ?Sized,
    M: DecisionModels,
{
    let found_by = by_first_tag(filter);
    loop {
        let request = ReadAll::forwards().filter(found_by.clone()).from(from);
        let page = store.read_all(request).await?;
        // Those of the system do not count for the condition, so nothing may rest on them.
        let counts = |event: &&RecordedEvent| !event.stream.is_system() && filter.matches(event);
        for event in page.events.iter().filter(counts) {
            models
                .evolve(states, event)
                .map_err(|why| DecisionError::Unreadable {
                    position: event.position,
                    why: why.to_string(),
                })?;
        }
        if page.end {
            return Ok(page.next);
        }
        from = AllFrom::Checkpoint(page.next);
    }
}

/// Returns a filter that everything passes that passes this one, and that the index of tags answers.
fn by_first_tag(filter: &Filter) -> Filter {
    let first = |query: &Query| Query {
        tags: query.tags.iter().take(1).cloned().collect(),
        ..Query::default()
    };
    let mut any_of: Vec<Query> = Vec::new();
    for query in filter.any_of.iter().map(first) {
        if !any_of.contains(&query) {
            any_of.push(query);
        }
    }
    Filter { any_of }
}

/// Gives ids to the events that have none, so that the append can be repeated.
fn with_ids(mut append: StreamAppend) -> StreamAppend {
    for event in &mut append.events {
        event.id.get_or_insert_with(EventId::random);
    }
    append
}

/// Appends, and repeats the same request as long as its outcome is not known.
async fn append<S: EventStore + ?Sized>(
    store: &S,
    request: Append,
) -> gesta_core::Result<Appended> {
    let (mut doubt, mut repeats) = (None, 0);
    loop {
        match store.append(request.clone()).await {
            Err(error)
                if matches!(error.kind(), ErrorKind::OutcomeUnknown(_))
                    && repeats < REPEATS_MAX =>
            {
                doubt = Some(error);
                repeats += 1;
                tokio::time::sleep(REPEAT_PAUSE).await;
            }
            Err(error) if !tells_of_first(error.kind()) => return Err(doubt.unwrap_or(error)),
            answer => return answer,
        }
    }
}

/// Returns whether a refusal of a repetition tells what became of the first attempt.
///
/// An expected revision or a condition refuses only what is not stored, for the store looks for the events first; and
/// it refuses for an event that came after the first attempt was judged, behind which that attempt can no longer be
/// stored. The other refusals would be the same if the first attempt was stored, or may be yet: a caller who may no
/// longer append, a stream with a tombstone, a store of another incarnation, in which a lost commit may still arrive.
fn tells_of_first(refusal: &ErrorKind) -> bool {
    matches!(
        refusal,
        ErrorKind::WrongExpectedRevision { .. }
            | ErrorKind::ConditionFailed { .. }
            | ErrorKind::StoredAndDeleted { .. }
    )
}
