//! What tests fetch from registries: programs and libraries of other systems.
//!
//! It is fetched once for all runs, into the folder of what is built, by exact versions that the tests name. Without
//! the program that fetches, or without a registry, a test is skipped loudly; with `CI` set it fails.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use gesta_kit::depth;

use super::{is_installed, output_of};

/// A folder of this name for what is fetched, beside what is built, and its lock.
pub(crate) fn folder(name: &str) -> (PathBuf, File) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let lock = lock(&folder);
    (folder, lock)
}

/// Waits until no other process writes into a folder, and keeps them from it until this is dropped: two installations
/// in one folder at a time break it.
pub(crate) fn lock(folder: &Path) -> File {
    let lock = File::create(folder.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    lock
}

/// Copies a file, unless the copy is there already: then another process may be reading it.
pub(crate) fn copy(from: &Path, to: &Path) {
    let wanted = std::fs::read(from).unwrap();
    if !std::fs::read(to).is_ok_and(|found| found == wanted) {
        std::fs::write(to, wanted).unwrap();
    }
}

/// Runs a step of fetching; false, said aloud, if it fails, and with `CI` set that is a failure.
pub(crate) fn fetch(command: &mut Command) -> bool {
    let output = output_of(command);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(std::env::var_os("CI").is_none(), "{command:?}: {said}");
        eprintln!("SKIPPED: {command:?} failed; what needs it was not run: {said}");
    }
    output.status.success()
}

/// Fetches once what a manifest names: the folder remembers the text for which it was done. False if it fails.
pub(crate) fn fetch_once(folder: &Path, manifest: &str, fetch: impl FnOnce() -> bool) -> bool {
    let done = folder.join("fetched");
    if std::fs::read_to_string(&done).is_ok_and(|text| text == manifest) {
        return true;
    }
    let is_done = fetch();
    if is_done {
        std::fs::write(&done, manifest).unwrap();
    }
    is_done
}

/// The packages of npm that the `package.json` in a folder of programs names, with these programs beside them, since
/// modules are looked for there.
pub(crate) fn npm(name: &str, programs: &Path, copied: &[&str]) -> Option<PathBuf> {
    if !is_installed("node") || !is_installed("npm") {
        return None;
    }
    let (folder, _lock) = folder(name);
    let package = std::fs::read_to_string(programs.join("package.json")).unwrap();
    let is_there = fetch_once(&folder, &package, || {
        std::fs::write(folder.join("package.json"), &package).unwrap();
        let mut install = Command::new("npm");
        install
            .args(["install", "--no-audit", "--no-fund", "--loglevel=error"])
            .current_dir(&folder);
        fetch(&mut install)
    });
    for name in copied {
        copy(&programs.join(name), &folder.join(name));
    }
    is_there.then_some(folder)
}

/// The packages of Maven Central that the `pom.xml` in a folder names, and these sources, compiled with them. Returns
/// the class path of all; that of the packages alone is the file `classpath` in the folder of this name.
pub(crate) fn java(name: &str, pom: &Path, sources: &[PathBuf]) -> Option<String> {
    if !is_installed("mvn") {
        return None;
    }
    let (folder, _lock) = folder(name);
    let (classes, list) = (folder.join("classes"), folder.join("classpath"));
    let mut resolve = Command::new("mvn");
    resolve
        .args(["--quiet", "--batch-mode", "dependency:build-classpath"])
        .arg(format!("-Dmdep.outputFile={}", list.display()))
        .current_dir(pom);
    // All of them fetch into the same folder of the user.
    let (_, repository) = self::folder("maven");
    if !fetch(&mut resolve) {
        return None;
    }
    drop(repository);
    let path = std::fs::read_to_string(list).unwrap();
    let mut compile = Command::new("javac");
    compile.args(["-cp", path.trim(), "-d"]).arg(&classes);
    let output = output_of(compile.args(sources));
    assert!(output.status.success(), "{output:?}");
    Some(format!("{}:{}", path.trim(), classes.display()))
}

/// False, said aloud, if Maven Central, or what stands for it here, answers that it does not have this package: mirrors
/// have not everything.
pub(crate) fn is_published(package: &str) -> bool {
    // Said by what compiles.
    if !is_installed("mvn") {
        return true;
    }
    let mut get = Command::new("mvn");
    get.args(["--batch-mode", "-U", "dependency:get", "-Dtransitive=false"])
        .arg(format!("-Dartifact={package}"));
    let (_, _repository) = folder("maven");
    let said = output_of(&mut get).stdout;
    let is_missing = String::from_utf8_lossy(&said).contains("Could not find artifact");
    if is_missing {
        eprintln!("SKIPPED: the registry has no {package}; what needs it was not run");
    }
    !is_missing
}

/// True in the deep form; said aloud otherwise, for what is fetched takes minutes.
pub(crate) fn is_deep(what: &str) -> bool {
    let deep = depth::count(false, true);
    if !deep {
        eprintln!("SKIPPED: {what}; GESTA_TEST_DEPTH=deep runs it");
    }
    deep
}
