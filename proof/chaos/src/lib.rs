//! Chaos: worlds of real processes are hurt under load, round by round, and every promise that data can show is judged.
//!
//! A **world** is a store with all that serves it: one server on SQLite, servers or nodes on one or several PostgreSQL
//! servers, databases whose standbys are promoted. A **load** works on it and writes down what it was told: appends,
//! seats of a cinema, payments, consumer groups. A **fault** is made and heals. What the load was told is compared with
//! what is stored.
//!
//! Read [`world`] first (what there is), then `fault` and `inflict` (what is done to it), then [`load`], then `round`
//! (the order of all that).
//! Not here: schedules that can be played without processes (`gesta-sim`); how fast anything is (`gesta-lab`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a command that stumbles should stop and say where"
)]
#![allow(
    clippy::cast_precision_loss,
    reason = "counts and bytes of a run have fewer than 53 bits"
)]
#![allow(
    missing_debug_implementations,
    reason = "processes and connections have nothing to show"
)]

mod args;
mod fail_over;
mod fault;
mod history_file;
mod inflict;
mod judge;
mod library;
pub mod load;
mod lossy_fail_over;
mod per_fault;
mod round;
mod run;
mod steady;
pub mod world;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use gesta_report::failure::Result;
use gesta_report::{results, stop};

use crate::args::ChaosArgs;
use crate::judge::JudgeArgs;
use crate::steady::SteadyArgs;

pub use crate::fault::{Fault, WorldKind};
pub use crate::library::{Chaos, ChaosReport};

/// Runs the command that the arguments of this process name.
pub fn main() -> ExitCode {
    let typed = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&typed).unwrap_or_else(|refused| refused.exit());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let checked = results::check_of(&typed);
    match checked.and_then(|()| runtime.block_on(dispatch(cli))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => {
            eprintln!("gesta-chaos: {failure}");
            ExitCode::from(2)
        }
    }
}

/// Looks whether arguments, the first of which is the program, are a command, without running it: documents and scripts
/// name commands, and none of them may go unnoticed.
///
/// # Errors
/// What is wrong with them, in words.
pub fn look_over(arguments: impl IntoIterator<Item = String>) -> std::result::Result<(), String> {
    let cli = Cli::try_parse_from(arguments).map_err(|error| error.to_string())?;
    match cli.command {
        None => cli.chaos.check().map_err(|failure| failure.0),
        Some(_) => Ok(()),
    }
}

/// Hurts a Gesta store and all that serves it, under load, and says whether every promise was kept.
///
/// Without a command: one fault per round. What was found goes to stdout and, one JSON line per run, to --results; exit
/// code 0: every promise was kept; 1: one was broken, or the run was interrupted; 2: it could not be run.
#[derive(Debug, Parser)]
#[command(name = "gesta-chaos", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    chaos: ChaosArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Hours of load on a schedule, with faults now and then: does anything grow, is anything lost?
    Steady(Box<SteadyArgs>),
    /// Our own judges on histories that --history has written.
    Judge(JudgeArgs),
}

/// Runs the command; true if it is a result.
async fn dispatch(cli: Cli) -> Result<bool> {
    let stop = stop::on_interrupt();
    match cli.command {
        None => run::run(&cli.chaos, &stop).await,
        Some(Command::Steady(args)) => steady::run(&args, &stop).await,
        Some(Command::Judge(args)) => judge::run(&args),
    }
}
