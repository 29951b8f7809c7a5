//! `gesta verify`, `gesta scavenge` and `gesta virtual-streams`: on a store that nobody has open, or through its
//! server.
//!
//! Why through a server: a SQLite store belongs to one process.

use std::time::Duration;

use gesta::verify::FindingKind;
use gesta::{Options, RunMode};
use gesta_client::HttpStore;
use gesta_core::{Error, EventStore};
use gesta_server::VirtualStreamsCall;
use gesta_wire::maintenance::{
    Progress, Scavenged, SwitchVirtualStreams, Verified, VirtualStreams,
};
use serde_json::json;
use tokio::signal::unix::Signal;
use tokio::time::Instant;

use super::database::{self, on_database_until_stopped};
use super::{
    BEFORE_ALL, connect_to_server, given_store, interrupts, is_server, served, until_stopped,
};
use crate::args::{Global, Scavenge, VirtualStreamsCommand};
use crate::config::DEFAULT_STORE;
use crate::confirm;
use crate::exit::{Code, Failure, Outcome};
use crate::output::{Output, ProgressLine, count, counted, rate, visible};

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
async fn place(global: &Global) -> Outcome<Location> {
    let url = given_store(global).unwrap_or_else(|| DEFAULT_STORE.into());
    Ok(match is_server(&url) {
        true => Location::Server(Box::new(connect_to_server(global, &url).await?)),
        false => Location::Database(url),
    })
}

pub(super) async fn verify(global: &Global, output: &mut Output) -> Outcome {
    let place = place(global).await?;
    let line = ProgressLine::begin(output, "opening the store");
    let told = |now: Progress| line.tell(|time| rate("events read", now.events, None, time));
    let stopped = || "stopped before the whole store was read: of the rest nothing is known".into();
    let verified = match place {
        Location::Server(server) => {
            let verify = async { Ok(server.verify(told).await?) };
            until_stopped(&mut interrupts()?, verify, stopped).await
        }
        Location::Database(url) => {
            on_database_until_stopped(&url, Some("verify"), stopped, async |database| {
                Ok(served::verify(database, told).await?)
            })
            .await
        }
    };
    drop(line);
    let verified = verified?;
    show(&verified, output)?;
    match verified.healthy {
        true => Ok(()),
        false => Err(damaged(
            &verified,
            "stop the server and run the statements with which the findings end on its file (`sqlite3 PATH`)",
            "keep its files as they are, and restore a backup, or copy what can be read (`gesta all read --output json`)",
        )),
    }
}

/// Returns the failure of a command that found a damaged store, with what to do about it: if only its tables are not as
/// they should be, and if more is wrong.
pub(super) fn damaged(verified: &Verified, mend_tables: &str, advice: &str) -> Failure {
    let count = verified.findings_total;
    let text = match is_whole(verified) {
        true => format!(
            "no event is damaged, but the tables of the store are not as Gesta makes them, findings: {count}; {mend_tables}"
        ),
        false => format!("the store is damaged, findings: {count}; {advice}"),
    };
    Failure::Message(Code::Damaged, text)
}

/// Tells whether nothing is wrong with what is stored, whatever is wrong with the tables themselves.
fn is_whole(verified: &Verified) -> bool {
    let schema = FindingKind::Schema.as_str();
    let of_schema = verified
        .findings
        .iter()
        .filter(|found| found.kind == schema);
    of_schema.count() as u64 == verified.findings_total
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
            format!(
                "healthy: {} read, every promise that data can show is kept",
                count(*events, "event")
            )
        }
        false if is_whole(verified) => format!(
            "no event is damaged, but the tables are not as Gesta makes them: {} read, {}",
            count(*events, "event"),
            count(*findings_total, "finding")
        ),
        false => format!(
            "damaged: {} read, {}",
            count(*events, "event"),
            count(*findings_total, "finding")
        ),
    })?;
    output.flush()
}

pub(super) async fn scavenge(global: &Global, args: &Scavenge, output: &mut Output) -> Outcome {
    if args.compact && given_store(global).is_some_and(|url| is_server(&url)) {
        return Err(Failure::usage(
            "--compact writes the whole file again, which needs the store for itself: stop the server, and give \
             --store sqlite:PATH. Without --compact the room is used for new events",
        ));
    }
    let place = place(global).await?;
    let mode = match args.dry_run {
        true => RunMode::Dry,
        false => RunMode::Real,
    };
    if mode == RunMode::Real {
        confirm::ask(&args.confirm, "Hidden events are removed for ever")?;
    }
    let line = ProgressLine::begin(output, "opening the store");
    let scavenged = remove_hidden(&place, args, &line).await;
    drop(line);
    output.record(&scavenged?, show_scavenged)?;
    let Location::Database(url) = place else {
        return Ok(());
    };
    if !args.compact {
        return Ok(());
    }
    output.flush()?;
    let line = ProgressLine::begin(output, "writing the events that are left to a smaller file");
    let compact = async { Ok(gesta::schema::compact(&url).await?) };
    let stopped = || {
        "stopped: what was removed stays removed, and the file is whole, as large as it was or smaller; repeat the command \
         to make it smaller"
            .into()
    };
    let compacted = until_stopped(&mut interrupts()?, compact, stopped).await;
    drop(line);
    let (before, after) = compacted?;
    output.record(
        &json!({"file_bytes_before": before, "file_bytes_after": after}),
        |_| format!("the file had {before} bytes and has {after}"),
    )
}

/// Removes what is hidden in a store, or counts it, until Ctrl-C.
async fn remove_hidden(
    place: &Location,
    args: &Scavenge,
    line: &ProgressLine,
) -> Outcome<Scavenged> {
    // What a server can be asked for: it cannot write its file again.
    let (mode, through_server) = match (args.dry_run, args.compact) {
        (true, _) => (RunMode::Dry, Some("scavenge --dry-run")),
        (false, false) => (RunMode::Real, Some("scavenge")),
        (false, true) => (RunMode::Real, None),
    };
    let told = |now: Progress| {
        line.tell(|time| {
            let streams = rate("streams", now.streams, None, time);
            match mode {
                RunMode::Dry => {
                    let hidden = counted(now.events, "event is", "events are");
                    format!("looked at {streams}; {hidden} hidden")
                }
                RunMode::Real => {
                    format!(
                        "looked at {streams}; {} removed",
                        count(now.events, "event")
                    )
                }
            }
        });
    };
    let stopped = || match mode {
        RunMode::Dry => "stopped: nothing was changed".into(),
        RunMode::Real => {
            "stopped: what was removed stays removed; repeat the scavenge, which removes the rest"
                .into()
        }
    };
    let mut interrupts = interrupts()?;
    match place {
        Location::Server(server) => {
            let scavenge = async {
                Ok(match mode {
                    RunMode::Dry => server.count_hidden(told).await?,
                    RunMode::Real => server.scavenge(told).await?,
                })
            };
            until_stopped(&mut interrupts, scavenge, stopped).await
        }
        Location::Database(url) => {
            let opening = database::open(url, through_server);
            let opened = until_stopped(&mut interrupts, opening, || BEFORE_ALL.into()).await?;
            let store = opened.start(&Options::default())?;
            let scavenge = async { Ok(served::scavenge(&store, mode, told).await?) };
            let scavenged = until_stopped(&mut interrupts, scavenge, stopped).await;
            store.shutdown().await?;
            scavenged
        }
    }
}

fn show_scavenged(done: &Scavenged) -> String {
    let verb = match done.dry_run {
        true => "would remove",
        false => "removed",
    };
    let unreadable = match done.streams_unreadable {
        0 => String::new(),
        1 => "; 1 stream was left as it is: its metadata cannot be read".to_owned(),
        count => format!("; {count} streams were left as they are: their metadata cannot be read"),
    };
    format!(
        "{verb} {} ({}) of {}{unreadable}",
        count(done.events, "event"),
        count(done.payload_bytes, "byte"),
        count(done.streams_changed, "stream")
    )
}

pub(super) async fn virtual_streams(
    global: &Global,
    command: VirtualStreamsCommand,
    output: &mut Output,
) -> Outcome {
    let place = place(global).await?;
    let line = ProgressLine::begin(output, "opening the store");
    let status = match place {
        Location::Server(server) => {
            // The entries of what is stored already are written by the server, whether or not anybody waits.
            let left = match &command {
                VirtualStreamsCommand::On => {
                    "stopped: the server goes on writing the entries, and `gesta virtual-streams status` tells how far it is"
                }
                VirtualStreamsCommand::Off => {
                    "stopped: whether virtual streams are off, `gesta virtual-streams status` tells"
                }
                VirtualStreamsCommand::Status => BEFORE_ALL,
            };
            let through = through_server(&server, command, &line);
            let stopped = || left.into();
            until_stopped(&mut interrupts()?, through, stopped).await
        }
        Location::Database(url) => in_database(&url, command, &line).await,
    };
    drop(line);
    output.record(&status?, |status| {
        let state = if status.on { "on" } else { "off" };
        format!(
            "virtual streams are {state}: entries are written up to position {} of {}",
            status.position, status.end
        )
    })
}

async fn in_database(
    url: &str,
    command: VirtualStreamsCommand,
    line: &ProgressLine,
) -> Outcome<VirtualStreams> {
    let mut interrupts = interrupts()?;
    let through_server = match command {
        VirtualStreamsCommand::On => "virtual-streams on",
        VirtualStreamsCommand::Off => "virtual-streams off",
        VirtualStreamsCommand::Status => "virtual-streams status",
    };
    let opening = database::open(url, Some(through_server));
    let database = until_stopped(&mut interrupts, opening, || BEFORE_ALL.into()).await?;
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
        VirtualStreamsCommand::On => switch_on(&store, line, &mut interrupts).await,
        VirtualStreamsCommand::Off => Ok(store.switch_virtual_streams(false).await?),
        VirtualStreamsCommand::Status => Ok(store.virtual_streams_status().await?),
    };
    store.shutdown().await?;
    Ok(served::virtual_streams(status?))
}

async fn switch_on(
    store: &gesta::DatabaseStore,
    line: &ProgressLine,
    interrupts: &mut Signal,
) -> Outcome<gesta::VirtualStreamsStatus> {
    store.switch_virtual_streams(true).await?;
    let writing = store.index_virtual_streams(|now| told(line, now.position.0, now.end.0));
    let writing = async { Ok(writing.await?) };
    let stopped = || {
        "stopped: virtual streams are on, and the entries that are missing are written by the same command, or when \
         somebody reads them"
            .into()
    };
    until_stopped(interrupts, writing, stopped).await
}

/// Shows how far the entries of virtual streams are written.
fn told(line: &ProgressLine, position: u64, end: u64) {
    line.tell(|time| rate("positions indexed", position, Some(end), time));
}

async fn through_server(
    server: &HttpStore,
    command: VirtualStreamsCommand,
    line: &ProgressLine,
) -> Outcome<VirtualStreams> {
    let on = match command {
        VirtualStreamsCommand::Status => return Ok(server.virtual_streams().await?),
        VirtualStreamsCommand::On => true,
        VirtualStreamsCommand::Off => false,
    };
    let switch = SwitchVirtualStreams { on };
    let mut status = server.switch_virtual_streams(switch).await?;
    let end = status.end;
    let mut since = Instant::now();
    while on && status.position < end {
        told(line, status.position, end);
        tokio::time::sleep(ASK_EVERY).await;
        let now = server.virtual_streams().await?;
        if !now.on {
            return Err(Failure::other(
                "virtual streams were switched off meanwhile by somebody else: switch them on again if they are wanted",
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
    Ok(status)
}

#[cfg(test)]
mod tests {
    use gesta_wire::maintenance::Finding;

    use super::*;

    fn verified(kinds: &[FindingKind], findings_total: u64) -> Verified {
        let findings = kinds.iter().map(|kind| Finding {
            kind: kind.as_str().to_owned(),
            log: 0,
            position: None,
            stream: None,
            stream_row: None,
            revision: None,
            text: String::new(),
        });
        Verified {
            healthy: false,
            events: 10,
            findings_total,
            findings: findings.collect(),
        }
    }

    /// What happened: a backup with a trigger of somebody else was said to be damaged, and an earlier one was to be
    /// restored. Goal: the cure is that of what was found.
    #[test]
    fn a_store_whose_tables_alone_are_wrong_is_not_damaged() {
        let schema = FindingKind::Schema;
        for (found, is_whole) in [
            (verified(&[schema, schema], 2), true),
            (verified(&[schema, FindingKind::Checksum], 2), false),
            (verified(&[schema], 2), false),
        ] {
            let Failure::Message(code, text) = damaged(&found, "mend it", "restore another") else {
                panic!("a message");
            };
            assert_eq!(code, Code::Damaged);
            assert_eq!(text.ends_with("mend it"), is_whole, "{text}");
            assert_eq!(text.ends_with("restore another"), !is_whole, "{text}");
        }
    }
}
