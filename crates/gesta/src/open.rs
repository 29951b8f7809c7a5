//! Opening a store by its URL, wherever it is: in a file, in a database, on a server or on several.
//!
//! Not here: what the store then does (`store`), what only databases can do (`database`).

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use gesta_core::{Clock, Result};
use gesta_store::{Config, Store as DatabaseStore};

use crate::database::{Missing, Options};
use crate::store::Store;
use crate::url;

/// A store that is not open yet. It is opened when this is awaited.
///
/// # Errors
/// `InvalidArgument` for another scheme, a wrong option, or one that does not fit the URL; `Unavailable` if the
/// database
/// does not answer; `Schema` if there is no store, or it must be migrated or is newer than this program; `Unsupported`
/// if the database cannot keep the contract, or this program was built without the feature.
///
/// # Cancel safety
/// If the future is dropped, a store that was to be created may have been created or not.
#[must_use = "nothing is opened until it is awaited"]
pub struct Open {
    url: String,
    options: Options,
    #[cfg(feature = "client")]
    client: crate::servers::Access,
}

impl Open {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            options: Options::default(),
            #[cfg(feature = "client")]
            client: crate::servers::Access::default(),
        }
    }

    /// Creates the store if there is none. The store of a server is there already.
    pub fn create(mut self) -> Self {
        self.options = self.options.missing(Missing::Create);
        self
    }

    /// Refuses with `Schema` if there is no store, as happens without another word too: a mistyped URL should not
    /// create a new store. A store in memory is always created.
    pub fn existing(mut self) -> Self {
        self.options = self.options.missing(Missing::Refuse);
        self
    }

    /// Sets how many logs the store gets if it is created: 1 to 1,024 on PostgreSQL, 1 on SQLite.
    pub fn logs(mut self, logs: u16) -> Self {
        self.options = self.options.logs(logs);
        self
    }

    /// Sets the bounds and times of a store in a database.
    pub fn config(mut self, config: Config) -> Self {
        self.options = self.options.config(config);
        self
    }

    /// Sets the clock that tells the time at which events are stored in a database.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.options = self.options.clock(clock);
        self
    }

    async fn open(self) -> Result<Store> {
        if !url::is_server(&self.url) {
            return Ok(Store::of_database(self.database().await?));
        }
        let opened = self.connect();
        opened.map_err(|error| error.during("open the store"))
    }

    /// Opens the store in the database at the URL, never that of a server: with what only such a store can do, for
    /// example scavenging.
    ///
    /// # Errors
    /// Those of awaiting this; `InvalidArgument` for the URL of a server.
    ///
    /// # Cancel safety
    /// If the future is dropped, a store that was to be created may have been created or not.
    pub async fn database(self) -> Result<Arc<DatabaseStore>> {
        #[cfg(feature = "client")]
        self.client
            .refuse_for_databases()
            .map_err(|error| error.during("open the store"))?;
        self.options.open_database(&self.url).await
    }

    #[cfg(feature = "client")]
    fn connect(self) -> Result<Store> {
        Ok(Store::of_server(self.client.connect(&self.url)?))
    }

    #[cfg(not(feature = "client"))]
    fn connect(self) -> Result<Store> {
        Err(url::left_out("client"))
    }
}

#[cfg(feature = "client")]
impl Open {
    /// Shows an API token to the server.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.client.token(token.into());
        self
    }

    /// Shows a user and the password to the server.
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.client.password(user.into(), password.into());
        self
    }

    /// Believes the authorities in this file, in PEM form, instead of those of the operating system: for servers with
    /// certificates of an own authority. The file is read when the store is opened.
    pub fn ca_file(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        self.client.ca_file(path.into());
        self
    }

    /// Believes these authorities, in PEM form, instead of those of the operating system.
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.client.ca_pem(pem.into());
        self
    }

    /// Sends credentials also over `http://` to another machine, where everybody on the way can read them.
    pub fn credentials_in_plain_text(mut self) -> Self {
        self.client.plain_http();
        self
    }

    /// Sets all else that a client of a server can be told, such as how long it waits
    /// ([`ClientConfig`](crate::ClientConfig)). What was set before is replaced.
    pub fn client_config(mut self, config: gesta_client::Config) -> Self {
        self.client.config(config);
        self
    }
}

impl IntoFuture for Open {
    type Output = Result<Store>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

/// The URL may hold a password and is not shown.
impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
