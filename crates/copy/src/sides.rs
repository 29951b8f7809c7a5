//! The two sides of a move, as they are named and as they stand.

use gesta_core::{Error, Result};
use gesta_postgres::Config;
use gesta_sqlite::{Location, SqliteConfig};

use crate::moving::{Mark, SourceStand, TargetStand};
use crate::part::{Found, Part, used};
use crate::postgres::{PostgresPart, identity};
use crate::refusal::refuse;
use crate::source::Source;
use crate::source_postgres::PostgresSource;
use crate::source_sqlite::SqliteSource;
use crate::target::is_sqlite;

fn one_database(what: &str, url: &str) -> Result<()> {
    if !is_sqlite(url) && url.split_whitespace().count() != 1 {
        let rule = "must be one database: `gesta cluster move-log` moves the logs of a store in several, one by one";
        return Err(Error::invalid(what, rule));
    }
    Ok(())
}

pub(crate) fn target_config(source: &str, target: &str) -> Result<Config> {
    one_database("source", source)?;
    one_database("target", target)?;
    if is_sqlite(target) {
        let rule = "must be a database of PostgreSQL: `gesta copy` copies a store into a file";
        return Err(Error::invalid("target", rule));
    }
    let config = Config::parse(target)?;
    if !is_sqlite(source) && Config::parse(source)?.name() == config.name() {
        return Err(Error::invalid(
            "target",
            "must be another store than the source",
        ));
    }
    Ok(config)
}

pub(crate) async fn source_of(url: &str) -> Result<Box<dyn Source>> {
    if !is_sqlite(url) {
        return Ok(Box::new(PostgresSource::open(url).await?));
    }
    match SqliteConfig::parse(url)?.location {
        Location::File(path) => Ok(Box::new(SqliteSource::new(url, path))),
        Location::Memory => Err(Error::invalid("source", "must be a file, not memory")),
    }
}

/// Returns what tells the databases of a URL from all others; nothing of a file.
async fn identities(url: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for url in url.split_whitespace().filter(|_| !is_sqlite(url)) {
        // A database that cannot be asked tells why when it is opened.
        found.extend(identity(&Config::parse(url)?).await.ok().flatten());
    }
    Ok(found)
}

/// Refuses a source and a target that are one store by two names, such as those of a host.
pub(crate) async fn are_two(source: &str, target: &str) -> Result<()> {
    if is_sqlite(source) || is_sqlite(target) {
        return Ok(());
    }
    let (source, target) = futures::try_join!(identities(source), identities(target))?;
    match source.iter().any(|database| target.contains(database)) {
        true => Err(Error::invalid(
            "target",
            "must be another store than the source, and both names lead to the same one",
        )),
        false => Ok(()),
    }
}

/// Returns how the target stands for this source.
pub(crate) async fn target_for(
    source: &mut Box<dyn Source>,
    stand: &SourceStand,
    part: &PostgresPart,
    found: &Found,
) -> Result<TargetStand> {
    let target = stand_of(part, found)?;
    // Whose target was given up makes no difference: nothing is done there any more.
    let is_given_up = matches!(target, TargetStand::GivenUp(_));
    if let (SourceStand::Open, Found::Unfinished(state) | Found::Arrived(state)) = (stand, found)
        && !is_given_up
        && source.look().await?.incarnation.0 != state.origin.incarnation
    {
        return Ok(TargetStand::OfAnother);
    }
    Ok(target)
}

fn stand_of(part: &PostgresPart, found: &Found) -> Result<TargetStand> {
    let (state, has_arrived) = match found {
        Found::Empty => return Ok(TargetStand::Empty),
        Found::Used => return Err(used(part.name())),
        Found::Unfinished(state) => (state, false),
        Found::Arrived(state) => (state, true),
    };
    let Some(moving) = &state.moving else {
        return refuse(
            "the target is that of a copy: end it by `gesta copy`, or make another target",
        );
    };
    let mark = Mark {
        id: moving.id,
        opening: moving.opening,
    };
    Ok(match (moving.is_undone, has_arrived) {
        (true, _) => TargetStand::GivenUp(mark),
        (false, true) => TargetStand::Arrived(mark),
        (false, false) => TargetStand::Copying(mark),
    })
}
