//! Reads what the plugin `pgoutput` of PostgreSQL writes: version 1 of the messages in section *Logical Replication
//! Message Formats* of its manual, each followed by a line feed, as `pg_recvlogical` puts them into a file.
//!
//! Messages carry no length, and data may hold line feeds, so they are read one after the other.

use std::collections::HashMap;

/// The values of a row by the names of their columns, in PostgreSQL's text form; what is NULL is left out.
pub(crate) type Row = HashMap<String, String>;

/// What happened to a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Insert,
    Update,
    /// The row has the columns of the key alone.
    Delete,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) kind: Kind,
    /// With its schema.
    pub(crate) table: String,
    pub(crate) row: Row,
}

/// The changes of one transaction, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transaction {
    /// Where its commit stands in the write-ahead log.
    pub(crate) commit: u64,
    pub(crate) changes: Vec<Change>,
}

impl Transaction {
    /// Rows of a table of the store that were copied out of it, as if they came.
    pub(crate) fn of_rows(table: &str, rows: Vec<Row>) -> Self {
        let change = |row| Change {
            kind: Kind::Insert,
            table: format!("gesta.{table}"),
            row,
        };
        Self {
            commit: 0,
            changes: rows.into_iter().map(change).collect(),
        }
    }
}

struct Table {
    name: String,
    columns: Vec<String>,
}

/// The bytes that are not read yet. Every method answers `None` at their end.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    /// A number of so many bytes, the highest one first.
    fn number(&mut self, bytes: usize) -> Option<u64> {
        let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        Some(self.take(bytes)?.iter().fold(0, add))
    }

    fn count(&mut self, bytes: usize) -> Option<usize> {
        Some(usize::try_from(self.number(bytes)?).unwrap())
    }

    /// A text that ends with a byte of zero.
    fn text(&mut self) -> Option<String> {
        let length = self.0.iter().position(|byte| *byte == 0)?;
        let text = self.take(length)?.to_vec();
        self.take(1)?;
        Some(String::from_utf8(text).unwrap())
    }

    fn row(&mut self, table: &Table) -> Option<Row> {
        let (count, mut row) = (self.count(2)?, Row::new());
        assert_eq!(count, table.columns.len(), "columns of {}", table.name);
        for column in &table.columns {
            match self.byte()? {
                b'n' => {}
                b't' => {
                    let length = self.count(4)?;
                    let value = self.take(length)?.to_vec();
                    row.insert(column.clone(), String::from_utf8(value).unwrap());
                }
                other => panic!("{}.{column} comes as {:?}", table.name, char::from(other)),
            }
        }
        Some(row)
    }
}

/// The transactions that a run of `pg_recvlogical` has written whole. A run that was killed may have written a part of
/// one more, which is left out: the run has not confirmed it.
pub(crate) fn transactions(written: &[u8]) -> Vec<Transaction> {
    let (mut bytes, mut tables) = (Bytes(written), HashMap::new());
    let mut whole = Vec::new();
    while let Some(transaction) = transaction(&mut bytes, &mut tables) {
        whole.push(transaction);
    }
    whole
}

/// The next transaction; `None` if the bytes end before it does.
fn transaction(bytes: &mut Bytes<'_>, tables: &mut HashMap<u64, Table>) -> Option<Transaction> {
    assert_eq!(bytes.byte()?, b'B', "a transaction begins");
    let mut transaction = Transaction {
        commit: bytes.number(8)?,
        changes: Vec::new(),
    };
    // The time of the commit, and the number of the transaction.
    bytes.take(8 + 4)?;
    end_of_line(bytes)?;
    loop {
        let kind = match bytes.byte()? {
            b'C' => {
                bytes.take(1)?;
                assert_eq!(bytes.number(8)?, transaction.commit, "it commits");
                // The end of the transaction, and the time of the commit.
                bytes.take(8 + 8)?;
                end_of_line(bytes)?;
                return Some(transaction);
            }
            b'R' => {
                let (id, table) = described(bytes)?;
                tables.insert(id, table);
                end_of_line(bytes)?;
                continue;
            }
            b'I' => Kind::Insert,
            b'U' => Kind::Update,
            b'D' => Kind::Delete,
            other => panic!("a message of kind {:?}", char::from(other)),
        };
        let table = &tables[&bytes.number(4)?];
        let expected = if kind == Kind::Delete { b'K' } else { b'N' };
        assert_eq!(bytes.byte()?, expected, "what of {} comes", table.name);
        let row = bytes.row(table)?;
        transaction.changes.push(Change {
            kind,
            table: table.name.clone(),
            row,
        });
        end_of_line(bytes)?;
    }
}

/// A table, told before its first row, and the number by which rows name it.
fn described(bytes: &mut Bytes<'_>) -> Option<(u64, Table)> {
    let id = bytes.number(4)?;
    let name = format!("{}.{}", bytes.text()?, bytes.text()?);
    bytes.take(1)?;
    let mut columns = Vec::new();
    for _ in 0..bytes.count(2)? {
        bytes.take(1)?;
        columns.push(bytes.text()?);
        // Its type.
        bytes.take(4 + 4)?;
    }
    Some((id, Table { name, columns }))
}

fn end_of_line(bytes: &mut Bytes<'_>) -> Option<()> {
    assert_eq!(bytes.byte()?, b'\n', "every message ends with a line feed");
    Some(())
}
