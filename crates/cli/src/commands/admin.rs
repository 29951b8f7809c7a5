//! The commands for administration: schema, info, health.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use gesta_client::HttpStore;
use gesta_core::{ErrorKind, EventStore, StoreInfo};
use gesta_wire::answer::Info;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::address::resolve;
use super::serve::place_of;
use super::waiting::told_if_slow;
use super::{client, given_store, interrupts, is_server, until_stopped, with_store};
use crate::args::{DEFAULT_SERVER, Global, SchemaCommand};
use crate::config::Config;
use crate::confirm;
use crate::exit::{Failure, Outcome};
use crate::output::{Output, ProgressLine, count};

pub(super) async fn schema(url: &str, command: SchemaCommand, output: &mut Output) -> Outcome {
    match command {
        SchemaCommand::Create {
            logs,
            if_missing,
            on,
        } => {
            let url = on.urls(url);
            let incarnation = match told_if_slow(gesta::schema::create(&url, logs)).await {
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
            let line = ProgressLine::begin(
                output,
                "migrating the tables, which may take minutes in a large store",
            );
            let migrating = async { Ok(told_if_slow(gesta::schema::migrate(url)).await?) };
            let stopped = || {
                "stopped: each step was done whole or not at all; the same command goes on".into()
            };
            let done = until_stopped(&mut interrupts()?, migrating, stopped).await;
            drop(line);
            let done = done?;
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
            let incarnation = told_if_slow(gesta::schema::new_incarnation(url)).await?;
            output.record(&json!({"incarnation": incarnation.to_string()}), |_| {
                format!("incarnation {incarnation}")
            })
        }
    }
}

/// Looks whether the store that exists is the one that was to be made.
async fn check_existing(url: &str, logs: u16, output: &mut Output) -> Outcome {
    let store = gesta::open(url).await?;
    let info = store.info().await;
    store.shutdown().await?;
    let info = info?;
    if info.logs != logs {
        let found = info.logs;
        return Err(Failure::other(format!(
            "the store exists and has {}, not {logs}: --logs must be {found}, for their number stays as it is for the life \
             of a store",
            count(found.into(), "log")
        )));
    }
    let incarnation = info.incarnation;
    let record = json!({"incarnation": incarnation.to_string(), "logs": logs});
    output.record(&record, |_| {
        format!("exists, incarnation {incarnation}, logs {logs}")
    })
}

/// A store as JSON shows it: what `GET /info` tells of it, and where it is.
#[derive(Serialize)]
struct Located {
    place: String,
    #[serde(flatten)]
    info: Info,
}

/// What a server tells of itself.
#[derive(Deserialize)]
struct Version {
    version: String,
}

pub(super) async fn info(global: &Global, output: &mut Output) -> Outcome {
    let url = given_store(global).unwrap_or_else(|| DEFAULT_SERVER.into());
    with_store(global, async |store| {
        let info = store.info().await?;
        if !is_server(&url) {
            let place = place_of(&url);
            let text = shown_info(&format!("store        {place}"), &info);
            let info = Info::from(info);
            return output.record(&Located { place, info }, |_| text);
        }
        let server = client::store(global, &url)?;
        let document = server.info_document().await?;
        let unreadable = |error: serde_json::Error| {
            Failure::other(format!("the answer of the server cannot be read: {error}"))
        };
        let Version { version } = serde_json::from_slice(&document).map_err(unreadable)?;
        let document: Box<RawValue> = serde_json::from_slice(&document).map_err(unreadable)?;
        output.record(&document, |_| {
            shown_info(&format!("server       {url}, version {version}"), &info)
        })
    })
    .await
}

fn shown_info(place: &str, info: &StoreInfo) -> String {
    let heads: Vec<u64> = info.heads.iter().map(|position| position.0).collect();
    let (durability, retries) = (&info.durability, &info.idempotency);
    let mut lines = vec![
        place.to_owned(),
        format!("database     {} ({})", info.backend, info.engine),
        format!("incarnation  {}", info.incarnation),
        format!("logs         {}", info.logs),
        format!("heads        {heads:?}"),
        format!(
            "durability   {}: {}",
            durability.name(),
            durability.detail()
        ),
        format!(
            "retries      recognised for {} s and {} positions",
            retries.time.as_secs(),
            retries.positions
        ),
    ];
    let ahead = info.newest_event_ahead.as_secs();
    if ahead > 0 {
        lines.push(format!(
            "clock        the newest event is {ahead} s ahead of this machine's clock"
        ));
    }
    lines.join("\n")
}

/// Asks a server whether it is alive, or whether it can take appends.
pub(super) async fn health(global: &Global, ready: bool, output: &mut Output) -> Outcome {
    let url = match global.store_urls() {
        Some(url) if !is_server(&url) || url.contains(' ') => {
            return Err(Failure::usage(
                "health is asked of one server: --store must be http://HOST:PORT or https://HOST:PORT",
            ));
        }
        Some(url) => url,
        None => {
            let given = std::env::var("GESTA_STORE").ok();
            match given.filter(|url| is_server(url)) {
                Some(url) => url,
                None => server_of(&Config::of_environment()?).await?,
            }
        }
    };
    let server = HttpStore::with_config(&url, client::config(global)?)?;
    let status = match ready {
        true => {
            // It is said only to a server of Gesta who calls.
            server.look().await?;
            server.ready().await.map(|()| "ready")?
        }
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
