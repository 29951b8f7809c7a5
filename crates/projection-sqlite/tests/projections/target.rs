//! The target does what every target must do.
use gesta_projection::Target;
use gesta_projection::testing::conformance::Factory;
use gesta_projection_sqlite::SqliteTarget;

use crate::common::Files;

impl Factory for Files {
    type Target = SqliteTarget;

    async fn target(&self) -> SqliteTarget {
        let target = self.make();
        target.migrate().await.expect("made");
        target
    }

    async fn count(&self, _: &SqliteTarget, name: &str) -> Option<i64> {
        let sql = format!("SELECT count(*) FROM {name}");
        self.open().query_row(&sql, [], |row| row.get(0)).ok()
    }
}

gesta_projection::target_conformance!(Files::new());

/// The file of an event store belongs to the store alone, and one of a newer program to that.
#[tokio::test]
async fn files_of_others_are_refused() {
    let files = Files::new();
    let target = files.make();
    let tables = "CREATE TABLE store (n INTEGER); CREATE TABLE events (n INTEGER);";
    files.open().execute_batch(tables).expect("made");
    let error = target.migrate().await.expect_err("refused").to_string();
    assert!(
        error.contains("the file is that of an event store"),
        "{error}"
    );
    let target = files.make();
    target.migrate().await.expect("made");
    let newer = "UPDATE gesta_projections_schema SET version = 99";
    files.open().execute_batch(newer).expect("changed");
    let error = target.migrate().await.expect_err("refused").to_string();
    assert!(
        error.contains("have version 99, this program expects 1"),
        "{error}"
    );
}
