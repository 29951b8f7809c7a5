//! The kinds of faults: what each needs, where it fits, and what it excuses.
//!
//! Not here: how a fault is made and how it heals (`inflict`).

use clap::ValueEnum;
use gesta_report::failure::{Result, fail};
use gesta_report::name_of;
use gesta_rig::FakeClock;
use serde::Serialize;

use crate::load::LoadKind;
use crate::world::Parts;

/// A kind of world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum WorldKind {
    /// One server on a SQLite file.
    Sqlite,
    /// Servers, each for itself, on one PostgreSQL database.
    Postgres,
    /// Nodes of one PostgreSQL database, which forward to each other.
    Nodes,
    /// Nodes of a store that lies in several PostgreSQL databases.
    Several,
    /// A server or nodes on databases with standbys that lag: fail-overs lose commits.
    Standbys,
    /// Servers on a PostgreSQL cluster in the care of Patroni.
    Patroni,
}

impl WorldKind {
    /// Its name in tables.
    pub(crate) fn name(self) -> String {
        name_of(self)
    }

    /// True if its members are nodes without being told to be.
    pub(crate) fn has_nodes(self) -> bool {
        matches!(self, Self::Nodes | Self::Several)
    }
}

/// Where faults are to be made: as much of a world as decides which can.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scene {
    /// Its kind.
    pub(crate) world: WorldKind,
    /// What is asked of it.
    pub(crate) load: LoadKind,
    /// Members.
    pub(crate) members: u16,
    /// They are nodes of one cluster.
    pub(crate) are_nodes: bool,
    /// Databases.
    pub(crate) databases: u16,
    /// Standbys of each database.
    pub(crate) standbys: u16,
    /// The database is somebody else's.
    pub(crate) is_theirs: bool,
    /// The standbys lag when they are told to, and what they lack is lost.
    pub(crate) is_lossy: bool,
    /// There is a folder whose disk can be filled.
    pub(crate) has_small_disk: bool,
}

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// `kill -9` of a server; it is started again after a while, a node when others have its logs.
    ServerKill,
    /// `kill -9` of a server; it is started again at once.
    ServerKillQuick,
    /// `kill -9` of all servers but one, at once.
    ServersKill,
    /// A server is suspended, for seconds, and goes on.
    ServerHang,
    /// All servers are suspended for 20 seconds and go on in random order.
    ServersHang,
    /// A server is stopped in order and started again.
    ServerRestart,
    /// All servers are restarted in order, one after the other.
    ServersRestart,
    /// A server does not reach its databases; nodes reach each other.
    ServerWithoutDatabase,
    /// Nobody can call a node: connections are cut and refused. It can call the others.
    LinksCut,
    /// Links to a node stay open, but nothing arrives at either end.
    LinksSilent,
    /// What a node answers to others does not arrive; what they send does.
    LinksDeaf,
    /// Links to a node are there for half a second and cut for half a second, again and again.
    LinksFlap,
    /// One node does not reach one other: what it sends there does not arrive, or connections are cut and refused. The
    /// other one reaches it.
    LinkOneWay,
    /// A node reaches no other one and none reaches it; all reach the database.
    NodeWithoutPeers,
    /// The clocks of some servers are set by seconds, minutes or up to an hour, and may run a tenth fast or slow.
    ClockStep,
    /// `kill -9` of the database's process that appends; the database throws everybody out and recovers.
    BackendKill,
    /// The database's processes for Gesta are ended by an administrator.
    BackendTerminate,
    /// The process that appends is suspended for longer than Gesta waits: its statement lands after the reconnect.
    BackendPause,
    /// `kill -9` of the whole database; it is started again.
    DatabaseKill,
    /// An orderly restart of the database.
    DatabaseRestart,
    /// A database is suspended for 1 to 10 seconds.
    DatabaseHang,
    /// All databases are away for a minute, and a node dies meanwhile.
    DatabaseAwayNodeKill,
    /// One of several databases is killed and away for 10 seconds; the logs of the others go on.
    OneDatabaseAway,
    /// Connections to the database are cut.
    DatabaseCut,
    /// Connections to the database are cut and refused for a while.
    DatabaseRefuse,
    /// Every byte to and from the database takes longer.
    DatabaseDelay,
    /// Nothing passes to or from the database for a while; nothing is lost.
    DatabaseFreeze,
    /// Connections to the database fall silent, then break.
    DatabaseHalfOpen,
    /// Connections to the database fall silent and never speak again; new ones work.
    DatabaseSilent,
    /// An append is committed, its reply is lost.
    ReplyLost,
    /// A statement is held on its way for longer than Gesta waits, then lands.
    RequestHeld,
    /// Another session keeps an old snapshot open.
    SnapshotOpen,
    /// Another session locks the table of events for a while.
    TableLocked,
    /// Connections of clients to a server are cut.
    ClientsCut,
    /// Connections of clients to a server fall silent for a while; nothing is lost.
    ClientsFrozen,
    /// A server's answers to clients are lost, then their connections break.
    AnswersLost,
    /// The store is closed and opened again, as when its process is restarted in order.
    Reopen,
    /// No space is left where the database keeps its files; then there is again.
    DiskFull,
    /// `kill -9` of the cinema that gives back what is not paid; it is started again when others have its logs and its
    /// timers.
    TimersKill,
    /// The cinema that gives back what is not paid is suspended for longer than its lease, until another one does.
    TimersHang,
    /// Patroni is asked to make another member the primary.
    SwitchOver,
    /// `kill -9` of the primary's Patroni and of all processes of its server.
    PrimaryKill,
    /// `kill -9` of the server's first process; Patroni lives and starts the server again.
    PostmasterKill,
    /// The primary's Patroni hangs (SIGSTOP); its server lives and does not know that it is replaced.
    PatroniHang,
    /// The primary is killed, and a standby that lags is promoted: commits are lost.
    PrimaryLost,
    /// The primary goes on and nobody reaches it; a standby that lags is promoted: commits are lost.
    PrimaryCutOff,
    /// The primary is killed, and so is the standby in its place, after it has been worked with; the next one has
    /// nothing of what was stored there, nor of the history that began there.
    PrimaryLostTwice,
}

/// What a fault is done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    /// Servers, by signals and restarts.
    Servers,
    /// Links between nodes.
    Links,
    /// The clocks of servers.
    Clocks,
    /// Processes and sessions of databases.
    Databases,
    /// Connections of servers to databases.
    Connections,
    /// Connections of clients to servers.
    Clients,
    /// A store that this process has open.
    Store,
    /// The file system.
    Disk,
    /// The cinema that owns the timers.
    Timers,
    /// The primary, in the care of Patroni.
    Patroni,
    /// The primary, whose standbys are promoted by chaos.
    Primary,
}

impl Fault {
    /// What it is done to.
    pub(crate) fn victim(self) -> Victim {
        match self {
            Self::ServerKill
            | Self::ServerKillQuick
            | Self::ServersKill
            | Self::ServerHang
            | Self::ServersHang
            | Self::ServerRestart
            | Self::ServersRestart => Victim::Servers,
            Self::LinksCut
            | Self::LinksSilent
            | Self::LinksDeaf
            | Self::LinksFlap
            | Self::LinkOneWay
            | Self::NodeWithoutPeers => Victim::Links,
            Self::ClockStep => Victim::Clocks,
            Self::BackendKill
            | Self::BackendTerminate
            | Self::BackendPause
            | Self::DatabaseKill
            | Self::DatabaseRestart
            | Self::DatabaseHang
            | Self::DatabaseAwayNodeKill
            | Self::OneDatabaseAway
            | Self::SnapshotOpen
            | Self::TableLocked => Victim::Databases,
            Self::ServerWithoutDatabase
            | Self::DatabaseCut
            | Self::DatabaseRefuse
            | Self::DatabaseDelay
            | Self::DatabaseFreeze
            | Self::DatabaseHalfOpen
            | Self::DatabaseSilent
            | Self::ReplyLost
            | Self::RequestHeld => Victim::Connections,
            Self::ClientsCut | Self::ClientsFrozen | Self::AnswersLost => Victim::Clients,
            Self::Reopen => Victim::Store,
            Self::DiskFull => Victim::Disk,
            Self::TimersKill | Self::TimersHang => Victim::Timers,
            Self::SwitchOver | Self::PrimaryKill | Self::PostmasterKill | Self::PatroniHang => {
                Victim::Patroni
            }
            Self::PrimaryLost | Self::PrimaryCutOff | Self::PrimaryLostTwice => Victim::Primary,
        }
    }

    /// What must be there for it.
    pub(crate) fn parts(self) -> Parts {
        let victim = self.victim();
        Parts {
            clients: victim == Victim::Clients,
            databases: victim == Victim::Connections,
            links: victim == Victim::Links,
            clocks: victim == Victim::Clocks,
        }
    }

    /// What must be there for all of these.
    pub(crate) fn parts_of(all: &[Self]) -> Parts {
        let parts = all.iter().map(|fault| fault.parts());
        parts.fold(Parts::default(), Parts::and)
    }

    /// True if it can be made there, on this machine.
    pub(crate) fn fits(self, scene: &Scene) -> bool {
        use WorldKind::{Patroni, Sqlite, Standbys};
        let has_servers = !matches!(scene.world, Sqlite | Standbys | Patroni) && !scene.is_theirs;
        match self.victim() {
            Victim::Servers => match self {
                Self::ServersKill | Self::ServersHang | Self::ServersRestart => scene.members > 1,
                _ => scene.members > 0,
            },
            Victim::Links => scene.are_nodes && scene.members > 1,
            // A server with a wrong clock would store wrong times, for ever.
            Victim::Clocks => {
                scene.members > 0 && !scene.is_theirs && FakeClock::library().is_some()
            }
            Victim::Databases => match self {
                // Whether the other logs go on is asked of each log by itself, and of shows nobody knows where they
                // lie.
                Self::OneDatabaseAway => {
                    has_servers && scene.databases > 1 && scene.load == LoadKind::Appends
                }
                Self::DatabaseAwayNodeKill => has_servers && scene.are_nodes,
                _ => has_servers,
            },
            Victim::Connections => match self {
                Self::ServerWithoutDatabase => scene.members > 0 && has_connections(scene),
                _ => has_connections(scene),
            },
            Victim::Clients => scene.members > 0,
            Victim::Store => scene.load == LoadKind::Steady,
            Victim::Disk => scene.has_small_disk && !scene.is_theirs,
            Victim::Timers => scene.load == LoadKind::Payments,
            Victim::Patroni => match self {
                Self::SwitchOver | Self::PostmasterKill => {
                    scene.world == Patroni && !scene.is_lossy
                }
                _ => scene.world == Patroni,
            },
            Victim::Primary => match self {
                Self::PrimaryLostTwice => scene.world == Standbys && scene.standbys > 1,
                _ => scene.world == Standbys,
            },
        }
    }

    /// True if a world of this kind has it unless others are named. The rest takes minutes, or more than this machine.
    pub(crate) fn is_usual(self, scene: &Scene) -> bool {
        match (scene.world, scene.load) {
            // What a year in production has.
            (_, LoadKind::Steady) => matches!(
                self,
                Self::DatabaseCut
                    | Self::DatabaseFreeze
                    | Self::DatabaseDelay
                    | Self::Reopen
                    | Self::DatabaseKill
                    | Self::DatabaseRestart
            ),
            // In rapid succession: nothing that lasts for long.
            (WorldKind::Sqlite | WorldKind::Postgres, _) => !matches!(
                self,
                Self::DatabaseFreeze
                    | Self::ServersHang
                    | Self::ServerWithoutDatabase
                    | Self::ClockStep
            ),
            (WorldKind::Nodes | WorldKind::Several, _) => {
                matches!(
                    self.victim(),
                    Victim::Servers | Victim::Links | Victim::Clocks | Victim::Timers
                ) || matches!(
                    self,
                    Self::ServerWithoutDatabase
                        | Self::DatabaseRestart
                        | Self::DatabaseKill
                        | Self::DatabaseHang
                        | Self::DatabaseAwayNodeKill
                        | Self::OneDatabaseAway
                )
            }
            (WorldKind::Standbys, _) => self.victim() == Victim::Primary,
            (WorldKind::Patroni, _) => self.victim() == Victim::Patroni,
        }
    }

    /// The faults that were named, or the usual ones that fit.
    ///
    /// # Errors
    /// One of those named does not fit, or none does.
    pub(crate) fn wanted(named: &[Self], scene: &Scene) -> Result<Vec<Self>> {
        if let Some(fault) = named.iter().find(|fault| !fault.fits(scene)) {
            let (name, world, load) = (fault.name(), scene.world.name(), name_of(scene.load));
            return fail(format!(
                "--faults {name} does not fit the world {world} and the load {load} here"
            ));
        }
        if !named.is_empty() {
            return Ok(named.to_vec());
        }
        let all = Self::value_variants().iter().copied();
        let usual: Vec<Self> = all
            .filter(|fault| fault.fits(scene) && fault.is_usual(scene))
            .collect();
        match usual.is_empty() {
            true => fail(format!(
                "no fault fits the world {} here",
                scene.world.name()
            )),
            false => Ok(usual),
        }
    }

    /// True if clients may get *outcome unknown*: nobody was left to tell them, or no way to.
    pub(crate) fn excuses_unknown(self) -> bool {
        matches!(
            self.victim(),
            Victim::Servers | Victim::Clients | Victim::Patroni | Victim::Primary
        ) && self != Self::ServerHang
            && self != Self::ClientsFrozen
    }

    /// True if servers that are not hurt can go on: then appends through them must.
    pub(crate) fn leaves_others(self) -> bool {
        self != Self::ServersHang && !self.is_of_all()
    }

    /// True if it is of something that all servers share.
    fn is_of_all(self) -> bool {
        matches!(
            self.victim(),
            Victim::Databases | Victim::Disk | Victim::Patroni | Victim::Primary
        )
    }

    /// True if nodes die, so that their logs must be back within ten seconds.
    pub(crate) fn kills(self) -> bool {
        match self.victim() {
            Victim::Servers => match self {
                Self::ServerHang
                | Self::ServersHang
                | Self::ServerRestart
                | Self::ServersRestart => false,
                // A new fault of servers is taken for one that kills.
                _ => true,
            },
            Victim::Timers => self != Self::TimersHang,
            _ => false,
        }
    }

    /// How many logs may move at most, for another reason than balance, if the nodes that were hurt had so many.
    pub(crate) fn moves_max(self, of_hurt: u64) -> u64 {
        match self {
            Self::DatabaseAwayNodeKill | Self::ServersHang => of_hurt,
            Self::LinkOneWay => 0,
            _ => match self.victim() {
                Victim::Clocks | Victim::Databases => 0,
                // Nodes that are restarted, suspended or not heard give their logs away, and get others.
                Victim::Servers
                | Victim::Links
                | Victim::Connections
                | Victim::Clients
                | Victim::Store
                | Victim::Disk
                | Victim::Timers
                | Victim::Patroni
                | Victim::Primary => u64::MAX,
            },
        }
    }

    /// True if commits are lost that were acknowledged.
    pub(crate) fn loses_commits(self, scene: &Scene) -> bool {
        match self.victim() {
            Victim::Primary => true,
            Victim::Patroni => scene.is_lossy,
            _ => false,
        }
    }

    /// Its name in tables, as `--faults` takes it.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(|| name_of(self), |value| value.get_name().to_owned())
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

/// True if connections to a database go by proxies.
fn has_connections(scene: &Scene) -> bool {
    matches!(
        scene.world,
        WorldKind::Postgres | WorldKind::Nodes | WorldKind::Several
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(world: WorldKind, load: LoadKind, databases: u16) -> Scene {
        Scene {
            world,
            load,
            members: 3,
            are_nodes: world.has_nodes(),
            databases,
            standbys: 2,
            is_theirs: false,
            is_lossy: world == WorldKind::Standbys,
            has_small_disk: false,
        }
    }

    /// What happened: with cinemas on several databases the round with one database away always failed, because it
    /// needs appends to logs of the others.
    #[test]
    fn with_cinemas_no_single_database_is_away() {
        let away = Fault::OneDatabaseAway;
        for (world, load, databases, is_there) in [
            (WorldKind::Nodes, LoadKind::Appends, 1, false),
            (WorldKind::Several, LoadKind::Appends, 3, true),
            (WorldKind::Several, LoadKind::Seats, 3, false),
        ] {
            let scene = scene(world, load, databases);
            let faults = Fault::wanted(&[], &scene).expect("can be had");
            assert_eq!(faults.contains(&away), is_there, "{scene:?}");
            assert!(faults.contains(&Fault::DatabaseKill), "{scene:?}");
            let named = Fault::wanted(&[away, Fault::ServerKill], &scene);
            assert_eq!(named.is_ok(), is_there, "{scene:?}");
        }
    }

    /// What happened: tables named `server_kill_quick`, which `--faults` refuses.
    #[test]
    fn a_fault_is_told_as_it_is_typed() {
        assert_eq!(Fault::ServerKillQuick.name(), "server-kill-quick");
        for fault in Fault::value_variants() {
            let typed = Fault::from_str(&fault.to_string(), false);
            assert_eq!(typed.as_ref(), Ok(fault));
        }
    }

    /// Goal: on a database of somebody else only our own servers and their connections are hurt.
    #[test]
    fn what_is_theirs_is_left_alone() {
        let theirs = Scene {
            is_theirs: true,
            has_small_disk: true,
            ..scene(WorldKind::Postgres, LoadKind::Appends, 1)
        };
        for fault in Fault::value_variants() {
            let is_ours = matches!(
                fault.victim(),
                Victim::Servers | Victim::Connections | Victim::Clients
            );
            assert!(is_ours || !fault.fits(&theirs), "{}", fault.name());
        }
    }

    /// Goal: each fault is in the usual set of a world, so that none is forgotten.
    #[test]
    fn every_fault_has_a_world() {
        use WorldKind::{Nodes, Patroni, Postgres, Several, Sqlite, Standbys};
        let mut scenes = Vec::new();
        for world in [Sqlite, Postgres, Nodes, Several, Standbys, Patroni] {
            for load in [LoadKind::Appends, LoadKind::Payments, LoadKind::Steady] {
                let databases = if world == Several { 3 } else { 1 };
                scenes.push(Scene {
                    has_small_disk: true,
                    ..scene(world, load, databases)
                });
            }
        }
        for fault in Fault::value_variants() {
            let has_it = |scene: &Scene| fault.fits(scene) && fault.is_usual(scene);
            let needs_clocks = *fault == Fault::ClockStep && FakeClock::library().is_none();
            assert!(
                needs_clocks || scenes.iter().any(has_it),
                "{}",
                fault.name()
            );
        }
    }
}
