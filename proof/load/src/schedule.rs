//! When requests are intended: stretches of load, one after the other, and the places of requests in them.

use std::time::Duration;

use tokio::time::Instant;

/// How long after its end the backlog of the last stretch is still sent.
const GRACE: Duration = Duration::from_secs(1);
/// How long after the end of a closed loop the requests are still sent that its users have begun. There is no backlog,
/// so this ends only the wait for a server that takes no connections.
const GRACE_OF_CLOSED: Duration = Duration::from_secs(60);

/// Pause of a user of a closed loop after a request that was refused as overloaded or not answered, so that a server
/// that is full or away is not asked as fast as a processor can.
pub const PAUSE_OF_CLOSED: Duration = Duration::from_millis(50);

/// How requests come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Drive {
    /// So many users, each with the next request as soon as the last is answered.
    Closed(usize),
    /// So many requests a second, shared by so many users.
    Open {
        /// Requests a second.
        rate: f64,
        /// Users.
        users: usize,
    },
}

/// How long a stretch of load is, and how its requests come.
#[derive(Debug, Clone, Copy)]
pub struct Stretch {
    /// How requests come.
    pub drive: Drive,
    /// The first part, kept apart from the figures.
    pub warm_up: Duration,
    /// The measured part.
    pub duration: Duration,
}

/// A stretch of load with its times. `P` is what else belongs to it.
#[derive(Debug, Clone, Copy)]
pub struct Window<P> {
    /// Its number, from 0.
    pub number: usize,
    /// What else belongs to it.
    pub phase: P,
    /// The first request is intended here.
    pub begin: Instant,
    /// The measured part begins.
    pub from: Instant,
    /// No request is intended from here on.
    pub end: Instant,
    /// Nothing of it is sent from here on.
    pub until: Instant,
}

/// The times of stretches without pauses between them.
pub fn windows<P: Copy>(
    phases: &[P],
    begin: Instant,
    stretch: impl Fn(&P) -> Stretch,
) -> Vec<Window<P>> {
    let mut begin = begin;
    let mut all = Vec::new();
    for (number, phase) in phases.iter().enumerate() {
        let stretch = stretch(phase);
        let from = begin + stretch.warm_up;
        let end = from + stretch.duration;
        let is_last = number + 1 == phases.len();
        let until = match stretch.drive {
            Drive::Closed(_) => end + GRACE_OF_CLOSED,
            Drive::Open { .. } if is_last => end + GRACE,
            Drive::Open { .. } => end,
        };
        all.push(Window {
            number,
            phase: *phase,
            begin,
            from,
            end,
            until,
        });
        begin = end;
    }
    all
}

impl<P> Window<P> {
    /// The start of this number in a strict schedule, whatever has become of the earlier ones; none after the end, and
    /// none of a rate of 0.
    pub fn start(&self, number: u64, rate: f64) -> Option<Instant> {
        let after = Duration::try_from_secs_f64(number as f64 / rate).ok()?;
        Some(self.begin + after).filter(|start| *start < self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_their_places_whatever_becomes_of_others() {
        let begin = Instant::now();
        let second = Duration::from_secs(1);
        let open = Stretch {
            drive: Drive::Open {
                rate: 4.0,
                users: 2,
            },
            warm_up: second,
            duration: second,
        };
        let [first, last] = windows(&[(), ()], begin, |()| open).try_into().unwrap();
        assert_eq!(
            (first.from, first.end, first.until),
            (begin + second, begin + second * 2, begin + second * 2)
        );
        assert_eq!(
            (last.begin, last.until),
            (first.end, begin + second * 4 + GRACE)
        );
        let starts: Vec<_> = (0..).map_while(|number| first.start(number, 4.0)).collect();
        assert_eq!(starts.len(), 8);
        assert_eq!(starts[5], begin + Duration::from_millis(1_250));
        assert_eq!(first.start(0, 0.0), None);
    }
}
