//! Files that hold secrets: others who can read them are told of, and new ones are made for their owner alone.
//!
//! Why a warning and no refusal: secrets that a container gets as a mount often come with a mode that nobody chose.
//! What is too wide is what PostgreSQL takes for too wide in a private key.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::output::say;

/// The mode of a new file.
const MODE: u32 = 0o600;
/// The mode of a new folder.
const FOLDER_MODE: u32 = 0o700;

/// Warns if others than its owner can read or write a file that holds `what`. Root may let a group read it.
pub(crate) fn warn_of_others(what: &str, path: &Path) {
    let Some(text) = told_of_others(what, path) else {
        return;
    };
    // Commands log errors only, and their log need not have begun.
    if tracing::enabled!(tracing::Level::WARN) {
        tracing::warn!("{text}");
    } else {
        say!("warning: {text}");
    }
}

/// Returns what to say of a file that holds `what` and that others than its owner can read or write; `None` if they
/// cannot, or it is not there, which whoever reads it tells.
pub(crate) fn told_of_others(what: &str, path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    let is_told = found.is_file() && is_too_wide(found.mode(), found.uid());
    is_told.then(|| {
        let (file, mode) = (path.display(), found.mode() & 0o7777);
        format!(
            "other users of this machine can read or write {file}, which holds {what} (mode {mode:04o}): chmod 600 it"
        )
    })
}

fn is_too_wide(mode: u32, owner: u32) -> bool {
    let allowed = if owner == 0 { 0o740 } else { 0o700 };
    mode & 0o777 & !allowed != 0
}

/// Makes a file that is not there yet, and that only its owner can read.
///
/// # Errors
/// `AlreadyExists`, also for a symbolic link that leads nowhere; others of the file system.
pub(crate) fn create_new(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(path)
}

/// Makes a folder and those above it that are not there. Nobody but its owner reads what is in a new one, or puts
/// something there.
pub(crate) fn create_folders(path: &Path) -> std::io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_for_its_owner_or_for_a_group_that_root_chose() {
        for (mode, owner, expected) in [
            (0o100_600, 1000, false),
            (0o100_400, 1000, false),
            (0o100_640, 1000, true),
            (0o100_640, 0, false),
            (0o100_660, 0, true),
            (0o100_644, 0, true),
            (0o100_604, 1000, true),
        ] {
            assert_eq!(is_too_wide(mode, owner), expected, "{mode:o} of {owner}");
        }
    }
}
