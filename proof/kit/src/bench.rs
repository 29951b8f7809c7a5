//! Micro benchmarks: how long a small piece of work takes, so that a commit which makes it slower is seen.
//!
//! Why by hand: three figures and their ratio to those of the commit before need a median and a line of text, not
//! twenty crates, and the figures are kept where all figures of tests are (`scripts/bench`).
//! How: a round prepares its work before the clock starts and does it many times; the figure is the median of the
//! rounds, beside the fastest, which a busy machine changes least. `cargo bench` measures; as a test, which is what the
//! gate runs, one round shows that the benchmark still works.
//! Not here: end-to-end figures (the lab). Nothing is asserted about time.

use std::time::{Duration, Instant};

/// Rounds before those that count.
const WARM_UP: usize = 3;
/// Rounds that count.
const ROUNDS: usize = 21;

/// A piece of work that is measured.
pub struct Work<'a> {
    /// What is done, in words.
    pub what: &'a str,
    /// How many times it is done in a round.
    pub times: u32,
    /// Prepares a round. What it returns is timed.
    pub prepare: &'a dyn Fn() -> Box<dyn FnOnce() + 'a>,
}

impl std::fmt::Debug for Work<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work")
            .field("what", &self.what)
            .finish_non_exhaustive()
    }
}

/// The main function of a benchmark: measures under `cargo bench`, and does each work once as a test.
pub fn main(all: &[Work<'_>]) {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |wanted: &str| arguments.iter().any(|argument| argument == wanted);
    if has("--list") {
        // As the programs of tests list themselves.
        if !has("--ignored") {
            println!("does_its_work: test");
        }
        return;
    }
    for work in all {
        if has("--bench") {
            measure(work);
        } else {
            (work.prepare)()();
            println!("{}: done {} times", work.what, work.times);
        }
    }
}

fn measure(work: &Work<'_>) {
    let rounds = (0..WARM_UP + ROUNDS).map(|_| {
        let round = (work.prepare)();
        let begun = Instant::now();
        round();
        begun.elapsed()
    });
    let mut rounds: Vec<Duration> = rounds.skip(WARM_UP).collect();
    rounds.sort_unstable();
    let each = |round: Duration| round.as_secs_f64() * 1e9 / f64::from(work.times.max(1));
    let (median, fastest) = (each(rounds[ROUNDS / 2]), each(rounds[0]));
    println!(
        "bench: {}: {median:.1} ns, fastest {fastest:.1} ns",
        work.what
    );
}
