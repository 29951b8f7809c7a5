//! What is done to nodes, their links, their clocks and their databases, and how it heals.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gesta_core::LogId;
use gesta_rig::{FakeClock, FaultProxy};
use hyper::Method;
use nix::sys::signal::Signal;
use serde::Serialize;
use gesta_report::failure::{Result, blocking, fail};
use gesta_report::name_of;
use gesta_load::machine::http::Connection;
use gesta_load::random::Random;

use super::clocks::Setting;
use super::load::Prober;
use super::nodes::{Conditions, Nodes};
use super::owners::Owners;
use super::{SizeArgs, payments};

/// How long a link that flaps is there, and how long it is not.
const FLAP: Duration = Duration::from_millis(500);
/// How long all nodes sleep.
const SLEEP: Duration = Duration::from_secs(20);
/// How long the databases are away while a node dies.
const OUTAGE: Duration = Duration::from_secs(60);
/// How long one of several databases is away: longer than it takes to declare a silent node dead.
const ONE_AWAY: Duration = Duration::from_secs(10);

/// The line by which a cinema that owns the timers says so among its metrics.
const OWNS_TIMERS: &str = "cinema_unpaid_reservations_owned 1";
/// How long it may take until one says so, if logs need not have owners later.
const OWNER_WITHIN: Duration = Duration::from_secs(60);
/// How long a cinema may take to tell its metrics.
const METRICS_WITHIN: Duration = Duration::from_secs(5);
/// How often it is asked for.
const LOOK: Duration = Duration::from_millis(50);

/// What is asked of nodes while they are hurt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadKind {
    /// Appends to event stores.
    Appends,
    /// Reservations at cinemas.
    Seats,
    /// Reservations at cinemas that give back what is not paid.
    Payments,
}

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NodeFault {
    /// `kill -9` of a node; it is started again when others have its logs.
    NodeKill,
    /// `kill -9` of a node; it is started again at once.
    NodeKillQuick,
    /// `kill -9` of all nodes but one, at once.
    NodesKill,
    /// A node is suspended for 1 to 15 seconds.
    NodeHang,
    /// All nodes are suspended for 20 seconds and go on in random order.
    NodesHang,
    /// A node is stopped in order and started again.
    NodeRestart,
    /// All nodes are restarted in order, one after the other.
    NodesRestart,
    /// Nobody can call a node: connections are cut and refused. It can call the others.
    LinksCut,
    /// Links to a node stay open, but nothing arrives at either end.
    LinksSilent,
    /// What a node answers to others does not arrive; what they send does.
    LinksDeaf,
    /// Links to a node are there for half a second and cut for half a second, again and again.
    LinksFlap,
    /// One node does not reach one other: what it sends there does not arrive, or connections are cut and refused. The
    /// other one reaches it.
    LinkOneWay,
    /// A node reaches no other one and none reaches it; all reach the database.
    NodeWithoutPeers,
    /// A node does not reach its databases; all nodes reach each other.
    NodeWithoutDatabase,
    /// The clocks of some nodes are set by seconds, minutes or up to an hour, and may run a tenth fast or slow.
    ClockStep,
    /// An orderly restart of a database.
    DatabaseRestart,
    /// `kill -9` of a database; it is started again.
    DatabaseKill,
    /// A database is suspended for 1 to 10 seconds.
    DatabaseHang,
    /// All databases are away for a minute, and a node dies meanwhile.
    DatabaseAwayNodeKill,
    /// One of several databases is killed and away for 10 seconds; the logs of the others go on.
    OneDatabaseAway,
    /// `kill -9` of the cinema that gives back what is not paid; it is started again when others have its logs and its
    /// timers.
    TimersKill,
    /// The cinema that gives back what is not paid is suspended for longer than its lease, until another one does.
    TimersHang,
}

impl NodeFault {
    /// What must be there for these faults.
    pub(crate) fn conditions(of: &[NodeFault]) -> Conditions {
        let needs_paths = |fault: &NodeFault| {
            fault.is_of_links()
                || matches!(fault, Self::NodeWithoutPeers | Self::NodeWithoutDatabase)
        };
        Conditions {
            paths: of.iter().any(needs_paths),
            clocks: of.contains(&Self::ClockStep),
            far: None,
        }
    }

    /// True if nodes and databases of this number can have it, on this machine and under this load.
    pub(crate) fn fits(self, size: &SizeArgs, load: LoadKind) -> bool {
        match self {
            // Whether the other logs go on is asked of each log by itself, and of shows nobody knows where they lie.
            Self::OneDatabaseAway => size.databases > 1 && load == LoadKind::Appends,
            Self::ClockStep => FakeClock::library().is_some(),
            Self::TimersKill | Self::TimersHang => load == LoadKind::Payments,
            _ => true,
        }
    }

    fn is_of_links(self) -> bool {
        matches!(
            self,
            Self::LinksCut
                | Self::LinksSilent
                | Self::LinksDeaf
                | Self::LinksFlap
                | Self::LinkOneWay
        )
    }

    fn is_of_databases(self) -> bool {
        matches!(
            self,
            Self::DatabaseRestart
                | Self::DatabaseKill
                | Self::DatabaseHang
                | Self::DatabaseAwayNodeKill
                | Self::OneDatabaseAway
        )
    }

    /// True if nodes that are not hurt can go on: then appends through them must.
    pub(crate) fn leaves_others(self) -> bool {
        self != Self::NodesHang && !self.is_of_databases()
    }

    /// True if nodes die, so that their logs must be back within ten seconds.
    pub(crate) fn kills(self) -> bool {
        matches!(
            self,
            Self::NodeKill | Self::NodeKillQuick | Self::NodesKill | Self::TimersKill
        )
    }

    /// How many logs may move at most, for another reason than balance, if the nodes that were hurt had so many.
    pub(crate) fn moves_max(self, of_hurt: u64) -> u64 {
        match self {
            Self::ClockStep | Self::LinkOneWay => 0,
            Self::DatabaseAwayNodeKill | Self::NodesHang => of_hurt,
            _ if self.is_of_databases() => 0,
            _ => u64::MAX,
        }
    }

    /// Its name in tables.
    pub(crate) fn name(self) -> String {
        name_of(self)
    }
}

/// Nodes, and what is known about their logs.
pub(crate) struct Field<'a> {
    /// The nodes.
    pub(crate) nodes: &'a mut Nodes,
    /// Who watches their logs.
    pub(crate) owners: &'a Owners,
    /// Who sees that logs are served while others are not.
    pub(crate) prober: Option<&'a Prober>,
    /// Logs without an owner for longer are a finding.
    pub(crate) owned_within: Duration,
}

impl Field<'_> {
    /// Makes a fault and heals it; gives the nodes that were hurt.
    pub(crate) async fn inflict(
        &mut self,
        fault: NodeFault,
        random: &mut Random,
    ) -> Result<Vec<usize>> {
        let count = self.nodes.all.len();
        let chosen = self.choose(random).await?;
        let others: Vec<usize> = (0..count).filter(|node| *node != chosen).collect();
        let mut hurt = vec![chosen];
        match fault {
            NodeFault::NodeKill => self.kill_until_owned(&hurt, self.owned_within).await?,
            NodeFault::NodeKillQuick => {
                self.kill(&hurt).await?;
                self.launch(&hurt).await?;
            }
            NodeFault::NodesKill => {
                hurt = others;
                let within = self.owned_within * 2;
                self.kill_until_owned(&hurt, within).await?;
            }
            NodeFault::NodeHang => self.hang(&hurt, time(random, 15), random).await?,
            NodeFault::NodesHang => {
                hurt = (0..count).collect();
                random.shuffle(&mut hurt);
                self.hang(&hurt, SLEEP, random).await?;
            }
            NodeFault::NodeRestart => self.restart(&hurt).await?,
            NodeFault::NodesRestart => {
                hurt = (0..count).collect();
                self.restart(&hurt).await?;
            }
            NodeFault::TimersKill => {
                hurt = vec![self.owner_of_timers(None).await?];
                self.kill(&hurt).await?;
                self.owners.complete(self.owned_within).await?;
                self.owner_of_timers(Some(hurt[0])).await?;
                self.launch(&hurt).await?;
            }
            NodeFault::TimersHang => {
                hurt = vec![self.owner_of_timers(None).await?];
                let (begun, time) = (Instant::now(), payments::LEASE + time(random, 8));
                let generations = self.suspend(&hurt).await?;
                // Else the one that is woken might find itself the owner still, and nothing would be tried.
                self.owner_of_timers(Some(hurt[0])).await?;
                tokio::time::sleep(time.saturating_sub(begun.elapsed())).await;
                self.wake(&hurt, &generations, random).await;
            }
            _ if fault.is_of_links() || fault == NodeFault::NodeWithoutPeers => {
                self.hurt_links_of(chosen, &others, fault, random).await?;
                // Nobody who lives was hurt: appends through all nodes must go on.
                hurt.clear();
            }
            NodeFault::NodeWithoutDatabase => {
                let node = &self.nodes.all[chosen];
                let generations = self.owners.goes_down(&node.address).await?;
                let paths: Vec<&FaultProxy> = self.paths(chosen)?.databases.iter().collect();
                hurt_some(&paths, random.below(2) == 0, time(random, 20)).await;
                self.owners.goes_on(&generations);
            }
            NodeFault::ClockStep => {
                self.set_clocks(random).await?;
                hurt.clear();
            }
            _ => hurt = self.hurt_databases(fault, chosen, random).await?,
        }
        Ok(hurt)
    }

    /// A fault of the links between a node and the others.
    async fn hurt_links_of(
        &self,
        node: usize,
        others: &[usize],
        fault: NodeFault,
        random: &mut Random,
    ) -> Result<()> {
        let mut links: Vec<&FaultProxy> = self.paths(node)?.from.iter().collect();
        match fault {
            NodeFault::LinkOneWay => {
                let from = others[random.below(others.len())];
                let refuses = random.below(2) == 0;
                hurt_some(&[links[from]], refuses, time(random, 20)).await;
            }
            NodeFault::NodeWithoutPeers => {
                for other in others {
                    links.push(&self.paths(*other)?.from[node]);
                }
                hurt_some(&links, random.below(2) == 0, time(random, 30)).await;
            }
            _ => hurt_links(fault, &links, time(random, 20)).await,
        }
        Ok(())
    }

    /// A fault of databases; gives the nodes that were hurt.
    async fn hurt_databases(
        &mut self,
        fault: NodeFault,
        chosen: usize,
        random: &mut Random,
    ) -> Result<Vec<usize>> {
        let count = self.nodes.databases.len();
        let at = random.below(count);
        match fault {
            NodeFault::DatabaseRestart => self.database(at, gesta_rig::Server::restart)?,
            NodeFault::DatabaseHang => {
                self.database(at, |server| server.freeze())?;
                tokio::time::sleep(time(random, 10)).await;
                self.database(at, |server| server.thaw())?;
            }
            NodeFault::DatabaseAwayNodeKill => {
                let address = self.nodes.all[chosen].address.clone();
                let generations = self.owners.generations(&address).await?;
                let begun = Instant::now();
                for at in 0..count {
                    self.database(at, gesta_rig::Server::stop)?;
                }
                tokio::time::sleep(time(random, 40)).await;
                self.owners.are_down(&generations);
                self.nodes.all[chosen].server.kill();
                tokio::time::sleep(OUTAGE.saturating_sub(begun.elapsed())).await;
                for at in 0..count {
                    self.database(at, gesta_rig::Server::restart)?;
                }
                self.owners.complete(self.owned_within).await?;
                self.launch(&[chosen]).await?;
                return Ok(vec![chosen]);
            }
            NodeFault::OneDatabaseAway => {
                let Some(prober) = self.prober.filter(|_| count > 1) else {
                    return fail("one of several databases cannot be away here");
                };
                let is_elsewhere = |log: LogId| usize::from(log.0) % count != at;
                self.database(at, gesta_rig::Server::kill_9)?;
                let (begun, mut longest) = (Instant::now(), Duration::ZERO);
                while begun.elapsed() < ONE_AWAY {
                    longest = longest.max(prober.append(is_elsewhere).await?);
                }
                eprintln!("logs of the other databases: the longest append took {longest:.1?}");
                self.database(at, gesta_rig::Server::restart)?;
            }
            _ => {
                self.database(at, gesta_rig::Server::kill_9)?;
                self.database(at, gesta_rig::Server::restart)?;
            }
        }
        Ok(vec![chosen])
    }

    /// The paths of a node.
    fn paths(&self, node: usize) -> Result<&super::paths::Paths> {
        let paths = self.nodes.all[node].paths.as_ref();
        paths.map_or_else(|| fail("paths without proxies cannot be hurt"), Ok)
    }

    /// The node that has the most logs, in three of four cases.
    async fn choose(&self, random: &mut Random) -> Result<usize> {
        let any = random.below(self.nodes.all.len());
        if random.below(4) == 0 {
            return Ok(any);
        }
        let busiest = self.owners.busiest().await?;
        let mut all = self.nodes.all.iter();
        Ok(all.position(|node| node.address == busiest).unwrap_or(any))
    }

    /// Waits until a cinema owns the timers, which is not the one that is hurt; gives it.
    async fn owner_of_timers(&self, hurt: Option<usize>) -> Result<usize> {
        let all = self.nodes.all.iter().map(|node| node.server.address());
        let others: Vec<_> = all
            .enumerate()
            .filter(|(at, _)| Some(*at) != hurt)
            .collect();
        owner_of_timers(&others, OWNER_WITHIN.max(self.owned_within)).await
    }

    async fn kill(&mut self, which: &[usize]) -> Result<()> {
        for node in which {
            let node = &mut self.nodes.all[*node];
            self.owners.goes_down(&node.address).await?;
            node.server.kill();
        }
        Ok(())
    }

    /// Kills nodes, and starts them again when others have their logs, which must be so within a time.
    async fn kill_until_owned(&mut self, which: &[usize], within: Duration) -> Result<()> {
        self.kill(which).await?;
        self.owners.complete(within).await?;
        self.launch(which).await
    }

    async fn launch(&mut self, which: &[usize]) -> Result<()> {
        for node in which {
            self.nodes.all[*node].server.launch().await?;
        }
        Ok(())
    }

    /// Suspends nodes, and lets them go on in this order, with pauses between them.
    async fn hang(&self, which: &[usize], time: Duration, random: &mut Random) -> Result<()> {
        let begun = Instant::now();
        let generations = self.suspend(which).await?;
        tokio::time::sleep(time.saturating_sub(begun.elapsed())).await;
        self.wake(which, &generations, random).await;
        Ok(())
    }

    /// Suspends nodes; gives the generations of each.
    async fn suspend(&self, which: &[usize]) -> Result<Vec<Vec<i64>>> {
        let mut generations = Vec::new();
        for node in which {
            let node = &self.nodes.all[*node];
            generations.push(self.owners.goes_down(&node.address).await?);
            node.server.signal(Signal::SIGSTOP);
        }
        Ok(generations)
    }

    /// Lets nodes go on in this order, with pauses between them.
    async fn wake(&self, which: &[usize], generations: &[Vec<i64>], random: &mut Random) {
        for (node, generations) in which.iter().zip(generations) {
            self.nodes.all[*node].server.signal(Signal::SIGCONT);
            self.owners.goes_on(generations);
            if which.len() > 1 {
                tokio::time::sleep(Duration::from_millis(random.next() % 1_000)).await;
            }
        }
    }

    async fn restart(&mut self, which: &[usize]) -> Result<()> {
        for node in which {
            let node = &mut self.nodes.all[*node];
            if !node.server.stop().await {
                return fail(format!("{} did not stop", node.name));
            }
            node.server.launch().await?;
        }
        Ok(())
    }

    /// Sets the clocks of nodes some times, and in the end all of them right.
    async fn set_clocks(&self, random: &mut Random) -> Result<()> {
        let set = |node: usize, setting: Setting| {
            let node = &self.nodes.all[node];
            match &node.clock {
                Some(clock) => clock.set(setting, node.server.started()),
                None => fail("clocks of nodes cannot be set here"),
            }
        };
        for _ in 0..6 {
            let node = random.below(self.nodes.all.len());
            // What is far ahead of the database is refused; what is a little ahead is not.
            let most = [10, 240, 3_600][random.below(3)];
            let seconds = random.below(2 * most + 1).cast_signed() - most.cast_signed();
            let setting = Setting {
                seconds: i64::try_from(seconds).unwrap_or_default(),
                speed: [100, 110, 90][random.below(3)],
            };
            set(node, setting)?;
            tokio::time::sleep(time(random, 3)).await;
        }
        (0..self.nodes.all.len()).try_for_each(|node| set(node, Setting::RIGHT))?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    }

    fn database(
        &mut self,
        at: usize,
        what: impl FnOnce(&mut gesta_rig::Server) -> gesta_rig::Result<()>,
    ) -> Result<()> {
        blocking(|| what(&mut self.nodes.databases[at]))
    }
}

/// Waits until one of these cinemas owns the timers; gives its number.
async fn owner_of_timers(of: &[(usize, SocketAddr)], within: Duration) -> Result<usize> {
    let begun = Instant::now();
    loop {
        for (number, address) in of {
            let asked = async {
                let mut connection = Connection::open(*address).await?;
                connection.ask(Method::GET, "/metrics", Bytes::new()).await
            };
            let answer = tokio::time::timeout(METRICS_WITHIN, asked).await;
            if let Ok(Ok((200, body))) = answer
                && owns_timers(&String::from_utf8_lossy(&body))
            {
                return Ok(*number);
            }
        }
        if begun.elapsed() > within {
            let numbers: Vec<usize> = of.iter().map(|(number, _)| *number).collect();
            return fail(format!(
                "none of the cinemas {numbers:?} owns the timers after {within:?}"
            ));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// True if these are the metrics of the cinema that owns the timers.
fn owns_timers(metrics: &str) -> bool {
    metrics.lines().any(|line| line == OWNS_TIMERS)
}

/// From one second to so many.
fn time(random: &mut Random, seconds: u64) -> Duration {
    Duration::from_millis(1_000 + random.next() % (seconds * 1_000 - 1_000))
}

/// Cuts and refuses connections, or lets nothing through that is sent on them, for a time.
async fn hurt_some(paths: &[&FaultProxy], refuses: bool, time: Duration) {
    for path in paths {
        path.refuse_connections(refuses);
        path.set_half_open(!refuses);
        if refuses {
            path.cut_all();
        }
    }
    tokio::time::sleep(time).await;
    for path in paths {
        path.refuse_connections(false);
        path.set_half_open(false);
        // What was swallowed is missing in the streams of bytes.
        path.cut_all();
    }
}

/// Hurts all links to a node in the same way.
async fn hurt_links(fault: NodeFault, links: &[&FaultProxy], time: Duration) {
    match fault {
        NodeFault::LinksCut => hurt_some(links, true, time).await,
        NodeFault::LinksSilent => hurt_some(links, false, time).await,
        NodeFault::LinksDeaf => {
            links.iter().for_each(|link| link.swallow_replies(true));
            tokio::time::sleep(time).await;
            for link in links {
                link.swallow_replies(false);
                link.cut_all();
            }
        }
        _ => {
            let begun = Instant::now();
            while begun.elapsed() < time {
                hurt_some(links, true, FLAP).await;
                tokio::time::sleep(FLAP).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};

    fn page(help: &str, value: &str) -> String {
        format!(
            "# HELP cinema_unpaid_reservations_owned {help}.\n\
             # TYPE cinema_unpaid_reservations_owned gauge\n\
             cinema_unpaid_reservations_owned {value}\n\
             # EOF\n"
        )
    }

    /// A cinema that answers each question with the next of these pages, and in the end always with the last.
    fn cinema(pages: &[&str]) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut pages: Vec<String> = pages.iter().map(|value| page("Is 1", value)).collect();
        pages.reverse();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let head = BufReader::new(&connection).lines();
                head.map_while(std::result::Result::ok)
                    .take_while(|line| !line.is_empty())
                    .for_each(drop);
                let page = match pages.len() {
                    1 => pages[0].clone(),
                    _ => pages.pop().unwrap(),
                };
                let length = page.len();
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{page}");
                connection.write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    /// Goal: a fault of the owner of the timers is over only when another one owns them, and it is a finding if none
    /// does.
    #[tokio::test]
    async fn another_cinema_must_take_the_timers_over() {
        let cinemas = [(1, cinema(&["0"])), (2, cinema(&["0", "0", "1"]))];
        let owner = owner_of_timers(&cinemas, Duration::from_secs(60)).await;
        assert_eq!(owner.unwrap(), 2);
        let failure = owner_of_timers(&cinemas[..1], Duration::ZERO).await;
        let told = failure.unwrap_err().to_string();
        assert!(told.contains("[1] owns the timers"), "{told}");
    }

    /// What happened: the help of the metric, which each cinema tells, was taken for its value, so the cinema that was
    /// hurt was always the first.
    #[test]
    fn only_the_cinema_that_owns_the_timers_is_taken_for_their_owner() {
        for help in [
            "1 in the process that gives back",
            "Is 1 in the process that gives back",
        ] {
            assert!(owns_timers(&page(help, "1")), "{help}");
            for value in ["0", "10"] {
                assert!(!owns_timers(&page(help, value)), "{help}, {value}");
            }
        }
    }
}
