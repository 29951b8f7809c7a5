//! Finds out why a session does not answer: whether its statement takes long, or nobody works for it any more.
//!
//! Why: how long a statement may take says nothing about the connection. TCP tells whether the other end lives, but
//! that may be a proxy which has forgotten the connection, or behind which a server hangs. So the server is asked on
//! a new connection what the session does. Invariants: a session is lost only if the server that answers is its own and
//! does nothing for it, or has replaced its own; a server is silent only if it lets nobody in within the time that
//! connecting may take. Not here: what follows from that (`pool`); networks that are gone, which the time-outs of TCP
//! show (`config`).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::connect::connection::{Connection, read_timeline};
use crate::connect::hosts::{Hosts, Timeline};
use crate::connect::reach::ask_host;

const READ_BACKEND: &str = include_str!("../../sql/read_backend.sql");

const REPLACED: &str = "another server has taken over, or it was started again";
const ENDED: &str = "the server has ended the session";
const WAITS: &str = "the server waits for a statement, too";

/// Why a session does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Silence {
    /// The server works for the session, or does not tell.
    AtWork,
    /// The server does nothing for the session, for this reason: its answer will never arrive.
    SessionLost(&'static str),
    /// The server lets nobody in.
    ServerSilent,
}

/// Asks a server about a session.
#[derive(Debug)]
pub(crate) struct SessionWatch {
    hosts: Arc<Hosts>,
    host: usize,
    /// The process id of the backend.
    backend: i32,
    timeline: Option<Timeline>,
}

impl Connection {
    pub(crate) fn session_watch(&self) -> SessionWatch {
        SessionWatch {
            hosts: Arc::clone(&self.hosts),
            host: self.used.host,
            backend: self.session.backend,
            timeline: self.session.timeline,
        }
    }
}

impl SessionWatch {
    /// Asks the server why the session does not answer. A session that has waited for its client for less than
    /// `patience` is not lost: its answer may be on its way.
    pub(crate) async fn look(&self, patience: Duration) -> Silence {
        let (limit, begun, backend) = (self.hosts.timeout, Instant::now(), self.backend);
        let asking = ask_host(&self.hosts, self.host, move |client| async move {
            let timeline = read_timeline(&client).await;
            let params: [(&(dyn ToSql + Sync), Type); 1] = [(&backend, Type::INT4)];
            let rows = client.query_typed(READ_BACKEND, &params).await;
            (timeline, rows)
        });
        match timeout(limit, asking).await {
            Ok(Some((timeline, Ok(rows)))) => self.judge(timeline, rows.first(), patience),
            // The driver gives up connecting after the same time.
            Ok(None) if begun.elapsed() < limit => Silence::AtWork,
            Ok(Some((_, Err(_)))) => Silence::AtWork,
            Ok(None) | Err(_) => Silence::ServerSilent,
        }
    }

    fn judge(&self, found: Option<Timeline>, row: Option<&Row>, patience: Duration) -> Silence {
        match (self.timeline, found) {
            (Some(ours), Some(found)) if has_replaced(found, ours) => {
                Silence::SessionLost(REPLACED)
            }
            (Some(ours), Some(found)) if found == ours => match row {
                None => Silence::SessionLost(ENDED),
                Some(row) if waited(row).is_some_and(|waited| waited >= patience) => {
                    Silence::SessionLost(WAITS)
                }
                Some(_) => Silence::AtWork,
            },
            // Perhaps a proxy leads elsewhere now.
            _ => Silence::AtWork,
        }
    }
}

/// Tells whether the server that was found has taken the place of ours, or is ours, started again.
fn has_replaced(found: Timeline, ours: Timeline) -> bool {
    let order = |server: Timeline| (server.number, server.started);
    found.cluster == ours.cluster && order(found) > order(ours)
}

/// Returns for how long a session has waited for its client; `None` if it does something else, or the server does not
/// tell.
fn waited(row: &Row) -> Option<Duration> {
    let waits = row.try_get::<_, Option<bool>>("waits").ok()??;
    let for_ms = row.try_get::<_, Option<i64>>("for_ms").ok()??;
    let waited = Duration::from_millis(u64::try_from(for_ms).ok()?);
    waits.then_some(waited)
}

#[cfg(test)]
mod tests {
    use gesta_rig::{SilentHost, free_address};

    use super::*;
    use crate::config::Config;
    use crate::connect::connection::{Connector, Role};

    const HOUR: Duration = Duration::from_secs(3_600);

    /// Looks at a session of a host that is no server.
    fn watch(url: &str) -> SessionWatch {
        let config = Config::parse(url).expect("valid");
        SessionWatch {
            hosts: Arc::new(Hosts::new(&config).expect("fits")),
            host: 0,
            backend: 1,
            timeline: None,
        }
    }

    /// Goal: a statement may take as long as it likes; what nobody works for is lost, once an answer that is on its way
    /// has had time to arrive.
    #[tokio::test]
    async fn a_session_is_lost_once_nobody_works_for_it() {
        let Some(server) = gesta_rig::shared() else {
            return;
        };
        let url = format!("{}?connect_timeout=60", server.url());
        let config = Config::parse(&url).expect("valid");
        let connector = Connector::new(config).expect("fits");
        let one = connector.connect(Role::Admin).await.expect("connects");
        let watch = one.session_watch();
        assert_eq!(watch.look(HOUR).await, Silence::AtWork);
        let waits = Silence::SessionLost(WAITS);
        assert_eq!(watch.look(Duration::ZERO).await, waits);
        let client = Arc::clone(&one.client);
        let sleeping =
            tokio::spawn(async move { client.batch_execute("SELECT pg_sleep(3600)").await });
        let becomes = async |wanted: Silence| {
            let becomes = async { while watch.look(Duration::ZERO).await != wanted {} };
            let became = timeout(Duration::from_secs(60), becomes).await;
            became.unwrap_or_else(|_| panic!("never {wanted:?}"));
        };
        becomes(Silence::AtWork).await;
        let other = connector.connect(Role::Admin).await.expect("connects");
        let end = format!("SELECT pg_terminate_backend({})", one.session.backend);
        other.client.batch_execute(&end).await.expect("ended");
        sleeping.await.expect("ends").expect_err("was ended");
        becomes(Silence::SessionLost(ENDED)).await;
    }

    #[tokio::test]
    async fn a_server_is_silent_if_it_lets_nobody_in() {
        let host = SilentHost::start().await.expect("listens");
        let silent = watch(&format!("postgres://u@{}/d?connect_timeout=1", host.addr()));
        assert_eq!(silent.look(HOUR).await, Silence::ServerSilent);
        // Somebody refuses: that is an answer.
        let refusing = free_address().expect("a port");
        let refusing = watch(&format!("postgres://u@{refusing}/d?connect_timeout=60"));
        assert_eq!(refusing.look(HOUR).await, Silence::AtWork);
    }

    #[test]
    fn a_server_is_replaced_by_a_later_one_of_its_cluster() {
        let ours = Timeline {
            cluster: 7,
            number: 2,
            started: 5,
        };
        let server = |cluster, number, started| Timeline {
            cluster,
            number,
            started,
        };
        assert!(has_replaced(server(7, 3, 1), ours), "it was promoted");
        assert!(has_replaced(server(7, 2, 6), ours), "it was started again");
        for other in [ours, server(7, 1, 9), server(7, 2, 4), server(8, 3, 9)] {
            assert!(!has_replaced(other, ours), "{other:?}");
        }
    }
}
