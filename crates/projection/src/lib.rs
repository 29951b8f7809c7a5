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
//! * `target`: what a database has to offer; `definition`, `state`, `error`: the types of both;
//! * `projections`, `running`, `control`: what an application calls; `config`, `begin_at`, `progress`: its settings and
//!   what it sees; `registrar`: what is registered before they run; `view_reader`: the rows of views, for readers;
//!   `effects`: how effects are run; `report`, `api`: what operators see, and HTTP;
//! * `drive`: the task of one projection; `reader`: what it reads; `work`, `view_work`: how it folds and writes;
//!   `index`: rows of JSON paths, without code; `unit`: views, projections and indexes without their types; `lag`: how
//!   far one is behind; `filter_text`: stored filters;
//!   `looks`: states, leases and commands; `fault`: what goes wrong;
//! * `testing`: tests of projections.

mod api;
mod batch;
mod begin_at;
mod config;
mod control;
mod definition;
mod drive;
mod effect;
mod effects;
mod error;
mod fault;
mod filter_text;
mod index;
mod lag;
mod looks;
mod one_log;
mod progress;
mod projection;
mod projections;
mod reader;
mod registrar;
mod report;
mod row;
mod running;
mod state;
mod target;
pub mod testing;
mod unit;
mod value;
mod view;
mod view_reader;
mod view_work;
mod work;

pub use api::{API_CALLER_WAITERS_MAX, API_WAIT_MAX, API_WAITERS_MAX, Answer, Api, Request};
pub use batch::{Batch, covers};
pub use begin_at::BeginAt;
pub use config::{Config, OnPoison, OnRestore};
pub use control::Control;
pub use definition::{
    NAME_BYTES_MAX, ProjectionId, Registration, Table, category, check_name, made_with,
};
pub use effect::Effect;
pub use effects::{Effects, RunningEffects};
pub use error::{ApplyError, ERROR_BYTES_MAX, Error, TargetError, TargetErrorKind, older_tables};
pub use filter_text::{filter_from_text, filter_to_text};
pub use index::{
    Find, FoundEvents, INDEX_PAGE_MAX, INDEX_PATHS_MAX, INDEX_TEXT_BYTES_MAX, Index, IndexPath,
};
pub use lag::{LAG_PAGES_MAX, Lag};
pub use progress::{Phase, Progress};
pub use projection::Projection;
pub use projections::Projections;
pub use report::{EventReport, PARKED_COUNTED_MAX, ParkedReport, VersionReport, metrics_text};
#[doc(hidden)]
pub use row::read_cell;
pub use row::{Cells, Found, Key, KeyedRows, Keys, Row};
pub use running::Running;
pub use state::{Life, State, UnknownWord};
pub use target::{
    Attempt, Begin, Command, Fence, Order, Parked, Seen, Session, Stored, SwitchFrom, Switched,
    Target,
};
pub use value::{Cell, Column, Json, Kind, OwnedValue, Value};
pub use view::View;
pub use view_reader::{VIEW_PAGE_MAX, ViewReader};
