//! Judges: do the facts of a run fit each other and what is stored? Read `order` and `search` first, the two ways in
//! which answers are held against each other; then the judge of what you have.
//!
//! | judge | of | finds |
//! |---|---|---|
//! | `appends` | [`RunHistory`] | lost, doubled, partial, misplaced events; what was refused and is stored; gaps |
//! | `streams`, with it | the same | stale, untrue, reordered answers about streams, by the order of their logs |
//! | [`claims`] | [`Claims`] | the same by counts, and altered contents |
//! | [`tails`] | its tailers, or lists of events | what one missed, got twice, or got after a loss without a word |
//! | [`losses`] | verdicts and stores after a fail-over | what a loss of commits does not excuse |
//! | [`register`], [`seats`] | registers and seats | answers that fit no order of all operations; what is not stored |
//! | [`entities`] | replies that name states | those that rest on what was not so between call and answer |
//! | [`payments`], [`replies`] | [`SeatBook`] | seats not given back in time; replies that fit no place of the log |
//! | [`groups`] | [`Deliveries`] | events neither finished nor parked, parked too often, out of order |
//!
//! [`RunHistory`]: crate::history::RunHistory
//! [`Claims`]: crate::history::Claims
//! [`SeatBook`]: crate::history::payments::SeatBook
//! [`Deliveries`]: crate::history::Deliveries
//!
//! All give a [`Verdict`](crate::verdict::Verdict), or add to one, so that a run with several has one in the end.
//! Invariant: a judge raises no false alarm, whatever was lost, slow or unknown.

mod appends;
pub mod claims;
pub mod entities;
pub mod groups;
pub mod losses;
pub mod order;
pub mod payments;
mod registers;
pub mod replies;
pub mod search;
pub mod seats;
mod streams;
pub mod tails;

pub use appends::stream;
pub use registers::register;
pub use search::Search;
