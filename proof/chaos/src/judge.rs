//! `judge`: our own judges on histories out of files, so that they can be held against those of others.
//!
//! Streams are judged by what is stored in the end, seats and registers by a search for an order. Seats that nobody
//! pays are judged twice, by the judge of the cinema's users and by the general search, which must say the same.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read as _, Write as _};
use std::path::PathBuf;

use gesta_kit::history::RunHistory;
use gesta_kit::operations::{self, Action, Operation, Verdict};
use gesta_report::failure::{Context, Result, fail};

use gesta_load::cinema;

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
        for (key, operations) in by_key {
            keys += 1;
            match judge(&operations)? {
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
fn judge(operations: &[Operation]) -> Result<Found> {
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
        return Ok(found(operations::judge_register(operations)));
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
        let by_search = operations::judge_seat(operations);
        let by_users = cinema::judge_seat(operations);
        if let (Some(one), other) = (by_users, by_search)
            && Verdict::Undecided != other
            && one != (other == Verdict::Fits)
        {
            let key = &operations[0].key;
            return fail(format!("our judges disagree about {key}: {other:?}"));
        }
        return Ok(found(by_search));
    }
    let key = operations.first().map_or("", |one| &one.key);
    fail(format!("{key}: operations of different kinds"))
}

fn found(verdict: Verdict) -> Found {
    match verdict {
        Verdict::Fits => Found::Fits,
        Verdict::Impossible { call } => Found::Impossible(format!(
            "no order gets past the operation that began at {call}"
        )),
        Verdict::Undecided => Found::Undecided,
    }
}

fn stream(operations: &[Operation]) -> Found {
    let report = RunHistory::judge(operations);
    match report.violations.first() {
        Some(violation) => Found::Impossible(violation.to_string()),
        None if report.events_foreign > 0 => {
            Found::Impossible("it holds what nobody appended".into())
        }
        None => Found::Fits,
    }
}
