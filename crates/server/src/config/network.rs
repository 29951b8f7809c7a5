//! Networks of trusted proxies, and the address of a client behind them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use hyper::header::{HeaderMap, HeaderName};

/// The header in which each proxy notes from whom it got a request. The last entry is that of the nearest proxy.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The addresses of a network, as `10.0.0.0/8`; an address alone is a network of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Network {
    address: IpAddr,
    bits: u8,
}

/// The text names no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be an address, or a network as 10.0.0.0/8 or 2001:db8::/32, found {0:?}")]
pub(crate) struct NoNetwork(String);

impl FromStr for Network {
    type Err = NoNetwork;

    fn from_str(text: &str) -> Result<Self, NoNetwork> {
        let wrong = || NoNetwork(text.chars().take(60).collect());
        let (address, bits) = match text.split_once('/') {
            None => (text, None),
            Some((address, bits)) => (address, Some(bits)),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits_max = match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        let bits = match bits {
            None => bits_max,
            Some(bits) => bits.parse().map_err(|_| wrong())?,
        };
        if bits > bits_max {
            return Err(wrong());
        }
        Ok(Self { address, bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Network {
    /// Tells whether an address is one of the network.
    pub(crate) fn has(self, address: IpAddr) -> bool {
        let same = |own: u128, other: u128, width: u32| {
            let left = width - u32::from(self.bits);
            own.checked_shr(left) == other.checked_shr(left)
        };
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                same(own.to_bits().into(), other.to_bits().into(), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => same(own.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }
}

/// Returns the address of the client of a request: the last one that the proxies on the way noted and that is not one
/// of theirs. What stands before it may be made up by the client. Without trusted proxies it is the address of the
/// connection.
pub(crate) fn client(proxies: &[Network], peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    let is_proxy = |address| proxies.iter().any(|network| network.has(address));
    let mut nearest = peer;
    if !is_proxy(nearest) {
        return nearest;
    }
    let values: Vec<_> = headers.get_all(FORWARDED_FOR).iter().collect();
    for value in values.iter().rev() {
        let Ok(text) = value.to_str() else { break };
        for entry in text.rsplit(',') {
            match address(entry.trim()) {
                Some(found) => nearest = found,
                None => return nearest,
            }
            if !is_proxy(nearest) {
                return nearest;
            }
        }
    }
    nearest
}

/// Reads an entry, which may have a port.
fn address(entry: &str) -> Option<IpAddr> {
    let bare = entry.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    bare.unwrap_or(entry)
        .parse()
        .ok()
        .or_else(|| entry.parse().ok().map(|of: SocketAddr| of.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().expect("a network")
    }

    #[test]
    fn a_network_has_the_addresses_that_begin_alike() {
        for (of, has, not) in [
            ("10.0.0.0/8", "10.9.8.7", "11.0.0.0"),
            ("192.0.2.7", "::ffff:192.0.2.7", "192.0.2.8"),
            ("2001:db8::/32", "2001:db8:9::1", "2001:db9::1"),
            ("0.0.0.0/0", "203.0.113.9", "::1"),
            ("::/0", "::1", "127.0.0.1"),
        ] {
            let of = network(of);
            assert!(of.has(has.parse().expect("an address")), "{of} {has}");
            assert!(!of.has(not.parse().expect("an address")), "{of} {not}");
        }
        for bad in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/x",
            "proxy",
            "10.0.0.0/-1",
        ] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }

    /// Goal: only what trusted proxies noted counts, and never what a client makes up.
    #[test]
    fn the_client_is_the_last_one_that_is_no_proxy() {
        let proxies = [network("10.0.0.0/8"), network("127.0.0.1")];
        let of = |peer: &str, noted: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in noted {
                headers.append(FORWARDED_FOR, value.parse().expect("a value"));
            }
            client(&proxies, peer.parse().expect("an address"), &headers).to_string()
        };
        // Who is no proxy is not believed.
        assert_eq!(of("192.0.2.1", &["198.51.100.1"]), "192.0.2.1");
        assert_eq!(of("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(of("10.0.0.1", &["198.51.100.1"]), "198.51.100.1");
        assert_eq!(of("10.0.0.1", &["6.6.6.6, 198.51.100.1"]), "198.51.100.1");
        assert_eq!(
            of("127.0.0.1", &["6.6.6.6", "198.51.100.1, 10.1.1.1"]),
            "198.51.100.1"
        );
        assert_eq!(of("10.0.0.1", &["6.6.6.6, unknown"]), "10.0.0.1");
        assert_eq!(of("10.0.0.1", &["[2001:db8::1]:4711"]), "2001:db8::1");
        assert_eq!(of("10.0.0.1", &["198.51.100.1:80"]), "198.51.100.1");
    }
}
