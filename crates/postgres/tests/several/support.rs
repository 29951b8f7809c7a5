//! Stores in several databases.

use std::sync::Arc;

use gesta_core::{Clock, Result};
use gesta_postgres::several::Databases;
use gesta_postgres::{Config, DatabaseId, LogMap, MapCopy, NamedDatabase, schema};
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

/// Opens databases together.
pub(crate) async fn several(urls: &[String]) -> Result<Databases> {
    Databases::open(urls.iter().map(|url| config(url)).collect()).await
}

/// Opens the store in these databases.
pub(crate) async fn store(urls: &[String], clock: Arc<dyn Clock>) -> Arc<Store> {
    let databases = several(urls).await.expect("opens");
    let config = gesta_store::Config::default();
    Store::open(databases.backend(), config, clock).expect("starts")
}
