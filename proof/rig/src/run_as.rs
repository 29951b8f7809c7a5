//! The user as whom servers run, since PostgreSQL refuses to run as root.

use std::ffi::OsString;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use nix::unistd::{Uid, User};

use crate::Result;

/// The user of servers, if this process runs as root; else they run as the user of this process.
#[derive(Debug, Clone)]
pub(crate) struct RunAs(Option<Other>);

#[derive(Debug, Clone)]
struct Other {
    name: String,
    uid: u32,
    gid: u32,
}

impl RunAs {
    /// Finds the user as whom servers run.
    ///
    /// # Errors
    /// If this process runs as root and there is no unprivileged user.
    pub(crate) fn find() -> Result<Self> {
        if !Uid::effective().is_root() {
            return Ok(Self(None));
        }
        for name in ["postgres", "nobody"] {
            if let Some(user) = User::from_name(name)? {
                return Ok(Self(Some(Other {
                    name: user.name,
                    uid: user.uid.as_raw(),
                    gid: user.gid.as_raw(),
                })));
            }
        }
        Err(
            "PostgreSQL refuses to run as root, and there is neither a user `postgres` nor `nobody`"
                .into(),
        )
    }

    /// Makes the user the owner of a file or folder.
    pub(crate) fn own(&self, path: &Path) -> Result<()> {
        if let Some(user) = &self.0 {
            chown(path, Some(user.uid), Some(user.gid))?;
        }
        Ok(())
    }

    /// Makes a command that runs as the user.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let words = self.words(program);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    /// Returns the words of a command that runs as the user, without the arguments of the program.
    pub(crate) fn words(&self, program: &Path) -> Vec<OsString> {
        let mut words: Vec<OsString> = match &self.0 {
            None => Vec::new(),
            Some(user) if has_program("setpriv") => vec![
                "setpriv".into(),
                format!("--reuid={}", user.uid).into(),
                format!("--regid={}", user.gid).into(),
                "--clear-groups".into(),
            ],
            Some(user) => vec![
                "runuser".into(),
                "-u".into(),
                user.name.clone().into(),
                "--".into(),
            ],
        };
        words.push(program.into());
        words
    }
}

/// Tells whether a folder of `PATH` holds a program of this name.
pub(crate) fn has_program(name: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()))
}
