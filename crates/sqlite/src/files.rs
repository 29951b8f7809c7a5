//! What the file system says about files: which file a name leads to, whether its name is the only one, who may read
//! it, and whether its locks work. New files and directories are made for their owner alone.
//!
//! Why here: events, hashes of passwords and tokens lie in these files, and what keeps two processes apart hangs on the
//! file that a name leads to, not on the name.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};

use gesta_core::{Error, ErrorKind, Result};

/// The mode of a new file: only its owner may read it. SQLite gives `-wal` and `-shm` the mode of the database.
#[cfg(unix)]
const FILE_MODE: u32 = 0o600;
/// The mode of a new directory.
#[cfg(unix)]
const DIRECTORY_MODE: u32 = 0o700;
/// Largest number of symbolic links that are followed one after the other, as in the kernel.
const LINKS_MAX: usize = 40;

/// Which file it is, whatever its name. It is told from all other files that exist at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl FileId {
    /// Returns the identity of a file; `None` where the operating system has none.
    #[cfg(unix)]
    pub(crate) fn of(found: &Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
        })
    }

    #[cfg(not(unix))]
    pub(crate) fn of(_: &Metadata) -> Option<Self> {
        None
    }
}

/// Makes the name of a file durable, where directories can be synced.
pub(crate) fn sync_directory_of(path: &Path) -> std::io::Result<()> {
    if cfg!(unix) {
        File::open(directory_of(path))?.sync_all()?;
    }
    Ok(())
}

/// Returns the folder in which a file lies, or will lie.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Returns the path with something added to its name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Returns options that open a file which only its owner may read if it is made.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, FILE_MODE);
    options
}

/// Creates a directory and those above it, for their owner alone, and makes their names durable.
pub(crate) fn create_directories(path: &Path) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        create_directories(parent)?;
    }
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, DIRECTORY_MODE);
    match builder.create(path) {
        Err(error) if error.kind() != Io::AlreadyExists => Err(error),
        _ => sync_directory_of(path),
    }
}

/// Follows symbolic links from a path to the name at which the file is, or will be, so that a link to what does not
/// exist yet is taken for what it leads to.
pub(crate) fn follow_links(path: &Path) -> std::io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(target) => path = directory_of(&path).join(target),
            // It is no link, or it is not there.
            Err(_) => return Ok(path),
        }
    }
    let text = format!("{} leads through too many symbolic links", path.display());
    Err(std::io::Error::other(text))
}

/// Returns the path of a file or a folder without symbolic links, at which SQLite finds it.
///
/// # Errors
/// Those of the file system, and another one if no path leads there: the file has no name any more, or was named as
/// only another process can name it. A name below `/proc/PID/root` leads into the mounts of that process, but what is a
/// link there says a path of ours, where another file may be.
pub(crate) fn canonical(path: &Path) -> std::io::Result<PathBuf> {
    let meant = FileId::of(&fs::metadata(path)?);
    let no_name = || {
        std::io::Error::other(
            "it is a file without a name here: it was removed, or lies in the mounts of another process (`/proc/PID/root`)",
        )
    };
    let found = fs::canonicalize(path).map_err(|error| match error.kind() {
        Io::NotFound => no_name(),
        _ => error,
    })?;
    match fs::metadata(&found) {
        Ok(there) if FileId::of(&there) == meant => Ok(found),
        _ => Err(no_name()),
    }
}

/// Refuses a file of a store that somebody could change, remove or replace under another name: it must be a regular
/// file with one name, in the same mount as its folder. A file that is not there is fine.
///
/// Why: the files of a store are found by their names. A database with two names has two write-ahead logs, and a
/// write-ahead log with two names is emptied under one of them and read again under the other. Either loses events.
///
/// # Errors
/// `Unsupported`, with what to do; `Unavailable` if the file system does not answer.
pub(crate) fn check_one_name(path: &Path) -> Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == Io::NotFound => return Ok(()),
        Err(error) => {
            return Err(Error::unavailable(format!("{}: {error}", path.display())).caused_by(error));
        }
    };
    let refuse =
        |why: String| Err(ErrorKind::Unsupported(format!("{} {why}", path.display())).into());
    if !found.is_file() {
        return refuse("is no regular file, and a store needs one there".into());
    }
    let names = names(&found);
    if names > 1 {
        return refuse(format!(
            "has {names} names (hard links), and a store must have one, because the files beside it are found by its name: \
             remove the other names (`find DIRECTORY -xdev -samefile {}` lists them), or make a real copy (`gesta backup`, `cp`)",
            path.display()
        ));
    }
    if is_mounted_alone(path) {
        return refuse(format!(
            "is mounted alone, without the folder it lies in, and the files that belong to it would be left elsewhere: \
             mount the whole folder instead of {}",
            path.display()
        ));
    }
    Ok(())
}

#[cfg(unix)]
fn names(found: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(found)
}

#[cfg(not(unix))]
fn names(_: &Metadata) -> u64 {
    1
}

/// Returns whether a file is itself the place of a mount. A kernel that does not tell the mount of a file (before Linux
/// 5.8) is asked for the device only.
#[cfg(target_os = "linux")]
fn is_mounted_alone(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let flags = StatxFlags::MNT_ID | StatxFlags::BASIC_STATS;
    let look = |path: &Path| statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, flags);
    // The folder may be reached by a symbolic link; `.` behind it is where the link leads.
    let (Ok(file), Ok(directory)) = (look(path), look(&directory_of(path).join("."))) else {
        return false;
    };
    let tells = |found: &rustix::fs::Statx| found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    if tells(&file) && tells(&directory) {
        return file.stx_mnt_id != directory.stx_mnt_id;
    }
    false
}

#[cfg(not(target_os = "linux"))]
fn is_mounted_alone(_: &Path) -> bool {
    false
}

/// Warns of a store that other users of the machine can read or write: it holds events, and hashes of passwords.
pub(crate) fn warn_of_others(path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let mode = |path: &Path| fs::metadata(path).map_or(0, |found| found.mode() & 0o7777);
        let (file, directory) = (mode(path), mode(directory_of(path)));
        // Who cannot enter the folder cannot open what is in it.
        if file & 0o077 != 0 && directory & 0o011 != 0 {
            tracing::warn!(
                file = %path.display(),
                mode = format!("{file:04o}"),
                "other users of this machine can read the store, or write to it: chmod 700 its folder, and chmod 600 its files"
            );
        }
    }
    #[cfg(not(unix))]
    let _ = path;
}

/// Refuses a file system that several machines may share: its locks hold for one of them, or its memory is not shared,
/// and SQLite needs both.
///
/// # Errors
/// `Unsupported`, with the kind of the file system.
#[cfg(target_os = "linux")]
pub(crate) fn check_file_system(file: &File, path: &Path) -> Result<()> {
    let Ok(found) = rustix::fs::fstatfs(file) else {
        return Ok(());
    };
    // The number is 32 bits of a type whose width depends on the machine.
    let bytes = found.f_type.to_ne_bytes();
    let number = bytes
        .first_chunk::<8>()
        .map(|bytes| u64::from_ne_bytes(*bytes) & u64::from(u32::MAX));
    let kind = match number {
        Some(0x6969) => "NFS",
        Some(0x517B | 0xFF53_4D42 | 0xFE53_4D42) => "SMB",
        Some(0x5346_414F | 0x6B41_4653) => "AFS",
        Some(0x7375_7245) => "Coda",
        Some(0x00C3_6400) => "Ceph",
        Some(0x0BD0_0BD0) => "Lustre",
        Some(0x786F_4256) => "a shared folder of VirtualBox",
        Some(0x0102_1997) => {
            tracing::warn!(
                file = %path.display(),
                "the store lies on 9p, where locks may hold for this machine alone: let no other machine open it"
            );
            return Ok(());
        }
        _ => return Ok(()),
    };
    Err(ErrorKind::Unsupported(format!(
        "{} lies on {kind}, a file system of several machines, which does not keep what SQLite needs to be safe: \
         put the store on a local disk, or use PostgreSQL",
        path.display()
    ))
    .into())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn check_file_system(_: &File, _: &Path) -> Result<()> {
    Ok(())
}

/// Returns whether the disk has no space left for a few pages or a new file; false if that cannot be known.
pub(crate) fn is_full(path: &Path) -> bool {
    #[cfg(unix)]
    {
        const PAGES_BYTES: u64 = 64 * 1024;
        rustix::fs::statvfs(directory_of(path)).is_ok_and(|found| {
            found.f_bavail.saturating_mul(found.f_frsize) < PAGES_BYTES
                || (found.f_files > 0 && found.f_favail == 0)
        })
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}

/// Returns whether nothing can be written where a file is, because its disk, or the mount at its name, is read-only.
pub(crate) fn is_read_only(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        let is = |found: rustix::io::Result<rustix::fs::StatVfs>| {
            found.is_ok_and(|found| found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
        };
        is(rustix::fs::fstatvfs(file)) || is(rustix::fs::statvfs(path))
    }
    #[cfg(not(unix))]
    {
        let _ = (file, path);
        false
    }
}

/// Reads from a place of a file, which must hold as many bytes.
#[cfg(unix)]
pub(crate) fn read_at(file: &File, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(not(unix))]
pub(crate) fn read_at(mut file: &File, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    let before = file.stream_position()?;
    file.seek(SeekFrom::Start(at))?;
    let read = file.read_exact(bytes);
    file.seek(SeekFrom::Start(before))?;
    read
}

/// Tells whether a file begins with these bytes.
pub(crate) fn begins_with(file: &File, bytes: &[u8]) -> std::io::Result<bool> {
    let mut begins = vec![0; bytes.len()];
    match read_at(file, &mut begins, 0) {
        Ok(()) => Ok(begins == bytes),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes to a place of a file, and leaves the handle at the place where it was.
#[cfg(unix)]
pub(crate) fn write_at(file: &File, bytes: &[u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(not(unix))]
pub(crate) fn write_at(mut file: &File, bytes: &[u8], at: u64) -> std::io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    let before = file.stream_position()?;
    file.seek(SeekFrom::Start(at))?;
    let written = file.write_all(bytes);
    file.seek(SeekFrom::Start(before))?;
    written
}

/// Looks at what is at a path, following links. `None` if nothing is there.
///
/// # Errors
/// `Unsupported` or `Unavailable` if it cannot be looked at: what this user may not see is not taken for absent.
pub(crate) fn look(path: &Path) -> Result<Option<Metadata>> {
    found_or_absent(fs::metadata(path)).map_err(|error| cannot_open(path, error))
}

/// Takes the errors that say that nothing is there for that.
pub(crate) fn found_or_absent<T>(looked: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match looked {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), Io::NotFound | Io::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the error for a database file that cannot be opened.
pub(crate) fn cannot_open(path: &Path, error: std::io::Error) -> Error {
    if let Some(closed) = closed_folder(path, &error) {
        return closed.caused_by(error).until_administrator_acts();
    }
    if matches!(error.kind(), Io::PermissionDenied | Io::ReadOnlyFilesystem) && path.exists() {
        let text = format!(
            "{} is read-only for this user: a store must be writable, also to be read ({error})",
            path.display()
        );
        let unfit = Error::new(ErrorKind::Unsupported(text)).caused_by(error);
        return unfit.until_administrator_acts();
    }
    failed(&format!("cannot open {}", path.display()), error)
}

/// Makes the error for a path at which the file system refuses something.
pub(crate) fn failed_at(path: &Path, error: std::io::Error) -> Error {
    failed_to("", path, error)
}

/// Makes the error for a path at which the file system refuses something. It begins with what was to be done.
pub(crate) fn failed_to(what: &str, path: &Path, error: std::io::Error) -> Error {
    match closed_folder(path, &error) {
        Some(closed) => closed.caused_by(error).until_administrator_acts(),
        None => failed(&format!("{what}{}", path.display()), error),
    }
}

/// Returns the error for a path that this user may not reach, which names the folder that is closed, and whose it is.
/// `None` if that is not what the error says.
#[cfg(unix)]
fn closed_folder(path: &Path, error: &std::io::Error) -> Option<Error> {
    use std::os::unix::fs::MetadataExt;
    if error.kind() != Io::PermissionDenied {
        return None;
    }
    let path = std::path::absolute(path).ok()?;
    let mut way: Vec<&Path> = path.ancestors().collect();
    way.reverse();
    let is_hidden =
        |path: &Path| fs::metadata(path).is_err_and(|error| error.kind() == Io::PermissionDenied);
    let folder = way.windows(2).find_map(|step| match step {
        [folder, inner] if is_hidden(inner) => Some(*folder),
        _ => None,
    })?;
    let found = fs::metadata(folder).ok()?;
    let text = format!(
        "{} is not permitted to this user{} ({error}): the folder {} belongs to {} (mode {:04o}); use the server that has the \
         store, or run this as a user who may enter the folder",
        path.display(),
        this_user().map_or(String::new(), |user| format!(", {}", user_named(user))),
        folder.display(),
        user_named(found.uid()),
        found.mode() & 0o7777
    );
    Some(ErrorKind::Unsupported(text).into())
}

#[cfg(not(unix))]
fn closed_folder(_: &Path, _: &std::io::Error) -> Option<Error> {
    None
}

/// Returns the number of the user as whom this process works, as far as the system tells.
#[cfg(unix)]
fn this_user() -> Option<u32> {
    let found = fs::metadata("/proc/self").ok()?;
    Some(std::os::unix::fs::MetadataExt::uid(&found))
}

/// Returns the name of a user, if the machine itself knows one, and the number.
#[cfg(unix)]
fn user_named(user: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, number) = (fields.next()?, fields.next()?, fields.next()?);
        (number.parse() == Ok(user)).then_some(name)
    });
    match name {
        Some(name) => format!("{name} (uid {user})"),
        None => format!("uid {user}"),
    }
}

/// Makes the error for something that the file system refuses. What will be refused again is not `Unavailable`, for
/// which callers wait.
pub(crate) fn failed(what: &str, error: std::io::Error) -> Error {
    let text = format!("{what}: {error}");
    match error.kind() {
        Io::PermissionDenied
        | Io::ReadOnlyFilesystem
        | Io::NotFound
        | Io::NotADirectory
        | Io::IsADirectory
        | Io::InvalidFilename => {
            let unfit = Error::new(ErrorKind::Unsupported(text)).caused_by(error);
            unfit.until_administrator_acts()
        }
        _ => Error::unavailable(text).caused_by(error),
    }
}

/// Gives a file another name, unless something has that name.
///
/// # Errors
/// `AlreadyExists` if something has the name; others of the file system.
pub(crate) fn rename_to_new(from: &Path, to: &Path) -> std::io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // Not every file system can do it.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            done => return Ok(done?),
        }
    }
    if fs::symlink_metadata(to).is_ok() {
        return Err(Io::AlreadyExists.into());
    }
    fs::rename(from, to)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_to_what_does_not_exist_yet() {
        let home = tempfile::tempdir().expect("dir");
        let home = home.path();
        symlink("second", home.join("first")).expect("links");
        symlink("sub/gesta.db", home.join("second")).expect("links");
        let found = follow_links(&home.join("first")).expect("follows");
        assert_eq!(found, home.join("sub/gesta.db"));
        symlink("round", home.join("round")).expect("links");
        assert!(follow_links(&home.join("round")).is_err());
    }

    #[test]
    fn a_file_has_one_name_and_is_regular() {
        let home = tempfile::tempdir().expect("dir");
        let path = home.path().join("gesta.db");
        check_one_name(&path).expect("not there");
        fs::write(&path, "x").expect("writes");
        check_one_name(&path).expect("one name");
        fs::hard_link(&path, home.path().join("other")).expect("links");
        let error = check_one_name(&path).expect_err("two").to_string();
        assert!(
            error.contains("2 names") && error.contains("-samefile"),
            "{error}"
        );
        symlink("gesta.db", home.path().join("link")).expect("links");
        let error = check_one_name(&home.path().join("link")).expect_err("a link");
        assert!(error.to_string().contains("no regular file"), "{error}");
    }

    #[test]
    fn a_new_name_is_never_that_of_another_file() {
        let home = tempfile::tempdir().expect("dir");
        let (one, two) = (home.path().join("one"), home.path().join("two"));
        fs::write(&one, "1").expect("writes");
        symlink("nowhere", &two).expect("links");
        let error = rename_to_new(&one, &two).expect_err("taken");
        assert_eq!(error.kind(), Io::AlreadyExists);
        fs::remove_file(&two).expect("removes");
        rename_to_new(&one, &two).expect("free");
        assert_eq!(fs::read_to_string(&two).expect("reads"), "1");
    }
}
