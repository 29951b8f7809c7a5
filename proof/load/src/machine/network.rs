//! The way to a database or server: how far it is, and how bad. A proxy makes it (`gesta_rig::FaultProxy`).

use std::time::Duration;

use gesta_rig::FaultProxy;
use serde::Serialize;

use gesta_report::units;

/// A way.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Network {
    /// Time that a round trip takes more; half of it each way.
    pub round_trip: Duration,
    /// Each way takes up to so much more, by chance.
    pub jitter: Duration,
    /// Share of packets that are lost, each way.
    pub loss: f64,
    /// Time after which a lost packet is sent again.
    pub retransmission: Duration,
    /// Bytes a second, each way; 0: as many as there are.
    pub bandwidth: u64,
}

impl From<Duration> for Network {
    fn from(round_trip: Duration) -> Self {
        Self {
            round_trip,
            ..Self::default()
        }
    }
}

impl Network {
    /// True if nothing has to be made.
    pub fn is_plain(&self) -> bool {
        self.round_trip.is_zero()
            && self.jitter.is_zero()
            && self.loss <= 0.0
            && self.bandwidth == 0
    }

    /// Makes a proxy such a way, for what arrives from now on.
    pub fn apply(&self, proxy: &FaultProxy) {
        proxy.set_round_trip(self.round_trip);
        proxy.set_jitter(self.jitter);
        proxy.set_loss(self.loss, self.retransmission);
        proxy.set_bandwidth(self.bandwidth);
    }
}

/// What makes a way bad.
#[derive(Debug, Clone, Copy, Default, PartialEq, clap::Args, Serialize)]
pub struct WeatherArgs {
    /// Jitter: each way takes up to so much more, by chance, for example 2ms.
    #[arg(long, default_value = "0", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "jitter_seconds")]
    pub jitter: Duration,
    /// Share of packets that are lost each way and sent again, 0 to 0.5, for example 0.001.
    #[arg(long, default_value_t = 0.0, value_parser = loss)]
    pub loss: f64,
    /// Time after which a lost packet is sent again; what comes behind it waits.
    #[arg(long, default_value = "200ms", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "retransmission_seconds")]
    pub retransmission: Duration,
    /// Bytes a second that the way carries, each way, all connections together, for example 1.5m (12 Mbit/s); without
    /// it as many as there are.
    #[arg(long, value_name = "BYTES", value_parser = units::count)]
    pub bandwidth: Option<u64>,
}

fn loss(text: &str) -> Result<f64, String> {
    match text.trim().parse() {
        Ok(share) if (0.0..=0.5).contains(&share) => Ok(share),
        _ => Err(format!("{text:?} is not a share from 0 to 0.5")),
    }
}

impl WeatherArgs {
    /// A way of this length.
    pub fn over(self, round_trip: Duration) -> Network {
        Network {
            round_trip,
            jitter: self.jitter,
            loss: self.loss,
            retransmission: self.retransmission,
            bandwidth: self.bandwidth.unwrap_or(0),
        }
    }

    /// In words; none if it is fine.
    pub fn told(self) -> Option<String> {
        let mut told = Vec::new();
        if !self.jitter.is_zero() {
            told.push(format!("jitter up to {:?} each way", self.jitter));
        }
        if self.loss > 0.0 {
            // A share has millionths, and floating point more.
            let percent = (self.loss * 1e6).round() / 1e4;
            let again = self.retransmission;
            told.push(format!(
                "{percent} % of packets lost and sent again after {again:?}"
            ));
        }
        if let Some(bandwidth) = self.bandwidth {
            told.push(format!("{bandwidth} bytes/s each way"));
        }
        (!told.is_empty()).then(|| told.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_told_as_it_is() {
        let fine = WeatherArgs::default();
        assert_eq!(fine.told(), None);
        assert!(fine.over(Duration::ZERO).is_plain());
        let bad = WeatherArgs {
            jitter: Duration::from_millis(2),
            loss: loss("0.01").unwrap(),
            retransmission: Duration::from_millis(200),
            bandwidth: None,
        };
        assert!(!bad.over(Duration::ZERO).is_plain());
        let told = bad.told().unwrap();
        assert_eq!(
            told,
            "jitter up to 2ms each way, 1 % of packets lost and sent again after 200ms"
        );
        let narrow = WeatherArgs {
            bandwidth: Some(1_500_000),
            ..fine
        };
        assert!(!narrow.over(Duration::ZERO).is_plain());
        assert_eq!(narrow.told().unwrap(), "1500000 bytes/s each way");
        for wrong in ["-0.1", "0.6", "NaN", "x"] {
            assert!(loss(wrong).unwrap_err().contains(wrong));
        }
    }
}
