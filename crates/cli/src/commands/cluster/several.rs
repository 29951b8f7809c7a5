//! `gesta cluster …` on a store of several databases: each of them is asked about the logs that lie in it.
//!
//! A node has another number in each database, so people name it by its address.
//! Not here: what is asked of one database (`cluster`).

use std::sync::Arc;

use gesta_core::LogId;
use gesta_core::registry::Registry;

use super::{perform_in, show};
use crate::args::ClusterCommand;
use crate::exit::{Failure, Outcome};
use crate::output::Output;

type Registries = [Arc<dyn Registry>];

pub(super) async fn perform(
    registries: &Registries,
    command: ClusterCommand,
    output: &mut Output,
) -> Outcome {
    match &command {
        ClusterCommand::Status => status(registries, output).await,
        ClusterCommand::Move(request) => {
            check_address(&request.to)?;
            let registry = home(registries, request.log).await?;
            perform_in(registry, command, output).await
        }
        ClusterCommand::Pin(pin) => {
            check_address(&pin.to)?;
            let registry = home(registries, pin.log).await?;
            perform_in(registry, command, output).await
        }
        ClusterCommand::Unpin { log } => {
            let registry = home(registries, *log).await?;
            perform_in(registry, command, output).await
        }
        ClusterCommand::Drain(drain) => {
            check_address(drain.name())?;
            each(registries, &command, output).await
        }
        _ => each(registries, &command, output).await,
    }
}

/// Runs a command in all databases, one after the other, each under a heading. If a database fails, the others are
/// asked nevertheless, and its failure is the outcome.
async fn each(registries: &Registries, command: &ClusterCommand, output: &mut Output) -> Outcome {
    let mut outcome = Ok(());
    for (number, registry) in (1..).zip(registries) {
        output.heading(&format!("database {number} of {}", registries.len()))?;
        let done = perform_in(registry, command.clone(), output).await;
        outcome = outcome.and(done);
    }
    outcome
}

async fn status(registries: &Registries, output: &mut Output) -> Outcome {
    let mut outcome = Ok(());
    for (number, registry) in (1_usize..).zip(registries) {
        if number > 1 {
            output.heading("")?;
        }
        let shown = async {
            let (id, look) = (registry.store_id().await?, registry.look().await?);
            show::status(id, &look, Some(number), output)
        };
        outcome = outcome.and(shown.await);
    }
    outcome
}

/// Finds the registry of the database in which a log lies. If none has the log and a database does not answer, that is
/// the error, since the log may lie there.
async fn home(registries: &Registries, log: u16) -> Outcome<&Arc<dyn Registry>> {
    let mut away = None;
    for registry in registries {
        match registry.look().await {
            Ok(look) if look.lease(LogId(log)).is_some() => return Ok(registry),
            Ok(_) => {}
            Err(error) => away = Some(error),
        }
    }
    Err(match away {
        Some(error) => error.into(),
        None => Failure::usage(format!(
            "LOG must be the number of a log of the store, found {log}"
        )),
    })
}

/// Refuses the number of a node, since only its address names it in all databases.
fn check_address(node: &str) -> Outcome {
    match node.parse::<u32>() {
        Err(_) => Ok(()),
        Ok(_) => Err(Failure::usage(format!(
            "NODE must be the address of a node, for it has another number in each database of the store, found {node:?}"
        ))),
    }
}
