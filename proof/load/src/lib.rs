//! Load: who asks what of a store or an application, when, and what is counted.
//!
//! * [`scenario`] and [`engine`]: any HTTP service; what virtual users ask stands in a file, when they ask in a
//!   schedule;
//! * [`target`]: events appended to any store, Gesta's or another's, and compared with what was acknowledged;
//! * [`entities`]: commands to entities of this process;
//! * [`cinema`]: users who reserve seats over HTTP, and whether all answers can be true;
//! * [`machine`]: programs, databases, and the ways to them; [`counters`]: what the database counts meanwhile.
//!
//! A request of an open loop is intended at its place in the schedule, whatever has become of those before it, and its
//! latency counts from there: a service that answers late cannot keep requests from being counted.
//! Not here: what is measured (`gesta-lab`), and what is done to a store meanwhile (`gesta-chaos`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a load that stumbles should stop and say where"
)]
#![allow(
    clippy::cast_precision_loss,
    reason = "counts and bytes of a run have fewer than 53 bits"
)]
#![allow(
    missing_debug_implementations,
    reason = "connections and generators have nothing to show"
)]

mod check;
pub mod cinema;
mod client;
pub mod counters;
mod csv;
mod document;
pub mod engine;
pub mod entities;
pub mod event_ids;
mod feeder;
pub mod figures;
mod json;
pub mod machine;
pub mod pool;
pub mod random;
pub mod scenario;
pub mod schedule;
pub mod sizes;
mod step;
pub mod target;
mod template;

pub use client::{Connection, SendError, Target, TargetOptions};
pub use document::Refusal;
