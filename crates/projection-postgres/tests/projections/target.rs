//! The target does what every target must do.

use gesta_projection::Target as _;
use gesta_projection::testing::conformance::Factory;

use crate::databases::Databases;
use crate::flavour::Target;

impl Factory for Databases {
    type Target = Target;

    async fn target(&self) -> Target {
        let target = self.make().await;
        target.migrate().await.expect("made");
        target
    }

    async fn count(&self, _: &Target, name: &str) -> Option<i64> {
        let sql = format!("SELECT count(*) FROM {name}");
        let row = self.open().await.query_one(&sql, &[]).await.ok()?;
        Some(row.get(0))
    }
}

gesta_projection::target_conformance!(Databases::new());
