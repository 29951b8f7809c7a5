//! What stores: PostgreSQL servers, alone, with standbys of ours, or in the care of Patroni.

use std::net::SocketAddr;
use std::time::Instant;

use gesta_load::machine::{postgres, store};
use gesta_load::random::Random;
use gesta_report::endpoint::{Endpoint, redacted};
use gesta_report::failure::{Context, Failure, Result, blocking, fail};
use gesta_rig::{Cluster, FaultProxy, Patroni, PatroniConfig, Replication};

use super::Databases;
use super::probe::Probe;

/// What an asynchronous standby may lack and be promoted all the same: any amount.
const LAG_BYTES_MAX: u64 = 1 << 40;

/// A database of a store.
pub enum Database {
    /// A server that stands alone.
    Alone(gesta_rig::Server),
    /// A primary with standbys that nobody promotes but chaos.
    Replicated(Replicated),
    /// A primary with standbys in the care of Patroni.
    Patroni(Patroni),
    /// A server that is not ours.
    Theirs(String),
}

impl Database {
    /// Starts those that a plan names.
    pub(super) async fn start(databases: &Databases) -> Result<Vec<Self>> {
        match databases {
            Databases::File => Ok(Vec::new()),
            Databases::Alone(count) => (0..*count)
                .map(|_| store::new_server().map(Self::Alone))
                .collect(),
            Databases::Replicated { count, standbys } => (0..*count)
                .map(|_| Replicated::start(usize::from(*standbys)).map(Self::Replicated))
                .collect(),
            Databases::Patroni {
                members,
                replication,
            } => {
                let mut config = PatroniConfig {
                    members: usize::from(*members),
                    ..PatroniConfig::new(*replication)
                };
                if *replication == Replication::Asynchronous {
                    config.lag_bytes_max = LAG_BYTES_MAX;
                }
                let Some(patroni) = blocking(|| Patroni::start(config))? else {
                    return fail("PostgreSQL, Patroni and etcd must be installed");
                };
                let primary = blocking(|| patroni.wait_until_whole())?;
                Probe::prepare(&patroni.member_urls()[primary]).await?;
                Ok(vec![Self::Patroni(patroni)])
            }
            Databases::Theirs(url) => {
                refuse_events(url).await?;
                Ok(vec![Self::Theirs(url.clone())])
            }
        }
    }

    /// Its URL, which names all of its servers.
    pub fn url(&self) -> String {
        match self {
            Self::Alone(server) => server.url(),
            Self::Replicated(replicated) => replicated.url(),
            Self::Patroni(patroni) => patroni.url(),
            Self::Theirs(url) => url.clone(),
        }
    }

    /// Its address, if it has one: connections to it can be hurt by a proxy.
    ///
    /// # Errors
    /// Its host has no address.
    pub fn address(&self) -> Result<Option<SocketAddr>> {
        match self {
            Self::Alone(server) => Ok(Some(server.addr())),
            Self::Theirs(url) => {
                let endpoint = Endpoint::parse(url);
                endpoint.map(|endpoint| endpoint.address()).transpose()
            }
            Self::Replicated(_) | Self::Patroni(_) => Ok(None),
        }
    }

    /// The server, if it stands alone and is ours.
    pub fn server(&self) -> Option<&gesta_rig::Server> {
        match self {
            Self::Alone(server) => Some(server),
            _ => None,
        }
    }

    /// See [`server`](Self::server).
    pub(crate) fn server_mut(&mut self) -> Option<&mut gesta_rig::Server> {
        match self {
            Self::Alone(server) => Some(server),
            _ => None,
        }
    }

    /// When the last new primary took writes.
    pub(super) fn promoted(&self) -> Option<Instant> {
        match self {
            Self::Replicated(replicated) => replicated.promoted,
            _ => None,
        }
    }

    /// What its keepers said last.
    pub(super) fn logs(&self) -> Option<String> {
        match self {
            Self::Patroni(patroni) => Some(patroni.logs()),
            _ => None,
        }
    }
}

/// Refuses databases, named as those of a store, of which one has events: what chaos appends there stays for ever.
async fn refuse_events(urls: &str) -> Result<()> {
    for url in urls.split_whitespace() {
        let named = redacted(url);
        if postgres::has_events(url).await.context(&named)? {
            return fail(format!(
                "{named} has events, and what chaos appends there could never be removed again: --store needs an empty \
                 database, or an empty schema of it (?schema=NAME)"
            ));
        }
    }
    Ok(())
}

/// A primary and its standbys; all that Gesta sends them goes by way of proxies.
pub struct Replicated {
    cluster: Cluster,
    proxies: Vec<FaultProxy>,
    /// Members that were primaries in this round, and are no more.
    gone: Vec<usize>,
    /// When the last new primary took writes.
    promoted: Option<Instant>,
}

impl Replicated {
    fn start(standbys: usize) -> Result<Self> {
        let Some(cluster) = blocking(|| Cluster::start(standbys, Replication::Asynchronous))?
        else {
            return fail("PostgreSQL must be installed");
        };
        let proxies = (0..=standbys).map(|member| FaultProxy::start(cluster.server(member).addr()));
        Ok(Self {
            proxies: proxies.collect::<std::io::Result<_>>()?,
            cluster,
            gone: Vec::new(),
            promoted: None,
        })
    }

    /// The URL that names all members.
    fn url(&self) -> String {
        let addresses: Vec<_> = self.proxies.iter().map(FaultProxy::addr).collect();
        self.cluster.url_through(&addresses)
    }

    fn standbys(&self) -> impl Iterator<Item = usize> {
        let primary = self.cluster.primary();
        (0..self.proxies.len()).filter(move |member| *member != primary)
    }

    /// No standby receives anything from here on.
    pub(crate) fn hold(&self) -> Result<()> {
        blocking(|| {
            self.standbys().try_for_each(|member| {
                self.cluster.wait_for_standby(member)?;
                self.cluster.hold_replication(member)
            })
        })
    }

    /// The primary is gone, or out of everybody's reach and alive, and a standby takes its place.
    pub(crate) fn fail_over(&mut self, is_killed: bool, random: &mut Random) -> Result<()> {
        let old = self.cluster.primary();
        self.gone.push(old);
        let standbys = self.standbys().filter(|member| !self.gone.contains(member));
        let standbys: Vec<usize> = standbys.collect();
        if standbys.is_empty() {
            return Err(Failure("there is no standby left".into()));
        }
        let new = standbys[random.below(standbys.len())];
        self.proxies[old].refuse_connections(true);
        self.proxies[old].cut_all();
        blocking(|| {
            if is_killed {
                self.cluster.server_mut(old).kill_9()?;
            }
            self.cluster.promote(new)
        })?;
        self.promoted = Some(Instant::now());
        Ok(())
    }

    /// The members that are no standbys of the primary become so again, as copies of it.
    pub(crate) fn heal(&mut self) -> Result<()> {
        for member in self.standbys().collect::<Vec<_>>() {
            blocking(|| self.cluster.follow(member))?;
            self.proxies[member].refuse_connections(false);
        }
        self.gone.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use gesta_core::{Append, EventData, EventType, ExpectedRevision, StreamId};
    use gesta_load::machine::child::Program;

    use super::*;
    use crate::world::{Plan, World};

    /// Starts a world without members.
    async fn refused(url: &str) -> Option<String> {
        let program = Program::gesta(Path::new("gesta"));
        let plan = Plan::new(Databases::Theirs(url.to_owned()), program, 0);
        World::start(&plan).await.err().map(|failure| failure.0)
    }

    /// What happened: nobody looked whether the database of `--store` was empty, so a wrong URL spoiled a store for
    /// ever. It is refused before a member starts, also as one of several, and nothing is appended.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_store_with_events_is_no_world() {
        let Some(server) = gesta_rig::shared() else {
            return;
        };
        let [used, made, absent] =
            [(); 3].map(|()| format!("{}?schema={}", server.url(), gesta_rig::fresh_schema()));
        let open = async |url: &str| store::open_url(url, Duration::ZERO, 1).await.unwrap();
        let (used_store, _made_store) = (open(&used).await, open(&made).await);
        let store = used_store.store;
        let event = EventData::json(EventType::new("paid").unwrap(), "{}");
        let stream = StreamId::new("account-1").unwrap();
        let append = Append::to(stream, ExpectedRevision::NoStream, vec![event]);
        store.append(append).await.unwrap();
        let before = store.info().await.unwrap().heads;
        for (urls, is_refused) in [
            (used.clone(), true),
            (format!("{made} {used}"), true),
            (made, false),
            (absent, false),
        ] {
            let refused = refused(&urls).await;
            assert_eq!(refused.is_some(), is_refused, "{urls}: {refused:?}");
            if let Some(why) = refused {
                assert!(why.contains("needs an empty database"), "{why}");
            }
        }
        assert_eq!(store.info().await.unwrap().heads, before);
    }
}
