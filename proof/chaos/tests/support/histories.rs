//! A history before two judges: ours, and Porcupine (`proof/kit/porcupine`), a checker of others that needs Go and a
//! module of the registry.
//!
//! Without Go the second judge is left out, loudly; in the deep form that is a failure.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gesta_kit::depth::{self, Depth};
use gesta_kit::faulty::Random;
use gesta_kit::operations::{self, Operation};

use super::planted::{self, Planted};

const CHAOS: &str = env!("CARGO_BIN_EXE_gesta-chaos");

/// What a judge says: the keys that are not linearizable, and those that it could not decide.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    wrong: BTreeSet<String>,
    undecided: BTreeSet<String>,
    /// Everything, for people.
    text: String,
}

impl Said {
    /// What a judge has printed; its exit code must say the same.
    fn of(judge: &str, output: &Output) -> Self {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr);
        let mut said = Self::default();
        for line in text.lines() {
            if let Some(line) = line.strip_prefix("NOT LINEARIZABLE ") {
                let (key, _) = line.split_once(": ").unwrap();
                said.wrong.insert(key.to_owned());
            } else if let Some(key) = line.strip_prefix("UNDECIDED ") {
                said.undecided.insert(key.to_owned());
            }
        }
        let code = match (said.wrong.is_empty(), said.undecided.is_empty()) {
            (false, _) => 1,
            (true, false) => 2,
            (true, true) => 0,
        };
        let found = output.status.code();
        assert_eq!(found, Some(code), "{judge}: {text}\n{complained}");
        said.text = text;
        said
    }
}

fn ours(file: &Path) -> Said {
    let output = Command::new(CHAOS).arg("judge").arg(file).output().unwrap();
    Said::of("ours", &output)
}

/// The program, built; none if it cannot be had.
fn porcupine() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = folder.join("porcupine");
    std::fs::create_dir_all(folder).unwrap();
    // Others build it at the same time.
    let lock = File::create(folder.join("porcupine.lock")).unwrap();
    lock.lock().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kit/porcupine");
    let mut build = Command::new("go");
    build.args(["build", "-mod=readonly", "-o"]).arg(&program);
    let built = build.arg(".").current_dir(source).output();
    let why = match built {
        Ok(output) if output.status.success() => return Some(program),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    assert!(
        Depth::from_environment() == Depth::Quick,
        "no Porcupine: {why}"
    );
    eprintln!("SKIPPED: no Porcupine; histories were judged by our own judges alone: {why}");
    None
}

fn by(program: &Path, file: &Path) -> Said {
    let output = Command::new(program)
        .args(["-limit", "10s"])
        .arg(file)
        .output()
        .unwrap();
    Said::of("Porcupine", &output)
}

/// Nothing may be wrong with a history, for either judge. Then faults are planted in it, so many and by chance, and
/// both must say the same of each; those that are faults for certain must be found.
pub(crate) fn hold_before_both(file: &Path, plants: usize) {
    let history = operations::read(BufReader::new(File::open(file).unwrap())).unwrap();
    assert!(!history.is_empty(), "nothing was written down");
    let porcupine = porcupine();
    let said = ours(file);
    assert!(
        said.wrong.is_empty() && said.undecided.is_empty(),
        "{}",
        said.text
    );
    print!("our judges: {}", said.text);
    if let Some(porcupine) = &porcupine {
        let said = by(porcupine, file);
        assert!(
            said.wrong.is_empty() && said.undecided.is_empty(),
            "{}",
            said.text
        );
        print!("Porcupine: {}", said.text);
    }

    if plants == 0 {
        return;
    }
    let seed = depth::seed();
    eprintln!("GESTA_SEED={seed}");
    let planted = planted::plant(&history, plants, &mut Random::new(seed));
    let all: Vec<Operation> = planted.iter().flat_map(|one| one.history.clone()).collect();
    let faulty = file.with_extension("faulty");
    operations::write(&all, File::create(&faulty).unwrap()).unwrap();
    let by_us = ours(&faulty);
    for one in planted.iter().filter(|one| one.is_certain) {
        assert!(
            by_us.wrong.contains(&one.key),
            "ours: {}: {:?}",
            one.key,
            one.history
        );
    }
    if let Some(porcupine) = &porcupine {
        let by_others = by(porcupine, &faulty);
        let is_decided = |one: &&Planted| {
            !by_us.undecided.contains(&one.key) && !by_others.undecided.contains(&one.key)
        };
        for one in planted.iter().filter(is_decided) {
            let verdicts = [&by_us, &by_others].map(|said| said.wrong.contains(&one.key));
            assert_eq!(
                verdicts[0],
                verdicts[1],
                "{}: wrong by our judges, by Porcupine; ours:\n{}\nPorcupine:\n{}\n{}",
                one.key,
                about(&by_us, &one.key),
                about(&by_others, &one.key),
                lines(&one.history)
            );
        }
    }
    let certain = planted.iter().filter(|one| one.is_certain).count();
    println!(
        "{} faults planted, {certain} of them for certain; {} are not linearizable, {} undecided",
        planted.len(),
        by_us.wrong.len(),
        by_us.undecided.len()
    );
}

fn about(said: &Said, key: &str) -> String {
    let lines = said.text.lines();
    lines.filter(|line| line.contains(key)).collect()
}

fn lines(history: &[Operation]) -> String {
    let mut text = Vec::new();
    operations::write(history, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}
