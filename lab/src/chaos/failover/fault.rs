//! What is done to the primary, and how it heals.

use std::time::Instant;

use serde::Serialize;
use gesta_report::failure::{Result, blocking};
use gesta_report::name_of;

use super::times::Hurt;
use super::world::World;

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum FailoverFault {
    /// Patroni is asked to make another member the primary.
    SwitchOver,
    /// `kill -9` of the primary's Patroni and of all processes of its server.
    NodeKill,
    /// `kill -9` of the server's first process; Patroni lives and starts the server again.
    PostmasterKill,
    /// The primary's Patroni hangs (SIGSTOP); its server lives and does not know that it is replaced.
    PatroniHang,
}

impl FailoverFault {
    /// All of them.
    pub(super) const ALL: &[Self] = &[
        Self::SwitchOver,
        Self::NodeKill,
        Self::PostmasterKill,
        Self::PatroniHang,
    ];

    /// Those that lose what the standbys have not received.
    pub(super) const LOSSY: &[Self] = &[Self::NodeKill, Self::PatroniHang];

    /// Its name in tables.
    pub(super) fn name(self) -> String {
        name_of(self)
    }

    /// Hurts the primary. When this returns, every write that begins is one of after the fault, but for
    /// [`FailoverFault::PatroniHang`]: there the old primary goes on until it is replaced.
    pub(super) fn inflict(self, world: &mut World, primary: usize) -> Result<Hurt> {
        let (patroni, begun) = (&mut world.patroni, Instant::now());
        blocking(|| match self {
            Self::SwitchOver => patroni.switch_over(primary),
            Self::NodeKill => patroni.kill_node(primary),
            Self::PostmasterKill => patroni.kill_postmaster(primary),
            Self::PatroniHang => patroni.suspend_patroni(primary, true),
        })?;
        Ok(Hurt {
            begun,
            done: Instant::now(),
            member: primary,
            promotes: self.promotes(),
        })
    }

    /// True if another member becomes the primary.
    pub(super) fn promotes(self) -> bool {
        self != Self::PostmasterKill
    }

    /// Ends the fault, and waits until all members follow the primary.
    pub(super) fn heal(self, world: &mut World, hurt: usize) -> Result<()> {
        let patroni = &mut world.patroni;
        blocking(|| {
            match self {
                Self::SwitchOver | Self::PostmasterKill => {}
                Self::NodeKill => patroni.start_node(hurt)?,
                Self::PatroniHang => {
                    patroni.release_replication(hurt)?;
                    patroni.suspend_patroni(hurt, false)?;
                }
            }
            patroni.wait_until_whole().map(drop)
        })
    }
}
