//! Which schemas take part.

use std::sync::Arc;
use std::time::Duration;

use super::SchemasArgs;
use super::steps::Steps;
use crate::endpoint::Endpoint;
use crate::failure::{Result, fail};
use crate::journals;
use crate::postgres;
use crate::target::{GestaTarget, Target};

/// Connections beside those of the workers: for preparing, reading back, Gesta's own.
const OTHERS: u32 = 12;

/// The targets, in the order in which the first round goes through them.
pub(super) async fn targets(
    args: &SchemasArgs,
    url: &str,
    steps: Steps,
) -> Result<Vec<Arc<dyn Target>>> {
    let is_postgres = Endpoint::parse(url).is_some_and(|endpoint| endpoint.is_postgres());
    if is_postgres {
        enough_connections(url, steps).await?;
    } else if !url.starts_with("sqlite:") {
        return fail(
            "--store is the database, postgres://… or sqlite:PATH; a server may be added by --also http://…",
        );
    }
    let mut all: Vec<Arc<dyn Target>> = Vec::new();
    for logs in &args.gesta_logs {
        if *logs == 0 || (*logs > 1 && url.starts_with("sqlite:")) {
            return fail(format!("--gesta-logs {logs}: at least 1, and 1 on SQLite"));
        }
        let gesta = GestaTarget::new(url, args.rtt, args.compression.method());
        all.push(Arc::new(gesta.opaque().with_logs(*logs)));
    }
    if is_postgres && args.compression.is_lz4_for_gesta() {
        let gesta = GestaTarget::new(url, args.rtt, args.compression.method());
        all.push(Arc::new(gesta.readable()));
    }
    all.extend(journals::all(url, args.rtt, args.compression.method())?);
    for url in &args.also {
        all.push(also(url, args.rtt)?);
    }
    if args.schemas.is_empty() {
        return Ok(all);
    }
    let known: Vec<String> = all.iter().map(|target| target.name().to_owned()).collect();
    if let Some(unknown) = args.schemas.iter().find(|name| !known.contains(name)) {
        return fail(format!(
            "no schema {unknown:?}; there are {}",
            known.join(", ")
        ));
    }
    all.retain(|target| args.schemas.iter().any(|name| name == target.name()));
    Ok(all)
}

/// A server of Gesta to measure beside the schemas.
fn also(url: &str, round_trip: Duration) -> Result<Arc<dyn Target>> {
    if !url.starts_with("http://") {
        return fail(format!("--also {url:?}: not a Gesta server, http://…"));
    }
    Ok(Arc::new(GestaTarget::new(url, round_trip, None)))
}

/// A server that refuses a connection in the middle would spoil the run.
async fn enough_connections(url: &str, steps: Steps) -> Result<()> {
    let settings = postgres::settings(url).await?;
    let there = settings
        .get("max_connections")
        .and_then(|n| n.parse::<u32>().ok());
    let wanted = steps.most() + OTHERS;
    match there {
        Some(there) if there < wanted => fail(format!(
            "the server's max_connections is {there}; up to {wanted} are needed: raise it, or lower --max"
        )),
        _ => Ok(()),
    }
}
