//! `gesta serve`, or another server, as a child process: started, waited for, killed, suspended, started again on the same port.
//!
//! Invariant: it never outlives the lab. A shell waits between the two; when its standard input
//! closes, even because the lab was killed, it kills the server.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::failure::{Context, Failure, Result, fail};

/// `$0` is the file for what the server says. The shell does not reap the server while it reads, so its pid stays its own.
const SUPERVISE: &str = r#"
"$@" >>"$0" 2>&1 </dev/null &
server=$!
echo "$server"
read -r _
kill -9 "$server" 2>/dev/null
wait "$server"
"#;

const READY_PATH: &str = "/health/ready";
const READY_WITHIN: Duration = Duration::from_secs(60);
const END_WITHIN: Duration = Duration::from_secs(60);
/// How often the state of a process is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Which program is the server.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ProgramArgs {
    /// The server program. Default: `gesta` beside this program.
    #[arg(long, env = "GESTA_BIN")]
    pub(crate) gesta: Option<PathBuf>,
}

impl ProgramArgs {
    /// Where the program is.
    pub(crate) fn find(&self) -> Result<PathBuf> {
        if let Some(path) = &self.gesta {
            return Ok(path.clone());
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
pub(crate) struct Program {
    /// The file.
    pub(crate) path: PathBuf,
    /// What comes before the store.
    pub(crate) arguments: Vec<String>,
    /// A path that is answered with one of `ready_status` once it is ready.
    pub(crate) ready_path: &'static str,
    /// See there.
    pub(crate) ready_status: &'static [u16],
}

/// A server process, running or not.
#[derive(Debug)]
pub(crate) struct Server {
    program: Program,
    store: String,
    address: SocketAddr,
    log: PathBuf,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    shell: Child,
    pid: Pid,
}

impl Server {
    /// Starts a server on a free loopback port; its log goes to `log`. Returns when it is ready.
    pub(crate) async fn start(program: &Path, store: &str, log: &Path) -> Result<Self> {
        let program = Program {
            path: program.to_owned(),
            arguments: vec!["serve".into()],
            ready_path: READY_PATH,
            ready_status: &[200],
        };
        Self::start_program(program, store, log).await
    }

    /// Starts any program that takes a store and an address, as [`start`](Self::start) does.
    pub(crate) async fn start_program(program: Program, store: &str, log: &Path) -> Result<Self> {
        let mut server = Self {
            program,
            store: store.to_owned(),
            address: free_address()?,
            log: log.to_owned(),
            running: None,
        };
        server.launch().await?;
        Ok(server)
    }

    /// Starts it again at the same address. Returns when it is ready.
    pub(crate) async fn launch(&mut self) -> Result<()> {
        self.spawn()?;
        let deadline = Instant::now() + READY_WITHIN;
        while !self.is_ready().await {
            if !self.is_alive() {
                return fail(format!(
                    "{} ended while starting:\n{}",
                    self.program.path.display(),
                    self.log_tail()
                ));
            }
            if Instant::now() > deadline {
                return fail(format!(
                    "{} was not ready in time:\n{}",
                    self.program.path.display(),
                    self.log_tail()
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Starts the process without waiting for it.
    pub(crate) fn spawn(&mut self) -> Result<()> {
        self.kill();
        let mut shell = Command::new("/bin/sh")
            .arg("-c")
            .arg(SUPERVISE)
            .arg(&self.log)
            .arg(&self.program.path)
            .args(&self.program.arguments)
            .args([
                "--store",
                &self.store,
                "--listen",
                &self.address.to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The server has its log; the shell would tell of kills that are meant.
            .stderr(Stdio::null())
            .spawn()
            .context("starting the server")?;
        let mut line = String::new();
        BufReader::new(shell.stdout.take().expect("piped")).read_line(&mut line)?;
        let pid = line
            .trim()
            .parse()
            .map_err(|_| Failure(format!("no process id from the shell: {line:?}")))?;
        self.running = Some(Running {
            shell,
            pid: Pid::from_raw(pid),
        });
        Ok(())
    }

    async fn is_ready(&self) -> bool {
        let status = status_of(self.address, self.program.ready_path).await;
        status.is_some_and(|status| self.program.ready_status.contains(&status))
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// True while the process lives.
    pub(crate) fn is_alive(&self) -> bool {
        self.running.as_ref().is_some_and(|running| {
            let stat =
                std::fs::read_to_string(format!("/proc/{}/stat", running.pid)).unwrap_or_default();
            stat.rsplit_once(") ")
                .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
        })
    }

    /// `kill -9`; returns when it is dead.
    pub(crate) fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = kill(running.pid, Signal::SIGKILL);
            drop(running.shell.stdin.take());
            let _ = running.shell.wait();
        }
    }

    /// Sends a signal, if it runs.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(running) = &self.running {
            let _ = kill(running.pid, signal);
        }
    }

    /// Ends it as an operator would; false if it had to be killed.
    pub(crate) async fn stop(&mut self) -> bool {
        self.signal(Signal::SIGTERM);
        let deadline = Instant::now() + END_WITHIN;
        while self.is_alive() && Instant::now() < deadline {
            tokio::time::sleep(LOOK).await;
        }
        let ended = !self.is_alive();
        self.kill();
        ended
    }

    /// The last lines of its log.
    pub(crate) fn log_tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// True if the server says that it is ready.
pub(crate) async fn is_ready(address: SocketAddr) -> bool {
    status_of(address, READY_PATH).await == Some(200)
}

/// The status with which a path is answered.
async fn status_of(address: SocketAddr, path: &str) -> Option<u16> {
    let ask = async {
        let mut socket = TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await?;
        let mut head = [0; 12];
        socket.read_exact(&mut head).await?;
        Ok::<_, std::io::Error>(head)
    };
    let head = tokio::time::timeout(Duration::from_secs(5), ask).await;
    std::str::from_utf8(&head.ok()?.ok()?[9..])
        .ok()?
        .parse()
        .ok()
}
