//! The system clocks that nodes see, which can be set while they run: by libfaketime, a library that is loaded before
//! the program and reads a file. The clocks that measure time since the start of the machine stay as they are.
//!
//! The library adds the part by which a clock is too quick from the start of the process on, and keeps the last speed
//! that it has read: so each setting has one.

use std::path::{Path, PathBuf};

use crate::failure::{Result, fail};
use crate::machine::child::Program;

/// Where Debian puts the library, below the folder of the architecture.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// True if the library is installed.
pub(crate) fn can_be_set() -> bool {
    let library = library();
    if library.is_none() {
        eprintln!("SKIPPED: clocks cannot be set, for libfaketime is not installed");
    }
    library.is_some()
}

fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let mut libraries = folders.map(|folder| folder.path().join(LIBRARY));
    libraries.find(|path| path.exists())
}

/// How a clock is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    /// So many seconds fast; slow, if below 0.
    pub(crate) seconds: i64,
    /// Its speed in hundredths.
    pub(crate) speed: i64,
}

impl Setting {
    /// The right time.
    pub(crate) const RIGHT: Self = Self {
        seconds: 0,
        speed: 100,
    };

    /// As the library reads it.
    fn text(self) -> String {
        let (whole, hundredths) = (self.speed / 100, self.speed % 100);
        format!("{:+} x{whole}.{hundredths:02}", self.seconds)
    }
}

/// The clock of a node.
#[derive(Debug)]
pub(crate) struct Clock {
    file: PathBuf,
}

impl Clock {
    /// Lets a program see a clock of its own, which is right at first; its file is put into the folder.
    ///
    /// # Errors
    /// If the library is not installed.
    pub(crate) fn give(program: &mut Program, folder: &Path, name: &str) -> Result<Self> {
        let Some(library) = library() else {
            return fail("clocks cannot be set: libfaketime is not installed (package faketime)");
        };
        let clock = Self {
            file: folder.join(format!("{name}.clock")),
        };
        clock.set(Setting::RIGHT)?;
        let variables = [
            format!("LD_PRELOAD={}", library.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", clock.file.display()),
            "FAKETIME_CACHE_DURATION=1".into(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".into(),
            program.path.display().to_string(),
        ];
        program.path = "/usr/bin/env".into();
        program.arguments.splice(0..0, variables);
        Ok(clock)
    }

    /// Sets it. It is seen within a second.
    pub(crate) fn set(&self, setting: Setting) -> Result<()> {
        let fresh = self.file.with_extension("new");
        std::fs::write(&fresh, setting.text())?;
        Ok(std::fs::rename(fresh, &self.file)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happened: a clock that was set right after it had been quick stayed quick, since the library keeps a speed
    /// until it reads another one.
    #[test]
    fn each_setting_has_a_speed() {
        let texts = [(0, 100), (-60, 110), (3_600, 90)];
        let texts = texts.map(|(seconds, speed)| Setting { seconds, speed }.text());
        assert_eq!(texts, ["+0 x1.00", "-60 x1.10", "+3600 x0.90"]);
    }
}
