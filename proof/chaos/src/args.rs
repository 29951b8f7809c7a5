//! What is asked of the command, and what follows from it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gesta_load::machine::child::{Program, ProgramArgs};
use gesta_report::failure::{Result, fail};
use gesta_report::{ReportArgs, units};
use gesta_rig::Replication;
use serde::Serialize;

use crate::fault::{Fault, Scene, WorldKind};
use crate::history_file::HistoryArgs;
use crate::load::LoadKind;
use crate::world::{ANSWER_TIMEOUT, Databases, Plan};

/// Logs of nodes have other owners within this time once theirs died or hangs.
const OWNED_WITHIN: Duration = Duration::from_secs(15);
/// They have them within this time with `--any-time`.
const OWNED_AT_ALL_WITHIN: Duration = Duration::from_secs(180);
/// The load goes on this soon after all is healed.
const PROGRESS_WITHIN: Duration = Duration::from_secs(60);
/// It goes on this soon with `--any-time`.
const PROGRESS_AT_ALL_WITHIN: Duration = Duration::from_secs(300);

/// One fault per round, and a verdict on every promise that data can show.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct ChaosArgs {
    /// Worlds, one after the other.
    #[arg(long = "world", value_enum, value_delimiter = ',', default_values_t = [WorldKind::Postgres, WorldKind::Sqlite])]
    pub(crate) worlds: Vec<WorldKind>,
    /// Loads, one after the other in each world.
    #[arg(long = "load", value_enum, value_delimiter = ',', default_values_t = [LoadKind::Appends])]
    pub(crate) loads: Vec<LoadKind>,
    /// Only these faults. Default: those of the world that the load bears, but for some that last for minutes.
    #[arg(long, value_enum, value_delimiter = ',')]
    #[serde(skip)]
    pub(crate) faults: Vec<Fault>,
    /// Rounds of each world under each load, one fault each.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Goes on for so long in each world instead, shared equally among its loads.
    #[arg(long, conflicts_with = "rounds", value_parser = units::duration)]
    #[serde(skip)]
    pub(crate) duration: Option<Duration>,
    /// Rounds after which a load ends and everything is judged. Default: 20 on servers, 1 on nodes and where databases
    /// fail over.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) stretch: Option<u32>,
    /// Seed of faults, times and requests.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    /// Servers or nodes. Default: 3 nodes, 2 servers under Patroni and with --idle, else 1.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=20))]
    pub(crate) servers: Option<u16>,
    /// The servers of the worlds standbys and patroni are nodes of a cluster.
    #[arg(long)]
    pub(crate) nodes: bool,
    /// Logs of the store. Default: 16 on nodes, else 1, or two for each of several databases.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub(crate) logs: Option<u16>,
    /// Databases of the worlds several and standbys, each on PostgreSQL servers of its own; the logs lie in them in
    /// turn. Default: 3 and 1.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) databases: Option<u16>,
    /// Standbys of each database, and under Patroni.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=4))]
    pub(crate) standbys: u16,
    /// Standbys under Patroni are asynchronous and lag: commits are lost.
    #[arg(long)]
    pub(crate) lossy: bool,
    /// Only the first server gets appends until commits are lost; from then on as many more writers append through the
    /// others. No server is killed.
    #[arg(long)]
    pub(crate) idle: bool,
    /// With a synchronous standby: appends go on this soon after the database takes writes again.
    #[arg(long, default_value = "1s", value_parser = units::duration)]
    #[serde(skip)]
    pub(crate) within: Duration,
    /// Writers, or users of cinemas, shared equally among the servers.
    #[arg(long, default_value_t = 18, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub(crate) writers: u16,
    /// Pause of a writer between two appends.
    #[arg(long, default_value = "10ms", value_parser = units::duration)]
    #[serde(skip)]
    pub(crate) pause: Duration,
    /// Extra round trip between the last server and the database, for example 5ms.
    #[arg(long, default_value = "0", value_parser = units::duration)]
    #[serde(skip)]
    pub(crate) far: Duration,
    /// A folder on a small file system (a tmpfs of 1 GiB, say): SQLite files go there and the disk gets full. For
    /// PostgreSQL set TMPDIR to it too.
    #[arg(long, value_name = "FOLDER")]
    #[serde(skip)]
    pub(crate) small_disk: Option<PathBuf>,
    /// The cinema's program, for the loads seats and payments: `cinema --store URL --listen ADDRESS`.
    #[arg(long, value_name = "PROGRAM")]
    #[serde(skip)]
    pub(crate) cinema: Option<PathBuf>,
    /// Under the load payments, cinemas give back what is not paid for so long.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = units::duration)]
    #[serde(skip)]
    pub(crate) pay_within: Duration,
    /// The world postgres on a database of yours, which has no events and which nobody else uses: only our own servers
    /// and their connections are hurt.
    #[arg(long, value_name = "URL")]
    #[serde(skip)]
    pub(crate) store: Option<String>,
    /// No time counts as too long, as long as everything ends within minutes: for a machine that does other things,
    /// too. All times are told.
    #[arg(long)]
    #[serde(skip)]
    pub(crate) any_time: bool,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) history: HistoryArgs,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) program: ProgramArgs,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) report: ReportArgs,
}

impl ChaosArgs {
    /// Refuses what cannot be meant.
    pub(crate) fn check(&self) -> Result<()> {
        for world in &self.worlds {
            for load in &self.loads {
                self.fits(*world, *load)?;
            }
        }
        if self.store.is_some() && self.worlds != [WorldKind::Postgres] {
            return fail("--store is the world postgres alone: --world postgres");
        }
        if self.store.is_some() && self.loads.len() > 1 {
            return fail("--store takes one --load: the next one would find its events there");
        }
        if self.lossy && !self.worlds.contains(&WorldKind::Patroni) {
            return fail(
                "--lossy needs --world patroni; the world standbys loses commits by itself",
            );
        }
        Ok(())
    }

    /// Refuses what is not there on this machine.
    pub(crate) fn check_machine(&self) -> Result<()> {
        match self.small_disk.as_ref().filter(|folder| !folder.is_dir()) {
            Some(folder) => {
                let folder = folder.display();
                fail(format!("--small-disk {folder}: no such folder"))
            }
            None => Ok(()),
        }
    }

    /// Refuses a load that a world cannot bear.
    fn fits(&self, world: WorldKind, load: LoadKind) -> Result<()> {
        let scene = self.scene(world, load);
        let (named, is_lossy) = (world.name(), scene.is_lossy);
        if self.idle && (!is_lossy || scene.members < 2) {
            return fail("--idle needs a world that loses commits, and a second server");
        }
        if load.needs_cinemas() && self.cinema.is_none() {
            return fail(format!(
                "--load {} needs --cinema PROGRAM",
                gesta_report::name_of(load)
            ));
        }
        match (world, load) {
            (_, LoadKind::Steady) => {
                fail("a steady load is a command of its own: gesta-chaos steady --help")
            }
            (WorldKind::Sqlite, LoadKind::Payments) => {
                fail("payments are read by a second process, which a SQLite file does not bear")
            }
            (WorldKind::Standbys, _) if load != LoadKind::Groups => fail(format!(
                "the world {named} loses commits, which only --load groups can tell"
            )),
            (WorldKind::Patroni, _) if is_lossy && load != LoadKind::Groups => {
                fail("--lossy loses commits, which only --load groups can tell")
            }
            (WorldKind::Patroni, LoadKind::Appends | LoadKind::Groups) => Ok(()),
            (WorldKind::Patroni, _) => fail("under Patroni the load is appends or groups"),
            _ => Ok(()),
        }
    }

    /// As much of a world as decides which faults fit.
    pub(crate) fn scene(&self, world: WorldKind, load: LoadKind) -> Scene {
        Scene {
            world,
            load,
            members: self.members(world),
            are_nodes: world.has_nodes() || self.nodes && self.may_have_nodes(world),
            databases: self.count_of_databases(world),
            standbys: self.standbys,
            is_theirs: self.store.is_some(),
            is_lossy: world == WorldKind::Standbys || world == WorldKind::Patroni && self.lossy,
            has_small_disk: self.small_disk.is_some(),
        }
    }

    fn may_have_nodes(&self, world: WorldKind) -> bool {
        matches!(world, WorldKind::Standbys | WorldKind::Patroni)
    }

    fn members(&self, world: WorldKind) -> u16 {
        let usual = match world {
            WorldKind::Nodes | WorldKind::Several => 3,
            WorldKind::Patroni => 2,
            WorldKind::Standbys if self.nodes || self.idle => 2,
            _ => 1,
        };
        match world {
            WorldKind::Sqlite => 1,
            _ => self.servers.unwrap_or(usual),
        }
    }

    fn count_of_databases(&self, world: WorldKind) -> u16 {
        match world {
            WorldKind::Several => self.databases.unwrap_or(3),
            WorldKind::Standbys => self.databases.unwrap_or(1),
            _ => 1,
        }
    }

    /// The world, for these faults.
    pub(crate) fn plan(&self, scene: &Scene, faults: &[Fault], gesta: &Path) -> Plan {
        let program = match (scene.load, &self.cinema) {
            (LoadKind::Seats, Some(cinema)) => Program::cinema(cinema),
            (LoadKind::Payments, Some(cinema)) => {
                let mut program = Program::cinema(cinema);
                let within = format!("{}ms", self.pay_within.as_millis());
                program.arguments.extend(["--pay-within".into(), within]);
                program
            }
            _ => Program::gesta(gesta),
        };
        let databases = match (scene.world, &self.store) {
            (_, Some(url)) => Databases::Theirs(url.clone()),
            (WorldKind::Sqlite, _) => Databases::File,
            (WorldKind::Standbys, _) => Databases::Replicated {
                count: scene.databases,
                standbys: self.standbys,
            },
            (WorldKind::Patroni, _) => Databases::Patroni {
                members: self.standbys + 1,
                replication: match self.lossy {
                    true => Replication::Asynchronous,
                    false => Replication::Synchronous,
                },
            },
            _ => Databases::Alone(scene.databases),
        };
        let usual_logs = match scene.databases {
            _ if scene.world.has_nodes() => 16,
            1 => 1,
            // A database holds every second log, and with them streams whose groups keep their places elsewhere.
            databases => 2 * databases,
        };
        Plan {
            logs: self.logs.unwrap_or(usual_logs),
            are_nodes: scene.are_nodes,
            parts: Fault::parts_of(faults),
            far: self.far,
            // Short, so that rounds are.
            answer_timeout: (scene.world == WorldKind::Postgres).then_some(ANSWER_TIMEOUT),
            small_disk: self.small_disk.clone(),
            ..Plan::new(databases, program, scene.members)
        }
    }

    /// Rounds of a stretch.
    pub(crate) fn stretch_of(&self, scene: &Scene) -> u32 {
        let is_alone = matches!(scene.world, WorldKind::Sqlite | WorldKind::Postgres);
        match self.stretch {
            _ if scene.is_lossy || scene.world == WorldKind::Patroni => 1,
            Some(rounds) => rounds,
            // After each kill every show is read, and every answer judged.
            None if is_alone && !scene.load.needs_cinemas() => 20,
            None => 1,
        }
    }

    /// How soon all logs must have owners that live.
    pub(crate) fn owned_within(&self) -> Duration {
        match self.any_time {
            true => OWNED_AT_ALL_WITHIN,
            false => OWNED_WITHIN,
        }
    }

    /// How soon the load must go on once all is healed.
    pub(crate) fn progress_within(&self) -> Duration {
        match self.any_time {
            true => PROGRESS_AT_ALL_WITHIN,
            false => PROGRESS_WITHIN,
        }
    }

    /// For how long a probe is tried again that was not answered.
    pub(crate) fn probe_patience(&self) -> Duration {
        match self.any_time {
            true => OWNED_AT_ALL_WITHIN,
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        chaos: ChaosArgs,
    }

    fn checked(line: &str) -> std::result::Result<(), String> {
        let line = Line::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        line.chaos.check().map_err(|failure| failure.0)
    }

    #[test]
    fn a_folder_that_is_not_there_is_refused_by_its_option() {
        let line = Line::try_parse_from(["chaos", "--small-disk", "/no/where"]);
        let chaos = line.expect("an option").chaos;
        let why = chaos.check_machine().map_err(|failure| failure.0);
        assert_eq!(why, Err("--small-disk /no/where: no such folder".into()));
    }

    /// Goal: what cannot be had is refused before anything is started, with the rule.
    #[test]
    fn what_cannot_be_meant_is_refused() {
        for line in [
            "chaos",
            "chaos --world nodes,several --load appends,seats,payments,groups --cinema c",
            "chaos --world standbys --load groups --databases 2 --nodes",
            "chaos --world standbys --load groups --idle",
            "chaos --world patroni --lossy --load groups --idle",
            "chaos --world patroni --duration 20m",
            "chaos --world postgres --store postgres://somewhere/else",
        ] {
            assert_eq!(checked(line), Ok(()), "{line}");
        }
        for (line, why) in [
            ("chaos --world nodes --load seats", "--cinema"),
            (
                "chaos --world sqlite --load payments --cinema c",
                "second process",
            ),
            ("chaos --world standbys", "--load groups"),
            ("chaos --world patroni --lossy", "--load groups"),
            ("chaos --lossy", "--world patroni"),
            ("chaos --world postgres --servers 2 --idle", "loses commits"),
            (
                "chaos --world standbys --load groups --servers 1 --idle",
                "a second server",
            ),
            (
                "chaos --store postgres://somewhere/else",
                "--world postgres",
            ),
            (
                "chaos --world postgres --store postgres://h/x --load appends,groups",
                "one --load",
            ),
            ("chaos --load steady", "gesta-chaos steady"),
            ("chaos --rounds 5 --duration 5m", "cannot be used with"),
            ("chaos --rounds 0", "0 is not in"),
        ] {
            let refused = checked(line).expect_err(line);
            assert!(refused.contains(why), "{line}: {refused}");
        }
    }
}
