//! Opens a store by its URL, by way of the delay proxy if asked, and tells what is known about it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{EventStore, StoreInfo};
use serde::Serialize;

use crate::endpoint::{self, Endpoint};
use crate::failure::{Context, Result, fail};
use crate::postgres;
use crate::proxy::Proxy;
use crate::units;

/// Which store, and how far away.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StoreArgs {
    /// The store: `memory:`, `sqlite:PATH`, `postgres://…` or the URL of a server, `http://…`.
    #[arg(long, default_value = "sqlite:gesta-lab.db")]
    pub(crate) store: String,
    /// Extra round trip to the database or server, for example 10ms; half of it each way.
    #[arg(long, default_value = "0", value_parser = units::duration)]
    pub(crate) rtt: Duration,
    /// Logs of a store that is created by this run.
    #[arg(long, default_value_t = 1)]
    pub(crate) logs: u16,
}

/// What is known about a store.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct StoreFacts {
    /// Its URL without the password.
    pub(crate) url: String,
    /// Kind of store.
    pub(crate) backend: String,
    /// The database and its version.
    pub(crate) engine: String,
    /// `full`, `weakened` or `none`.
    pub(crate) durability: &'static str,
    /// The settings behind it.
    pub(crate) durability_detail: String,
    /// This life of the store.
    pub(crate) incarnation: String,
    /// Number of logs.
    pub(crate) logs: u16,
    /// Batches that may be in flight at once.
    pub(crate) batches_in_flight_max: usize,
    /// Last position of each log before the run.
    pub(crate) heads: Vec<u64>,
    /// Injected round trip.
    pub(crate) round_trip_ms: f64,
    /// Settings of the database that bear on the figures.
    pub(crate) settings: BTreeMap<String, String>,
}

/// An open store.
pub(crate) struct Opened {
    /// The store.
    pub(crate) store: Arc<dyn EventStore>,
    /// What is known about it.
    pub(crate) facts: StoreFacts,
    /// The delay in between; must live as long as the store.
    _proxy: Option<Proxy>,
}

#[cfg(test)]
impl Opened {
    /// A store made by a test.
    pub(crate) async fn of(store: Arc<dyn EventStore>) -> Result<Self> {
        let info = store.info().await?;
        Ok(Self {
            store,
            facts: facts("memory:", &info, Duration::ZERO, BTreeMap::new()),
            _proxy: None,
        })
    }
}

/// Opens the store.
pub(crate) async fn open(args: &StoreArgs) -> Result<Opened> {
    open_delayed(args, args.rtt).await
}

/// Opens the store at a distance of its own.
pub(crate) async fn open_delayed(args: &StoreArgs, round_trip: Duration) -> Result<Opened> {
    let (url, proxy) = delayed(&args.store, round_trip)?;
    let store = gesta_open(&url, args.logs)
        .await
        .context(endpoint::redacted(&args.store))?;
    let info = store.info().await.context("reading the store's facts")?;
    let settings = match Endpoint::parse(&args.store) {
        Some(endpoint) if endpoint.is_postgres() => postgres::settings(&args.store).await?,
        _ => BTreeMap::new(),
    };
    Ok(Opened {
        store,
        facts: facts(&args.store, &info, round_trip, settings),
        _proxy: proxy,
    })
}

/// The URL by way of a proxy with this delay; the URL itself without a delay.
pub(crate) fn delayed(url: &str, round_trip: Duration) -> Result<(String, Option<Proxy>)> {
    if round_trip.is_zero() {
        return Ok((url.to_owned(), None));
    }
    let Some(endpoint) = Endpoint::parse(url) else {
        return fail("--rtt needs a store that is reached over TCP");
    };
    let proxy = Proxy::start(endpoint.address()?, round_trip).context("starting the proxy")?;
    Ok((endpoint.through(proxy.address()), Some(proxy)))
}

async fn gesta_open(url: &str, _logs: u16) -> Result<Arc<dyn EventStore>> {
    match url {
        "memory:" => Ok(Arc::new(gesta_memory::MemoryStore::new())),
        _ => fail("to come"),
    }
}

fn facts(
    url: &str,
    info: &StoreInfo,
    round_trip: Duration,
    settings: BTreeMap<String, String>,
) -> StoreFacts {
    StoreFacts {
        url: endpoint::redacted(url),
        backend: info.backend.clone(),
        engine: info.engine.clone(),
        durability: info.durability.name(),
        durability_detail: info.durability.detail().to_owned(),
        incarnation: info.incarnation.to_string(),
        logs: info.logs,
        batches_in_flight_max: info.capabilities.batches_in_flight_max,
        heads: info.heads.iter().map(|head| head.0).collect(),
        round_trip_ms: round_trip.as_secs_f64() * 1_000.0,
        settings,
    }
}
