//! The settings of the application, on the command line or by environment variables.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Parser, value_parser};
use gesta::units::Span;

const EXIT_CODES: &str = "\
Exit codes:
  0    stopped by Ctrl-C or SIGTERM, after running requests were answered
  1    another failure
  2    wrong usage or an invalid value
  5    the store is unavailable: try again
  7    stored data is damaged
  130  stopped at once by a second Ctrl-C";

/// A cinema: shows whose seats are reserved and given back. The reference application of Gesta.
///
/// Shows are kept in memory as entities; what happens to them is stored as events, on an embedded SQLite file or on
/// PostgreSQL. Nothing is answered before it is stored.
#[derive(Debug, Clone, Parser)]
#[command(name = "cinema", version, after_help = EXIT_CODES)]
pub struct Config {
    /// Where events are kept: sqlite:PATH, sqlite::memory: or postgres://USER:PASSWORD@HOST:PORT/DATABASE.
    #[arg(
        long,
        value_name = "URL",
        env = "CINEMA_STORE",
        hide_env_values = true,
        default_value = "sqlite:cinema-data/cinema.db"
    )]
    pub store: String,
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDR", env = "CINEMA_LISTEN", default_value = "127.0.0.1:8080",
        value_parser = address)]
    pub listen: SocketAddr,
    /// Allow an address that is not loopback: anybody who reaches it can create shows and reserve seats.
    #[arg(long)]
    pub insecure: bool,
    /// Most commands that may wait for their commit, over all shows; beyond, they are refused with 503. Reads have the
    /// same room beside them.
    #[arg(long, value_name = "COMMANDS", env = "CINEMA_COMMANDS_MAX", default_value = "800",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    pub commands_max: usize,
    /// Most shows in memory; beyond, those used least leave and are loaded again when they are asked for.
    #[arg(long, value_name = "SHOWS", env = "CINEMA_ACTIVE_MAX", default_value = "1000000",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=4_294_967_295))]
    pub active_max: usize,
    /// How long a show that nobody uses stays in memory, such as 90s or 10m.
    #[arg(long, value_name = "TIME", env = "CINEMA_IDLE_AFTER", default_value = "10m", value_parser = span)]
    pub idle_after: Duration,
    /// Write a snapshot of a show every so many events, so that it loads faster; 0: none.
    #[arg(long, value_name = "EVENTS", env = "CINEMA_SNAPSHOT_EVERY", default_value = "250",
        value_parser = value_parser!(u64))]
    pub snapshot_every: u64,
    /// Answer GET /shows/{showId} from this process's memory without confirming that no other process has changed the
    /// show.
    #[arg(long, env = "CINEMA_STALE_READS")]
    pub stale_reads: bool,
    /// Give a reservation back that is not paid for this long, such as 30m. Without it reservations stay.
    #[arg(long, value_name = "TIME", env = "CINEMA_PAY_WITHIN", value_parser = span)]
    pub pay_within: Option<Duration>,
    /// Make this process one of several nodes on a PostgreSQL database: the address and port at which the others reach
    /// it, as they know it.
    #[arg(long, value_name = "ADDR", env = "CINEMA_NODE", value_parser = address,
        requires = "cluster_secret_file")]
    pub node: Option<SocketAddr>,
    /// Where the other nodes reach this one, if it is not at --node: behind a proxy, say.
    #[arg(long, value_name = "ADDR", env = "CINEMA_ADVERTISE", requires = "node")]
    pub advertise: Option<String>,
    /// A file with the secret that all nodes share, at least 16 bytes.
    #[arg(long, value_name = "FILE", env = "CINEMA_CLUSTER_SECRET_FILE")]
    pub cluster_secret_file: Option<PathBuf>,
    /// What is logged to standard error: a level (error, warn, info, debug, trace), or target=level, joined by commas.
    #[arg(
        long,
        value_name = "FILTER",
        env = "CINEMA_LOG",
        default_value = "info"
    )]
    pub log: String,
    /// A connection that does not bring the whole head of a request for this long is closed.
    #[arg(skip = Duration::from_secs(75))]
    pub connection_idle_max: Duration,
    /// How long a command or a read may wait for the node that owns its show, and for the answer of that node.
    #[arg(skip = Duration::from_secs(10))]
    pub forward_within: Duration,
    /// How long a node that is stopped hands its logs over to the others.
    #[arg(skip = Duration::from_secs(10))]
    pub leave_within: Duration,
}

/// Reads an address as the operating system needs it: a name might stand for several addresses.
fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "must be ADDRESS:PORT, such as 127.0.0.1:8080 or [::1]:8080".into())
}

fn span(text: &str) -> Result<Duration, String> {
    match text.parse::<Span>()? {
        Span(Duration::ZERO) => Err("must be more than 0".into()),
        Span(span) => Ok(span),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Config::command().debug_assert();
        let config = Config::try_parse_from(["cinema", "--idle-after", "90s", "--stale-reads"]);
        let config = config.expect("valid");
        assert_eq!(config.idle_after, Duration::from_secs(90));
        assert!(config.stale_reads);
        assert!(config.listen.ip().is_loopback() && !config.insecure);
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [
            "--idle-after=5",
            "--idle-after=0s",
            "--pay-within=0s",
            "--idle-after=99999999999999999999h",
            "--commands-max=0",
            "--active-max=-1",
            "--listen=here",
            "--listen=8080",
            "--listen=localhost:8080",
            "--snapshot-every=often",
            "--node=127.0.0.1:2114",
        ] {
            assert!(
                Config::try_parse_from(["cinema", wrong]).is_err(),
                "{wrong}"
            );
        }
    }
}
