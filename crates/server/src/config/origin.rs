//! Origins of pages, by which a configuration names the pages that may call the server from a browser.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;
use hyper::header::HeaderValue;

/// The origin of a page: scheme, host, and port if it has one, as browsers send it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin(HeaderValue);

/// The error of a text that is no origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be an origin such as https://app.example.org or http://localhost:3000, found {0:?}")]
pub(crate) struct NoOrigin(String);

impl FromStr for Origin {
    type Err = NoOrigin;

    fn from_str(text: &str) -> Result<Self, NoOrigin> {
        let wrong = || NoOrigin(text.chars().take(200).collect());
        let rest = text
            .strip_prefix("https://")
            .or_else(|| text.strip_prefix("http://"))
            .ok_or_else(wrong)?;
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._:[]".contains(c);
        let port = rest.rsplit(']').next().and_then(|end| end.split_once(':'));
        let has_port = port.is_none_or(|(_, port)| port.parse::<u16>().is_ok());
        let is_uri = text.parse::<Uri>().is_ok();
        if rest.is_empty() || !rest.chars().all(fits) || !has_port || !is_uri {
            return Err(wrong());
        }
        HeaderValue::try_from(text).map(Self).map_err(|_| wrong())
    }
}

impl Origin {
    pub(crate) fn header(&self) -> &HeaderValue {
        &self.0
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        for good in [
            "https://app.example.org",
            "http://localhost:3000",
            "http://[::1]:80",
        ] {
            let origin: Origin = good.parse().expect("an origin");
            assert_eq!(origin.to_string(), good);
        }
        for bad in [
            "",
            "*",
            "null",
            "https://",
            "app.example.org",
            "https://app.example.org/",
            "https://App.example.org",
            "https://u@app.example.org",
            "ftp://app.example.org",
            "https://a b",
            "https://a:x",
            "https://a\r\nx: y",
        ] {
            assert!(bad.parse::<Origin>().is_err(), "{bad:?}");
        }
    }
}
