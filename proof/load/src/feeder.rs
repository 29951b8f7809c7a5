//! Feeders: where the values of variables come from, row by row.

use serde_json::Value;
use uuid::Uuid;

use crate::random::Random;

/// In which order rows come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// One after the other, then from the first again.
    Sequence,
    /// In random order, each once before any comes again.
    Shuffle,
    /// Any, at any time.
    Random,
}

/// When a user gets the next row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Each {
    /// With each pass through a flow.
    Pass,
    /// With each request.
    Request,
}

/// Who goes through the rows together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Per {
    All,
    /// Every user alone.
    User,
    /// Every user alone, and with each pass from the beginning.
    Pass,
}

/// What rows there are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Rows {
    /// Those of a file or a list.
    Given(Vec<Vec<Value>>),
    /// All combinations of numbers from the first to the last of each column.
    Grid(Vec<(i64, i64)>),
    /// Numbers that never come again.
    Count(i64),
    /// Random UUIDs.
    Uuid,
}

/// A feeder.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Feeder {
    pub(crate) name: String,
    /// Names of the columns; one without a name for a feeder of single values.
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Rows,
    pub(crate) order: Order,
    pub(crate) each: Each,
    pub(crate) per: Per,
}

/// A row of a feeder, small enough to be kept for each user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Row {
    Number(usize),
    Count(i64),
    Uuid(Uuid),
}

impl Feeder {
    /// How many rows there are; none if they have no end.
    pub(crate) fn len(&self) -> Option<usize> {
        match &self.rows {
            Rows::Given(rows) => Some(rows.len()),
            Rows::Grid(ranges) => grid_len(ranges),
            Rows::Count(_) | Rows::Uuid => None,
        }
    }

    /// What a row has in a column.
    pub(crate) fn value(&self, row: Row, column: usize) -> Value {
        match (&self.rows, row) {
            (Rows::Given(rows), Row::Number(row)) => {
                let row = rows.get(row);
                row.and_then(|row| row.get(column))
                    .cloned()
                    .unwrap_or_default()
            }
            (Rows::Grid(ranges), Row::Number(row)) => {
                // The last column changes with every row.
                let inner: usize = ranges
                    .iter()
                    .skip(column + 1)
                    .map(|range| width(*range))
                    .product();
                let (first, last) = ranges[column];
                let at = row / inner.max(1) % width((first, last)).max(1);
                first
                    .saturating_add(i64::try_from(at).unwrap_or(i64::MAX))
                    .into()
            }
            (_, Row::Count(number)) => number.into(),
            (_, Row::Uuid(id)) => id.to_string().into(),
            (Rows::Count(_) | Rows::Uuid, Row::Number(_)) => Value::Null,
        }
    }
}

fn width((first, last): (i64, i64)) -> usize {
    usize::try_from(last.saturating_sub(first).saturating_add(1)).unwrap_or(0)
}

/// The number of combinations; none if there are too many to count.
pub(crate) fn grid_len(ranges: &[(i64, i64)]) -> Option<usize> {
    ranges
        .iter()
        .try_fold(1_usize, |len, range| len.checked_mul(width(*range)))
}

/// Deals the rows of a feeder.
#[derive(Debug, Clone)]
pub(crate) struct Deck {
    dealt: u64,
    /// Shuffled as they are dealt.
    shuffled: Vec<u32>,
    random: Random,
}

impl Deck {
    pub(crate) fn new(random: Random) -> Self {
        Self {
            dealt: 0,
            shuffled: Vec::new(),
            random,
        }
    }

    /// Begins again.
    pub(crate) fn restart(&mut self) {
        self.dealt = 0;
    }

    /// The next row.
    pub(crate) fn deal(&mut self, feeder: &Feeder) -> Row {
        let number = self.dealt;
        self.dealt += 1;
        let len = match &feeder.rows {
            Rows::Uuid => return Row::Uuid(self.random.uuid()),
            Rows::Count(from) => {
                let number = i64::try_from(number).unwrap_or(i64::MAX);
                return Row::Count(from.saturating_add(number));
            }
            Rows::Given(_) | Rows::Grid(_) => feeder.len().unwrap_or(1).max(1),
        };
        let turn = usize::try_from(number % len as u64).unwrap_or(0);
        Row::Number(match feeder.order {
            Order::Sequence => turn,
            Order::Random => self.random.below(len),
            Order::Shuffle => {
                if self.shuffled.is_empty() {
                    self.shuffled = (0..u32::try_from(len).unwrap_or(u32::MAX)).collect();
                }
                let left = self.shuffled.len() - turn;
                let chosen = turn + self.random.below(left);
                self.shuffled.swap(turn, chosen);
                self.shuffled[turn] as usize
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn grid(order: Order) -> Feeder {
        Feeder {
            name: "seats".into(),
            columns: vec!["show".into(), "seat".into()],
            rows: Rows::Grid(vec![(10, 12), (0, 4)]),
            order,
            each: Each::Pass,
            per: Per::All,
        }
    }

    fn deal(feeder: &Feeder, count: usize) -> Vec<(Value, Value)> {
        let mut deck = Deck::new(Random::new(7));
        let rows = (0..count).map(|_| deck.deal(feeder));
        rows.map(|row| (feeder.value(row, 0), feeder.value(row, 1)))
            .collect()
    }

    #[test]
    fn a_grid_has_every_combination_once() {
        let feeder = grid(Order::Sequence);
        assert_eq!(feeder.len(), Some(15));
        let rows = deal(&feeder, 17);
        assert_eq!(rows[..2], [(json!(10), json!(0)), (json!(10), json!(1))]);
        assert_eq!(
            rows[14..],
            [
                (json!(12), json!(4)),
                (json!(10), json!(0)),
                (json!(10), json!(1))
            ]
        );
        for round in deal(&grid(Order::Shuffle), 30).chunks(15) {
            let all: BTreeSet<String> = round.iter().map(|row| format!("{row:?}")).collect();
            assert_eq!(all.len(), 15, "{round:?}");
        }
    }

    #[test]
    fn counts_and_ids_never_come_again() {
        let mut count = grid(Order::Sequence);
        count.rows = Rows::Count(5);
        let rows = deal(&count, 3);
        assert_eq!(
            rows.iter().map(|row| row.0.clone()).collect::<Vec<_>>(),
            [5, 6, 7]
        );
        count.rows = Rows::Uuid;
        let rows = deal(&count, 2);
        assert_ne!(rows[0], rows[1]);
        assert!(Uuid::try_parse(rows[0].0.as_str().unwrap()).is_ok());
    }

    #[test]
    fn ranges_at_their_limits_do_not_overflow() {
        assert_eq!(
            grid_len(&[(i64::MIN, i64::MAX), (i64::MIN, i64::MAX)]),
            None
        );
        assert_eq!(grid_len(&[(3, 3)]), Some(1));
    }
}
