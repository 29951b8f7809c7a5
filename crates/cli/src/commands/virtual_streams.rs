//! `gesta virtual-streams …`.

use gesta::{Database, LeftVirtualStreams, Options, Store, VirtualStreamsStatus};
use gesta_core::EventStore;
use indicatif::ProgressBar;
use serde_json::json;

use crate::args::VirtualStreamsCommand;
use crate::exit::Outcome;
use crate::output::Output;

pub(super) async fn run(url: &str, command: VirtualStreamsCommand, output: &mut Output) -> Outcome {
    let options = Options::default();
    let database = Database::open(url, &options).await?;
    let left = match command {
        VirtualStreamsCommand::On => None,
        VirtualStreamsCommand::Off => Some(LeftVirtualStreams::SwitchOff),
        VirtualStreamsCommand::Status => Some(LeftVirtualStreams::Look),
    };
    // A store in several databases keeps no virtual streams, but may have kept them before it got its second one.
    if let Some(left) = left
        && let Some(status) = database.left_virtual_streams(left).await?
    {
        database.close().await;
        return show(status, output);
    }
    let store = database.start(&options)?;
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
