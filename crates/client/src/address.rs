//! The addresses of calls.

use std::net::IpAddr;

use gesta_core::{Error, Filter, Result, StreamId};
use gesta_groups::{GroupId, Source};
use gesta_wire::percent;
use gesta_wire::request::QueryBody;
use hyper::Uri;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};

/// The longest path with its query that this client sends, in bytes. Servers take somewhat longer ones.
const PATH_BYTES_MAX: usize = 64_000;

/// The address of a server.
#[derive(Debug, Clone)]
pub(crate) struct Base {
    scheme: Scheme,
    authority: Authority,
    /// The beginning of every path, without a slash at its end.
    path: String,
}

impl Base {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        // What stands before an `@` may be a password.
        let shown = url.rsplit_once('@').map(|(_, rest)| format!("…@{rest}"));
        let shown = shown.unwrap_or_else(|| url.to_owned());
        let wrong = |rule: &str| Error::invalid("url", format!("{rule}, found {shown:?}"));
        let uri: Uri = url
            .parse()
            .map_err(|_| wrong("must be like http://127.0.0.1:2113"))?;
        match uri.scheme_str() {
            Some("http" | "https") => {}
            _ => return Err(wrong("must begin with http:// or https://")),
        }
        if uri.query().is_some() {
            return Err(wrong("must have no query"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("must have a host"))?;
        if authority.as_str().contains('@') {
            return Err(Error::invalid("url", "must have no user and password"));
        }
        Ok(Self {
            scheme: uri.scheme().cloned().unwrap_or(Scheme::HTTP),
            authority: authority.clone(),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// Tells whether connections to the server are encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// Returns the server as a URL, for people.
    pub(crate) fn server(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }

    /// Returns the path before all others, without a slash at its end: empty, unless a proxy is to be asked for one.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the host of the server.
    pub(crate) fn host(&self) -> &str {
        self.authority.host()
    }

    /// Tells whether the server is on this machine, whatever a resolver says.
    pub(crate) fn is_loopback(&self) -> bool {
        let host = self.host();
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let address: Option<IpAddr> = bare.unwrap_or(host).parse().ok();
        host.eq_ignore_ascii_case("localhost")
            || address.is_some_and(|address| address.to_canonical().is_loopback())
    }

    /// Returns the address of another server, which is reached in the same way.
    pub(crate) fn of_server(&self, authority: Authority) -> Self {
        Self {
            scheme: self.scheme.clone(),
            authority,
            path: String::new(),
        }
    }

    /// Returns the address of a call.
    pub(crate) fn join(&self, path: &Path) -> Result<Uri> {
        let text = format!("{}{}", self.path, path.text);
        if text.len() > PATH_BYTES_MAX {
            return Err(Error::invalid(
                "filter",
                format!(
                    "must fit into an address of {PATH_BYTES_MAX} bytes, found {}",
                    text.len()
                ),
            ));
        }
        let path = PathAndQuery::try_from(text)
            .map_err(|error| Error::invalid("request", format!("has no address: {error}")))?;
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()
            .map_err(|error| Error::invalid("request", format!("has no address: {error}")))
    }
}

/// A path with its query, to which parameters are added.
#[derive(Debug)]
pub(crate) struct Path {
    text: String,
    has_query: bool,
}

impl Path {
    pub(crate) fn of(path: &str) -> Self {
        Self {
            text: path.to_owned(),
            has_query: false,
        }
    }

    pub(crate) fn of_stream(stream: &StreamId, rest: &str) -> Self {
        let mut path = Self::of("/streams/");
        percent::encode(&mut path.text, stream.as_str());
        path.text.push_str(rest);
        path
    }

    /// Makes the address of a consumer group. `rest` is what follows the name of the group.
    pub(crate) fn of_group(group: &GroupId, rest: &str) -> Self {
        let mut path = match group.source() {
            Source::Stream(stream) => Self::of_stream(stream, "/groups/"),
            Source::All => Self::of("/all/groups/"),
        };
        percent::encode(&mut path.text, group.name());
        path.text.push_str(rest);
        path
    }

    /// Adds a parameter to the query.
    pub(crate) fn with(mut self, name: &str, value: impl AsRef<str>) -> Self {
        self.text.push(if self.has_query { '&' } else { '?' });
        self.has_query = true;
        self.text.push_str(name);
        self.text.push('=');
        percent::encode(&mut self.text, value.as_ref());
        self
    }

    /// Adds the filter to the query, unless every event passes.
    pub(crate) fn with_filter(self, filter: &Filter) -> Self {
        if filter.any_of.is_empty() {
            return self;
        }
        let queries: Vec<QueryBody> = filter.any_of.iter().map(QueryBody::from).collect();
        let json = serde_json::to_string(&queries).unwrap_or_default();
        self.with("filter", json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(name: &str) -> String {
        let base = Base::parse("http://localhost:1/gesta/").expect("valid");
        let stream = StreamId::new(name).expect("valid");
        let path = Path::of_stream(&stream, "/subscribe").with("after", "a b&c");
        base.join(&path).expect("address").to_string()
    }

    #[test]
    fn names_are_one_segment_whatever_they_contain() {
        let prefix = "http://localhost:1/gesta/streams/";
        for (name, segment) in [
            ("cart-1.x", "cart-1.x"),
            ("a/b?c#d%", "a%2Fb%3Fc%23d%25"),
            ("..", "%2E%2E"),
            ("ü +", "%C3%BC%20%2B"),
        ] {
            assert_eq!(
                uri(name),
                format!("{prefix}{segment}/subscribe?after=a%20b%26c")
            );
        }
    }

    /// Goal: no error repeats a password, whatever else is wrong with the URL.
    #[test]
    fn no_error_repeats_a_password() {
        for url in [
            "postgres://u:secret@h:1/d",
            "http://u:secret@h:1",
            "u:secret@h:1",
            "http://u:secret@h:1/?query",
            "http://u:sec ret@h",
        ] {
            let error = Base::parse(url).expect_err("refused").to_string();
            assert!(
                !error.contains("secret") && !error.contains("ret@"),
                "{error}"
            );
        }
    }

    #[test]
    fn loopback_is_this_machine_alone() {
        let is_loopback = |url: &str| Base::parse(url).expect("valid").is_loopback();
        for here in [
            "http://localhost:1",
            "http://LOCALHOST",
            "http://127.0.0.1:2113",
            "http://127.9.9.9",
            "http://[::1]:2113",
            "http://[::ffff:127.0.0.1]",
        ] {
            assert!(is_loopback(here), "{here}");
        }
        for elsewhere in [
            "http://10.0.0.1:2113",
            "http://localhost.example.org",
            "http://127.0.0.1.example.org",
            "http://[::2]",
            "http://0.0.0.0:2113",
        ] {
            assert!(!is_loopback(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn only_addresses_of_servers_are_taken() {
        assert!(Base::parse("http://[::1]:2113").is_ok());
        assert!(Base::parse("https://localhost").is_ok());
        for bad in [
            "",
            "localhost:2113",
            "ftp://localhost",
            "http://u:p@localhost",
            "http://localhost/?a=b",
            "/x",
        ] {
            let error = Base::parse(bad).expect_err(bad);
            assert!(!error.to_string().contains("u:p"), "{error}");
        }
    }
}
