//! What a real network adds to its delay: jitter, packets that are lost and sent again, and a line that carries so much
//! a second.
//!
//! A connection never loses bytes: what is lost on the way is sent again, and so is late by the time after which the
//! sender does that; everything behind it waits. That lateness is what is made here.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::lock;

/// Bytes that travel in one packet of a usual Ethernet.
const PACKET_BYTES: usize = 1_448;
/// The share of packets is kept in these parts.
const PARTS: f64 = 1e9;

/// The network of a proxy.
#[derive(Debug, Default)]
pub(super) struct Weather {
    jitter_nanos: AtomicU64,
    /// Of [`PARTS`] packets so many are lost.
    lost: AtomicU64,
    retransmission_nanos: AtomicU64,
    /// Bytes a second of each direction, of all connections together; 0: as many as there are.
    bandwidth: AtomicU64,
    /// Until when the line of each direction is taken.
    taken: [Mutex<Option<Instant>>; 2],
}

/// Numbers of one connection, the same in each run; SplitMix64.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(connection: u64) -> Self {
        Self(connection)
    }

    /// A number from 0 to below 1, of 53 bits.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    fn throw(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Weather {
    pub(super) fn set_jitter(&self, jitter: Duration) {
        self.jitter_nanos.store(nanos(jitter), Ordering::Release);
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a share"
    )]
    pub(super) fn set_loss(&self, share: f64, retransmission: Duration) {
        let lost = (share.clamp(0.0, 1.0) * PARTS) as u64;
        self.retransmission_nanos
            .store(nanos(retransmission), Ordering::Release);
        self.lost.store(lost, Ordering::Release);
    }

    pub(super) fn set_bandwidth(&self, bytes_per_second: u64) {
        self.bandwidth.store(bytes_per_second, Ordering::Release);
    }

    /// How long it takes until so many bytes, which come `now`, have left by the line of this direction, behind all
    /// that came before them.
    #[expect(clippy::cast_precision_loss, reason = "bytes of a chunk")]
    pub(super) fn on_the_line(&self, way: usize, bytes: usize, now: Instant) -> Duration {
        let bandwidth = self.bandwidth.load(Ordering::Acquire);
        if bandwidth == 0 {
            return Duration::ZERO;
        }
        let mut taken = lock(&self.taken[way]);
        let begin = taken.map_or(now, |taken| taken.max(now));
        let end = begin + Duration::from_secs_f64(bytes as f64 / bandwidth as f64);
        *taken = Some(end);
        end - now
    }

    /// How much later than the delay so many bytes arrive.
    #[expect(clippy::cast_precision_loss, reason = "up to 10^9")]
    pub(super) fn lateness(&self, bytes: usize, dice: &mut Dice) -> Duration {
        let jitter = Duration::from_nanos(self.jitter_nanos.load(Ordering::Acquire));
        let late = match jitter.is_zero() {
            true => Duration::ZERO,
            false => jitter.mul_f64(dice.throw()),
        };
        let lost = self.lost.load(Ordering::Acquire) as f64 / PARTS;
        if lost <= 0.0 {
            return late;
        }
        let packets = i32::try_from(bytes.div_ceil(PACKET_BYTES)).unwrap_or(i32::MAX);
        let is_lost = dice.throw() >= (1.0 - lost).powi(packets);
        let again = Duration::from_nanos(self.retransmission_nanos.load(Ordering::Acquire));
        late + if is_lost { again } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGAIN: Duration = Duration::from_millis(200);

    /// How many of 100,000 sendings of so many bytes are late by a retransmission.
    fn lost(weather: &Weather, bytes: usize) -> usize {
        let mut dice = Dice::new(7);
        let late = (0..100_000).map(|_| weather.lateness(bytes, &mut dice));
        late.filter(|late| *late >= AGAIN).count()
    }

    #[test]
    fn a_share_of_packets_is_late_by_a_retransmission() {
        let weather = Weather::default();
        assert_eq!(weather.lateness(1, &mut Dice::new(1)), Duration::ZERO);
        weather.set_loss(0.01, AGAIN);
        let [one, ten] = [1_448, 14_480].map(|bytes| lost(&weather, bytes));
        assert!((900..1_100).contains(&one), "{one}");
        // Ten packets: 9.56 %.
        assert!((9_300..9_850).contains(&ten), "{ten}");
        weather.set_loss(1.0, AGAIN);
        assert_eq!(lost(&weather, 1), 100_000);
        weather.set_loss(0.0, AGAIN);
        assert_eq!(lost(&weather, 1_000_000), 0);
    }

    #[test]
    fn a_line_carries_so_much_a_second_in_each_direction() {
        let (weather, now) = (Weather::default(), Instant::now());
        assert_eq!(weather.on_the_line(0, 1_000_000, now), Duration::ZERO);
        weather.set_bandwidth(1_000);
        let millis = |way, bytes, after| {
            let now = now + Duration::from_millis(after);
            weather.on_the_line(way, bytes, now).as_millis()
        };
        assert_eq!(millis(0, 100, 0), 100);
        // Behind the first ones, of whatever connection.
        assert_eq!(millis(0, 100, 50), 150);
        assert_eq!(millis(1, 100, 50), 100, "the other direction is free");
        assert_eq!(millis(0, 100, 1_000), 100, "the line is free again");
        weather.set_bandwidth(0);
        assert_eq!(millis(0, 100, 1_000), 0);
    }

    #[test]
    fn jitter_is_spread_up_to_its_size_and_the_same_in_each_run() {
        let weather = Weather::default();
        weather.set_jitter(Duration::from_millis(10));
        let all = |connection| -> Vec<Duration> {
            let mut dice = Dice::new(connection);
            (0..10_000)
                .map(|_| weather.lateness(1, &mut dice))
                .collect()
        };
        let (some, same, other) = (all(1), all(1), all(2));
        assert!(some == same && some != other);
        assert!(some.iter().all(|late| *late < Duration::from_millis(10)));
        let mean = some.iter().sum::<Duration>() / 10_000;
        let expected = Duration::from_micros(4_800)..Duration::from_micros(5_200);
        assert!(expected.contains(&mean), "{mean:?}");
    }
}
