//! What each fault does, and how it heals.
//!
//! Every fault is over when [`Field::inflict`] returns: processes run, connections can be made, locks are free, clocks
//! are right. Fail-overs have courses of their own: `fail_over`, which measures them, and `lossy_fail_over`, where
//! everybody must see them come.

mod clocks;
mod connections;
mod databases;
mod disk;
mod links;
pub(crate) mod patroni;
mod servers;
mod timers;

use std::time::Duration;

use gesta_load::random::Random;
use gesta_report::failure::{Result, fail};
use gesta_rig::FaultProxy;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::fault::{Fault, Victim};
use crate::load::appends::Prober;
use crate::world::{Owners, World};

/// How hard faults are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strength {
    /// How long most faults last, some half or twice of it.
    pub(crate) time: Duration,
    /// How long the database is frozen.
    pub(crate) freeze: Duration,
    /// Extra round trip of a delay.
    pub(crate) delay: Duration,
    /// How long a delay lasts.
    pub(crate) delay_for: Duration,
    /// How long a database that was ended stays away.
    pub(crate) away: Duration,
}

impl Strength {
    /// Everything in proportion to this time.
    pub(crate) fn of(time: Duration) -> Self {
        Self {
            time,
            freeze: time,
            delay: time / 10,
            delay_for: time * 2,
            away: time,
        }
    }
}

/// A world, and what is known about it while a fault is made.
pub(crate) struct Field<'a> {
    /// What is hurt.
    pub(crate) world: &'a mut World,
    /// Who watches the logs of nodes.
    pub(crate) owners: Option<&'a Owners>,
    /// Who sees that logs are served while others are not.
    pub(crate) prober: Option<&'a Prober>,
    /// How hard it is hurt.
    pub(crate) strength: Strength,
    /// Logs without an owner for longer are a finding.
    pub(crate) owned_within: Duration,
    /// Ends a fault sooner.
    pub(crate) over: &'a CancellationToken,
}

impl Field<'_> {
    /// Makes a fault and heals it; gives the members that were hurt, so that what goes through them may stand still.
    pub(crate) async fn inflict(
        &mut self,
        fault: Fault,
        random: &mut Random,
    ) -> Result<Vec<usize>> {
        match fault.victim() {
            Victim::Servers => self.hurt_servers(fault, random).await,
            Victim::Links => self.hurt_links(fault, random).await,
            Victim::Clocks => self.set_clocks(random).await,
            Victim::Databases => self.hurt_databases(fault, random).await,
            Victim::Connections => self.hurt_connections(fault, random).await,
            Victim::Clients => self.hurt_clients(fault, random).await,
            Victim::Store => self.reopen().await,
            Victim::Disk => self.fill_disk().await,
            Victim::Timers => self.hurt_timers(fault, random).await,
            Victim::Patroni | Victim::Primary => fail("fail-overs have courses of their own"),
        }
    }

    /// A member: of nodes the one that has the most logs, in three of four cases.
    async fn choose(&self, random: &mut Random) -> Result<usize> {
        let members = &self.world.members;
        if members.is_empty() {
            return fail("this world has no servers");
        }
        let any = random.below(members.len());
        let Some(owners) = self.owners.filter(|_| random.below(4) > 0) else {
            return Ok(any);
        };
        let busiest = owners.busiest().await?;
        let mut all = members.iter();
        Ok(all.position(|node| node.address == busiest).unwrap_or(any))
    }

    /// The members without one.
    fn others(&self, than: usize) -> Vec<usize> {
        let all = 0..self.world.members.len();
        all.filter(|member| *member != than).collect()
    }

    /// Closes the store of this process and opens it again.
    async fn reopen(&mut self) -> Result<Vec<usize>> {
        match &self.world.here {
            Some(here) => here.store.reopen().await?,
            None => return fail("this process has no store open"),
        }
        Ok(Vec::new())
    }
}

/// From one second to so many.
fn seconds(random: &mut Random, most: u64) -> Duration {
    Duration::from_millis(1_000 + random.next() % (most * 1_000 - 1_000))
}

/// Something is on for a while.
async fn switched(time: Duration, over: &CancellationToken, switch: impl Fn(bool)) {
    switch(true);
    over.run_until_cancelled(sleep(time)).await;
    switch(false);
}

/// Connections are cut and refused for a while.
async fn refuse(proxy: &FaultProxy, time: Duration, over: &CancellationToken) {
    switched(time, over, |on| {
        proxy.refuse_connections(on);
        proxy.cut_all();
    })
    .await;
}

/// Cuts and refuses connections, or lets nothing through that is sent on them, for a time.
async fn hurt_some(proxies: &[&FaultProxy], refuses: bool, time: Duration) {
    for proxy in proxies {
        proxy.refuse_connections(refuses);
        proxy.set_half_open(!refuses);
        if refuses {
            proxy.cut_all();
        }
    }
    sleep(time).await;
    for proxy in proxies {
        proxy.refuse_connections(false);
        proxy.set_half_open(false);
        // What was swallowed is missing in the streams of bytes.
        proxy.cut_all();
    }
}
