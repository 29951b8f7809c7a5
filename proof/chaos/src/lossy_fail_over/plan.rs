//! What happens in a round that loses commits, beside the fault.

use gesta_load::random::Random;

use crate::world::World;

/// What happens in a round.
#[derive(Debug)]
pub(super) struct Plan {
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
    /// Draws the plan of a round.
    pub(super) fn draw(random: &mut Random, number: u32, world: &World) -> Self {
        let databases = world.databases.len();
        let first = random.below(databases);
        Self {
            databases: match random.below(3) {
                0 => (0..databases).collect(),
                _ => vec![first],
            },
            restarted: (random.below(2) == 0).then(|| random.below(world.members.len())),
            moves: databases > 1 && random.below(3) == 0,
            late: number.is_multiple_of(2),
        }
    }
}
