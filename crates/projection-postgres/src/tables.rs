//! The tables of views: how they are made, filled, read and shown to readers.
//!
//! The statements are made of names that were checked to be plain (`gesta_projection::check_name`), in quotes. Rows
//! travel
//! as an array for each column, of some thousand rows: one round trip, and PostgreSQL plans and runs one statement.

use std::ops::Range;

use gesta_core::{LogId, Position};
use gesta_projection::{Cells, Column, Found, OwnedValue, ProjectionId, Table, TargetError};

use crate::binary::{self, Param, Wire};
use crate::driver::{Driver, RowBytes};
use crate::failure::Failure;
use crate::open::Open;
use crate::statements::READ_GRANTS;

/// Largest number of rows of a statement. With more, PostgreSQL gets slower for each row.
const ROWS_MAX: usize = 10_000;
/// Largest size of the values of a statement, roughly, in bytes; a single row may be larger.
const BYTES_MAX: usize = 16 * 1024 * 1024;

fn names<'a>(columns: impl Iterator<Item = &'a Column>) -> String {
    let quoted: Vec<String> = columns
        .map(|column| format!("\"{}\"", column.name))
        .collect();
    quoted.join(", ")
}

/// `$1::bigint[], $2::text[]`
fn arrays<'a>(columns: impl Iterator<Item = &'a Column>) -> String {
    let arrays: Vec<String> = columns
        .enumerate()
        .map(|(at, column)| format!("${}::{}[]", at + 1, Wire::of(column.kind).sql))
        .collect();
    arrays.join(", ")
}

/// `t."id" = k."id" AND …`
fn same_key(table: &Table) -> String {
    let conditions: Vec<String> = table
        .key
        .iter()
        .map(|column| format!("t.\"{0}\" = k.\"{0}\"", column.name))
        .collect();
    conditions.join(" AND ")
}

fn upsert_statement(table: &Table) -> String {
    let all = || table.key.iter().chain(&table.columns);
    let set: Vec<String> = table
        .columns
        .iter()
        .map(|column| format!("\"{0}\" = excluded.\"{0}\"", column.name))
        .collect();
    let otherwise = match set.is_empty() {
        true => "NOTHING".to_owned(),
        false => format!("UPDATE SET {}", set.join(", ")),
    };
    format!(
        "INSERT INTO \"{}\" ({}) SELECT * FROM unnest({}) ON CONFLICT ({}) DO {otherwise}",
        table.stored,
        names(all()),
        arrays(all()),
        names(table.key.iter()),
    )
}

fn delete_statement(table: &Table) -> String {
    format!(
        "DELETE FROM \"{}\" t USING unnest({}) AS k ({}) WHERE {}",
        table.stored,
        arrays(table.key.iter()),
        names(table.key.iter()),
        same_key(table),
    )
}

fn load_statement(table: &Table) -> String {
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|column| format!(", t.\"{}\"", column.name))
        .collect();
    // No column has a name like "@n".
    format!(
        "SELECT k.\"@n\"{} FROM unnest({}) WITH ORDINALITY AS k ({}, \"@n\") JOIN \"{}\" t ON {}",
        columns.concat(),
        arrays(table.key.iter()),
        names(table.key.iter()),
        table.stored,
        same_key(table),
    )
}

/// Cuts rows into those of one statement each.
fn pieces(cells: &dyn Cells, columns: usize) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let (mut begin, mut bytes) = (0, 0);
    for row in 0..cells.rows() {
        let cost: usize = (0..columns)
            .map(|column| cells.cell(row, column).heap_bytes() + 12)
            .sum();
        if row > begin && (row - begin >= ROWS_MAX || bytes + cost > BYTES_MAX) {
            pieces.push(begin..row);
            (begin, bytes) = (row, 0);
        }
        bytes += cost;
    }
    if begin < cells.rows() {
        pieces.push(begin..cells.rows());
    }
    pieces
}

fn params<'a>(
    cells: &dyn Cells,
    rows: &Range<usize>,
    columns: impl Iterator<Item = &'a Column>,
) -> Result<Vec<Param>, TargetError> {
    columns
        .enumerate()
        .map(|(at, column)| Param::column(cells, rows.clone(), at, column.kind))
        .collect()
}

/// Makes the table of a version.
pub(crate) async fn create<D: Driver>(open: &mut Open<D>, table: &Table) -> Result<(), Failure> {
    let column = |column: &Column| {
        let null = if column.nullable { "" } else { " NOT NULL" };
        format!("\"{}\" {}{null}", column.name, Wire::of(column.kind).sql)
    };
    let columns: Vec<String> = table.key.iter().chain(&table.columns).map(column).collect();
    let statement = format!(
        "CREATE TABLE \"{}\" ({}, PRIMARY KEY ({}))",
        table.stored,
        columns.join(", "),
        names(table.key.iter()),
    );
    open.run(statement).await?;
    for (number, column) in table.indexed.iter().enumerate() {
        let statement = format!(
            "CREATE INDEX \"{0}_i{number}\" ON \"{0}\" (\"{column}\", {1})",
            table.stored,
            names(table.key.iter()),
        );
        open.run(statement).await?;
    }
    Ok(())
}

/// The statement that finds the events of rows with these values in these columns, and its values.
pub(crate) fn finding(
    table: &Table,
    values: &[(String, OwnedValue)],
    after: Option<(LogId, Position)>,
    limit: usize,
) -> (String, Vec<Param>) {
    let equal = (1..).zip(values);
    let equal: Vec<String> = equal
        .map(|(at, (column, value))| format!("\"{column}\" = ${at}::{}", binary::type_of(value)))
        .collect();
    let last = values.len();
    let statement = format!(
        "SELECT log, position FROM \"{}\" WHERE {} AND (log, position) > (${}::bigint, ${}::bigint) \
         ORDER BY log, position LIMIT ${}::bigint",
        table.stored,
        equal.join(" AND "),
        last + 1,
        last + 2,
        last + 3,
    );
    let (log, position) = after.unwrap_or((LogId(0), Position(0)));
    let mut params: Vec<Param> = values
        .iter()
        .map(|(_, value)| Param::value(value))
        .collect();
    params.push(Param::int(i64::from(log.0)));
    params.push(Param::int(i64::try_from(position.0).unwrap_or(i64::MAX)));
    params.push(Param::int(i64::try_from(limit).unwrap_or(i64::MAX)));
    (statement, params)
}

/// The statement that reads rows in the order of their keys, after a key, and its values.
pub(crate) fn paging(
    table: &Table,
    after: Option<&[OwnedValue]>,
    limit: usize,
) -> (String, Vec<Param>) {
    let key = names(table.key.iter());
    let after = after.unwrap_or_default();
    let greater = match after.is_empty() {
        true => String::new(),
        false => {
            let values = (1..).zip(after);
            let values: Vec<String> = values
                .map(|(at, value)| format!("${at}::{}", binary::type_of(value)))
                .collect();
            format!(" WHERE ({key}) > ({})", values.join(", "))
        }
    };
    let statement = format!(
        "SELECT {} FROM \"{}\"{greater} ORDER BY {key} LIMIT ${}::bigint",
        names(table.key.iter().chain(&table.columns)),
        table.stored,
        after.len() + 1,
    );
    let mut params: Vec<Param> = after.iter().map(Param::value).collect();
    params.push(Param::int(i64::try_from(limit).unwrap_or(i64::MAX)));
    (statement, params)
}

/// Returns the values of all columns of the rows that were read, one row after the other.
pub(crate) fn take_page<R: RowBytes>(
    table: &Table,
    rows: &[R],
) -> Result<Vec<OwnedValue>, TargetError> {
    let mut values = Vec::new();
    for row in rows {
        for (at, column) in table.key.iter().chain(&table.columns).enumerate() {
            values.push(binary::value(column.kind, row.bytes(at)?)?);
        }
    }
    Ok(values)
}

/// Makes the names that readers use show the tables of this version. A view that gets other columns has to be made
/// anew;
/// it keeps its rights.
pub(crate) async fn show<D: Driver>(
    open: &mut Open<D>,
    id: &ProjectionId,
    read_as: &[String],
) -> Result<(), TargetError> {
    for name in read_as {
        let make = format!(
            "VIEW \"{name}\" AS SELECT * FROM \"{}\"",
            id.stored_table(name)
        );
        let replace = format!("SAVEPOINT gesta_view; CREATE OR REPLACE {make}");
        match open.run(replace).await {
            Ok(()) => {}
            Err(failure) if failure.is_other_shape() => {
                open.run("ROLLBACK TO SAVEPOINT gesta_view".to_owned())
                    .await?;
                let rows = open
                    .query(READ_GRANTS, vec![Param::text(&format!("\"{name}\""))])
                    .await?;
                let mut anew = format!("DROP VIEW \"{name}\"; CREATE {make}");
                for row in &rows {
                    let grant = row.bytes(0)?.map(binary::text).transpose()?;
                    anew.push_str("; ");
                    anew.push_str(grant.unwrap_or_default());
                }
                open.run(anew).await?;
            }
            Err(failure) => return Err(failure.into()),
        }
        open.run("RELEASE SAVEPOINT gesta_view".to_owned()).await?;
    }
    Ok(())
}

/// Deletes the SQL views of these names.
pub(crate) async fn hide<D: Driver>(open: &mut Open<D>, names: &[&String]) -> Result<(), Failure> {
    for name in names {
        open.run(format!("DROP VIEW IF EXISTS \"{name}\"")).await?;
    }
    Ok(())
}

/// Deletes the tables of this version.
pub(crate) async fn drop_all<D: Driver>(
    open: &mut Open<D>,
    id: &ProjectionId,
    read_as: &[String],
) -> Result<(), Failure> {
    for name in read_as {
        let stored = id.stored_table(name);
        open.run(format!("DROP TABLE IF EXISTS \"{stored}\""))
            .await?;
    }
    Ok(())
}

/// Deletes all rows of a table. No TRUNCATE: a reader whose snapshot has the old checkpoint would find no rows.
pub(crate) async fn clear<D: Driver>(open: &mut Open<D>, table: &Table) -> Result<(), Failure> {
    open.run(format!("DELETE FROM \"{}\"", table.stored)).await
}

/// Writes rows, of which each key stands there once.
pub(crate) async fn upsert<D: Driver>(
    open: &mut Open<D>,
    table: &Table,
    rows: &dyn Cells,
) -> Result<(), TargetError> {
    let statement = upsert_statement(table);
    for piece in pieces(rows, table.key.len() + table.columns.len()) {
        let params = params(rows, &piece, table.key.iter().chain(&table.columns))?;
        open.query(&statement, params).await?;
    }
    Ok(())
}

/// Deletes the rows of some keys.
pub(crate) async fn delete<D: Driver>(
    open: &mut Open<D>,
    table: &Table,
    keys: &dyn Cells,
) -> Result<(), TargetError> {
    let statement = delete_statement(table);
    for piece in pieces(keys, table.key.len()) {
        let params = params(keys, &piece, table.key.iter())?;
        open.query(&statement, params).await?;
    }
    Ok(())
}

/// What is asked for to read the rows of some keys, in pieces: the first key, the statement's values.
pub(crate) struct Loading {
    pub(crate) statement: String,
    pub(crate) pieces: Vec<(usize, Vec<Param>)>,
}

impl Loading {
    pub(crate) fn of(table: &Table, keys: &dyn Cells) -> Result<Self, TargetError> {
        let pieces = pieces(keys, table.key.len()).into_iter().map(|piece| {
            let params = params(keys, &piece, table.key.iter())?;
            Ok((piece.start, params))
        });
        Ok(Self {
            statement: load_statement(table),
            pieces: pieces.collect::<Result<_, TargetError>>()?,
        })
    }
}

/// Takes over the rows that were found for the keys from `first` on.
pub(crate) fn take_found<R: RowBytes>(
    table: &Table,
    first: usize,
    rows: &[R],
    found: &mut Found,
) -> Result<(), TargetError> {
    for row in rows {
        let number = row.bytes(0)?.map(binary::int).transpose()?;
        let number = number.and_then(|number| usize::try_from(number).ok());
        let number = number.filter(|number| *number > 0);
        found
            .row_of(first + number.ok_or_else(|| Failure::of_value("a row without a number"))? - 1);
        for (at, column) in table.columns.iter().enumerate() {
            found.push(binary::value(column.kind, row.bytes(at + 1)?)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gesta_projection::{Keys, Kind};

    use super::*;

    fn table() -> Table {
        let column = |name: &'static str, kind| Column {
            name: name.into(),
            kind,
            nullable: false,
        };
        Table {
            name: "seats".to_owned(),
            stored: "seats_v2".to_owned(),
            key: vec![column("show", Kind::Uuid), column("day", Kind::Int)],
            columns: vec![column("free", Kind::Int)],
            indexed: Vec::new(),
        }
    }

    #[test]
    fn statements_name_keys_and_columns() {
        assert_eq!(
            upsert_statement(&table()),
            "INSERT INTO \"seats_v2\" (\"show\", \"day\", \"free\") \
             SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) \
             ON CONFLICT (\"show\", \"day\") DO UPDATE SET \"free\" = excluded.\"free\""
        );
        assert_eq!(
            delete_statement(&table()),
            "DELETE FROM \"seats_v2\" t USING unnest($1::uuid[], $2::bigint[]) AS k (\"show\", \"day\") \
             WHERE t.\"show\" = k.\"show\" AND t.\"day\" = k.\"day\""
        );
        assert_eq!(
            load_statement(&table()),
            "SELECT k.\"@n\", t.\"free\" FROM unnest($1::uuid[], $2::bigint[]) WITH ORDINALITY \
             AS k (\"show\", \"day\", \"@n\") JOIN \"seats_v2\" t ON t.\"show\" = k.\"show\" AND t.\"day\" = k.\"day\""
        );
    }

    #[test]
    fn rows_are_cut_by_number_and_by_size() {
        let many = Keys((0..25_000_i64).collect());
        assert_eq!(
            pieces(&many, 1),
            [0..10_000, 10_000..20_000, 20_000..25_000]
        );
        let large = Keys(vec!["x".repeat(BYTES_MAX / 2); 3]);
        assert_eq!(pieces(&large, 1), [0..1, 1..2, 2..3]);
        assert!(pieces(&Keys(Vec::<i64>::new()), 1).is_empty());
    }
}
