//! `judge`: our own judges on histories out of files, so that they can be held against those of others.
//!
//! Streams are judged by what is stored in the end, seats and registers by a search for an order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read as _, Write as _};
use std::path::PathBuf;

use gesta_kit::judge::{self, Search, seats};
use gesta_kit::operations::{self, Action, Operation};
use gesta_report::failure::{Context, Result, fail};

/// A history is judged in memory, which has a bound.
const HISTORY_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Histories to judge.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct JudgeArgs {
    /// Files that `--history` has written.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// What a judge says of a key.
enum Found {
    Fits,
    Impossible(String),
    Undecided,
}

/// The command: a line for each key whose answers fit no order. True if there is none.
pub(crate) fn run(args: &JudgeArgs) -> Result<bool> {
    let (mut keys, mut count, mut wrong, mut undecided) = (0, 0, 0, 0);
    let mut out = std::io::stdout().lock();
    for file in &args.files {
        let name = file.display();
        let opened = File::open(file).context(format!("the history {name}"))?;
        let mut bounded = opened.take(HISTORY_BYTES_MAX);
        let read = operations::read(BufReader::new(&mut bounded));
        if bounded.limit() == 0 {
            return fail(format!(
                "the history {name}: {HISTORY_BYTES_MAX} bytes or more"
            ));
        }
        let mut by_key: BTreeMap<String, Vec<Operation>> = BTreeMap::new();
        for operation in read.context(format!("the history {name}"))? {
            count += 1;
            let of_key = by_key.entry(operation.key.clone()).or_default();
            of_key.push(operation);
        }
        if by_key.is_empty() {
            return fail(format!("the history {name} has no operations"));
        }
        for (key, operations) in by_key {
            keys += 1;
            match judge_key(&operations)? {
                Found::Fits => {}
                Found::Impossible(why) => {
                    wrong += 1;
                    writeln!(out, "NOT LINEARIZABLE {key}: {why}")?;
                }
                Found::Undecided => {
                    undecided += 1;
                    writeln!(out, "UNDECIDED {key}")?;
                }
            }
        }
    }
    let told = format!(
        "{count} operations of {keys} keys: {wrong} not linearizable, {undecided} undecided"
    );
    writeln!(out, "{told}")?;
    match (wrong, undecided) {
        (0, 1..) => fail("not all could be decided"),
        (wrong, _) => Ok(wrong == 0),
    }
}

/// Judges the operations of one key.
fn judge_key(operations: &[Operation]) -> Result<Found> {
    let is = |wanted: fn(&Action) -> bool| operations.iter().all(|one| wanted(&one.action));
    if is(|action| matches!(action, Action::Append { .. } | Action::ReadStream { .. })) {
        return Ok(stream(operations));
    }
    if is(|action| {
        matches!(
            action,
            Action::Write { .. } | Action::CompareAndSet { .. } | Action::ReadRegister { .. }
        )
    }) {
        return Ok(found(judge::register(operations), operations));
    }
    if is(|action| {
        matches!(
            action,
            Action::Reserve { .. }
                | Action::Cancel { .. }
                | Action::Pay { .. }
                | Action::GiveBack { .. }
                | Action::ReadSeat { .. }
        )
    }) {
        return Ok(found(seats::seat(operations), operations));
    }
    let key = operations.first().map_or("", |one| &one.key);
    fail(format!("{key}: operations of different kinds"))
}

fn found(search: Search, operations: &[Operation]) -> Found {
    match search {
        Search::Fits => Found::Fits,
        Search::Impossible { at } => Found::Impossible(format!(
            "no order gets past the operation that began at {}",
            operations[at].call
        )),
        Search::Undecided => Found::Undecided,
    }
}

fn stream(operations: &[Operation]) -> Found {
    let report = judge::stream(operations);
    match report.violations.first() {
        Some(violation) => Found::Impossible(violation.to_string()),
        None if report.events_foreign > 0 => {
            Found::Impossible("it holds what nobody appended".into())
        }
        None => Found::Fits,
    }
}
