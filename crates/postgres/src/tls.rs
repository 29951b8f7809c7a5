//! Encryption by rustls: which certificates are believed, by `sslmode` as libpq defines it.
//!
//! `prefer` and `require` encrypt without asking who answers, as libpq does; `verify-ca` checks the
//! chain, `verify-full` also the name. Only the last two withstand an attacker in the network.

use std::path::Path;
use std::sync::Arc;

use gesta_core::{Error, Result};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How connections are encrypted, as libpq's `sslmode` says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TlsMode {
    /// Connections are not encrypted.
    Disable,
    /// Connections are encrypted if the server offers it.
    Prefer,
    /// Connections are always encrypted, with any server that answers.
    Require,
    /// The server must show a certificate of a trusted authority.
    VerifyCa,
    /// The server must show a certificate of a trusted authority for this host.
    VerifyFull,
}

impl TlsMode {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "disable" => Self::Disable,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => return None,
        })
    }
}

/// Makes the connector. The trusted certificates are those of the operating system, or those of a PEM file.
pub(crate) fn connector(mode: TlsMode, roots: Option<&Path>) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS", &error))?;
    let config = match mode {
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => {
            let verifier = Arc::new(AnyCertificate { provider });
            builder
                .dangerous()
                .with_custom_certificate_verifier(verifier)
        }
        TlsMode::VerifyCa => {
            let roots = Arc::new(trusted(roots)?);
            let inner = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
            let inner = inner.map_err(|error| unusable("certificates", &error))?;
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyName { inner }))
        }
        TlsMode::VerifyFull => builder.with_root_certificates(trusted(roots)?),
    };
    Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
}

fn unusable(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::invalid("sslrootcert", format!("{what} cannot be used: {error}"))
}

fn trusted(file: Option<&Path>) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    match file {
        Some(path) => {
            let certificates = CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
                .map_err(|error| unusable(&path.display().to_string(), &error))?;
            for certificate in certificates {
                let added = store.add(certificate);
                added.map_err(|error| unusable(&path.display().to_string(), &error))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            store.add_parsable_certificates(found.certs);
        }
    }
    if store.is_empty() {
        let rule = match file {
            Some(path) => format!("must hold a certificate, found none in {}", path.display()),
            None => "must name a file with the authority of the server, for this system knows no authorities (is the \
                     package ca-certificates installed?)"
                .to_owned(),
        };
        return Err(Error::invalid("sslrootcert", rule));
    }
    Ok(store)
}

/// Believes any certificate, but the handshake must be signed by its key.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Believes a certificate of a trusted authority for any name.
#[derive(Debug)]
struct AnyName {
    inner: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        match self.inner.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        ) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
