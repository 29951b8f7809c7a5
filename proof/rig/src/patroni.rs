//! PostgreSQL servers on this machine that Patroni keeps highly available with etcd. The programs are those of the
//! distribution.
//!
//! Why: Patroni promotes, demotes and rewinds by itself, in an order and at times that no test of ours would think of.
//! Members are numbered from 0; a number keeps its ports and folder. Invariants: everything listens on 127.0.0.1 only,
//! nothing of PostgreSQL runs as root, and nothing outlives the process that started it: Patroni detaches the servers
//! that it starts, so a shell (the *keeper*) ends them and removes all files when its standard input closes. Not here:
//! fail-overs that a test makes by itself ([`Cluster`](crate::Cluster)).

mod api;
mod config;

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use self::config::MemberFile;
pub use self::config::PatroniConfig;
use crate::ask::query;
use crate::processes::{children_of, is_alive, suspend};
use crate::run_as::{RunAs, has_program};
use crate::{Child, Output, Replication, Result, find_binaries, free_address, wait_until};

/// The script of the keeper; `$0` is the folder of all members. It also kills processes that are suspended.
const KEEP: &str = r#"
read -r _
for patroni in $(cat "$0"/*/patroni.pid 2>/dev/null); do
    kill -9 "$patroni" 2>/dev/null
    while readlink "/proc/$patroni/exe"; do sleep 0.02; done
done
for lock in "$0"/*/data/postmaster.pid; do
    read -r server <"$lock" || continue
    kill -STOP "$server"
    kill -9 $(cat "/proc/$server/task/$server/children") "$server"
    while readlink "/proc/$server/exe"; do sleep 0.02; done
done
rm -rf "$0"
"#;

/// How long it may take until all members follow a primary. This includes making two copies, or making a copy again.
const WHOLE_WITHIN: Duration = Duration::from_secs(180);
/// How long a switch-over may take.
const SWITCH_OVER_MAX: Duration = Duration::from_secs(60);
/// The pause between two looks at the members.
const LOOK: Duration = Duration::from_millis(50);

/// One server and its Patroni.
#[derive(Debug)]
struct Member {
    name: String,
    api: SocketAddr,
    server: SocketAddr,
    home: PathBuf,
    patroni: Option<Child>,
}

/// The members and their etcd. Dropping it kills all their processes.
#[derive(Debug)]
pub struct Patroni {
    config: PatroniConfig,
    members: Vec<Member>,
    /// The processes that send to standbys and were suspended.
    held: Vec<i32>,
    run_as: RunAs,
    etcd: Option<Child>,
    keeper: std::process::Child,
    home: TempDir,
}

impl Patroni {
    /// Tells whether PostgreSQL, Patroni and etcd are installed.
    #[must_use]
    pub fn is_installed() -> bool {
        find_binaries().is_some() && has_program("patroni") && has_program("etcd")
    }

    /// Starts all servers, blocking until all members follow a primary. Returns `None`, with a message on standard
    /// error, if one of the programs is not installed.
    ///
    /// # Errors
    /// If a part does not start; the text holds the logs.
    pub fn start(config: PatroniConfig) -> Result<Option<Self>> {
        let binaries = find_binaries().filter(|_| Self::is_installed());
        let Some(binaries) = binaries else {
            let packages = "postgresql, patroni, etcd-server";
            eprintln!(
                "\n*** {packages} are not all installed: what needs Patroni is SKIPPED ***\n"
            );
            return Ok(None);
        };
        let home = tempfile::Builder::new()
            .prefix("gesta-patroni-")
            .tempdir()?;
        let run_as = RunAs::find()?;
        run_as.own(home.path())?;
        let keeper = Command::new("/bin/sh")
            .args(["-c", KEEP])
            .arg(home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let mut cluster = Self {
            config,
            members: Vec::new(),
            held: Vec::new(),
            run_as,
            etcd: None,
            keeper,
            home,
        };
        let etcd = cluster.start_etcd()?;
        for number in 0..cluster.config.members {
            cluster.add_member(number, etcd, &binaries)?;
            cluster.start_node(number)?;
        }
        cluster.wait_until_whole()?;
        Ok(Some(cluster))
    }

    fn start_etcd(&mut self) -> Result<SocketAddr> {
        let (clients, peers) = (free_address()?, free_address()?);
        let folder = self.folder("etcd")?;
        let log = self.home.path().join("etcd.log");
        let urls = [clients, peers].map(|address| format!("http://{address}"));
        let cluster = format!("only={}", urls[1]);
        let arguments = [
            ("--name", "only"),
            ("--data-dir", &folder.display().to_string()),
            ("--listen-client-urls", &urls[0]),
            ("--advertise-client-urls", &urls[0]),
            ("--listen-peer-urls", &urls[1]),
            ("--initial-advertise-peer-urls", &urls[1]),
            ("--initial-cluster", &cluster),
            ("--enable-v2", "true"),
        ];
        let arguments = arguments.map(|(name, value)| format!("{name}={value}"));
        let words = self.run_as.words(Path::new("etcd"));
        let arguments = words[1..].iter().cloned().chain(arguments.map(Into::into));
        let etcd = Child::start(words[0].as_ref(), arguments, None, Output::Log, &log)?;
        let ready = || api::is_so(clients, "/health") || !etcd.is_alive();
        wait_until("etcd does not get ready", ready)?;
        if !etcd.is_alive() {
            return Err(format!("etcd has ended:\n{}", etcd.log_tail()).into());
        }
        self.etcd = Some(etcd);
        Ok(clients)
    }

    fn add_member(&mut self, number: usize, etcd: SocketAddr, binaries: &Path) -> Result<()> {
        let name = format!("member_{number}");
        let home = self.folder(&name)?;
        let (api, server) = (free_address()?, free_address()?);
        let file = MemberFile {
            name: &name,
            etcd,
            api,
            server,
            home: &home,
            binaries,
        };
        std::fs::write(home.join("patroni.yml"), file.text(&self.config))?;
        self.members.push(Member {
            name,
            api,
            server,
            home,
            patroni: None,
        });
        Ok(())
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.home.path().join(name);
        std::fs::create_dir(&folder)?;
        self.run_as.own(&folder)?;
        Ok(folder)
    }

    /// Starts the Patroni of a member that has none. Patroni then starts the server.
    ///
    /// # Errors
    /// If no process can be started.
    pub fn start_node(&mut self, number: usize) -> Result<()> {
        let member = &mut self.members[number];
        let home = member.home.display();
        let mut words = self.run_as.words(Path::new("env"));
        words.push(format!("--chdir={home}").into());
        words.push(format!("HOME={home}").into());
        words.push("LC_ALL=C.UTF-8".into());
        words.push("patroni".into());
        words.push(member.home.join("patroni.yml").into());
        let log = member.home.join("patroni.log");
        let patroni = Child::start(words[0].as_ref(), &words[1..], None, Output::Log, &log)?;
        std::fs::write(member.home.join("patroni.pid"), patroni.pid().to_string())?;
        member.patroni = Some(patroni);
        Ok(())
    }

    /// Returns the URL of the database `postgres` that names all members in the order of their numbers.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.members.iter().map(|m| m.server.to_string()).collect();
        format!("postgres://postgres@{}/postgres", hosts.join(","))
    }

    /// Returns the URL of the database `postgres` of each member.
    #[must_use]
    pub fn member_urls(&self) -> Vec<String> {
        self.members.iter().map(Member::url).collect()
    }

    /// Returns the addresses at which the servers listen.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.server).collect()
    }

    /// Returns the member whose Patroni says that it is the primary.
    #[must_use]
    pub fn primary(&self) -> Option<usize> {
        let mut all = self.members.iter();
        all.position(|member| api::is_so(member.api, "/primary"))
    }

    /// Waits until all members follow one primary, with a synchronous standby if the configuration asks for one.
    /// Returns the primary.
    ///
    /// # Errors
    /// If that takes more than three minutes; the text holds the logs.
    pub fn wait_until_whole(&self) -> Result<usize> {
        let deadline = Instant::now() + WHOLE_WITHIN;
        loop {
            if let Some(primary) = self.whole() {
                return Ok(primary);
            }
            if Instant::now() > deadline {
                return Err(format!("the members do not all follow\n{}", self.logs()).into());
            }
            std::thread::sleep(LOOK);
        }
    }

    fn whole(&self) -> Option<usize> {
        let primary = self.primary()?;
        let others = || (0..self.members.len()).filter(|member| *member != primary);
        let says = |member: usize, path: &str| api::is_so(self.members[member].api, path);
        let synchronous = self.config.replication == Replication::Synchronous;
        if !others().all(|other| says(other, "/replica"))
            || (synchronous && !others().any(|other| says(other, "/synchronous")))
        {
            return None;
        }
        let standby = if synchronous { "sync" } else { "async" };
        let sql = format!(
            "SELECT count(*) = {} AND bool_or(sync_state = '{standby}') FROM pg_stat_replication WHERE state = 'streaming'",
            self.members.len() - 1
        );
        let answer = query(&self.members[primary].url(), &sql).ok()?;
        (answer.as_deref() == Some("t")).then_some(primary)
    }

    /// Asks Patroni to make another member the primary instead of `primary`. Returns when that is done.
    ///
    /// # Errors
    /// If Patroni refuses or fails.
    pub fn switch_over(&self, primary: usize) -> Result<()> {
        let member = &self.members[primary];
        let body = format!("{{\"leader\": \"{}\"}}", member.name);
        let answer = api::request(member.api, "POST", "/switchover", &body, SWITCH_OVER_MAX)?;
        match answer {
            (200, _) => Ok(()),
            (_, text) => Err(format!("no switch-over: {text}").into()),
        }
    }

    /// Kills the Patroni and the server of a member with all their processes, as when a machine dies, but the page
    /// cache of the machine is kept.
    ///
    /// # Errors
    /// If a process does not end.
    pub fn kill_node(&mut self, number: usize) -> Result<()> {
        let member = &mut self.members[number];
        let server = member.postmaster();
        if let Some(mut patroni) = member.patroni.take() {
            patroni.kill();
        }
        let Some(server) = server else { return Ok(()) };
        suspend(server, true)?;
        let mut all = children_of(server);
        all.push(server);
        for process in &all {
            let _ = kill(Pid::from_raw(*process), Signal::SIGKILL);
        }
        self.held.clear();
        wait_until_dead(&all)
    }

    /// Kills the first process of a member's server, whereupon the others end. Patroni lives.
    ///
    /// # Errors
    /// If there is no such process, or a process does not end.
    pub fn kill_postmaster(&self, number: usize) -> Result<()> {
        let server = self.members[number].postmaster();
        let server = server.ok_or("the member has no server")?;
        let mut all = children_of(server);
        all.push(server);
        kill(Pid::from_raw(server), Signal::SIGKILL)?;
        wait_until_dead(&all)
    }

    /// Suspends the Patroni of a member (`SIGSTOP`) or lets it go on. The server of the member is not touched.
    ///
    /// # Errors
    /// If the process does not stop.
    pub fn suspend_patroni(&self, number: usize, suspended: bool) -> Result<()> {
        let patroni = self.members[number].patroni.as_ref();
        let patroni = patroni.ok_or("the member has no Patroni")?;
        suspend(patroni.pid(), suspended)
    }

    /// Stops the replication from this primary: from now on no standby receives anything from it.
    ///
    /// # Errors
    /// If the primary does not answer or has no standbys.
    pub fn hold_replication(&mut self, primary: usize) -> Result<()> {
        let member = &self.members[primary];
        let senders = "SELECT string_agg(pid::text, ' ') FROM pg_stat_replication";
        let senders = query(&member.url(), senders)?.ok_or("the primary has no standbys")?;
        let ours = member.postmaster().map(children_of).unwrap_or_default();
        for sender in senders.split(' ') {
            let sender = sender.parse()?;
            if !ours.contains(&sender) {
                return Err(format!("process {sender} is not one of this server's").into());
            }
            suspend(sender, true)?;
            self.held.push(sender);
        }
        Ok(())
    }

    /// Lets the standbys of this server receive again, whether it is still a primary or not.
    ///
    /// # Errors
    /// If a process does not go on.
    pub fn release_replication(&mut self, primary: usize) -> Result<()> {
        // Only processes that still belong to this server are touched, since another process may have got the number.
        let ours = self.members[primary].postmaster();
        let ours = ours.map(children_of).unwrap_or_default();
        for sender in self.held.drain(..).filter(|pid| ours.contains(pid)) {
            suspend(sender, false)?;
        }
        Ok(())
    }

    /// Returns the last lines that each Patroni (and its server) has written.
    #[must_use]
    pub fn logs(&self) -> String {
        let told = self.members.iter().map(|member| {
            let tail = member.patroni.as_ref().map(Child::log_tail);
            format!("--- {}\n{}", member.name, tail.unwrap_or_default())
        });
        told.collect::<Vec<_>>().join("\n")
    }
}

impl Member {
    fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.server)
    }

    /// Returns the first process of the server, if it runs.
    fn postmaster(&self) -> Option<i32> {
        let lock = std::fs::read_to_string(self.home.join("data/postmaster.pid")).ok()?;
        let pid = lock.lines().next()?.trim().parse().ok()?;
        let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        (is_alive(pid) && folder == self.home.join("data")).then_some(pid)
    }
}

fn wait_until_dead(processes: &[i32]) -> Result<()> {
    let dead = || !processes.iter().any(|process| is_alive(*process));
    wait_until("the server does not end", dead)
}

impl Drop for Patroni {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.patroni = None;
        }
        self.etcd = None;
        drop(self.keeper.stdin.take());
        if let Err(error) = self.keeper.wait() {
            eprintln!("ending PostgreSQL: {error}");
        }
    }
}
