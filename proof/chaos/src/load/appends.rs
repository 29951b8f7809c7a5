//! Appends with all kinds of claims, registers and looks at the ends of streams, and tails that must see every event.
//!
//! Nodes share the writers, each of which turns to another node when one fails; servers that are each for themselves
//! have writers of their own, so that an outcome that is unknown without need has somebody to blame. Under Patroni one
//! server gets all appends, and the others are idle but for their subscribers.

#[cfg(test)]
pub(crate) mod breach;
mod crew;
pub(crate) mod record;
pub(crate) mod tails;
#[cfg(test)]
mod tests;
mod turning;
pub(crate) mod writers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use gesta_core::Checkpoint;
use gesta_kit::verdict::Verdict;
use gesta_report::failure::{Result, fail};

use self::record::{COUNTED, Record};
use self::tails::Manner;
use self::writers::Claims;
use super::{FaultEffects, Load, StretchReport};
use crate::history_file::HistoryFile;
use crate::per_fault::lost_and_doubled;
use crate::world::World;

pub use self::crew::Crew;
pub(crate) use self::crew::read_on;
pub use self::turning::{Answered, Longest, NodeCrew, Prober};

/// Who does the appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Through {
    /// Writers turn to another node when one fails.
    AnyNode,
    /// Each server has writers of its own.
    EachServer,
    /// The first server.
    TheFirst,
}

/// The load.
pub(crate) struct Appends {
    through: Through,
    writers: u16,
    pause: Duration,
    seed: u64,
    /// For how long a probe is tried again that was not answered.
    probe_patience: Duration,
    history: HistoryFile,
    /// What was stored before the present stretch ends here.
    at: Option<Checkpoint>,
    work: Option<Work>,
    /// By the way to the store and by what is counted, of the stretches that are over.
    counts: Vec<(String, [u64; COUNTED.len()])>,
    resumed: u64,
}

/// Who works in a stretch.
enum Work {
    Nodes { crew: NodeCrew, prober: Prober },
    Servers(Crew),
}

impl Work {
    fn crew(&mut self) -> &mut Crew {
        match self {
            Self::Nodes { crew, .. } => &mut crew.crew,
            Self::Servers(crew) => crew,
        }
    }
}

impl Appends {
    /// So many writers, with this pause between two appends of each.
    pub(crate) fn new(
        through: Through,
        (writers, pause): (u16, Duration),
        seed: u64,
        probe_patience: Duration,
        history: HistoryFile,
    ) -> Self {
        Self {
            through,
            writers,
            pause,
            seed,
            probe_patience,
            history,
            at: None,
            work: None,
            counts: Vec::new(),
            resumed: 0,
        }
    }

    /// Writers and tails of servers that are each for themselves.
    fn servers(&self, world: &World, seed: u64) -> Result<Crew> {
        let (mut crew, ways) = (Crew::new(seed), world.ways());
        let is_each = self.through == Through::EachServer;
        for way in &ways {
            let manners: &[(&str, Manner)] = match is_each {
                true => &[
                    ("restless subscriber", Manner::SubscribeRestless),
                    ("subscriber", Manner::Subscribe),
                    ("poller", Manner::Poll),
                ],
                false => &[("subscriber", Manner::Subscribe)],
            };
            for (name, manner) in manners {
                let name = format!("{name} of {}", way.name);
                crew.follow(name, *manner, way.client()?, self.at.clone());
            }
        }
        let asked = if is_each { ways.len() } else { 1 };
        let asked = ways.iter().take(asked).cycle();
        for way in asked.take(usize::from(self.writers)) {
            crew.write(&way.name, way.client()?, Claims::Mixed, self.pause);
        }
        Ok(crew)
    }

    fn count(&mut self, record: &Record, world: &World) {
        let ways = match self.through {
            Through::AnyNode => vec!["any node".to_owned()],
            _ => world.ways().into_iter().map(|way| way.name).collect(),
        };
        for way in ways {
            let counted = COUNTED.map(|what| record.counted(&way, what));
            match self.counts.iter_mut().find(|(name, _)| *name == way) {
                Some((_, sums)) => sums
                    .iter_mut()
                    .zip(counted)
                    .for_each(|(sum, one)| *sum += one),
                None => self.counts.push((way, counted)),
            }
        }
        self.resumed += record.resumed();
    }
}

#[async_trait(?Send)]
impl Load for Appends {
    async fn begin(&mut self, world: &World, stretch: u32) -> Result<()> {
        let seed = self.seed ^ (u64::from(stretch) << 32);
        let work = match self.through {
            Through::AnyNode => {
                let (ways, writers) = (world.ways(), usize::from(self.writers));
                let mut crew = NodeCrew::start(&ways, writers, seed, self.at.as_ref(), self.pause)?;
                crew.crew.history = self.history.clone();
                let prober = Prober::new(&crew, &ways, world.logs, self.probe_patience)?;
                Work::Nodes { crew, prober }
            }
            _ => {
                let mut crew = self.servers(world, seed)?;
                crew.history = self.history.clone();
                Work::Servers(crew)
            }
        };
        self.work = Some(work);
        Ok(())
    }

    async fn goes_on(&mut self, within: Duration) -> Result<Duration> {
        match &mut self.work {
            Some(work) => work.crew().goes_on_within(within).await,
            None => fail("nobody appends"),
        }
    }

    async fn end(&mut self, world: &World, hurt: &FaultEffects) -> Result<StretchReport> {
        let Some(mut work) = self.work.take() else {
            return fail("nobody appends");
        };
        work.crew().end_writers().await?;
        let record = Arc::clone(&work.crew().record);
        let way = world.ways();
        let Some(way) = way.first() else {
            return fail("nobody serves the store");
        };
        let store = way.client()?;
        let (mut shown, crew) = match work {
            Work::Nodes { crew, .. } => (of_nodes(&crew, hurt), crew.crew),
            Work::Servers(crew) => (StretchReport::default(), crew),
        };
        let (verdict, mut problems) = crew.verdict(&store, &mut self.at).await?;
        let before = record.violations().1;
        let names: Vec<String> = world.ways().into_iter().map(|way| way.name).collect();
        record.settle_unknown(&hurt.excused, &names);
        problems.extend(record.violations().0.into_iter().skip(before));
        if self.through != Through::AnyNode {
            let unknown = names
                .iter()
                .map(|name| record.counted(name, "unknown (excused)"));
            shown.unknown = unknown.sum();
        }
        self.count(&record, world);
        Ok(judged(shown, &verdict, problems))
    }

    async fn finish(&mut self, _: &World, is_stopped: bool) -> Result<StretchReport> {
        if !is_stopped {
            return Ok(StretchReport::default());
        }
        let counts = self.counts.iter().map(|(way, counts)| {
            let counts = COUNTED.iter().zip(counts);
            let counts = counts.map(|(what, count)| format!("{what} {count}"));
            format!("{way}: {}", counts.collect::<Vec<_>>().join(", "))
        });
        let counts = counts.collect::<Vec<_>>().join("; ");
        Ok(StretchReport {
            told: format!(
                "Appends through {counts}. Tails resumed {} times.",
                self.resumed
            ),
            ..StretchReport::default()
        })
    }

    fn let_go(&mut self) {
        if let Some(work) = &mut self.work {
            work.crew().let_go();
        }
    }

    fn answered(&self) -> Vec<Instant> {
        let record = match &self.work {
            Some(Work::Nodes { crew, .. }) => &crew.crew.record,
            Some(Work::Servers(crew)) => &crew.record,
            None => return Vec::new(),
        };
        let appends = record.acknowledged();
        appends.iter().map(|append| append.answered).collect()
    }

    fn prober(&self) -> Option<&Prober> {
        match &self.work {
            Some(Work::Nodes { prober, .. }) => Some(prober),
            _ => None,
        }
    }
}

/// What only writers that turn to other nodes can tell.
fn of_nodes(crew: &NodeCrew, hurt: &FaultEffects) -> StretchReport {
    let errors = crew.errors();
    let unknown = errors
        .iter()
        .filter(|(told, _)| told.contains("outcome unknown"));
    let longest = crew.longest();
    let is_hurt = |member: &usize| hurt.members.contains(member);
    let elsewhere = longest
        .iter()
        .filter(|(asked, _)| !asked.iter().any(is_hurt));
    StretchReport {
        unknown: unknown.map(|(_, count)| count).sum(),
        longest_elsewhere: elsewhere.map(|(_, longest)| *longest).max(),
        longest: longest.values().copied().max(),
        ..StretchReport::default()
    }
}

fn judged(shown: StretchReport, verdict: &Verdict, problems: Vec<String>) -> StretchReport {
    let [lost, doubled] = lost_and_doubled(verdict);
    StretchReport {
        acknowledged: verdict.acknowledged as u64,
        lost,
        doubled,
        events: verdict.events_stored as u64,
        told: verdict.to_string(),
        problems,
        ..shown
    }
}
