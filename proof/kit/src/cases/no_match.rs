//! Appends that are stored only if no event passes a filter: decisions over more than one stream.

use std::sync::Arc;

use futures::future::join_all;
use gesta_core::{
    Append, Checkpoint, Condition, DeleteKind, ErrorKind, EventData, Filter, Incarnation, Position,
    Query, ReadAll, Result,
};
use tokio::sync::Barrier;

use crate::factory::{StoreFactory, TestStore};
use crate::support::*;

/// Streams with this part in their names lie in one log, so their events count for each other.
const KEY: &str = "{k}";

fn named(name: &str) -> String {
    format!("{name}-{KEY}")
}

fn with(tags: &[&str]) -> EventData {
    tagged("happened", tags)
}

/// An append to a stream, unless an event passes the filter after the checkpoint.
fn unless(name: &str, event: EventData, filter: Filter, after: Option<Checkpoint>) -> Append {
    Append::to(stream(&named(name)), Any, vec![event]).provided_no_match(filter, after)
}

/// Returns the end of all that is stored, as a read that finds nothing tells it.
async fn end(store: &TestStore) -> Checkpoint {
    let request = ReadAll::forwards().filter(Filter::query(tags(&["what nobody has"])));
    all_pages(store.as_ref(), request).await.1
}

fn position_of<T: std::fmt::Debug>(answer: Result<T>) -> Position {
    let error = answer.expect_err("an event passes the filter");
    match error.kind() {
        ErrorKind::ConditionFailed { position, .. } => *position,
        kind => panic!("{kind:?}"),
    }
}

/// Goal: what passes the filter after the checkpoint refuses the append, whichever way the filter selects it, and
/// nothing is stored; what does not pass, or is at the checkpoint or before, refuses nothing.
pub async fn what_passes_refuses(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let begin = end(&store).await;
    let first = append(store.as_ref(), &named("a"), Any, vec![with(&["x", "y"])]).await;
    let between = end(&store).await;
    let typed = vec![tagged("other", &["x"])];
    let second = append(store.as_ref(), &named("b"), Any, typed).await;
    let any_of = |any_of: Vec<Query>| Filter { any_of };
    let x_of_type = |name| Query {
        types: types(&[name]).types,
        ..tags(&["x"])
    };
    let before = everything(store.as_ref()).await;
    for (query, after, found) in [
        (vec![tags(&["x"])], None, first.position),
        (vec![tags(&["x"])], Some(&begin), first.position),
        (vec![tags(&["x"])], Some(&between), second.position),
        (vec![tags(&["y", "x"])], None, first.position),
        (vec![x_of_type("other")], None, second.position),
        (vec![types(&["other"])], Some(&begin), second.position),
        (vec![categories(&["b"])], Some(&begin), second.position),
        (vec![prefixes(&["a-"])], Some(&begin), first.position),
        (
            vec![tags(&["z"]), x_of_type("other")],
            None,
            second.position,
        ),
        (
            vec![tags(&["z"]), types(&["other"])],
            Some(&begin),
            second.position,
        ),
    ] {
        let filter = any_of(query);
        let request = unless("c", with(&[]), filter.clone(), after.cloned());
        let answer = within("append", store.append(request)).await;
        assert_eq!(position_of(answer), found, "{filter:?}");
    }
    assert_eq!(everything(store.as_ref()).await, before);
    for (query, after) in [
        (vec![tags(&["y"])], Some(&between)),
        (vec![tags(&["x", "z"])], None),
        (vec![x_of_type("never")], None),
        (vec![types(&["never"])], Some(&begin)),
        (vec![tags(&["z"]), categories(&["z"])], Some(&begin)),
    ] {
        let request = unless("c", with(&[]), any_of(query), after.cloned());
        within("append", store.append(request))
            .await
            .expect("nothing passes");
    }
    // What this store has just decided counts as what it has stored long ago.
    let filter = Filter::query(tags(&["mine"]));
    let mine = || unless("d", with(&["mine"]), filter.clone(), None);
    let stored = store.append(mine()).await.expect("nothing passes");
    assert_eq!(position_of(store.append(mine()).await), stored.position);
}

/// Goal: events of streams whose name begins with `$` do not count, and events of deleted streams do.
pub async fn which_events_count(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let begin = end(&store).await;
    let system = format!("$system-{KEY}");
    append(store.as_ref(), &system, Any, vec![with(&["hidden"])]).await;
    let filter = Filter::query(tags(&["hidden"]));
    let request = unless("a", with(&[]), filter, None);
    store.append(request).await.expect("it does not count");
    let of_type = Filter::query(types(&["$metadata"]));
    set_metadata(store.as_ref(), &named("a"), Any, "{}")
        .await
        .expect("set");
    let request = unless("a", with(&[]), of_type, Some(begin));
    store.append(request).await.expect("it does not count");

    let gone = append(store.as_ref(), &named("gone"), Any, vec![with(&["gone"])]).await;
    delete(store.as_ref(), &named("gone"), Any, DeleteKind::Soft)
        .await
        .expect("deleted");
    let request = unless("a", with(&[]), Filter::query(tags(&["gone"])), None);
    assert_eq!(position_of(store.append(request).await), gone.position);
}

/// Goal: a retry gets the first answer, although its own events and others pass the filter by now; a claim that fails
/// comes before the condition.
pub async fn a_retry_gets_the_first_answer(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let filter = Filter::query(tags(&["x"]));
    for expected in [NoStream, Any, exact(0)] {
        let after = Some(end(&store).await);
        let mut request = unless("a", with(&["x"]), filter.clone(), after);
        request.streams[0].expected = expected;
        if expected == exact(0) {
            request.streams[0].stream = stream(&named("b"));
            append(store.as_ref(), &named("b"), NoStream, events(1)).await;
        }
        let first = within("append", store.append(request.clone())).await;
        let first = first.unwrap_or_else(|error| panic!("{expected}: {error}"));
        append(store.as_ref(), &named("c"), Any, vec![with(&["x"])]).await;
        let again = within("append", store.append(request.clone())).await;
        assert_eq!(again.expect("a retry").streams, first.streams);
        request.streams[0].events = vec![with(&["x"])];
        request.streams[0].expected = exact(70);
        let name = request.streams[0].stream.to_string();
        let last = first.streams[0].last_revision.0;
        assert_wrong(store.append(request).await, &name, exact(70), Some(last));
    }
}

/// Goal: of racers who have all read the same, one is stored in each round, and all others learn it.
pub async fn of_racers_one_is_stored(factory: &dyn StoreFactory) {
    const RACERS: usize = 16;
    let store = factory.create().await;
    for round in 0..8 {
        let name = format!("name:{round}");
        let filter = Filter::query(tags(&[&name]));
        let (ready, begun) = (
            Arc::new(Barrier::new(RACERS)),
            Arc::new(Barrier::new(RACERS)),
        );
        let racers = (0..RACERS).map(|racer| {
            let (ready, begun) = (Arc::clone(&ready), Arc::clone(&begun));
            let (store, filter, name) = (&store, &filter, &name);
            async move {
                ready.wait().await;
                let after = match round % 2 {
                    0 => Some(end(store).await),
                    _ => None,
                };
                begun.wait().await;
                let to = format!("racer-{racer}");
                store
                    .append(unless(&to, with(&[name]), filter.clone(), after))
                    .await
            }
        });
        let answers = within("appends", join_all(racers)).await;
        let stored: Vec<_> = answers.iter().filter_map(|it| it.as_ref().ok()).collect();
        assert_eq!(stored.len(), 1, "round {round}: {answers:?}");
        let stored = stored[0].position;
        for refused in answers.into_iter().filter(Result::is_err) {
            assert_eq!(position_of(refused), stored);
        }
    }
}

/// Goal: unrelated appends at once do not hinder each other.
pub async fn unrelated_appends_do_not_conflict(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let after = end(&store).await;
    let appends = (0..100).map(|number| {
        let name = format!("number:{number}");
        let filter = Filter::query(tags(&[&name]));
        let request = unless(
            &format!("s{number}"),
            with(&[&name, "all"]),
            filter,
            Some(after.clone()),
        );
        store.append(request)
    });
    for answer in within("appends", join_all(appends)).await {
        answer.expect("nothing passes its filter");
    }
}

/// Goal: a checkpoint of another store, of a stream, or above the end is refused, and nothing is stored.
pub async fn checkpoints_of_elsewhere_are_refused(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let written = append(store.as_ref(), &named("a"), Any, events(1)).await;
    let before = everything(store.as_ref()).await;
    let info = store.info().await.expect("answers");
    let own = info.incarnation;
    let ahead = Position(written.position.0 + 1_000);
    let filter = Filter::query(tags(&["x"]));
    for after in [
        Checkpoint::in_log(
            Incarnation::random(),
            info.logs,
            written.log,
            written.position,
        ),
        Checkpoint::in_log(own, info.logs, written.log, ahead),
        Checkpoint::in_log(own, info.logs + 1, written.log, written.position),
        Checkpoint::stream(own, &stream(&named("a")), None),
    ] {
        let request = unless("a", with(&["x"]), filter.clone(), Some(after.clone()));
        let error = within("append", store.append(request)).await;
        let error = error.expect_err("refused");
        let is_right = matches!(error.kind(), ErrorKind::InvalidCheckpoint(_));
        assert!(is_right, "{after}: {error}");
    }
    assert_eq!(everything(store.as_ref()).await, before);
}

/// Goal: whether history is that of a checkpoint can be asked for alone, whatever was stored since; of another one
/// nothing is stored, and a retry of what is stored gets the first answer.
pub async fn a_history_can_be_required(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let first = append(store.as_ref(), &named("a"), Any, events(1)).await;
    let info = store.info().await.expect("answers");
    append(store.as_ref(), &named("$system"), Any, vec![with(&["x"])]).await;
    append(store.as_ref(), &named("b"), Any, vec![with(&["x"])]).await;
    let in_history = |checkpoint: &Checkpoint| {
        let mut request = Append::to(stream(&named("a")), exact(0), events(1));
        let condition = Condition::same_history(checkpoint.clone());
        request.conditions.push(condition);
        request
    };
    let mut other = first.checkpoint.clone();
    other.incarnation = Incarnation::random();
    let before = everything(store.as_ref()).await;
    let error = within("append", store.append(in_history(&other))).await;
    let error = error.expect_err("refused");
    assert!(
        matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)),
        "{error}"
    );
    assert_eq!(everything(store.as_ref()).await, before);
    let start = vec![Position::START; usize::from(info.logs)];
    let start = Checkpoint::logs(info.incarnation, start);
    for (checkpoint, revision) in [(&first.checkpoint, 0), (&start, 1)] {
        let mut request = in_history(checkpoint);
        request.streams[0].expected = exact(revision);
        let stored = within("append", store.append(request.clone())).await;
        let stored = stored.expect("it is the same");
        let again = within("append", store.append(request)).await;
        assert_eq!(again.expect("a retry").streams, stored.streams);
    }
}

/// Goal: filters that everything passes, or that are too long, are refused, and so are two of them.
pub async fn wrong_filters_are_refused(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let one = || Filter::query(tags(&["x"]));
    let many = |count: usize| Filter {
        any_of: (0..count)
            .map(|number| tags(&[&number.to_string()]))
            .collect(),
    };
    let empty_query = Filter {
        any_of: vec![tags(&["x"]), Query::default()],
    };
    let two = unless("a", with(&[]), one(), None).provided_no_match(one(), None);
    let of = |filter| unless("a", with(&[]), filter, None);
    for wrong in [of(Filter::ALL), of(empty_query), of(many(17)), two] {
        let error = store.append(wrong).await.expect_err("refused");
        let is_right = matches!(error.kind(), ErrorKind::InvalidArgument { .. });
        assert!(is_right, "{error}");
    }
    store.append(of(many(16))).await.expect("not too many");
    let only = Append {
        streams: Vec::new(),
        conditions: vec![Condition::NoMatch {
            filter: one(),
            after: None,
        }],
    };
    store.append(only).await.expect_err("nothing is appended");
}
