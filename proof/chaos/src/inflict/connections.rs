//! Faults of connections: of servers to databases, and of clients to servers.

use std::time::{Duration, Instant};

use gesta_load::random::Random;
use gesta_report::failure::{Result, fail};
use gesta_rig::{FaultProxy, LoseReply};
use tokio::time::sleep;

use super::{Field, hurt_some, refuse, seconds, switched};
use crate::fault::Fault;
use crate::world::{ANSWER_TIMEOUT, DatabaseProxy, World};

/// How long a reply to be lost is waited for: there may be no append meanwhile.
const REPLY_WITHIN: Duration = Duration::from_secs(60);

impl Field<'_> {
    /// A fault of connections to databases; gives the members that were hurt.
    pub(super) async fn hurt_connections(
        &mut self,
        fault: Fault,
        random: &mut Random,
    ) -> Result<Vec<usize>> {
        if fault == Fault::ServerWithoutDatabase {
            return self.cut_off_from_databases(random).await;
        }
        let (strength, over) = (self.strength, self.over);
        let time = strength.time;
        let line = World::some(self.world.proxies(), random)?;
        let proxy = &line.proxy;
        match fault {
            Fault::DatabaseCut => drop(proxy.cut_all()),
            Fault::DatabaseFreeze => switched(strength.freeze, over, |on| proxy.freeze(on)).await,
            Fault::DatabaseRefuse => refuse(proxy, time * 2, over).await,
            Fault::DatabaseDelay => {
                let usual = line.round_trip;
                let delay = |on| if on { strength.delay } else { Duration::ZERO };
                let set = |on| proxy.set_round_trip(usual + delay(on));
                switched(strength.delay_for, over, set).await;
            }
            Fault::DatabaseHalfOpen => {
                switched(time, over, |on| proxy.set_half_open(on)).await;
                proxy.cut_all();
            }
            // Nobody tells Gesta: it must notice by itself.
            Fault::DatabaseSilent => switched(time / 2, over, |on| proxy.set_half_open(on)).await,
            Fault::RequestHeld => {
                let time = ANSWER_TIMEOUT + time;
                switched(time, over, |on| proxy.hold_requests(on)).await;
            }
            Fault::ReplyLost => lose_reply(line, random).await?,
            _ => return fail(format!("{} is nothing of the network", fault.name())),
        }
        Ok((0..self.world.members.len()).collect())
    }

    /// One member does not reach its databases for a while.
    async fn cut_off_from_databases(&mut self, random: &mut Random) -> Result<Vec<usize>> {
        let chosen = self.choose(random).await?;
        let member = &self.world.members[chosen];
        let generations = match self.owners {
            Some(owners) => owners.goes_down(&member.address).await?,
            None => Vec::new(),
        };
        let proxies = member.databases.iter().map(|line| &line.proxy);
        let proxies: Vec<&FaultProxy> = proxies.collect();
        hurt_some(&proxies, random.below(2) == 0, seconds(random, 20)).await;
        if let Some(owners) = self.owners {
            owners.goes_on(&generations);
        }
        Ok(vec![chosen])
    }

    /// A fault of connections of clients; gives the member that was hurt.
    pub(super) async fn hurt_clients(
        &mut self,
        fault: Fault,
        random: &mut Random,
    ) -> Result<Vec<usize>> {
        let chosen = random.below(self.world.members.len().max(1));
        let member = self.world.members.get(chosen);
        let Some(clients) = member.and_then(|member| member.clients.as_ref()) else {
            return fail("no clients reach a server by way of a proxy");
        };
        let time = self.strength.time;
        match fault {
            Fault::ClientsCut => refuse(clients, time / 4, self.over).await,
            Fault::ClientsFrozen => switched(time, self.over, |on| clients.freeze(on)).await,
            Fault::AnswersLost => lose_answers(clients).await?,
            other => return fail(format!("{} is nothing of clients", other.name())),
        }
        Ok(vec![chosen])
    }
}

/// Answers to clients are lost, then the connections break.
async fn lose_answers(proxy: &FaultProxy) -> Result<()> {
    let before = proxy.swallowed_bytes();
    proxy.swallow_replies(true);
    let deadline = Instant::now() + REPLY_WITHIN;
    while proxy.swallowed_bytes() == before {
        if Instant::now() > deadline {
            return fail("no server answered while its answer should have been lost");
        }
        sleep(Duration::from_millis(1)).await;
    }
    proxy.cut_all();
    proxy.swallow_replies(false);
    Ok(())
}

/// An append is committed, its reply is lost.
async fn lose_reply(line: &mut DatabaseProxy, random: &mut Random) -> Result<()> {
    let nth = u32::try_from(1 + random.below(5)).unwrap_or(1);
    line.proxy.lose_reply(LoseReply {
        tag_prefix: "INSERT".into(),
        nth,
    });
    let lost = line.proxy.replies_lost(line.lost + 1);
    if tokio::time::timeout(REPLY_WITHIN, lost).await.is_err() {
        return fail("no append was committed while its reply should have been lost");
    }
    line.lost += 1;
    Ok(())
}
