//! Opens a store by its URL, by way of the delay proxy if asked, and tells what is known about it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{Checkpoint, EventStore, Place};
use gesta_report::endpoint::{self, Endpoint};
use gesta_report::failure::{Context, Failure, Result, fail};
use gesta_report::{StoreFacts, units};
use gesta_rig::FaultProxy;
use serde::Serialize;

use crate::machine::network::{Network, WeatherArgs};
use crate::machine::postgres;

/// Largest file that a variable of the environment names.
const NAMED_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Stands for a server that is started for this run.
pub const NEW_SERVER: &str = "postgres:new";

/// Which store, and how far away.
#[derive(Debug, Clone, clap::Args)]
pub struct StoreArgs {
    /// The store: `memory:`, `sqlite:PATH`, `postgres://…`, the URL of a server, `http://…`, or
    /// `postgres:new`, a PostgreSQL server with the default configuration that is started for this run.
    #[arg(long, default_value = "sqlite:gesta-lab.db")]
    pub store: String,
    /// Extra round trip to the database or server, for example 10ms; half of it each way.
    #[arg(long, default_value = "0", value_parser = units::duration)]
    pub rtt: Duration,
    /// What else befalls the way.
    #[command(flatten)]
    pub weather: WeatherArgs,
    /// Logs of a store that is created by this run.
    #[arg(long, default_value_t = 1)]
    pub logs: u16,
}

impl StoreArgs {
    /// The way to the store.
    pub fn network(&self) -> Network {
        self.weather.over(self.rtt)
    }
}

/// An open store.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn EventStore>,
    /// The same, if it runs in this process on a database.
    embedded: Option<Arc<gesta::DatabaseStore>>,
    /// What is known about it.
    pub facts: StoreFacts,
    /// The delay in between.
    #[expect(dead_code, reason = "lives as long as the store")]
    proxy: Option<FaultProxy>,
    /// The server that was started for this run.
    server: Option<gesta_rig::Server>,
}

/// What the append pipelines of a store did, all logs together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pipelines {
    /// Batches sent, missed ones too.
    pub batches: u64,
    /// Events sent, those of missed batches too.
    pub events: u64,
    /// Batches that missed because another process had appended.
    pub misses: u64,
}

impl Pipelines {
    /// The difference to an earlier look.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            batches: self.batches - earlier.batches,
            events: self.events - earlier.events,
            misses: self.misses - earlier.misses,
        }
    }
}

impl Opened {
    /// What the store's pipelines did so far, if they run in this process.
    pub fn pipelines(&self) -> Option<Pipelines> {
        let mut sum = Pipelines::default();
        for one in self.embedded.as_ref()?.pipeline_stats() {
            sum.batches += one.batches;
            sum.events += one.events;
            sum.misses += one.misses;
        }
        Some(sum)
    }

    /// The store itself, whose streams a runtime of this process can own.
    pub fn owner(&self) -> Result<Arc<gesta::DatabaseStore>> {
        match &self.embedded {
            Some(store) => Ok(Arc::clone(store)),
            None => fail("entities need a store on a database, not a server or `memory:`"),
        }
    }
}

/// Opens the store.
pub async fn open(args: &StoreArgs) -> Result<Opened> {
    let mut server = None;
    let url = resolve(&args.store, &mut server)?;
    let mut opened = open_url(&url, args.network(), args.logs).await?;
    opened.server = server;
    Ok(opened)
}

/// The URL itself, or that of a server that is started for this run and put into `server`.
pub fn resolve(url: &str, server: &mut Option<gesta_rig::Server>) -> Result<String> {
    if url == NEW_SERVER {
        return Ok(server.insert(new_server()?).url());
    }
    Ok(url.to_owned())
}

/// Opens a store by its URL, at a distance.
pub async fn open_url(url: &str, network: impl Into<Network>, logs: u16) -> Result<Opened> {
    let network = network.into();
    let (path, proxy) = delayed(url, network)?;
    let (store, embedded) = open_either(&path, logs)
        .await
        .context(endpoint::redacted(url))?;
    let info = store.info().await.context("reading the store's facts")?;
    let is_postgres = Endpoint::parse(url).is_some_and(|endpoint| endpoint.is_postgres());
    let facts = StoreFacts {
        url: endpoint::redacted(url),
        backend: info.backend,
        engine: info.engine,
        durability: info.durability.name().into(),
        durability_detail: info.durability.detail().to_owned(),
        logs: info.logs,
        round_trip_ms: network.round_trip.as_secs_f64() * 1_000.0,
        settings: match is_postgres {
            true => postgres::settings(url).await?,
            false => BTreeMap::new(),
        },
    };
    Ok(Opened {
        store,
        embedded,
        facts,
        proxy,
        server: None,
    })
}

/// Log segments of 16 MiB made before a run: `min_wal_size`, and so what a checkpoint keeps for use.
const SEGMENTS: usize = 64;

/// A throw-away server that also counts statements, with PostgreSQL's own defaults, but with log segments at hand
/// as in a server that has run for a while: making a new one stops all commits for some 40 ms.
pub fn new_server() -> Result<gesta_rig::Server> {
    new_server_for(100)
}

/// The same, for at least so many connections.
///
/// # Errors
/// PostgreSQL is not installed or does not start.
pub fn new_server_for(connections: u32) -> Result<gesta_rig::Server> {
    let server = start_server(connections.max(100))?;
    // Without its library it is of no use, and not missed.
    let _ = server.execute("CREATE EXTENSION pg_stat_statements");
    let segment = "SELECT pg_logical_emit_message(false, 'lab', ''); SELECT pg_switch_wal();";
    server
        .execute(&format!("{}CHECKPOINT", segment.repeat(SEGMENTS)))
        .map_err(|error| Failure(format!("making log segments: {error}")))?;
    Ok(server)
}

fn start_server(connections: u32) -> Result<gesta_rig::Server> {
    let config = gesta_rig::ServerConfig::default()
        .with("min_wal_size", "1GB")
        .with("max_connections", &connections.to_string());
    let counting = config
        .clone()
        .with("shared_preload_libraries", "pg_stat_statements");
    // Where the counting library is not installed, do without.
    let server =
        gesta_rig::Server::start_with(counting).or_else(|_| gesta_rig::Server::start_with(config));
    match server {
        Ok(Some(server)) => Ok(server),
        Ok(None) => fail("PostgreSQL is not installed"),
        Err(error) => fail(format!("PostgreSQL does not start: {error}")),
    }
}

/// The URL by way of a proxy with this delay; the URL itself without a delay.
pub fn delayed(url: &str, network: impl Into<Network>) -> Result<(String, Option<FaultProxy>)> {
    let network = network.into();
    if network.is_plain() {
        return Ok((url.to_owned(), None));
    }
    let Some(endpoint) = Endpoint::parse(url) else {
        return fail("--rtt, --jitter and --loss need a store that is reached over TCP");
    };
    let proxy = proxy(&endpoint, network)?;
    Ok((endpoint.through(proxy.addr()), Some(proxy)))
}

/// A proxy to this address with this delay.
pub fn proxy(endpoint: &Endpoint, network: impl Into<Network>) -> Result<FaultProxy> {
    let proxy = FaultProxy::start(endpoint.address()?).context("starting the proxy")?;
    network.into().apply(&proxy);
    Ok(proxy)
}

/// Bytes of the files of a SQLite store; none for another store.
pub fn file_bytes(url: &str) -> Option<u64> {
    let path = url.strip_prefix("sqlite:")?.split('?').next()?;
    let files = ["", "-wal"].map(|suffix| std::fs::metadata(format!("{path}{suffix}")));
    let sizes = files.into_iter().flatten().map(|file| file.len());
    Some(sizes.sum())
}

/// The store, and its own handle if it runs in this process on a database.
async fn open_either(
    url: &str,
    logs: u16,
) -> Result<(Arc<dyn EventStore>, Option<Arc<gesta::DatabaseStore>>)> {
    if url == "memory:" {
        return Ok((Arc::new(gesta_memory::MemoryStore::new()), None));
    }
    if is_server(url) {
        let config = gesta_client::Config {
            tls: gesta_client::Tls {
                ca_pem: file_named_by("GESTA_CA_FILE")?,
                ..gesta_client::Tls::default()
            },
            credentials: token()?.map(gesta_client::Credentials::Token),
            ..gesta_client::Config::default()
        };
        let store = gesta_client::HttpStore::with_config(url, config)?;
        return Ok((Arc::new(store), None));
    }
    let store = gesta::open(url).create().logs(logs).database().await?;
    Ok((Arc::clone(&store) as Arc<dyn EventStore>, Some(store)))
}

/// True for the URL of a server.
pub fn is_server(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

/// The token for a server that asks who calls, in the file that the environment names.
pub fn token() -> Result<Option<String>> {
    let Some(bytes) = file_named_by("GESTA_TOKEN_FILE")? else {
        return Ok(None);
    };
    Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned()))
}

fn file_named_by(variable: &str) -> Result<Option<Vec<u8>>> {
    let Some(path) = std::env::var_os(variable) else {
        return Ok(None);
    };
    let path = Path::new(&path);
    let read = gesta_report::file::read(path, NAMED_BYTES_MAX).map_err(Failure);
    let read = read.context(format!("{variable}={}", path.display()))?;
    Ok(Some(read))
}

/// Where the store ends now: the check of a later run begins here.
pub async fn end_of(store: &dyn EventStore) -> Result<Checkpoint> {
    let info = store.info().await.context("reading the store's head")?;
    Ok(Checkpoint {
        incarnation: info.incarnation,
        place: Place::Logs(info.heads),
    })
}

/// What is known about a PostgreSQL database, whatever is in it.
///
/// # Errors
/// It cannot be reached.
pub async fn database_facts(url: &str, round_trip: Duration) -> Result<StoreFacts> {
    let settings = postgres::settings(url).await?;
    let (durability, durability_detail) = postgres::durability(&settings);
    let version = settings.get("server_version").map_or("", String::as_str);
    Ok(StoreFacts {
        url: endpoint::redacted(url),
        backend: "postgres".into(),
        engine: format!("PostgreSQL {version}"),
        durability: durability.into(),
        durability_detail,
        round_trip_ms: round_trip.as_secs_f64() * 1_000.0,
        settings,
        ..StoreFacts::default()
    })
}
