//! A primary with standbys on this machine: streaming replication, promotion, and faults that lose commits.
//!
//! Members are numbered from 0, and a number keeps its port and folder, whether the member is the primary or a standby.
//! Member 0 begins as the primary. Nothing happens by itself: no member is promoted, and none follows a new primary,
//! unless a test says so. Commits are lost at a promotion after [`Cluster::hold_replication`], which suspends the
//! process of the primary that sends to one standby, so that what is committed from then on does not leave the primary.
//! (Delayed *replay* loses nothing: a standby replays all that it has received before it becomes the primary.)

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::{Result, Server, ServerConfig, wait_until};

/// A commit that changes nothing, and waits for standbys if commits do.
const COMMIT: &str = "SELECT pg_logical_emit_message(true, 'gesta-rig', '')";
/// Ends the session of [`COMMIT`] if it waits for standbys.
const END_IF_IT_WAITS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
     WHERE wait_event_type = 'IPC' AND wait_event = 'SyncRep' AND query LIKE '%gesta-rig%'";
/// How long a commit is looked at.
const LOOK: Duration = Duration::from_secs(3);

/// Whether a commit waits for standbys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// A commit waits for no standby. A promotion loses what the standby has not received.
    Asynchronous,
    /// A commit waits until any one standby has it on disk (`synchronous_standby_names`).
    Synchronous,
}

/// A primary and its standbys. Dropping it ends all servers.
#[derive(Debug)]
pub struct Cluster {
    members: Vec<Server>,
    primary: usize,
}

impl Cluster {
    /// Starts a primary (member 0) and its standbys (members 1 and more), blocking until all standbys follow it.
    /// Returns `None`, with a message on standard error, if PostgreSQL is not installed.
    ///
    /// # Errors
    /// If a server cannot be made or does not start; the text holds its log.
    pub fn start(standbys: usize, replication: Replication) -> Result<Option<Self>> {
        Self::start_with(ServerConfig::default(), standbys, replication)
    }

    /// Does what [`Cluster::start`] does, with this configuration for every member.
    ///
    /// # Errors
    /// The errors of [`Cluster::start`].
    pub fn start_with(
        config: ServerConfig,
        standbys: usize,
        replication: Replication,
    ) -> Result<Option<Self>> {
        // A stream that is held must not be opened again by a time-out, and a new primary is followed at once.
        let config = config
            .with("wal_receiver_timeout", "0")
            .with("wal_retrieve_retry_interval", "100ms")
            .with("wal_keep_size", "1GB");
        let Some(primary) = Server::start_with(config)? else {
            return Ok(None);
        };
        let mut cluster = Self {
            members: vec![primary],
            primary: 0,
        };
        for member in 1..=standbys {
            let standby = cluster.members[0].start_standby(&name(member))?;
            cluster.members.push(standby);
        }
        for member in 1..=standbys {
            cluster.wait_for_standby(member)?;
        }
        cluster.set_replication(replication)?;
        Ok(Some(cluster))
    }

    /// Returns the number of the primary, which is the member that was promoted last.
    #[must_use]
    pub fn primary(&self) -> usize {
        self.primary
    }

    /// Returns the server of a member.
    ///
    /// # Panics
    /// If there is no such member.
    #[must_use]
    pub fn server(&self, member: usize) -> &Server {
        &self.members[member]
    }

    /// Returns the server of a member, to kill, stop or restart it.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn server_mut(&mut self, member: usize) -> &mut Server {
        &mut self.members[member]
    }

    /// Returns the URL of the database `postgres` that names all members in the order of their numbers.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<SocketAddr> = self.members.iter().map(Server::addr).collect();
        self.url_through(&hosts)
    }

    /// Returns the URL of [`Cluster::url`] with other addresses: those of proxies, or of hosts that do not answer.
    #[must_use]
    pub fn url_through(&self, hosts: &[SocketAddr]) -> String {
        let own = self.members[0].addr().to_string();
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        self.members[0].url().replacen(&own, &hosts.join(","), 1)
    }

    /// Waits until a standby has received and replayed all that the primary has written so far.
    ///
    /// # Errors
    /// If the standby has not done so within a minute.
    pub fn wait_for_standby(&self, member: usize) -> Result<()> {
        let primary = &self.members[self.primary];
        let end = primary.query("SELECT pg_current_wal_flush_lsn()")?;
        let end = end.ok_or("the primary does not say where its log ends")?;
        let replayed = format!("SELECT coalesce(pg_last_wal_replay_lsn() >= '{end}', false)");
        let standby = &self.members[member];
        wait_until("the standby does not catch up", || {
            standby
                .query(&replayed)
                .is_ok_and(|answer| answer.as_deref() == Some("t"))
        })
        .map_err(|error| format!("{error}\n{}", standby.log()).into())
    }

    /// Stops the replication to a standby: from now on it receives nothing from the primary. With
    /// [`Replication::Synchronous`] and no other standby, commits wait. [`Cluster::release_replication`] ends this, and
    /// so does the promotion of a member.
    ///
    /// # Errors
    /// If the primary has no connection to this standby.
    pub fn hold_replication(&self, member: usize) -> Result<()> {
        self.suspend_sender(member, true)
    }

    /// Lets the standby receive again, beginning with what was held.
    ///
    /// # Errors
    /// If the primary has no connection to this standby.
    pub fn release_replication(&self, member: usize) -> Result<()> {
        self.suspend_sender(member, false)
    }

    fn suspend_sender(&self, member: usize, suspended: bool) -> Result<()> {
        let primary = &self.members[self.primary];
        let senders = format!(
            "SELECT pid FROM pg_stat_replication WHERE application_name = '{}' AND state = 'streaming'",
            name(member)
        );
        let sender = primary.query(&senders)?;
        let sender = sender.ok_or("the primary does not send to this standby")?;
        primary.suspend_backend(sender.parse()?, suspended)
    }

    /// Makes a standby the primary and waits until it accepts writes.
    ///
    /// The old primary is left as it is: running, frozen or dead. The new one waits for no standby, as nobody follows
    /// it yet; see [`Cluster::set_replication`].
    ///
    /// # Errors
    /// If the member is no standby, or is not promoted within a minute.
    pub fn promote(&mut self, member: usize) -> Result<()> {
        let server = &self.members[member];
        server.execute("ALTER SYSTEM SET synchronous_standby_names = ''")?;
        server.execute("SELECT pg_reload_conf()")?;
        server.execute("SELECT pg_promote(false)")?;
        wait_until("the standby is not promoted", || {
            server
                .query("SELECT pg_is_in_recovery()")
                .is_ok_and(|answer| answer.as_deref() == Some("f"))
        })?;
        self.primary = member;
        Ok(())
    }

    /// Takes a member for the primary again that was one before and has never become anything else: it goes on with the
    /// commits that it had, and without those of the members that were promoted in its place.
    ///
    /// # Errors
    /// If the member does not answer, or is a standby.
    pub fn return_to(&mut self, member: usize) -> Result<()> {
        let recovers = self.members[member].query("SELECT pg_is_in_recovery()")?;
        if recovers.as_deref() != Some("f") {
            return Err("the member is no primary".into());
        }
        self.primary = member;
        Ok(())
    }

    /// Makes a member that is not the primary a standby of it, whatever the member was before. The data of the member
    /// is replaced by a fresh copy of the primary's (`pg_basebackup`), so the member may have been a primary or have
    /// commits of its own.
    ///
    /// # Errors
    /// If the copy fails, or the standby does not start or does not catch up.
    pub fn follow(&mut self, member: usize) -> Result<()> {
        if member == self.primary {
            return Err("the primary follows nobody".into());
        }
        let (first, second) = self.members.split_at_mut(member.max(self.primary));
        let (low, high) = (&mut first[member.min(self.primary)], &mut second[0]);
        let (standby, primary) = match member < self.primary {
            true => (low, high),
            false => (high, low),
        };
        standby.restart_as_standby_of(primary, &name(member))?;
        self.wait_for_standby(member)
    }

    /// Sets on the primary whether commits wait for one standby, and waits until they do if they shall. That releases
    /// what [`Cluster::hold_replication`] holds.
    ///
    /// # Errors
    /// If the primary does not answer, or commits do not wait within a minute although they shall.
    pub fn set_replication(&self, replication: Replication) -> Result<()> {
        let others = (0..self.members.len()).filter(|member| *member != self.primary);
        let names = match replication {
            Replication::Asynchronous => String::new(),
            Replication::Synchronous => {
                format!(
                    "ANY 1 ({})",
                    others.map(name).collect::<Vec<_>>().join(", ")
                )
            }
        };
        let server = &self.members[self.primary];
        server.execute(&format!(
            "ALTER SYSTEM SET synchronous_standby_names = '{names}'"
        ))?;
        server.execute("SELECT pg_reload_conf()")?;
        // A reload reaches a new session only after the server has read its files again.
        let setting = "SELECT current_setting('synchronous_standby_names')";
        wait_until("the setting does not take effect", || {
            server
                .query(setting)
                .is_ok_and(|found| found.as_ref() == Some(&names))
        })?;
        match replication {
            Replication::Asynchronous => Ok(()),
            Replication::Synchronous => wait_until("commits do not wait for a standby", || {
                self.is_a_commit_seen_waiting()
            }),
        }
    }

    /// Makes a commit while nothing is sent to the standbys, and tells whether it was seen waiting for them. Sessions
    /// show the names of the standbys before another process of the server, which decides whether commits wait, has
    /// read them.
    fn is_a_commit_seen_waiting(&self) -> bool {
        let primary = &self.members[self.primary];
        let senders = primary.query("SELECT string_agg(pid::text, ' ') FROM pg_stat_replication");
        let senders = senders.ok().flatten().unwrap_or_default();
        let suspend = |suspended| {
            for sender in senders.split(' ').filter_map(|sender| sender.parse().ok()) {
                // A sender that has ended sends nothing.
                let _ = primary.suspend_backend(sender, suspended);
            }
        };
        suspend(true);
        std::thread::scope(|scope| {
            let commit = scope.spawn(|| primary.execute(COMMIT));
            let (begun, mut waits) = (Instant::now(), false);
            while !waits && !commit.is_finished() && begun.elapsed() < LOOK {
                waits = primary
                    .query(END_IF_IT_WAITS)
                    .is_ok_and(|ended| ended.is_some());
            }
            suspend(false);
            waits
        })
    }
}

/// Returns the name by which a primary knows a member.
fn name(member: usize) -> String {
    format!("member_{member}")
}
