//! A store in several databases, each of which holds some of its logs: one backend out of all, making such a store, and
//! moving logs. A store in one database is the simplest case of it, so that who opens stores need not tell them apart.
//!
//! Why: a store can outgrow one database server. Each log lies whole in one database, and nothing is joined across
//! them, so every one stays a plain server with its own backups and its own fail-over. All that is above a
//! [`Backend`](gesta_core::backend::Backend) sees one backend with all logs.
//! Invariants: a call about a log touches the database of that log and no other, so that a database that is away stops
//! only its own logs; what is about all logs asks all databases at once, and fails if one is away; the databases agree
//! on the map of the logs, which is checked before anything is served.
//!
//! `store` opens the databases, `schema` makes them; `backend` passes each call on to the database of its log, which
//! `route` finds by the map, asking all databases what they hold (`check`, `contents`) when one was set back; `mover`
//! moves a log, step by step, and `moving` says which step is next. What routes and what decides about moves knows a
//! database by [`Backend`](gesta_core::backend::Backend) and `KeepsMap` alone, so that random tests put a model in its
//! place. Not here: what one database does.

mod audit;
pub(crate) mod backend;
mod check;
mod contents;
mod info;
mod leases;
mod mover;
pub(crate) mod moving;
pub(crate) mod route;
mod schema;
mod store;
mod writer;

pub use check::OpenCopy;
pub use mover::{MoveTo, Moved, Mover, add, move_log};
pub use moving::{Loss, Step};
pub use schema::{create, ddl, migrate, new_incarnation};
pub use store::Databases;
