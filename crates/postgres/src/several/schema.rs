//! The schema of a store, in one database or in several: makes it, migrates it, prints it, and begins a new life of the
//! store. Not here: the statements of one database (`crate::schema`).

use futures::future::try_join_all;
use gesta_core::{Error, ErrorKind, Incarnation, Result};

use crate::config::Config;
use crate::databases::relocation::Relocation;
use crate::log_map::{DatabaseId, LogMap, MapCopy, NamedDatabase};
use crate::schema;
use crate::several::check::arrange;
use crate::several::store::named;

/// Makes an empty store. In several databases its logs lie in turn; if an earlier call was interrupted, this one
/// finishes it.
///
/// # Errors
/// `Schema` if there is a store in one of them already; `InvalidArgument` if a database is given twice, or there are
/// too few logs; `Unavailable` if a database does not answer; `Unsupported` if the rights are missing.
///
/// # Cancel safety
/// If the future is dropped, some databases may have been made.
pub async fn create(configs: &[Config], logs: u16) -> Result<Incarnation> {
    if let [config] = configs {
        return schema::create(config, logs).await;
    }
    let count = configs.len();
    let map = new_map(configs, logs)?;
    let found = configs.iter().enumerate().map(async |(at, config)| {
        let found = schema::read_empty(config).await;
        found.map_err(|error| named(at, count, &config.name(), error))
    });
    let found = try_join_all(found).await?;
    let begun = found.iter().flatten().next();
    let map = begun.map_or(&map, |copy| &copy.map);
    for (at, copy) in found.iter().enumerate() {
        let Some(copy) = copy else { continue };
        let is_of_this = copy.map == *map
            && copy.place() == Some(at)
            && map.databases().len() == count
            && map.logs() == logs;
        if !is_of_this || found.iter().all(Option::is_some) {
            let error = ErrorKind::Schema("there is a store already".to_owned()).into();
            return Err(named(at, count, &configs[at].name(), error));
        }
    }
    for (place, config) in configs.iter().enumerate() {
        if found[place].is_none() {
            let made = schema::create_part(config, &copy_at(map, place)).await;
            made.map_err(|error| named(place, count, &config.name(), error))?;
        }
    }
    Ok(map.origin())
}

/// Migrates one database after the other, and returns the oldest version before and the version now. If this is
/// interrupted, the next call goes on where it was.
///
/// # Errors
/// `Schema` if there is no store, or it is newer than this program; `Unavailable` if a database does not answer;
/// `Unsupported` if the rights are missing.
///
/// # Cancel safety
/// If the future is dropped, some databases may have been migrated.
pub async fn migrate(configs: &[Config]) -> Result<(u32, u32)> {
    let mut oldest = u32::MAX;
    let mut newest = 0;
    for config in configs {
        let (from, to) = schema::migrate(config).await?;
        oldest = oldest.min(from);
        newest = to;
    }
    Ok((oldest, newest))
}

/// Returns the statements that make such a store, for each database its own.
///
/// # Errors
/// `InvalidArgument` if a database is given twice, or there are too few logs.
pub fn ddl(configs: &[Config], logs: u16) -> Result<String> {
    if let [config] = configs {
        return schema::ddl(config, logs);
    }
    let map = new_map(configs, logs)?;
    let parts = configs.iter().enumerate().map(|(place, config)| {
        let about = map.describe(place);
        let ddl = schema::ddl_of_part(config, &copy_at(&map, place));
        format!("-- For {about}; print the statements for all databases at once, for they share ids.\n{ddl}")
    });
    Ok(parts.collect::<Vec<_>>().join("\n"))
}

/// Begins a new incarnation in each of these databases, since each may have been restored; they must be all databases
/// of a store. Returns the incarnation of the store, which is made of them. What the databases hold is not checked:
/// after a restore, logs may be lost.
///
/// # Errors
/// `Schema` if there is no store; `InvalidArgument` if a database is missing; `Unavailable` if a database does not
/// answer; `Unsupported` if the rights are missing.
///
/// # Cancel safety
/// If the future is dropped, some databases may have a new incarnation.
pub async fn new_incarnation(configs: &[Config]) -> Result<Incarnation> {
    if let [config] = configs {
        return schema::new_incarnation(config).await;
    }
    let copies = configs.iter().map(async |config| {
        let database = Relocation::open(config).await?;
        database.read_map().await
    });
    let copies: Vec<MapCopy> = try_join_all(copies).await?;
    let (map, _) = arrange(&copies.iter().collect::<Vec<_>>())?;
    let mut begun = Vec::with_capacity(configs.len());
    for config in configs {
        begun.push(schema::new_incarnation(config).await?);
    }
    Ok(map.incarnation(begun))
}

/// Makes the map of a new store whose logs lie in turn in these databases.
///
/// # Errors
/// `InvalidArgument` if a database is given twice, or there are too few logs.
fn new_map(configs: &[Config], logs: u16) -> Result<LogMap> {
    let names: Vec<String> = configs.iter().map(Config::name).collect();
    let twice = (1..names.len()).find(|at| names[..*at].contains(&names[*at]));
    if let Some(at) = twice {
        let rule = format!("must be different, found {} twice", names[at]);
        return Err(Error::invalid("databases", rule));
    }
    let named = names.into_iter().map(|name| NamedDatabase {
        id: DatabaseId::random(),
        name,
    });
    LogMap::new(logs, named.collect())
}

fn copy_at(map: &LogMap, place: usize) -> MapCopy {
    MapCopy::new(map.databases()[place].id, map.clone())
}
