//! A program that runs beside this one: another system's server, or a driver.
//!
//! Invariant: it never outlives this process. A shell stands between the two, in a process group of its own; when
//! its standard input closes, even because this process was killed, it kills the whole group.
//! The group also keeps Ctrl-C of a terminal away from the program: this process decides.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use gesta_lab::failure::{Context, Failure, Result, fail};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStdout, Command};

/// Arguments: a file for what the program says on standard error, its standard input, the program and its arguments.
/// The first line on standard output is the id of the program's process.
const SUPERVISE: &str = r#"
log=$1 input=$2
shift 2
sh -c 'echo $$; exec "$@"' sh "$@" <"$input" 2>>"$log" &
exec >/dev/null
read -r _
kill -9 0
"#;

/// Lines of the log that a message repeats.
const LOG_LINES: usize = 12;

/// A running program.
#[derive(Debug)]
pub(crate) struct Child {
    name: String,
    shell: tokio::process::Child,
    lines: Lines<BufReader<ChildStdout>>,
    pid: i32,
    log: PathBuf,
}

impl Child {
    /// Starts a program with standard input from a file (none: empty); what it says on standard error goes to `log`.
    pub(crate) async fn start<A: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        input: Option<&Path>,
        log: &Path,
    ) -> Result<Self> {
        let name = program.file_name().unwrap_or(program.as_os_str());
        let name = name.to_string_lossy().into_owned();
        let mut shell = Command::new("/bin/sh")
            .arg("-c")
            .arg(SUPERVISE)
            .arg("supervise")
            .arg(log)
            .arg(input.unwrap_or(Path::new("/dev/null")))
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context(format!("starting {name}"))?;
        let stdout = shell
            .stdout
            .take()
            .ok_or_else(|| Failure("no pipe".into()))?;
        let mut lines = BufReader::new(stdout).lines();
        let first = lines.next_line().await?.unwrap_or_default();
        let pid = first
            .trim()
            .parse()
            .context(format!("process id of {name}"))?;
        let log = log.to_owned();
        Ok(Self {
            name,
            shell,
            lines,
            pid,
            log,
        })
    }

    /// The id of the program's process.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// The next line that it writes; none when it has ended. Dropping the future loses nothing.
    pub(crate) async fn line(&mut self) -> Result<Option<String>> {
        Ok(self.lines.next_line().await?)
    }

    /// Returns when the program has ended, with why, as well as its log tells.
    pub(crate) async fn ended(&mut self) -> Failure {
        while let Ok(Some(_)) = self.line().await {}
        self.complaint("ended")
    }

    /// A failure with the end of the log.
    pub(crate) fn complaint(&self, what: &str) -> Failure {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.trim().lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
        Failure(format!("{} {what}; it said:\n  {tail}", self.name))
    }

    /// Kills it and all that it started; returns when they are gone.
    pub(crate) async fn end(mut self) -> Result<()> {
        drop(self.shell.stdin.take());
        self.shell.wait().await?;
        while let Ok(Some(_)) = self.line().await {}
        Ok(())
    }
}

/// A loopback address that is free now.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Asks again and again until the answer is `Ok`, the child has ended, or the time is over.
pub(crate) async fn until_ready<T, F>(child: &mut Child, mut ask: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    const WITHIN: std::time::Duration = std::time::Duration::from_secs(60);
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);
    let deadline = tokio::time::Instant::now() + WITHIN;
    loop {
        let why = match ask().await {
            Ok(answer) => return Ok(answer),
            Err(why) => why,
        };
        if tokio::time::Instant::now() > deadline {
            return fail(format!("not ready in time: {why}"));
        }
        tokio::select! {
            why = child.ended() => return Err(why),
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lives(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    /// A program with a process of its own, which writes the ids of both.
    const TWO: &str = "sleep 1000 & echo $!; wait";

    #[tokio::test]
    async fn ending_a_program_ends_what_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut child = Child::start(Path::new("/bin/sh"), ["-c", TWO], None, &log)
            .await
            .unwrap();
        let inner = child.line().await.unwrap().unwrap();
        let outer = child.pid().to_string();
        assert!(lives(&inner) && lives(&outer));
        child.end().await.unwrap();
        // Their files are closed; that they are gone shows a moment later.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while lives(&inner) || lives(&outer) {
            assert!(std::time::Instant::now() < deadline, "still there");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_program_that_fails_is_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let (log, input) = (dir.path().join("log"), dir.path().join("input"));
        std::fs::write(&input, "hello\n").unwrap();
        let script = "read -r a; echo \"got $a\"; echo ouch >&2; exit 3";
        let mut child = Child::start(Path::new("/bin/sh"), ["-c", script], Some(&input), &log)
            .await
            .unwrap();
        assert_eq!(child.line().await.unwrap().as_deref(), Some("got hello"));
        let why = child.ended().await.0;
        assert!(why.contains("ouch"), "{why}");
        child.end().await.unwrap();
    }
}
