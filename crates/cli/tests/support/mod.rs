//! The real binary: running it, and a server of it.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "helpers of tests; each test file uses a part"
)]

pub(crate) mod cinema;
pub(crate) mod registry;

use std::io::Write;
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use gesta_kit::depth;
use gesta_rig::Listening;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest wait for something that must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// So often at least a test tries to be quicker than what it is to break off.
const ATTEMPTS: usize = 20;

/// The longest time that a program may run.
fn longest() -> Duration {
    PATIENCE * depth::count(4, 60)
}

/// The binary with these arguments, and nothing of our environment. A server gives its clients more time than by
/// default, since a machine may stand still; no test that starts it here is about these times.
pub(crate) fn gesta(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gesta"));
    command
        .args(arguments)
        .env_remove("GESTA_STORE")
        // Somebody on this machine may have a server at the default address.
        .env("GESTA_LISTEN", "127.0.0.1:0")
        .env("GESTA_SERVER_HANDSHAKE_MAX", "2m")
        .env("GESTA_SERVER_HEAD_READ_MAX", "2m")
        .stdin(Stdio::null());
    command
}

/// The URL of a database with more time to connect than by default. A command connects once, and does not try again if
/// the machine stood still meanwhile.
pub(crate) fn patient(url: &str) -> String {
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}connect_timeout=60")
}

/// Kills a program when its time is over, unless this is dropped before. Whoever reads what the program says then comes
/// to an end.
pub(crate) struct Limit {
    _goes_on: mpsc::Sender<()>,
}

impl Limit {
    pub(crate) fn of(child: &Child) -> Self {
        Self::of_process(i32::try_from(child.id()).unwrap())
    }

    pub(crate) fn of_process(pid: i32) -> Self {
        let (goes_on, dropped) = mpsc::channel::<()>();
        let longest = longest();
        std::thread::spawn(move || {
            if dropped.recv_timeout(longest) == Err(RecvTimeoutError::Timeout) {
                eprintln!("process {pid} has not ended after {longest:?}, and is killed");
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        });
        Self { _goes_on: goes_on }
    }
}

/// Waits for the end of a program, and takes what it says. A program that takes too long is killed.
pub(crate) fn ended(child: Child) -> Output {
    let _limit = Limit::of(&child);
    child.wait_with_output().unwrap()
}

/// Runs a program to its end, and takes what it says. A program that takes too long is killed.
pub(crate) fn output_of(command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    ended(command.spawn().unwrap())
}

/// Runs the binary to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    output_of(&mut gesta(arguments))
}

/// Tries to be quicker than what it is to break off, until an attempt was; `None` if none was for as long as patience
/// lasts.
pub(crate) fn once_quick_enough<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let (begun, mut attempts) = (Instant::now(), 0);
    while attempts < ATTEMPTS || begun.elapsed() < PATIENCE {
        if let Some(broken_off) = attempt() {
            return Some(broken_off);
        }
        attempts += 1;
    }
    None
}

/// Runs the binary to its end, and kills it if it has not ended in time, as a server that serves does not.
pub(crate) fn run_in_time(arguments: &[&str]) -> Output {
    let mut command = gesta(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut child, begun) = (command.spawn().unwrap(), Instant::now());
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// Runs the binary to its end; it must succeed. Gives standard output.
pub(crate) fn succeed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the binary with this text on standard input.
pub(crate) fn run_with_input(arguments: &[&str], input: &str) -> Output {
    let mut child = gesta(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // A command that refuses its input may end before it has read all of it.
    let writing = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = ended(child);
    writing.join().unwrap();
    output
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().expect("ended by itself")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn url_of(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

/// Sends a signal to a child.
pub(crate) fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

/// False, said aloud, if a program that a test needs is not installed; with `CI` set that is a failure.
pub(crate) fn is_installed(program: &str) -> bool {
    is_installed_as(program, "--version")
}

/// The same, for a program that tells its version by another argument.
pub(crate) fn is_installed_as(program: &str, version: &str) -> bool {
    let version = Command::new(program).arg(version).output();
    let is_installed = version.is_ok_and(|output| output.status.success());
    if !is_installed {
        assert!(std::env::var_os("CI").is_none(), "no {program}");
        eprintln!("SKIPPED: no {program}; what needs it was not run");
    }
    is_installed
}

/// Pause between two tries of the same call.
const PAUSE: Duration = Duration::from_millis(100);

/// The tries of a call that is made again while it says that nothing can be done, as after the machine has stood still.
pub(crate) struct Tries {
    what: String,
    begun: Instant,
}

impl Tries {
    pub(crate) fn of(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            begun: Instant::now(),
        }
    }

    /// Prints why the last try failed, and returns the pause before the next one. Fails when the tries have lasted
    /// longer than a machine that stands still for some seconds explains.
    pub(crate) fn pause_after(&self, why: impl std::fmt::Display) -> Duration {
        let (what, lasted) = (&self.what, self.begun.elapsed());
        eprintln!("not served after {lasted:?}, and tried again: {what}: {why}");
        assert!(lasted < PATIENCE, "never served: {what}: {why}");
        PAUSE
    }
}

/// Waits until something is so.
pub(crate) fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    gesta_rig::wait_until(&format!("never: {what}"), is_so).unwrap();
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, is_so: impl AsyncFnMut() -> bool) {
    // A look may be an append, which waits for half a minute for a database that is away.
    gesta_kit::support::until(what, PATIENCE * 3, is_so).await;
}

/// Waits until commits wait for a synchronous standby that is away: sessions show the setting before another process of
/// the server, which decides whether commits wait, has read it.
pub(crate) fn until_commits_wait(server: &gesta_rig::Server) {
    let probe = "SELECT pg_logical_emit_message(true, 'probe', '')";
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE wait_event = 'SyncRep' AND query LIKE '%probe%'";
    std::thread::scope(|scope| {
        scope.spawn(|| while server.execute(probe).is_ok() {});
        wait_until("a commit waits", || server.query(end).unwrap().is_some());
    });
}

/// The body of the answer to a GET.
pub(crate) fn get(address: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    socket.write_all(request.as_bytes()).unwrap();
    let answer = std::io::read_to_string(socket).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    body.to_owned()
}

/// A running server.
pub(crate) struct Server(Listening);

impl Server {
    pub(crate) fn start(store: &str) -> Self {
        Self::start_with(store, &["--listen", "127.0.0.1:0"])
    }

    pub(crate) fn start_with(store: &str, more: &[&str]) -> Self {
        Self::start_with_variables(store, more, &[])
    }

    /// With these environment variables. The server waits for a store that is away when it starts.
    pub(crate) fn start_with_variables(
        store: &str,
        more: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let serve = ["serve", "--store", store, "--wait-for-store", "60s"];
        let mut command = gesta(&[&serve[..], more].concat());
        Self::spawn(command.envs(variables.iter().copied()))
    }

    /// In this folder, with the store that it has by default.
    pub(crate) fn start_in(folder: &Path, more: &[&str]) -> Self {
        let mut command = gesta(&[&["serve"], more].concat());
        Self::spawn(command.current_dir(folder))
    }

    /// By this command, which serves.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self::try_spawn(command).unwrap_or_else(|log| panic!("it ended: {log:?}"))
    }

    /// By this command. If it ends instead of serving, what it has said is returned.
    pub(crate) fn try_spawn(command: &mut Command) -> Result<Self, Vec<String>> {
        Listening::start(command).map(Self)
    }

    pub(crate) fn stop(self) {
        self.0.stop();
    }

    pub(crate) fn stop_by(self, by: Signal) {
        self.0.stop_by(by);
    }

    pub(crate) fn kill(mut self) {
        self.0.kill();
    }
}

impl Deref for Server {
    type Target = Listening;

    fn deref(&self) -> &Listening {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Listening {
        &mut self.0
    }
}
