//! How the test processes of a run are told where the server is that they share.

use std::path::PathBuf;

use crate::find_binaries;

/// The variable that tells where the server of a run is: its process id, its port, the folder of its programs and its
/// own folder, separated by colons.
const VARIABLE: &str = "GESTA_TEST_POSTGRES";

/// Where the server of a run is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) pid: i32,
    pub(crate) port: u16,
    pub(crate) binaries: PathBuf,
    pub(crate) home: PathBuf,
}

impl Announcement {
    /// Finds the server of the run; `None` if there is none, or if it runs by other programs than those that this
    /// process is to use.
    pub(crate) fn find() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        let Some(found) = Self::parse(&text) else {
            panic!("{VARIABLE} must be PID:PORT:BINARIES:HOME, found {text:?}");
        };
        (find_binaries().as_ref() == Some(&found.binaries)).then_some(found)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ':');
        Some(Self {
            pid: parts.next()?.parse().ok()?,
            port: parts.next()?.parse().ok()?,
            binaries: parts.next()?.into(),
            home: parts.next()?.into(),
        })
    }
}

impl std::fmt::Display for Announcement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (binaries, home) = (self.binaries.display(), self.home.display());
        write!(f, "{}:{}:{binaries}:{home}", self.pid, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_of_a_run_is_told_by_a_text() {
        let told = "7:5432:/usr/lib/postgresql/15/bin:/dev/shm/a:b";
        let server = Announcement::parse(told).unwrap();
        assert_eq!(server.to_string(), told);
        assert_eq!(server.home, PathBuf::from("/dev/shm/a:b"));
        assert_eq!(Announcement::parse("7:a:b:c"), None);
        assert_eq!(Announcement::parse("7:5432:b"), None);
    }
}
