//! `gesta backup` and `gesta restore`.
//!
//! Invariants: a copy gets its name when it is whole and synced; a copy that was stopped leaves nothing behind.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gesta::{Database, Options};
use gesta_client::{Config, HttpStore};
use gesta_core::{Error, ErrorKind};
use indicatif::ProgressBar;
use serde_json::json;

use super::{admin, client, given_store, interrupts, is_server};
use crate::args::{Backup, Global, Restore};
use crate::config::DEFAULT_STORE;
use crate::exit::{Failure, Outcome};
use crate::output::Output;

/// The longest time in which a server makes a copy.
const COPY_MAX: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) async fn backup(global: &Global, args: &Backup, output: &mut Output) -> Outcome {
    let url = given_store(global).unwrap_or_else(|| DEFAULT_STORE.into());
    let mut stop = interrupts()?;
    if is_server(&url) {
        tokio::select! {
            done = download(global, &url, &args.to) => done?,
            _ = stop.recv() => return Err(stopped(&args.to)),
        }
    } else {
        let database = Database::open(&url, &Options::default()).await;
        let database = database.map_err(|error| hint_at_server(error, &args.to))?;
        let was_there = args.to.exists();
        let done = tokio::select! {
            done = database.backup(&args.to) => Some(done),
            _ = stop.recv() => None,
        };
        // Closing waits until a copy that was stopped is removed.
        database.close().await;
        match done {
            Some(done) => done?,
            // The copy got its name before it could be stopped.
            None if !was_there && args.to.exists() => {}
            None => return Err(stopped(&args.to)),
        }
    }
    let bytes = fs::metadata(&args.to)?.len();
    let file = args.to.display().to_string();
    output.record(&json!({"file": file, "bytes": bytes}), |_| {
        format!("backup of {bytes} bytes written to {file}; `gesta restore` checks it and puts it in place")
    })
}

fn stopped(to: &Path) -> Failure {
    Failure::interrupted(format!("stopped; nothing is left at {}", to.display()))
}

/// Adds to the error that a store which a server has open is copied through the server.
fn hint_at_server(error: Error, to: &Path) -> Failure {
    if !matches!(error.kind(), ErrorKind::Unavailable(_)) {
        return error.into();
    }
    let text = format!(
        "a store that a server has open is copied through it: gesta backup --store http://127.0.0.1:2113 {}",
        to.display()
    );
    Error::unavailable(text).caused_by(error).into()
}

/// A file that is removed unless it becomes the copy.
struct Unfinished {
    path: PathBuf,
    file: File,
}

impl Unfinished {
    fn create(to: &Path) -> Outcome<Self> {
        if to.exists() {
            let text = format!("backup must be a new file, {} exists", to.display());
            return Err(Failure::usage(text));
        }
        let mut name = to.as_os_str().to_owned();
        name.push(".unfinished");
        let path = PathBuf::from(name);
        let file = File::create(&path)
            .map_err(|error| Failure::other(format!("{}: {error}", path.display())))?;
        Ok(Self { path, file })
    }

    fn finish(self, to: &Path) -> Outcome {
        self.file.sync_all()?;
        // Another process may have made the file meanwhile.
        if to.exists() {
            let text = format!("backup must be a new file, {} exists", to.display());
            return Err(Failure::usage(text));
        }
        fs::rename(&self.path, to)?;
        let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(())
    }
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
    let restored = gesta::restore(&args.from, url, |progress| {
        bar.set_message(format!("{} events checked", progress.events));
    })
    .await;
    bar.finish_and_clear();
    let restored = restored?;
    let Some(incarnation) = restored.incarnation else {
        admin::show(&restored.report, output)?;
        eprintln!("{} is damaged: nothing was restored", args.from.display());
        return Err(admin::damaged(&restored.report));
    };
    let events: u64 = restored.report.logs.iter().map(|log| log.events).sum();
    let record = json!({"store": url, "events": events, "incarnation": incarnation.to_string()});
    output.record(&record, |_| {
        format!("restored {events} events to {url}, incarnation {incarnation}; checkpoints of the old store are refused")
    })
}
