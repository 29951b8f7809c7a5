//! A disk that is full.

use std::io::{Error, ErrorKind, Write};
use std::path::Path;

use gesta_report::failure::{Context, Result, fail};
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
        let ballast = folder.join("ballast");
        let path = ballast.clone();
        tokio::task::spawn_blocking(move || fill_up(&path)).await??;
        sleep(self.strength.time).await;
        std::fs::remove_file(&ballast).context("removing the ballast")?;
        self.world.revive().await?;
        Ok((0..self.world.members.len()).collect())
    }
}

/// Writes until nothing more fits.
fn fill_up(path: &Path) -> std::io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    let (mut written, mut block) = (0, vec![0_u8; 1 << 20]);
    while written < BALLAST_BYTES_MAX {
        match file.write(&block) {
            Ok(count) => written += count as u64,
            Err(error) if error.kind() == ErrorKind::StorageFull && block.len() > 1 => {
                block.truncate(block.len() / 4);
            }
            Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    std::fs::remove_file(path)?;
    Err(Error::other("--small-disk is larger than 4 GiB"))
}
