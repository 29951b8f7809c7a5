//! Everything that takes part: databases, each a primary with standbys that nobody promotes but we, the servers, and
//! the operator, who answers where a person must.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use gesta_rig::{Cluster, FaultProxy, Replication, free_address};
use tempfile::TempDir;
use gesta_report::failure::{Context, Result, blocking, fail};
use gesta_load::machine::child::{self, Program, Server};
use gesta_load::random::Random;

use crate::cluster::load::Way;

/// A primary and its standbys; all that Gesta sends them goes by way of proxies.
pub(super) struct Database {
    cluster: Cluster,
    proxies: Vec<FaultProxy>,
    /// Members that were primaries in this round, and are no more.
    gone: Vec<usize>,
    /// When the last new primary took writes.
    promoted: Option<Instant>,
}

impl Database {
    fn start(members: usize) -> Result<Self> {
        let Some(cluster) = blocking(|| Cluster::start(members - 1, Replication::Asynchronous))?
        else {
            return fail("PostgreSQL must be installed");
        };
        let proxies = (0..members).map(|member| FaultProxy::start(cluster.server(member).addr()));
        Ok(Self {
            proxies: proxies.collect::<std::io::Result<_>>()?,
            cluster,
            gone: Vec::new(),
            promoted: None,
        })
    }

    /// The URL that names all members.
    pub(super) fn url(&self) -> String {
        let addresses: Vec<_> = self.proxies.iter().map(FaultProxy::addr).collect();
        self.cluster.url_through(&addresses)
    }

    fn standbys(&self) -> impl Iterator<Item = usize> {
        let primary = self.cluster.primary();
        (0..self.proxies.len()).filter(move |member| *member != primary)
    }

    /// No standby receives anything from here on.
    pub(super) fn hold(&self) -> Result<()> {
        blocking(|| {
            self.standbys().try_for_each(|member| {
                self.cluster.wait_for_standby(member)?;
                self.cluster.hold_replication(member)
            })
        })
    }

    /// The primary is gone, or out of everybody's reach and alive, and a standby takes its place.
    pub(super) fn fail_over(&mut self, is_killed: bool, random: &mut Random) -> Result<()> {
        let old = self.cluster.primary();
        self.gone.push(old);
        let standbys = self.standbys().filter(|member| !self.gone.contains(member));
        let standbys: Vec<usize> = standbys.collect();
        if standbys.is_empty() {
            return fail("there is no standby left");
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
    pub(super) fn heal(&mut self) -> Result<()> {
        for member in self.standbys().collect::<Vec<_>>() {
            blocking(|| self.cluster.follow(member))?;
            self.proxies[member].refuse_connections(false);
        }
        self.gone.clear();
        Ok(())
    }
}

/// What a person does where the product asks for it, and how often.
pub(super) struct Operator {
    program: PathBuf,
    given: Mutex<BTreeMap<String, u64>>,
    /// One answer at a time.
    turn: tokio::sync::Mutex<()>,
}

impl Operator {
    /// Runs a command; what it says if it succeeds.
    async fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command = std::process::Command::new(&self.program);
        command.args(arguments);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        match output.status.success() {
            true => Ok(said),
            false => fail(said),
        }
    }

    /// A group is halted: it goes on where its history survives, or at its start.
    pub(super) async fn reset(&self, group: &str, server: &str) {
        let _turn = self.turn.lock().await;
        let arguments = [
            "group", "info", group, "--output", "json", "--store", server,
        ];
        // Another consumer may have asked before.
        let info = self.run(&arguments).await;
        if !info.is_ok_and(|info| info.contains("halted")) {
            return;
        }
        for to in ["surviving", "start"] {
            let arguments = [
                "group", "reset", group, "--to", to, "--yes", "--store", server,
            ];
            if self.run(&arguments).await.is_ok() {
                self.answered(format!("group reset --to {to}"));
                return;
            }
        }
    }

    /// Moves a log to another database than that in which it lies; false if the product refuses to.
    pub(super) async fn move_log(&self, log: u16, databases: &[String]) -> bool {
        for to in databases {
            let mut arguments = vec!["cluster", "move-log"];
            let log = log.to_string();
            arguments.extend([log.as_str(), "--to", to]);
            arguments.extend(databases.iter().flat_map(|url| ["--store", url]));
            // It is refused if the log lies there.
            if self.run(&arguments).await.is_ok() {
                self.answered("cluster move-log".into());
                return true;
            }
        }
        false
    }

    /// A log is lost: a copy becomes the log. If several have events of their own, one of them does.
    pub(super) async fn recover(&self, log: u16, databases: &[String]) -> Result<()> {
        let log = log.to_string();
        let mut arguments = vec!["cluster", "recover-log", log.as_str()];
        arguments.extend(databases.iter().flat_map(|url| ["--store", url]));
        let Err(refused) = self.run(&arguments).await else {
            self.answered("cluster recover-log".into());
            return Ok(());
        };
        for from in databases {
            let mut arguments = arguments.clone();
            arguments.extend(["--from", from, "--accept-loss"]);
            if self.run(&arguments).await.is_ok() {
                self.answered("cluster recover-log --accept-loss".into());
                return Ok(());
            }
        }
        fail(format!("log {log} cannot be recovered: {refused}"))
    }

    fn answered(&self, what: String) {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        *given.entry(what).or_default() += 1;
    }

    /// What was answered so far, and how often.
    pub(super) fn given(&self) -> BTreeMap<String, u64> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.clone()
    }
}

/// Fields are dropped in this order: servers, databases, files.
pub(super) struct World {
    pub(super) servers: Vec<Server>,
    pub(super) databases: Vec<Database>,
    pub(super) logs: u16,
    /// Logs that have moved.
    pub(super) moved: BTreeSet<u16>,
    files: TempDir,
}

impl World {
    /// Starts databases with so many members each, then a server, or two nodes.
    pub(super) async fn start(
        program: &Path,
        databases: usize,
        members: usize,
        are_nodes: bool,
    ) -> Result<Self> {
        let started = (0..databases).map(|_| Database::start(members));
        // A database holds every second log, and with them streams whose groups keep their places elsewhere.
        let logs = match databases {
            1 => 1,
            _ => u16::try_from(2 * databases)?,
        };
        let mut world = Self {
            servers: Vec::new(),
            databases: started.collect::<Result<_>>()?,
            logs,
            moved: BTreeSet::new(),
            files: TempDir::new()?,
        };
        gesta::schema::create(&world.url(), logs).await?;
        for number in 0..1 + usize::from(are_nodes) {
            let mut program = Program::gesta(program);
            if are_nodes {
                program.join_cluster(free_address()?, world.files.path())?;
            }
            for database in world.databases.iter().skip(1) {
                program.arguments.extend(["--store".into(), database.url()]);
            }
            let log = world.files.path().join(format!("server {number}"));
            let first = world.databases[0].url();
            let server = Server::start_program(program, &first, &log).await?;
            world.servers.push(server);
        }
        Ok(world)
    }

    /// The operator of this program.
    pub(super) fn operator(program: &Path) -> Operator {
        Operator {
            program: program.to_owned(),
            given: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// The URLs of all databases.
    pub(super) fn urls(&self) -> Vec<String> {
        self.databases.iter().map(Database::url).collect()
    }

    /// The URL of the store.
    pub(super) fn url(&self) -> String {
        self.urls().join(" ")
    }

    /// True if a log may lie in one of these databases. Logs lie there in turn, unless they have moved.
    pub(super) fn may_lie_in(&self, databases: &[usize], log: u16) -> bool {
        self.moved.contains(&log) || databases.contains(&(usize::from(log) % self.databases.len()))
    }

    /// When the last new primary took writes of those of these databases in which a log may lie.
    pub(super) fn promoted(&self, databases: &[usize], log: u16) -> Option<Instant> {
        let of_log = databases
            .iter()
            .filter(|database| self.may_lie_in(&[**database], log));
        of_log
            .filter_map(|database| self.databases[*database].promoted)
            .max()
    }

    /// How clients reach the servers.
    pub(super) fn ways(&self) -> Vec<Way> {
        let servers = self.servers.iter().enumerate();
        let ways = servers.map(|(number, server)| Way {
            name: format!("server {number}"),
            url: server.url(),
        });
        ways.collect()
    }

    /// How clients reach those that live.
    pub(super) fn alive(&self) -> Vec<Way> {
        let ways = self.ways().into_iter().zip(&self.servers);
        let alive = ways.filter(|(_, server)| server.is_alive());
        alive.map(|(way, _)| way).collect()
    }

    /// What the servers said last.
    pub(super) fn logs_of_servers(&self) -> String {
        let told = self.servers.iter().enumerate();
        told.map(|(number, server)| format!("--- server {number}\n{}\n", server.log_tail()))
            .collect()
    }

    /// Stops the servers and has `gesta verify` look at the store.
    pub(super) async fn verify(&mut self, program: &Path) -> Result<()> {
        for server in &mut self.servers {
            if !server.stop().await {
                return fail("a server did not end when it was told to");
            }
        }
        let urls = self.databases.iter().map(Database::url);
        child::verify(program, urls).context("in the end")
    }
}
