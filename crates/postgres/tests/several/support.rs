//! Stores in several databases.

use std::sync::Arc;

use gesta_core::{Clock, Result};
use gesta_postgres::several::{DatabasePart, Several};
use gesta_postgres::{Config, DatabaseId, LogMap, MapCopy, NamedDatabase, PostgresBackend, schema};
use gesta_store::Store;

/// The configuration of one database. The times that the URL does not name are long, so that no busy machine exceeds
/// them.
pub(crate) fn config(url: &str) -> Config {
    let mut url = url.to_owned();
    for option in ["answer_timeout", "connect_timeout"] {
        if !url.contains(option) {
            let mark = if url.contains('?') { '&' } else { '?' };
            url.push_str(&format!("{mark}{option}=60"));
        }
    }
    let mut config = Config::parse(&url).expect("valid");
    config.is_part = true;
    config.must_exist = true;
    config
}

/// Makes a store of `logs` logs in these databases, and gives the copies of its map.
pub(crate) async fn create(urls: &[String], logs: u16) -> Vec<MapCopy> {
    let named = |url: &String| NamedDatabase {
        id: DatabaseId::random(),
        name: config(url).name(),
    };
    let map = LogMap::new(logs, urls.iter().map(named).collect()).expect("valid");
    let mut copies = Vec::new();
    for (url, database) in urls.iter().zip(map.databases()) {
        let copy = MapCopy::new(database.id, map.clone());
        schema::create_part(&config(url), &copy)
            .await
            .expect("made");
        copies.push(copy);
    }
    copies
}

/// Opens one database.
pub(crate) async fn part(url: &str) -> Result<DatabasePart> {
    let backend = Arc::new(PostgresBackend::open(config(url)).await?);
    Ok(DatabasePart {
        copy: backend.map(),
        backend: backend.clone(),
        keeper: backend,
    })
}

/// Puts databases together.
pub(crate) async fn several(urls: &[String]) -> Result<Several> {
    let mut parts = Vec::new();
    for url in urls {
        parts.push(part(url).await?);
    }
    Several::open(&parts).await
}

/// Opens the store in these databases.
pub(crate) async fn store(urls: &[String], clock: Arc<dyn Clock>) -> Arc<Store> {
    let backend = several(urls).await.expect("opens");
    Store::open(Arc::new(backend), gesta_store::Config::default(), clock).expect("starts")
}
