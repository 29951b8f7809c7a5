//! `gesta backup` and `gesta restore`.
//!
//! Invariants: a copy gets its name when it is whole and synced; a copy that was stopped leaves nothing behind.

use std::fs::{self, File};
use std::io::{ErrorKind as Io, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gesta::{Database, MadeBy};
use gesta_client::Config;
use gesta_core::ErrorKind;
use serde_json::json;
use tokio::signal::unix::Signal;

use super::database::on_database;
use super::{client, given_store, interrupts, is_server, maintenance, served};
use crate::args::{Backup, Global, Restore};
use crate::config::DEFAULT_STORE;
use crate::exit::{Failure, Outcome};
use crate::output::{Output, ProgressLine, copied, count, rate, say};
use crate::private_file;

/// The longest time in which a server makes a copy.
const COPY_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Text with which the name of a copy ends that is not whole yet.
const UNFINISHED: &str = ".unfinished";
/// Size of the head of a SQLite database.
const SQLITE_HEAD_BYTES: usize = 100;
/// The text of the error of a copy that ends because its database is being closed.
const STOPPED: &str = "the backup was stopped";

pub(super) async fn backup(global: &Global, args: &Backup, output: &mut Output) -> Outcome {
    let url = given_store(global).unwrap_or_else(|| DEFAULT_STORE.into());
    let mut stop = interrupts()?;
    let line = ProgressLine::begin(output, "opening the store");
    if is_server(&url) {
        tokio::select! {
            done = download(global, &url, &args.to, &line) => done?,
            _ = stop.recv() => return Err(stopped(&args.to)),
        }
    } else {
        let command = format!("backup {}", args.to.display());
        on_database(&url, Some(&command), async |database| {
            let copying = copy(database, &args.to, &mut stop);
            line.watching(&unfinished(&args.to), None, copying).await
        })
        .await?;
    }
    drop(line);
    let found = fs::metadata(&args.to).map_err(|error| refused(&args.to, &error))?;
    let bytes = found.len();
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

/// Makes the failure of a file that the file system refuses, or has no space for.
fn refused(path: &Path, error: &std::io::Error) -> Failure {
    Failure::other(format!(
        "the backup cannot be written: {}: {error}",
        path.display()
    ))
}

/// Returns the path of a copy until it is whole.
fn unfinished(to: &Path) -> PathBuf {
    let mut name = to.as_os_str().to_owned();
    name.push(UNFINISHED);
    PathBuf::from(name)
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
        let path = unfinished(to);
        // Nobody has heard of the name of a copy that is not whole.
        let failed = |error: std::io::Error| match (error.kind(), to.parent()) {
            (Io::NotFound, Some(folder)) => refused(folder, &error),
            _ => refused(to, &error),
        };
        // Left behind by a command that was killed. What it was is not followed, and not written to.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != Io::NotFound => return Err(failed(error)),
            _ => {}
        }
        let file = private_file::create_new(&path).map_err(failed)?;
        Ok(Self { path, file })
    }

    fn finish(self, to: &Path) -> Outcome {
        let failed = |error| refused(to, &error);
        self.file.sync_all().map_err(failed)?;
        // Another process may have made the file meanwhile: a second name is never that of another file.
        match fs::hard_link(&self.path, to) {
            Ok(()) => fs::remove_file(&self.path).map_err(failed)?,
            Err(error) if error.kind() == Io::AlreadyExists => return Err(exists(to)),
            // Not every file system has second names.
            Err(_) if fs::symlink_metadata(to).is_ok() => return Err(exists(to)),
            Err(_) => fs::rename(&self.path, to).map_err(failed)?,
        }
        let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))
            .and_then(|directory| directory.sync_all())
            .map_err(failed)
    }
}

fn exists(to: &Path) -> Failure {
    let text = format!(
        "backup must be a new file, {} exists: give another name, or move that file away",
        to.display()
    );
    Failure::usage(text)
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After `finish` the file has another name, and nothing is removed.
        let _ = fs::remove_file(&self.path);
    }
}

async fn download(global: &Global, url: &str, to: &Path, line: &ProgressLine) -> Outcome {
    let mut copy = Unfinished::create(to)?;
    let config = Config {
        answer_max: COPY_MAX,
        ..client::config(global)?
    };
    let mut download = client::with_config(url, config)?.backup().await?;
    let (all, mut bytes) = (download.bytes(), 0);
    let mut head = Vec::with_capacity(SQLITE_HEAD_BYTES);
    line.tell(|_| "waiting for the copy that the server makes".into());
    while let Some(part) = download.next().await? {
        let written = copy.file.write_all(&part);
        written.map_err(|error| refused(&copy.path, &error))?;
        let missing = SQLITE_HEAD_BYTES - head.len();
        head.extend_from_slice(&part[..missing.min(part.len())]);
        bytes += part.len() as u64;
        line.tell(|_| copied(bytes, all));
    }
    if bytes_of_database(&head) != Some(bytes) {
        return Err(Failure::other(format!(
            "the server at {url} sent {bytes} bytes that are no SQLite database, or not the whole of one: no copy was made"
        )));
    }
    copy.finish(to)
}

/// Returns the size of the SQLite database that begins so; `None` if none does (Database File Format, section 1.3).
fn bytes_of_database(head: &[u8]) -> Option<u64> {
    let head: &[u8; SQLITE_HEAD_BYTES] = head.try_into().ok()?;
    if !head.starts_with(b"SQLite format 3\0") {
        return None;
    }
    let page_bytes = match u16::from_be_bytes([head[16], head[17]]) {
        1 => 65_536,
        bytes => u64::from(bytes),
    };
    let pages = u32::from_be_bytes([head[28], head[29], head[30], head[31]]);
    Some(page_bytes * u64::from(pages))
}

pub(super) async fn restore(url: &str, args: &Restore, output: &mut Output) -> Outcome {
    let made_by = match args.sqlite_copy {
        true => MadeBy::Sqlite,
        false => MadeBy::Gesta,
    };
    let mut stop = interrupts()?;
    let line = ProgressLine::begin(output, "reading the backup");
    let told = |now: gesta::verify::AuditProgress| {
        line.tell(|time| rate("events checked", now.events, None, time));
    };
    let stopped = async {
        stop.recv().await;
    };
    let checking = gesta::command_line::check_backup(&args.from, made_by, url, told, stopped);
    let checked = match gesta::command_line::unfinished_of(url) {
        Some(path) => {
            let all = fs::metadata(&args.from).ok().map(|found| found.len());
            line.watching(&path, all, checking).await
        }
        None => checking.await,
    };
    let Some(checked) = checked? else {
        drop(line);
        return Err(Failure::interrupted(format!(
            "stopped: nothing was restored to {url}, and nothing is left of the copy; the same command begins again"
        )));
    };
    // The last step is short, and done to its end: a signal that comes now is of no effect.
    line.tell(|_| "putting the copy in its place".into());
    let restored = checked.put_in_place().await;
    drop(line);
    let restored = restored?;
    let Some(incarnation) = restored.incarnation else {
        let verified = served::verified(&restored.report);
        maintenance::show(&verified, output)?;
        say!("nothing was restored from {}", args.from.display());
        return Err(maintenance::damaged(
            &verified,
            "copy the backup, run the statements with which the findings end on the copy (`sqlite3 COPY`), and restore that",
            "restore an earlier backup",
        ));
    };
    let events: u64 = restored.report.logs.iter().map(|log| log.events).sum();
    let record = json!({"store": url, "events": events, "incarnation": incarnation.to_string()});
    output.record(&record, |_| {
        let mut text = format!(
            "restored {} to {url}, incarnation {incarnation}; checkpoints of the old store are refused\n\
             accounts, if there are any, are those of the backup: tokens that were revoked since are valid again, and \
             passwords are the old ones",
            count(events, "event")
        );
        if events == 0 {
            text.push_str(&format!(
                "\nthere is no event in {}: if there was one in the store, the copy was made without what lies in its \
                 -wal file, by cp or the like; copy the store by `gesta backup`",
                args.from.display()
            ));
        }
        text
    })
}
