//! To which server a request goes, and whether that is the node that owns the show.

use gesta_core::{StreamId, log_of};
use gesta_report::failure::{Result, fail};

use super::model::Shows;

/// Which server a user asks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum To {
    /// Each user keeps to one server; a read goes where the show was not changed last.
    #[default]
    Own,
    /// The owner of the show, as with clients that know it.
    Owner,
    /// Another server than the owner.
    Another,
}

/// How a request came to the node that owns the show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It was sent to that node.
    Owner,
    /// It went on from another node.
    Hop,
}

/// Where the shows of a run are owned, by the servers of a generator.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    /// The server that owns each log, if it is one that is asked; empty if nobody knows.
    owners: Vec<Option<usize>>,
    to: To,
}

impl Routes {
    /// `owners`: the node that owns each log; `asked`: the node that each server is.
    pub fn new(owners: &[usize], asked: &[usize], to: To) -> Result<Self> {
        let place = |node: &usize| asked.iter().position(|asked| asked == node);
        let owners: Vec<_> = owners.iter().map(place).collect();
        match to {
            To::Own => {}
            To::Owner if owners.iter().all(Option::is_some) => {}
            To::Another if asked.len() > 1 && owners.iter().all(Option::is_some) => {}
            _ => {
                return fail("to choose a node by its logs, all owners and another node are asked");
            }
        }
        Ok(Self { owners, to })
    }

    /// The server for a request of this user, unless that is the user's own.
    pub fn server(&self, shows: &Shows, show: u32, user: usize) -> Option<usize> {
        let owner = match self.to {
            To::Own => None,
            To::Owner | To::Another => self.owner(shows, show)?,
        }?;
        if self.to == To::Owner {
            return Some(owner);
        }
        let servers = self.owners.iter().flatten().max()? + 1;
        Some((owner + 1 + user % (servers - 1).max(1)) % servers)
    }

    /// How a request to this server comes to the owner of the show, if that is known.
    pub fn arrival(&self, shows: &Shows, show: u32, server: usize) -> Option<Arrival> {
        let owner = self.owner(shows, show)?;
        Some(match owner == Some(server) {
            true => Arrival::Owner,
            false => Arrival::Hop,
        })
    }

    /// The server that owns a show; within, none if it is not asked.
    fn owner(&self, shows: &Shows, show: u32) -> Option<Option<usize>> {
        let logs = u16::try_from(self.owners.len()).ok()?;
        let stream = StreamId::new(format!("show-{}", shows.id(show))).ok()?;
        let log = log_of(&stream, logs);
        self.owners.get(usize::from(log.0)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWS: Shows = Shows { run: 7, seats: 3 };

    #[test]
    fn requests_go_to_the_owner_or_to_another_one() {
        let owners: Vec<usize> = (0..16).map(|log| log % 3).collect();
        let to = |to| Routes::new(&owners, &[0, 1, 2], to).unwrap();
        let (own, owner, another) = (to(To::Own), to(To::Owner), to(To::Another));
        let mut arrivals = Vec::new();
        for show in 0..100 {
            let server = owner.server(&SHOWS, show, 5).unwrap();
            assert_eq!(owner.arrival(&SHOWS, show, server), Some(Arrival::Owner));
            for user in 0..4 {
                let server = another.server(&SHOWS, show, user).unwrap();
                assert!(server < 3);
                assert_eq!(another.arrival(&SHOWS, show, server), Some(Arrival::Hop));
            }
            assert_eq!(own.server(&SHOWS, show, 5), None);
            arrivals.push(own.arrival(&SHOWS, show, 0) == Some(Arrival::Hop));
        }
        let hops = arrivals.iter().filter(|hops| **hops).count();
        assert!((50..80).contains(&hops), "{hops} of 100");
    }

    #[test]
    fn a_server_that_is_asked_alone_owns_a_part() {
        let through_last = Routes::new(&[0, 1, 2], &[2], To::Own).unwrap();
        let arrivals = (0..100).map(|show| through_last.arrival(&SHOWS, show, 0));
        let arrivals: Vec<_> = arrivals.collect();
        assert!(arrivals.contains(&Some(Arrival::Owner)) && arrivals.contains(&Some(Arrival::Hop)));
        assert!(Routes::new(&[0, 1, 2], &[2], To::Owner).is_err());
        assert!(Routes::new(&[0, 0], &[0], To::Another).is_err());
        assert_eq!(Routes::default().arrival(&SHOWS, 1, 0), None);
    }
}
