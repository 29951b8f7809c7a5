//! The rows of projections, parked events and commands, as they are read.

use std::str::FromStr;

use gesta_core::{Checkpoint, EventId, LogId, Position, Timestamp};
use gesta_projection::{
    Attempt, Command, Life, Order, Parked, ProjectionId, State, Stored, filter_from_text,
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use crate::error::{OrTarget, Result, unreadable};
use crate::statements;

/// The row of a projection as SQLite holds it.
struct Raw {
    words: [String; 5],
    numbers: [i64; 5],
    attempt: (i64, i64, Option<i64>, Option<i64>, bool),
    owner: Option<Uuid>,
    applied_at: Option<i64>,
    error: Option<String>,
    read_as: String,
    filter: Option<String>,
    definition: Option<String>,
    owned: bool,
}

fn raw(row: &Row<'_>) -> rusqlite::Result<Raw> {
    Ok(Raw {
        words: [
            row.get(0)?,
            row.get(2)?,
            row.get(3)?,
            row.get(6)?,
            row.get(7)?,
        ],
        numbers: [
            row.get(1)?,
            row.get(4)?,
            row.get(8)?,
            row.get(9)?,
            row.get(10)?,
        ],
        attempt: (
            row.get(11)?,
            row.get(12)?,
            row.get(13)?,
            row.get(14)?,
            row.get(15)?,
        ),
        owner: uuid(row, 5)?,
        applied_at: row.get(16)?,
        error: row.get(17)?,
        read_as: row.get(18)?,
        filter: row.get(19)?,
        definition: row.get(20)?,
        owned: row.get(21)?,
    })
}

fn uuid(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<Uuid>> {
    let bytes: Option<[u8; 16]> = row.get(at)?;
    Ok(bytes.map(Uuid::from_bytes))
}

fn number(value: i64) -> Result<u32> {
    u32::try_from(value).map_err(|error| unreadable("a number", error))
}

/// An attempt, unless there is none, or one that a program has announced that did not tell the event.
fn attempt(
    (times, events, log, position, is_replay): (i64, i64, Option<i64>, Option<i64>, bool),
) -> Result<Option<Attempt>> {
    let (Some(log), Some(position), 1..) = (log, position, times) else {
        return Ok(None);
    };
    Ok(Some(Attempt {
        number: number(times)?,
        events: number(events)?,
        first: (log_id(log)?, place(position)?),
        is_replay,
    }))
}

pub(crate) fn log_id(log: i64) -> Result<LogId> {
    let log = u16::try_from(log);
    Ok(LogId(log.map_err(|error| unreadable("a log", error))?))
}

pub(crate) fn place(position: i64) -> Result<Position> {
    let position = u64::try_from(position);
    Ok(Position(
        position.map_err(|error| unreadable("a position", error))?,
    ))
}

fn stored(raw: Raw) -> Result<Stored> {
    let [name, life, state, checkpoint, floor] = raw.words;
    let [version, epoch, made_with, resets, events] = raw.numbers;
    let place = |text: &str| {
        Checkpoint::from_str(text).map_err(|error| unreadable("the checkpoint", error))
    };
    let read_as = raw.read_as.split(',').filter(|name| !name.is_empty());
    Ok(Stored {
        id: ProjectionId {
            name,
            version: number(version)?,
        },
        life: Life::from_str(&life).map_err(|error| unreadable("the life", error))?,
        state: State::from_str(&state).map_err(|error| unreadable("the state", error))?,
        epoch,
        owner: raw.owner,
        owned: raw.owned,
        checkpoint: place(&checkpoint)?,
        floor: place(&floor)?,
        made_with,
        filter: raw.filter.as_deref().and_then(filter_from_text),
        definition: raw.definition,
        resets,
        events,
        attempt: attempt(raw.attempt)?,
        applied_at: raw.applied_at.map(Timestamp),
        error: raw.error,
        read_as: read_as.map(str::to_owned).collect(),
    })
}

/// Reads the row of a version.
pub(crate) fn one(connection: &Connection, id: &ProjectionId) -> Result<Option<Stored>> {
    let mut statement = connection
        .prepare_cached(statements::READ_PROJECTION)
        .or_target()?;
    let found = statement.query_row(params![id.name, id.version], raw);
    found.optional().or_target()?.map(stored).transpose()
}

/// Reads the row of the active version of a name.
pub(crate) fn active(connection: &Connection, name: &str) -> Result<Option<Stored>> {
    let mut statement = connection
        .prepare_cached(statements::READ_ACTIVE_PROJECTION)
        .or_target()?;
    let found = statement.query_row([name], raw);
    found.optional().or_target()?.map(stored).transpose()
}

/// Reads the rows of all versions.
pub(crate) fn all(connection: &Connection) -> Result<Vec<Stored>> {
    let mut statement = connection
        .prepare_cached(statements::READ_PROJECTIONS)
        .or_target()?;
    let rows = statement.query_map([], raw).or_target()?;
    rows.map(|row| stored(row.or_target()?)).collect()
}

/// Reads parked events, in the order in which they were parked.
pub(crate) fn parked(
    connection: &Connection,
    id: &ProjectionId,
    key: Option<&str>,
    limit: usize,
) -> Result<Vec<Parked>> {
    let mut statement = connection
        .prepare_cached(statements::READ_PARKED)
        .or_target()?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![id.name, id.version, key, limit], |row| {
        let numbers: [i64; 4] = [row.get(0)?, row.get(1)?, row.get(5)?, row.get(6)?];
        let key: Option<String> = row.get(2)?;
        let error: String = row.get(4)?;
        Ok((numbers, key, uuid(row, 3)?.unwrap_or_default(), error))
    });
    let rows = rows.or_target()?.map(|row| {
        let ([log, position, attempts, at], key, event, error) = row.or_target()?;
        Ok(Parked {
            log: log_id(log)?,
            position: place(position)?,
            key,
            event: EventId(event),
            error,
            attempts: number(attempts)?,
            at: Timestamp(at),
        })
    });
    rows.collect()
}

/// Counts parked events, up to `at_most`.
pub(crate) fn count_parked(
    connection: &Connection,
    id: &ProjectionId,
    at_most: usize,
) -> Result<usize> {
    let mut statement = connection
        .prepare_cached(statements::COUNT_PARKED)
        .or_target()?;
    let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
    let counted = statement.query_row(params![id.name, id.version, at_most], |row| {
        row.get::<_, i64>(0)
    });
    usize::try_from(counted.or_target()?).map_err(|error| unreadable("a count", error))
}

/// Reads the different keys of parked events.
pub(crate) fn parked_keys(connection: &Connection, id: &ProjectionId) -> Result<Vec<String>> {
    let mut statement = connection
        .prepare_cached(statements::READ_PARKED_KEYS)
        .or_target()?;
    let keys = statement.query_map(params![id.name, id.version], |row| row.get(0));
    keys.or_target()?.map(OrTarget::or_target).collect()
}

/// Reads the commands that have no answer. One that is not understood is left out: a newer program asked for it.
pub(crate) fn commands(connection: &Connection) -> Result<Vec<Command>> {
    let mut statement = connection
        .prepare_cached(statements::READ_COMMANDS)
        .or_target()?;
    let rows = statement.query_map([], |row| {
        let place: (i64, i64) = (row.get(0)?, row.get(2)?);
        let texts: (String, String) = (row.get(1)?, row.get(3)?);
        Ok((place, texts))
    });
    let mut commands = Vec::new();
    for row in rows.or_target()? {
        let ((number_of, version), (name, text)) = row.or_target()?;
        let version = number(version)?;
        if let Some(order) = Order::from_text(&text) {
            commands.push(Command {
                number: number_of,
                id: ProjectionId { name, version },
                order,
                answer: None,
            });
        }
    }
    Ok(commands)
}
