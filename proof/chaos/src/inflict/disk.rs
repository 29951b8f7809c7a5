//! A disk that is full.

use std::io::{Error, ErrorKind, Write};
use std::path::Path;

use gesta_report::failure::{Context, Result, fail};
use tempfile::NamedTempFile;
use tokio::time::sleep;

use super::Field;

/// The size is bounded, so that a wrong folder does little harm.
const BALLAST_BYTES_MAX: u64 = 4 << 30;

impl Field<'_> {
    /// Fills the small disk, makes room again, and starts what has ended.
    pub(super) async fn fill_disk(&mut self) -> Result<Vec<usize>> {
        let Some(folder) = self.world.small_disk.clone() else {
            return fail("there is no small disk");
        };
        let filling = tokio::task::spawn_blocking(move || fill_up(&folder, BALLAST_BYTES_MAX));
        let ballast = filling.await??;
        sleep(self.strength.time).await;
        ballast.close().context("removing the ballast")?;
        self.world.revive().await?;
        Ok((0..self.world.members.len()).collect())
    }
}

/// Writes to a new file in a folder until nothing more fits. The file goes with what is returned, whatever happens.
fn fill_up(folder: &Path, bytes_max: u64) -> std::io::Result<NamedTempFile> {
    let mut ballast = NamedTempFile::new_in(folder)?;
    let (mut written, mut block) = (0, vec![0_u8; 1 << 20]);
    while written < bytes_max {
        match ballast.as_file_mut().write(&block) {
            Ok(count) => written += count as u64,
            Err(error) if error.kind() == ErrorKind::StorageFull && block.len() > 1 => {
                block.truncate(block.len() / 4);
            }
            Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(ballast),
            Err(error) => return Err(error),
        }
    }
    let told = format!("--small-disk is larger than {bytes_max} bytes");
    Err(Error::other(told))
}

#[cfg(test)]
mod tests {
    use gesta_load::machine::child::Program;

    use super::*;
    use crate::world::{Databases, Plan, World};

    fn names(folder: &Path) -> Vec<std::ffi::OsString> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    /// What happened: the disk was filled by a file named `ballast`, also if there was one, or a link of that name to
    /// something else; and if it could not be filled, the file stayed. What fills it is new, and goes in any case.
    #[tokio::test]
    async fn what_fills_a_disk_is_no_file_of_others() {
        let disk = tempfile::tempdir().unwrap();
        let theirs = disk.path().join("ballast");
        std::fs::write(&theirs, "precious").unwrap();
        let program = Program::gesta(Path::new("gesta"));
        let plan = Plan {
            small_disk: Some(disk.path().to_owned()),
            ..Plan::new(Databases::File, program, 0)
        };
        let world = World::start(&plan).await.unwrap();
        let folder = world.small_disk.clone().unwrap();
        assert!(folder.starts_with(disk.path()) && folder != disk.path());
        // This disk is not small.
        let why = fill_up(&folder, 3 << 20).unwrap_err().to_string();
        assert!(why.contains("larger than 3145728 bytes"), "{why}");
        assert!(names(&folder).is_empty());
        assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "precious");
        drop(world);
        assert_eq!(names(disk.path()), ["ballast"]);
    }
}
