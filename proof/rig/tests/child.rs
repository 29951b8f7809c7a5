//! Programs that run beside the test.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use gesta_rig::{Child, Listening, Output, procfs, wait_until};
use nix::sys::signal::Signal;

/// The process that is to be killed is one only if this is set.
const KILLED: &str = "GESTA_RIG_KILLED";
/// What it says before the process id of its program.
const PROGRAM: &str = "the program is ";
/// The most that it lives.
const LIVES: Duration = Duration::from_secs(120);
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
    wait_until("still there", || !lives(inner)).unwrap();
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
    wait_until("still there", || !child.is_alive()).unwrap();
    assert!(
        child.log_tail().contains("got hello"),
        "{}",
        child.log_tail()
    );
}

fn script(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    command
}

#[test]
fn how_a_program_has_ended_is_told() {
    let end_of = |text| {
        let mut child = Child::spawn(&mut script(text)).unwrap();
        child.wait().unwrap()
    };
    assert_eq!(end_of("exit 3").code(), Some(3));
    assert_eq!(end_of("kill -TERM $$").signal(), Some(15));
}

#[test]
fn a_server_tells_where_it_listens_and_its_log_is_kept() {
    let serve = "trap 'echo bye >&2; exit 0' TERM; echo one >&2
        echo '{\"said\": \"listening on http://127.0.0.1:7\"}' >&2; sleep 1000 2>/dev/null & wait";
    let mut server = Listening::start(&mut script(serve)).unwrap();
    assert_eq!(server.url, "http://127.0.0.1:7");
    assert_eq!(server.address(), "127.0.0.1:7");
    assert_eq!(server.logged(""), ["one"]);
    server.signal(Signal::SIGTERM);
    assert!(server.wait().success());
    assert_eq!(server.logged(""), ["one", "bye"]);
    let said = Listening::start(&mut script("echo no >&2; exit 1")).unwrap_err();
    assert_eq!(said, ["no"]);
}

/// Starts a program, and waits to be killed.
#[test]
fn the_process_that_is_killed() {
    if std::env::var_os(KILLED).is_none() {
        return;
    }
    let child = Child::spawn(&mut script("exec sleep 1000")).unwrap();
    child.signal(Signal::SIGSTOP);
    println!("\n{PROGRAM}{}", child.pid());
    std::thread::sleep(LIVES);
}

/// Goal: whoever is killed leaves no program behind, not even one that is suspended.
#[test]
fn no_program_outlives_a_process_that_is_killed() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "the_process_that_is_killed", "--nocapture"])
        .env(KILLED, "yes")
        .stdout(Stdio::piped());
    let mut killed = Child::spawn(&mut command).unwrap();
    let lines = BufReader::new(killed.take_output().unwrap()).lines();
    let pid = lines
        .map(Result::unwrap)
        .find_map(|line| line.strip_prefix(PROGRAM).map(str::to_owned))
        .unwrap();
    assert!(lives(&pid));
    killed.kill();
    wait_until("it outlives its process", || !lives(&pid)).unwrap();
}
