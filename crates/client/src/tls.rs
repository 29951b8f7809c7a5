//! Whom a client believes to be the server, and how it shows who it is.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use gesta_core::{Error, Result};
use hyper::header::HeaderValue;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The TLS settings of a client. With the defaults, the authorities of the operating system are believed.
#[derive(Clone, Default)]
pub struct Tls {
    /// The authorities that are believed instead of those of the operating system, in PEM form.
    pub ca_pem: Option<Vec<u8>>,
    /// The certificate that the client shows, and those that lead from it to an authority, in PEM form.
    pub certificate_pem: Option<Vec<u8>>,
    /// The private key of the certificate, in PEM form.
    pub key_pem: Option<Vec<u8>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca_pem.is_some())
            .field("certificate", &self.certificate_pem.is_some())
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Makes the configuration of connections. The authorities of the operating system are read only if connections are
    /// `encrypted`.
    pub(crate) fn config(&self, encrypted: bool) -> Result<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable("TLS", error))?;
        let builder = builder.with_root_certificates(self.roots(encrypted)?);
        match (&self.certificate_pem, &self.key_pem) {
            (None, None) => Ok(builder.with_no_client_auth()),
            (Some(certificate), Some(key)) => {
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|error| unusable("the key of the client", error))?;
                let chain = certificates("the certificate of the client", certificate)?;
                let config = builder.with_client_auth_cert(chain, key);
                config.map_err(|error| unusable("the certificate of the client", error))
            }
            _ => Err(Error::invalid(
                "tls",
                "must have a certificate and its key, or neither",
            )),
        }
    }

    fn roots(&self, encrypted: bool) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        match &self.ca_pem {
            Some(pem) => {
                for authority in certificates("the authority", pem)? {
                    roots
                        .add(authority)
                        .map_err(|error| unusable("the authority", error))?;
                }
            }
            None if encrypted => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
            }
            None => {}
        }
        Ok(roots)
    }
}

fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| unusable(what, error))?;
    if found.is_empty() {
        return Err(unusable(what, "it holds no certificate in PEM form"));
    }
    Ok(found)
}

/// Tells why TLS has refused a connection, and what to do; `None` if a connection failed for another reason.
pub(crate) fn refusal(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    use rustls::CertificateError as Certificate;
    let why = match cause(error)? {
        rustls::Error::InvalidMessage(_) => {
            "it does not speak TLS: is its URL http:// and not https://?".to_owned()
        }
        rustls::Error::InvalidCertificate(Certificate::UnknownIssuer) => {
            "its certificate is of an authority that is not known here: name the authority's file \
             (--ca-file, Tls::ca_pem)"
                .to_owned()
        }
        rustls::Error::InvalidCertificate(
            Certificate::Expired | Certificate::ExpiredContext { .. },
        ) => "its certificate has expired".to_owned(),
        rustls::Error::InvalidCertificate(
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. },
        ) => "its certificate is for another name than the one in the URL".to_owned(),
        other if other.to_string().contains("CaUsedAsEndEntity") => {
            "its certificate is that of an authority (CA:TRUE), which is not taken for a server's: make one with \
             `openssl req -x509 … -addext basicConstraints=critical,CA:FALSE`, or with --tls-self-signed"
                .to_owned()
        }
        other => other.to_string(),
    };
    Some(why)
}

/// Finds the error of TLS among the causes of an error.
fn cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // An error of the system shows the cause of the error that it holds, but not that one itself.
        let held = error.downcast_ref::<std::io::Error>();
        next = match held.and_then(std::io::Error::get_ref) {
            Some(held) => Some(held),
            None => error.source(),
        };
    }
    None
}

fn unusable(what: &str, why: impl fmt::Display) -> Error {
    Error::invalid("tls", format!("{what} cannot be used: {why}"))
}

/// How a client shows who it is.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The client shows an API token.
    Token(String),
    /// The client shows a user and the password.
    Password {
        /// The name of the user.
        login: String,
        /// The password of the user.
        password: String,
    },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Credentials::Token(_) => "Token(..)",
            Credentials::Password { .. } => "Password(..)",
        })
    }
}

impl Credentials {
    /// Returns the value of the `Authorization` header that shows the credentials.
    pub(crate) fn header(&self) -> Result<HeaderValue> {
        let text = match self {
            Credentials::Token(token) => format!("Bearer {token}"),
            Credentials::Password { login, password } => {
                format!(
                    "Basic {}",
                    BASE64_STANDARD.encode(format!("{login}:{password}"))
                )
            }
        };
        let mut value = HeaderValue::try_from(text)
            .map_err(|_| Error::invalid("credentials", "must be printable"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}
