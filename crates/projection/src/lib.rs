//! Projections: read models whose checkpoint is stored in the transaction of their rows.
//!
//! Why: a loop of subscription, batch, transaction and checkpoint is easy to write and easy to get wrong. Here it is
//! written once: whatever dies, each event has changed the rows once.
//! Invariants: the first statement of each batch is the fence, which moves the checkpoint only if this process owns the
//! projection and the checkpoint is the one that the batch begins after. A checkpoint is never one that this read has
//! not passed. After any failure the stored checkpoint alone says where to go on.
//! Not here: SQL and drivers (the crates of targets).
//!
//! * `view`, `projection`, `effect`: what an author writes; `batch`, `row`, `value`: what it is made of;
//! * `target`: what a database has to offer; `definition`, `state`, `error`: the types of both.

#![allow(dead_code, reason = "what the runner uses comes before it")]

mod batch;
mod definition;
mod effect;
mod error;
mod projection;
mod row;
mod state;
mod target;
mod value;
mod view;

pub use batch::{Batch, covers};
pub use definition::{NAME_BYTES_MAX, ProjectionId, Registration, Table, check_name, made_with};
pub use effect::Effect;
pub use error::{ApplyError, ERROR_BYTES_MAX, Error, TargetError, TargetErrorKind};
pub use projection::Projection;
#[doc(hidden)]
pub use row::read_cell;
pub use row::{Cells, Found, Key, KeyedRows, Keys, Row};
pub use state::{Life, State, UnknownWord};
pub use target::{Begin, Command, Fence, Order, Parked, Session, Stored, Switched, Target};
pub use value::{Cell, Column, Json, Kind, OwnedValue, Value};
pub use view::View;
