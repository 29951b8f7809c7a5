//! A host and a port at which others reach a process, as operators write them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The greatest length of a host with its port, in bytes.
const BYTES_MAX: usize = 255;

/// A host, which is a name or an address that names a machine, and a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostPort {
    host: String,
    port: u16,
}

impl HostPort {
    /// Reads `HOST:PORT`. An IPv6 address stands in brackets.
    ///
    /// # Errors
    /// The rule that the text breaks.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > BYTES_MAX {
            return Err("it has more than 255 bytes");
        }
        let (host, port) = text.rsplit_once(':').ok_or("it has no port")?;
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| is_number && *port > 0);
        let port = port.ok_or("its port is not a number from 1 to 65535")?;
        let bracketed = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let ip = match bracketed {
            Some(bracketed) => {
                let ip = bracketed.parse::<Ipv6Addr>();
                Some(IpAddr::V6(
                    ip.map_err(|_| "what is in brackets is no IPv6 address")?,
                ))
            }
            None => host.parse().ok().map(IpAddr::V4),
        };
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        match ip {
            Some(ip) if ip.is_unspecified() => Err("it names no machine"),
            None if host.is_empty() || !host.bytes().all(is_of_name) => {
                Err("its host is neither a name nor an IP address")
            }
            _ => Ok(Self {
                host: bracketed.unwrap_or(host).to_owned(),
                port,
            }),
        }
    }

    /// Returns the host; an IPv6 address has no brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_a_port_are_shown_as_they_were_written() {
        for (text, host, port) in [
            ("127.0.0.1:2114", "127.0.0.1", 2114),
            ("[::1]:1", "::1", 1),
            ("node-1.example.org:65535", "node-1.example.org", 65_535),
            ("my_node:7", "my_node", 7),
        ] {
            let read = HostPort::parse(text).expect("good");
            assert_eq!((read.host(), read.port()), (host, port));
            assert_eq!(read.to_string(), text);
        }
        for wrong in [
            "",
            ":1",
            "a:",
            "a:0",
            "a:+8",
            "::1:2",
            "[a]:1",
            "0.0.0.0:1",
            "http://a:1",
        ] {
            assert!(HostPort::parse(wrong).is_err(), "{wrong}");
        }
    }
}
