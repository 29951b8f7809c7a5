//! Chaos for programs that bring a load of their own: their deciders, their projections, their application.

use std::path::PathBuf;

use clap::Parser as _;
use gesta_report::failure::Result;
use tokio_util::sync::CancellationToken;

use crate::args::ChaosArgs;
use crate::fault::{Fault, WorldKind};
use crate::load::{Load, LoadKind};
use crate::round::{self, Until};

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChaosReport {
    /// Rounds, one fault each.
    pub rounds: u32,
    /// Commands that were acknowledged, as the load has counted them.
    pub acknowledged: u64,
    /// Every promise that was broken, with the round and the fault.
    pub problems: Vec<String>,
}

/// A world to be hurt under a load of one's own.
#[derive(Debug, Clone)]
pub struct Chaos {
    world: WorldKind,
    args: ChaosArgs,
}

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    chaos: ChaosArgs,
}

impl Chaos {
    /// A world of this kind, of its usual size, with its usual faults.
    #[must_use]
    pub fn on(world: WorldKind) -> Self {
        Self {
            world,
            args: Line::parse_from(["chaos"]).chaos,
        }
    }

    /// So many rounds, one fault each; 50 unless said.
    #[must_use]
    pub fn rounds(mut self, rounds: u32) -> Self {
        self.args.rounds = rounds;
        self
    }

    /// Only these faults.
    #[must_use]
    pub fn faults(mut self, faults: impl IntoIterator<Item = Fault>) -> Self {
        self.args.faults = faults.into_iter().collect();
        self
    }

    /// The seed of faults and times.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.args.seed = seed;
        self
    }

    /// The program `gesta`, if it is not beside this one.
    #[must_use]
    pub fn gesta(mut self, program: impl Into<PathBuf>) -> Self {
        self.args.program.gesta = Some(program.into());
        self
    }

    /// Hurts it until all rounds are over or a promise is broken. Dropping the future ends all processes.
    ///
    /// # Errors
    /// The world cannot be started, or none of the faults fits it. A broken promise is no error.
    pub async fn run(self, load: impl Load) -> Result<ChaosReport> {
        let program = self.args.program.find()?;
        let scene = self.args.scene(self.world, LoadKind::Own);
        let until = Until::Rounds(self.args.rounds);
        let stop = CancellationToken::new();
        let load = Box::new(load);
        let outcome = round::run(&self.args, scene, until, load, &program, &stop).await?;
        Ok(ChaosReport {
            rounds: outcome.rounds,
            acknowledged: outcome.acknowledged,
            problems: outcome.problems,
        })
    }
}
