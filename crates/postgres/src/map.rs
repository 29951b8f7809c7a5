//! The copy of the map of the logs that this database keeps: reads it, writes it, prints it.
//!
//! Invariant: a copy is written in one transaction, so that a reader finds a whole one. Not here: what a map is
//! (`log_map`), comparing the copies of several databases (`several`).

use gesta_core::backend::WriterEpoch;
use gesta_core::{Error, Incarnation, LogId, Position, Result};
use gesta_sql::{position_from_sql, revision_from_sql, row_id_from_sql};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::connect::pool::{PooledReader, Read, ReadResult};
use crate::error;
use crate::log_map::{
    Arrival, DatabaseId, Held, HeldRow, Home, LogMap, MapCopy, Moving, NamedDatabase, RowMark,
};
use crate::sql_numbers::{CLOSED, bound, log_number};

const READ_MAP: &str = include_str!("../sql/read_map.sql");
const REPLACE_MAP: &str = include_str!("../sql/replace_map.sql");
const READ_HELD: &str = include_str!("../sql/read_held.sql");
const SHOW_ROWS: &str = include_str!("../sql/show_rows.sql");
const INSERT_MAP: &str = include_str!("../sql/insert_map.sql");

/// Converts the stored position of a row of this log.
///
/// # Errors
/// [`Error::log_closed`] if the position is that of the row that closes the log; `Corrupt` if it is negative.
pub(crate) fn open_position(log: LogId, stored: i64) -> Result<Position> {
    if stored == CLOSED {
        return Err(Error::log_closed(log));
    }
    gesta_sql::position_from_sql(stored)
}

type Driver<T> = std::result::Result<T, tokio_postgres::Error>;

/// Reads the copy of the map in a store of `logs` logs.
///
/// # Errors
/// `Unavailable` if the database does not answer; `Unsupported` if the right is missing; `Corrupt` if it is no map of
/// these logs.
pub(crate) async fn read(client: &Client, logs: u16) -> Result<MapCopy> {
    let row = client.query_opt(READ_MAP, &[]).await;
    let row = row.map_err(|error| error::general(&error))?;
    let row = row.ok_or_else(|| Error::corrupt("the table map is empty"))?;
    let stored = Stored::of(&row).map_err(|error| error::general(&error))?;
    stored.into_copy(logs)
}

/// Reads the copy of the map in a store of `logs` logs.
pub(crate) struct ReadMap {
    pub(crate) logs: u16,
}

impl Read for ReadMap {
    type Answer = MapCopy;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<MapCopy> {
        let copy = read(&reader.connection.client, self.logs).await?;
        reader.saw_map(copy.map.version());
        Ok(copy)
    }
}

/// Reads what the database holds of each log.
pub(crate) struct ReadHeld;

impl Read for ReadHeld {
    type Answer = Vec<Held>;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<Vec<Held>> {
        let rows = reader.connection.client.query(READ_HELD, &[]).await?;
        let mut held = Vec::with_capacity(rows.len());
        for row in &rows {
            let closed = row.try_get("closed")?;
            let last = held_row(row)?;
            held.push(Held { closed, last });
        }
        Ok(held)
    }
}

/// Reads the row of a log from columns that are NULL if there is none.
pub(crate) fn held_row(row: &Row) -> ReadResult<Option<HeldRow>> {
    let Some(position) = row.try_get::<_, Option<i64>>("position")? else {
        return Ok(None);
    };
    let mark = RowMark {
        position: position_from_sql(position)?,
        writer: WriterEpoch(row.try_get("writer")?),
    };
    Ok(Some(HeldRow {
        mark,
        stream: row_id_from_sql(row.try_get("stream")?)?,
        revision: revision_from_sql(row.try_get("revision")?)?,
    }))
}

/// A row of which is asked whether a database has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SoughtRow {
    pub(crate) log: LogId,
    pub(crate) mark: RowMark,
    /// The stream of the event and its revision, if they are known.
    pub(crate) event: Option<(i64, i64)>,
}

impl SoughtRow {
    pub(crate) fn of(log: LogId, row: &HeldRow) -> Self {
        Self {
            log,
            mark: row.mark,
            event: Some((bound(row.stream.0), bound(row.revision.0))),
        }
    }
}

/// What a database says of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shown {
    /// Whether the database has the row.
    pub(crate) has: bool,
    /// Whether the database has the row, or has scavenged it. It cannot prove the latter: another history may have had
    /// another event of the same stream and revision.
    pub(crate) shows: bool,
}

impl Shown {
    fn of(row: &Row) -> Driver<Self> {
        Ok(Self {
            has: row.try_get("has")?,
            shows: row.try_get("shown")?,
        })
    }
}

/// Tells for each row whether the database has it, or has scavenged it.
pub(crate) async fn shows(client: &Client, rows: &[SoughtRow]) -> ReadResult<Vec<Shown>> {
    let mut logs = Vec::with_capacity(rows.len());
    for row in rows {
        logs.push(log_number(row.log)?);
    }
    let positions: Vec<i64> = rows.iter().map(|row| bound(row.mark.position.0)).collect();
    let writers: Vec<i64> = rows.iter().map(|row| row.mark.writer.0).collect();
    let (streams, revisions): (Vec<Option<i64>>, Vec<Option<i64>>) =
        rows.iter().map(|row| row.event.unzip()).unzip();
    let binds: [&(dyn ToSql + Sync); 5] = [&logs, &positions, &writers, &streams, &revisions];
    let found = client.query(SHOW_ROWS, &binds).await?;
    let shown = found.iter().map(Shown::of);
    Ok(shown.collect::<Driver<_>>()?)
}

/// Asks a database for rows.
pub(crate) struct Shows(pub(crate) Vec<SoughtRow>);

impl Read for Shows {
    type Answer = Vec<bool>;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<Vec<bool>> {
        let shown = shows(&reader.connection.client, &self.0).await?;
        Ok(shown.into_iter().map(|row| row.shows).collect())
    }
}

/// The rows of the map as they are stored.
struct Stored {
    version: i64,
    origin: Uuid,
    here: Uuid,
    store: Uuid,
    databases: Vec<Uuid>,
    names: Vec<String>,
    numbers: Vec<i32>,
    logs: Vec<i16>,
    homes: Vec<i32>,
    stays: Vec<i64>,
    stay_positions: Vec<i64>,
    stay_writers: Vec<i64>,
    arrived: Vec<i64>,
    moving: (Option<i16>, Option<i32>),
}

impl Stored {
    fn of(row: &Row) -> Driver<Self> {
        Ok(Self {
            version: row.try_get("version")?,
            origin: row.try_get("origin")?,
            here: row.try_get("here")?,
            store: row.try_get("store")?,
            databases: row.try_get("databases")?,
            names: row.try_get("names")?,
            numbers: row.try_get("numbers")?,
            logs: row.try_get("logs")?,
            homes: row.try_get("homes")?,
            stays: row.try_get("stays")?,
            stay_positions: row.try_get("stay_positions")?,
            stay_writers: row.try_get("stay_writers")?,
            arrived: row.try_get("arrived")?,
            moving: (row.try_get("moving_log")?, row.try_get("moving_to")?),
        })
    }

    fn into_copy(self, logs: u16) -> Result<MapCopy> {
        let corrupt = |what: String| Error::corrupt(format!("the map of the logs {what}"));
        let expected = (0..logs).map(i32::from);
        if !self.logs.iter().copied().map(i32::from).eq(expected) {
            let found = self.logs;
            return Err(corrupt(format!(
                "must name each of the {logs} logs, found {found:?}"
            )));
        }
        let is_numbered = (1..).zip(&self.numbers).all(|(n, number)| n == *number);
        if !is_numbered {
            let found = self.numbers;
            return Err(corrupt(format!(
                "must number its databases from 1, found {found:?}"
            )));
        }
        let version = u64::try_from(self.version)
            .map_err(|_| corrupt(format!("has version {}", self.version)))?;
        // The number 0 and negative numbers become a place that no map has.
        let place = |home: i32| usize::try_from(home - 1).unwrap_or(usize::MAX - 1);
        let of_arrivals = self.stays.iter().zip(&self.stay_positions);
        let of_arrivals = of_arrivals.zip(&self.stay_writers);
        let arrivals = of_arrivals.map(|((stay, position), writer)| Arrival {
            stay: *stay,
            last: RowMark {
                position: Position(position.unsigned_abs()),
                writer: WriterEpoch(*writer),
            },
        });
        let homes = self.homes.into_iter().map(place).zip(arrivals);
        let homes = homes.map(|(place, arrival)| Home { place, arrival });
        let homes = homes.collect();
        let moving = match self.moving {
            (Some(log), Some(to)) => Some(Moving {
                // A negative number becomes a log that no store has.
                log: LogId(u16::try_from(log).unwrap_or(u16::MAX)),
                to: place(to),
            }),
            _ => None,
        };
        let named = |(id, name)| NamedDatabase {
            id: DatabaseId(id),
            name,
        };
        let databases = self.databases.into_iter().zip(self.names);
        let map = LogMap::from_stored(
            self.store,
            version,
            Incarnation(self.origin),
            databases.map(named).collect(),
            homes,
            moving,
        )?;
        let here = DatabaseId(self.here);
        let arrived = self.arrived;
        let copy = MapCopy { here, map, arrived };
        match copy.place() {
            Some(_) => Ok(copy),
            None => Err(corrupt(format!(
                "must name the database that keeps it, {here}"
            ))),
        }
    }
}

/// Replaces the copy by `map`, if it is still of version `expected`. Of the log `arriving` it is noted that it has come
/// to this database. Returns whether the copy was replaced.
pub(crate) async fn replace(
    client: &Client,
    expected: u64,
    map: &LogMap,
    arriving: Option<LogId>,
) -> Driver<bool> {
    let number = |version| i64::try_from(version).unwrap_or(i64::MAX);
    let moving = map.moving();
    let log = moving.map(|moving| i16::try_from(moving.log.0).unwrap_or(i16::MAX));
    let to = moving.map(|moving| i32::try_from(moving.to + 1).unwrap_or(i32::MAX));
    let ids: Vec<Uuid> = map.databases().iter().map(|one| one.id.0).collect();
    let names: Vec<&str> = map.databases().iter().map(|one| &*one.name).collect();
    let homes = numbers_of_homes(map);
    let [stays, positions, writers] = arrivals(map);
    let arriving = arriving.map(|log| i16::try_from(log.0).unwrap_or(i16::MAX));
    let (expected, version) = (number(expected), number(map.version()));
    let binds: [&(dyn ToSql + Sync); 11] = [
        &expected, &version, &log, &to, &ids, &names, &homes, &stays, &positions, &writers,
        &arriving,
    ];
    let row = client.query_opt(REPLACE_MAP, &binds).await?;
    Ok(row.is_some())
}

/// Writes the copy of a new store.
pub(crate) async fn insert(client: &Client, copy: &MapCopy) -> Driver<()> {
    let map = &copy.map;
    let version = i64::try_from(map.version()).unwrap_or(i64::MAX);
    let ids: Vec<Uuid> = map.databases().iter().map(|one| one.id.0).collect();
    let names: Vec<&str> = map.databases().iter().map(|one| &*one.name).collect();
    let homes = numbers_of_homes(map);
    let [stays, positions, writers] = arrivals(map);
    client
        .execute(
            INSERT_MAP,
            &[
                &map.store(),
                &version,
                &map.origin().0,
                &copy.here.0,
                &ids,
                &names,
                &homes,
                &stays,
                &positions,
                &writers,
            ],
        )
        .await?;
    Ok(())
}

/// Returns the number of the database of each log.
fn numbers_of_homes(map: &LogMap) -> Vec<i32> {
    let homes = (0..map.logs()).filter_map(|log| map.home(gesta_core::LogId(log)));
    homes
        .map(|place| i32::try_from(place + 1).unwrap_or(i32::MAX))
        .collect()
}

/// Returns for each log the number of its stay in its database, and the position and the writer of its last row when it
/// came.
fn arrivals(map: &LogMap) -> [Vec<i64>; 3] {
    let all: Vec<Arrival> = (0..map.logs())
        .filter_map(|log| map.arrival(LogId(log)))
        .collect();
    let of_each = |value: fn(&Arrival) -> i64| all.iter().map(value).collect();
    [
        of_each(|arrival| arrival.stay),
        of_each(|arrival| bound(arrival.last.position.0)),
        of_each(|arrival| arrival.last.writer.0),
    ]
}

/// Returns the statements that write the copy of a new store, whose logs have never moved.
pub(crate) fn print(copy: &MapCopy) -> String {
    let map = &copy.map;
    let databases = (1..).zip(map.databases()).map(|(number, one): (i32, _)| {
        let name = one.name.replace('\'', "''");
        format!("({number}, '{}', '{name}')", one.id)
    });
    let homes = (0..).zip(numbers_of_homes(map));
    let homes = homes.map(|(log, home): (i32, _)| format!("({log}, {home})"));
    format!(
        "INSERT INTO databases (number, id, name) VALUES {};\n\
         INSERT INTO homes (log, database) VALUES {};\n\
         UPDATE clusters SET id = '{}';\n\
         INSERT INTO map (version, origin, here) VALUES ({}, '{}', '{}');",
        databases.collect::<Vec<_>>().join(", "),
        homes.collect::<Vec<_>>().join(", "),
        map.store(),
        map.version(),
        map.origin(),
        copy.here
    )
}
