//! The append pipeline, and nodes that forward to each other.
//!
//! The pure core of the pipeline runs in several simulated processes against one simulated database. Everything that
//! can happen, happens in an order that a random generator gives: commits, misses, lost and late statements, deadlines
//! that pass late, failing reads, fail-overs that lose commits, scavenging, restarts, retries. Every answer is checked
//! against a model of the contract.
//!
//! A schedule has one of two forms. In one form, the processes know nothing of each other. In the other they are
//! *nodes*: callers come to any of them, and calls travel on lanes, by the cores of `gesta-link` and `gesta-node`, to
//! the node that is taken for the owner of the log. Then links break, fall silent in one direction and heal, nodes die,
//! come back and shut down in order, deadlines pass, and calls that come back are appended directly.
//!
//! The membership of `gesta-cluster`, which has a world of its own, does not decide who owns the log. An adversary
//! does, which tells any node anything at any time: two nodes own the log, or none; news is late, old or contradictory;
//! the log moves while calls are in flight. For safety this is stronger than the real membership, since a lease is
//! never evidence.
//!
//! Each process has clocks of its own, which drift, are set, and stand still while the process sleeps. In some
//! schedules the deduplication window is so narrow that events leave it. All processes may die together with what they
//! alone knew of the newest events. Subscribers live longer than processes: they resume elsewhere, by their
//! checkpoints.
//!
//! Not simulated: frames and bytes of links, their dialler and its pings, the pace of direct appends, entities.
//!
//! * `schedule`: what may happen, and what a schedule has more of than others; `process`, `clock`, `hub`, `nodes`,
//!   `database`: the parts to which it happens;
//! * `archive`: what was ever stored; `model`: what was promised.

pub mod archive;
pub mod clock;
pub mod database;
pub mod hub;
pub mod model;
pub mod nodes;
pub mod process;
pub mod schedule;

use self::schedule::Form as Kind;
use crate::driver::{Form, World};

/// The world.
pub static WORLD: World = World {
    name: "pipeline",
    forms: &[
        Form {
            name: "processes",
            turns: 1,
            run: |schedule| schedule::run(Kind::Processes, schedule),
        },
        Form {
            name: "nodes",
            turns: 1,
            run: |schedule| schedule::run(Kind::Nodes, schedule),
        },
    ],
};
