//! `gesta verify`, `gesta scavenge` and `gesta virtual-streams`: on a store that nobody has open, or through its
//! server.
//!
//! Why through a server: a SQLite store belongs to one process.

use std::time::Duration;

use gesta::{Options, RunMode};
use gesta_client::HttpStore;
use gesta_core::{Error, EventStore};
use gesta_server::VirtualStreamsCall;
use gesta_wire::maintenance::{
    Progress, Scavenged, SwitchVirtualStreams, Verified, VirtualStreams,
};
use indicatif::ProgressBar;
use serde_json::json;
use tokio::time::Instant;

use super::database::{self, on_database};
use super::{client, given_store, is_server, served};
use crate::args::{Global, Scavenge, VirtualStreamsCommand};
use crate::config::DEFAULT_STORE;
use crate::confirm;
use crate::exit::{Code, Failure, Outcome};
use crate::output::{Output, visible};

/// The pause between two questions how far the entries of virtual streams are written.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// How long no further entry may be written until the command gives up waiting.
const STANDS_STILL_MAX: Duration = Duration::from_secs(60);

/// Where the store is that a command works on.
enum Location {
    Server(Box<HttpStore>),
    Database(String),
}

/// Returns where the store is that is named, or else the store that `gesta serve` opens by default.
fn place(global: &Global) -> Outcome<Location> {
    let url = given_store(global).unwrap_or_else(|| DEFAULT_STORE.into());
    Ok(match is_server(&url) {
        true => {
            let server = HttpStore::with_config(&url, client::config(global)?)?;
            Location::Server(Box::new(server))
        }
        false => Location::Database(url),
    })
}

fn spinner() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

pub(super) async fn verify(global: &Global, output: &mut Output) -> Outcome {
    let place = place(global)?;
    let bar = spinner();
    let told = |now: Progress| bar.set_message(format!("{} events read", now.events));
    let verified = match place {
        Location::Server(server) => server.verify(told).await,
        Location::Database(url) => {
            on_database(&url, Some("verify"), async |database| {
                Ok(served::verify(database, told).await)
            })
            .await?
        }
    };
    bar.finish_and_clear();
    let verified = verified?;
    show(&verified, output)?;
    match verified.healthy {
        true => Ok(()),
        false => Err(damaged(&verified)),
    }
}

/// Returns the failure of a command that found a damaged store.
pub(super) fn damaged(verified: &Verified) -> Failure {
    Failure::Message(
        Code::Damaged,
        format!("{} findings", verified.findings_total),
    )
}

/// Shows what a check found, and the summary.
pub(super) fn show(verified: &Verified, output: &mut Output) -> Outcome {
    for finding in &verified.findings {
        output.record(finding, |finding| visible(&finding.to_string()))?;
    }
    let Verified {
        healthy,
        events,
        findings_total,
        ..
    } = verified;
    let summary = json!({"healthy": healthy, "events": events, "findings": findings_total});
    output.record(&summary, |_| match healthy {
        true => {
            format!("healthy: {events} events read, every promise that data can show is kept")
        }
        false => format!("damaged: {events} events read, {findings_total} findings"),
    })?;
    output.flush()
}

pub(super) async fn scavenge(global: &Global, args: &Scavenge, output: &mut Output) -> Outcome {
    let place = place(global)?;
    if args.compact && matches!(place, Location::Server(_)) {
        return Err(Failure::usage(
            "--compact writes the whole file anew, which needs the store for itself: stop the server, and give \
             --store sqlite:PATH. Without --compact the room is used for new events",
        ));
    }
    let mode = match args.dry_run {
        true => RunMode::Dry,
        false => RunMode::Real,
    };
    if mode == RunMode::Real {
        confirm::ask(&args.confirm, "Hidden events are removed for ever")?;
    }
    let bar = spinner();
    let told = |now: Progress| {
        bar.set_message(format!("{} streams, {} events", now.streams, now.events));
    };
    let scavenged = match &place {
        Location::Server(server) if mode == RunMode::Dry => server.count_hidden(told).await,
        Location::Server(server) => server.scavenge(told).await,
        Location::Database(url) => {
            let options = Options::default();
            let store = database::open(url, Some("scavenge"))
                .await?
                .start(&options)?;
            let scavenged = served::scavenge(&store, mode, told).await;
            store.shutdown().await?;
            scavenged
        }
    };
    bar.finish_and_clear();
    output.record(&scavenged?, show_scavenged)?;
    let Location::Database(url) = place else {
        return Ok(());
    };
    if !args.compact {
        return Ok(());
    }
    let (before, after) = gesta::schema::compact(&url).await?;
    output.record(
        &json!({"file_bytes_before": before, "file_bytes_after": after}),
        |_| format!("the file had {before} bytes and has {after}"),
    )
}

fn show_scavenged(done: &Scavenged) -> String {
    let verb = match done.dry_run {
        true => "would remove",
        false => "removed",
    };
    let unreadable = match done.streams_unreadable {
        0 => String::new(),
        count => format!("; {count} streams were left as they are: their metadata cannot be read"),
    };
    format!(
        "{verb} {} events ({} bytes) of {} streams{unreadable}",
        done.events, done.payload_bytes, done.streams_changed
    )
}

pub(super) async fn virtual_streams(
    global: &Global,
    command: VirtualStreamsCommand,
    output: &mut Output,
) -> Outcome {
    let status = match place(global)? {
        Location::Server(server) => through_server(&server, command).await?,
        Location::Database(url) => in_database(&url, command).await?,
    };
    output.record(&status, |status| {
        let state = if status.on { "on" } else { "off" };
        format!(
            "virtual streams are {state}: entries are written up to position {} of {}",
            status.position, status.end
        )
    })
}

async fn in_database(url: &str, command: VirtualStreamsCommand) -> Outcome<VirtualStreams> {
    let database = database::open(url, Some("virtual-streams")).await?;
    let call = match command {
        VirtualStreamsCommand::On => VirtualStreamsCall::SwitchOn,
        VirtualStreamsCommand::Off => VirtualStreamsCall::SwitchOff,
        VirtualStreamsCommand::Status => VirtualStreamsCall::Look,
    };
    if let Some(left) = served::left(&database, call).await? {
        database.close().await;
        return Ok(left);
    }
    let store = database.start(&Options::default())?;
    let status = match command {
        VirtualStreamsCommand::On => switch_on(&store).await,
        VirtualStreamsCommand::Off => store.switch_virtual_streams(false).await,
        VirtualStreamsCommand::Status => store.virtual_streams_status().await,
    };
    store.shutdown().await?;
    Ok(served::virtual_streams(status?))
}

async fn switch_on(
    store: &gesta::DatabaseStore,
) -> gesta_core::Result<gesta::VirtualStreamsStatus> {
    store.switch_virtual_streams(true).await?;
    let bar = spinner();
    let status = store
        .index_virtual_streams(|now| {
            bar.set_message(format!("position {} of {}", now.position, now.end));
        })
        .await;
    bar.finish_and_clear();
    status
}

async fn through_server(
    server: &HttpStore,
    command: VirtualStreamsCommand,
) -> Outcome<VirtualStreams> {
    let on = match command {
        VirtualStreamsCommand::Status => return Ok(server.virtual_streams().await?),
        VirtualStreamsCommand::On => true,
        VirtualStreamsCommand::Off => false,
    };
    let switch = SwitchVirtualStreams { on };
    let mut status = server.switch_virtual_streams(switch).await?;
    // The entries of what is stored already are written by the server, whether or not anybody waits.
    let end = status.end;
    let (bar, mut since) = (spinner(), Instant::now());
    while on && status.position < end {
        bar.set_message(format!("position {} of {end}", status.position));
        tokio::time::sleep(ASK_EVERY).await;
        let now = server.virtual_streams().await?;
        if !now.on {
            return Err(Failure::other(
                "virtual streams were switched off meanwhile",
            ));
        }
        if now.position != status.position {
            since = Instant::now();
        } else if since.elapsed() > STANDS_STILL_MAX {
            let text = format!(
                "virtual streams are on, but no entry was written for {} s: the log of the server tells why",
                STANDS_STILL_MAX.as_secs()
            );
            return Err(Error::unavailable(text).into());
        }
        status = now;
    }
    bar.finish_and_clear();
    Ok(status)
}
