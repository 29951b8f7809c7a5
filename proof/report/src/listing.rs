//! Tables that are built column by column: each column says what its cell is for each thing that has a row.

use crate::numbers::Unit;
use crate::table::{Cell, Table, Whose};

/// A table with a row for each of some things.
#[derive(Debug)]
pub struct Listing<'a, T> {
    table: Table,
    of: &'a [T],
}

impl Table {
    /// A table with a row for each of these; it has no columns yet.
    pub fn of<T>(title: impl Into<String>, of: &[T]) -> Listing<'_, T> {
        let mut table = Table::new(title, Vec::<(String, Unit)>::new());
        of.iter().for_each(|_| table.row(Vec::new()));
        Listing { table, of }
    }
}

impl<'a, T> Listing<'a, T> {
    /// Adds a column.
    #[must_use]
    pub fn column<C: Into<Cell>>(self, name: &str, unit: Unit, cell: impl Fn(&'a T) -> C) -> Self {
        self.columns(&[(name, unit)], |one| vec![cell(one).into()])
    }

    /// Adds columns whose cells come together.
    #[must_use]
    pub fn columns(mut self, columns: &[(&str, Unit)], cells: impl Fn(&'a T) -> Vec<Cell>) -> Self {
        let more = Table::new("", columns.iter().copied());
        self.table.columns.extend(more.columns);
        for (row, one) in self.table.rows.iter_mut().zip(self.of) {
            row.cells.extend(cells(one));
        }
        self
    }

    /// Says whose rows these are.
    #[must_use]
    pub fn whose(mut self, whose: impl Fn(&T) -> Whose) -> Self {
        for (row, one) in self.table.rows.iter_mut().zip(self.of) {
            row.whose = whose(one);
        }
        self
    }

    /// The table.
    #[must_use]
    pub fn table(self) -> Table {
        self.table
    }
}
