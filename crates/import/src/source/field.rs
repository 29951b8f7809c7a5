//! The columns of which every statement makes its answer, whatever the tables of the journal are called.

/// What a column of the answer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
    Number,
    Minor,
    Key,
    Sequence,
    Deleted,
    LeftOut,
    Time,
    Type,
    Manifest,
    Adapter,
    Serializer,
    Writer,
    Data,
    Metadata,
    MetadataSerializer,
    MetadataManifest,
    Tags,
    Id,
    Category,
    Ident,
    Tenant,
    Correlation,
    Causation,
}

use Field::{
    Adapter, Category, Causation, Correlation, Data, Deleted, Id, Ident, Key, LeftOut, Manifest,
    Metadata, MetadataManifest, MetadataSerializer, Minor, Number, Sequence, Serializer, Tags,
    Tenant, Time, Type, Writer,
};

/// All columns, in their order, each with what stands for it in PostgreSQL if a journal has nothing of the kind.
const ALL: [(Field, &str); 23] = [
    (Number, "0::int8"),
    (Minor, "0::int8"),
    (Key, "NULL::text"),
    (Sequence, "0::int8"),
    (Deleted, "false"),
    (LeftOut, "NULL::text"),
    (Time, "NULL::int8"),
    (Type, "NULL::text"),
    (Manifest, "NULL::text"),
    (Adapter, "NULL::text"),
    (Serializer, "NULL::int4"),
    (Writer, "NULL::text"),
    (Data, "NULL::bytea"),
    (Metadata, "NULL::bytea"),
    (MetadataSerializer, "NULL::int4"),
    (MetadataManifest, "NULL::text"),
    (Tags, "NULL::text[]"),
    (Id, "NULL::uuid"),
    (Category, "NULL::text"),
    (Ident, "NULL::text"),
    (Tenant, "NULL::text"),
    (Correlation, "NULL::text"),
    (Causation, "NULL::text"),
];

/// Makes the list of columns of a statement. What is not named is empty; `cast` tells whether the database needs types.
pub(super) fn columns(named: &[(Field, String)], cast: Cast) -> String {
    let column = |(field, empty): &(Field, &str)| {
        let found = named.iter().find(|(name, _)| name == field);
        match (found, cast) {
            (Some((_, expression)), _) => expression.clone(),
            (None, Cast::Typed) => (*empty).to_owned(),
            (None, Cast::Plain) => empty
                .split("::")
                .next()
                .unwrap_or("NULL")
                .replace("false", "0"),
        }
    };
    ALL.iter().map(column).collect::<Vec<_>>().join(", ")
}

/// Whether empty columns need a type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cast {
    /// PostgreSQL: each column has a type.
    Typed,
    /// SQLite: values have types.
    Plain,
}

impl Field {
    /// Returns the number of the column in the answer.
    pub(super) fn at(self) -> usize {
        ALL.iter()
            .position(|(field, _)| *field == self)
            .unwrap_or(0)
    }
}
