//! Converts moments in time for the driver.

use std::error::Error as StdError;

use bytes::{BufMut, BytesMut};
use gesta_core::Timestamp;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// The microseconds from 1970 to 2000, where the time of PostgreSQL begins.
const EPOCH_OFFSET_US: i64 = 946_684_800_000_000;

pub(crate) type Failure = Box<dyn StdError + Sync + Send>;

/// A moment, as `timestamptz` holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(pub(crate) Timestamp);

/// The time of PostgreSQL.
pub(crate) fn to_postgres_time(moment: Timestamp) -> i64 {
    // The far ends would be the infinities of PostgreSQL, which no clock reaches.
    moment.0.saturating_sub(EPOCH_OFFSET_US)
}

impl ToSql for Moment {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Failure> {
        out.put_i64(to_postgres_time(self.0));
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Moment {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Failure> {
        let value = i64::from_be_bytes(raw.try_into()?);
        Ok(Self(Timestamp(value.saturating_add(EPOCH_OFFSET_US))))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_back() {
        for micros in [0, 1, -1, EPOCH_OFFSET_US, Timestamp::MAX.0] {
            let mut out = BytesMut::new();
            let moment = Moment(Timestamp(micros));
            moment
                .to_sql(&Type::TIMESTAMPTZ, &mut out)
                .expect("written");
            let back = Moment::from_sql(&Type::TIMESTAMPTZ, &out).expect("read");
            assert_eq!(back.0, moment.0);
        }
    }
}
