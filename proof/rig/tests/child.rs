//! Programs that run beside the test.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use gesta_rig::{Child, Output, procfs};

/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// A program with a process of its own, whose id it writes.
const TWO: &str = "sleep 1000 & echo $!; wait";

fn shell(script: &str, input: Option<&Path>, output: Output, log: &Path) -> Child {
    Child::start(Path::new("/bin/sh"), ["-c", script], input, output, log).unwrap()
}

fn lives(pid: &str) -> bool {
    let stat = procfs::stat(pid.parse().unwrap());
    stat.is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

#[test]
fn killing_a_program_kills_what_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = shell(TWO, None, Output::Pipe, &dir.path().join("log"));
    let mut inner = String::new();
    let mut output = BufReader::new(child.take_output().unwrap());
    output.read_line(&mut inner).unwrap();
    let (inner, outer) = (inner.trim(), child.pid().to_string());
    assert!(lives(inner) && lives(&outer) && child.is_alive());
    child.kill();
    assert!(!lives(&outer) && !child.is_alive());
    // Whoever nobody waits for shows that it is gone a moment later.
    let deadline = Instant::now() + PATIENCE;
    while lives(inner) {
        assert!(Instant::now() < deadline, "still there");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_program_reads_its_input_and_its_words_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (log, input) = (dir.path().join("log"), dir.path().join("input"));
    std::fs::write(&input, "hello\n").unwrap();
    let script = "read -r a; echo \"got $a\"; echo ouch >&2; exit 3";
    let mut child = shell(script, Some(&input), Output::Pipe, &log);
    let lines = BufReader::new(child.take_output().unwrap()).lines();
    let lines: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(lines, ["got hello"]);
    assert_eq!(child.log_tail(), "ouch");
    let child = shell(script, Some(&input), Output::Log, &log);
    let deadline = Instant::now() + PATIENCE;
    while child.is_alive() {
        assert!(Instant::now() < deadline, "still there");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(
        child.log_tail().contains("got hello"),
        "{}",
        child.log_tail()
    );
}
