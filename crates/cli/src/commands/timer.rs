//! `gesta timer …`.

use std::io;
use std::sync::Arc;

use gesta::timers::Timers;
use gesta_core::EventStore;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::with_store;
use crate::args::Global;
use crate::args::timer::{TimerCommand, TimersOf};
use crate::exit::Outcome;
use crate::output::{Output, visible};

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
        TimerCommand::List { of, limit } => {
            let pending = timers(&store, &of)?.pending().await?;
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
        TimerCommand::Cancel { of, key } => {
            let timers = timers(&store, &of)?;
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

fn timers(store: &Arc<dyn EventStore>, of: &TimersOf) -> gesta_core::Result<Timers> {
    Timers::on(store, &of.name)?.keep_in(&of.prefix)
}
