//! A program that runs beside this one, whose lines are read as they come: another system's server, or a driver.

use std::ffi::OsStr;
use std::path::Path;

use gesta_report::failure::{Context, Failure, Result, fail};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::ChildStdout;

/// A running program.
#[derive(Debug)]
pub(crate) struct Child {
    name: String,
    program: gesta_rig::Child,
    lines: Lines<BufReader<ChildStdout>>,
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
        let output = gesta_rig::Output::Pipe;
        let mut program = gesta_rig::Child::start(program, arguments, input, output, log)
            .context(format!("starting {name}"))?;
        let output = program.take_output();
        let output = output.ok_or_else(|| Failure("no pipe".into()))?;
        let lines = BufReader::new(ChildStdout::from_std(output)?).lines();
        Ok(Self {
            name,
            program,
            lines,
        })
    }

    /// The id of the program's process.
    pub(crate) fn pid(&self) -> i32 {
        self.program.pid()
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
        let tail = self.program.log_tail().replace('\n', "\n  ");
        Failure(format!("{} {what}; it said:\n  {tail}", self.name))
    }

    /// Kills it and all that it started; returns when they are gone.
    pub(crate) async fn end(mut self) -> Result<()> {
        self.program.kill();
        while let Ok(Some(_)) = self.line().await {}
        Ok(())
    }
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
