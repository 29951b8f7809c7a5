//! A note beside the database says up to where the log surely reaches, so that a deleted write-ahead log is noticed.
//!
//! Why: after a crash the newest events are in `PATH-wal` alone. If that file is deleted, or an older copy is put in
//! the place of the database, SQLite opens what is left without a word: acknowledged events are gone, and their
//! positions are given to others. Then the log ends before the position that was noted, and the store is refused. How:
//! the file `PATH-end` holds the incarnation and a position that was committed and synced *before* it was noted. So no
//! crash of the process or loss of power can make a healthy store end before it. The first commit after opening and
//! after each checkpoint is noted before it is answered, and what was committed during a checkpoint is noted at its
//! end. So the note is after what the database file holds without its write-ahead log, except in the moment in which a
//! checkpoint ends. For stores with weakened durability no position is noted, since they may lose commits.
//!
//! The note also names the *opening*: a random number that a store draws each time that it is opened after it was
//! closed in good order. While the store is open, the database file holds the same number (the `user_version` of its
//! header), which is taken out when it is closed, after everything else was copied into the file. So a file that was
//! not closed says that it needs a write-ahead log, and the note beside it says that this is the one. A file that was
//! moved, linked, mounted or copied alone is refused. A backup has a number of its own, `Opening::BACKUP`, for which
//! there is a note only while the backup is migrated or becomes a store where it lies: it is no store until it was
//! restored. Order: the number is in the note, synced, before it is in the file, and in the file before anything is
//! appended.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gesta_core::backend::RowId;
use gesta_core::{Error, ErrorKind, Incarnation, LogId, Position, Result};
use gesta_sql::name_checksum;
use uuid::Uuid;

use crate::files::{self, sync_directory_of, with_suffix};

/// Text with which the line of a note starts.
const HEADER: &str = "gesta-end-1";

/// Content of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Noted {
    incarnation: Incarnation,
    position: Position,
    opening: Opening,
}

/// Number of an opening; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opening(pub(crate) i32);

impl Opening {
    pub(crate) const NONE: Self = Self(0);
    /// The mark of a backup. No opening has it, since those are odd.
    pub(crate) const BACKUP: Self = Self(0x4241_4b50);

    pub(crate) fn random() -> Self {
        let (_, low) = Uuid::new_v4().as_u64_pair();
        let [_, _, _, _, a, b, c, d] = low.to_be_bytes();
        // 0 means that the store is closed.
        Self(i32::from_be_bytes([a, b, c, d]) | 1)
    }
}

impl Noted {
    /// Writes the note as one line, shorter than a sector of a disk, so that it is written whole or not at all.
    fn to_line(self) -> String {
        let (incarnation, position) = (self.incarnation, self.position.0);
        let (sum, opening) = (self.checksum(), self.opening.0);
        // The opening comes last: versions that do not know it read no further than the checksum.
        format!(
            "{HEADER} incarnation={incarnation} position={position:020} checksum={sum:016x} opening={opening:08x}\n"
        )
    }

    fn checksum(self) -> i64 {
        name_checksum(
            LogId(0),
            RowId(self.position.0),
            &self.incarnation.to_string(),
        )
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let mut value = |name: &str| words.next()?.strip_prefix(name);
        value(HEADER).filter(|rest| rest.is_empty())?;
        let incarnation = Uuid::parse_str(value("incarnation=")?).ok()?;
        let position = value("position=")?.parse().ok()?;
        let sum = value("checksum=")?;
        let opening = value("opening=").and_then(|text| u32::from_str_radix(text, 16).ok());
        let noted = Self {
            incarnation: Incarnation(incarnation),
            position: Position(position),
            opening: Opening(opening.map_or(0, u32::cast_signed)),
        };
        (format!("{:016x}", noted.checksum()) == sum).then_some(noted)
    }
}

/// Returns the path of the note that belongs to the database at `path`.
pub(crate) fn file_of(path: &Path) -> PathBuf {
    with_suffix(path, "-end")
}

/// Reads the note of the database at `path`. Returns `None` if there is none, or if what is there is none, such as one
/// whose first writing was cut short.
///
/// # Errors
/// `Unsupported` or `Unavailable` if the file system refuses to show it: that is not taken for an absent note.
pub(crate) fn read(path: &Path) -> Result<Option<Noted>> {
    let file = file_of(path);
    let read = files::found_or_absent(fs::read(&file));
    let Some(bytes) = read.map_err(|error| files::failed_at(&file, error))? else {
        return Ok(None);
    };
    let noted = Noted::parse(&String::from_utf8_lossy(&bytes));
    if noted.is_none() {
        tracing::warn!(file = %file.display(), "unreadable, and so ignored");
    }
    Ok(noted)
}

/// Removes the note, if there is one, because the store begins a new life.
///
/// # Errors
/// Those of the file system.
pub(crate) fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(file_of(path)) {
        Ok(()) => sync_directory_of(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Refuses an empty or missing database file beside which a write-ahead log or a note with events is left. It must be
/// called before SQLite opens anything, because SQLite would delete that write-ahead log.
///
/// # Errors
/// `Corrupt`, with what to do.
pub(crate) fn check_file(path: &Path) -> Result<()> {
    if fs::metadata(path).is_ok_and(|found| found.len() > 0) {
        return Ok(());
    }
    let wal = with_suffix(path, "-wal");
    let wal_bytes = fs::metadata(&wal).map_or(0, |found| found.len());
    if wal_bytes > 0 {
        return Err(Error::corrupt(format!(
            "{} is missing or empty, but its write-ahead log {} holds {wal_bytes} bytes: bring the database file back, or move both away",
            path.display(),
            wal.display()
        )));
    }
    match read(path)? {
        Some(noted) if noted.position > Position::START => Err(Error::corrupt(format!(
            "{} is missing or empty, but a store with events up to position {} was here: bring it back, restore a backup to another place \
             (`gesta restore`), or remove {} to begin a new store",
            path.display(),
            noted.position,
            file_of(path).display()
        ))),
        _ => Ok(()),
    }
}

/// Refuses a log that ends before the position that was noted. It is called after opening.
///
/// # Errors
/// `Corrupt`, with what happened and what to do.
pub(crate) fn check_end(
    path: &Path,
    incarnation: Option<Incarnation>,
    end: Position,
) -> Result<()> {
    let Some(noted) = read(path)? else {
        return Ok(());
    };
    // Another life, as after `new-incarnation`: the note says nothing about it.
    if incarnation.is_some_and(|found| found != noted.incarnation) || end >= noted.position {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Corrupt(format!(
        "{} ends at position {end}, but position {} was committed: its write-ahead log ({}) was deleted after a crash, \
         or an older copy was put in its place; events are missing. Nothing was changed. Bring the write-ahead log back, or restore a \
         backup (`gesta restore`); to go on without the missing events run `gesta schema new-incarnation`",
        path.display(),
        noted.position,
        with_suffix(path, "-wal").display()
    ))))
}

/// Refuses a backup: with the incarnation of its store it would go on as that one, and readers of events after the
/// backup would not notice that their positions are used again.
///
/// # Errors
/// `InvalidArgument`, with what to do.
pub(crate) fn check_no_backup(path: &Path, opening: Opening) -> Result<()> {
    if opening != Opening::BACKUP {
        return Ok(());
    }
    if is_changed(path)? {
        let rule = format!(
            "must be a store, and {} is a backup that a command was changing when it ended: give that command again \
             (`gesta schema new-incarnation`, `gesta schema migrate`)",
            path.display()
        );
        return Err(Error::invalid("store", rule));
    }
    let path = path.display();
    let rule = format!(
        "must be a store, and {path} is a backup, made by `gesta backup`: `gesta restore {path} --store sqlite:NEW` checks it \
         and makes a store of it at NEW, where nothing may be yet. Was it put in the place of a store by cp or the like? \
         Move it to another name and restore it from there, once {path}-wal, {path}-shm and {path}-end are moved away too. \
         Nothing was changed"
    );
    Err(Error::invalid("store", rule))
}

/// Whether the note says that a backup is being changed, and so that the write-ahead log beside it is its own.
fn is_changed(path: &Path) -> Result<bool> {
    Ok(read(path)?.is_some_and(|noted| noted.opening == Opening::BACKUP))
}

/// Refuses a backup beside which a write-ahead log lies that is not its own. SQLite would take it for that of the
/// backup.
///
/// # Errors
/// `InvalidArgument`, with what to do.
pub(crate) fn check_alone(path: &Path, opening: Opening) -> Result<()> {
    let wal = with_suffix(path, "-wal");
    let is_alone = !fs::metadata(&wal).is_ok_and(|found| found.len() > 0);
    if opening != Opening::BACKUP || is_alone || is_changed(path)? {
        return Ok(());
    }
    let rule = format!(
        "must be a file alone if it is a backup, and beside {} lies {}, which belongs to another store: move it away",
        path.display(),
        wal.display()
    );
    Err(Error::invalid("store", rule))
}

/// Refuses a database file that was not closed in good order and beside which the note of that opening is not. It is
/// called before SQLite opens anything, with the opening that the file itself holds.
///
/// # Errors
/// `Corrupt`, with what may have happened and what to do.
pub(crate) fn check_opening(path: &Path, opening: Opening) -> Result<()> {
    if opening == Opening::NONE || read(path)?.is_some_and(|noted| noted.opening == opening) {
        return Ok(());
    }
    let (note, wal) = (file_of(path), with_suffix(path, "-wal"));
    Err(Error::new(ErrorKind::Corrupt(format!(
        "{} was not closed in good order, and {}, which belongs to it, is not beside it: the file was moved, linked, mounted or \
         copied alone, and its newest events may be in the write-ahead log that it had under its former name. Nothing was \
         changed. Bring {} and {} here from there, or open it under that name; a copy of a store in use is made by \
         `gesta backup`. To go on with the events that are here, also if SQLite itself has made this file as a whole copy \
         (`sqlite3 .backup`, `VACUUM INTO`, Litestream): `gesta schema new-incarnation --yes --store sqlite:{}`",
        path.display(),
        note.display(),
        wal.display(),
        note.display(),
        path.display()
    ))))
}

/// Notes an opening, before it is in the database file. What was noted of the end of the log stays.
///
/// # Errors
/// `Unavailable` if the note cannot be written.
pub(crate) fn note_opening(path: &Path, incarnation: Incarnation, opening: Opening) -> Result<()> {
    let before = read(path)?.filter(|noted| noted.incarnation == incarnation);
    let noted = Noted {
        incarnation,
        position: before.map_or(Position::START, |noted| noted.position),
        opening,
    };
    let file = open_file(path)?;
    write_synced(&file, noted)
        .and_then(|()| sync_directory_of(path))
        .map_err(|error| {
            Error::unavailable(format!("cannot write {}: {error}", file_of(path).display()))
                .caused_by(error)
        })
}

fn open_file(path: &Path) -> Result<File> {
    files::check_one_name(&file_of(path))?;
    files::private()
        .write(true)
        .create(true)
        .truncate(false)
        .open(file_of(path))
        .map_err(|error| {
            Error::unavailable(format!("cannot open {}: {error}", file_of(path).display()))
                .caused_by(error)
        })
}

fn write_synced(file: &File, noted: Noted) -> std::io::Result<()> {
    files::write_at(file, noted.to_line().as_bytes(), 0)?;
    file.sync_data()
}

/// Writes the note. The writing thread and the checkpoint thread share it.
#[derive(Debug)]
pub(crate) struct EndNote {
    path: PathBuf,
    incarnation: Incarnation,
    opening: Opening,
    file: File,
    noted: AtomicU64,
    due: AtomicBool,
}

impl EndNote {
    /// Prepares the note of the database at `path`, whose opening is noted. It writes nothing yet.
    ///
    /// # Errors
    /// `Unavailable` if the file cannot be opened.
    pub(crate) fn open(path: &Path, incarnation: Incarnation, opening: Opening) -> Result<Self> {
        let before = read(path)?.filter(|noted| noted.incarnation == incarnation);
        Ok(Self {
            path: path.to_owned(),
            incarnation,
            opening,
            file: open_file(path)?,
            noted: AtomicU64::new(before.map_or(0, |noted| noted.position.0)),
            due: AtomicBool::new(true),
        })
    }

    /// Makes a note of the next commit due. It is called after a checkpoint.
    pub(crate) fn expect_next(&self) {
        self.due.store(true, Ordering::Release);
    }

    /// Returns true if a note is due: once for each checkpoint, and once after opening.
    pub(crate) fn take_due(&self) -> bool {
        // Read first: most commits find nothing to do, and an exchange costs more.
        self.due.load(Ordering::Relaxed) && self.due.swap(false, Ordering::AcqRel)
    }

    /// Notes a position that is committed and synced. A note that cannot be written is logged, and its check is
    /// missing.
    pub(crate) fn write(&self, position: Position) {
        if position.0 <= self.noted.load(Ordering::Relaxed) {
            return;
        }
        match self.try_write(position) {
            Ok(()) => self.noted.store(position.0, Ordering::Relaxed),
            Err(error) => {
                tracing::warn!(file = %file_of(&self.path).display(), %error, "the end of the log is not noted");
            }
        }
    }

    fn try_write(&self, position: Position) -> std::io::Result<()> {
        let noted = Noted {
            incarnation: self.incarnation,
            position,
            opening: self.opening,
        };
        write_synced(&self.file, noted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no store that is open is ever taken for a backup.
    #[test]
    fn no_opening_has_the_mark_of_a_backup() {
        assert_eq!(Opening::BACKUP.0 & 1, 0);
        assert!((0..100).all(|_| Opening::random().0 & 1 == 1));
    }

    #[test]
    fn a_note_is_read_back_and_a_damaged_one_is_ignored() {
        let home = tempfile::tempdir().expect("dir");
        let path = home.path().join("gesta.db");
        let incarnation = Incarnation::random();
        let note = EndNote::open(&path, incarnation, Opening(-5)).expect("opens");
        assert_eq!(read(&path).expect("reads"), None, "nothing is noted yet");
        note.write(Position(7));
        note.write(Position(5));
        let expected = Noted {
            incarnation,
            position: Position(7),
            opening: Opening(-5),
        };
        assert_eq!(read(&path).expect("reads"), Some(expected));
        assert!(expected.to_line().len() < 512, "one sector");
        let text = fs::read_to_string(file_of(&path)).expect("text");
        for damaged in [
            text.replace('7', "8"),
            text[..text.len() / 2].to_owned(),
            String::new(),
        ] {
            fs::write(file_of(&path), damaged).expect("writes");
            assert_eq!(read(&path).expect("reads"), None);
        }
    }

    #[test]
    fn a_note_is_due_once_after_opening_and_after_each_checkpoint() {
        let home = tempfile::tempdir().expect("dir");
        let path = home.path().join("gesta.db");
        let note = EndNote::open(&path, Incarnation::random(), Opening(1)).expect("opens");
        assert!(note.take_due() && !note.take_due());
        note.expect_next();
        assert!(note.take_due() && !note.take_due());
    }

    /// Goal: a file that was not closed needs the note of that opening; notes of earlier versions are read.
    #[test]
    fn an_opening_must_be_the_one_that_is_noted() {
        let home = tempfile::tempdir().expect("dir");
        let path = home.path().join("gesta.db");
        let incarnation = Incarnation::random();
        check_opening(&path, Opening::NONE).expect("closed, and no note");
        let error = check_opening(&path, Opening(7))
            .expect_err("no note")
            .to_string();
        for part in [
            "gesta.db-end",
            "gesta.db-wal",
            "gesta backup",
            "new-incarnation",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        note_opening(&path, incarnation, Opening(7)).expect("writes");
        EndNote::open(&path, incarnation, Opening(7))
            .expect("opens")
            .write(Position(9));
        check_opening(&path, Opening(7)).expect("noted");
        check_opening(&path, Opening(8)).expect_err("another one");
        note_opening(&path, incarnation, Opening(8)).expect("writes");
        let noted = read(&path).expect("reads");
        assert_eq!(noted.map(|noted| noted.position), Some(Position(9)));

        // A version before this one writes its shorter line over the longer one, or alone.
        let text = fs::read_to_string(file_of(&path)).expect("text");
        let (before, after) = text.split_once(" opening=").expect("an opening");
        for (earlier, opening) in [
            (format!("{before}\n"), Opening::NONE),
            (format!("{before}\nopening={after}"), Opening(8)),
        ] {
            fs::write(file_of(&path), earlier).expect("writes");
            let noted = read(&path).expect("reads").expect("a note");
            assert_eq!((noted.position, noted.opening), (Position(9), opening));
        }
    }
}
