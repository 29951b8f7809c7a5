//! Faults of servers and nodes: killed, suspended, restarted.

use std::time::{Duration, Instant};

use gesta_load::random::Random;
use gesta_report::failure::{Result, fail};
use nix::sys::signal::Signal;
use tokio::time::sleep;

use super::{Field, seconds};
use crate::fault::Fault;

/// How long all servers sleep.
const SLEEP: Duration = Duration::from_secs(20);
/// How long a node hangs at most, in seconds.
const HANG_MAX: u64 = 15;

impl Field<'_> {
    /// A fault of servers; gives those that were hurt.
    pub(super) async fn hurt_servers(
        &mut self,
        fault: Fault,
        random: &mut Random,
    ) -> Result<Vec<usize>> {
        let chosen = self.choose(random).await?;
        let mut hurt = vec![chosen];
        match fault {
            Fault::ServerKill => self.kill_for_a_while(&hurt, self.owned_within).await?,
            Fault::ServerKillQuick => {
                self.kill(&hurt).await?;
                self.launch(&hurt).await?;
            }
            Fault::ServersKill => {
                hurt = self.others(chosen);
                self.kill_for_a_while(&hurt, self.owned_within * 2).await?;
            }
            Fault::ServerHang => {
                let time = match self.owners {
                    Some(_) => seconds(random, HANG_MAX),
                    None => self.strength.time * 2,
                };
                self.hang(&hurt, time, random).await?;
            }
            Fault::ServersHang => {
                hurt = (0..self.world.members.len()).collect();
                random.shuffle(&mut hurt);
                self.hang(&hurt, SLEEP, random).await?;
            }
            Fault::ServersRestart => {
                hurt = (0..self.world.members.len()).collect();
                self.restart(&hurt).await?;
            }
            Fault::ServerRestart => self.restart(&hurt).await?,
            other => return fail(format!("{} is nothing of servers", other.name())),
        }
        Ok(hurt)
    }

    /// Tells who watches the logs that a member is about to be gone; gives its generations.
    async fn goes_down(&self, member: usize) -> Result<Vec<i64>> {
        match self.owners {
            Some(owners) => owners.goes_down(&self.world.members[member].address).await,
            None => Ok(Vec::new()),
        }
    }

    pub(super) async fn kill(&mut self, which: &[usize]) -> Result<()> {
        for member in which {
            self.goes_down(*member).await?;
            self.world.members[*member].server.kill();
        }
        Ok(())
    }

    /// Kills members, and starts them again: nodes when others have their logs, which must be so within a time, servers
    /// after a while.
    async fn kill_for_a_while(&mut self, which: &[usize], within: Duration) -> Result<()> {
        self.kill(which).await?;
        match self.owners {
            Some(owners) => owners.complete(within).await?,
            None => sleep(self.strength.time / 4).await,
        }
        self.launch(which).await
    }

    pub(super) async fn launch(&mut self, which: &[usize]) -> Result<()> {
        for member in which {
            self.world.members[*member].server.launch().await?;
        }
        Ok(())
    }

    /// Suspends members, and lets them go on in this order, with pauses between them.
    async fn hang(&self, which: &[usize], time: Duration, random: &mut Random) -> Result<()> {
        let begun = Instant::now();
        let generations = self.suspend(which).await?;
        sleep(time.saturating_sub(begun.elapsed())).await;
        self.wake(which, &generations, random).await;
        Ok(())
    }

    /// Suspends members; gives the generations of each.
    pub(super) async fn suspend(&self, which: &[usize]) -> Result<Vec<Vec<i64>>> {
        let mut generations = Vec::new();
        for member in which {
            generations.push(self.goes_down(*member).await?);
            self.world.members[*member].server.signal(Signal::SIGSTOP);
        }
        Ok(generations)
    }

    /// Lets members go on in this order, with pauses between them.
    pub(super) async fn wake(
        &self,
        which: &[usize],
        generations: &[Vec<i64>],
        random: &mut Random,
    ) {
        for (member, generations) in which.iter().zip(generations) {
            self.world.members[*member].server.signal(Signal::SIGCONT);
            if let Some(owners) = self.owners {
                owners.goes_on(generations);
            }
            if which.len() > 1 {
                sleep(Duration::from_millis(random.next() % 1_000)).await;
            }
        }
    }

    async fn restart(&mut self, which: &[usize]) -> Result<()> {
        for member in which {
            let member = &mut self.world.members[*member];
            if !member.server.stop().await {
                let (name, log) = (&member.name, member.server.log_tail());
                return fail(format!("{name} did not stop in time:\n{log}"));
            }
            member.server.launch().await?;
        }
        Ok(())
    }
}
