//! TLS: the certificate that the server shows, which is read again when its files change, and the handshake.
//!
//! Why contents are compared and not times of files: certificates are also replaced by links that are moved, and a file
//! is small. Why the files are polled: that needs no support of the file system, and a certificate is replaced weeks
//! before it expires.
//! Invariants: a file that cannot be read, or does not fit the others, never takes the place of what works, and the log
//! is told once; a handshake has a longest time, and only so many run at once; a connection keeps the certificate that
//! it began with.
//! Not here: who may do what (a client certificate lets a client connect, it does not say who the client is).

pub(crate) mod certificate;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use gesta_core::{Clock, SystemClock};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{WebPkiClientVerifier, danger::ClientCertVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::shared::problem::{MALFORMED_REQUEST, Problem};
use crate::tls::certificate::Nearness;

/// First byte of every TLS connection: the type of a record that holds a handshake.
const HANDSHAKE_RECORD: u8 = 22;

/// Files of TLS, in PEM form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// File with the certificate of the server, and those that lead from it to a trusted authority.
    pub certificate: PathBuf,
    /// File with the private key of the certificate.
    pub key: PathBuf,
    /// File with the authorities one of which must have issued the certificate that every client shows; `None` if
    /// clients show none.
    pub client_ca: Option<PathBuf>,
    /// Time between two reads of the files.
    pub reread_every: Duration,
}

impl TlsFiles {
    /// Makes the files of a certificate and its key. They are read every ten seconds, and clients show no certificate.
    #[must_use]
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            certificate: certificate.into(),
            key: key.into(),
            client_ca: None,
            reread_every: Duration::from_secs(10),
        }
    }
}

/// An error of TLS: a file, and what is wrong with it. Contents of files are never shown.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct TlsError {
    path: PathBuf,
    why: String,
}

fn wrong(path: &Path, why: impl std::fmt::Display) -> TlsError {
    TlsError {
        path: path.to_owned(),
        why: why.to_string(),
    }
}

/// The contents of the files.
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let read = |path: &Path| std::fs::read(path).map_err(|error| wrong(path, error));
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            client_ca: files.client_ca.as_deref().map(read).transpose()?,
        })
    }

    /// Returns a number that changes when the contents do.
    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.certificate, &self.key, &self.client_ca).hash(&mut hasher);
        hasher.finish()
    }

    fn config(&self, files: &TlsFiles) -> Result<InUse, TlsError> {
        let of_certificate = |why: String| wrong(&files.certificate, why);
        let chain = certificates(&self.certificate, &files.certificate)?;
        let end = certificate::end_of(&chain);
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| wrong(&files.key, format!("no private key in PEM form: {error}")))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| of_certificate(error.to_string()))?;
        let builder = match (&self.client_ca, &files.client_ca) {
            (Some(pem), Some(path)) => builder.with_client_cert_verifier(verifier(pem, path)?),
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| of_certificate(format!("it and its key cannot be used: {error}")))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(InUse {
            config: Arc::new(config),
            end,
        })
    }
}

/// What new connections are given.
#[derive(Clone)]
struct InUse {
    config: Arc<ServerConfig>,
    /// When the certificate ends, in seconds since 1970, if that can be read.
    end: Option<i64>,
}

fn certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| wrong(path, format!("not in PEM form: {error}")))?;
    if found.is_empty() {
        return Err(wrong(path, "holds no certificate in PEM form"));
    }
    Ok(found)
}

fn verifier(pem: &[u8], path: &Path) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(pem, path)? {
        let added = roots.add(authority);
        added.map_err(|error| wrong(path, format!("not a usable authority: {error}")))?;
    }
    let provider = Arc::new(ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| wrong(path, error))
}

/// TLS of a server.
pub(crate) struct Tls {
    files: TlsFiles,
    /// Digest of what the files held when the server was started.
    digest: u64,
    in_use: RwLock<InUse>,
}

/// What was found when the files were read again.
enum Look {
    Same,
    Changed(u64, Result<InUse, TlsError>),
    Unreadable(TlsError),
}

/// Reads the files again. `known` is the digest of the last contents, if they could be read.
fn look(files: &TlsFiles, known: Option<u64>) -> Look {
    let contents = match Contents::read(files) {
        Ok(contents) => contents,
        Err(error) => return Look::Unreadable(error),
    };
    let digest = contents.digest();
    if known == Some(digest) {
        return Look::Same;
    }
    Look::Changed(digest, contents.config(files))
}

impl Tls {
    /// Reads the files.
    pub(crate) fn read(files: TlsFiles) -> Result<Self, TlsError> {
        let contents = Contents::read(&files)?;
        Ok(Self {
            in_use: RwLock::new(contents.config(&files)?),
            digest: contents.digest(),
            files,
        })
    }

    /// Reads the files again and again, until `stopping`.
    pub(crate) async fn follow(self: Arc<Self>, stopping: CancellationToken) {
        let mut known = Some(self.digest);
        let mut told = Nearness::default();
        loop {
            self.tell_of_end(&mut told);
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(self.files.reread_every) => {}
            }
            let files = self.files.clone();
            let found = tokio::task::spawn_blocking(move || look(&files, known)).await;
            match found.unwrap_or(Look::Same) {
                Look::Same => {}
                Look::Unreadable(error) => {
                    if known.take().is_some() {
                        tracing::error!(%error, "a file of TLS cannot be read; the certificate stays as it is");
                    }
                }
                Look::Changed(digest, config) => {
                    known = Some(digest);
                    self.take(config);
                }
            }
        }
    }

    /// Tells the log when the end of the certificate has come nearer.
    fn tell_of_end(&self, told: &mut Nearness) {
        let Some(left) = self.seconds_left() else {
            return;
        };
        let nearness = certificate::nearness(left);
        if nearness > *told {
            certificate::tell(nearness, left, &self.files.certificate);
        }
        *told = nearness;
    }

    /// Returns how many seconds are left until the certificate ends, less than 0 after that; `None` if its end cannot
    /// be read.
    pub(crate) fn seconds_left(&self) -> Option<i64> {
        let end = self.in_use().end?;
        Some(certificate::seconds_left(end, SystemClock.now()))
    }

    /// Returns the name of the file with the certificate.
    pub(crate) fn certificate(&self) -> String {
        self.files.certificate.display().to_string()
    }

    fn take(&self, read: Result<InUse, TlsError>) {
        match read {
            Ok(read) => {
                *self.in_use.write().unwrap_or_else(PoisonError::into_inner) = read;
                tracing::info!("the files of TLS were read again and are used from now on");
            }
            Err(error) => {
                tracing::error!(%error, "a file of TLS cannot be used; the certificate stays as it is");
            }
        }
    }

    fn in_use(&self) -> InUse {
        let in_use = self.in_use.read().unwrap_or_else(PoisonError::into_inner);
        in_use.clone()
    }

    /// Speaks TLS on a connection; returns `None` if the client does not.
    pub(crate) async fn accept(&self, mut socket: TcpStream) -> Option<TlsStream<TcpStream>> {
        let mut first = [0];
        match socket.peek(&mut first).await {
            Ok(1) if first[0] == HANDSHAKE_RECORD => {}
            Ok(1) if first[0].is_ascii_uppercase() => {
                let told = socket.write_all(&plain_http_answer()).await;
                let closed = socket.shutdown().await;
                tracing::debug!(?told, ?closed, "a client speaks HTTP without TLS");
                return None;
            }
            _ => return None,
        }
        match TlsAcceptor::from(self.in_use().config).accept(socket).await {
            Ok(stream) => Some(stream),
            Err(error) => {
                tracing::debug!(%error, "a TLS handshake failed");
                None
            }
        }
    }
}

/// Makes the answer to a client that sends HTTP where TLS is expected.
fn plain_http_answer() -> Vec<u8> {
    let problem = Problem::new(
        MALFORMED_REQUEST,
        "this port speaks TLS only: the address must begin with https://",
    );
    let document = problem.to_body();
    let mut answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        document.len()
    )
    .into_bytes();
    answer.extend_from_slice(&document);
    answer
}
