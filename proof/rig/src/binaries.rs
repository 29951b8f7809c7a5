//! Finds programs: those of PostgreSQL, and those that are built with a test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder that holds `initdb` and `postgres`, or `None` if there is none on this machine.
///
/// It looks, in this order, at the variable `GESTA_PG_BIN`, at `pg_config --bindir`, at the newest
/// `/usr/lib/postgresql/*/bin`, and at every folder of `PATH`.
#[must_use]
pub fn find_binaries() -> Option<PathBuf> {
    let named = std::env::var_os("GESTA_PG_BIN").map(PathBuf::from);
    named
        .into_iter()
        .chain(from_pg_config())
        .chain(from_packages(Path::new("/usr/lib/postgresql")))
        .chain(from_path())
        .find(|dir| is_complete(dir))
}

/// Returns what [`find_binaries`] returns. If that is `None`, a message on standard error says that tests are skipped.
///
/// # Panics
/// If PostgreSQL is not installed and the variable `CI` is set: a skipped test must not look like a passed one.
#[must_use]
pub fn installed() -> Option<PathBuf> {
    let found = find_binaries();
    if found.is_none() {
        let message = "PostgreSQL is not installed (set GESTA_PG_BIN to the folder of `initdb`): \
                       tests that need it are SKIPPED";
        assert!(std::env::var_os("CI").is_none(), "{message}");
        eprintln!("\n*** {message} ***\n");
    }
    found
}

/// Returns the program of this name in the folder of another program, with which it is built.
///
/// # Panics
/// If it is not there.
#[must_use]
pub fn beside(program: &str, name: &str) -> PathBuf {
    let found = Path::new(program).with_file_name(name);
    assert!(found.exists(), "{}: build it first", found.display());
    found
}

fn is_complete(dir: &Path) -> bool {
    dir.join("initdb").is_file() && dir.join("postgres").is_file()
}

fn from_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output
        .status
        .success()
        .then(|| PathBuf::from(text.trim_end()))
}

/// Returns the `bin` folders below `root`, highest version first.
fn from_packages(root: &Path) -> Vec<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    versions.into_iter().map(|(_, dir)| dir).collect()
}

fn from_path() -> Vec<PathBuf> {
    std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_package_comes_first() {
        let root = tempfile::tempdir().expect("temp dir");
        for version in ["9", "15", "17", "common"] {
            std::fs::create_dir_all(root.path().join(version).join("bin")).expect("dir");
        }
        let found = from_packages(root.path());
        assert_eq!(found[0], root.path().join("17/bin"));
        assert_eq!(found.len(), 3);
    }
}
