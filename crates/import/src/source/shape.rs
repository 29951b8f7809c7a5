//! How the tables of each journal are read: one statement for each, which all give the same columns.

use gesta_core::Result;

use super::fence::Rule;
use super::field::{Cast, Field, columns};
use super::postgres::{Pg, Table, micros};
use super::{akka, field};
use crate::kind::Kind;
use crate::options::Options;

/// How a journal with a global number is read.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// The table of the events.
    pub(super) table: Table,
    /// The columns of an event, as an answer has them.
    pub(super) columns: String,
    /// The tables, with their joins.
    pub(super) from: String,
    /// The table alone, with the alias that `number` uses.
    pub(super) numbers_from: String,
    /// The global number.
    pub(super) number: String,
    /// Which rows are events at all.
    pub(super) filter: String,
    /// The condition on the stream; `$1` is its id, `$4` the tenant or NULL.
    pub(super) of_stream: String,
    /// The number of an event in its stream.
    pub(super) sequence: String,
    /// Which transactions can have drawn a number.
    pub(super) rule: Rule,
    /// The column whose default draws the numbers.
    pub(super) drawn_for: &'static str,
    /// The sequence that draws the numbers, if the column does not tell.
    pub(super) drawn_by: Option<&'static str>,
    /// The table of the snapshots.
    pub(super) snapshots: Option<Table>,
}

impl Shape {
    /// Finds out how the journal is read.
    ///
    /// # Errors
    /// `InvalidArgument` if tables or columns are missing.
    pub(super) async fn of(pg: &Pg, options: &Options) -> Result<Self> {
        match options.kind {
            Kind::AkkaPostgres => akka::postgres(pg, options).await,
            Kind::AkkaSql => akka::sql(pg, options).await,
            Kind::ElixirEventStore => elixir(pg, options).await,
            Kind::MessageDb => message_db(pg, options).await,
            Kind::Marten => marten(pg, options).await,
            _ => akka::jdbc(pg, options).await,
        }
    }

    /// A journal of one table, whose alias is `j`.
    pub(super) fn of_one(table: Table, named: &[(Field, String)], number: &'static str) -> Self {
        let from = format!("{} j", table.name);
        Self {
            columns: columns(named, Cast::Typed),
            numbers_from: from.clone(),
            from,
            number: format!("j.{number}"),
            filter: "true".into(),
            of_stream: String::new(),
            sequence: String::new(),
            rule: Rule::ByInsert,
            drawn_for: number,
            drawn_by: None,
            snapshots: None,
            table,
        }
    }
}

/// Returns the expression of the key of a stream that a tenant has: `tenant/stream`. A `/` in the name of a tenant is
/// escaped, so that no two pairs have one key.
pub(super) fn keyed(tenant: &str, stream: &str, cast: Cast) -> String {
    let tenant = format!("replace(replace({tenant}, '%', '%25'), '/', '%2F')");
    match cast {
        Cast::Typed => format!("concat_ws('/', {tenant}, {stream})"),
        Cast::Plain => format!("coalesce({tenant} || '/', '') || {stream}"),
    }
}

/// Makes a list of columns.
pub(super) fn named<const N: usize>(list: [(Field, &str); N]) -> Vec<(Field, String)> {
    list.map(|(field, text)| (field, text.to_owned())).into()
}

async fn message_db(pg: &Pg, options: &Options) -> Result<Shape> {
    let wanted = [
        "global_position",
        "position",
        "time",
        "stream_name",
        "type",
        "data",
        "metadata",
        "id",
    ];
    let usual = [(Some("message_store"), "messages"), (None, "messages")];
    let table = pg.events(options, &usual, &wanted).await?;
    let mut list = named([
        (Field::Number, "j.global_position"),
        (Field::Key, "j.stream_name::text"),
        (Field::Sequence, "j.position::int8"),
        (Field::Type, "j.type::text"),
        (Field::Id, "j.id"),
    ]);
    // The time has no zone, and is in UTC.
    list.push((Field::Time, micros("j.time")));
    list.push((
        Field::Data,
        "convert_to(coalesce(j.data::text, 'null'), 'UTF8')".into(),
    ));
    list.push((Field::Metadata, table.bytes_of("j", "metadata")));
    Ok(Shape {
        of_stream: "j.stream_name = $1 AND $4::text IS NULL".into(),
        sequence: "j.position".into(),
        ..Shape::of_one(table, &list, "global_position")
    })
}

async fn marten(pg: &Pg, options: &Options) -> Result<Shape> {
    let wanted = [
        "seq_id",
        "id",
        "stream_id",
        "version",
        "data",
        "type",
        "timestamp",
    ];
    let table = pg.events(options, &[(None, "mt_events")], &wanted).await?;
    let streams = pg.beside(&table, "mt_streams").await?;
    let tenant = match table.has("tenant_id") {
        true => "nullif(j.tenant_id::text, '*DEFAULT*')",
        false => "NULL::text",
    };
    let category = streams.as_ref().filter(|streams| streams.has("type"));
    let mut list = named([
        (Field::Number, "j.seq_id::int8"),
        (Field::Sequence, "j.version::int8"),
        (Field::Type, "j.type::text"),
        (Field::Id, "j.id"),
        (Field::Ident, "j.stream_id::text"),
        (
            Field::LeftOut,
            "CASE WHEN j.type = 'tombstone' THEN 'tombstones' END",
        ),
    ]);
    list.push((Field::Key, keyed(tenant, "j.stream_id::text", Cast::Typed)));
    list.push((Field::Tenant, tenant.into()));
    list.push((Field::Time, micros("j.timestamp")));
    list.push((Field::Data, table.bytes_of("j", "data")));
    for (field, column) in [
        (Field::Manifest, "mt_dotnet_type"),
        (Field::Correlation, "correlation_id"),
        (Field::Causation, "causation_id"),
    ] {
        if table.has(column) {
            list.push((field, format!("j.{column}::text")));
        }
    }
    if table.has("is_archived") {
        list.push((Field::Deleted, "j.is_archived".into()));
    }
    if table.has("headers") {
        list.push((Field::Metadata, table.bytes_of("j", "headers")));
    }
    if category.is_some() {
        list.push((Field::Category, "s.type::text".into()));
    }
    let of_stream = match table.type_of("stream_id") {
        "uuid" => "j.stream_id = $1::text::uuid",
        _ => "j.stream_id = $1",
    };
    let mut shape = Shape::of_one(table, &list, "seq_id");
    if let Some(streams) = category {
        let both = shape.table.has("tenant_id") && streams.has("tenant_id");
        let tenants = if both {
            " AND s.tenant_id = j.tenant_id"
        } else {
            ""
        };
        shape.from = format!(
            "{} LEFT JOIN {} s ON s.id = j.stream_id{tenants}",
            shape.from, streams.name
        );
    }
    Ok(Shape {
        of_stream: format!("{of_stream} AND {tenant} IS NOT DISTINCT FROM $4::text"),
        sequence: "j.version".into(),
        // Marten reserves numbers by a statement of its own in some of its modes.
        rule: Rule::Earlier,
        drawn_by: Some("mt_events_sequence"),
        ..shape
    })
}

async fn elixir(pg: &Pg, options: &Options) -> Result<Shape> {
    let wanted = [
        "event_id",
        "stream_id",
        "stream_version",
        "original_stream_id",
        "original_stream_version",
    ];
    let table = pg
        .events(options, &[(None, "stream_events")], &wanted)
        .await?;
    let (Some(events), Some(streams)) = (
        pg.beside(&table, "events").await?,
        pg.beside(&table, "streams").await?,
    ) else {
        return Err(gesta_core::Error::invalid(
            "source",
            format!(
                "must be a journal of {}: beside {} there are no tables events and streams",
                pg.kind, table.name
            ),
        ));
    };
    let mut list = named([
        (Field::Number, "j.stream_version::int8"),
        (Field::Key, "s.stream_uuid::text"),
        (Field::Sequence, "j.original_stream_version::int8"),
        (Field::Type, "e.event_type::text"),
        (Field::Id, "e.event_id"),
        (Field::Correlation, "e.correlation_id::text"),
        (Field::Causation, "e.causation_id::text"),
    ]);
    list.push((Field::Time, micros("e.created_at")));
    list.push((Field::Data, events.bytes_of("e", "data")));
    list.push((Field::Metadata, events.bytes_of("e", "metadata")));
    if streams.has("deleted_at") {
        list.push((Field::Deleted, "s.deleted_at IS NOT NULL".into()));
    }
    let shape = Shape::of_one(table, &list, "stream_version");
    Ok(Shape {
        columns: field::columns(&list, Cast::Typed),
        from: format!(
            "{} JOIN {} e ON e.event_id = j.event_id JOIN {} s ON s.stream_id = j.original_stream_id",
            shape.from, events.name, streams.name
        ),
        // Stream 0 is all events, in the order in which they were committed: its row is locked until then.
        filter: "j.stream_id = 0".into(),
        of_stream: "s.stream_uuid = $1 AND $4::text IS NULL".into(),
        sequence: "j.original_stream_version".into(),
        rule: Rule::InOrder,
        drawn_for: "",
        snapshots: pg.beside(&shape.table, "snapshots").await?,
        ..shape
    })
}
