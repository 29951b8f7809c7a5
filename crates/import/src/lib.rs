//! Imports the journals of other event stores, and of frameworks that keep events, into any [`EventStore`].
//!
//! Why: who has years of events elsewhere moves only if every event is found again: in its order, with its tags, its
//! metadata and its time, while the old application still writes. How: a *source* reads pages of events in the order of
//! the other journal; the *target* appends each event after the one before it in its stream. Each event carries in its
//! metadata where it stood (`$source`), so the last event of a stream tells what the stream has already.
//!
//! Invariants: an event of the source is stored at most once, however often an import is stopped, killed or repeated:
//! every append names the revision that it expects, and the last event of a stream is compared with what comes. Events
//! of one stream keep their order. A *checkpoint*, an event in a stream of the import's own, is written only after
//! everything before it is durable. A number of the source's order is passed only when nothing can be committed at or
//! before it any more.
//!
//! Not here: the copy of one Gesta store into another, which keeps revisions, positions and times.
//!
//! [`EventStore`]: gesta_core::EventStore

mod checkpoint;
mod convert;
mod digest;
mod event;
mod import;
mod kind;
mod known;
mod names;
mod options;
mod report;
mod source;
mod target;
mod transform;
mod types;

pub use event::{Place, SourceEvent};
pub use import::{Import, Step};
pub use kind::Kind;
pub use names::NameRule;
pub use options::{Deleted, Options, Patience, PlainLogin, Unmappable};
pub use report::{Report, Sample};
pub use transform::Transform;
pub use types::TypeRule;
