//! What a command that proves or measures says, and what it needs to say it.
//!
//! Why: the lab and chaos tell what they found in the same form: one [`Report`], which the terminal, a line of JSON and
//! a page all show as it is. With it come the facts that a figure is nothing without ([`host`], [`StoreFacts`]), the
//! units in which people write and read figures ([`units`], [`histogram`]), and the sentence in which a command ends
//! that could not work ([`failure`]).
//! Not here: what is measured, and what is done to a store.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a command that stumbles should stop and say where"
)]
#![allow(
    clippy::cast_precision_loss,
    reason = "counts and bytes of a run have fewer than 53 bits"
)]

mod chart;
mod duration;
pub mod endpoint;
mod facts;
pub mod failure;
pub mod file;
pub mod histogram;
pub mod host;
mod listing;
pub mod numbers;
pub mod page;
pub mod read_back;
mod report;
pub mod results;
pub mod secrets;
pub mod stop;
mod table;
pub mod units;

pub use chart::{Chart, Mark, Scale, Shape};
pub use facts::StoreFacts;
pub use listing::Listing;
pub use numbers::Unit;
pub use report::{Check, FORMAT, Fact, Part, Report, ReportArgs};
pub use table::{Cell, Column, Row, Table, Whose, causes, name_of};
