//! Runs many schedules of a world and prints what they found.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use gesta_sim::choices::Choices;
use gesta_sim::driver::search::Search;
use gesta_sim::driver::{self, Found, Trace, World};
use gesta_sim::worlds;

/// Simulates the pure cores of Gesta under random schedules of faults.
#[derive(Parser)]
struct Args {
    /// The world whose schedules are run.
    #[arg(long, default_value = "pipeline", value_parser = world)]
    world: &'static World,
    /// Run only schedules of this form; else the forms of the world take turns.
    #[arg(long)]
    form: Option<String>,
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
    /// Tell what is found as it is. Else it is made smaller, which takes a while.
    #[arg(long)]
    unshrunk: bool,
    /// Replay these choices, separated by commas, and tell each step.
    #[arg(long, value_delimiter = ',', num_args = 0.., requires = "form")]
    replay: Option<Vec<u32>>,
}

fn world(name: &str) -> Result<&'static World, String> {
    worlds::by_name(name).ok_or_else(|| {
        let names = worlds::ALL.map(|world| world.name);
        format!("the worlds are {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let args = Args::parse();
    let form = args.form.as_deref().map(|name| {
        args.world.form(name).unwrap_or_else(|| {
            let names: Vec<&str> = args.world.forms.iter().map(|form| form.name).collect();
            eprintln!("the forms of this world are {}", names.join(", "));
            std::process::exit(2);
        })
    });
    if let (Some(replay), Some(form)) = (args.replay, form) {
        let end = driver::run(form, Choices::replay(replay), Trace::On);
        println!("{:?}", end.outcome);
        return ExitCode::from(u8::from(end.outcome.is_err()));
    }
    let first = args.seed.unwrap_or_else(rand::random);
    let search = Search {
        world: args.world,
        form,
        first,
        schedules: args.schedules,
        limit: args.seconds.map(Duration::from_secs),
        threads: args.threads,
        found: match args.unshrunk {
            true => Found::AsItIs,
            false => Found::Shrunk,
        },
    };
    let searched = search.run();
    let (done, seconds) = (searched.done, searched.took.as_secs_f64());
    if let Some(finding) = searched.finding {
        println!("seed {}: {}", finding.seed, finding.what);
        println!("shrunk: {}", finding.shrunk);
        println!("{}", finding.replay());
        println!("among {done} schedules, after {seconds:.1} s");
        return ExitCode::FAILURE;
    }
    let rate = done as f64 / seconds * 60.0;
    println!(
        "{done} schedules from seed {first} in {seconds:.1} s ({rate:.0} a minute), no finding"
    );
    ExitCode::SUCCESS
}
