//! The system clock that a process sees, which can be set while it runs: by libfaketime, a library that is loaded
//! before the program and reads a file. The clocks that measure time since the start of the machine stay as they are.
//!
//! The library adds the part by which a clock is too quick from the start of the process on, and keeps the last speed
//! that it has read: so each setting has one.

use std::path::{Path, PathBuf};

use crate::Result;

/// Where Debian puts the library, below the folder of the architecture.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The clock of a process.
#[derive(Debug)]
pub struct FakeClock {
    library: PathBuf,
    file: PathBuf,
}

impl FakeClock {
    /// Makes a clock that is right at first; its file is put into the folder. Returns `None`, with a message on
    /// standard error, if the library is not installed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn in_folder(folder: &Path, name: &str) -> Result<Option<Self>> {
        let Some(library) = Self::library() else {
            return Ok(None);
        };
        let clock = Self {
            library,
            file: folder.join(format!("{name}.clock")),
        };
        clock.set(0, 100)?;
        Ok(Some(clock))
    }

    /// Returns the library; `None`, with a message on standard error, if it is not installed.
    #[must_use]
    pub fn library() -> Option<PathBuf> {
        let folders = std::fs::read_dir("/usr/lib").ok().into_iter().flatten();
        let mut libraries = folders.flatten().map(|folder| folder.path().join(LIBRARY));
        let library = libraries.find(|path| path.exists());
        if library.is_none() {
            eprintln!(
                "SKIPPED: clocks cannot be set, for libfaketime is not installed (package faketime)"
            );
        }
        library
    }

    /// Returns the variables by which a program sees this clock.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 4] {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// Sets it so many seconds fast (slow, if below 0), and lets it run at a speed in hundredths. A process that runs
    /// sees it within a second.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set(&self, seconds: i64, speed: i64) -> Result<()> {
        let fresh = self.file.with_extension("new");
        std::fs::write(&fresh, text(seconds, speed))?;
        Ok(std::fs::rename(fresh, &self.file)?)
    }
}

/// A setting as the library reads it.
fn text(seconds: i64, speed: i64) -> String {
    let (whole, hundredths) = (speed / 100, speed % 100);
    format!("{seconds:+} x{whole}.{hundredths:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happened: a clock that was set right after it had been quick stayed quick, since the library keeps a speed
    /// until it reads another one.
    #[test]
    fn each_setting_has_a_speed() {
        let texts = [(0, 100), (-60, 110), (3_600, 90)];
        let texts = texts.map(|(seconds, speed)| text(seconds, speed));
        assert_eq!(texts, ["+0 x1.00", "-60 x1.10", "+3600 x0.90"]);
    }
}
