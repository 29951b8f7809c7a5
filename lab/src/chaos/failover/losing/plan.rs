//! What happens in a round.

use serde::Serialize;
use gesta_load::random::Random;

use crate::chaos::failover::FailoverArgs;

/// What becomes of the primaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Loss {
    /// `kill -9` of all its processes.
    Killed,
    /// It goes on, and nobody reaches it.
    CutOff,
    /// It is killed, and so is the standby in its place, after it has been worked with; the next one has nothing of
    /// what was stored there, nor of the history that began there.
    Twice,
}

/// What happens in a round.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) loss: Loss,
    /// The databases that fail over.
    pub(super) databases: Vec<usize>,
    /// The server that is killed before, and started afterwards.
    pub(super) restarted: Option<usize>,
    /// A log moves to another database before, so that its arrival may be lost, or its leaving.
    pub(super) moves: bool,
    /// Who was away comes back when the new history is longer than the lost one, and not at once.
    pub(super) late: bool,
}

impl Plan {
    /// True if what is stored after the promotion is lost, too.
    pub(super) fn loses_twice(&self) -> bool {
        self.loss == Loss::Twice
    }

    /// Draws the plan of a round.
    pub(super) fn draw(
        random: &mut Random,
        number: u32,
        args: &FailoverArgs,
        servers: usize,
    ) -> Self {
        let databases = usize::from(args.databases);
        let first = random.below(databases);
        let all = [Loss::Killed, Loss::CutOff, Loss::Twice];
        let losses = match args.members {
            2 => &all[..2],
            _ => &all[..],
        };
        Self {
            loss: losses[random.below(losses.len())],
            databases: match random.below(3) {
                0 => (0..databases).collect(),
                _ => vec![first],
            },
            restarted: (random.below(2) == 0).then(|| random.below(servers)),
            moves: databases > 1 && random.below(3) == 0,
            late: number.is_multiple_of(2),
        }
    }
}
