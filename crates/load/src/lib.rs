//! Load on any HTTP service: what virtual users ask stands in a scenario file, when they ask in a schedule.
//!
//! Read [`scenario`] first (what a file says), then [`engine`] (how users ask), then [`figures`] (what is counted).
//! A request of the open loop is intended at its place in the schedule, whatever has become of those before it, and
//! its latency counts from there: a service that answers late cannot keep requests from being counted.
//! Not here: the command and its report (`gesta-lab`), which judge the figures.

mod check;
mod client;
mod csv;
mod document;
pub mod duration;
pub mod engine;
mod feeder;
pub mod figures;
pub mod file;
pub mod histogram;
mod json;
pub mod pool;
pub mod random;
pub mod scenario;
pub mod schedule;
pub mod secrets;
mod step;
mod template;

pub use client::{Connection, SendError, Target, TargetOptions};
pub use document::Refusal;
