//! The inputs with which tests begin: the seeds, which the product writes, and `found/TARGET`, which failed once.

use std::fs;
use std::path::{Path, PathBuf};

use gesta_fuzz::{Seed, Target};

/// The files of a folder, in the order of their names; none if there is no folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files
}

/// All inputs of a target, with their names.
pub(crate) fn inputs(target: &Target) -> Vec<(String, Vec<u8>)> {
    let seeds = (target.seeds)().into_iter();
    let seeds = seeds.map(|(name, input)| (format!("seed {name}"), input));
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("found");
    let read = |path: PathBuf| {
        let input = fs::read(&path).expect("readable");
        (path.display().to_string(), input)
    };
    let found = files(&found.join(target.name)).into_iter().map(read);
    seeds.chain(found).collect()
}

/// Writes the seeds of a target into files.
pub(crate) fn write(target: &str, seeds: &[Seed]) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("seeds")
        .join(target);
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("removed");
    }
    fs::create_dir_all(&folder).expect("a folder");
    for (name, input) in seeds {
        fs::write(folder.join(name), input).expect("written");
    }
}
