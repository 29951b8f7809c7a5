//! The cinema: shows whose seats are reserved and given back, as an example of an application on event-sourced
//! entities.
//!
//! Read the modules in this order: `domain` (all of the rules, pure), `events` (how they are stored), `shows` (how
//! shows run on a store), `read_model` (what is derived from their events), `payments` (what waits: a reservation that
//! is not paid is given back), `http` (how users reach them), `application` (how all of it is started and stopped).

pub mod application;
pub mod config;
pub mod domain;
mod error;
pub mod events;
pub mod http;
mod messages;
mod metrics;
pub mod payments;
pub mod read_model;
pub mod shows;
