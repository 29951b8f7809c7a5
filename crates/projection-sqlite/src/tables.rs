//! The tables of views: how they are made, filled, read and shown to readers.
//!
//! The statements are made of names that were checked to be plain (`gesta_projection::check_name`) and put in quotes.

use gesta_core::{LogId, Position};
use gesta_projection::{Cells, Column, Found, OwnedValue, ProjectionId, Table, Value};
use rusqlite::Connection;

use crate::error::{OrTarget, Result};
use crate::rows::{log_id, place};
use crate::values::{bind, read, sql_type};

fn names<'a>(columns: impl Iterator<Item = &'a Column>) -> String {
    let quoted: Vec<String> = columns
        .map(|column| format!("\"{}\"", column.name))
        .collect();
    quoted.join(", ")
}

/// Makes the table of a version.
pub(crate) fn create(connection: &Connection, table: &Table) -> Result<()> {
    let column = |column: &Column| {
        let null = if column.nullable { "" } else { " NOT NULL" };
        format!("\"{}\" {}{null}", column.name, sql_type(column.kind))
    };
    let columns: Vec<String> = table.key.iter().chain(&table.columns).map(column).collect();
    let statement = format!(
        "CREATE TABLE IF NOT EXISTS \"{}\" ({}, PRIMARY KEY ({})) STRICT, WITHOUT ROWID",
        table.stored,
        columns.join(", "),
        names(table.key.iter()),
    );
    connection.execute_batch(&statement).or_target()?;
    for (number, column) in table.indexed.iter().enumerate() {
        let statement = format!(
            "CREATE INDEX IF NOT EXISTS \"{0}_i{number}\" ON \"{0}\" (\"{column}\", {1})",
            table.stored,
            names(table.key.iter()),
        );
        connection.execute_batch(&statement).or_target()?;
    }
    Ok(())
}

/// Finds the events of rows with these values in these columns.
pub(crate) fn find(
    connection: &Connection,
    table: &Table,
    values: &[(String, OwnedValue)],
    after: Option<(LogId, Position)>,
    limit: usize,
) -> Result<Vec<(LogId, Position)>> {
    let equal = (1..).zip(values);
    let equal: Vec<String> = equal
        .map(|(at, (column, _))| format!("\"{column}\" = ?{at}"))
        .collect();
    let last = values.len();
    let statement = format!(
        "SELECT log, position FROM \"{}\" WHERE {} AND (log, position) > (?{}, ?{}) ORDER BY log, position LIMIT ?{}",
        table.stored,
        equal.join(" AND "),
        last + 1,
        last + 2,
        last + 3,
    );
    let mut statement = connection.prepare_cached(&statement).or_target()?;
    for (at, (_, value)) in values.iter().enumerate() {
        bind(&mut statement, at + 1, value.value())?;
    }
    let (log, position) = after.unwrap_or((LogId(0), Position(0)));
    let position = i64::try_from(position.0).unwrap_or(i64::MAX);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let further = [i64::from(log.0), position, limit];
    for (at, number) in further.into_iter().enumerate() {
        bind(&mut statement, last + at + 1, Value::Int(number))?;
    }
    let mut found = Vec::new();
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next().or_target()? {
        let (log, position) = (row.get(0).or_target()?, row.get(1).or_target()?);
        found.push((log_id(log)?, place(position)?));
    }
    Ok(found)
}

/// Reads rows in the order of their keys, after a key.
pub(crate) fn page(
    connection: &Connection,
    table: &Table,
    after: Option<&[OwnedValue]>,
    limit: usize,
) -> Result<Vec<OwnedValue>> {
    let key = names(table.key.iter());
    let after = after.unwrap_or_default();
    let greater = match after.len() {
        0 => String::new(),
        count => {
            let values: Vec<String> = (1..=count).map(|at| format!("?{at}")).collect();
            format!(" WHERE ({key}) > ({})", values.join(", "))
        }
    };
    let columns = || table.key.iter().chain(&table.columns);
    let statement = format!(
        "SELECT {} FROM \"{}\"{greater} ORDER BY {key} LIMIT ?{}",
        names(columns()),
        table.stored,
        after.len() + 1,
    );
    let mut statement = connection.prepare_cached(&statement).or_target()?;
    for (at, value) in after.iter().enumerate() {
        bind(&mut statement, at + 1, value.value())?;
    }
    let limit = Value::Int(i64::try_from(limit).unwrap_or(i64::MAX));
    bind(&mut statement, after.len() + 1, limit)?;
    let mut found = Vec::new();
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next().or_target()? {
        for (at, column) in columns().enumerate() {
            found.push(read(row, at, column.kind)?);
        }
    }
    Ok(found)
}

/// Makes the names that readers use show the tables of this version.
pub(crate) fn show(connection: &Connection, id: &ProjectionId, read_as: &[String]) -> Result<()> {
    for name in read_as {
        let stored = id.stored_table(name);
        let statement = format!(
            "DROP VIEW IF EXISTS \"{name}\"; CREATE VIEW \"{name}\" AS SELECT * FROM \"{stored}\""
        );
        connection.execute_batch(&statement).or_target()?;
    }
    Ok(())
}

/// Deletes the tables of this version.
pub(crate) fn drop_all(
    connection: &Connection,
    id: &ProjectionId,
    read_as: &[String],
) -> Result<()> {
    for name in read_as {
        let stored = id.stored_table(name);
        let statement = format!("DROP TABLE IF EXISTS \"{stored}\"");
        connection.execute_batch(&statement).or_target()?;
    }
    Ok(())
}

/// Deletes all rows of a table.
pub(crate) fn clear(connection: &Connection, table: &Table) -> Result<()> {
    let statement = format!("DELETE FROM \"{}\"", table.stored);
    connection.execute_batch(&statement).or_target()
}

/// Reads the rows of some keys.
pub(crate) fn load(
    connection: &Connection,
    table: &Table,
    keys: &dyn Cells,
    found: &mut Found,
) -> Result<()> {
    // A row may be its key alone: so something else is selected first.
    let columns = table.columns.iter();
    let columns = columns.map(|column| format!(", \"{}\"", column.name));
    let statement = format!(
        "SELECT 1{} FROM \"{}\" WHERE {}",
        columns.collect::<String>(),
        table.stored,
        of_key(table)
    );
    let mut statement = connection.prepare_cached(&statement).or_target()?;
    for key in 0..keys.rows() {
        for column in 0..table.key.len() {
            bind(&mut statement, column + 1, keys.cell(key, column))?;
        }
        let mut rows = statement.raw_query();
        if let Some(row) = rows.next().or_target()? {
            found.row_of(key);
            for (at, column) in table.columns.iter().enumerate() {
                found.push(read(row, at + 1, column.kind)?);
            }
        }
    }
    Ok(())
}

fn of_key(table: &Table) -> String {
    let columns = table.key.iter().enumerate();
    let conditions: Vec<String> = columns
        .map(|(at, column)| format!("\"{}\" = ?{}", column.name, at + 1))
        .collect();
    conditions.join(" AND ")
}

/// Writes rows, of which each key stands there once.
pub(crate) fn upsert(connection: &Connection, table: &Table, rows: &dyn Cells) -> Result<()> {
    if rows.rows() == 0 {
        return Ok(());
    }
    let columns = table.key.len() + table.columns.len();
    let values: Vec<String> = (1..=columns).map(|at| format!("?{at}")).collect();
    let set: Vec<String> = table
        .columns
        .iter()
        .map(|column| format!("\"{0}\" = excluded.\"{0}\"", column.name))
        .collect();
    // A row may be its key alone.
    let otherwise = match set.is_empty() {
        true => "NOTHING".to_owned(),
        false => format!("UPDATE SET {}", set.join(", ")),
    };
    let statement = format!(
        "INSERT INTO \"{}\" ({}) VALUES ({}) ON CONFLICT ({}) DO {otherwise}",
        table.stored,
        names(table.key.iter().chain(&table.columns)),
        values.join(", "),
        names(table.key.iter()),
    );
    let mut statement = connection.prepare_cached(&statement).or_target()?;
    for row in 0..rows.rows() {
        for column in 0..columns {
            bind(&mut statement, column + 1, rows.cell(row, column))?;
        }
        statement.raw_execute().or_target()?;
    }
    Ok(())
}

/// Deletes the rows of some keys.
pub(crate) fn delete(connection: &Connection, table: &Table, keys: &dyn Cells) -> Result<()> {
    if keys.rows() == 0 {
        return Ok(());
    }
    let statement = format!("DELETE FROM \"{}\" WHERE {}", table.stored, of_key(table));
    let mut statement = connection.prepare_cached(&statement).or_target()?;
    for key in 0..keys.rows() {
        for column in 0..table.key.len() {
            bind(&mut statement, column + 1, keys.cell(key, column))?;
        }
        statement.raw_execute().or_target()?;
    }
    Ok(())
}
