//! Faults of the cinema that owns the timers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gesta_load::machine::http::Connection;
use gesta_load::random::Random;
use gesta_report::failure::{Result, fail};
use hyper::Method;
use tokio::time::sleep;

use super::{Field, seconds};
use crate::fault::Fault;
use crate::load::payments;

/// The line by which a cinema that owns the timers says so among its metrics.
const OWNS_TIMERS: &str = "cinema_unpaid_reservations_owned 1";
/// How long it may take until one says so, if logs need not have owners later.
const OWNER_WITHIN: Duration = Duration::from_secs(60);
/// How long a cinema may take to tell its metrics.
const METRICS_WITHIN: Duration = Duration::from_secs(5);
/// How often it is asked for.
const LOOK: Duration = Duration::from_millis(50);

impl Field<'_> {
    /// Kills or suspends the owner of the timers until another cinema has them.
    pub(super) async fn hurt_timers(
        &mut self,
        fault: Fault,
        random: &mut Random,
    ) -> Result<Vec<usize>> {
        let hurt = vec![self.owner_of_timers(None).await?];
        if fault == Fault::TimersKill {
            self.kill(&hurt).await?;
            if let Some(owners) = self.owners {
                owners.complete(self.owned_within).await?;
            }
            if self.world.members.len() > 1 {
                self.owner_of_timers(Some(hurt[0])).await?;
            }
            self.launch(&hurt).await?;
            return Ok(hurt);
        }
        if fault != Fault::TimersHang {
            return fail(format!("{} is nothing of timers", fault.name()));
        }
        let (begun, time) = (Instant::now(), payments::LEASE + seconds(random, 8));
        let generations = self.suspend(&hurt).await?;
        // Else the one that is woken might find itself the owner still, and nothing would be tried.
        self.owner_of_timers(Some(hurt[0])).await?;
        sleep(time.saturating_sub(begun.elapsed())).await;
        self.wake(&hurt, &generations, random).await;
        Ok(hurt)
    }

    /// Waits until a cinema owns the timers, which is not the one that is hurt; gives it.
    async fn owner_of_timers(&self, hurt: Option<usize>) -> Result<usize> {
        let all = self
            .world
            .members
            .iter()
            .map(|member| member.server.address());
        let others: Vec<_> = all
            .enumerate()
            .filter(|(at, _)| Some(*at) != hurt)
            .collect();
        owner_of_timers(&others, OWNER_WITHIN.max(self.owned_within)).await
    }
}

/// Waits until one of these cinemas owns the timers; gives its number.
async fn owner_of_timers(of: &[(usize, SocketAddr)], within: Duration) -> Result<usize> {
    let begun = Instant::now();
    loop {
        for (number, address) in of {
            let asked = async {
                let mut connection = Connection::open(*address).await?;
                connection.ask(Method::GET, "/metrics", Bytes::new()).await
            };
            let answer = tokio::time::timeout(METRICS_WITHIN, asked).await;
            if let Ok(Ok((200, body))) = answer
                && owns_timers(&String::from_utf8_lossy(&body))
            {
                return Ok(*number);
            }
        }
        if begun.elapsed() > within {
            let numbers: Vec<usize> = of.iter().map(|(number, _)| *number).collect();
            return fail(format!(
                "none of the cinemas {numbers:?} owns the timers after {within:?}"
            ));
        }
        sleep(LOOK).await;
    }
}

/// True if these are the metrics of the cinema that owns the timers.
fn owns_timers(metrics: &str) -> bool {
    metrics.lines().any(|line| line == OWNS_TIMERS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};

    fn page(help: &str, value: &str) -> String {
        format!(
            "# HELP cinema_unpaid_reservations_owned {help}.\n\
             # TYPE cinema_unpaid_reservations_owned gauge\n\
             cinema_unpaid_reservations_owned {value}\n\
             # EOF\n"
        )
    }

    /// A cinema that answers each question with the next of these pages, and in the end always with the last.
    fn cinema(pages: &[&str]) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut pages: Vec<String> = pages.iter().map(|value| page("Is 1", value)).collect();
        pages.reverse();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let head = BufReader::new(&connection).lines();
                head.map_while(std::result::Result::ok)
                    .take_while(|line| !line.is_empty())
                    .for_each(drop);
                let page = match pages.len() {
                    1 => pages[0].clone(),
                    _ => pages.pop().unwrap(),
                };
                let length = page.len();
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{page}");
                connection.write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    /// Goal: a fault of the owner of the timers is over only when another one owns them, and it is a finding if none
    /// does.
    #[tokio::test]
    async fn another_cinema_must_take_the_timers_over() {
        let cinemas = [(1, cinema(&["0"])), (2, cinema(&["0", "0", "1"]))];
        let owner = owner_of_timers(&cinemas, Duration::from_secs(60)).await;
        assert_eq!(owner.unwrap(), 2);
        let failure = owner_of_timers(&cinemas[..1], Duration::ZERO).await;
        let told = failure.unwrap_err().to_string();
        assert!(told.contains("[1] owns the timers"), "{told}");
    }

    /// What happened: the help of the metric, which each cinema tells, was taken for its value, so the cinema that was
    /// hurt was always the first.
    #[test]
    fn only_the_cinema_that_owns_the_timers_is_taken_for_their_owner() {
        for help in [
            "1 in the process that gives back",
            "Is 1 in the process that gives back",
        ] {
            assert!(owns_timers(&page(help, "1")), "{help}");
            for value in ["0", "10"] {
                assert!(!owns_timers(&page(help, value)), "{help}, {value}");
            }
        }
    }
}
