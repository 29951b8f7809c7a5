//! The way from a stream to its slice, and from a slice to its log.
//!
//! A slice is one of 1,024 hash classes of streams. Slices map to logs in equal ranges. The hash never changes: it is
//! FNV-1a with 64 bits (Fowler, Noll, Vo), finished with the 64-bit mixer of `MurmurHash3` (Appleby, public domain)
//! because the low bits of FNV-1a are weak. The slice is the result modulo 1,024.

use crate::ids::{LogId, StreamId};

/// Number of slices. It is fixed for ever.
pub const SLICES: u16 = 1_024;

/// Returns the part of a stream name that decides the slice of the stream.
///
/// A leading `$$` does not count, so a stream and its metadata share a slice. If the rest holds a non-empty text
/// between the first `{` and the next `}`, only that text counts. So streams named `cart-{77}` and `payment-{77}` share
/// a slice, hence a log, and one append can name both.
#[must_use]
pub fn routing_key(stream: &StreamId) -> &str {
    let name = stream.as_str();
    let name = name.strip_prefix("$$").unwrap_or(name);
    let braced = name
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(key, _)| key);
    braced.filter(|key| !key.is_empty()).unwrap_or(name)
}

/// Returns the slice of a stream: 0 to 1,023.
#[must_use]
pub fn slice_of(stream: &StreamId) -> u16 {
    let hash = mix(fnv1a(routing_key(stream).as_bytes()));
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder is below 1,024"
    )]
    let slice = (hash % u64::from(SLICES)) as u16;
    slice
}

/// Returns the log of a stream in a store of `logs` logs (1 to 1,024).
#[must_use]
pub fn log_of(stream: &StreamId, logs: u16) -> LogId {
    if logs <= 1 {
        return LogId(0);
    }
    let log = u32::from(slice_of(stream)) * u32::from(logs) / u32::from(SLICES);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "slice / 1,024 < 1, so the log is below `logs`"
    )]
    let log = log as u16;
    LogId(log)
}

pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn mix(mut h: u64) -> u64 {
    h ^= h >> 33;
    h = h.wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^= h >> 33;
    h = h.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ (h >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(name: &str) -> StreamId {
        StreamId::new(name).expect("valid")
    }

    /// Goal: the hash never changes. These values are stored in the layout of existing stores.
    #[test]
    fn slices_are_fixed_for_ever() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
        let slices: Vec<u16> = ["cart-1", "cart-2", "show-7", "größe"]
            .iter()
            .map(|name| slice_of(&stream(name)))
            .collect();
        assert_eq!(slices, [738, 548, 785, 673]);
    }

    #[test]
    fn metadata_and_braced_names_share_the_slice() {
        assert_eq!(slice_of(&stream("$$cart-1")), slice_of(&stream("cart-1")));
        assert_eq!(
            slice_of(&stream("cart-{77}")),
            slice_of(&stream("payment-{77}-x"))
        );
        assert_eq!(routing_key(&stream("a-{}")), "a-{}");
    }

    #[test]
    fn every_log_gets_its_share() {
        let mut count = [0_u32; 4];
        for i in 0..40_000 {
            count[usize::from(log_of(&stream(&format!("cart-{i}")), 4).0)] += 1;
        }
        assert!(
            count.iter().all(|c| (9_500..10_500).contains(c)),
            "{count:?}"
        );
    }
}
