//! The command line.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use gesta_cinema::application::Config;
use gesta_cinema::http::ServerConfig;
use gesta_cinema::shows::{Reads, Settings};

const CALLS: &str = "\
Calls:
  POST  /shows                          {\"showId\": \"<uuid>\", \"title\": \"…\", \"maxSeats\": 50}
  PATCH /shows/{showId}/seats/{seatNum} {\"action\": \"RESERVE\" | \"CANCEL_RESERVATION\"}
  GET   /shows/{showId}                 a show with its seats
  GET   /available-seats                ?after={showId}&limit={1-1000}: available seats per show
  GET   /health, /metrics

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
#[derive(Debug, Parser)]
#[command(name = "cinema", version, after_help = CALLS)]
pub(crate) struct Args {
    /// Where events are kept: sqlite:PATH, sqlite::memory: or postgres://USER:PASSWORD@HOST:PORT/DATABASE.
    #[arg(
        long,
        value_name = "URL",
        env = "CINEMA_STORE",
        hide_env_values = true,
        default_value = "sqlite:cinema-data/cinema.db"
    )]
    store: String,
    /// Address and port to listen on.
    #[arg(
        long,
        value_name = "ADDR",
        env = "CINEMA_LISTEN",
        default_value = "127.0.0.1:8080",
        value_parser = address
    )]
    listen: SocketAddr,
    /// Allow an address that is not loopback: anybody who reaches it can create shows and reserve seats.
    #[arg(long)]
    insecure: bool,
    /// Most commands that may wait for their commit, over all shows; beyond, they are refused with 503. Reads have the
    /// same room beside them.
    #[arg(long, value_name = "COMMANDS", env = "CINEMA_COMMANDS_MAX", default_value_t = 800,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    commands_max: u32,
    /// Most shows in memory; beyond, those used least leave and are loaded again when they are asked for.
    #[arg(long, value_name = "SHOWS", env = "CINEMA_ACTIVE_MAX", default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u32).range(1..))]
    active_max: u32,
    /// How long a show that nobody uses stays in memory: a number with ms, s, m or h.
    #[arg(long, value_name = "TIME", env = "CINEMA_IDLE_AFTER", default_value = "10m", value_parser = span)]
    idle_after: Duration,
    /// Write a snapshot of a show every so many events, so that it loads faster; 0: none.
    #[arg(
        long,
        value_name = "EVENTS",
        env = "CINEMA_SNAPSHOT_EVERY",
        default_value_t = 250
    )]
    snapshot_every: u64,
    /// Answer GET /shows/{showId} from this process's memory without confirming that no other process has changed the show.
    #[arg(long, env = "CINEMA_STALE_READS")]
    stale_reads: bool,
    /// What is logged to standard error: a level (error, warn, info, debug, trace), or target=level, joined by commas.
    #[arg(
        long,
        value_name = "FILTER",
        env = "CINEMA_LOG",
        default_value = "info"
    )]
    pub(crate) log: String,
}

impl Args {
    pub(crate) fn config(&self) -> Config {
        let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        Config {
            store: self.store.clone(),
            server: ServerConfig {
                insecure: self.insecure,
                ..ServerConfig::at(self.listen)
            },
            shows: Settings {
                commands_max: count(self.commands_max),
                active_max: count(self.active_max),
                idle_after: self.idle_after,
                snapshot_every: self.snapshot_every,
                reads: if self.stale_reads {
                    Reads::Stale
                } else {
                    Reads::Confirmed
                },
            },
        }
    }
}

/// An address as the operating system needs it: a name might stand for several.
fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "must be ADDRESS:PORT, such as 127.0.0.1:8080 or [::1]:8080".into())
}

/// A time with its unit, such as `500ms`, `10m`; not zero.
fn span(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let number: Option<u64> = number.parse().ok().filter(|number| *number > 0);
    let ms = number.zip(factor).and_then(|(n, f)| n.checked_mul(f));
    ms.map(Duration::from_millis)
        .ok_or_else(|| "must be a number above 0 with ms, s, m or h".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
        let args = Args::try_parse_from(["cinema", "--idle-after", "90s", "--stale-reads"]);
        let config = args.expect("valid").config();
        assert_eq!(config.shows.idle_after, Duration::from_secs(90));
        assert_eq!(config.shows.reads, Reads::Stale);
        assert!(config.server.listen.ip().is_loopback() && !config.server.insecure);
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [
            "--idle-after=5",
            "--idle-after=0s",
            "--idle-after=99999999999999999999h",
            "--commands-max=0",
            "--active-max=-1",
            "--listen=here",
            "--listen=8080",
            "--listen=localhost:8080",
            "--snapshot-every=often",
        ] {
            assert!(Args::try_parse_from(["cinema", wrong]).is_err(), "{wrong}");
        }
    }
}
