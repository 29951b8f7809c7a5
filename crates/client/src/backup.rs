//! Fetches a copy of the store of a server, part by part as it arrives.

use bytes::Bytes;
use gesta_core::{Error, Result};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::{Body, Incoming};

use crate::address::Path;
use crate::store::HttpStore;
use crate::transport::{Call, Effect};

/// A copy of a store that is being transferred from its server. Dropping it ends the transfer.
#[derive(Debug)]
pub struct BackupDownload {
    body: Incoming,
    bytes: Option<u64>,
}

impl HttpStore {
    /// Asks the server for a consistent copy of its store. The answer begins when the server has made the copy, which
    /// takes as long as writing one; [`Config::answer_max`](crate::Config::answer_max) must allow for that.
    ///
    /// # Errors
    /// `Unsupported` if the database makes its own backups, or the server gives no copies; `Overloaded` while the
    /// server makes another copy; `Unavailable` if the server does not answer.
    ///
    /// # Cancel safety
    /// The server stops when the future, or the download, is dropped.
    pub async fn backup(&self) -> Result<BackupDownload> {
        let call = Call {
            method: Method::POST,
            path: Path::of("/admin/backup"),
            body: Bytes::new(),
            effect: Effect::Reads,
            stream: None,
            is_anonymous: false,
        };
        let body = self.open(call).await?.into_body();
        let bytes = body.size_hint().exact();
        Ok(BackupDownload { body, bytes })
    }
}

impl BackupDownload {
    /// Returns the length of the whole copy in bytes, if the server tells it.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Returns the next part of the copy; `None` after the last part.
    ///
    /// # Errors
    /// `Unavailable` if the connection breaks before the end. What came until then is no copy.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| {
                Error::unavailable("the connection broke in the middle of the copy")
                    .caused_by(error)
            })?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}
