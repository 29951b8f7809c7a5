//! The system clocks that nodes see, which can be set while they run: by libfaketime, a library that is loaded before
//! the program and reads a file. The clocks that measure time since the start of the machine stay as they are.

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
        clock.set("+0")?;
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

    /// Sets it: `+3600` is an hour fast, `-60 x1.1` a minute slow and a tenth too quick. It is seen within a second.
    pub(crate) fn set(&self, time: &str) -> Result<()> {
        let fresh = self.file.with_extension("new");
        std::fs::write(&fresh, time)?;
        Ok(std::fs::rename(fresh, &self.file)?)
    }
}
