//! The commands for administration: schema, verify, scavenge, info, health.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use gesta::verify::AuditReport;
use gesta::{Database, Options, RunMode};
use gesta_client::HttpStore;
use gesta_core::{ErrorKind, EventStore};
use gesta_wire::answer::Info;
use indicatif::ProgressBar;
use serde_json::json;

use super::address::resolve;
use super::client;
use crate::args::{Global, Scavenge, SchemaCommand};
use crate::config::Config;
use crate::confirm;
use crate::exit::{Code, Failure, Outcome};
use crate::output::Output;

pub(super) async fn schema(url: &str, command: SchemaCommand, output: &mut Output) -> Outcome {
    match command {
        SchemaCommand::Create {
            logs,
            if_missing,
            on,
        } => {
            let url = on.urls(url);
            let incarnation = match gesta::schema::create(&url, logs).await {
                Err(error) if if_missing && matches!(error.kind(), ErrorKind::Schema(_)) => {
                    return check_existing(&url, logs, output).await;
                }
                created => created?,
            };
            let record = json!({"incarnation": incarnation.to_string(), "logs": logs});
            output.record(&record, |_| {
                format!("created, incarnation {incarnation}, logs {logs}")
            })
        }
        SchemaCommand::Migrate => {
            let done = gesta::schema::migrate(url).await?;
            output.record(&json!({"from": done.from, "to": done.to}), |_| {
                if done.from == done.to {
                    format!("nothing to do: the schema has version {}", done.to)
                } else {
                    format!("migrated from version {} to {}", done.from, done.to)
                }
            })
        }
        SchemaCommand::Print { logs, on } => {
            output.text(&gesta::schema::print(&on.urls(url), logs)?)
        }
        SchemaCommand::NewIncarnation { confirm } => {
            confirm::ask(&confirm, "All checkpoints of consumers become invalid")?;
            let incarnation = gesta::schema::new_incarnation(url).await?;
            output.record(&json!({"incarnation": incarnation.to_string()}), |_| {
                format!("incarnation {incarnation}")
            })
        }
    }
}

/// Looks whether the store that exists is the one that was to be made.
async fn check_existing(url: &str, logs: u16, output: &mut Output) -> Outcome {
    let store = Options::default().open(url).await?;
    let info = store.info().await;
    store.shutdown().await?;
    let info = info?;
    if info.logs != logs {
        let found = info.logs;
        return Err(Failure::other(format!(
            "the store exists and has {found} logs, not {logs}: --logs must be {found}, for their number stays as it is for \
             the life of a store"
        )));
    }
    let incarnation = info.incarnation;
    let record = json!({"incarnation": incarnation.to_string(), "logs": logs});
    output.record(&record, |_| {
        format!("exists, incarnation {incarnation}, logs {logs}")
    })
}

pub(super) async fn verify(url: &str, output: &mut Output) -> Outcome {
    let database = Database::open(url, &Options::default()).await?;
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    let report = database
        .verify(|progress| bar.set_message(format!("{} events read", progress.events)))
        .await;
    bar.finish_and_clear();
    database.close().await;
    let report = report?;
    show(&report, output)?;
    if report.is_healthy() {
        return Ok(());
    }
    Err(damaged(&report))
}

/// Returns the failure of a command that found a damaged store.
pub(super) fn damaged(report: &AuditReport) -> Failure {
    Failure::Message(Code::Damaged, format!("{} findings", report.findings_total))
}

/// Shows what a check found, and the summary.
pub(super) fn show(report: &AuditReport, output: &mut Output) -> Outcome {
    for finding in &report.findings {
        let record = json!({
            "kind": finding.kind.as_str(),
            "log": finding.log.0,
            "position": finding.position,
            "stream": finding.stream,
            "revision": finding.revision,
            "text": finding.text,
        });
        output.record(&record, |_| finding.to_string())?;
    }
    let events: u64 = report.logs.iter().map(|log| log.events).sum();
    let summary = json!({"healthy": report.is_healthy(), "events": events, "findings": report.findings_total});
    output.record(&summary, |_| {
        if report.is_healthy() {
            format!("healthy: {events} events read, every promise that data can show is kept")
        } else {
            format!(
                "damaged: {events} events read, {} findings",
                report.findings_total
            )
        }
    })?;
    output.flush()
}

pub(super) async fn scavenge(url: &str, args: &Scavenge, output: &mut Output) -> Outcome {
    let mode = if args.dry_run {
        RunMode::Dry
    } else {
        RunMode::Real
    };
    if mode == RunMode::Real {
        confirm::ask(&args.confirm, "Hidden events are removed for ever")?;
    }
    let store = gesta::open_database(url).await?;
    let bar = ProgressBar::new_spinner();
    let report = store
        .scavenge(mode, |progress| {
            bar.set_message(format!(
                "{} streams, {} events",
                progress.streams, progress.removed.events
            ))
        })
        .await;
    bar.finish_and_clear();
    store.shutdown().await?;
    let report = report?;
    let record = json!({
        "dry_run": args.dry_run,
        "streams": report.streams,
        "streams_changed": report.streams_changed,
        "streams_unreadable": report.streams_unreadable,
        "events": report.removed.events,
        "payload_bytes": report.removed.payload_bytes,
    });
    let verb = if args.dry_run {
        "would remove"
    } else {
        "removed"
    };
    output.record(&record, |_| {
        let unreadable = match report.streams_unreadable {
            0 => String::new(),
            count => {
                format!("; {count} streams were left as they are: their metadata cannot be read")
            }
        };
        format!(
            "{verb} {} events ({} bytes) of {} streams{unreadable}",
            report.removed.events, report.removed.payload_bytes, report.streams_changed
        )
    })?;
    if !args.compact {
        return Ok(());
    }
    let (before, after) = gesta::schema::compact(url).await?;
    output.record(
        &json!({"file_bytes_before": before, "file_bytes_after": after}),
        |_| format!("the file had {before} bytes and has {after}"),
    )
}

pub(super) async fn info(global: &Global, output: &mut Output) -> Outcome {
    super::with_store(global, async |store| {
        let info = store.info().await?;
        let heads: Vec<u64> = info.heads.iter().map(|position| position.0).collect();
        // The same document as that of `GET /info`.
        let record = Info::from(info.clone());
        let ahead = match info.newest_event_ahead.as_secs() {
            0 => String::new(),
            seconds => format!("\nclock        the newest event is {seconds} s ahead of this machine's clock"),
        };
        output.record(&record, |_| {
            format!(
                "{} ({})\nincarnation  {}\nlogs         {}\nheads        {heads:?}\ndurability   {}: {}\nretries      recognised for {} s and {} positions{ahead}",
                info.backend, info.engine, info.incarnation, info.logs, info.durability.name(), info.durability.detail(),
                info.idempotency.time.as_secs(), info.idempotency.positions
            )
        })
    })
    .await
}

/// Asks a server whether it is alive, or whether it can take appends.
pub(super) async fn health(global: &Global, ready: bool, output: &mut Output) -> Outcome {
    let url = match global.store_urls() {
        Some(url) if !super::is_server(&url) => {
            return Err(Failure::usage(
                "health is asked of a server: --store must be http://HOST:PORT or https://HOST:PORT",
            ));
        }
        Some(url) => url,
        None => {
            let given = std::env::var("GESTA_STORE").ok();
            match given.filter(|url| super::is_server(url)) {
                Some(url) => url,
                None => server_of(&Config::of_environment()?).await?,
            }
        }
    };
    let server = HttpStore::with_config(&url, client::config(global)?)?;
    let status = match ready {
        true => server.ready().await.map(|()| "ready")?,
        false => server.live().await.map(|()| "live")?,
    };
    output.record(&json!({"status": status}), |_| status.to_owned())
}

/// Returns the URL at which a server with this configuration is reached from its own machine.
async fn server_of(config: &Config) -> Outcome<String> {
    let mut address = resolve("listen", 2113, &config.listen).await?;
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let has_tls = !config.tls.certificate.is_empty() || !config.tls.self_signed.is_empty();
    let scheme = if has_tls { "https" } else { "http" };
    Ok(format!("{scheme}://{address}"))
}
