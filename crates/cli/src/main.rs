//! The command line of Gesta: `gesta serve`, and commands on stores and servers.
//!
//! Not here: the rules of the store (`gesta`), the HTTP API (`gesta-server`).

mod args;
mod commands;
mod config;
mod confirm;
mod exit;
mod input;
mod log_lines;
mod named_store;
mod output;
mod private_file;
mod process;
mod version;

use std::pin::Pin;
use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::exit::{Code, Failure, Outcome};
use crate::output::say;

/// With the allocator of the system, two and a half times as much memory stayed resident after a load of large events.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| args::without_common_options(error).exit());
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            say!("error: {error}");
            return ExitCode::from(Code::Other as u8);
        }
    };
    // Behind a pointer: the runtime would have the code of all commands three times, once for each way to run a future.
    let command: Pin<Box<dyn Future<Output = Outcome>>> = Box::pin(commands::run(cli));
    let outcome = runtime.block_on(command);
    // A task that hangs, such as a blocked read of standard input, must not keep the process from ending.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => match failure.code() {
            None => ExitCode::SUCCESS,
            Some(code) => {
                match failure {
                    Failure::Declined => say!("{failure}"),
                    _ => say!("error: {failure}"),
                }
                ExitCode::from(code as u8)
            }
        },
    }
}
