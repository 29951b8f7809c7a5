//! How the journals of Akka, Pekko and Akka.NET with a global number are read.

use gesta_core::{Error, Result};

use super::fence::Rule;
use super::field::Field;
use super::postgres::{Pg, Table, failed, micros_of_millis};
use super::shape::{Shape, named};
use crate::options::Options;

/// akka-persistence-jdbc: the tables since 5.0, or the one table of earlier versions.
pub(super) async fn jdbc(pg: &Pg, options: &Options) -> Result<Shape> {
    let wanted = ["ordering", "persistence_id", "sequence_number", "deleted"];
    let usual = [(None, "event_journal"), (None, "journal")];
    let table = pg.events(options, &usual, &wanted).await?;
    let mut list = named([
        (Field::Number, "j.ordering::int8"),
        (Field::Key, "j.persistence_id::text"),
        (Field::Sequence, "j.sequence_number::int8"),
        (Field::Deleted, "j.deleted"),
    ]);
    if table.has("event_payload") {
        list.extend(named([
            (Field::Manifest, "j.event_ser_manifest::text"),
            (Field::Adapter, "j.adapter_manifest::text"),
            (Field::Serializer, "j.event_ser_id::int4"),
            (Field::Writer, "j.writer::text"),
            (Field::Data, "j.event_payload"),
            (Field::Metadata, "j.meta_payload"),
            (Field::MetadataSerializer, "j.meta_ser_id::int4"),
            (Field::MetadataManifest, "j.meta_ser_manifest::text"),
        ]));
        list.push((Field::Time, micros_of_millis("j.write_timestamp")));
        if let Some(tags) = pg.beside(&table, "event_tag").await? {
            list.push((Field::Tags, jdbc_tags(pg, &tags).await?));
        }
    } else if table.has("message") && !table.has("metadata") {
        // The whole event is in one message, which only the old application can read.
        list.extend(named([
            (Field::Type, "'persistent-repr'::text"),
            (Field::Data, "j.message"),
        ]));
        if table.has("tags") {
            let tags = "array_remove(string_to_array(j.tags::text, ','), '')";
            list.push((Field::Tags, tags.into()));
        }
    } else {
        return Err(other_kind(pg, &table));
    }
    let snapshots = pg.beside(&table, "snapshot").await?;
    Ok(Shape {
        of_stream: "j.persistence_id = $1 AND $4::text IS NULL".into(),
        sequence: "j.sequence_number".into(),
        snapshots,
        ..Shape::of_one(table, &list, "ordering")
    })
}

/// Tags point at the number of the event before version 5.4, and at its stream and number there since. While a journal
/// is on its way from one to the other, some do this and some that.
async fn jdbc_tags(pg: &Pg, tags: &Table) -> Result<String> {
    let name = &tags.name;
    let by_number =
        format!("SELECT t.tag::text AS tag FROM {name} t WHERE t.event_id = j.ordering");
    let by_stream = format!(
        "SELECT t.tag::text AS tag FROM {name} t \
         WHERE t.persistence_id = j.persistence_id AND t.sequence_number = j.sequence_number"
    );
    let select = match (tags.has("persistence_id"), tags.has("event_id")) {
        (false, _) => by_number,
        (true, false) => by_stream,
        (true, true) => {
            let sql = format!("SELECT EXISTS (SELECT 1 FROM {name} WHERE persistence_id IS NULL)");
            let row = pg.client.query_one(&sql, &[]).await;
            match row.map_err(|error| failed(&error))?.get(0) {
                true => format!("{by_stream} UNION {by_number}"),
                false => by_stream,
            }
        }
    };
    Ok(format!("ARRAY({select} ORDER BY 1)"))
}

/// akka-persistence-postgres: the plain, the partitioned and the nested schema differ in how their table is
/// partitioned,
/// and in who draws the numbers.
pub(super) async fn postgres(pg: &Pg, options: &Options) -> Result<Shape> {
    let wanted = [
        "ordering",
        "persistence_id",
        "sequence_number",
        "deleted",
        "message",
        "metadata",
    ];
    let table = pg.events(options, &[(None, "journal")], &wanted).await?;
    // Each is written with a short or with a long name.
    let either = |short: &str, long: &str| {
        format!("coalesce(j.metadata->>'{short}', j.metadata->>'{long}')")
    };
    let mut list = named([
        (Field::Number, "j.ordering::int8"),
        (Field::Key, "j.persistence_id::text"),
        (Field::Sequence, "j.sequence_number::int8"),
        (Field::Deleted, "j.deleted"),
        (Field::Data, "j.message"),
    ]);
    // What is no number, or too large a one, is as if it was not there.
    let number = |text: String, kind: &str, digits: u8| {
        format!("CASE WHEN {text} ~ '^-?[0-9]{{1,{digits}}}$' THEN ({text})::{kind} END")
    };
    let serializer = number(either("sid", "serId"), "int4", 9);
    list.push((Field::Serializer, serializer));
    list.push((Field::Manifest, either("sm", "serManifest")));
    list.push((Field::Adapter, either("em", "eventManifest")));
    list.push((Field::Writer, either("wid", "writerUuid")));
    let time = number(either("t", "timestamp"), "int8", 15);
    list.push((Field::Time, format!("({time}) * 1000")));
    if table.has("tags")
        && let Some(tags) = pg.beside(&table, "tags").await?
    {
        let select = format!(
            "SELECT t.name::text FROM {} t WHERE t.id = ANY(j.tags) ORDER BY 1",
            tags.name
        );
        list.push((Field::Tags, format!("ARRAY({select})")));
    }
    let snapshots = pg.beside(&table, "snapshot").await?;
    Ok(Shape {
        of_stream: "j.persistence_id = $1 AND $4::text IS NULL".into(),
        sequence: "j.sequence_number".into(),
        drawn_by: Some("journal_ordering_seq"),
        snapshots,
        ..Shape::of_one(table, &list, "ordering")
    })
}

/// Akka.Persistence.Sql: the default names of columns, or those of the older plug-ins.
pub(super) async fn sql(pg: &Pg, options: &Options) -> Result<Shape> {
    let usual = [(None, "journal"), (None, "event_journal")];
    let table = pg
        .events(options, &usual, &["ordering", "persistence_id"])
        .await?;
    let names =
        DotNet::of(|columns| table.first_of(columns)).ok_or_else(|| other_kind(pg, &table))?;
    let mut list = named([
        (Field::Number, "j.ordering::int8"),
        (Field::Key, "j.persistence_id::text"),
    ]);
    list.push((Field::Sequence, format!("j.{}::int8", names.sequence)));
    list.push((
        Field::Deleted,
        format!("j.{}::text IN ('t', 'true', '1')", names.deleted),
    ));
    list.push((Field::Data, format!("j.{}", names.payload)));
    let created = format!("j.{}", names.created);
    let millis = micros_of_millis(&created);
    list.push((Field::Time, format!("CASE WHEN {created} > {TICKS_FROM} THEN ({created} - {TICKS_OF_1970}) / 10 ELSE {millis} END")));
    for (field, column) in [
        (Field::Manifest, "manifest"),
        (Field::Writer, "writer_uuid"),
    ] {
        if table.has(column) {
            list.push((field, format!("j.{column}::text")));
        }
    }
    if let Some(serializer) = names.serializer {
        list.push((Field::Serializer, format!("j.{serializer}::int4")));
    }
    // Both forms are written while a journal is on its way from one to the other.
    let mut tags = Vec::new();
    if table.has("tags") {
        tags.push("SELECT unnest(string_to_array(j.tags::text, ';')) AS tag".to_owned());
    }
    if let Some(table) = pg.beside(&table, "tags").await?
        && table.has("ordering_id")
    {
        tags.push(format!(
            "SELECT t.tag::text AS tag FROM {} t WHERE t.ordering_id = j.ordering",
            table.name
        ));
    }
    if !tags.is_empty() {
        let all = tags.join(" UNION ");
        list.push((
            Field::Tags,
            format!("ARRAY(SELECT x.tag FROM ({all}) x WHERE x.tag <> '' ORDER BY 1)"),
        ));
    }
    let mut snapshots = None;
    for name in ["snapshot", "snapshot_store"] {
        if snapshots.is_none() {
            snapshots = pg.beside(&table, name).await?;
        }
    }
    Ok(Shape {
        of_stream: "j.persistence_id = $1 AND $4::text IS NULL".into(),
        sequence: format!("j.{}", names.sequence),
        rule: Rule::ByInsert,
        snapshots,
        ..Shape::of_one(table, &list, "ordering")
    })
}

/// Greater numbers than this are ticks of .NET, not milliseconds.
pub(super) const TICKS_FROM: i64 = 100_000_000_000_000_000;
/// The ticks of .NET at the beginning of 1970: tenths of a microsecond since the year 1.
pub(super) const TICKS_OF_1970: i64 = 621_355_968_000_000_000;

/// The names of the columns of Akka.Persistence.Sql.
#[derive(Clone, Copy, Debug)]
pub(super) struct DotNet {
    pub(super) sequence: &'static str,
    pub(super) deleted: &'static str,
    pub(super) payload: &'static str,
    pub(super) created: &'static str,
    pub(super) serializer: Option<&'static str>,
}

impl DotNet {
    /// Finds the names of the columns by a function that tells the first of a list that is there.
    pub(super) fn of(first_of: impl Fn(&[&'static str]) -> Option<&'static str>) -> Option<Self> {
        Some(Self {
            sequence: first_of(&["sequence_number", "sequence_nr"])?,
            deleted: first_of(&["deleted", "is_deleted"])?,
            payload: first_of(&["message", "payload"])?,
            created: first_of(&["created", "created_at", "timestamp"])?,
            serializer: first_of(&["identifier", "serializer_id"]),
        })
    }
}

fn other_kind(pg: &Pg, table: &Table) -> Error {
    Error::invalid(
        "kind",
        format!(
            "must be the kind of the journal: the table {} has other columns than {} writes",
            table.name, pg.kind
        ),
    )
}
