//! Which steady loads are offered: up towards the peak of the closed loop until one is not carried well, then between.
//!
//! Each further step halves what is left between the highest load that was carried and the lowest that was not, so one
//! bad second of a shared machine costs precision and not half of the answer.
//! Not here: what "carried well" means (`verdict`).

/// Shares of the peak on the way up.
const SHARES: [f64; 5] = [0.3, 0.5, 0.7, 0.85, 0.95];
/// Steps between the highest load carried well and the lowest that was not.
const HALVINGS: usize = 3;

/// The next load to offer, in events per second, after these loads and whether each was carried well.
/// `None` when there is nothing more to learn.
pub(super) fn next(peak: f64, tried: &[(f64, bool)]) -> Option<f64> {
    let rate = match tried.iter().position(|(_, well)| !well) {
        None => peak * SHARES.get(tried.len())?,
        Some(first_bad) if tried.len() - first_bad > HALVINGS => return None,
        Some(_) => {
            let bad = tried.iter().filter(|(_, well)| !well);
            let lowest_bad = bad.map(|(rate, _)| *rate).fold(f64::INFINITY, f64::min);
            let good = tried.iter().filter(|(_, well)| *well);
            let highest_good = good.map(|(rate, _)| *rate).fold(0.0, f64::max);
            f64::midpoint(highest_good, lowest_bad)
        }
    };
    let rate = rate.round().max(1.0);
    let known = tried.iter().any(|(known, _)| (known - rate).abs() < 0.5);
    (!known).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All loads that are offered to a database that carries this much.
    fn climb(peak: f64, carries: f64) -> Vec<f64> {
        let mut tried = Vec::new();
        while let Some(rate) = next(peak, &tried) {
            tried.push((rate, rate <= carries));
        }
        tried.into_iter().map(|(rate, _)| rate).collect()
    }

    #[test]
    fn a_load_grows_until_it_is_too_much_and_then_closes_in() {
        assert_eq!(climb(1_000.0, 1_000.0), [300.0, 500.0, 700.0, 850.0, 950.0]);
        assert_eq!(
            climb(1_000.0, 640.0),
            [300.0, 500.0, 700.0, 600.0, 650.0, 625.0]
        );
        assert_eq!(climb(1_000.0, 0.0), [300.0, 150.0, 75.0, 38.0]);
    }

    #[test]
    fn no_load_is_offered_twice() {
        assert_eq!(climb(3.0, 1.0), [1.0, 2.0]);
        assert_eq!(climb(0.0, 0.0), [1.0]);
    }
}
