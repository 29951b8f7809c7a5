//! A program that runs beside this one: a server under test, another system's server, a driver.
//!
//! Invariant: the program never outlives this process. A shell stands between the two, in a process group of its own;
//! when the shell's standard input closes, even because this process was killed, the shell kills the whole group.
//! The group also keeps Ctrl-C of a terminal away from the program: this process decides.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::processes::is_alive;

/// The shell script that runs the program. Its arguments are the file for the log, the file that is the standard input
/// of the program, where its standard output goes (`log`, or `pipe`: to this process), the program and its arguments.
/// The first line on standard output is the process id of the program. Processes that the program has started are
/// killed after it is gone, with the shell itself.
const SUPERVISE: &str = r#"
log=$1 input=$2 output=$3
shift 3
[ "$output" = pipe ] && exec 3>&1 || exec 3>>"$log"
sh -c 'echo $$; exec "$@" >&3 3>&-' sh "$@" <"$input" 2>>"$log" &
program=$!
exec >/dev/null 3>&-
read -r _
kill -9 "$program"
wait "$program"
kill -9 0
"#;

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

/// A running program. Dropping it kills the program and all processes that the program has started.
#[derive(Debug)]
pub struct Child {
    shell: std::process::Child,
    output: Option<ChildStdout>,
    pid: Pid,
    log: PathBuf,
}

impl Child {
    /// Starts a program. Its standard input is the file `input`, or empty if that is `None`. Its output is added to the
    /// file `log`.
    ///
    /// # Errors
    /// If no process can be started.
    pub fn start<A: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        input: Option<&Path>,
        output: Output,
        log: &Path,
    ) -> std::io::Result<Self> {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SUPERVISE, "supervise"])
            .args([log, input.unwrap_or(Path::new("/dev/null"))])
            .arg(match output {
                Output::Log => "log",
                Output::Pipe => "pipe",
            })
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The program has its log. The shell would report kills that are intended.
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let Some(mut output) = shell.stdout.take() else {
            return Err(std::io::Error::other("the shell has no standard output"));
        };
        let line = first_line(&mut output)?;
        let pid = line.trim().parse().map_err(|_| {
            std::io::Error::other(format!("no process id from the shell: {line:?}"))
        })?;
        Ok(Self {
            shell,
            output: Some(output),
            pid: Pid::from_raw(pid),
            log: log.to_owned(),
        })
    }

    /// Returns the process id of the program.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Returns the standard output of the program at the first call, if it is piped.
    pub fn take_output(&mut self) -> Option<ChildStdout> {
        self.output.take()
    }

    /// Tells whether the program lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        // Once the shell was told to end, the id may belong to another process.
        self.shell.stdin.is_some() && is_alive(self.pid.as_raw())
    }

    /// Sends the program a signal, unless the program was killed.
    pub fn signal(&self, signal: Signal) {
        if self.shell.stdin.is_some() {
            let _ = kill(self.pid, signal);
        }
    }

    /// Kills the program and all processes that it has started. Returns when the program is dead.
    pub fn kill(&mut self) {
        // The process id stays that of the program, since the shell does not reap it before its standard input closes.
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }

    /// Returns the last lines that the program has written to its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
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

/// Reads the first line byte by byte, since what follows it is the output of the program.
fn first_line(from: &mut ChildStdout) -> std::io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while from.read(&mut byte)? == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}
