//! A store that is made beside the named one for one measurement, and removed after it.
//!
//! Whoever compares two ways to write needs them to meet equal tables: an index over many streams becomes slower with every
//! million rows, whoever inserts them.

use std::path::{Path, PathBuf};

use crate::endpoint::{self, Endpoint};
use crate::failure::{Context, Result};
use crate::postgres;

/// Where it is.
pub(crate) struct Beside {
    url: String,
    place: Place,
}

enum Place {
    /// A schema of the same database, whose URL this is.
    Schema {
        name: &'static str,
        database: String,
    },
    /// A file in a folder of its own on the same disk.
    File { _folder: tempfile::TempDir },
}

impl Beside {
    /// Next to the store with this URL; `None` if that is reached over a server. `name` tells several such places apart.
    ///
    /// # Errors
    /// No folder can be made there.
    pub(crate) fn of(url: &str, name: &'static str) -> Result<Option<Self>> {
        if Endpoint::parse(url).is_some_and(|endpoint| endpoint.is_postgres()) {
            let place = Place::Schema {
                name,
                database: url.to_owned(),
            };
            let url = endpoint::with_parameter(url, "schema", name);
            return Ok(Some(Self { url, place }));
        }
        let Some(path) = url.strip_prefix("sqlite:") else {
            return Ok(None);
        };
        let folder = tempfile::Builder::new()
            .prefix(name)
            .tempdir_in(folder_of(path))
            .context("making a folder")?;
        let file = folder.path().join("store.db");
        Ok(Some(Self {
            url: format!("sqlite:{}", file.display()),
            place: Place::File { _folder: folder },
        }))
    }

    /// The URL of the store in this place.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Removes what an earlier run has left there, or this one. Files go when this value does.
    ///
    /// # Errors
    /// The database refuses.
    pub(crate) async fn clear(&self) -> Result<()> {
        if let Place::Schema { name, database } = &self.place {
            let client = postgres::connect(database).await?;
            let drop = format!("DROP SCHEMA IF EXISTS {name} CASCADE");
            client
                .batch_execute(&drop)
                .await
                .context("dropping the schema of a measurement")?;
        }
        Ok(())
    }

    /// Writes out what the database holds back, where that is allowed, so that no earlier work burdens what is measured next.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub(crate) async fn settle(&self) -> Result<()> {
        if let Place::Schema { database, .. } = &self.place {
            let client = postgres::connect(database).await?;
            // Only superusers and pg_checkpoint may.
            let _ = client.batch_execute("CHECKPOINT").await;
        }
        Ok(())
    }
}

/// The folder of the file with this path; parameters may follow the path.
fn folder_of(path: &str) -> PathBuf {
    let path = Path::new(path.split('?').next().unwrap_or(path));
    match path.parent() {
        Some(dir) if dir.is_dir() && !dir.as_os_str().is_empty() => dir.to_owned(),
        _ => PathBuf::from("."),
    }
}
