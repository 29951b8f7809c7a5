//! Versions of projections: how they are registered, owned, switched and retired, each in one transaction.
//!
//! Locks are taken in one order: the lock of definitions, then rows of `gesta_projections`, the active version first,
//! then
//! the views.

use gesta_projection::{
    Life, ProjectionId, Registration, Seen, Stored, SwitchFrom, Switched, TargetError,
    TargetErrorKind, filter_to_text, older_tables,
};
use gesta_sql::{Migration, Migrations};
use uuid::Uuid;

use crate::binary::{self, Param};
use crate::driver::{Driver, RowBytes};
use crate::failure::Failure;
use crate::open::Open;
use crate::rows::{self, Columns};
use crate::statements::{
    CLAIM_PROJECTION, CREATE_SCHEMA_VERSION, DELETE_ALL_PARKED, INSERT_PROJECTION,
    LOCK_DEFINITIONS, LOCK_PROJECTION, READ_PROJECTIONS, READ_SCHEMA_VERSION,
    REPLACE_SCHEMA_VERSION, RETIRE_PROJECTION, UPDATE_LIFE,
};
use crate::tables;

type Result<T> = std::result::Result<T, TargetError>;

/// The steps that make the tables of Gesta. A released step is never edited.
const MIGRATIONS: Migrations = Migrations::new(&[
    Migration {
        version: 1,
        name: "projections, parked events, processes, commands",
        sql: include_str!("../sql/migrate_0001.sql"),
    },
    Migration {
        version: 2,
        name: "filters, and the events of attempts",
        sql: include_str!("../sql/migrate_0002.sql"),
    },
]);

/// Tells whether tables of this version are those of this program.
///
/// # Errors
/// `Unusable` if they are newer.
pub(crate) fn is_current(found: Option<i64>) -> Result<bool> {
    let latest = i64::from(MIGRATIONS.latest());
    let found = found.unwrap_or(0);
    if found > latest {
        let text = format!(
            "the tables of projections have version {found}, newer than {latest}, the last that this program knows"
        );
        return Err(TargetError::new(TargetErrorKind::Unusable, text));
    }
    Ok(found == latest)
}

/// Returns the error of tables that are older than those of this program.
pub(crate) fn older(found: Option<i64>) -> Option<TargetError> {
    let latest = MIGRATIONS.latest();
    let found = found.filter(|found| *found < i64::from(latest))?;
    Some(older_tables(found, latest))
}

/// Makes the tables of Gesta, or brings them to the version of this program.
pub(crate) async fn migrate<D: Driver>(open: &mut Open<D>) -> Result<()> {
    open.query(LOCK_DEFINITIONS, Vec::new()).await?;
    open.run(CREATE_SCHEMA_VERSION.to_owned()).await?;
    let rows = open.query(READ_SCHEMA_VERSION, Vec::new()).await?;
    let found = schema_version(&rows)?;
    if is_current(found)? {
        return Ok(());
    }
    let found = found.and_then(|found| u32::try_from(found).ok());
    let steps = MIGRATIONS
        .pending(found)
        .map_err(|error| TargetError::new(TargetErrorKind::Unusable, error.to_string()))?;
    for step in steps {
        open.run(step.sql.to_owned()).await?;
    }
    let latest = i64::from(MIGRATIONS.latest());
    open.query(REPLACE_SCHEMA_VERSION, vec![Param::int(latest)])
        .await?;
    Ok(())
}

/// Reads the answer to [`READ_SCHEMA_VERSION`].
pub(crate) fn schema_version<R: RowBytes>(rows: &[R]) -> Result<Option<i64>> {
    match rows.first() {
        Some(row) => Columns::of(row).int_or_null(),
        None => Ok(None),
    }
}

fn of(id: &ProjectionId) -> Vec<Param> {
    vec![Param::text(&id.name), Param::int(i64::from(id.version))]
}

async fn all_of<D: Driver>(open: &mut Open<D>, name: &str) -> Result<Vec<Stored>> {
    let params = vec![Param::text(name), Param::int_or_null(None)];
    let rows = open.query(READ_PROJECTIONS, params).await?;
    rows.iter().map(rows::stored).collect()
}

async fn one<D: Driver>(open: &mut Open<D>, id: &ProjectionId) -> Result<Option<Stored>> {
    let rows = open.query(READ_PROJECTIONS, of(id)).await?;
    rows.first().map(rows::stored).transpose()
}

/// Registers a version, unless it is registered.
pub(crate) async fn register<D: Driver>(open: &mut Open<D>, new: &Registration) -> Result<Stored> {
    open.query(LOCK_DEFINITIONS, Vec::new()).await?;
    let others = all_of(open, &new.id.name).await?;
    if let Some(stored) = others.iter().find(|other| other.id == new.id) {
        return Ok(stored.clone());
    }
    let is_first = !others.iter().any(|other| other.life == Life::Active);
    let life = match is_first {
        true => Life::Active,
        false => Life::Building,
    };
    let mut params = of(&new.id);
    params.extend([
        Param::text(life.as_str()),
        Param::text(&new.start.to_string()),
        Param::int(new.made_with),
        Param::text(&new.read_as.join(",")),
        Param::text(&filter_to_text(&new.filter)),
        Param::text_or_null(new.definition.as_deref()),
    ]);
    open.query(INSERT_PROJECTION, params).await?;
    if let Some(table) = &new.table {
        tables::create(open, table).await?;
        if is_first {
            tables::show(open, &new.id, &new.read_as).await?;
        }
    }
    let stored = one(open, &new.id).await?;
    stored.ok_or_else(|| TargetError::new(TargetErrorKind::Away, "the row that was made is gone"))
}

/// What a process finds that wants to own a version.
pub(crate) enum Claimed {
    Begun(Stored, i64),
    Owned(Stored),
    NotFound,
}

fn is_owned_by_another(stored: &Stored, node: Uuid) -> bool {
    stored.owned && stored.owner != Some(node)
}

/// Begins a session, unless another process owns the version. Looks first without waiting, so that a process that
/// stands
/// by does not queue behind each batch of the owner.
pub(crate) async fn claim<D: Driver>(
    open: &mut Open<D>,
    id: &ProjectionId,
    node: Uuid,
) -> Result<Claimed> {
    match one(open, id).await? {
        None => return Ok(Claimed::NotFound),
        Some(stored) if is_owned_by_another(&stored, node) => return Ok(Claimed::Owned(stored)),
        Some(_) => {}
    }
    open.query(LOCK_PROJECTION, of(id)).await?;
    // What was committed while this transaction waited is seen by the next statement alone.
    let stored = match one(open, id).await? {
        None => return Ok(Claimed::NotFound),
        Some(stored) if is_owned_by_another(&stored, node) => return Ok(Claimed::Owned(stored)),
        Some(stored) => stored,
    };
    let mut params = of(id);
    params.push(Param::uuid(node));
    let rows = open.query(CLAIM_PROJECTION, params).await?;
    match rows.first() {
        Some(row) => Ok(Claimed::Begun(stored, Columns::of(row).int()?)),
        None => Ok(Claimed::NotFound),
    }
}

async fn set_life<D: Driver>(
    open: &mut Open<D>,
    id: &ProjectionId,
    life: Life,
) -> std::result::Result<(), Failure> {
    let mut params = of(id);
    params.push(Param::text(life.as_str()));
    open.query(UPDATE_LIFE, params).await?;
    Ok(())
}

/// Makes a version the active one. A lock that is not to be had in time is a failure, after which nothing has changed.
pub(crate) async fn switch<D: Driver>(
    open: &mut Open<D>,
    id: &ProjectionId,
    from: SwitchFrom,
    seen: Option<&Seen>,
) -> Result<Switched> {
    open.query(LOCK_DEFINITIONS, Vec::new()).await?;
    let is_active = |stored: &&Stored| stored.life == Life::Active;
    let active = all_of(open, &id.name).await?;
    if let Some(active) = active.iter().find(is_active) {
        open.query(LOCK_PROJECTION, of(&active.id)).await?;
    }
    open.query(LOCK_PROJECTION, of(id)).await?;
    let all = all_of(open, &id.name).await?;
    let new = all.iter().find(|stored| stored.id == *id);
    let Some(new) = new.filter(|new| new.life != Life::Retired) else {
        return Ok(Switched::NotFound);
    };
    if new.life == Life::Active {
        return Ok(Switched::Done);
    }
    open.run("SET LOCAL lock_timeout = 100".to_owned()).await?;
    if let Some(old) = all.iter().find(is_active) {
        if let Some(refusal) = new.may_not_follow(old, from, seen) {
            return Ok(refusal);
        }
        set_life(open, &old.id, Life::Previous).await?;
        let gone: Vec<&String> = old
            .read_as
            .iter()
            .filter(|name| !new.read_as.contains(name))
            .collect();
        tables::hide(open, &gone).await?;
    }
    set_life(open, id, Life::Active).await?;
    tables::show(open, id, &new.read_as).await?;
    Ok(Switched::Done)
}

/// Deletes the rows of a version; false if there is none, or readers see it.
pub(crate) async fn retire<D: Driver>(open: &mut Open<D>, id: &ProjectionId) -> Result<bool> {
    open.query(LOCK_DEFINITIONS, Vec::new()).await?;
    open.query(LOCK_PROJECTION, of(id)).await?;
    let found = one(open, id).await?;
    let Some(old) = found.filter(|old| old.life != Life::Active) else {
        return Ok(false);
    };
    tables::drop_all(open, id, &old.read_as).await?;
    open.query(DELETE_ALL_PARKED, of(id)).await?;
    open.query(RETIRE_PROJECTION, of(id)).await?;
    Ok(true)
}

/// Reads a single boolean.
pub(crate) fn is_true<R: RowBytes>(rows: &[R]) -> Result<bool> {
    let row = rows.first().map(|row| row.bytes(0)).transpose()?;
    let value = row.flatten().map(binary::boolean).transpose()?;
    Ok(value.unwrap_or(false))
}
