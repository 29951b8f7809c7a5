//! What is done to a primary in the care of Patroni, and how it heals.

use std::time::{Duration, Instant};

use gesta_load::machine::ask::until;
use gesta_report::failure::{Result, blocking, fail};
use gesta_rig::Patroni;

use crate::fault::Fault;

/// Another member is the primary this soon: `ttl` is 20 s.
const PROMOTED_WITHIN: Duration = Duration::from_secs(90);

/// When the primary was hurt, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Primary {
    /// Before the fault.
    pub(crate) begun: Instant,
    /// When it was done.
    pub(crate) done: Instant,
    /// The member that was the primary.
    pub(crate) member: usize,
    /// True if another member becomes the primary; else this one does again.
    pub(crate) promotes: bool,
}

/// Hurts the primary. When this returns, every write that begins is one of after the fault, but for
/// [`Fault::PatroniHang`]: there the old primary goes on until it is replaced.
pub(crate) fn inflict(fault: Fault, patroni: &mut Patroni, primary: usize) -> Result<Primary> {
    let begun = Instant::now();
    let is_known = blocking(|| {
        match fault {
            Fault::SwitchOver => patroni.switch_over(primary)?,
            Fault::PrimaryKill => patroni.kill_node(primary)?,
            Fault::PostmasterKill => patroni.kill_postmaster(primary)?,
            Fault::PatroniHang => patroni.suspend_patroni(primary, true)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if !is_known {
        return fail(format!("{} is nothing of Patroni", fault.name()));
    }
    Ok(Primary {
        begun,
        done: Instant::now(),
        member: primary,
        promotes: promotes(fault),
    })
}

/// True if another member becomes the primary.
pub(crate) fn promotes(fault: Fault) -> bool {
    fault != Fault::PostmasterKill
}

/// Waits until another member is the primary.
pub(crate) async fn promoted(patroni: &Patroni, old: usize) -> Result<()> {
    let is_promoted = async || {
        let primary = tokio::task::block_in_place(|| patroni.primary());
        primary.is_some_and(|primary| primary != old)
    };
    until("another member is promoted", PROMOTED_WITHIN, is_promoted).await
}

/// Ends the fault, and waits until all members follow the primary.
pub(crate) fn heal(fault: Fault, patroni: &mut Patroni, hurt: usize) -> Result<()> {
    blocking(|| {
        match fault {
            Fault::PrimaryKill => patroni.start_node(hurt)?,
            Fault::PatroniHang => {
                patroni.release_replication(hurt)?;
                patroni.suspend_patroni(hurt, false)?;
            }
            _ => {}
        }
        patroni.wait_until_whole().map(drop)
    })
}
