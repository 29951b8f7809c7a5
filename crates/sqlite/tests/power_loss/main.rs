//! Power loss, simulated from a recording: what was acknowledged must survive it.
//!
//! How: a child process appends to a store under `strace`, which records every write, sync, truncation and change of a
//! directory, and every acknowledgement, in order (`trace`). From the recording we build what a disk may hold if the
//! power fails at a given moment (`disk`): everything that was synced, and of the rest nothing, everything, or a random
//! part, with torn writes. Each such disk is opened as a store, read, and audited. The check itself is checked: with
//! `synchronous=off` it must find a loss. Without `strace` the tests are skipped, loudly; where `CI` is set they fail.

#![allow(clippy::expect_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod disk;
mod trace;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use common::{Author, Event, event, open, read_all, strace, verify};
use disk::{Disk, Survivors};
use gesta_core::backend::Backend;
use gesta_kit::faulty::Random;
use gesta_sql::verify::audit;
use gesta_sqlite::{SqliteBackend, SqliteConfig, Synchronous};
use trace::{Call, Step};

/// Tells the child where to work, and how: `full` or `off`.
const CHILD_HOME: &str = "GESTA_POWER_LOSS_HOME";
const CHILD_SYNCHRONOUS: &str = "GESTA_POWER_LOSS_SYNCHRONOUS";
/// Directory of the store, within the home.
const STORE_DIRECTORY: &str = "store";
/// File of the acknowledgements, within the home.
const ACKNOWLEDGED: &str = "acknowledged";
/// Small, so that the recording holds many checkpoints and beginnings of the WAL.
const WAL_BYTES_MAX: u64 = 256 * 1024;
/// Batches before and after the store is closed and opened again.
const BATCHES: [usize; 2] = [90, 40];
/// Moments at which the power fails, beside those right after an acknowledgement.
const MOMENTS: usize = 150;

/// Wrong disks after which no more are looked at.
const WRONG_ENOUGH: usize = 20;

/// The events of one batch, the same in every run.
fn events_of(batch: usize) -> Vec<Event> {
    let mut random = Random::new(u64::try_from(batch).expect("small") + 1);
    (0..1 + random.below(6))
        .map(|number| {
            let size = random.below(if batch.is_multiple_of(9) { 30_000 } else { 900 });
            let data = format!("{batch}:{number}:{}", "x".repeat(size));
            let mut event = event(&format!("stream-{}", random.below(20)), "T", &data);
            if random.below(3) == 0 {
                event = event.tagged(&["some", &format!("batch:{batch}")]);
            }
            event
        })
        .collect()
}

/// The recorded process; does nothing in an ordinary run of the tests.
#[tokio::test]
async fn child() {
    let Ok(home) = std::env::var(CHILD_HOME) else {
        return;
    };
    let home = PathBuf::from(home);
    let mut acknowledged = std::fs::File::create(home.join(ACKNOWLEDGED)).expect("creates");
    let mut config = SqliteConfig::file(home.join(STORE_DIRECTORY).join("gesta.db"));
    config.wal_bytes_max = WAL_BYTES_MAX;
    if std::env::var(CHILD_SYNCHRONOUS).as_deref() == Ok("off") {
        config.synchronous = Synchronous::Off;
    }
    let mut next = 0;
    let mut known = None;
    for count in BATCHES {
        let backend = SqliteBackend::open(config.clone()).expect("opens");
        let mut author = Author::new(&backend).await;
        if let Some((streams, types)) = known.take() {
            (author.streams, author.types) = (streams, types);
        }
        for batch in next..next + count {
            author.store(&events_of(batch)).await;
            acknowledged
                .write_all(format!("{batch}\n").as_bytes())
                .expect("writes");
        }
        next += count;
        known = Some((author.streams, author.types));
        if next < BATCHES.iter().sum() {
            backend.close().await;
        }
    }
    // The end comes without closing.
    std::process::exit(0);
}

/// Runs the child under strace; `None` if there is none.
fn record(synchronous: &str) -> Option<Vec<Step>> {
    let mut strace = strace()?;
    let home = tempfile::tempdir().expect("dir");
    let home_path = std::fs::canonicalize(home.path()).expect("exists");
    let recording = home_path.join("recording");
    let output = strace
        .args(["-f", "-y", "-xx", "-s", "1000000", "-e"])
        .arg(format!("trace={}", trace::CALLS.join(",")))
        .arg("-o")
        .arg(&recording)
        .arg(std::env::current_exe().expect("known"))
        .args(["--exact", "child"])
        .env(CHILD_HOME, &home_path)
        .env(CHILD_SYNCHRONOUS, synchronous)
        .output()
        .expect("starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = std::fs::read_to_string(&recording).expect("recorded");
    Some(trace::parse(
        &text,
        &home_path.join(STORE_DIRECTORY),
        &home_path.join(ACKNOWLEDGED),
    ))
}

/// What the child appends.
struct Plan {
    /// The data of all events, in order.
    data: Vec<bytes::Bytes>,
    /// How many events there are after each number of batches.
    ends: Vec<usize>,
}

impl Plan {
    fn new() -> Self {
        let (mut data, mut ends) = (Vec::new(), vec![0]);
        for batch in 0..BATCHES.iter().sum() {
            data.extend(events_of(batch).into_iter().map(|event| event.data));
            ends.push(data.len());
        }
        Self { data, ends }
    }
}

/// Opens what the disk holds; says what is wrong.
async fn check(image: &Path, plan: &Plan, acknowledged: usize) -> Result<(), String> {
    let path = image.join("gesta.db");
    let backend = match SqliteBackend::open(SqliteConfig::file(&path)) {
        Ok(backend) => backend,
        Err(error) => return Err(format!("cannot be opened: {error}")),
    };
    let result = check_content(&backend, plan, acknowledged).await;
    backend.close().await;
    result
}

async fn check_content(
    backend: &SqliteBackend,
    plan: &Plan,
    acknowledged: usize,
) -> Result<(), String> {
    let mut source = backend.audit().await.map_err(|error| error.to_string())?;
    let report = audit(&mut source, &mut |_| {})
        .await
        .map_err(|error| error.to_string())?;
    drop(source);
    if !report.is_healthy() {
        return Err(format!("is damaged: {:?}", report.findings));
    }
    let found = read_all(backend).await;
    if !found
        .iter()
        .zip(&plan.data)
        .all(|(event, data)| event.data == *data)
    {
        return Err("holds other events than were appended".into());
    }
    let least = plan.ends[acknowledged];
    if found.len() < least {
        return Err(format!(
            "holds {} events, {least} were acknowledged",
            found.len()
        ));
    }
    if !plan.ends.contains(&found.len()) {
        return Err(format!(
            "holds {} events: a batch is there in part",
            found.len()
        ));
    }
    Ok(())
}

/// Lets the power fail at many moments; returns what is wrong, with the moment.
async fn fail_at_many_moments(steps: &[Step]) -> Vec<String> {
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let mut moments: BTreeSet<usize> = (0..MOMENTS).map(|_| random.below(steps.len())).collect();
    moments.extend(
        steps
            .iter()
            .enumerate()
            .filter(|(_, step)| matches!(step, Step::Acknowledged))
            .map(|(at, _)| at),
    );
    let plan = Plan::new();
    let (mut disk, mut acknowledged, mut wrong) = (Disk::default(), 0, Vec::new());
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Acknowledged => acknowledged += 1,
            Step::Call(call) => disk.apply(call),
        }
        if wrong.len() >= WRONG_ENOUGH {
            break;
        }
        if !moments.contains(&at) {
            continue;
        }
        let kinds: &[Survivors] = match step {
            Step::Acknowledged => &[Survivors::Synced, Survivors::Random],
            Step::Call(_) => &[
                Survivors::Synced,
                Survivors::All,
                Survivors::Random,
                Survivors::Random,
            ],
        };
        for &survivors in kinds {
            let image = tempfile::tempdir().expect("dir");
            disk.write_image(image.path(), survivors, &mut random);
            if let Err(text) = check(image.path(), &plan, acknowledged).await {
                wrong.push(format!(
                    "step {at} of {}, {survivors:?}: the store {text}",
                    steps.len()
                ));
            }
        }
    }
    wrong
}

/// The recording misses nothing: replayed, it is the very store that the child left.
async fn replay_to_the_end(steps: &[Step]) {
    let mut disk = Disk::default();
    for step in steps {
        if let Step::Call(call) = step {
            disk.apply(call);
        }
    }
    let image = tempfile::tempdir().expect("dir");
    disk.write_image(image.path(), Survivors::All, &mut Random::new(1));
    let backend = open(&image.path().join("gesta.db"));
    assert_eq!(read_all(&backend).await.len(), Plan::new().data.len());
    assert!(verify(&backend).await.is_healthy());
    backend.close().await;
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_power_loss() {
    let Some(steps) = record("full") else { return };
    let acknowledged = steps
        .iter()
        .filter(|step| matches!(step, Step::Acknowledged))
        .count();
    assert_eq!(acknowledged, BATCHES.iter().sum::<usize>());
    let writes_to = |name: &str, below: u64| {
        steps.iter().filter(|step| matches!(step, Step::Call(Call::Write { file, at, .. }) if file == name && *at < below)).count()
    };
    assert!(
        writes_to("gesta.db", u64::MAX) > 100,
        "the recording holds checkpoints"
    );
    assert!(
        writes_to("gesta.db-wal", 32) > 5,
        "the recording holds beginnings of the WAL"
    );
    replay_to_the_end(&steps).await;
    let wrong = fail_at_many_moments(&steps).await;
    assert!(
        wrong.is_empty(),
        "{} of the disks are wrong, the first: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(5)]
    );
}

/// Goal: the test above can fail. Without syncs, acknowledged events must be found missing.
#[tokio::test]
async fn a_store_that_does_not_sync_is_caught() {
    let Some(steps) = record("off") else { return };
    let wrong = fail_at_many_moments(&steps).await;
    assert!(
        wrong
            .iter()
            .any(|text| text.contains("were acknowledged") || text.contains("cannot be opened")),
        "{wrong:?}"
    );
}
