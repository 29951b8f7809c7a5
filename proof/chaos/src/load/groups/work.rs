//! Who works in one stretch, and how long logs and streams are.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{EventStore as _, Position, ReadStream, Revision, StreamId};
use gesta_load::machine::ask::until;
use gesta_report::failure::Result;

use super::commands::{CALLERS, Commands};
use super::{Standing, WORK_STREAMS};
use crate::load::appends::Crew;
use crate::load::appends::writers::{Claims, work_stream};
use crate::world::Way;

/// Appends and commands that are answered between two steps of a round.
const APPENDS: usize = 40;
const COMMANDS: u64 = 20;

/// How long logs and streams are.
pub(crate) struct Extent {
    heads: Vec<Position>,
    revisions: Vec<Option<Revision>>,
}

impl Extent {
    /// Asks a server.
    pub(crate) async fn of(way: &Way) -> Result<Self> {
        let store = way.connect()?;
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
    pub(crate) fn exceeds(&self, before: &Self, furthest: u64) -> bool {
        if self.revisions[0].is_none_or(|revision| revision.0 <= furthest) {
            return false;
        }
        let mut logs = self.heads.iter().zip(&before.heads);
        let mut streams = self.revisions.iter().zip(&before.revisions);
        logs.all(|(now, before)| now > before) && streams.all(|(now, before)| now > before)
    }
}

/// Writers, and callers of entities if this process has some.
pub(super) struct Work {
    pub(super) crew: Crew,
    pub(super) commands: Option<Commands>,
    /// Deliveries and answers of the operator before it.
    pub(super) deliveries: u64,
    pub(super) answers: u64,
}

impl Work {
    /// Starts it.
    pub(super) fn start(
        standing: &Standing,
        ways: &[Way],
        pace: (u16, Duration),
        seed: u64,
        stretch: u32,
    ) -> Result<Self> {
        let own = standing.own.as_ref();
        let mut work = Self {
            crew: Crew::new(seed ^ (u64::from(stretch) << 32)),
            commands: own.map(|own| Commands::start(&own.entities, stretch)),
            deliveries: standing.consumers.deliveries(),
            answers: standing.operator.given().values().sum(),
        };
        work.write(ways, pace)?;
        Ok(work)
    }

    /// So many writers begin, shared equally among these ways, with this pause between two appends of each.
    pub(super) fn write(&mut self, ways: &[Way], (writers, pause): (u16, Duration)) -> Result<()> {
        for (writer, way) in (0..usize::from(writers)).zip(ways.iter().cycle()) {
            let claims = match writer / ways.len() % 2 {
                0 => Claims::Work(WORK_STREAMS),
                _ => Claims::Nothing,
            };
            self.crew.write(&way.name, way.client()?, claims, pause);
        }
        Ok(())
    }

    /// Waits until more appends and commands are answered, some of which were begun in between, and every writer has
    /// had an answer. Perhaps a server does not live, so that appends do not count.
    pub(super) async fn goes_on(&self, is_alone: bool, within: Duration) -> Result<()> {
        let record = Arc::clone(&self.crew.record);
        let appends = || record.acknowledged().len();
        let commands = || self.commands.as_ref().map_or(0, Commands::answered);
        let (appended, commanded) = (appends(), commands());
        let enough = async || {
            let is_appended = is_alone || appends() >= appended + APPENDS;
            let is_commanded =
                self.commands.is_none() || commands() >= commanded + COMMANDS + u64::from(CALLERS);
            is_appended && is_commanded
        };
        until("appends and commands are answered", within, enough).await?;
        if !is_alone {
            self.crew.goes_on_within(within).await?;
        }
        Ok(())
    }
}
