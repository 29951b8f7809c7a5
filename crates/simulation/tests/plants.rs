//! Tests that the faults of `scripts/plant-faults` can still be planted: the code that each replaces is there once.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The files of a folder of planted faults.
fn plants(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of planted faults");
    let files = entries.map(|entry| entry.expect("a file").path());
    files.collect()
}

/// Goal: a change of the code that a planted fault replaces is noticed at once, and not when faults are planted next.
#[test]
fn every_fault_finds_its_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let crates = fs::read_dir(root.join("crates")).expect("a folder of crates");
    let folders = crates.map(|entry| entry.expect("a crate").path().join("plants"));
    let files: Vec<PathBuf> = folders
        .filter(|folder| folder.is_dir())
        .flat_map(|folder| plants(&folder))
        .collect();
    let names: HashSet<_> = files.iter().map(|file| file.file_name()).collect();
    assert_eq!(names.len(), files.len(), "two faults have the same name");
    assert!(files.len() > 30, "{} files", files.len());
    for file in files {
        let text = fs::read_to_string(&file).expect("text");
        let mut parts = text.split("\n=====\n");
        let (title, path) = (parts.next(), parts.next().expect("a path"));
        let code = fs::read_to_string(root.join(path.trim())).expect(path);
        for change in parts {
            let (old, _) = change.split_once("\n-----").expect("old and new code");
            let times = code.matches(old.trim_matches('\n')).count();
            assert_eq!(times, 1, "{}: {title:?}: {path}:\n{old}", file.display());
        }
    }
}
