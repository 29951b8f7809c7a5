//! What can be hurt: databases, the servers or nodes on them, their clocks, and proxies on the ways between.
//!
//! Read [`Plan`] first (what a world is made of), then [`World`], then `database` (what stores) and `links` (the ways
//! between nodes). Who owns which log is seen by [`Owners`], and answered for by the [`Operator`] where a person must.
//! Not here: faults (`inflict`), and who works meanwhile (`load`).

pub(crate) mod clocks;
mod database;
mod links;
mod operator;
mod owners;
pub(crate) mod probe;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{join_all, try_join_all};
use gesta_client::{Config, HttpStore};
use gesta_load::machine::CurrentStore;
use gesta_load::machine::child::{self, Program, Server};
use gesta_load::machine::postgres;
use gesta_load::random::Random;
use gesta_report::failure::{Context, Result, fail};
use gesta_rig::{FaultProxy, Replication, free_address};
use serde::Serialize;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use self::clocks::{Clock, ClockReadings};

pub use self::database::{Database, Replicated};
pub(crate) use self::links::Links;
pub(crate) use self::operator::Operator;
pub use self::owners::{Moved, Moves, Owners};

/// How long Gesta waits for a silent database where rounds are to be short.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the logs may take to be shared equally.
const SETTLED_WITHIN: Duration = Duration::from_secs(180);
/// How often waits look.
const LOOK: Duration = Duration::from_millis(200);

/// Where the store of a world lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Databases {
    /// In a SQLite file.
    File,
    /// On so many PostgreSQL servers that are started for it; its logs lie in them in turn.
    Alone(u16),
    /// The same, each with so many standbys, which lag when they are told to and which nobody promotes but chaos.
    Replicated {
        /// PostgreSQL primaries.
        count: u16,
        /// Standbys of each.
        standbys: u16,
    },
    /// On a PostgreSQL cluster of so many members in the care of Patroni.
    Patroni {
        /// PostgreSQL servers.
        members: u16,
        /// How the standbys follow.
        replication: Replication,
    },
    /// In a PostgreSQL database that is there already, which nobody else uses and whose server is not ours to hurt.
    Theirs(String),
}

/// The ways that have proxies, and what else can be hurt beside processes. Who calls a dead node through a proxy is
/// accepted and cut off; without one it is refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// From clients to members.
    pub clients: bool,
    /// From members to databases.
    pub databases: bool,
    /// From nodes to each other.
    pub links: bool,
    /// The clocks of members.
    pub clocks: bool,
}

impl Parts {
    /// Those of either.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            clients: self.clients || other.clients,
            databases: self.databases || other.databases,
            links: self.links || other.links,
            clocks: self.clocks || other.clocks,
        }
    }
}

/// What a world is made of.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where the store lies.
    pub databases: Databases,
    /// Logs of the store, if it is created for this world.
    pub logs: u16,
    /// The program of every member.
    pub program: Program,
    /// How many of it run; one on a SQLite file.
    pub members: u16,
    /// They are nodes of one cluster, and not servers each for itself.
    pub are_nodes: bool,
    /// What can be hurt.
    pub parts: Parts,
    /// Extra round trip between the last of several members and its databases.
    pub far: Duration,
    /// How long members wait for a silent database; none: as long as they do by themselves.
    pub answer_timeout: Option<Duration>,
    /// A folder on a small file system that holds the files of the world.
    pub small_disk: Option<PathBuf>,
}

impl Plan {
    /// So many members of a program on a store of one log, with nothing between them that could be hurt.
    pub fn new(databases: Databases, program: Program, members: u16) -> Self {
        Self {
            databases,
            logs: 1,
            program,
            members,
            are_nodes: false,
            parts: Parts::default(),
            far: Duration::ZERO,
            answer_timeout: None,
            small_disk: None,
        }
    }

    /// So many nodes on a store of so many logs that lie in so many databases.
    pub fn nodes(program: Program, members: u16, logs: u16, databases: u16) -> Self {
        Self {
            logs,
            are_nodes: true,
            ..Self::new(Databases::Alone(databases), program, members)
        }
    }
}

/// How clients reach a member.
#[derive(Debug, Clone)]
pub struct Way {
    /// For people.
    pub name: String,
    /// Where it serves.
    pub url: String,
}

impl Way {
    /// A client that gives up soon what can be asked of another member.
    pub fn connect(&self) -> Result<HttpStore> {
        let config = Config {
            connect_max: Duration::from_secs(1),
            answer_max: Duration::from_secs(40),
            ..Config::default()
        };
        Ok(HttpStore::with_config(&self.url, config)?)
    }

    /// The same, for writers and tails.
    pub fn client(&self) -> Result<Arc<CurrentStore>> {
        Ok(CurrentStore::new(Arc::new(self.connect()?), None))
    }
}

/// Connections to a database that can be hurt.
#[derive(Debug)]
pub(crate) struct DatabaseProxy {
    /// Where the faults are.
    pub(crate) proxy: FaultProxy,
    /// Its usual extra round trip.
    pub(crate) round_trip: Duration,
    /// Replies lost so far.
    pub(crate) lost: u64,
}

impl DatabaseProxy {
    fn new(proxy: FaultProxy, round_trip: Duration) -> Self {
        Self {
            proxy,
            round_trip,
            lost: 0,
        }
    }
}

/// A process that serves the store: a server, a node or an application.
pub struct Member {
    /// For people.
    pub name: String,
    /// The process.
    pub server: Server,
    /// Where other nodes reach it; its own address if it is no node.
    pub address: String,
    /// Between clients and it.
    pub(crate) clients: Option<FaultProxy>,
    /// Between it and each database.
    pub(crate) databases: Vec<DatabaseProxy>,
    /// Between the other nodes and it.
    pub(crate) links: Option<Links>,
    /// Its clock, if it can be set.
    pub(crate) clock: Option<Clock>,
}

impl Member {
    /// Where clients reach it.
    pub fn way(&self) -> Way {
        let name = self.name.clone();
        let url = match &self.clients {
            Some(clients) => format!("http://{}", clients.addr()),
            None => self.server.url(),
        };
        Way { name, url }
    }

    /// The address of [`way`](Self::way).
    pub fn target(&self) -> SocketAddr {
        let clients = self.clients.as_ref();
        clients.map_or_else(|| self.server.address(), FaultProxy::addr)
    }
}

/// A store that is open in this process.
pub(crate) struct Here {
    /// The store.
    pub(crate) store: Arc<CurrentStore>,
    /// Between it and its database or server.
    pub(crate) proxy: Option<DatabaseProxy>,
}

/// All of it. Fields are dropped in this order: members, databases, files.
pub struct World {
    /// Who serves the store.
    pub members: Vec<Member>,
    /// The store, if this process has it open.
    pub(crate) here: Option<Here>,
    /// What stores; nothing for a SQLite file.
    pub databases: Vec<Database>,
    /// Logs of the store.
    pub logs: u16,
    /// True if the members are nodes of one cluster.
    pub are_nodes: bool,
    /// Logs that have moved to another database.
    pub(crate) moved: BTreeSet<u16>,
    /// A folder of the world's own, where the disk can be filled.
    pub(crate) small_disk: Option<PathBuf>,
    files: TempDir,
}

impl World {
    /// Starts everything that a plan names; returns when every member serves.
    pub async fn start(plan: &Plan) -> Result<Self> {
        let files = match &plan.small_disk {
            Some(folder) => TempDir::new_in(folder),
            None => TempDir::new(),
        }?;
        let mut world = Self {
            members: Vec::new(),
            here: None,
            databases: Database::start(&plan.databases).await?,
            logs: plan.logs,
            are_nodes: plan.are_nodes,
            moved: BTreeSet::new(),
            small_disk: plan.small_disk.as_ref().map(|_| files.path().to_owned()),
            files,
        };
        if !matches!(plan.databases, Databases::File | Databases::Theirs(_)) {
            gesta::schema::create(&world.url(), plan.logs).await?;
        }
        let addresses = (0..plan.members).map(|_| free_address());
        let addresses: Vec<SocketAddr> = addresses.collect::<std::io::Result<_>>()?;
        let numbers = 0..addresses.len();
        if plan.far.is_zero() {
            let started = numbers.map(|number| world.enter(plan, number, &addresses));
            world.members = try_join_all(started).await?;
            return Ok(world);
        }
        // Who is far comes last, so that those who are near have the logs.
        for number in numbers {
            let member = world.enter(plan, number, &addresses).await?;
            world.members.push(member);
        }
        Ok(world)
    }

    /// A store of this process, and the server that was started for it.
    pub(crate) fn around(
        store: Arc<CurrentStore>,
        proxy: Option<FaultProxy>,
        round_trip: Duration,
        postgres: Option<gesta_rig::Server>,
    ) -> Result<Self> {
        Ok(Self {
            members: Vec::new(),
            here: Some(Here {
                store,
                proxy: proxy.map(|proxy| DatabaseProxy::new(proxy, round_trip)),
            }),
            databases: postgres.into_iter().map(Database::Alone).collect(),
            logs: 1,
            are_nodes: false,
            moved: BTreeSet::new(),
            small_disk: None,
            files: TempDir::new()?,
        })
    }

    /// Starts the member of this number; nodes listen for each other at these addresses.
    async fn enter(&self, plan: &Plan, number: usize, addresses: &[SocketAddr]) -> Result<Member> {
        let (mut program, own) = (plan.program.clone(), addresses[number]);
        let is_last_of_several = number > 0 && number + 1 == addresses.len();
        let far = if is_last_of_several {
            plan.far
        } else {
            Duration::ZERO
        };
        let (mut urls, mut proxies) = (Vec::new(), Vec::new());
        for database in &self.databases {
            let mut url = database.url();
            if let Some(address) = database.address()?
                && (plan.parts.databases || !far.is_zero())
            {
                let proxy = FaultProxy::to_postgres(address).context("starting a proxy")?;
                proxy.set_round_trip(far);
                url = proxy.url(&url);
                proxies.push(DatabaseProxy::new(proxy, far));
            }
            if let Some(time) = plan.answer_timeout {
                let seconds = time.as_secs().to_string();
                url = gesta_report::endpoint::with_parameter(&url, "answer_timeout", &seconds);
            }
            urls.push(url);
        }
        if urls.is_empty() {
            urls.push(self.file_url());
        }
        let kind = if plan.are_nodes { "node" } else { "server" };
        let (name, mut address, mut links) = (format!("{kind} {number}"), own, None);
        if plan.are_nodes {
            program.join_cluster(own, self.files.path())?;
        }
        if plan.are_nodes && plan.parts.links {
            let of_node = Links::start(own, addresses).await?;
            address = of_node.address;
            let options = ["--advertise".to_owned(), address.to_string()];
            program.arguments.extend(options);
            links = Some(of_node);
        }
        let clock = match plan.parts.clocks {
            true => Some(Clock::give(
                &mut program,
                self.files.path(),
                &number.to_string(),
            )?),
            false => None,
        };
        let log = self.files.path().join(format!("{name}.log"));
        let server = Server::start_program(program, &urls.join(" "), &log).await?;
        let clients = match plan.parts.clients {
            true => Some(FaultProxy::start(server.address()).context("starting a proxy")?),
            false => None,
        };
        Ok(Member {
            name,
            server,
            address: address.to_string(),
            clients,
            databases: proxies,
            links,
            clock,
        })
    }

    fn file_url(&self) -> String {
        format!("sqlite:{}", self.files.path().join("store.db").display())
    }

    /// The URL of the store, which has the URLs of all databases.
    pub fn url(&self) -> String {
        match self.databases.is_empty() {
            true => self.file_url(),
            false => self.urls().join(" "),
        }
    }

    /// The URL of each database.
    pub fn urls(&self) -> Vec<String> {
        self.databases.iter().map(Database::url).collect()
    }

    /// True if only one process can have the store open.
    pub(crate) fn is_of_one_process(&self) -> bool {
        self.databases.is_empty()
    }

    /// How clients reach the members.
    pub fn ways(&self) -> Vec<Way> {
        self.members.iter().map(Member::way).collect()
    }

    /// How clients reach those that live.
    pub(crate) fn alive(&self) -> Vec<Way> {
        let alive = self
            .members
            .iter()
            .filter(|member| member.server.is_alive());
        alive.map(Member::way).collect()
    }

    /// What the clocks of the members have shown.
    pub(crate) fn clock_readings(&self) -> ClockReadings {
        let clocks = self
            .members
            .iter()
            .filter_map(|member| member.clock.as_ref());
        ClockReadings(clocks.map(Clock::spans).collect())
    }

    /// The PostgreSQL servers that stand alone and are ours.
    fn alone(&mut self) -> Vec<&mut gesta_rig::Server> {
        let all = self.databases.iter_mut();
        all.filter_map(Database::server_mut).collect()
    }

    /// One of these parts, by chance.
    pub(crate) fn some<'a, T>(
        parts: impl Iterator<Item = &'a mut T>,
        random: &mut Random,
    ) -> Result<&'a mut T> {
        let mut parts: Vec<&mut T> = parts.collect();
        if parts.is_empty() {
            return fail("this world has nothing of the kind");
        }
        let at = random.below(parts.len());
        Ok(parts.swap_remove(at))
    }

    /// All connections to databases that can be hurt.
    pub(crate) fn proxies(&mut self) -> impl Iterator<Item = &mut DatabaseProxy> {
        let here = self.here.iter_mut().filter_map(|here| here.proxy.as_mut());
        let members = self.members.iter_mut();
        members.flat_map(|member| &mut member.databases).chain(here)
    }

    /// Starts again what a fault may have ended: a full disk ends PostgreSQL, or closes a SQLite store until it is
    /// opened again.
    pub(crate) async fn revive(&mut self) -> Result<()> {
        for server in self.alone() {
            if postgres::connect(&server.url()).await.is_err() {
                gesta_report::failure::blocking(|| server.restart())?;
            }
        }
        for member in &mut self.members {
            let server = &mut member.server;
            if !server.is_alive() || !child::is_ready(server.address()).await {
                server.launch().await?;
            }
        }
        Ok(())
    }

    /// True if a log may lie in one of these databases. Logs lie there in turn, unless they have moved.
    pub(crate) fn may_lie_in(&self, databases: &[usize], log: u16) -> bool {
        let at = usize::from(log) % self.databases.len().max(1);
        self.moved.contains(&log) || databases.contains(&at)
    }

    /// When the last new primary took writes of those of these databases in which a log may lie.
    pub(crate) fn promoted(&self, databases: &[usize], log: u16) -> Option<Instant> {
        let of_log = databases.iter().filter(|at| self.may_lie_in(&[**at], log));
        let promoted = of_log.filter_map(|at| self.databases[*at].promoted());
        promoted.max()
    }

    /// Waits until no node owns more than its share of the logs and no log moves, and gives who owns each. Logs begin
    /// to move for the sake of balance 20 s after the last change, and then one in a second. Once it is interrupted it
    /// gives who owns each then.
    pub async fn settled(&self, stop: &CancellationToken) -> Result<Ownership> {
        let (deadline, nodes) = (Instant::now() + SETTLED_WITHIN, self.members.len());
        loop {
            let found = self.ownership().await?;
            if found.is_settled(nodes) || stop.is_cancelled() {
                return Ok(found);
            }
            if Instant::now() > deadline {
                let counts = found.counts(nodes);
                return fail(format!("the logs do not settle: each node has {counts:?}"));
            }
            stop.run_until_cancelled(tokio::time::sleep(LOOK)).await;
        }
    }

    /// Who owns each log. Of a store of one database.
    pub async fn ownership(&self) -> Result<Ownership> {
        let client = postgres::connect(&self.url()).await?;
        let sql = "SELECT coalesce(max(number), 0) FROM gesta.moves";
        // First, so that a move between the two is not taken for one before.
        let last_move = client.query_one(sql, &[]).await?.get(0);
        let sql = "SELECT CASE WHEN l.next_owner IS NULL THEN n.address END FROM gesta.leases AS l \
             LEFT JOIN gesta.nodes AS n ON n.id = l.owner AND n.generation = l.generation ORDER BY l.log";
        let rows = client.query(sql, &[]).await?;
        let owner = |address: Option<String>| {
            let address = address?;
            self.members.iter().position(|node| node.address == address)
        };
        Ok(Ownership {
            owners: rows.iter().map(|row| owner(row.get(0))).collect(),
            last_move,
        })
    }

    /// The node that owns the log of a store that has one.
    pub async fn owner_of_the_only_log(&self) -> Result<usize> {
        match self.ownership().await?.owners.as_slice() {
            [Some(owner)] => Ok(*owner),
            owners => fail(format!("not one log with an owner: {owners:?}")),
        }
    }

    /// Ends all members as an operator would.
    ///
    /// # Errors
    /// One of them had to be killed.
    pub async fn stop(&mut self) -> Result<()> {
        let ended = join_all(self.members.iter_mut().map(|member| member.server.stop())).await;
        match ended.iter().position(|ended| !ended) {
            Some(at) => fail(format!(
                "{} did not end when it was told to",
                self.members[at].name
            )),
            None => Ok(()),
        }
    }

    /// Stops the members and has `gesta verify` look at the store.
    ///
    /// # Errors
    /// What it complains about.
    pub(crate) async fn verify(&mut self, program: &Path) -> Result<()> {
        self.stop().await?;
        let urls = match self.databases.is_empty() {
            true => vec![self.file_url()],
            false => self.urls(),
        };
        child::verify(program, urls.into_iter()).context("in the end")
    }

    /// What the members and databases said last.
    pub fn last_words(&self) -> String {
        let members = self.members.iter().map(|member| {
            let (name, log) = (&member.name, member.server.log_tail());
            format!("--- {name}\n{log}")
        });
        let databases = self.databases.iter().filter_map(Database::logs);
        members.chain(databases).collect::<Vec<_>>().join("\n")
    }
}

/// Who owns which log at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// The node that owns each log; none of a log that moves or has no owner.
    pub owners: Vec<Option<usize>>,
    /// The number of the last move before that.
    last_move: i64,
}

impl Ownership {
    /// True if each of so many nodes has its share of the logs and none moves. A node gives nothing away as long as it
    /// has no more than its share, rounded up.
    fn is_settled(&self, nodes: usize) -> bool {
        let share = self.owners.len().div_ceil(nodes);
        let has_share = |count: &usize| *count <= share;
        self.owners.iter().all(Option::is_some) && self.counts(nodes).iter().all(has_share)
    }

    /// How many logs each node has.
    fn counts(&self, nodes: usize) -> Vec<usize> {
        let count = |node| {
            let of_node = self.owners.iter().filter(|owner| **owner == Some(node));
            of_node.count()
        };
        (0..nodes).map(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_settled_if_each_node_has_its_share_and_none_moves() {
        for (owners, is_settled) in [
            (vec![Some(0), Some(1), Some(0), Some(1)], true),
            (vec![Some(0), Some(1), Some(0), Some(1), Some(1)], true),
            (vec![Some(0), Some(0), Some(0), Some(1)], false),
            (vec![Some(0), Some(1), None, Some(1)], false),
        ] {
            let last_move = 7;
            let found = Ownership { owners, last_move };
            assert_eq!(found.is_settled(2), is_settled, "{found:?}");
        }
    }
}
