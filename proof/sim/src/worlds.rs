//! The worlds of the simulation.

pub mod pipeline;
