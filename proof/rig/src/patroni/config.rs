//! The configuration file of one member. Pure.

use std::net::SocketAddr;
use std::path::Path;

use crate::Replication;

/// The configuration with which a cluster is started.
#[derive(Debug, Clone)]
pub struct PatroniConfig {
    /// How many servers there are, each with its own Patroni.
    pub members: usize,
    /// Whether Patroni keeps a synchronous standby (`synchronous_mode`).
    pub replication: Replication,
    /// Patroni's `maximum_lag_on_failover`, in bytes.
    pub lag_bytes_max: u64,
    /// The settings of PostgreSQL, each with its name and value.
    pub settings: Vec<(String, String)>,
}

impl PatroniConfig {
    /// Returns a configuration with three members and the settings that the manual of Gesta advises.
    #[must_use]
    pub fn new(replication: Replication) -> Self {
        let settings = [("wal_sender_timeout", "5s"), ("max_connections", "60")];
        Self {
            members: 3,
            replication,
            lag_bytes_max: 1 << 20,
            settings: settings.map(|(n, v)| (n.to_owned(), v.to_owned())).into(),
        }
    }
}

/// The configuration of one member.
pub(super) struct MemberFile<'a> {
    pub(super) name: &'a str,
    pub(super) etcd: SocketAddr,
    pub(super) api: SocketAddr,
    pub(super) server: SocketAddr,
    pub(super) home: &'a Path,
    pub(super) binaries: &'a Path,
}

impl MemberFile<'_> {
    /// Returns the text of the file (YAML). `ttl` is the least that Patroni accepts; the other times are short for
    /// tests.
    ///
    /// Patroni talks to etcd by its version 2 interface. By version 3, a Patroni before 3.0.3 that hung for longer than
    /// `ttl` overwrites the lock of its successor when it goes on (patroni/patroni#2689), and what the successor
    /// acknowledged is lost.
    pub(super) fn text(&self, config: &PatroniConfig) -> String {
        let settings = config.settings.iter();
        let settings: Vec<String> = settings.map(|(n, v)| format!("{n}: \"{v}\"")).collect();
        format!(
            r#"scope: gesta
name: {name}
etcd:
  host: {etcd}
restapi:
  listen: {api}
  connect_address: {api}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 1
    retry_timeout: 3
    maximum_lag_on_failover: {lag}
    synchronous_mode: {synchronous}
    postgresql:
      use_pg_rewind: true
      use_slots: true
      parameters: {{{settings}}}
  initdb: [encoding: UTF8, locale: C.UTF-8, no-sync, data-checksums]
postgresql:
  listen: {server}
  connect_address: {server}
  data_dir: {home}/data
  bin_dir: {binaries}
  pgpass: {home}/pgpass
  authentication:
    superuser: {{username: postgres, password: unused}}
    replication: {{username: replicator, password: unused}}
    rewind: {{username: postgres, password: unused}}
  parameters: {{unix_socket_directories: ""}}
  pg_hba: [host all all 127.0.0.1/32 trust, host replication all 127.0.0.1/32 trust]
  remove_data_directory_on_rewind_failure: true
  remove_data_directory_on_diverged_timelines: true
watchdog: {{mode: "off"}}
"#,
            name = self.name,
            etcd = self.etcd,
            api = self.api,
            lag = config.lag_bytes_max,
            synchronous = config.replication == Replication::Synchronous,
            settings = settings.join(", "),
            server = self.server,
            home = self.home.display(),
            binaries = self.binaries.display(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_what_is_wanted() {
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let member = MemberFile {
            name: "member_1",
            etcd: at(1),
            api: at(2),
            server: at(3),
            home: Path::new("/home"),
            binaries: Path::new("/bin"),
        };
        let text = member.text(&PatroniConfig::new(Replication::Synchronous));
        for line in [
            "name: member_1",
            "  host: 127.0.0.1:1",
            "    synchronous_mode: true",
            "    maximum_lag_on_failover: 1048576",
            "      parameters: {wal_sender_timeout: \"5s\", max_connections: \"60\"}",
            "  listen: 127.0.0.1:3",
            "  data_dir: /home/data",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let text = member.text(&PatroniConfig::new(Replication::Asynchronous));
        assert!(text.contains("synchronous_mode: false"));
    }
}
