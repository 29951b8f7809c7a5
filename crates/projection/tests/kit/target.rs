//! The target does what every target must do.

use gesta_projection::Target as _;
use gesta_projection::testing::conformance::Factory;

use super::databases::Databases;
use crate::flavour::Target;

impl Factory for Databases {
    type Target = Target;

    async fn target(&self) -> Target {
        let target = self.make().await;
        target.migrate().await.expect("made");
        target
    }

    async fn until_one_waits(&self, target: &Target) {
        self.last().until_one_waits(target).await;
    }

    async fn count(&self, _: &Target, name: &str) -> Option<i64> {
        self.last().count(name).await
    }
}

gesta_projection::target_conformance!(Databases::default());
