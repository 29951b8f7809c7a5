//! The name of a file survives a crash only if its directory is synced, which is done here.

use std::fs::File;
use std::path::Path;

/// Makes the name of a file durable, where directories can be synced.
pub(crate) fn sync_directory_of(path: &Path) -> std::io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if cfg!(unix) {
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}
