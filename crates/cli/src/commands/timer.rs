//! `gesta timer …`.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use gesta::timers::Timers;
use gesta_core::{ErrorKind, EventStore, ListStreams, ReadStream, StreamId};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::with_store;
use crate::args::Global;
use crate::args::timer::TimerCommand;
use crate::exit::{Code, Failure, Outcome};
use crate::output::{Output, visible};

/// What the name of the stream of states ends with.
const STATE: &str = "-state";
/// Number of streams that are asked for at once.
const PAGE_STREAMS: usize = 1_000;

/// A pending timer, as it is listed.
#[derive(Serialize)]
struct Listed<'a> {
    key: &'a str,
    due: String,
    data: Box<RawValue>,
    id: String,
}

pub(super) async fn run(global: &Global, command: TimerCommand, output: &mut Output) -> Outcome {
    with_store(global, async |store| match command {
        TimerCommand::List { of, .. } if of.name.is_none() => {
            for name in names(&*store, &of.prefix).await? {
                output.record(&json!({"name": name}), |_| name.clone())?;
            }
            Ok(())
        }
        TimerCommand::List { of, limit } => {
            let name = of.name.unwrap_or_default();
            let timers = timers(&store, &name, &of.prefix)?;
            let pending = timers.pending().await?;
            if pending.is_empty() {
                must_exist(&*store, &name, &of.prefix).await?;
            }
            let limit = limit.and_then(|limit| usize::try_from(limit).ok());
            for timer in pending.iter().take(limit.unwrap_or(usize::MAX)) {
                // The text as it was written: another program may have set what this one could not parse. Line ends
                // stand between its parts alone, and a record is one line.
                let data = timer.data().get().replace(['\n', '\r'], " ");
                let listed = Listed {
                    key: &timer.key,
                    due: timer.due.to_string(),
                    data: RawValue::from_string(data).map_err(io::Error::from)?,
                    id: timer.id.to_string(),
                };
                output.record(&listed, |listed| {
                    let data = match listed.data.get() {
                        "null" => String::new(),
                        text => format!("  {}", visible(text)),
                    };
                    format!("{}  {}{data}", timer.due, visible(&timer.key))
                })?;
            }
            Ok(())
        }
        TimerCommand::Cancel { name, key, prefix } => {
            let timers = timers(&store, &name, &prefix)?;
            // What nobody uses gets no streams by a mistyped name.
            must_exist(&*store, &name, &prefix).await?;
            let is_it = |timer: &gesta::timers::Timer| timer.key == key;
            let was_pending = timers.pending().await?.iter().any(is_it);
            timers.cancel(&key).await?;
            let record = json!({"key": key, "was_pending": was_pending});
            output.record(&record, |_| {
                let key = visible(&key);
                match was_pending {
                    true => format!("cancelled {key}"),
                    false => format!("no timer {key} was pending"),
                }
            })
        }
    })
    .await
}

fn timers(store: &Arc<dyn EventStore>, name: &str, prefix: &str) -> gesta_core::Result<Timers> {
    Timers::on(store, name)?.keep_in(prefix)
}

/// Refuses a name under which nobody has set a timer.
async fn must_exist(store: &dyn EventStore, name: &str, prefix: &str) -> Outcome {
    for stream in [
        format!("{prefix}{{{name}}}"),
        format!("{prefix}{{{name}}}{STATE}"),
    ] {
        let read = ReadStream::forwards(StreamId::new(stream)?).limit(1);
        match store.read_stream(read).await {
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {}
            found => return found.map(drop).map_err(Failure::from),
        }
    }
    Err(Failure::Message(
        Code::NotFound,
        format!(
            "there are no timers of the name {name}: `gesta timer list` shows the names that there are"
        ),
    ))
}

/// Returns the names under which timers were set, in their order.
async fn names(store: &dyn EventStore, prefix: &str) -> Outcome<BTreeSet<String>> {
    let (mut names, mut after) = (BTreeSet::new(), None);
    loop {
        let list = ListStreams {
            prefix: format!("{prefix}{{"),
            after,
            limit: PAGE_STREAMS,
        };
        let page = store.list_streams(list).await?;
        for stream in &page.streams {
            let rest = stream.stream.as_str().strip_prefix(prefix);
            let rest = rest.and_then(|rest| rest.strip_prefix('{'));
            if let Some((name, "" | STATE)) = rest.and_then(|rest| rest.split_once('}')) {
                names.insert(name.to_owned());
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(names),
        }
    }
}
