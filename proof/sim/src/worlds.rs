//! The worlds of the simulation.

pub mod gather;
pub mod groups;
pub mod link;
pub mod membership;
pub mod moves;
pub mod pipeline;

use crate::driver::World;

/// All worlds.
pub static ALL: [&World; 6] = [
    &pipeline::WORLD,
    &link::WORLD,
    &membership::WORLD,
    &groups::WORLD,
    &moves::WORLD,
    &gather::WORLD,
];

/// Returns the world with this name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static World> {
    ALL.into_iter().find(|world| world.name == name)
}
