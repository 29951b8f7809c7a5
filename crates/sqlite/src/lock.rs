//! The lock of a store, so that one process has it: an exclusive lock on a file beside the database.
//!
//! Why not SQLite's own locks: several connections of one process must read while one writes, which its exclusive mode
//! forbids. Why a file of its own, beside the lock of the database file (`place`): it keeps two stores from one name
//! when the file at that name is replaced, works where the other lock does not, and says who holds the store. The lock
//! is the operating system's and ends with the process, however it ends. The file stays: removing it would let two
//! processes lock two files of one name.
//!
//! The same folder can also be seen through another file system that has locks of its own (an overlay, a FUSE mount).
//! So the file says which process has the store, and a lock that is free is not believed while that process lives.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use gesta_core::{Error, ErrorKind, Result};

use crate::files::{self, with_suffix};

/// Largest number of bytes of a lock file that are read.
const BYTES_MAX: u64 = 256;
/// How often, and with which pause, a process that has just died may still look alive.
const LOOKS: usize = 10;
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Holds the lock until it is dropped.
#[derive(Debug)]
pub(crate) struct StoreLock {
    file: File,
}

impl StoreLock {
    /// Takes the lock of the database at `path`.
    ///
    /// # Errors
    /// `Unavailable` if another process, or another store of this process, holds the lock. The message says which one,
    /// and what to do. `Unsupported` if the lock file is not one of its own, or locks do not work here.
    pub(crate) fn take(path: &Path) -> Result<Self> {
        let lock_path = with_suffix(path, ".lock");
        files::check_one_name(&lock_path)?;
        let failed = |error: std::io::Error| {
            files::failed(&format!("cannot lock {}", lock_path.display()), error)
        };
        let open = || {
            files::private()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&lock_path)
                .map_err(failed)
        };
        let mut file = open()?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(held(path, &lock_path, &mut file)),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        if !matches!(open()?.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(ErrorKind::Unsupported(format!(
                "locks do not work where {} lies (a network file system?): put the store on a local disk",
                path.display()
            ))
            .into());
        }
        check_noted_holder(path, &lock_path, &mut file)?;
        // The process id only helps people; without it the lock is as good.
        if let Err(error) = write_holder(&mut file) {
            tracing::warn!(file = %lock_path.display(), %error, "process id not written to the lock file");
        }
        Ok(Self { file })
    }
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        // Who holds the lock next asks whether this process lives; it may, without the store.
        if let Err(error) = self.file.set_len(0) {
            tracing::warn!(%error, "process id not taken out of the lock file");
        }
    }
}

/// A process, told from all others that have had its number.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    process: u32,
    /// The space of process ids, when the process began in it, and the life of the kernel; empty if that is not known.
    life: String,
}

impl Holder {
    fn this() -> Self {
        let process = std::process::id();
        Self {
            process,
            life: life_of(process).unwrap_or_default(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        Some(Self {
            process: lines.next()?.trim().parse().ok()?,
            life: lines.next().unwrap_or_default().trim().to_owned(),
        })
    }

    fn read(file: &mut File) -> Option<Self> {
        let mut text = String::new();
        file.seek(SeekFrom::Start(0)).ok()?;
        // A file of our own of a few bytes; anything else in it is not shown.
        file.take(BYTES_MAX).read_to_string(&mut text).ok()?;
        Self::parse(&text)
    }

    /// Returns whether the process surely lives.
    fn lives(&self) -> bool {
        !self.life.is_empty() && life_of(self.process).as_ref() == Some(&self.life)
    }
}

/// Returns what tells the life of a process from those of others with its number; `None` if it has ended, or the system
/// does not tell.
#[cfg(target_os = "linux")]
fn life_of(process: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program is in brackets, and may hold anything.
    let mut words = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = words.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    // Field 22; the first one here is field 4.
    let began = words.nth(18)?;
    let space = fs::read_link("/proc/self/ns/pid").ok()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!("{} {began} {}", space.display(), kernel.trim()))
}

#[cfg(not(target_os = "linux"))]
fn life_of(_: u32) -> Option<String> {
    None
}

/// Refuses a store that another living process has noted as its own, though its lock is free.
fn check_noted_holder(path: &Path, lock_path: &Path, file: &mut File) -> Result<()> {
    let Some(holder) = Holder::read(file) else {
        return Ok(());
    };
    if holder.process == std::process::id() {
        return Ok(());
    }
    for _ in 0..LOOKS {
        if !holder.lives() {
            return Ok(());
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    Err(Error::unavailable(format!(
        "{} says that process {} has {} open, though the lock is free: it has the store through another mount of this \
         folder, or these files are a copy of a store in use, which is not whole. Stop that process, or reach the store \
         through its server; copy a store in use by `gesta backup`. Only if this is a snapshot of the whole file system at \
         one moment, remove {} here and open it",
        lock_path.display(),
        holder.process,
        path.display(),
        lock_path.display()
    )))
}

fn write_holder(file: &mut File) -> std::io::Result<()> {
    let holder = Holder::this();
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    writeln!(file, "{}\n{}", holder.process, holder.life)?;
    file.flush()
}

fn held(path: &Path, lock_path: &Path, file: &mut File) -> Error {
    let holder = match Holder::read(file).map(|holder| holder.process) {
        Some(id) if id == std::process::id() => format!("this process ({id})"),
        Some(id) => format!("process {id}"),
        None => "another process".into(),
    };
    Error::unavailable(format!(
        "{} is open in {holder}, which holds the lock {}; a SQLite store belongs to one process at a time: \
         stop that process, or reach the store through its server",
        path.display(),
        lock_path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_is_refused_with_a_sentence_that_helps() {
        let home = tempfile::tempdir().expect("dir");
        let path = home.path().join("gesta.db");
        let first = StoreLock::take(&path).expect("free");
        let error = StoreLock::take(&path).expect_err("taken").to_string();
        let id = std::process::id().to_string();
        for part in ["gesta.db.lock", &id, "one process", "through its server"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        drop(first);
        StoreLock::take(&path).expect("free again");
    }

    /// Goal: a living process that is noted is believed though the lock is free; a dead one is not.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_noted_holder_counts_while_it_lives() {
        let home = tempfile::tempdir().expect("dir");
        let path = home.path().join("gesta.db");
        let mut other = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .expect("starts");
        let life = life_of(other.id()).expect("lives");
        let lock = home.path().join("gesta.db.lock");
        fs::write(&lock, format!("{}\n{life}\n", other.id())).expect("writes");
        let error = StoreLock::take(&path).expect_err("lives").to_string();
        assert!(
            error.contains("another mount") && error.contains("gesta backup"),
            "{error}"
        );
        other.kill().expect("killed");
        // It is a zombie until it is waited for, and does not count.
        StoreLock::take(&path).expect("dead");
        other.wait().expect("ended");

        // What versions before this one wrote says nothing about the life of the process.
        fs::write(&lock, "1\n").expect("writes");
        StoreLock::take(&path).expect("free");
    }

    /// Goal: a lock file is never followed to another file, whose content would be lost.
    #[cfg(unix)]
    #[test]
    fn a_lock_file_that_leads_elsewhere_is_refused() {
        let home = tempfile::tempdir().expect("dir");
        let path = home.path().join("gesta.db");
        fs::write(&path, "a store").expect("writes");
        let lock = home.path().join("gesta.db.lock");
        std::os::unix::fs::symlink("gesta.db", &lock).expect("links");
        StoreLock::take(&path).expect_err("a link");
        fs::remove_file(&lock).expect("removes");
        fs::hard_link(&path, &lock).expect("links");
        StoreLock::take(&path).expect_err("two names");
        assert_eq!(fs::read_to_string(&path).expect("reads"), "a store");
    }
}
