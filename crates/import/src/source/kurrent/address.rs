//! Where a KurrentDB server is: its connection string, and the connection.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gesta_core::{Error, Result};
use http_body_util::Full;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use tokio::net::TcpStream;

use crate::options::PlainLogin;

/// What a connection string says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Address {
    host: String,
    port: u16,
    /// Whether TLS is spoken. Then the certificate is verified.
    pub(super) tls: bool,
    ca_file: Option<String>,
    /// The value of the header `authorization`.
    pub(super) login: Option<String>,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::invalid(
                "source",
                format!("must be kurrentdb://USER:PASSWORD@HOST:PORT (or esdb://…), {why}"),
            )
        };
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let place = place.trim_end_matches('/');
        let (login, hosts) = match place.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, place),
        };
        if hosts.contains(',') {
            return Err(wrong(
                "with one host: a cluster can be read from any of its nodes",
            ));
        }
        let (host, port) = match hosts.rsplit_once(':') {
            Some((host, port)) => (
                host,
                port.parse()
                    .map_err(|_| wrong("with a port that is a number"))?,
            ),
            None => (hosts, 2113),
        };
        if host.is_empty() {
            return Err(wrong("with a host"));
        }
        let decoded = |text: &str| {
            percent_encoding::percent_decode_str(text)
                .decode_utf8_lossy()
                .into_owned()
        };
        let login = match login.map(|login| login.split_once(':')) {
            None => None,
            Some(Some((user, password))) => {
                let text = format!("{}:{}", decoded(user), decoded(password));
                Some(format!("Basic {}", STANDARD.encode(text)))
            }
            Some(None) => return Err(wrong("with a password beside the user")),
        };
        let mut address = Self {
            host: host.to_owned(),
            port,
            tls: true,
            ca_file: None,
            login,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (key.to_ascii_lowercase().as_str(), value) {
                ("tls", "false") => address.tls = false,
                ("tls", _) => {}
                ("tlscafile", file) => address.ca_file = Some(decoded(file)),
                ("tlsverifycert", "false") => {
                    return Err(wrong(
                        "without tlsVerifyCert=false: name the authority by tlsCaFile instead",
                    ));
                }
                // What other clients are told besides (time-outs, node preference) has no meaning here.
                _ => {}
            }
        }
        Ok(address)
    }

    /// Refuses to show a login to everybody between this machine and the source, unless that is allowed.
    pub(super) fn check_login(&self, plain: PlainLogin) -> Result<()> {
        let shows_login = self.login.is_some() && !self.tls && !self.is_loopback();
        match plain {
            PlainLogin::Loopback if shows_login => Err(Error::invalid(
                "source",
                format!(
                    "must do without tls=false, for the password would travel to {} as plain text; where nobody can \
                     listen on the way, `--plain-http` (`Options::plain_login`) allows it",
                    self.host
                ),
            )),
            PlainLogin::Loopback | PlainLogin::Anywhere => Ok(()),
        }
    }

    fn is_loopback(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let is_loopback = |ip: IpAddr| ip.is_loopback();
        host == "localhost" || host.parse().is_ok_and(is_loopback)
    }

    pub(super) fn named(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    pub(super) async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let named = self.named();
        let fail = |error: &dyn std::fmt::Display| {
            Error::unavailable(format!("the source {named}: {error}"))
        };
        let socket = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|error| fail(&error))?;
        socket.set_nodelay(true).map_err(|error| fail(&error))?;
        match self.tls {
            false => handshake(socket).await.map_err(|error| {
                fail(&format!(
                    "{error} (does this port speak TLS? then leave out tls=false)"
                ))
            }),
            true => {
                let connector = tokio_rustls::TlsConnector::from(Arc::new(self.tls_config()?));
                let name = ServerName::try_from(self.host.clone()).map_err(|error| fail(&error))?;
                let socket = connector.connect(name, socket).await.map_err(|error| {
                    fail(&format!("{error} (tls=false if this port does not speak TLS, tlsCaFile names an authority)"))
                })?;
                handshake(socket).await.map_err(|error| fail(&error))
            }
        }
    }

    fn tls_config(&self) -> Result<rustls::ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        match &self.ca_file {
            Some(path) => {
                let wrong = |error: &dyn std::fmt::Display| {
                    Error::invalid("tlsCaFile", format!("{path}: {error}"))
                };
                let found = rustls::pki_types::CertificateDer::pem_file_iter(path)
                    .map_err(|error| wrong(&error))?;
                for certificate in found {
                    let certificate = certificate.map_err(|error| wrong(&error))?;
                    roots.add(certificate).map_err(|error| wrong(&error))?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid("tls", error.to_string()))?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

async fn handshake<S>(socket: S) -> std::result::Result<SendRequest<Full<Bytes>>, hyper::Error>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, driver) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(4 << 20)
        .handshake(TokioIo::new(socket))
        .await?;
    // Ends with the connection; what breaks it shows in the calls under way.
    tokio::spawn(async move { drop(driver.await) });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_strings_are_read() {
        let parsed = Address::parse(
            "esdb://admin:change%40it@db.example:2114?tls=false&keepAliveInterval=5",
        )
        .unwrap();
        assert_eq!(
            (parsed.named().as_str(), parsed.tls),
            ("db.example:2114", false)
        );
        let login = format!("Basic {}", STANDARD.encode("admin:change@it"));
        assert_eq!(parsed.login, Some(login));
        let secure = Address::parse("kurrentdb://db.example/").unwrap();
        assert_eq!((secure.port, secure.tls), (2113, true));
        for wrong in [
            "esdb://a,b,c",
            "esdb://:2113",
            "esdb://a:x",
            "esdb://user@a:1",
            "esdb://a?tlsVerifyCert=false",
        ] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// What happened: the password of an administrator of the old store was sent to any host without TLS, if the
    /// connection string said so, as many do that were made for a test. Goal: to another machine it is not, unless
    /// somebody says so.
    #[test]
    fn a_password_does_not_travel_as_plain_text() {
        for (url, is_shown) in [
            ("esdb://admin:x@db.example:2113?tls=false", true),
            ("esdb://admin:x@192.0.2.9?tls=false", true),
            ("esdb://admin:x@localhost.example?tls=false", true),
            ("esdb://admin:x@db.example", false),
            ("esdb://db.example?tls=false", false),
            ("esdb://admin:x@localhost:2113?tls=false", false),
            ("esdb://admin:x@127.0.0.7?tls=false", false),
            ("esdb://admin:x@[::1]:2113?tls=false", false),
        ] {
            let address = Address::parse(url).unwrap();
            let checked = address.check_login(PlainLogin::Loopback);
            assert_eq!(checked.is_err(), is_shown, "{url}");
            assert!(address.check_login(PlainLogin::Anywhere).is_ok(), "{url}");
            if let Err(error) = checked {
                let error = error.to_string();
                assert!(error.contains("--plain-http"), "{error}");
                assert!(!error.contains("admin"), "{error}");
            }
        }
    }
}
