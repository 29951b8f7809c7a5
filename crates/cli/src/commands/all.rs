//! `gesta all …`, and how subscriptions are followed.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    AllFrom, BackOff, Checkpoint, Direction, EventStore, Filter, Place, Position, Query, ReadAll,
    RecordedEvent, Subscribe, SubscribeFrom, SubscribeTo, SubscriptionMessage,
};

use super::import_groups::Home;
use super::progress::Progress;
use super::waiting::told_if_slow;
use super::{
    BEFORE_ALL, connect_to_server, given_store, import, interrupts, is_server, until_stopped,
    with_new_store, with_store, with_store_telling,
};
use crate::args::{After, AllCommand, AllRead, FilterArgs, Global, ReadFrom};
use crate::exit::Outcome;
use crate::output::{Output, ProgressLine, rate, say, until_reader_gone};

/// The most events in one page.
const PAGE: u64 = 1_000;
/// The shortest and the longest pause before a subscription is begun again.
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

pub(super) async fn run(global: &Global, command: AllCommand, output: &mut Output) -> Outcome {
    match command {
        AllCommand::Read(args) => {
            let progress = Progress::default();
            progress.set("no event was read yet".into());
            let line = ProgressLine::beside_data(output, "opening the store");
            with_store_telling(global, &progress, async |store| {
                until_reader_gone(read(&*store, args, &progress, &line, output)).await
            })
            .await
        }
        AllCommand::Import(args) => {
            let progress = Progress::default();
            progress.set("nothing was imported yet".into());
            let server = given_store(global).filter(|url| is_server(url));
            let server = match server {
                Some(url) => Some(connect_to_server(global, &url).await?),
                None => None,
            };
            // Who types the events sees how far it is.
            let file = args.file.as_deref().filter(|path| *path != Path::new("-"));
            let line = match file.is_none() && std::io::stdin().is_terminal() {
                true => ProgressLine::none(),
                false => ProgressLine::begin(output, "reading the file"),
            };
            let preparing = import::prepare(&args);
            let begun = until_stopped(&mut interrupts()?, preparing, || BEFORE_ALL.into()).await?;
            with_new_store(global, &progress, async |store| {
                let home = match &server {
                    Some(server) => Home::Server(Box::new(server.groups())),
                    None => Home::Store(Arc::clone(&store)),
                };
                import::run(&*store, &home, begun, &args, (&progress, &line), output).await
            })
            .await
        }
        AllCommand::Tail(args) => {
            with_store(global, async |store| {
                let from = match args.after {
                    After::Start => SubscribeFrom::Start,
                    After::End => SubscribeFrom::End,
                    After::Place(checkpoint) => SubscribeFrom::Checkpoint(checkpoint),
                };
                let request = Subscribe {
                    to: SubscribeTo::All(filter(args.filter)),
                    from,
                };
                until_reader_gone(follow(&*store, request, args.limit, output)).await
            })
            .await
        }
    }
}

pub(super) fn filter(args: FilterArgs) -> Filter {
    Filter::query(Query {
        types: args.types,
        tags: args.tags,
        stream_prefixes: args.stream_prefixes,
        categories: args.categories,
    })
}

async fn read(
    store: &dyn EventStore,
    args: AllRead,
    progress: &Progress,
    line: &ProgressLine,
    output: &mut Output,
) -> Outcome {
    let mut left = args.limit.unwrap_or(u64::MAX);
    let (direction, begin) = if args.backwards {
        (Direction::Backwards, AllFrom::End)
    } else {
        (Direction::Forwards, AllFrom::Start)
    };
    let mut places = args.from.as_ref().and_then(places_of);
    let mut from = match args.from {
        None => begin,
        Some(ReadFrom::Start) => AllFrom::Start,
        Some(ReadFrom::End) => AllFrom::End,
        Some(ReadFrom::Place(checkpoint)) => AllFrom::Checkpoint(checkpoint),
    };
    let filter = filter(args.filter);
    let mut written = 0;
    loop {
        let limit = usize::try_from(left.min(PAGE)).unwrap_or(1);
        let page = store.read_all(ReadAll {
            only: None,
            from,
            direction,
            limit,
            filter: filter.clone(),
        });
        let page = told_if_slow(page).await?;
        for event in &page.events {
            let checkpoint = match direction {
                Direction::Forwards => after(event, &page.next, &mut places),
                Direction::Backwards => None,
            };
            output.event(event, checkpoint.as_ref())?;
        }
        progress.set(format!("go on with --from {}", page.next));
        written += page.events.len() as u64;
        line.tell(|time| rate("events written", written, None, time));
        left = left.saturating_sub(page.events.len() as u64);
        if page.end || left == 0 {
            if !page.end {
                say!("there is more: --from {}", page.next);
            }
            return Ok(());
        }
        from = AllFrom::Checkpoint(page.next);
    }
}

fn places_of(from: &ReadFrom<Checkpoint>) -> Option<Vec<Position>> {
    match from {
        ReadFrom::Place(Checkpoint {
            place: Place::Logs(positions),
            ..
        }) => Some(positions.clone()),
        _ => None,
    }
}

/// Returns the checkpoint after an event that was read forwards: it holds for each log the position of the last event
/// that was seen.
fn after(
    event: &RecordedEvent,
    next: &Checkpoint,
    places: &mut Option<Vec<Position>>,
) -> Option<Checkpoint> {
    let Place::Logs(ends) = &next.place else {
        return None;
    };
    let places = places.get_or_insert_with(|| vec![Position::START; ends.len()]);
    *places.get_mut(usize::from(event.log.0))? = event.position;
    Some(Checkpoint::logs(next.incarnation, places.clone()))
}

/// Shows the events of a subscription, each with the checkpoint after it, until `limit` or Ctrl-C. When a connection
/// breaks, it is made again as often as needed, and the subscription goes on where it was.
pub(super) async fn follow(
    store: &dyn EventStore,
    mut request: Subscribe,
    limit: Option<u64>,
    output: &mut Output,
) -> Outcome {
    let mut left = limit.unwrap_or(u64::MAX);
    let mut back_off = BackOff::new(BACK_OFF_MIN, BACK_OFF_MAX);
    // A lost connection is reported once, not for each attempt.
    let mut is_lost = false;
    if std::io::stderr().is_terminal() {
        let from = match request.from {
            SubscribeFrom::End => "what is new",
            _ => "all that follows",
        };
        say!("shows {from}; Ctrl-C ends");
    }
    loop {
        let failed = match store.subscribe(request.clone()).await {
            Err(error) => error,
            Ok(mut subscription) => loop {
                let Some(message) = subscription.next().await else {
                    return Ok(());
                };
                let (shown, checkpoint) = match message {
                    Err(error) => break error,
                    Ok(SubscriptionMessage::Event { event, checkpoint }) => {
                        (Some(event), checkpoint)
                    }
                    Ok(
                        SubscriptionMessage::Checkpoint(checkpoint)
                        | SubscriptionMessage::CaughtUp(checkpoint)
                        | SubscriptionMessage::FellBehind(checkpoint),
                    ) => (None, checkpoint),
                };
                if std::mem::take(&mut is_lost) {
                    say!("connected again");
                }
                back_off.reset();
                if let Some(event) = shown {
                    output.event(&event, Some(&checkpoint))?;
                    output.flush()?;
                    left -= 1;
                    if left == 0 {
                        return Ok(());
                    }
                }
                request.from = SubscribeFrom::Checkpoint(checkpoint);
            },
        };
        if !failed.is_retryable() {
            return Err(failed.into());
        }
        if !std::mem::replace(&mut is_lost, true) {
            say!("the subscription broke ({failed}); trying again until it goes on");
        }
        tokio::time::sleep(back_off.pause()).await;
    }
}
