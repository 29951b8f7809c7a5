//! `gesta all …`, and following of subscriptions.

use gesta_core::{
    AllFrom, Direction, EventStore, Filter, Query, ReadAll, Subscribe, SubscribeFrom, SubscribeTo,
    SubscriptionMessage,
};

use super::with_store;
use crate::args::{After, AllCommand, AllRead, FilterArgs, Global};
use crate::exit::Outcome;
use crate::output::Output;

/// Events in one page.
const PAGE: u64 = 1_000;

pub(super) async fn run(global: &Global, command: AllCommand, output: &mut Output) -> Outcome {
    match command {
        AllCommand::Read(args) => {
            with_store(global, async |store| read(&*store, args, output).await).await
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
                follow(&*store, request, args.limit, output).await
            })
            .await
        }
    }
}

fn filter(args: FilterArgs) -> Filter {
    Filter::query(Query {
        types: args.types,
        tags: args.tags,
        stream_prefixes: args.stream_prefixes,
        categories: args.categories,
    })
}

async fn read(store: &dyn EventStore, args: AllRead, output: &mut Output) -> Outcome {
    let mut left = args.limit.unwrap_or(u64::MAX);
    let (direction, begin) = if args.backwards {
        (Direction::Backwards, AllFrom::End)
    } else {
        (Direction::Forwards, AllFrom::Start)
    };
    let mut from = args.from.map_or(begin, AllFrom::Checkpoint);
    let filter = filter(args.filter);
    loop {
        let limit = usize::try_from(left.min(PAGE)).unwrap_or(1);
        let page = store
            .read_all(ReadAll {
                from,
                direction,
                limit,
                filter: filter.clone(),
            })
            .await?;
        for event in &page.events {
            output.event(event, None)?;
        }
        left = left.saturating_sub(page.events.len() as u64);
        if page.end || left == 0 {
            return Ok(());
        }
        from = AllFrom::Checkpoint(page.next);
    }
}

/// Shows the events of a subscription, each with the checkpoint to resume after it, until `limit` or Ctrl-C.
pub(super) async fn follow(
    store: &dyn EventStore,
    request: Subscribe,
    limit: Option<u64>,
    output: &mut Output,
) -> Outcome {
    let mut left = limit.unwrap_or(u64::MAX);
    let mut subscription = store.subscribe(request).await?;
    while let Some(message) = subscription.next().await {
        match message? {
            SubscriptionMessage::Event { event, checkpoint } => {
                output.event(&event, Some(&checkpoint))?;
                output.flush()?;
                left -= 1;
                if left == 0 {
                    return Ok(());
                }
            }
            SubscriptionMessage::Checkpoint(_) | SubscriptionMessage::CaughtUp(_) => {}
        }
    }
    Ok(())
}
