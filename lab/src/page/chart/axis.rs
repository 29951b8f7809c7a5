//! Axes: from values to places, and where the labels stand.

use super::room;
use crate::report::{Cell, Column, Scale, Unit};

/// An axis.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    pub(super) name: String,
    pub(super) scale: Scale,
    pub(super) unit: Unit,
    /// Of steps, the values in their order.
    pub(super) steps: Vec<Cell>,
}

impl Axis {
    /// Of a column with these values.
    pub(super) fn new<'a>(
        column: &Column,
        scale: Scale,
        cells: impl Iterator<Item = &'a Cell>,
    ) -> Self {
        let mut steps: Vec<Cell> = Vec::new();
        if scale == Scale::Steps {
            for cell in cells.filter(|cell| **cell != Cell::Unknown) {
                if !steps.contains(cell) {
                    steps.push(cell.clone());
                }
            }
        }
        Self {
            name: column.name.clone(),
            scale,
            unit: column.unit,
            steps,
        }
    }

    /// True if a value has a place.
    pub(super) fn takes(&self, value: f64) -> bool {
        match self.scale {
            Scale::Log => value > 1e-9 && value < 1e18,
            _ => (0.0..1e18).contains(&value),
        }
    }

    /// Lays the axis out for these values, of which there is at least one.
    pub(super) fn laid(&self, values: &[f64], from: f64, to: f64) -> Laid<'_> {
        let least = values.iter().copied().fold(f64::MAX, f64::min);
        let most = values.iter().copied().fold(f64::MIN, f64::max);
        let (low, high) = match self.scale {
            Scale::Linear => (0.0, if most > 0.0 { most } else { 1.0 }),
            Scale::Log => (round_down(least), nice_step(most)),
            Scale::Steps => (-0.4, self.steps.len().max(1) as f64 - 0.6),
        };
        let high = if high > low { high } else { low * 10.0 };
        Laid {
            axis: self,
            low,
            high,
            from,
            to,
        }
    }
}

/// An axis with its room.
#[derive(Debug)]
pub(super) struct Laid<'a> {
    axis: &'a Axis,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Laid<'_> {
    /// The place of a value.
    pub(super) fn at(&self, value: f64) -> f64 {
        let (low, high, value) = match self.axis.scale {
            Scale::Log => (self.low.log10(), self.high.log10(), value.log10()),
            _ => (self.low, self.high, value),
        };
        self.from + (value - low) / (high - low) * (self.to - self.from)
    }

    /// Extends a linear axis to a round end above the largest value.
    pub(super) fn rounded(mut self, ticks_max: usize) -> Self {
        if self.axis.scale == Scale::Linear {
            let step = nice_step(self.high / ticks_max as f64);
            self.high = (self.high / step).ceil() * step;
        }
        self
    }

    /// Values with their labels, at most about so many.
    pub(super) fn ticks(&self, ticks_max: usize) -> Vec<(f64, String)> {
        let values = match self.axis.scale {
            Scale::Steps => {
                let named = self.axis.steps.iter().enumerate();
                return named
                    .map(|(i, step)| (i as f64, step.told(self.axis.unit)))
                    .collect();
            }
            Scale::Linear => {
                let step = nice_step(self.high / ticks_max as f64);
                let values = (0..=2 * ticks_max).map(|i| i as f64 * step);
                values
                    .take_while(|value| *value <= self.high * 1.001)
                    .collect()
            }
            Scale::Log => self.log_ticks(ticks_max),
        };
        self.labelled(&values)
    }

    /// These values with their labels.
    pub(super) fn labelled(&self, values: &[f64]) -> Vec<(f64, String)> {
        let values = values.iter();
        values
            .map(|value| (*value, self.axis.unit.tick(*value)))
            .collect()
    }

    fn log_ticks(&self, ticks_max: usize) -> Vec<f64> {
        let inside = |value: &f64| (self.low * 0.999..=self.high * 1.001).contains(value);
        let tens = (-10..=20).map(|exponent| 10_f64.powi(exponent));
        for parts in [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]] {
            let all = tens
                .clone()
                .flat_map(|ten| parts.iter().map(move |part| part * ten));
            let all: Vec<f64> = all.filter(inside).collect();
            if all.len() <= ticks_max && all.len() >= 2 {
                return all;
            }
        }
        let all: Vec<f64> = tens.filter(inside).collect();
        let each = all.len().div_ceil(ticks_max).max(1);
        all.into_iter().step_by(each).collect()
    }

    /// Of these values those whose labels do not run into each other, on a horizontal axis.
    pub(super) fn spread(&self, ticks: Vec<(f64, String)>) -> Vec<(f64, String)> {
        let mut kept: Vec<(f64, String)> = Vec::new();
        let mut free_from = f64::MIN;
        for (value, label) in ticks {
            let half = room(&label) / 2.0;
            if self.at(value) - half >= free_from {
                free_from = self.at(value) + half + 8.0;
                kept.push((value, label));
            }
        }
        kept
    }
}

/// 1, 2 or 5 times a power of ten, not below.
fn nice_step(least: f64) -> f64 {
    let ten = 10_f64.powf(least.log10().floor());
    let parts = [1.0, 2.0, 2.5, 5.0, 10.0];
    let fitting = parts.iter().find(|part| **part * ten >= least * 0.999);
    fitting.unwrap_or(&10.0) * ten
}

fn round_down(value: f64) -> f64 {
    let ten = 10_f64.powf(value.log10().floor());
    let parts = [5.0, 2.0, 1.0];
    let fitting = parts.iter().find(|part| **part * ten <= value * 1.001);
    fitting.unwrap_or(&1.0) * ten
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(scale: Scale, unit: Unit) -> Axis {
        let column = Column {
            name: "x".into(),
            unit,
            better: None,
        };
        Axis::new(
            &column,
            scale,
            [Cell::from(0), Cell::from(5), Cell::from(5)].iter(),
        )
    }

    fn ticks(axis: &Axis, values: &[f64], max: usize) -> Vec<String> {
        let laid = axis.laid(values, 0.0, 300.0).rounded(max);
        laid.ticks(max)
            .into_iter()
            .map(|(_, label)| label)
            .collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        let linear = axis(Scale::Linear, Unit::Count);
        assert_eq!(
            ticks(&linear, &[0.0, 11_300.0], 5),
            ["0", "2,500", "5,000", "7,500", "10k", "12.5k"]
        );
        assert_eq!(
            ticks(&linear, &[0.0], 5),
            ["0", "0.2", "0.4", "0.6", "0.8", "1"]
        );
        let log = axis(Scale::Log, Unit::Count);
        assert_eq!(
            ticks(&log, &[3.0, 180.0], 7),
            ["2", "5", "10", "20", "50", "100", "200"]
        );
        assert_eq!(
            ticks(&log, &[1.0, 1e6], 7),
            ["1", "10", "100", "1,000", "10k", "100k", "1M"]
        );
        let steps = axis(Scale::Steps, Unit::Millis);
        assert_eq!(ticks(&steps, &[0.0, 1.0], 5), ["0\u{a0}ms", "5\u{a0}ms"]);
    }

    #[test]
    fn values_have_their_places() {
        let log = axis(Scale::Log, Unit::Millis);
        let laid = log.laid(&[1.0, 100.0], 0.0, 100.0);
        assert!((laid.at(10.0) - 50.0).abs() < 0.001);
        assert!(!log.takes(0.0) && !log.takes(-1.0) && log.takes(0.5));
        let labels = laid.spread(vec![(1.0, "1 ms".into()), (1.1, "1.1 ms".into())]);
        assert_eq!(labels.len(), 1, "no room for both");
    }
}
