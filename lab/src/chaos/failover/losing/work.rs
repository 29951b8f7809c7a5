//! What runs in one round, and how long logs and streams are.

use std::time::Duration;

use gesta_core::{EventStore as _, Position, ReadStream, Revision, StreamId};
use gesta_report::failure::Result;
use gesta_load::machine::ask::until;

use super::{PATIENCE, Rounds, WORK_STREAMS};
use crate::chaos::failover::commands::{CALLERS, Commands};
use crate::cluster::load::{Way, client, connect};
use crate::faults::load::Load;
use crate::faults::writers::{Claims, work_stream};

/// Appends and commands that are answered between two steps of a round.
const APPENDS: usize = 40;
const COMMANDS: u64 = 20;
/// Pause between two appends of a writer.
const PAUSE: Duration = Duration::from_millis(10);

/// How long logs and streams are.
pub(super) struct Extent {
    heads: Vec<Position>,
    revisions: Vec<Option<Revision>>,
}

impl Extent {
    /// Asks a server.
    pub(super) async fn of(way: &Way) -> Result<Self> {
        let store = connect(way)?;
        let mut revisions = Vec::new();
        for number in 0..WORK_STREAMS {
            let stream = StreamId::new(work_stream(number))?;
            let newest = ReadStream::backwards(stream).limit(1);
            let page = store.read_stream(newest).await?;
            revisions.push(page.events.first().map(|event| event.revision));
        }
        Ok(Self {
            heads: store.info().await?.heads,
            revisions,
        })
    }

    /// True if every place that was there before is there again, and more; in the first stream also this revision, the
    /// greatest that a subscriber has seen.
    pub(super) fn exceeds(&self, before: &Self, furthest: u64) -> bool {
        if self.revisions[0].is_none_or(|revision| revision.0 <= furthest) {
            return false;
        }
        let mut logs = self.heads.iter().zip(&before.heads);
        let mut streams = self.revisions.iter().zip(&before.revisions);
        logs.all(|(now, before)| now > before) && streams.all(|(now, before)| now > before)
    }
}

/// What runs in one round.
pub(super) struct Work {
    pub(super) load: Load,
    pub(super) commands: Commands,
    /// Deliveries and answers before it.
    pub(super) deliveries: u64,
    pub(super) answers: u64,
}

impl Work {
    /// Starts it.
    pub(super) fn start(rounds: &Rounds<'_>, number: u32) -> Result<Self> {
        let mut load = Load::new(rounds.args.seed ^ (u64::from(number) << 32));
        let ways = rounds.world.ways();
        for writer in 0..usize::from(rounds.args.writers) {
            let way = &ways[writer % ways.len()];
            let claims = match writer / ways.len() % 2 {
                0 => Claims::Work(WORK_STREAMS),
                _ => Claims::Nothing,
            };
            load.write(&way.name, client(way)?, claims, PAUSE);
        }
        Ok(Self {
            load,
            commands: Commands::start(&rounds.entities, number),
            deliveries: rounds.groups.deliveries(),
            answers: rounds.operator.given().values().sum(),
        })
    }

    /// Waits until more appends and commands are answered, some of which were begun in between.
    pub(super) async fn goes_on(&self) -> Result<()> {
        self.goes_on_without(false).await
    }

    /// The same; perhaps no server lives, so that nobody appends but entities.
    pub(super) async fn goes_on_without(&self, servers: bool) -> Result<()> {
        let appends = || self.load.record.acknowledged().len();
        let (appended, commanded) = (appends(), self.commands.answered());
        let enough = async || {
            let is_appended = servers || appends() >= appended + APPENDS;
            is_appended && self.commands.answered() >= commanded + COMMANDS + u64::from(CALLERS)
        };
        until("appends and commands are answered", PATIENCE, enough).await
    }
}
