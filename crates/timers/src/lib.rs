//! Timers that survive: something is done at a later time, at least once, whatever dies meanwhile.
//!
//! Why: a rule that waits (*cancel what is not paid after 30 minutes*) has nobody who wakes. A task that sleeps dies
//! with its process, and a table that is polled costs a query a second for each program.
//! Invariants: a timer is an event before its caller is told that it is set. It fires at least once, and never before
//! its time by the clock of the process that fires it. Of all processes that run timers of one name one fires, and its
//! states have one writer: each is appended under the revision of the one before, so of two that take each other for
//! dead one finds out at its next state, and stops. What an owner stores, it stores in the history of the store in
//! which it has read the timers and has fired them: after a loss it reads again. A request that cannot be read is
//! skipped and told of, and holds up no other. Nothing fires before everything that was set or cancelled until then was
//! read, as long as there is room for what is pending. Both streams lie in one log, so a loss never leaves the cut of
//! one without what was stored before it in the other. Without timers nothing is asked of the store and nothing is
//! stored. Not here: what is done (the application, usually by a command to an entity).
//!
//! Two streams hold the timers of one name. *Requests* (`$timers-{NAME}`) are appended by anybody: a timer is set, or
//! cancelled. *States* (`$timers-{NAME}-state`) are appended by the owner: that it lives, what has fired, and from time
//! to time all timers that are pending, so that a start reads little and both streams can be cut.
//!
//! * `timer`: what is set, and what fires; `data`: what it carries; `timers`: what an application calls; `running`: a
//!   running service;
//! * `book`: the timers that are pending, pure; `record`: how requests and states are stored;
//! * `requests`, `states`: the two streams; `load`: what both say at a start; `owner`: the task that claims, fires and
//!   hands over; `lease`: by what it owns them; `firing`: the handlers that run.

mod book;
mod config;
#[doc(hidden)]
pub mod core;
mod data;
mod firing;
mod lease;
mod load;
mod owner;
mod record;
mod requests;
mod running;
mod states;
mod timer;
mod timers;

pub use config::Config;
pub use running::{Phase, RunningTimers, Status};
pub use timer::{DATA_BYTES_MAX, DATA_DEPTH_MAX, FireError, KEY_BYTES_MAX, NewTimer, Timer};
pub use timers::{NAME_BYTES_MAX, Timers};
