//! How a server, or the servers of a cluster, are reached: who calls, and whom the caller believes.

use std::path::PathBuf;

use gesta_client::{Config, Credentials, HttpStore, PlainHttp};
use gesta_core::{Error, Result};

use crate::url;

/// What a caller has said about the servers that it calls.
#[derive(Default)]
pub(crate) struct Access {
    config: Config,
    ca_file: Option<PathBuf>,
    /// What was said first that makes sense for a server alone.
    said: Option<&'static str>,
}

impl Access {
    fn say(&mut self, what: &'static str) {
        self.said.get_or_insert(what);
    }

    pub(crate) fn token(&mut self, token: String) {
        self.say("token");
        self.config.credentials = Some(Credentials::Token(token));
    }

    pub(crate) fn password(&mut self, login: String, password: String) {
        self.say("credentials");
        self.config.credentials = Some(Credentials::Password { login, password });
    }

    pub(crate) fn ca_file(&mut self, path: PathBuf) {
        self.say("ca_file");
        self.ca_file = Some(path);
    }

    pub(crate) fn ca_pem(&mut self, pem: Vec<u8>) {
        self.say("ca_pem");
        self.config.tls.ca_pem = Some(pem);
        self.ca_file = None;
    }

    pub(crate) fn plain_http(&mut self) {
        self.say("credentials_in_plain_text");
        self.config.plain_http = PlainHttp::Anywhere;
    }

    pub(crate) fn config(&mut self, config: Config) {
        self.say("client_config");
        self.config = config;
        self.ca_file = None;
    }

    /// Refuses what was said about servers where a database is opened, whose URL says how it is reached.
    ///
    /// # Errors
    /// `InvalidArgument` with the first thing that was said.
    pub(crate) fn refuse_for_databases(&self) -> Result<()> {
        match self.said {
            None => Ok(()),
            Some(what) => Err(Error::invalid(
                what,
                "is for servers, by http:// or https://: a database is reached as its URL says",
            )),
        }
    }

    /// Returns the store on the server at this URL, or on the servers at these, separated by spaces.
    ///
    /// # Errors
    /// `InvalidArgument` if a URL is not that of a server, or if what was said cannot be used.
    pub(crate) fn connect(self, urls: &str) -> Result<HttpStore> {
        let mut config = self.config;
        if let Some(path) = self.ca_file {
            let pem = std::fs::read(&path).map_err(|error| {
                let rule = format!("{} cannot be read: {error}", path.display());
                Error::invalid("ca_file", rule)
            })?;
            config.tls.ca_pem = Some(pem);
        }
        let urls: Vec<&str> = urls.split_whitespace().collect();
        if let Some(number) = urls.iter().position(|url| !url::is_server(url)) {
            let rule = format!(
                "must be URLs of servers, separated by spaces; number {} does not begin with http:// or https://",
                number + 1
            );
            return Err(Error::invalid("store", rule));
        }
        match urls.as_slice() {
            [url] => HttpStore::with_config(url, config),
            urls => HttpStore::connect_to_cluster(urls, config),
        }
    }
}
