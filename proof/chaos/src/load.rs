//! What is asked of a world while it is hurt, and the judgement of its answers.
//!
//! A load works for a *stretch* of one or more rounds; then it ends, everything that it was told is compared with what
//! is stored, and the next stretch begins where the store ends. A load of your own is one more implementation of
//! [`Load`].

pub mod appends;
pub mod groups;
pub(crate) mod payments;
pub(crate) mod seats;

use std::time::{Duration, Instant};

use async_trait::async_trait;
use gesta_report::failure::Result;
use serde::Serialize;

use self::appends::Prober;
use self::groups::Groups;
use crate::world::World;

/// A kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LoadKind {
    /// Appends with all kinds of claims, registers, and subscribers.
    Appends,
    /// Reservations at cinemas: every answer must fit one order of all requests for each seat.
    Seats,
    /// Reservations at cinemas that give back what is not paid in time.
    Payments,
    /// Consumer groups, subscribers over HTTP and gRPC, and entities of this process.
    Groups,
    /// Appends, reads and subscribers on a schedule, for hours, from this process: does anything grow?
    #[value(hide = true)]
    Steady,
    /// A load of one's own, which a program gives.
    #[value(skip)]
    Own,
}

impl LoadKind {
    /// True if the members are cinemas.
    pub(crate) fn needs_cinemas(self) -> bool {
        matches!(self, Self::Seats | Self::Payments)
    }
}

/// What a stretch has come to.
#[derive(Debug, Clone, Default)]
pub struct StretchReport {
    /// Commands or appends that were acknowledged.
    pub acknowledged: u64,
    /// Of these, what is not stored.
    pub lost: u64,
    /// What is stored or held more than once.
    pub doubled: u64,
    /// Answers that were true earlier, and no more.
    pub stale: u64,
    /// Outcomes that stayed unknown to who asked.
    pub unknown: u64,
    /// Events that were stored and compared.
    pub events: u64,
    /// The longest append that was asked of members only that were not hurt.
    pub longest_elsewhere: Option<Duration>,
    /// The longest append.
    pub longest: Option<Duration>,
    /// Every promise that was broken.
    pub problems: Vec<String>,
    /// All of it in words.
    pub told: String,
}

/// What has been done to a world in a stretch, as far as it excuses what the load was told.
#[derive(Debug, Clone, Default)]
pub struct FaultEffects {
    /// The members that were hurt, by their numbers.
    pub members: Vec<usize>,
    /// Times in which somebody is not to blame for an unknown outcome.
    pub excused: Vec<Excuse>,
}

/// A time in which members are not to blame for outcomes that they do not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excuse {
    /// The members, by their numbers; `None` for all.
    pub members: Option<Vec<usize>>,
    /// When the fault began.
    pub from: Instant,
    /// When everybody at work had got something done that was begun after the fault had healed.
    pub to: Instant,
}

impl Excuse {
    /// True if it holds for an attempt by way of this member, which was made in this time.
    pub(crate) fn covers(&self, member: Option<usize>, from: Instant, to: Instant) -> bool {
        let is_of_it = match (&self.members, member) {
            (None, _) => true,
            (Some(members), Some(member)) => members.contains(&member),
            (Some(_), None) => false,
        };
        is_of_it && self.from <= to && self.to >= from
    }
}

/// A load.
#[async_trait(?Send)]
pub trait Load {
    /// Begins to work on a world that is whole; `stretch` counts from 1.
    ///
    /// # Errors
    /// It cannot.
    async fn begin(&mut self, world: &World, stretch: u32) -> Result<()>;

    /// Waits until everybody at work has got something done that was begun from now on; gives the time that it took.
    ///
    /// # Errors
    /// It took longer than `within`.
    async fn goes_on(&mut self, within: Duration) -> Result<Duration>;

    /// Ends the work of the stretch, on a world that is whole again, and judges it.
    ///
    /// # Errors
    /// What was stored cannot be read, or somebody at work has failed. Broken promises are no errors but problems.
    async fn end(&mut self, world: &World, hurt: &FaultEffects) -> Result<StretchReport>;

    /// Looks once more at everything, when nobody works any more: before the members are stopped (`is_stopped` is
    /// false), and after.
    ///
    /// # Errors
    /// As of [`end`](Self::end).
    async fn finish(&mut self, world: &World, is_stopped: bool) -> Result<StretchReport> {
        let _ = (world, is_stopped);
        Ok(StretchReport::default())
    }

    /// Lets those go who come back by a checkpoint.
    fn let_go(&mut self) {}

    /// When something was acknowledged in this stretch.
    fn answered(&self) -> Vec<Instant> {
        Vec::new()
    }

    /// Who appends to logs of its choice, beside the load. Only the loads of this crate have one.
    #[doc(hidden)]
    fn prober(&self) -> Option<&Prober> {
        None
    }

    /// This load, if it can tell what of its work may be lost with commits that are lost: only the groups of this
    /// crate can.
    #[doc(hidden)]
    fn groups(&mut self) -> Option<&mut Groups> {
        None
    }
}
