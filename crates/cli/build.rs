//! Tells the program from which commit it is built: `GESTA_COMMIT`, empty if that is not known, and `GESTA_BUILD`,
//! words for people.
//!
//! The commit is, in this order, what the variable `GESTA_COMMIT` says (`scripts/release` sets it), what cargo noted in
//! a published crate, or what git says of a clone. A build for debugging does not ask git: each commit would compile
//! the program and its tests anew.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=GESTA_COMMIT");
    let given = env::var("GESTA_COMMIT").ok();
    let given = given.filter(|commit| !commit.is_empty());
    let commit = given.or_else(noted_by_cargo).or_else(told_by_git);
    let build = match &commit {
        Some(commit) => format!("commit {}", commit.get(..12).unwrap_or(commit)),
        None if is_for_debugging() => "a build for debugging".to_owned(),
        None => "commit unknown: built without git".to_owned(),
    };
    println!(
        "cargo::rustc-env=GESTA_COMMIT={}",
        commit.unwrap_or_default()
    );
    println!("cargo::rustc-env=GESTA_BUILD={build}");
}

fn is_for_debugging() -> bool {
    env::var("PROFILE").is_ok_and(|profile| profile == "debug")
}

/// The commit that `cargo package` noted in the crate.
fn noted_by_cargo() -> Option<String> {
    let text = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    let commit = rest.split('"').nth(1)?;
    Some(commit.to_owned())
}

/// The commit of the clone, with a word if files were changed since.
fn told_by_git() -> Option<String> {
    if is_for_debugging() {
        return None;
    }
    let root = Path::new("../..").canonicalize().ok()?;
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = output.status.success().then_some(output.stdout)?;
        Some(String::from_utf8(text).ok()?.trim().to_owned())
    };
    // An unpacked archive may lie in the clone of something else.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root {
        return None;
    }
    let folder = git(&["rev-parse", "--absolute-git-dir"])?;
    // A path that is not there would count as changed each time.
    let watched = [root.join("crates"), Path::new(&folder).join("logs/HEAD")];
    for path in watched.iter().filter(|path| path.exists()) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let commit = git(&["rev-parse", "HEAD"])?;
    match git(&["status", "--porcelain", "--untracked-files=no"])?.as_str() {
        "" => Some(commit),
        _ => Some(format!("{} with changes", commit.get(..12)?)),
    }
}
