//! The cinema: shows whose seats are reserved and given back, as an example of an application on event-sourced entities.
//!
//! Read `domain` first: it is all of the application's rules. Then `events` (how they are stored), `shows` (how shows
//! run), `read_model` (what is derived from them), `http` (how they are reached).

pub mod application;
pub mod domain;
pub mod events;
pub mod http;
pub mod messages;
pub mod metrics;
pub mod read_model;
pub mod shows;
