//! `gesta backup` and `gesta restore`.
//!
//! Invariants: a copy gets its name when it is whole and synced; a copy that was stopped leaves nothing behind.

use std::fs::{self, File};
use std::io::{ErrorKind as Io, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gesta::{Database, MadeBy};
use gesta_client::{Config, HttpStore};
use gesta_core::ErrorKind;
use indicatif::ProgressBar;
use serde_json::json;
use tokio::signal::unix::Signal;

use super::database::on_database;
use super::{client, given_store, interrupts, is_server, maintenance, served};
use crate::args::{Backup, Global, Restore};
use crate::config::DEFAULT_STORE;
use crate::exit::{Failure, Outcome};
use crate::output::{Output, say};
use crate::private_file;

/// The longest time in which a server makes a copy.
const COPY_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The text of the error of a copy that ends because its database is being closed.
const STOPPED: &str = "the backup was stopped";

pub(super) async fn backup(global: &Global, args: &Backup, output: &mut Output) -> Outcome {
    let url = given_store(global).unwrap_or_else(|| DEFAULT_STORE.into());
    let mut stop = interrupts()?;
    if is_server(&url) {
        tokio::select! {
            done = download(global, &url, &args.to) => done?,
            _ = stop.recv() => return Err(stopped(&args.to)),
        }
    } else {
        let command = format!("backup {}", args.to.display());
        on_database(&url, Some(&command), async |database| {
            copy(database, &args.to, &mut stop).await
        })
        .await?;
    }
    let bytes = fs::metadata(&args.to)?.len();
    let file = args.to.display().to_string();
    output.record(&json!({"file": file, "bytes": bytes}), |_| {
        format!("backup of {bytes} bytes written to {file}; `gesta restore` checks it and puts it in place")
    })
}

/// Copies the store. Ctrl-C stops the copy. The result is that of the copy itself: it may have got its name, or failed,
/// before it could be stopped.
async fn copy(database: &Database, to: &Path, stop: &mut Signal) -> Outcome {
    let mut copying = std::pin::pin!(database.backup(to));
    let ended = tokio::select! {
        // The copy is polled first: it has begun when it is stopped, and closing the database waits for it.
        biased;
        ended = &mut copying => Some(ended),
        _ = stop.recv() => None,
    };
    if let Some(ended) = ended {
        return ended.map_err(Failure::from);
    }
    // Closing the database stops the copy, which then removes what it wrote.
    let (ended, ()) = tokio::join!(copying, database.close());
    ended.map_err(|error| match error.kind() {
        ErrorKind::Unavailable(text) if text == STOPPED => stopped(to),
        _ => error.into(),
    })
}

fn stopped(to: &Path) -> Failure {
    Failure::interrupted(format!("stopped; no copy was made at {}", to.display()))
}

/// A file that is removed unless it becomes the copy. Only its owner can read it.
struct Unfinished {
    path: PathBuf,
    file: File,
}

impl Unfinished {
    fn create(to: &Path) -> Outcome<Self> {
        if fs::symlink_metadata(to).is_ok() {
            return Err(exists(to));
        }
        let mut name = to.as_os_str().to_owned();
        name.push(".unfinished");
        let path = PathBuf::from(name);
        let failed = |error| Failure::other(format!("{}: {error}", path.display()));
        // Left behind by a command that was killed. What it was is not followed, and not written to.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != Io::NotFound => return Err(failed(error)),
            _ => {}
        }
        let file = private_file::create_new(&path).map_err(failed)?;
        Ok(Self { path, file })
    }

    fn finish(self, to: &Path) -> Outcome {
        self.file.sync_all()?;
        // Another process may have made the file meanwhile: a second name is never that of another file.
        match fs::hard_link(&self.path, to) {
            Ok(()) => fs::remove_file(&self.path)?,
            Err(error) if error.kind() == Io::AlreadyExists => return Err(exists(to)),
            // Not every file system has second names.
            Err(_) if fs::symlink_metadata(to).is_ok() => return Err(exists(to)),
            Err(_) => fs::rename(&self.path, to)?,
        }
        let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(())
    }
}

fn exists(to: &Path) -> Failure {
    let text = format!("backup must be a new file, {} exists", to.display());
    Failure::usage(text)
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After `finish` the file has another name, and nothing is removed.
        let _ = fs::remove_file(&self.path);
    }
}

async fn download(global: &Global, url: &str, to: &Path) -> Outcome {
    let mut copy = Unfinished::create(to)?;
    let config = Config {
        answer_max: COPY_MAX,
        ..client::config(global)?
    };
    let mut download = HttpStore::with_config(url, config)?.backup().await?;
    let bar = download
        .bytes()
        .map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    while let Some(part) = download.next().await? {
        copy.file.write_all(&part)?;
        bar.inc(part.len() as u64);
    }
    bar.finish_and_clear();
    copy.finish(to)
}

pub(super) async fn restore(url: &str, args: &Restore, output: &mut Output) -> Outcome {
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    let made_by = match args.sqlite_copy {
        true => MadeBy::Sqlite,
        false => MadeBy::Gesta,
    };
    let restored = gesta::restore(&args.from, made_by, url, |progress| {
        bar.set_message(format!("{} events checked", progress.events));
    })
    .await;
    bar.finish_and_clear();
    let restored = restored?;
    let Some(incarnation) = restored.incarnation else {
        let verified = served::verified(&restored.report);
        maintenance::show(&verified, output)?;
        say!("{} is damaged: nothing was restored", args.from.display());
        return Err(maintenance::damaged(&verified));
    };
    let events: u64 = restored.report.logs.iter().map(|log| log.events).sum();
    let record = json!({"store": url, "events": events, "incarnation": incarnation.to_string()});
    output.record(&record, |_| {
        format!(
            "restored {events} events to {url}, incarnation {incarnation}; checkpoints of the old store are refused. Accounts \
             are those of the backup: tokens that were revoked since are valid again, and passwords are the old ones"
        )
    })
}
