//! A program that runs beside this one: a server under test, another system's server, a driver.
//!
//! Invariant: the program never outlives this process. It runs in the process group of a shell, its *guard*; when the
//! shell's standard input closes, even because this process was killed, the shell kills the whole group.
//! The group also keeps Ctrl-C of a terminal away from the program: this process decides.
//! Why beside the program and not around it: the program is a child of this process, so its process id, its exit status
//! and its pipes are those that the operating system shows, and a signal reaches nobody else.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::processes::is_alive;
use crate::{Result, wait_until};

/// The shell script of the guard. If this process dies while the program is suspended, the system sends SIGHUP to the
/// group.
const GUARD: &str = "trap '' HUP; read -r _; kill -9 0";

/// How many lines of the log a message repeats.
const LOG_LINES: usize = 20;

/// Where the standard output of a program goes. Its standard error always goes to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// The output goes to the log.
    Log,
    /// The output can be read from [`Child::take_output`].
    Pipe,
}

/// A shell with a process group of its own. Dropping it kills all processes of the group, and so does the end of this
/// process.
#[derive(Debug)]
struct Guard(std::process::Child);

impl Guard {
    fn start() -> std::io::Result<Self> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", GUARD]).stdin(Stdio::piped());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        shell.process_group(0).spawn().map(Self)
    }

    /// Starts a program in the group.
    fn spawn(&self, command: &mut Command) -> std::io::Result<std::process::Child> {
        command.process_group(pid_of(&self.0)?).spawn()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn pid_of(child: &std::process::Child) -> std::io::Result<i32> {
    i32::try_from(child.id()).map_err(std::io::Error::other)
}

/// A running program. Dropping it kills the program and all processes that the program has started.
#[derive(Debug)]
pub struct Child {
    program: std::process::Child,
    pid: i32,
    /// `None` once the program was killed.
    guard: Option<Guard>,
    /// How the program has ended, if somebody has asked for that since.
    ended: Option<ExitStatus>,
    log: Option<PathBuf>,
}

impl Child {
    /// Starts a program. Its standard input is the file `input`, or empty if that is `None`. Its output is added to the
    /// file `log`.
    ///
    /// # Errors
    /// If no process can be started, or a file cannot be opened.
    pub fn start<A: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        input: Option<&Path>,
        output: Output,
        log: &Path,
    ) -> std::io::Result<Self> {
        let input = match input {
            Some(input) => Stdio::from(File::open(input)?),
            None => Stdio::null(),
        };
        let said = File::options().create(true).append(true).open(log)?;
        let output = match output {
            Output::Log => Stdio::from(said.try_clone()?),
            Output::Pipe => Stdio::piped(),
        };
        let mut command = Command::new(program);
        command.args(arguments).stdin(input).stdout(output);
        let mut child = Self::spawn(command.stderr(said))?;
        child.log = Some(log.to_owned());
        Ok(child)
    }

    /// Starts the program of a command, with its pipes, its environment and its folder.
    ///
    /// # Errors
    /// If no process can be started.
    pub fn spawn(command: &mut Command) -> std::io::Result<Self> {
        let guard = Guard::start()?;
        let program = guard.spawn(command)?;
        Ok(Self {
            pid: pid_of(&program)?,
            program,
            guard: Some(guard),
            ended: None,
            log: None,
        })
    }

    /// Returns the process id of the program.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the standard output of the program at the first call, if it is piped.
    pub fn take_output(&mut self) -> Option<ChildStdout> {
        self.program.stdout.take()
    }

    /// Returns the standard error of the program at the first call, if it is piped.
    pub fn take_errors(&mut self) -> Option<ChildStderr> {
        self.program.stderr.take()
    }

    /// Tells whether the program lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        // The id stays that of the program until its end was asked for. Then it may belong to another process.
        self.ended.is_none() && is_alive(self.pid)
    }

    /// Sends the program a signal, unless it is known to have ended.
    pub fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }

    /// Returns how the program has ended; `None` if it lives.
    ///
    /// # Errors
    /// If the operating system does not tell.
    pub fn try_wait(&mut self) -> std::io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.program.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Waits until the program has ended, and returns how.
    ///
    /// # Errors
    /// If it does not end in time.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        wait_until("the program does not end", || {
            !matches!(self.try_wait(), Ok(None))
        })?;
        let ended = self.try_wait()?;
        ended.ok_or_else(|| "the program has not ended".into())
    }

    /// Kills the program and all processes that it has started. Returns when the program is dead.
    pub fn kill(&mut self) {
        let _ = self.program.kill();
        drop(self.guard.take());
        if let Ok(ended) = self.program.wait() {
            self.ended = Some(ended);
        }
    }

    /// Returns the last lines that the program has written to its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = self.log.as_ref().map(std::fs::read);
        let log = log.and_then(std::result::Result::ok).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
