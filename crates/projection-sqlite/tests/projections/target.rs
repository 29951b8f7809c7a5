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
