//! Faults of the links between nodes.

use std::time::{Duration, Instant};

use gesta_load::random::Random;
use gesta_report::failure::{Result, fail};
use gesta_rig::FaultProxy;
use tokio::time::sleep;

use super::{Field, hurt_some, seconds};
use crate::fault::Fault;
use crate::world::Links;

/// How long a link that flaps is there, and how long it is not.
const FLAP: Duration = Duration::from_millis(500);

impl Field<'_> {
    /// A fault of the links between a node and the others. Nobody who lives is hurt: appends through all nodes must go
    /// on.
    pub(super) async fn hurt_links(
        &mut self,
        fault: Fault,
        random: &mut Random,
    ) -> Result<Vec<usize>> {
        let node = self.choose(random).await?;
        let others = self.others(node);
        let mut links: Vec<&FaultProxy> = self.links(node)?.from.iter().collect();
        match fault {
            Fault::LinkOneWay => {
                let from = others[random.below(others.len())];
                let refuses = random.below(2) == 0;
                hurt_some(&[links[from]], refuses, seconds(random, 20)).await;
            }
            Fault::NodeWithoutPeers => {
                for other in &others {
                    links.push(&self.links(*other)?.from[node]);
                }
                hurt_some(&links, random.below(2) == 0, seconds(random, 30)).await;
            }
            _ => hurt_all(fault, &links, seconds(random, 20)).await?,
        }
        Ok(Vec::new())
    }

    /// The links to a node.
    fn links(&self, node: usize) -> Result<&Links> {
        let links = self.world.members[node].links.as_ref();
        links.map_or_else(|| fail("links without proxies cannot be hurt"), Ok)
    }
}

/// Hurts all links to a node in the same way.
async fn hurt_all(fault: Fault, links: &[&FaultProxy], time: Duration) -> Result<()> {
    match fault {
        Fault::LinksCut => hurt_some(links, true, time).await,
        Fault::LinksSilent => hurt_some(links, false, time).await,
        Fault::LinksDeaf => {
            links.iter().for_each(|link| link.swallow_replies(true));
            sleep(time).await;
            for link in links {
                link.swallow_replies(false);
                link.cut_all();
            }
        }
        Fault::LinksFlap => {
            let begun = Instant::now();
            while begun.elapsed() < time {
                hurt_some(links, true, FLAP).await;
                sleep(FLAP).await;
            }
        }
        other => return fail(format!("{} is nothing of links", other.name())),
    }
    Ok(())
}
