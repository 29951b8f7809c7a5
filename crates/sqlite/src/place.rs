//! The database file of an open store: held open and locked as long as the store is open, and watched.
//!
//! Why a lock on the file itself, beside that of `lock`: a file may have several names (links, mounts), and a name may
//! come to lead to another file (a folder that is moved, removed, replaced or mounted over). This lock belongs to the
//! file, whatever its name. It is of a kind (`flock`) that SQLite's own locks do not meet on Linux; elsewhere they do,
//! so only there it is taken. Closing any handle of the file drops the locks that SQLite holds on it in this process,
//! so the handle is closed after all connections, and a file that this process holds is never opened here again.
//!
//! Why the file is watched: SQLite goes on with a file whose name is gone, and what it appends there would be found by
//! nobody. And at the end it removes a write-ahead log by name, which would be that of another store. So every commit
//! looks before it is answered, and `Place::look` at other times.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use gesta_core::{Error, ErrorKind, Result, uptime};

use crate::end_note::Opening;
use crate::files::{self, FileId, cannot_open, with_suffix};
use crate::tries::{Disk, Tries};

/// Where in the header of a SQLite file its `user_version` stands; see `end_note` for what it says here.
const MARK_AT: u64 = 60;
/// The same place among the first bytes of a file.
const MARK_BYTES: std::ops::Range<usize> = 60..64;

/// How often a file is opened whose name leads to another one each time.
const ATTEMPTS: usize = 3;

/// The database files that this process holds.
static HELD: Mutex<Option<HashSet<FileId>>> = Mutex::new(None);

/// The database file of an open store.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    /// The name by which the store was opened, if it led to the path through symbolic links.
    given: Option<PathBuf>,
    wal: PathBuf,
    id: Option<FileId>,
    wal_id: OnceLock<FileId>,
    /// The handle with the lock; `None` once the store is closed.
    file: Mutex<Option<File>>,
    tries: Arc<Tries<Found>>,
}

/// What a look at the names of a store has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// Everything is in its place.
    InPlace,
    /// The disk, or the mount at this name, is read-only now. The sentence says what to do.
    ReadOnly(String),
    /// The name of the database leads to no file, or to another one. The sentence says what to do.
    Moved(String),
    /// The database is in its place, but the name of its write-ahead log leads to no file, or to another one.
    WithoutLog,
}

impl Place {
    /// Holds the database file at `path`, which must exist, and locks it. `given` is the name that led there.
    ///
    /// # Errors
    /// `Unavailable` if the file is open in another process or another store of this one, under whatever name;
    /// `Unsupported` if it, or a file beside it, has several names, or lies where locks do not hold.
    pub(crate) fn take(path: &Path, given: &Path) -> Result<Self> {
        for suffix in ["", "-wal", "-shm", "-end"] {
            files::check_one_name(&with_suffix(path, suffix))?;
        }
        let (file, claim) = open_claimed(path)?;
        let id = claim.0;
        files::check_file_system(&file, path)?;
        lock(&file, path, id)?;
        claim.keep();
        let given = std::path::absolute(given).map_err(|error| cannot_open(given, error))?;
        Ok(Self {
            path: path.to_owned(),
            given: (given != path).then_some(given),
            wal: with_suffix(path, "-wal"),
            id,
            wal_id: OnceLock::new(),
            file: Mutex::new(Some(file)),
            tries: Arc::default(),
        })
    }

    /// Notes which file the write-ahead log is. It is called once SQLite has opened it, and it stays the same one until
    /// the store is closed.
    pub(crate) fn note_log(&self) {
        if let Some(id) = fs::metadata(&self.wal).ok().as_ref().and_then(FileId::of) {
            // It is noted once; a store notes it once.
            let _ = self.wal_id.set(id);
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the mark of an opening (`end_note`) from the file itself: what it holds without its write-ahead log.
    ///
    /// # Errors
    /// `Unavailable` if the file cannot be read.
    pub(crate) fn mark(&self) -> Result<Opening> {
        let file = self.lock_file();
        let Some(file) = file.as_ref() else {
            return Ok(Opening::NONE);
        };
        read_mark(file).map_err(|error| cannot_open(&self.path, error))
    }

    /// Looks where the names of the store lead, and whether it can be written.
    pub(crate) fn look(&self) -> Found {
        let found = self.look_at_names();
        if found != Found::InPlace {
            return found;
        }
        let file = self.lock_file();
        if file
            .as_ref()
            .is_some_and(|file| files::is_read_only(file, &self.path))
        {
            return Found::ReadOnly(format!(
                "the disk of {} is mounted read-only: mount it for writing again (`mount -o remount,rw`); reads go on, \
                 and so do appends after that",
                self.path.display()
            ));
        }
        Found::InPlace
    }

    /// Looks as [`Place::look`] does, and tries whether the disk takes writes, both on a thread of their own, since a
    /// disk may hang. It is for whoever asks whether the store is ready, since a store to which nobody appends should
    /// not write.
    ///
    /// Why: a file system that has found an error in itself takes no more writes, and does not always say so.
    ///
    /// # Errors
    /// `Unavailable` if the disk hangs.
    pub(crate) fn look_and_try(self: &Arc<Self>) -> Result<Found> {
        self.look_and_try_at(uptime())
    }

    fn look_and_try_at(self: &Arc<Self>, now: Duration) -> Result<Found> {
        let (place, path) = (Arc::clone(self), self.path.clone());
        let look = move || place.look();
        let attempt = move |found: &Found| match found {
            Found::InPlace => try_to_write(&path),
            _ => None,
        };
        match self.tries.ask(now, look, attempt) {
            Disk::Answers {
                found: None | Some(Found::InPlace),
                refusal,
            } => Ok(refusal.map_or(Found::InPlace, Found::ReadOnly)),
            Disk::Answers {
                found: Some(found), ..
            } => Ok(found),
            Disk::Hangs(time) => Err(Error::unavailable(format!(
                "the disk of {} hangs: it has not answered a write for {} s. If it does not come back, stop this \
                 process, check and mount the disk again, and start it again",
                self.path.display(),
                time.as_secs()
            ))),
        }
    }

    /// Looks where the names of the store lead. This is cheap enough for every commit.
    pub(crate) fn look_at_names(&self) -> Found {
        if !leads_to(&self.path, self.id) {
            return Found::Moved(self.moved());
        }
        if let Some(given) = &self.given
            && !leads_to(given, self.id)
        {
            return Found::Moved(format!(
                "{} led to {} when the store was opened, and leads elsewhere now: stop this process, and start it with the path \
                 to which it led, which holds what was acknowledged, or let the name lead there again",
                given.display(),
                self.path.display()
            ));
        }
        match self.wal_id.get() {
            Some(id) if !leads_to(&self.wal, Some(*id)) => Found::WithoutLog,
            _ => Found::InPlace,
        }
    }

    /// Says where the file is now, and what to do.
    fn moved(&self) -> String {
        let file = self.lock_file();
        let now = file.as_ref().and_then(present_name);
        let path = self.path.display();
        let instead = match fs::symlink_metadata(&self.path) {
            Ok(_) => "another file is there now",
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => "nothing is there now",
            Err(_) => "what is there now cannot be looked at",
        };
        match now {
            Some(now) if now == self.path => format!(
                "{path} no longer leads to the store that is open here, because something was mounted over it or its folder \
                 ({instead}): stop this process, unmount what is there, and start it again; what was acknowledged is in \
                 the file below"
            ),
            Some(now) => format!(
                "{path} was moved to {} while the store was open ({instead}): stop this process, then move the folder \
                 back, or start it with the new path; what was acknowledged is in the moved file",
                now.display()
            ),
            None => format!(
                "{path} was removed while the store was open ({instead}), and only this process still has it: save it \
                 before this process ends (`gesta backup --store URL-OF-THIS-SERVER copy.db`), then stop this process, and \
                 put the copy in place (`gesta restore`)"
            ),
        }
    }

    /// Closes the handle and so ends the lock. All connections must be closed.
    pub(crate) fn release(&self) {
        let file = self.lock_file().take();
        if file.is_some() {
            forget_held(self.id);
        }
        drop(file);
    }

    fn lock_file(&self) -> std::sync::MutexGuard<'_, Option<File>> {
        // A panic cannot leave a handle half changed.
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.release();
    }
}

/// Refuses a file that a store has open, in this process or another. It changes nothing.
///
/// # Errors
/// `InvalidArgument`, named `what`, if the file is open; `Unavailable` if it cannot be read.
pub(crate) fn check_not_open(what: &str, path: &Path) -> Result<()> {
    let failed = |error| cannot_open(path, error);
    let id = FileId::of(&fs::metadata(path).map_err(failed)?);
    let refuse = || {
        let rule = format!(
            "must be a file made by `gesta backup`, and {} is a store that is open",
            path.display()
        );
        Err(Error::invalid(what, rule))
    };
    if is_held(id) {
        return refuse();
    }
    if cfg!(target_os = "linux")
        && let Err(fs::TryLockError::WouldBlock) =
            File::open(path).map_err(failed)?.try_lock_shared()
    {
        return refuse();
    }
    Ok(())
}

/// Opens a database file, after claiming it for this process.
fn open_claimed(path: &Path) -> Result<(File, Claim)> {
    let failed = |error: std::io::Error| cannot_open(path, error);
    for _ in 0..ATTEMPTS {
        let id = FileId::of(&fs::metadata(path).map_err(failed)?);
        let claim = Claim::new(path, id)?;
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(failed)?;
        let opened = FileId::of(&file.metadata().map_err(failed)?);
        if opened == id {
            return Ok((file, claim));
        }
        // The name leads to another file now. On an overlay, opening for writing can have made the file a new one.
        if is_held(opened) {
            // Closing it would drop the locks that SQLite holds on it in this process.
            std::mem::forget(file);
        }
    }
    let text = format!("{} was replaced while it was being opened", path.display());
    Err(Error::unavailable(text))
}

/// The claim of a file for this process, which ends unless it is kept.
struct Claim(Option<FileId>);

impl Claim {
    fn new(path: &Path, id: Option<FileId>) -> Result<Self> {
        let Some(id) = id else { return Ok(Self(None)) };
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        if held.get_or_insert_default().insert(id) {
            return Ok(Self(Some(id)));
        }
        Err(is_open_in(
            path,
            &format!("this process ({})", std::process::id()),
        ))
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        forget_held(self.0);
    }
}

fn is_held(id: Option<FileId>) -> bool {
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    id.is_some_and(|id| held.as_ref().is_some_and(|held| held.contains(&id)))
}

fn forget_held(id: Option<FileId>) {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if let (Some(held), Some(id)) = (held.as_mut(), id) {
        held.remove(&id);
    }
}

fn lock(file: &File, path: &Path, id: Option<FileId>) -> Result<()> {
    if !cfg!(target_os = "linux") {
        return Ok(());
    }
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(fs::TryLockError::WouldBlock) => {
            let holder = id.and_then(holder_of);
            let holder = holder.map_or("another process".into(), |id| format!("process {id}"));
            Err(is_open_in(path, &holder))
        }
        Err(fs::TryLockError::Error(error)) => Err(Error::unavailable(format!(
            "cannot lock {}: {error}",
            path.display()
        ))
        .caused_by(error)),
    }
}

fn is_open_in(path: &Path, holder: &str) -> Error {
    Error::unavailable(format!(
        "{} is open in {holder}, which holds the lock of the file itself, perhaps under another name of it; a SQLite store \
         belongs to one process at a time: stop that process, or reach the store through its server",
        path.display()
    ))
}

/// Finds the process that holds the lock of a file, as far as the kernel tells.
fn holder_of(id: FileId) -> Option<u32> {
    let mut text = String::new();
    File::open("/proc/locks")
        .and_then(|mut file| file.read_to_string(&mut text))
        .ok()?;
    let inode = format!(":{}", id.inode);
    text.lines().find_map(|line| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, _, process, file, ..] = words[..] else {
            return None;
        };
        file.ends_with(&inode).then(|| process.parse().ok())?
    })
}

/// Gives the lock file the time that it has: the least that must reach the disk. Returns why the disk takes no writes.
fn try_to_write(path: &Path) -> Option<String> {
    let lock = with_suffix(path, ".lock");
    let written = || {
        let file = fs::OpenOptions::new().write(true).open(&lock)?;
        file.set_modified(file.metadata()?.modified()?)
    };
    // Other errors do not say that.
    let error = written().err().filter(takes_no_writes)?;
    Some(format!(
        "the disk of {} takes no writes ({error}): its file system has failed, or was made read-only. Stop this \
         process, check and mount the disk again (`fsck`), and start it again; reads go on, and `gesta backup` \
         through this server saves the store",
        path.display()
    ))
}

/// Tells whether an error says that a file system takes no writes at all.
fn takes_no_writes(error: &std::io::Error) -> bool {
    /// The error of a file system that has given up.
    const EIO: i32 = 5;
    error.kind() == std::io::ErrorKind::ReadOnlyFilesystem || error.raw_os_error() == Some(EIO)
}

fn leads_to(path: &Path, id: Option<FileId>) -> bool {
    match fs::metadata(path) {
        Ok(found) => FileId::of(&found) == id,
        // Other errors than these do not say that the file is elsewhere.
        Err(error) => !matches!(
            error.kind(),
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
        ),
    }
}

/// Returns the name that an open file has now; `None` if it has none.
#[cfg(target_os = "linux")]
fn present_name(file: &File) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    (!name.to_string_lossy().ends_with(" (deleted)")).then_some(name)
}

#[cfg(not(target_os = "linux"))]
fn present_name(_: &File) -> Option<PathBuf> {
    None
}

/// Sets the mark of an opening in a copy, which nobody has open. It leaves the handle at the place where it was.
///
/// # Errors
/// Those of the file system.
pub(crate) fn write_mark(copy: &File, opening: Opening) -> std::io::Result<()> {
    files::write_at(copy, &opening.0.to_be_bytes(), MARK_AT)
}

/// Sets the mark of an opening in the first bytes of a copy, before they are written.
pub(crate) fn mark_header(header: &mut [u8], opening: Opening) {
    if let Some(mark) = header.get_mut(MARK_BYTES) {
        mark.copy_from_slice(&opening.0.to_be_bytes());
    }
}

/// Reads the mark of an opening from a file.
///
/// # Errors
/// Those of the file system.
pub(crate) fn read_mark(file: &File) -> std::io::Result<Opening> {
    let mut bytes = [0; 4];
    match files::read_at(file, &mut bytes, MARK_AT) {
        Ok(()) => Ok(Opening(i32::from_be_bytes(bytes))),
        // A new file.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(Opening::NONE),
        Err(error) => Err(error),
    }
}

/// The first bytes of every SQLite database that is not empty.
pub(crate) const SQLITE_BEGINS: &[u8] = b"SQLite format 3\0";

/// Refuses a file that is no SQLite database, before anything is left beside it. If there are files of a store beside
/// it, it is one that is damaged, which is told later.
///
/// # Errors
/// `Schema` if it is none; `Unavailable` if this process has it open as a store.
pub(crate) fn check_is_database(path: &Path) -> Result<()> {
    let Some(found) = files::look(path)? else {
        return Ok(());
    };
    let is_of_store = |suffix: &&str| with_suffix(path, suffix).exists();
    let is_store = ["-wal", "-end", ".lock"].iter().any(is_of_store);
    if !found.is_file() || found.len() == 0 || is_store {
        return Ok(());
    }
    // Closing a file that this process has open would drop the locks that SQLite holds on it.
    let _claim = Claim::new(path, FileId::of(&found))?;
    let mut begins = Vec::new();
    let bytes = u64::try_from(SQLITE_BEGINS.len()).unwrap_or(u64::MAX);
    let read = File::open(path).and_then(|file| file.take(bytes).read_to_end(&mut begins));
    read.map_err(|error| cannot_open(path, error))?;
    if begins == SQLITE_BEGINS {
        return Ok(());
    }
    Err(ErrorKind::Schema(format!(
        "{} is no SQLite database, and so no store: another file is meant, or the path is mistyped",
        path.display()
    ))
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(home: &Path) -> Place {
        let path = home.join("gesta.db");
        fs::write(&path, "x").expect("writes");
        Place::take(&path, &path).expect("free")
    }

    /// Goal: neither this process nor another holds a file twice, and the claim ends with the store.
    #[test]
    fn a_file_is_held_once() {
        let home = tempfile::tempdir().expect("dir");
        let place = held(home.path());
        let error = Place::take(place.path(), place.path())
            .expect_err("held")
            .to_string();
        assert!(
            error.contains("this process") && error.contains("which holds the lock"),
            "{error}"
        );
        assert!(check_not_open("backup", place.path()).is_err());
        let path = place.path().to_owned();
        place.release();
        check_not_open("backup", &path).expect("closed");
        Place::take(&path, &path).expect("free again");
    }

    #[test]
    fn a_look_tells_what_became_of_the_name() {
        let home = tempfile::tempdir().expect("dir");
        let home = fs::canonicalize(home.path()).expect("exists");
        let place = held(&home);
        assert_eq!(place.look(), Found::InPlace);
        let moved = |place: &Place| match place.look() {
            Found::Moved(text) => text,
            other => panic!("{other:?}"),
        };
        fs::rename(place.path(), home.join("new.db")).expect("renames");
        let text = moved(&place);
        assert!(
            text.contains("new.db") && text.contains("nothing is there"),
            "{text}"
        );
        fs::write(place.path(), "another").expect("writes");
        let text = moved(&place);
        assert!(text.contains("another file is there"), "{text}");
        fs::remove_file(home.join("new.db")).expect("removes");
        let text = moved(&place);
        assert!(
            text.contains("was removed") && text.contains("gesta backup"),
            "{text}"
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_look_tells_a_link_that_leads_elsewhere() {
        use std::os::unix::fs::symlink;
        let home = tempfile::tempdir().expect("dir");
        let home = fs::canonicalize(home.path()).expect("exists");
        let (path, given) = (home.join("one.db"), home.join("gesta.db"));
        fs::write(&path, "x").expect("writes");
        fs::write(home.join("two.db"), "y").expect("writes");
        symlink(&path, &given).expect("links");
        let place = Place::take(&path, &given).expect("free");
        assert_eq!(place.look(), Found::InPlace);
        fs::remove_file(&given).expect("removes");
        symlink(home.join("two.db"), &given).expect("links");
        let Found::Moved(text) = place.look() else {
            panic!("the link leads elsewhere");
        };
        assert!(
            text.contains("one.db") && text.contains("leads elsewhere"),
            "{text}"
        );
    }

    #[test]
    fn a_look_tells_a_log_that_is_gone() {
        let home = tempfile::tempdir().expect("dir");
        let place = held(home.path());
        fs::write(home.path().join("gesta.db-wal"), "x").expect("writes");
        place.note_log();
        assert_eq!(place.look(), Found::InPlace);
        fs::remove_file(home.path().join("gesta.db-wal")).expect("removes");
        assert_eq!(place.look(), Found::WithoutLog);
    }

    /// Goal: who asks whether a store is ready is answered, and told so, while its disk hangs.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_disk_that_hangs_is_told() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        const PATIENCE: Duration = Duration::from_secs(60);
        let home = tempfile::tempdir().expect("dir");
        let place = Arc::new(held(home.path()));
        let lock = home.path().join("gesta.db.lock");
        // It is opened for writing only once somebody reads.
        mknodat(CWD, &lock, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("makes a pipe");
        let look = |now: u64| {
            let (told, found) = std::sync::mpsc::channel();
            let place = Arc::clone(&place);
            std::thread::spawn(move || told.send(place.look_and_try_at(Duration::from_secs(now))));
            found.recv_timeout(PATIENCE).expect("is answered")
        };
        assert_eq!(look(100).expect("not known yet"), Found::InPlace);
        let error = look(160).expect_err("hangs");
        assert!(matches!(error.kind(), ErrorKind::Unavailable(_)));
        assert!(
            error
                .to_string()
                .contains("has not answered a write for 60 s"),
            "{error}"
        );
        drop(File::open(&lock).expect("the try ends"));
    }
}
