//! Measures other event stores beside Gesta: the same workload, on the same machine, in one run.
//!
//! Why apart from the lab: this alone depends on other systems' clients, so it is a workspace of its own that the
//! normal build never sees. What a peer needs is brought by `./install`, into a folder that is not committed.
//! Invariants: Gesta is measured first and last, and shortly before every peer; what a peer acknowledged is read
//! back from its store, and a peer that lost some has no result; what durability means is told of each.
//! Not here: Gesta's own questions (`gesta-lab`).

mod child;
mod contest;
mod driver;
mod ledger;
mod peer;
mod peers;
mod table;
mod workload;
mod world;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures other event stores beside Gesta.
///
/// Exit code 0: a result; 1: no result; 2: the comparison could not work.
#[derive(Debug, Parser)]
#[command(name = "gesta-lab-compare", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures everything that is installed, or the peers that are named.
    Run(contest::RunArgs),
    /// Tells the names of the peers.
    List,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let outcome = runtime.block_on(async {
        match cli.command {
            Command::Run(args) => contest::run(&args, &gesta_report::stop::on_interrupt()).await,
            Command::List => {
                for peer in peers::all() {
                    println!("{:<24} {}", peer.name(), peer.title());
                }
                Ok(true)
            }
        }
    });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => {
            eprintln!("gesta-lab-compare: {failure}");
            ExitCode::from(2)
        }
    }
}
