//! Emmett: its PostgreSQL event store in one Node.js process, a connection for each worker.

use async_trait::async_trait;
use gesta_report::failure::Result;

use crate::driver::Driver;
use crate::peer::{About, Measured, Peer, Round};
use crate::world::World;

/// Its positions in a stream begin with 1.
const READ: &str = "SELECT stream_id, stream_position - 1, message_data->>'mark' FROM emt_messages";

/// Emmett.
pub(super) fn emmett() -> Box<dyn Peer> {
    Box::new(Emmett {
        driver: Driver::default(),
    })
}

struct Emmett {
    driver: Driver,
}

#[async_trait]
impl Peer for Emmett {
    fn name(&self) -> &'static str {
        "emmett"
    }

    fn title(&self) -> &'static str {
        "Emmett on PostgreSQL"
    }

    async fn start(&mut self, world: &mut World) -> Result<About> {
        let package = "node_modules/@event-driven-io/emmett-postgresql/package.json";
        let version = world.npm_version("emmett", package)?;
        let modules = world.installed("emmett", "node_modules")?;
        let arguments = vec![World::driver("emmett.mjs"), modules];
        self.driver
            .start(world, "emmett", "node".as_ref(), arguments)?;
        let note = "one Node.js process, a connection for each worker";
        Ok(About::on(world.engine().await?, &version, note))
    }

    async fn measure(&mut self, round: &Round<'_>) -> Result<Measured> {
        self.driver.measure(READ, round).await
    }

    async fn end(&mut self, world: &mut World) -> Result<()> {
        self.driver.end(world)
    }
}
