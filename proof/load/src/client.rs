//! Connections to an HTTP server, with TLS if its URL says so; each with at most one request under way.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HeaderValue;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use gesta_report::secrets;

/// How a server is reached, beside its URL.
#[derive(Debug, Clone, Default)]
pub struct TargetOptions {
    /// The authorities that are believed instead of those of the operating system, in PEM form.
    pub ca_pem: Option<Vec<u8>>,
}

/// A server.
#[derive(Clone)]
pub struct Target {
    addresses: Vec<SocketAddr>,
    host: HeaderValue,
    /// What the URL has before the path.
    origin: String,
    /// The path of the URL, without a slash at its end.
    prefix: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("url", &self.to_string())
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// Its URL.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.prefix)
    }
}

impl Target {
    /// Reads `http://host:port/path` or `https://…`, and looks up the addresses of the host.
    ///
    /// # Errors
    /// A sentence that names the URL, without what may be a password, and what is wrong with it.
    pub async fn resolve(url: &str, options: &TargetOptions) -> Result<Self, String> {
        // It may hold a password all the same.
        let told = secrets::redacted_url(url);
        let wrong =
            |why: &str| format!("{told:?} is not a URL such as http://127.0.0.1:8080: {why}");
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| wrong("it has no ://"))?;
        let is_tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(wrong("it must begin with http:// or https://")),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if rest.contains(['?', '#']) || path.bytes().any(|byte| !byte.is_ascii_graphic()) {
            return Err(wrong("it must have no query and no fragment"));
        }
        if authority.contains('@') {
            return Err(wrong("a user does not belong into it; give a header"));
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (
                host,
                port.parse()
                    .map_err(|_| wrong("its port is not a number up to 65535"))?,
            ),
            _ => (authority, if is_tls { 443 } else { 80 }),
        };
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        let found = tokio::net::lookup_host((host, port)).await;
        let addresses: Vec<SocketAddr> =
            found.map_err(|error| wrong(&error.to_string()))?.collect();
        if addresses.is_empty() {
            return Err(wrong("its host has no address"));
        }
        let tls = match is_tls {
            true => {
                let name = ServerName::try_from(host.to_owned())
                    .map_err(|error| wrong(&error.to_string()))?;
                Some((connector(options)?, name))
            }
            false => None,
        };
        Ok(Self {
            addresses,
            host: HeaderValue::from_str(authority)
                .map_err(|_| wrong("its host has odd characters"))?,
            origin: format!("{scheme}://{authority}"),
            prefix: path.trim_end_matches('/').to_owned(),
            tls,
        })
    }

    /// Where it listens; the first of its addresses.
    pub fn address(&self) -> Option<SocketAddr> {
        self.addresses.first().copied()
    }

    /// The value of the header `host`.
    pub(crate) fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// The path of a request: below the path of the URL, or, if it came whole out of an answer, as it is.
    pub(crate) fn path(&self, path: &str, is_whole: bool) -> String {
        match path.strip_prefix(&self.origin) {
            Some(path) if is_whole => path.to_owned(),
            _ if is_whole => path.to_owned(),
            _ => format!("{}{path}", self.prefix),
        }
    }
}

fn connector(options: &TargetOptions) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    match &options.ca_pem {
        Some(pem) => {
            let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            let found = found.map_err(|error| format!("the authority cannot be used: {error}"))?;
            if found.is_empty() {
                return Err(
                    "the authority cannot be used: it holds no certificate in PEM form".into(),
                );
            }
            for authority in found {
                roots
                    .add(authority)
                    .map_err(|error| format!("the authority cannot be used: {error}"))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be used: {error}"))?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// A request that was not answered.
#[derive(Debug)]
pub struct SendError {
    /// The request, if nothing of it was sent.
    pub unsent: Option<Request<Full<Bytes>>>,
    /// What happened.
    pub cause: String,
}

/// A connection. Whoever drops it closes it.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // With the sender alone the connection would wait for the answer under way.
        self.driver.abort();
    }
}

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// What happened.
    pub async fn open(target: &Target) -> Result<Self, String> {
        let socket = TcpStream::connect(&*target.addresses)
            .await
            .map_err(|error| causes(&error))?;
        socket.set_nodelay(true).map_err(|error| causes(&error))?;
        let opened = match &target.tls {
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), socket).await;
                Self::over(stream.map_err(|error| refusal(&error))?).await
            }
            None => Self::over(socket).await,
        };
        opened.map_err(|error| causes(&error))
    }

    /// Speaks HTTP/1.1 over a stream.
    ///
    /// # Errors
    /// What hyper says.
    pub async fn over<S>(stream: S) -> hyper::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends with the connection; what breaks it shows in the request under way.
        let driver = tokio::spawn(async move {
            let _ = driver.await;
        });
        Ok(Self { sender, driver })
    }

    /// True if it can take a request.
    pub async fn is_ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    /// Sends a request; the head of the answer, whose body is still to come.
    ///
    /// # Errors
    /// What happened, with the request if nothing of it was sent.
    pub async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, SendError> {
        let sent = self.sender.try_send_request(request).await;
        sent.map_err(|mut error| SendError {
            unsent: error.take_message(),
            cause: causes(error.error()),
        })
    }

    /// Closes it; returns once its socket is closed.
    pub(crate) async fn close(mut self) {
        self.driver.abort();
        let _ = (&mut self.driver).await;
    }
}

/// Why TLS has not come about.
fn refusal(error: &std::io::Error) -> String {
    let inner = error.get_ref();
    match inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(_)) => {
            "it does not speak TLS: is its URL http:// and not https://?".into()
        }
        _ => format!("TLS: {}", causes(error)),
    }
}

/// An error with the causes behind it.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let told = error.to_string();
        if !text.ends_with(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        cause = error.source();
    }
    text
}
