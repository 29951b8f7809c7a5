//! `gesta serve`, or another server, as a child process: started, waited for, killed, suspended, started again on the
//! same port.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use gesta_core::{Clock as _, SystemClock, Timestamp};
use gesta_report::failure::{Context, Failure, Result, fail};
use gesta_rig::{Child, Output, free_address};
use hyper::Method;
use nix::sys::signal::Signal;

use crate::machine::http::Connection;

const READY_PATH: &str = "/health/ready";
/// A path that every cinema answers once it is ready.
const CINEMA_READY_PATH: &str = "/shows/00000000-0000-0000-0000-000000000000";
/// What all nodes of a cluster share.
const SECRET: &str = "a secret that all nodes of a run share";
const READY_WITHIN: Duration = Duration::from_secs(60);
const END_WITHIN: Duration = Duration::from_secs(60);
/// How often the state of a process is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Which program is the server.
#[derive(Debug, Clone, clap::Args)]
pub struct ProgramArgs {
    /// The server program. Default: `gesta` beside this program.
    #[arg(long, env = "GESTA_BIN")]
    pub gesta: Option<PathBuf>,
}

impl ProgramArgs {
    /// Where the program is.
    pub fn find(&self) -> Result<PathBuf> {
        if let Some(path) = &self.gesta {
            // A name alone is looked for as the shell does.
            return match path.is_file() || path.components().count() == 1 {
                true => Ok(path.clone()),
                false => fail(format!("--gesta {}: no such file", path.display())),
            };
        }
        let own = std::env::current_exe()?;
        // Tests run from a folder below.
        let beside = own.ancestors().skip(1).take(2).map(|dir| dir.join("gesta"));
        beside
            .into_iter()
            .find(|path| path.is_file())
            .ok_or_else(|| {
                Failure(
                    "there is no `gesta` beside this program: build it, or name it by --gesta"
                        .into(),
                )
            })
    }
}

/// A program that serves a store: started as `PATH ARGUMENTS --store URL --listen ADDRESS`.
#[derive(Debug, Clone)]
pub struct Program {
    /// The file.
    pub path: PathBuf,
    /// What comes before the store.
    pub arguments: Vec<String>,
    /// A path that is answered with one of `ready_status` once it is ready.
    pub ready_path: &'static str,
    /// The statuses of an answer at `ready_path` that say that it is ready.
    pub ready_status: &'static [u16],
}

impl Program {
    /// Gesta's server.
    pub fn gesta(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            arguments: vec!["serve".into()],
            ready_path: READY_PATH,
            ready_status: &[200],
        }
    }

    /// A cinema.
    pub fn cinema(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            arguments: Vec::new(),
            ready_path: CINEMA_READY_PATH,
            ready_status: &[200, 404],
        }
    }

    /// Makes it a node of a cluster that the others reach at `own`. All nodes of a cluster have the same folder, in
    /// which their secret lies.
    pub fn join_cluster(&mut self, own: SocketAddr, folder: &Path) -> Result<()> {
        let secret = folder.join("secret");
        // A node that has started reads it meanwhile.
        if !secret.exists() {
            let mut options = std::fs::OpenOptions::new();
            let new = options.write(true).create_new(true).mode(0o600);
            new.open(&secret)?.write_all(SECRET.as_bytes())?;
        }
        let (own, secret) = (own.to_string(), secret.display().to_string());
        let options = ["--node", &own, "--cluster-secret-file", &secret];
        self.arguments.extend(options.map(str::to_owned));
        Ok(())
    }
}

/// A server process, running or not.
#[derive(Debug)]
pub struct Server {
    program: Program,
    store: String,
    address: SocketAddr,
    log: PathBuf,
    running: Option<Child>,
    /// When it was started last.
    started: Timestamp,
}

impl Server {
    /// Starts a server on a free loopback port; its log goes to `log`. Returns when it is ready.
    pub async fn start(program: &Path, store: &str, log: &Path) -> Result<Self> {
        Self::start_program(Program::gesta(program), store, log).await
    }

    /// Starts any program that takes a store and an address, as [`start`](Self::start) does.
    pub async fn start_program(program: Program, store: &str, log: &Path) -> Result<Self> {
        let mut server = Self {
            program,
            store: store.to_owned(),
            address: free_address()?,
            log: log.to_owned(),
            running: None,
            started: Timestamp::default(),
        };
        server.launch().await?;
        Ok(server)
    }

    /// Starts it again at the same address. Returns when it is ready.
    pub async fn launch(&mut self) -> Result<()> {
        self.kill();
        let address = self.address.to_string();
        let more = ["--store", &self.store, "--listen", &address].map(str::to_owned);
        let arguments = self.program.arguments.iter().chain(&more);
        self.started = SystemClock.now();
        let started = Child::start(&self.program.path, arguments, None, Output::Log, &self.log);
        self.running = Some(started.context("starting the server")?);
        let deadline = Instant::now() + READY_WITHIN;
        while !self.is_ready().await {
            let complaint = match self.is_alive() {
                false => "ended while starting",
                true if Instant::now() > deadline => "was not ready in time",
                true => {
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
            };
            let program = self.program.path.display();
            return fail(format!("{program} {complaint}:\n{}", self.log_tail()));
        }
        Ok(())
    }

    async fn is_ready(&self) -> bool {
        let status = status_of(self.address, self.program.ready_path).await;
        status.is_some_and(|status| self.program.ready_status.contains(&status))
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// When the process was started last.
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// The number of the process, if it was started.
    pub fn pid(&self) -> Option<i32> {
        self.running.as_ref().map(Child::pid)
    }

    /// True while the process lives.
    pub fn is_alive(&self) -> bool {
        self.running.as_ref().is_some_and(Child::is_alive)
    }

    /// `kill -9`; returns when it is dead.
    pub fn kill(&mut self) {
        if let Some(running) = &mut self.running {
            running.kill();
        }
    }

    /// Sends a signal, if it runs.
    pub fn signal(&self, signal: Signal) {
        if let Some(running) = &self.running {
            running.signal(signal);
        }
    }

    /// Ends it as an operator would; false if it had to be killed.
    pub async fn stop(&mut self) -> bool {
        self.signal(Signal::SIGTERM);
        let deadline = Instant::now() + END_WITHIN;
        while self.is_alive() && Instant::now() < deadline {
            tokio::time::sleep(LOOK).await;
        }
        let ended = !self.is_alive();
        self.kill();
        ended
    }

    /// The file of its log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let running = self.running.as_ref();
        running.map_or_else(String::new, Child::log_tail)
    }
}

/// Has `gesta verify` look at a store that nobody uses, whose databases have these URLs.
///
/// # Errors
/// What it complains about.
pub fn verify(program: &Path, urls: impl Iterator<Item = String>) -> Result<()> {
    let verified = tokio::task::block_in_place(|| {
        let mut command = std::process::Command::new(program);
        let stores = urls.flat_map(|url| ["--store".to_owned(), url]);
        command.arg("verify").args(stores).output()
    })?;
    if verified.status.success() {
        return Ok(());
    }
    let said = [verified.stdout, verified.stderr].concat();
    fail(format!("gesta verify: {}", String::from_utf8_lossy(&said)))
}

/// True if the server says that it is ready.
pub async fn is_ready(address: SocketAddr) -> bool {
    status_of(address, READY_PATH).await == Some(200)
}

/// The status with which a path is answered.
async fn status_of(address: SocketAddr, path: &str) -> Option<u16> {
    let ask = async {
        let mut connection = Connection::open(address).await?;
        connection.ask(Method::GET, path, Bytes::new()).await
    };
    let answer = tokio::time::timeout(Duration::from_secs(5), ask).await;
    Some(answer.ok()?.ok()?.0)
}
