//! Runs many schedules and prints what they found.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use clap::Parser;
use gesta_sim::Finding;
use gesta_sim::choices::Choices;
use gesta_sim::worlds::pipeline::schedule::{Form, Trace};

/// Simulates the append pipeline, and nodes that forward to each other, under random schedules of faults.
#[derive(Parser)]
struct Args {
    /// How many schedules to run.
    #[arg(long, default_value_t = 50_000)]
    schedules: u64,
    /// The seed of the first one; the others follow. Drawn at random if not given.
    #[arg(long)]
    seed: Option<u64>,
    /// End after so many seconds, if that is earlier.
    #[arg(long)]
    seconds: Option<u64>,
    /// Run so many schedules at a time; as many as there are processors if not given.
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Run only schedules of this form; else the forms take turns.
    #[arg(long, value_parser = form)]
    form: Option<Form>,
    /// Replay these choices, separated by commas, and tell each step.
    #[arg(long, value_delimiter = ',')]
    replay: Vec<u32>,
}

fn form(text: &str) -> Result<Form, String> {
    let forms = [Form::Processes, Form::Nodes];
    let form = forms.into_iter().find(|form| form.to_string() == text);
    form.ok_or_else(|| "the forms are `processes` and `nodes`".to_owned())
}

fn main() -> ExitCode {
    let args = Args::parse();
    if !args.replay.is_empty() {
        let form = args.form.unwrap_or(Form::Processes);
        let (outcome, _) = gesta_sim::run(form, Choices::replay(args.replay), Trace::On);
        println!("{outcome:?}");
        return ExitCode::from(u8::from(outcome.is_err()));
    }
    let search = Search {
        first: args.seed.unwrap_or_else(rand::random),
        began: Instant::now(),
        next: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        args,
    };
    let (found, done) = search.run();
    if let Some(finding) = found {
        println!("seed {}: {}", finding.seed, finding.what);
        let choices: Vec<String> = finding.choices.iter().map(u32::to_string).collect();
        println!("shrunk: {}", finding.shrunk);
        println!("--form {} --replay {}", finding.form, choices.join(","));
        let seconds = search.began.elapsed().as_secs_f64();
        println!("among {done} schedules, after {seconds:.1} s");
        return ExitCode::FAILURE;
    }
    let seconds = search.began.elapsed().as_secs_f64();
    let rate = done as f64 / seconds * 60.0;
    let first = search.first;
    println!(
        "{done} schedules from seed {first} in {seconds:.1} s ({rate:.0} a minute), no finding"
    );
    ExitCode::SUCCESS
}

/// A search by several threads, each of which takes the next schedule.
struct Search {
    args: Args,
    /// The seed of the first schedule.
    first: u64,
    began: Instant,
    /// The number of the next schedule.
    next: AtomicU64,
    /// Somebody has found something.
    is_over: AtomicBool,
}

impl Search {
    /// Returns what a thread has found, and the number of schedules that were run to their end.
    fn run(&self) -> (Option<Box<Finding>>, u64) {
        let threads = self.args.threads.map_or_else(available_parallelism, Ok);
        let threads = threads.map_or(1, NonZeroUsize::get);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| self.work())).collect();
            let results = workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
            results.fold((None, 0), |(found, done), (finding, count)| {
                (found.or(finding), done + count)
            })
        })
    }

    fn work(&self) -> (Option<Box<Finding>>, u64) {
        let limit = self.args.seconds.map(Duration::from_secs);
        let mut done = 0;
        while !self.is_over.load(Relaxed) && limit.is_none_or(|limit| self.began.elapsed() < limit)
        {
            let number = self.next.fetch_add(1, Relaxed);
            if number >= self.args.schedules {
                break;
            }
            let seed = self.first.wrapping_add(number);
            let form = self.args.form.unwrap_or(Form::of(seed));
            if let Err(finding) = gesta_sim::check(form, seed) {
                self.is_over.store(true, Relaxed);
                return (Some(finding), done);
            }
            done += 1;
        }
        (None, done)
    }
}
