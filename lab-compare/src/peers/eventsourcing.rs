//! Python `eventsourcing`: its PostgreSQL application recorder, from as many processes as there are processors, each
//! with threads.

use async_trait::async_trait;
use gesta_report::failure::Result;

use crate::driver::Driver;
use crate::peer::{About, Measured, Peer, Round};
use crate::world::World;

/// Its versions begin with 1.
const READ: &str = "SELECT replace(originator_id::text, '-', ''), originator_version - 1,
     convert_from(state, 'UTF8')::json->>'mark' FROM stored_events";

/// As it is by default: each append locks the table of events.
pub(super) fn plain() -> Box<dyn Peer> {
    peer(
        "eventsourcing",
        "Python eventsourcing",
        "eventsourcing",
        Functions::No,
    )
}

/// With its functions in the database.
pub(super) fn functions() -> Box<dyn Peer> {
    let name = "eventsourcing-functions";
    peer(
        name,
        "Python eventsourcing, ENABLE_DB_FUNCTIONS",
        "eventsourcing_functions",
        Functions::Yes,
    )
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Functions {
    Yes,
    No,
}

fn peer(
    name: &'static str,
    title: &'static str,
    database: &'static str,
    functions: Functions,
) -> Box<dyn Peer> {
    let driver = Driver::with([("db_functions", functions == Functions::Yes)]);
    Box::new(EventSourcing {
        name,
        title,
        database,
        driver,
    })
}

struct EventSourcing {
    name: &'static str,
    title: &'static str,
    database: &'static str,
    driver: Driver,
}

#[async_trait]
impl Peer for EventSourcing {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> &'static str {
        self.title
    }

    async fn start(&mut self, world: &mut World) -> Result<About> {
        let python = world.installed("eventsourcing", "bin/python")?;
        let version = world.python_version("eventsourcing", "eventsourcing")?;
        // Isolated: or else the script, which has the name of the library, would be found in its place.
        let script = World::driver("eventsourcing.py");
        self.driver
            .start(world, self.database, &python, vec!["-I".into(), script])?;
        let note = "as many processes as processors, threads in them, a connection for each worker";
        Ok(About::on(world.engine().await?, &version, note))
    }

    async fn measure(&mut self, round: &Round<'_>) -> Result<Measured> {
        self.driver.measure(READ, round).await
    }

    async fn end(&mut self, world: &mut World) -> Result<()> {
        self.driver.end(world)
    }
}
