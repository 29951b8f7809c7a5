//! Calls of the operating system that fail while a batch is written, injected by `strace` into a child process.
//!
//! Each test is two: the outer one starts this program again, under `strace`, for the inner one, and judges what it
//! wrote down and left behind.

#![allow(clippy::expect_used, reason = "tests")]

mod common;

use std::fmt::Write;
use std::path::PathBuf;

use common::{Author, LOG, event, open, read_all, strace, verify};
use gesta_core::backend::{Backend, BatchOutcome, Purpose};
use gesta_core::{Error, ErrorKind};

/// Tells the child where to work.
const CHILD_HOME: &str = "GESTA_FAULTS_HOME";
const BATCHES: usize = 40;
const RETRIES_MAX: usize = 20;

/// The pipeline waits for what is unavailable, and answers at once what another try cannot change.
fn is_lasting(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::Unavailable(_) | ErrorKind::Overloaded(_)
    )
}

/// Appends, trying again what failed, until the store is closed for writing; writes down every outcome.
#[tokio::test]
async fn child() {
    let Ok(home) = std::env::var(CHILD_HOME) else {
        return;
    };
    let home = PathBuf::from(home);
    let backend = open(&home.join("gesta.db"));
    let mut author = Author::new(&backend).await;
    let mut told = String::new();
    'all: for number in 0..BATCHES {
        let batch = author.batch(&[
            event("a", "T", &number.to_string()),
            event(&format!("b-{number}"), "T", "x"),
        ]);
        for _ in 0..RETRIES_MAX {
            match author.submit(batch.clone()).await {
                BatchOutcome::Committed => {
                    writeln!(told, "committed {number}").expect("text");
                    continue 'all;
                }
                BatchOutcome::Failed(error) => {
                    let lasting = is_lasting(&error);
                    writeln!(told, "failed {number}, lasting {lasting}: {error}").expect("text");
                }
                BatchOutcome::Unknown(error) => {
                    writeln!(told, "unknown {number} {error}").expect("text");
                    break 'all;
                }
                other => panic!("{other:?}"),
            }
        }
        break;
    }
    let readable = backend.log_end(LOG, Purpose::Read).await.is_ok();
    writeln!(told, "readable {readable}").expect("text");
    match backend.open_writer(LOG).await {
        Ok(_) => writeln!(told, "writer opened").expect("text"),
        Err(error) => {
            let lasting = is_lasting(&error);
            writeln!(told, "writer refused, lasting {lasting}: {error}").expect("text");
        }
    }
    let empty = author.batch(&[]);
    let confirmed = author.submit(empty).await;
    writeln!(told, "then {confirmed:?}").expect("text");
    std::fs::write(home.join("told"), told).expect("writes");
    // The end comes without closing.
    std::process::exit(0);
}

/// Runs the child with a fault in the calls on the WAL; what it told, and where its store is.
fn run_with(fault: &str) -> Option<(Vec<String>, tempfile::TempDir)> {
    let mut strace = strace()?;
    let home = tempfile::tempdir().expect("dir");
    let wal = std::fs::canonicalize(home.path())
        .expect("exists")
        .join("gesta.db-wal");
    let output = strace
        .args([
            "-f",
            "-o",
            "/dev/null",
            "-e",
            "trace=fsync,fdatasync,pwrite64",
            "-e",
            fault,
            "-P",
        ])
        .arg(&wal)
        .arg(std::env::current_exe().expect("known"))
        .args(["--exact", "child"])
        .env(CHILD_HOME, home.path())
        .output()
        .expect("starts");
    assert!(output.status.success(), "{output:?}");
    let told = std::fs::read_to_string(home.path().join("told")).expect("told");
    Some((told.lines().map(str::to_owned).collect(), home))
}

fn count(told: &[String], prefix: &str) -> usize {
    told.iter().filter(|line| line.starts_with(prefix)).count()
}

/// What was acknowledged is there; what is not known may be; nothing else; all of it healthy.
async fn judge(home: &tempfile::TempDir, committed: usize, unknown: usize) {
    let backend = open(&home.path().join("gesta.db"));
    let found = read_all(&backend).await.len();
    assert!(
        (2 * committed..=2 * (committed + unknown)).contains(&found),
        "{found}"
    );
    assert!(verify(&backend).await.is_healthy());
    backend.close().await;
}

/// Goal: a commit whose sync fails is unknown, and nothing more is written until the store is opened again.
/// What happened: the closed store answered *unavailable*, so each append waited 30 s for what could not come; now the
/// refusal is one that lasts, and the pipeline hands it on at once.
#[tokio::test]
async fn a_sync_that_fails_closes_the_store_for_writing() {
    let Some((told, home)) = run_with("inject=fsync,fdatasync:error=EIO:when=12") else {
        return;
    };
    let committed = count(&told, "committed");
    assert!(committed > 5, "{told:?}");
    assert_eq!(count(&told, "unknown"), 1, "{told:?}");
    assert_eq!(count(&told, "readable true"), 1, "{told:?}");
    assert_eq!(count(&told, "writer refused"), 1, "{told:?}");
    let refusal = told
        .iter()
        .find(|line| line.starts_with("writer refused"))
        .expect("counted");
    assert!(refusal.contains("gesta verify"), "{refusal}");
    assert!(refusal.contains("lasting true"), "{refusal}");
    assert_eq!(count(&told, "then Failed"), 1, "{told:?}");
    judge(&home, committed, 1).await;
}

/// Goal: a write that fails may have been stored in part: the same.
#[tokio::test]
async fn a_write_that_fails_closes_the_store_for_writing() {
    let Some((told, home)) = run_with("inject=pwrite64:error=EIO:when=90") else {
        return;
    };
    let committed = count(&told, "committed");
    assert!(committed > 2, "{told:?}");
    assert_eq!(count(&told, "unknown"), 1, "{told:?}");
    assert_eq!(count(&told, "writer refused"), 1, "{told:?}");
    judge(&home, committed, 1).await;
}

/// Goal: a full disk is a passing failure: nothing of the batch is stored, and when there is space again it is.
#[tokio::test]
async fn a_full_disk_passes() {
    let Some((told, home)) = run_with("inject=pwrite64:error=ENOSPC:when=90..95") else {
        return;
    };
    assert_eq!(count(&told, "committed"), BATCHES, "{told:?}");
    let failures: Vec<_> = told
        .iter()
        .filter(|line| line.starts_with("failed"))
        .collect();
    assert!((1..=6).contains(&failures.len()), "{told:?}");
    assert!(
        failures[0].contains("no space on the disk") && failures[0].contains("full"),
        "{failures:?}"
    );
    assert!(
        failures.iter().all(|line| line.contains("lasting true")),
        "{failures:?}"
    );
    assert_eq!(count(&told, "writer opened"), 1, "{told:?}");
    assert_eq!(count(&told, "then Committed"), 1, "{told:?}");
    judge(&home, BATCHES, 0).await;
}

/// Goal: the kinds of error that the pipeline acts on.
#[tokio::test]
async fn a_closed_store_is_unavailable() {
    let home = tempfile::tempdir().expect("dir");
    let backend = open(&home.path().join("gesta.db"));
    let mut author = Author::new(&backend).await;
    backend.close().await;
    for events in [vec![], vec![event("a", "T", "1")]] {
        let batch = author.batch(&events);
        let BatchOutcome::Failed(error) = author.submit(batch).await else {
            panic!("it was never sent")
        };
        assert!(matches!(error.kind(), ErrorKind::Unavailable(_)));
    }
}
