//! `gesta virtual-streams …`.

use gesta::{Store, VirtualStreamsStatus};
use gesta_core::EventStore;
use indicatif::ProgressBar;
use serde_json::json;

use crate::args::VirtualStreamsCommand;
use crate::exit::Outcome;
use crate::output::Output;

pub(super) async fn run(url: &str, command: VirtualStreamsCommand, output: &mut Output) -> Outcome {
    let store = gesta::open_database(url).await?;
    let status = match command {
        VirtualStreamsCommand::On => switch_on(&store).await,
        VirtualStreamsCommand::Off => store.switch_virtual_streams(false).await,
        VirtualStreamsCommand::Status => store.virtual_streams_status().await,
    };
    store.shutdown().await?;
    show(status?, output)
}

async fn switch_on(store: &Store) -> gesta_core::Result<VirtualStreamsStatus> {
    store.switch_virtual_streams(true).await?;
    let bar = ProgressBar::new_spinner();
    let status = store
        .index_virtual_streams(|status| {
            bar.set_message(format!("position {} of {}", status.position, status.end));
        })
        .await;
    bar.finish_and_clear();
    status
}

fn show(status: VirtualStreamsStatus, output: &mut Output) -> Outcome {
    let VirtualStreamsStatus { on, position, end } = status;
    let record = json!({"on": on, "position": position.0, "end": end.0});
    output.record(&record, |_| {
        let state = if on { "on" } else { "off" };
        format!(
            "virtual streams are {state}: entries are written up to position {position} of {end}"
        )
    })
}
