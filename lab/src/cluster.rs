//! `cluster`: several servers that are nodes of one PostgreSQL database, to try out (`up`), to restart
//! (`roll`), and to measure (`hop`, `cinema`, `share`, `databases`).
//!
//! Not here: nodes that are hurt (`gesta-chaos`).

mod cinema;
mod rates;
mod roll;
mod trace;

use std::path::PathBuf;

use gesta_chaos::world::{Plan, World};
use gesta_load::machine::child::{Program, ProgramArgs};
use gesta_report::failure::Result;
use tokio_util::sync::CancellationToken;

/// A show to begin with.
const SHOW: &str =
    r#"{"showId":"01890a5d-ac96-774b-bcce-b302099a8057","title":"Seven Samurai","maxSeats":50}"#;

/// What is done with the nodes.
#[derive(Debug, Clone, clap::Subcommand)]
pub(crate) enum ClusterCommand {
    /// Starts a database and nodes of it, and ends them on Ctrl-C.
    Up(UpArgs),
    /// Appends through the owner of a log, through another node, and by hints, by turns.
    Hop(rates::HopArgs),
    /// Reserves seats of a cinema on one node and on several: through one, all, the owner and never the owner, by
    /// turns.
    Cinema(cinema::CinemaArgs),
    /// Appends through one server alone and through two nodes, by turns.
    Share(rates::ShareArgs),
    /// Appends to stores of one, two and more databases, by turns: the rate, and the processor time of each event.
    Databases(rates::DatabasesArgs),
    /// Restarts the nodes one after the other under load: how many logs move, and for how long each is interrupted.
    Roll(roll::RollArgs),
}

/// Nodes to try out.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    size: SizeArgs,
    #[command(flatten)]
    program: ProgramArgs,
    /// Starts cinemas, by this program, instead of event stores.
    #[arg(long, value_name = "PROGRAM", conflicts_with = "gesta")]
    cinema: Option<PathBuf>,
}

/// How many.
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct SizeArgs {
    /// Servers.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=20))]
    nodes: u16,
    /// Logs of the store.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    logs: u16,
    /// Databases of the store, each on a PostgreSQL server of its own; the logs lie in them in turn.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    databases: u16,
}

impl SizeArgs {
    /// As many nodes and logs on one database.
    pub(crate) fn of(nodes: u16, logs: u16) -> Self {
        Self {
            nodes,
            logs,
            databases: 1,
        }
    }

    /// As many nodes of this program.
    pub(crate) fn plan(&self, program: &Program) -> Plan {
        Plan::nodes(program.clone(), self.nodes, self.logs, self.databases)
    }
}

/// The command. True if it is a result.
pub(crate) async fn run(command: &ClusterCommand, stop: &CancellationToken) -> Result<bool> {
    match command {
        ClusterCommand::Up(args) => up(args, stop).await,
        ClusterCommand::Hop(args) => rates::hop(args, stop).await,
        ClusterCommand::Cinema(args) => cinema::run(args, stop).await,
        ClusterCommand::Share(args) => rates::share(args, stop).await,
        ClusterCommand::Databases(args) => rates::databases(args, stop).await,
        ClusterCommand::Roll(args) => roll::run(args, stop).await,
    }
}

async fn up(args: &UpArgs, stop: &CancellationToken) -> Result<bool> {
    let (program, body, path) = match &args.cinema {
        Some(cinema) => (Program::cinema(cinema), SHOW, "/shows"),
        None => {
            let event = r#"{"events":[{"type":"hello","data":{}}]}"#;
            (
                Program::gesta(&args.program.find()?),
                event,
                "/streams/first",
            )
        }
    };
    let mut nodes = World::start(&args.size.plan(&program)).await?;
    for database in nodes.urls() {
        println!("database  {database}");
    }
    for node in &nodes.members {
        println!("{}    {}", node.name, node.server.url());
    }
    let first = nodes.members[0].server.url();
    println!(
        "\ncurl -d '{body}' -H 'content-type: application/json' {first}{path}\n\nCtrl-C ends all of them."
    );
    stop.cancelled().await;
    nodes.stop().await?;
    Ok(true)
}
