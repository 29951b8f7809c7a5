//! What a person does where the product asks for one: the commands of `gesta` that reset a group, move a log, and
//! recover one that is lost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gesta_report::failure::{Result, fail};

/// What a person does where the product asks for it, and how often.
pub(crate) struct Operator {
    program: PathBuf,
    given: Mutex<BTreeMap<String, u64>>,
    /// One answer at a time.
    turn: tokio::sync::Mutex<()>,
}

impl Operator {
    /// Who uses this program.
    pub(crate) fn new(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
            given: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

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
    pub(crate) async fn reset(&self, group: &str, server: &str) {
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
    pub(crate) async fn move_log(&self, log: u16, databases: &[String]) -> bool {
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
    pub(crate) async fn recover(&self, log: u16, databases: &[String]) -> Result<()> {
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
    pub(crate) fn given(&self) -> BTreeMap<String, u64> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.clone()
    }
}
