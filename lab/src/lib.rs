//! The lab: how much will *your* database carry, with *your* events, and does the store keep its word meanwhile?
//!
//! Each command measures, prints a table, and appends one JSON line per run to a file. A run after
//! which something acknowledged is missing is no result: the exit code is 1.
//! A library, so that `lab-compare` can measure other systems by the same workload; the program is `main.rs`.
//! Not here: anything a store needs to work; the lab uses the public interface, and plain database connections beside
//! it to compare. What hurts a store is `gesta-chaos`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a lab that stumbles should stop and say where"
)]
#![allow(
    clippy::cast_precision_loss,
    reason = "counts and bytes of a run have fewer than 53 bits"
)]

mod cluster;
mod measures;
mod reservation;
mod workload;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use gesta_report::endpoint;

use gesta_report::failure::Result;
use gesta_report::{page, results, stop};

use crate::measures::{
    append, catch_up, copy, decisions, latency, locking, projections, quick, recovery, scenario,
    schemas, shares, tags,
};

/// Runs the command that the arguments of this process name.
pub fn main() -> ExitCode {
    let typed = Cli::command().try_get_matches();
    let typed = typed.unwrap_or_else(|refused| without_secrets(refused).exit());
    let cli = Cli::from_arg_matches(&typed);
    let cli = cli.unwrap_or_else(|refused| without_secrets(refused).exit());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let checked = results::check_of(&typed);
    match checked.and_then(|()| runtime.block_on(dispatch(cli.command))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => {
            eprintln!("gesta-lab: {failure}");
            ExitCode::from(2)
        }
    }
}

/// A refusal of arguments, which it repeats, without the secrets of the URLs among them.
fn without_secrets(mut refused: clap::Error) -> clap::Error {
    for kind in [
        ContextKind::InvalidArg,
        ContextKind::InvalidSubcommand,
        ContextKind::InvalidValue,
        ContextKind::TrailingArg,
    ] {
        let told = match refused.get(kind) {
            Some(ContextValue::String(told)) => told.clone(),
            _ => continue,
        };
        let shown = endpoint::redacted(&told);
        if shown != told {
            refused.insert(kind, ContextValue::String(shown));
            // What is proposed instead repeats the argument, too.
            refused.insert(ContextKind::Suggested, ContextValue::None);
        }
    }
    refused
}

/// Looks whether arguments, the first of which is the program, are a command, without running it: documents and scripts
/// name commands, and none of them may go unnoticed.
///
/// # Errors
/// What is wrong with them, in words.
pub fn look_over(arguments: impl IntoIterator<Item = String>) -> std::result::Result<(), String> {
    match Cli::try_parse_from(arguments) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Measures a Gesta store on any database, and compares it with the bare database and with what was published.
///
/// Data go to stdout and, one JSON line per run, to --results; exit code 0: a result; 1: no
/// result, because the store broke its word or a goal was missed; 2: the lab could not work.
#[derive(Debug, Parser)]
#[command(name = "gesta-lab", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Appends under load, then reads everything back.
    Append(append::AppendArgs),
    /// A consumer that gets everything that is stored: library, lines, server-sent events, plain statements.
    CatchUp(catch_up::CatchUpArgs),
    /// Several servers on one database: to try out, and to hurt.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// How fast is a whole store copied to another database, and does everything arrive?
    Copy(copy::CopyArgs),
    /// Decisions by tags: what a condition costs, and what contention on one tag does.
    Decisions(decisions::DecisionsArgs),
    /// What distance costs: separate statements, one bundled statement, Gesta's pipeline.
    Latency(latency::LatencyArgs),
    /// The entity in memory against load, decide, append with optimistic locking.
    Locking(locking::LockingArgs),
    /// Read models: how fast they are built, how soon they show an append, what many of them cost.
    Projections(projections::ProjectionsArgs),
    /// What will this database carry? A minute or two, and a page with the answer.
    Quick(quick::QuickArgs),
    /// A page with charts from the results of earlier commands.
    Report(page::PageArgs),
    /// Entities that come to memory after a restart, and a projection that catches up.
    Recovery(recovery::RecoveryArgs),
    /// Seats of a cinema, over HTTP: how many requests it carries, and whether a seat was ever held twice.
    Reservation(reservation::ReservationArgs),
    /// Load on any HTTP service, out of a scenario file: checks, ladder, page.
    Scenario(scenario::ScenarioArgs),
    /// The field's journal schemas and Gesta on one database, over rising numbers of connections.
    Schemas(schemas::SchemasArgs),
    /// One user who takes all there is of one thing, beside nine others: what do they keep?
    Shares(shares::SharesArgs),
    /// Reading by tag: polled journals and Gesta's subscriptions, with few and many older events.
    Tags(tags::TagsArgs),
}

/// Runs the command; true if it is a result.
async fn dispatch(command: Command) -> Result<bool> {
    let stop = stop::on_interrupt();
    match command {
        Command::Append(args) => append::run(&args, &stop).await,
        Command::CatchUp(args) => catch_up::run(&args, &stop).await,
        Command::Cluster(command) => cluster::run(&command, &stop).await,
        Command::Copy(args) => copy::run(&args, &stop).await,
        Command::Decisions(args) => decisions::run(&args, &stop).await,
        Command::Latency(args) => latency::run(&args, &stop).await,
        Command::Locking(args) => locking::run(&args, &stop).await,
        Command::Projections(args) => projections::run(&args, &stop).await,
        Command::Quick(args) => quick::run(&args, &stop).await,
        Command::Report(args) => page::run(&args),
        Command::Recovery(args) => recovery::run(&args, &stop).await,
        Command::Reservation(args) => reservation::run(&args, &stop).await,
        Command::Scenario(args) => scenario::run(&args, &stop).await,
        Command::Schemas(args) => schemas::run(&args, &stop).await,
        Command::Shares(args) => shares::run(&args, &stop).await,
        Command::Tags(args) => tags::run(&args, &stop).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: whoever mistypes a command does not find a password on the terminal, or in the log of a job.
    #[test]
    fn a_refused_command_shows_no_password() {
        for arguments in [
            &["append", "--results", "http://u:secret@h/a?key=secret"][..],
            &["append", "postgres://u:secret@h/x"],
            &["postgres://u:secret@h/x"],
            &["schemas", "--processes", "postgres://u:se#cret@h/x"],
        ] {
            let arguments = ["gesta-lab"].iter().chain(arguments).copied();
            let refused = without_secrets(Cli::try_parse_from(arguments).unwrap_err());
            let told = refused.to_string();
            assert!(told.contains("://***@h"), "{told}");
            assert!(
                !told.contains("secret") && !told.contains("cret@"),
                "{told}"
            );
        }
    }
}
