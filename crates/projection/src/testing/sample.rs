//! The table, the rows and the names of the cases of `conformance`.

#![expect(
    clippy::expect_used,
    reason = "a case fails by a panic that says where"
)]

use gesta_core::{Checkpoint, Incarnation, Position, Timestamp};
use uuid::Uuid;

use crate::definition::{ProjectionId, Registration, Table};
use crate::error::ApplyError;
use crate::row::{KeyedRows, Keys, Row};
use crate::value::{Column, Json, OwnedValue, Value};
use crate::view::View;

crate::columns! {
    /// A column of each kind.
    pub(super) struct AllKinds {
        /// Bool.
        pub(super) flag: bool,
        /// Int.
        pub(super) number: i64,
        /// Float.
        pub(super) measure: f64,
        /// Text.
        pub(super) title: String,
        /// Bytes.
        pub(super) bytes: Vec<u8>,
        /// UUID.
        pub(super) reference: Uuid,
        /// Timestamp.
        pub(super) at: Timestamp,
        /// JSON.
        pub(super) document: Json,
        /// A column that may hold nothing.
        pub(super) note: Option<String>,
    }
}

struct Kinds;

impl View for Kinds {
    const NAME: &'static str = "kinds";
    const VERSION: u32 = 1;
    const KEY: &'static [&'static str] = &["tenant", "id"];
    type Key = (String, i64);
    type Row = AllKinds;

    fn filter(&self) -> gesta_core::Filter {
        gesta_core::Filter::ALL
    }

    fn key(&self, _: &gesta_core::RecordedEvent) -> Option<(String, i64)> {
        None
    }

    fn evolve(
        &self,
        _: &mut Option<AllKinds>,
        _: &gesta_core::RecordedEvent,
    ) -> Result<(), crate::error::ApplyError> {
        Ok(())
    }
}

pub(super) const NODE: Uuid = Uuid::from_u128(1);
pub(super) const OTHER: Uuid = Uuid::from_u128(2);

pub(super) fn place(position: u64) -> Checkpoint {
    place_in(7, position)
}

/// A place in another life of the store.
pub(super) fn place_in(life: u128, position: u64) -> Checkpoint {
    let incarnation = Incarnation(Uuid::from_u128(life));
    Checkpoint::logs(incarnation, vec![Position(position)])
}

pub(super) fn table(version: u32) -> Table {
    let mut table = Table::of::<Kinds>().expect("a plain table");
    table.stored = format!("kinds_v{version}");
    table
}

/// A row without columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Bare;

impl Row for Bare {
    const COLUMNS: &'static [Column] = &[];

    fn value(&self, _: usize) -> Value<'_> {
        Value::Null
    }

    fn read(_: &mut dyn Iterator<Item = OwnedValue>) -> Result<Self, ApplyError> {
        Ok(Self)
    }
}

/// The table of rows that are their keys alone.
pub(super) fn bare_table(version: u32) -> Table {
    Table {
        columns: Vec::new(),
        ..table(version)
    }
}

pub(super) fn id(version: u32) -> ProjectionId {
    ProjectionId {
        name: "kinds".to_owned(),
        version,
    }
}

pub(super) fn registration(version: u32) -> Registration {
    Registration {
        id: id(version),
        table: Some(table(version)),
        read_as: vec!["kinds".to_owned()],
        made_with: 5,
        filter: crate::definition::category("kind"),
        definition: Some("[]".to_owned()),
        start: place(0),
    }
}

/// A version that begins in another life of the store.
pub(super) fn registration_in(version: u32, life: u128) -> Registration {
    Registration {
        start: place_in(life, 0),
        ..registration(version)
    }
}

pub(super) fn row(number: i64) -> AllKinds {
    AllKinds {
        flag: number % 2 == 0,
        number: i64::MIN + number,
        measure: 0.5,
        title: format!("Größe {number} 'quoted' \\ \u{1F3AC}"),
        bytes: vec![0, 255, 7],
        reference: Uuid::from_u128(9),
        at: Timestamp(1_790_000_000_000_001),
        document: Json("{\"a\": [1, null]}".to_owned()),
        note: (number % 3 == 0).then(|| "a note".to_owned()),
    }
}

pub(super) fn key(number: i64) -> (String, i64) {
    (format!("t{}", number % 2), number)
}

pub(super) fn rows(numbers: impl IntoIterator<Item = i64>) -> KeyedRows<(String, i64), AllKinds> {
    let numbers = numbers.into_iter();
    KeyedRows(numbers.map(|number| (key(number), row(number))).collect())
}

pub(super) fn keys(numbers: impl IntoIterator<Item = i64>) -> Keys<(String, i64)> {
    Keys(numbers.into_iter().map(key).collect())
}
