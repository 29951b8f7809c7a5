//! `gesta timer …`.

use std::sync::Arc;

use gesta::timers::Timers;
use gesta_core::EventStore;
use serde_json::json;

use super::with_store;
use crate::args::Global;
use crate::args::timer::{TimerCommand, TimersOf};
use crate::exit::Outcome;
use crate::output::{Output, visible};

pub(super) async fn run(global: &Global, command: TimerCommand, output: &mut Output) -> Outcome {
    with_store(global, async |store| match command {
        TimerCommand::List { of, limit } => {
            let pending = timers(&store, &of)?.pending().await?;
            for timer in pending.iter().take(limit.unwrap_or(usize::MAX)) {
                let record = json!({
                    "key": timer.key,
                    "due": timer.due.to_string(),
                    "data": timer.data,
                    "id": timer.id.to_string(),
                });
                output.record(&record, |_| {
                    let data = match timer.data.is_null() {
                        true => String::new(),
                        false => format!("  {}", visible(&timer.data.to_string())),
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
