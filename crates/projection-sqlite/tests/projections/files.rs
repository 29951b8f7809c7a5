//! Files that are not for projections, and those of other programs.

use gesta_projection::Target as _;

use crate::flavour::Database;

/// Goal: the file of an event store belongs to the store alone, and one of a newer program to that.
#[tokio::test]
async fn files_of_others_are_refused() {
    let database = Database::new().await;
    let tables = "CREATE TABLE store (n INTEGER); CREATE TABLE events (n INTEGER);";
    database.execute(tables).await;
    let error = database.target().migrate().await.expect_err("refused");
    let error = error.to_string();
    assert!(
        error.contains("the file is that of an event store"),
        "{error}"
    );
    let database = Database::new().await;
    database.target().migrate().await.expect("made");
    let newer = "UPDATE gesta_projections_schema SET version = 99";
    database.execute(newer).await;
    let error = database.target().migrate().await.expect_err("refused");
    let error = error.to_string();
    assert!(error.contains("have version 99, newer than 2"), "{error}");
}

/// Goal: what was asked for and answered long ago is forgotten, and nothing else.
#[tokio::test]
async fn old_commands_are_forgotten() {
    let database = Database::new().await;
    let target = database.target();
    target.migrate().await.expect("made");
    let insert = |asked_at: &str, answer: &str| {
        format!(
            "INSERT INTO gesta_projections_commands (name, version, command, asked_at, answer) \
             VALUES ('seats', 1, 'reset', {asked_at}, {answer});"
        )
    };
    let now = "CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000";
    let old = insert("0", "'done'") + &insert("0", "NULL") + &insert(now, "'done'");
    database.execute(&old).await;
    let seats = crate::kit::world::id("seats", 1);
    let asked = target.command(&seats, &gesta_projection::Order::Reset);
    asked.await.expect("asked");
    let left = "SELECT number FROM gesta_projections_commands ORDER BY number";
    assert_eq!(database.lines(left).await, ["2", "3", "4"]);
}

/// Goal: a file of an earlier program is brought to the tables of this one, with what it holds.
#[tokio::test]
async fn a_file_of_version_1_is_kept() {
    let database = Database::new().await;
    database
        .execute(include_str!("../../sql/migrate_0001.sql"))
        .await;
    let row = "INSERT INTO gesta_projections \
               (name, version, life, state, checkpoint, floor, made_with, attempts, attempt_events, read_as) \
               VALUES ('seats', 1, 'active', 'running', 'c', 'c', 5, 2, 1, 'seats')";
    let checkpoint = crate::kit::fixtures::place_at(7).to_string();
    database
        .execute(&row.replace("'c'", &format!("'{checkpoint}'")))
        .await;
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
    target.migrate().await.expect("again");
    let rows = target.list().await.expect("a list");
    // Which event the attempts were of is not known.
    assert_eq!(
        (rows.len(), rows[0].made_with, rows[0].attempt),
        (1, 5, None)
    );
}
