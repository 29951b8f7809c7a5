//! The hosts of the URL of the store: in which order they are asked, which one is given up, and which primary is out of
//! date.
//!
//! Why not the driver's list: it asks the hosts one after the other, always beginning with the first, so a first host
//! that hangs hides the others. Invariants: the order is decided by what was found, never by chance; a caller that
//! waits for an answer of a host that is given up learns it at once; a primary on an older timeline than one seen
//! before is not used. Not here: connecting (`reach`), what a connection is checked for (`connection`).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gesta_core::{Error, Result};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_postgres::config::{Host as HostName, LoadBalanceHosts, TargetSessionAttrs};

use tokio_postgres_rustls::MakeRustlsConnect;

use crate::config::Config;
use crate::config::password::{Passwords, Wanted};
use crate::tls;

/// One host of the URL.
pub(crate) struct Host {
    /// The configuration that connects to this host alone.
    pub(crate) driver: tokio_postgres::Config,
    /// The host and its port, for messages.
    pub(crate) name: String,
}

/// The hosts, with what this process has found out about them.
pub(crate) struct Hosts {
    hosts: Vec<Host>,
    pub(crate) tls: MakeRustlsConnect,
    /// How long connecting to one host and setting up the session may take.
    pub(crate) timeout: Duration,
    standing: Mutex<Standing>,
    given_up: Vec<watch::Sender<GivenUp>>,
    /// Counts how often a connection to the primary was made.
    reached: watch::Sender<u64>,
    /// The answers that are late, for each host.
    pub(crate) lateness: Vec<Lateness>,
}

/// How many answers of a host are late, and whether a task looks at the other hosts because of it.
#[derive(Debug, Default)]
pub(crate) struct Lateness {
    pub(crate) answers: AtomicUsize,
    pub(crate) looking: AtomicBool,
}

impl std::fmt::Debug for Hosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.hosts.iter().map(|host| &host.name);
        f.debug_list().entries(names).finish()
    }
}

/// How often a host was given up, and why the last time.
#[derive(Clone, Debug, Default)]
struct GivenUp {
    times: u64,
    reason: Arc<str>,
}

/// A use of a host, which lasts until the host is given up.
#[derive(Clone, Debug)]
pub(crate) struct HostUse {
    pub(crate) host: usize,
    times: u64,
    given_up: watch::Receiver<GivenUp>,
}

/// The database cluster to which a primary belongs, the timeline on which it is, and when it was started. Every
/// promotion begins a higher timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timeline {
    pub(crate) cluster: i64,
    pub(crate) number: i64,
    pub(crate) started: i64,
}

impl Timeline {
    /// Tells whether a server on this timeline was replaced by a server on timeline `newest` without knowing it.
    /// Timelines of different clusters cannot be compared.
    pub(crate) fn was_replaced_by(self, newest: Timeline) -> bool {
        self.cluster == newest.cluster && self.number < newest.number
    }
}

impl Hosts {
    /// Reads the hosts of a configuration.
    ///
    /// # Errors
    /// `InvalidArgument` if the numbers of hosts, addresses and ports do not fit together, or certificates cannot be
    /// read.
    pub(crate) fn new(config: &Config) -> Result<Self> {
        warn_of_unprotected(config);
        let hosts = split(&config.driver, &config.passwords)?;
        let several = hosts.len() > 1;
        let random = config.driver.get_load_balance_hosts() == LoadBalanceHosts::Random;
        let first = match random && several {
            true => rand::random_range(0..hosts.len()),
            false => 0,
        };
        Ok(Self {
            timeout: config.connect_timeout(),
            standing: Mutex::new(Standing::new(hosts.len(), first)),
            given_up: hosts.iter().map(|_| watch::Sender::default()).collect(),
            reached: watch::Sender::default(),
            lateness: hosts.iter().map(|_| Lateness::default()).collect(),
            tls: tls::connector(config.tls, config.root_certificates.as_deref())?,
            hosts,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.hosts.len()
    }

    pub(crate) fn get(&self, host: usize) -> &Host {
        &self.hosts[host]
    }

    /// Returns the hosts, the most promising one first.
    pub(crate) fn order(&self) -> Vec<usize> {
        self.standing().order()
    }

    /// Begins to use a host.
    pub(crate) fn begin(&self, host: usize) -> HostUse {
        let given_up = self.given_up[host].subscribe();
        let times = given_up.borrow().times;
        HostUse {
            host,
            times,
            given_up,
        }
    }

    /// Notes that the host is a primary and answers.
    ///
    /// # Errors
    /// `Unavailable` if a host with a higher timeline was seen before: then this host was replaced without knowing it.
    pub(crate) fn is_primary(&self, host: usize, timeline: Option<Timeline>) -> Result<()> {
        let mut standing = self.standing();
        if let Some(newest) = standing.is_primary(host, timeline) {
            let text = format!(
                "the server was replaced: it is a primary on timeline {}, and another host is on timeline {newest}",
                timeline.map_or(0, |timeline| timeline.number)
            );
            return Err(Error::unavailable(text));
        }
        drop(standing);
        self.reached.send_modify(|times| *times += 1);
        Ok(())
    }

    /// Waits until a moment, or until another caller has reached the primary, since a caller that could not need not
    /// wait any longer.
    pub(crate) async fn pause(&self, until: Instant) {
        let mut reached = self.reached.subscribe();
        tokio::select! {
            () = sleep_until(until) => {}
            // The sender is `self`.
            _ = reached.changed() => {}
        }
    }

    /// Notes that the host did not answer, refused, or lost a connection. From now on the others come first.
    pub(crate) fn disappointed(&self, host: usize) {
        self.standing().disappointed(host);
    }

    /// Gives a host up: every use of it ends, and the others come first. If there is one host only, nothing happens.
    pub(crate) fn give_up(&self, lost: &HostUse, reason: &str) {
        if self.hosts.len() == 1 {
            return;
        }
        let first = self.given_up[lost.host].send_if_modified(|given_up| {
            let first = given_up.times == lost.times;
            if first {
                given_up.times += 1;
                given_up.reason = reason.into();
            }
            first
        });
        if first {
            let host = &self.hosts[lost.host].name;
            tracing::warn!(host, reason, "the database host is given up");
            self.disappointed(lost.host);
        }
    }

    fn standing(&self) -> std::sync::MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostUse {
    /// Tells whether the host was given up.
    pub(crate) fn is_over(&self) -> bool {
        self.given_up.borrow().times != self.times
    }

    /// Waits until the host is given up, and returns the reason.
    pub(crate) fn over(&self) -> impl Future<Output = String> + Send + use<> {
        let (times, mut given_up) = (self.times, self.given_up.clone());
        async move {
            let ended = given_up.wait_for(|given_up| given_up.times != times).await;
            let reason = ended.ok().map(|given_up| given_up.reason.to_string());
            match reason {
                Some(reason) => reason,
                // The store was closed.
                None => std::future::pending().await,
            }
        }
    }
}

/// Why a host cannot be used.
#[derive(Clone, Debug)]
pub(crate) enum Unfit {
    /// The host did not answer for this long.
    Silent(Duration),
    /// The host is a standby. It may be promoted.
    Standby,
    /// Anything else went wrong.
    Failed(Error),
}

impl From<Error> for Unfit {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What was found out about the hosts. Pure.
#[derive(Debug)]
struct Standing {
    /// The number of the last disappointment by each host; 0 if there was none, or none since it was the primary.
    disappointments: Vec<u64>,
    count: u64,
    /// The host that was the primary last; in the beginning, the host to be asked first.
    primary: usize,
    /// The highest timeline that was seen.
    newest: Option<Timeline>,
}

impl Standing {
    fn new(hosts: usize, first: usize) -> Self {
        Self {
            disappointments: vec![0; hosts],
            count: 0,
            primary: first,
            newest: None,
        }
    }

    /// Returns the order of the hosts: first those that never disappointed, with the last primary at the beginning;
    /// then the others, of which the one that disappointed longest ago is first.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.disappointments.len()).collect();
        order.sort_by_key(|host| (self.disappointments[*host], *host != self.primary, *host));
        order
    }

    fn disappointed(&mut self, host: usize) {
        self.count += 1;
        self.disappointments[host] = self.count;
    }

    /// Notes that a host is the primary. If its timeline is older than the newest one, returns the newest one instead.
    fn is_primary(&mut self, host: usize, timeline: Option<Timeline>) -> Option<i64> {
        if let (Some(newest), Some(found)) = (self.newest, timeline)
            && found.was_replaced_by(newest)
        {
            self.disappointed(host);
            return Some(newest.number);
        }
        self.newest = timeline.or(self.newest);
        self.disappointments[host] = 0;
        self.primary = host;
        None
    }
}

/// Most different lists of hosts of which it is remembered that they were told of.
const TOLD_MAX: usize = 1_000;

/// Warns, once for each list of hosts, that nobody has said what protects the connections to them.
///
/// Here and not where stores are opened: read models, indexes, copies and imports connect to databases too. Commands,
/// which log errors only, log this target nevertheless.
fn warn_of_unprotected(config: &Config) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let Some(hosts) = config.unprotected_hosts() else {
        return;
    };
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.len() >= TOLD_MAX || !told.insert(hosts.clone()) {
        return;
    }
    drop(told);
    tracing::warn!(
        target: "gesta::unprotected",
        hosts,
        "sslmode=prefer does not check who answers, and may send events and passwords in the clear: say \
         sslmode=verify-full in the URL, or sslmode=disable on a network that you trust"
    );
}

/// Returns how to open plain connections to the hosts of a URL, in their order: a configuration of the driver for each,
/// with its password, and what encrypts them. For parts of Gesta that keep tables of their own in a database.
///
/// # Errors
/// `InvalidArgument` if the numbers of hosts, addresses and ports do not fit together, or certificates cannot be read.
pub fn connections(config: &Config) -> Result<(Vec<tokio_postgres::Config>, MakeRustlsConnect)> {
    let hosts = Hosts::new(config)?;
    let each = hosts.hosts.iter().map(|host| host.driver.clone());
    Ok((each.collect(), hosts.tls.clone()))
}

/// Makes one configuration for each host; they differ in the host only.
fn split(all: &tokio_postgres::Config, passwords: &Passwords) -> Result<Vec<Host>> {
    let (names, addresses, ports) = (all.get_hosts(), all.get_hostaddrs(), all.get_ports());
    let count = names.len().max(addresses.len());
    let wrong = |what: &str, found: usize| {
        let rule = format!(
            "must name as many {what} as hosts ({count}), or one port for all, found {found}"
        );
        Err(Error::invalid("store URL", rule))
    };
    if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
        return wrong("addresses (hostaddr)", addresses.len());
    }
    if ports.len() > 1 && ports.len() != count {
        return wrong("ports", ports.len());
    }
    // As in the driver, the user is that of the process if no user is named.
    let own = || std::env::var("USER").unwrap_or_default();
    let user = all.get_user().map_or_else(own, str::to_owned);
    let host = |index: usize| {
        let mut driver = without_hosts(all);
        let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
        driver.port(port);
        let mut name = String::new();
        if let Some(address) = addresses.get(index) {
            driver.hostaddr(*address);
            name = address.to_string();
        }
        match names.get(index) {
            Some(HostName::Tcp(host)) => {
                driver.host(host);
                name.clone_from(host);
            }
            #[cfg(unix)]
            Some(HostName::Unix(path)) => {
                driver.host_path(path);
                name = path.display().to_string();
            }
            None => {}
        }
        let wanted = Wanted {
            host: if name.starts_with('/') {
                "localhost"
            } else {
                &name
            },
            port,
            database: all.get_dbname().unwrap_or(&user),
            user: &user,
        };
        if let Some(password) = passwords.find(&wanted) {
            driver.password(password);
        }
        let name = match name.contains(':') {
            true => format!("[{name}]:{port}"),
            false => format!("{name}:{port}"),
        };
        Host { driver, name }
    };
    Ok((0..count).map(host).collect())
}

fn without_hosts(all: &tokio_postgres::Config) -> tokio_postgres::Config {
    let mut one = tokio_postgres::Config::new();
    if let Some(user) = all.get_user() {
        one.user(user);
    }
    if let Some(password) = all.get_password() {
        one.password(password);
    }
    if let Some(database) = all.get_dbname() {
        one.dbname(database);
    }
    if let Some(name) = all.get_application_name() {
        one.application_name(name);
    }
    if let Some(timeout) = all.get_connect_timeout() {
        one.connect_timeout(*timeout);
    }
    if let Some(timeout) = all.get_tcp_user_timeout() {
        one.tcp_user_timeout(*timeout);
    }
    if let Some(interval) = all.get_keepalives_interval() {
        one.keepalives_interval(interval);
    }
    if let Some(retries) = all.get_keepalives_retries() {
        one.keepalives_retries(retries);
    }
    one.keepalives(all.get_keepalives())
        .keepalives_idle(all.get_keepalives_idle())
        .ssl_mode(all.get_ssl_mode())
        .channel_binding(all.get_channel_binding())
        // Standbys are told apart by our own check, which also says so.
        .target_session_attrs(TargetSessionAttrs::Any);
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(number: i64) -> Option<Timeline> {
        Some(Timeline {
            cluster: 7,
            number,
            started: 0,
        })
    }

    #[test]
    fn who_disappoints_comes_last_until_the_others_have() {
        let mut standing = Standing::new(3, 0);
        assert_eq!(standing.order(), [0, 1, 2]);
        standing.disappointed(0);
        assert_eq!(
            standing.order(),
            [1, 2, 0],
            "the silent host is not asked first again"
        );
        assert_eq!(standing.is_primary(2, on(2)), None);
        assert_eq!(standing.order(), [2, 1, 0], "the last primary first");
        standing.disappointed(2);
        assert_eq!(standing.order(), [1, 0, 2]);
        standing.disappointed(1);
        assert_eq!(
            standing.order(),
            [0, 2, 1],
            "the one that disappointed longest ago"
        );
    }

    #[test]
    fn a_primary_that_was_replaced_is_not_used() {
        let mut standing = Standing::new(2, 0);
        assert_eq!(standing.is_primary(0, on(1)), None);
        assert_eq!(standing.is_primary(1, on(2)), None);
        assert_eq!(standing.is_primary(0, on(1)), Some(2));
        assert_eq!(standing.order(), [1, 0]);
        assert_eq!(standing.is_primary(0, on(3)), None);
        let rebuilt = Timeline {
            cluster: 8,
            number: 1,
            started: 0,
        };
        assert_eq!(
            standing.is_primary(1, Some(rebuilt)),
            None,
            "another cluster counts anew"
        );
        assert_eq!(
            standing.is_primary(1, None),
            None,
            "a server that does not tell is believed"
        );
    }

    #[test]
    fn each_host_has_a_configuration_of_its_own() {
        let config =
            Config::parse("postgres://u:se-cret@one:5,two:6/d?tcp_user_timeout=3").expect("valid");
        let hosts = split(&config.driver, &Passwords::None).expect("fits");
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["one:5", "two:6"]);
        for host in &hosts {
            assert_eq!(host.driver.get_hosts().len(), 1);
            assert_eq!(host.driver.get_password(), Some(&b"se-cret"[..]));
            assert_eq!(host.driver.get_dbname(), Some("d"));
            assert_eq!(host.driver.get_application_name(), Some("gesta"));
        }
        let mut odd = config.driver.clone();
        odd.port(1);
        assert!(
            split(&odd, &Passwords::None).is_err(),
            "three ports for two hosts"
        );
    }

    /// Goal: every use of a host ends when one of them gives it up, and the other hosts come first. A use that ended
    /// long ago cannot end the later ones.
    #[tokio::test]
    async fn a_host_that_is_given_up_comes_last() {
        let config = Config::parse("postgres://u@one,two/d").expect("valid");
        let hosts = Hosts::new(&config).expect("fits");
        hosts.is_primary(0, on(2)).expect("the first");
        let (one, other) = (hosts.begin(0), hosts.begin(0));
        assert_eq!(hosts.order(), [0, 1]);
        hosts.give_up(&one, "it waits");
        assert_eq!(hosts.order(), [1, 0]);
        assert_eq!(other.over().await, "it waits");
        let later = hosts.begin(0);
        hosts.is_primary(0, on(2)).expect("it answers again");
        hosts.give_up(&other, "it waits");
        assert!(!later.is_over());
        assert_eq!(hosts.order(), [0, 1]);
    }

    /// Goal: a pause after a failure ends when another connection reaches the primary, not because one did so before.
    #[tokio::test]
    async fn a_pause_ends_when_the_primary_is_reached() {
        let config = Config::parse("postgres://u@one,two/d").expect("valid");
        let hosts = Hosts::new(&config).expect("fits");
        hosts.is_primary(0, on(2)).expect("the first");
        let (begun, short) = (Instant::now(), Duration::from_millis(20));
        hosts.pause(begun + short).await;
        assert!(begun.elapsed() >= short);
        let long = Duration::from_secs(3_600);
        let mut pause = std::pin::pin!(hosts.pause(begun + long));
        assert!(futures::poll!(&mut pause).is_pending());
        hosts.is_primary(1, on(1)).expect_err("replaced");
        assert!(futures::poll!(&mut pause).is_pending());
        hosts.is_primary(1, on(3)).expect("newer");
        pause.await;
        assert!(begun.elapsed() < long);
    }
}
