//! Runs many schedules and prints what they found.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use gesta_simulation::choices::Choices;
use gesta_simulation::schedule::{Form, Trace};

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
        let (outcome, _) = gesta_simulation::run(form, Choices::replay(args.replay), Trace::On);
        println!("{outcome:?}");
        return ExitCode::from(u8::from(outcome.is_err()));
    }
    let first = args.seed.unwrap_or_else(rand::random);
    let began = Instant::now();
    let limit = args.seconds.map(Duration::from_secs);
    let mut done = 0;
    while done < args.schedules && limit.is_none_or(|limit| began.elapsed() < limit) {
        let seed = first.wrapping_add(done);
        let form = args.form.unwrap_or(Form::of(seed));
        if let Err(finding) = gesta_simulation::check(form, seed) {
            println!("seed {}: {}", finding.seed, finding.what);
            let choices: Vec<String> = finding.choices.iter().map(u32::to_string).collect();
            println!("shrunk: {}", finding.shrunk);
            println!("--form {} --replay {}", finding.form, choices.join(","));
            let seconds = began.elapsed().as_secs_f64();
            println!("in schedule {} after {seconds:.1} s", done + 1);
            return ExitCode::FAILURE;
        }
        done += 1;
    }
    let seconds = began.elapsed().as_secs_f64();
    let rate = done as f64 / seconds * 60.0;
    println!(
        "{done} schedules from seed {first} in {seconds:.1} s ({rate:.0} a minute), no finding"
    );
    ExitCode::SUCCESS
}
