//! The SQL views by which readers see the active version.

use gesta_core::{Checkpoint, Incarnation, Position};
use gesta_projection::{
    Column, Kind, ProjectionId, Registration, SwitchFrom, Switched, Table, Target as _,
    TargetErrorKind,
};
use gesta_rig::fresh_schema;
use uuid::Uuid;

use crate::databases::Database;
use crate::flavour::Target;

fn registration(version: u32, columns: &[(&'static str, Kind)]) -> Registration {
    let column = |(name, kind): &(&'static str, Kind)| Column {
        name: (*name).into(),
        kind: *kind,
        nullable: true,
    };
    let id = ProjectionId {
        name: "seats".to_owned(),
        version,
    };
    let key = Column {
        name: "id".into(),
        kind: Kind::Text,
        nullable: false,
    };
    let table = Table {
        name: "seats".to_owned(),
        stored: id.stored_table("seats"),
        key: vec![key],
        columns: columns.iter().map(column).collect(),
        indexed: Vec::new(),
    };
    Registration {
        id,
        table: Some(table),
        read_as: vec!["seats".to_owned()],
        made_with: 1,
        filter: gesta_core::Filter::ALL,
        definition: None,
        start: Checkpoint::logs(Incarnation(Uuid::from_u128(7)), vec![Position(0)]),
    }
}

async fn made() -> (Database, Target) {
    let database = Database::new().await;
    let target = database.target();
    target.migrate().await.expect("made");
    (database, target)
}

/// Goal: a reader that holds the view delays a switch, which waits for it no longer than a moment, so that no other
/// reader queues behind the switch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_gives_way_to_a_reader() {
    let (database, target) = made().await;
    let (first, second) = (
        registration(1, &[("free", Kind::Int)]),
        registration(2, &[("free", Kind::Int)]),
    );
    target.register(&first).await.expect("registered");
    target.register(&second).await.expect("registered");
    let reader = database.connect().await;
    reader
        .batch_execute("BEGIN; SELECT * FROM seats")
        .await
        .expect("read");
    let switched = target
        .switch(&second.id, SwitchFrom::Any, None)
        .await
        .expect("an answer");
    assert_eq!(switched, Switched::Busy);
    reader.batch_execute("COMMIT").await.expect("ended");
    let switched = target
        .switch(&second.id, SwitchFrom::Any, None)
        .await
        .expect("an answer");
    assert_eq!(switched, Switched::Done);
}

/// Goal: a view that gets other columns is made anew within the switch, and whoever might read it still may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_columns_keep_the_rights_of_readers() {
    let (database, target) = made().await;
    let first = registration(1, &[("free", Kind::Int), ("title", Kind::Text)]);
    let second = registration(2, &[("taken", Kind::Json), ("title", Kind::Text)]);
    target.register(&first).await.expect("registered");
    target.register(&second).await.expect("registered");
    let owner = database.connect().await;
    let role = fresh_schema();
    let grant = format!(
        "CREATE ROLE {role}; GRANT USAGE ON SCHEMA {} TO {role}; GRANT SELECT ON seats TO {role}",
        database.schema
    );
    owner.batch_execute(&grant).await.expect("granted");
    let switched = target
        .switch(&second.id, SwitchFrom::Any, None)
        .await
        .expect("an answer");
    assert_eq!(switched, Switched::Done);
    let read = format!("SET ROLE {role}; SELECT taken, title FROM seats");
    owner.batch_execute(&read).await.expect("it may still read");
    owner.batch_execute("RESET ROLE").await.expect("reset");
    let back = target
        .switch(&first.id, SwitchFrom::Any, None)
        .await
        .expect("an answer");
    assert_eq!(back, Switched::Done);
    let read = format!("SET ROLE {role}; SELECT free FROM seats");
    owner.batch_execute(&read).await.expect("it may still read");
    let drop = format!("RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}");
    owner.batch_execute(&drop).await.expect("dropped");
}

/// Goal: a name that a table of the application has is refused, and nothing of the version is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_taken_is_refused() {
    let (database, target) = made().await;
    let application = database.connect().await;
    application
        .batch_execute("CREATE TABLE seats (mine int)")
        .await
        .expect("made");
    let new = registration(1, &[("free", Kind::Int)]);
    let error = target.register(&new).await.expect_err("taken");
    assert_eq!(error.kind(), TargetErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("seats"), "{error}");
    assert_eq!(target.list().await.expect("a list"), []);
    application
        .batch_execute("DROP TABLE seats; CREATE TABLE seats_v1 (mine int)")
        .await
        .expect("made");
    target.register(&new).await.expect_err("taken");
    application
        .batch_execute("DROP TABLE seats_v1")
        .await
        .expect("dropped");
    target.register(&new).await.expect("registered");
}

/// Goal: tables of a newer program are left alone, and the error names both versions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_tables_are_refused() {
    let (database, target) = made().await;
    let operator = database.connect().await;
    let newer = "UPDATE gesta_projections_schema SET version = 99";
    operator.batch_execute(newer).await.expect("set");
    let error = target.migrate().await.expect_err("newer");
    assert_eq!(error.kind(), TargetErrorKind::Unusable);
    assert!(error.to_string().contains("99"), "{error}");
}

/// Goal: tables of an earlier program are brought to the form of this one, with what they hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_version_1_are_kept() {
    let database = Database::new().await;
    database
        .execute("CREATE TABLE gesta_projections_schema (version bigint NOT NULL)")
        .await;
    database
        .execute("INSERT INTO gesta_projections_schema VALUES (1)")
        .await;
    database
        .execute(include_str!("../../sql/migrate_0001.sql"))
        .await;
    let checkpoint = crate::kit::fixtures::place_at(7);
    let row = format!(
        "INSERT INTO gesta_projections \
         (name, version, life, state, checkpoint, floor, made_with, attempts, attempt_events, read_as) \
         VALUES ('seats', 1, 'active', 'running', '{checkpoint}', '{checkpoint}', 1, 2, 1, 'seats')"
    );
    database.execute(&row).await;
    let target = database.target();
    // Who only looks, as the command line does, leaves the tables as they are, and says who renews them.
    let seats = crate::kit::world::id("seats", 1);
    let is_told = |error: gesta_projection::TargetError| {
        let told = error.to_string();
        assert!(told.contains("have version 1, older than 2"), "{told}");
        assert!(told.contains("gesta index run"), "{told}");
    };
    is_told(target.list().await.expect_err("older"));
    is_told(target.retire(&seats).await.expect_err("older"));
    target.migrate().await.expect("brought to version 2");
    let rows = target.list().await.expect("a list");
    // Which event the attempts were of is not known.
    assert_eq!(
        (rows.len(), rows[0].attempt, rows[0].filter.clone()),
        (1, None, None)
    );
    // The filter is stored as soon as a program registers the version.
    let again = registration(1, &[("free", Kind::Int)]);
    let stored = target.register(&again).await.expect("registered");
    assert_eq!(stored.filter, Some(again.filter.clone()));
    let rows = target.list().await.expect("a list");
    assert_eq!(rows[0].filter, Some(again.filter));
}
