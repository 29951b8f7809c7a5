//! Tests of projections: given events, then rows; and, with the feature `testkit`, histories with crashes.
//!
//! * `given`: a view without a database; `faulty`: a target that dies at a chosen call; `restorable`: a store that is
//!   restored while it is used; `kit`: random histories; `conformance`: what every target must do, with the rows of
//!   `sample`.

#[cfg(feature = "testkit")]
pub mod conformance;
#[cfg(feature = "testkit")]
mod faulty;
mod given;
#[cfg(feature = "testkit")]
mod kit;
#[cfg(feature = "testkit")]
mod restorable;
#[cfg(feature = "testkit")]
mod sample;

#[cfg(feature = "testkit")]
pub use faulty::{Fate, Faulty, Through};
pub use given::{Given, History, Refused};
#[cfg(feature = "testkit")]
pub use kit::{Kit, Random, Subject};
#[cfg(feature = "testkit")]
pub use restorable::Restorable;
