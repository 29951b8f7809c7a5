//! Tests TLS: real connections, files that change, clients that must show a certificate, and hostile handshakes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gesta_memory::MemoryStore;
use gesta_server::{Config, StartError, TlsFiles};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rand::{RngExt, SeedableRng};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::client::{Server, config, soon};
use crate::logged::Logged;

/// An authority that makes certificates for `localhost`.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
}

/// A certificate and its key, in PEM form.
struct Identity {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        Self {
            certificate: certificate.der().clone(),
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    fn identity(&self) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// Makes a client that trusts this authority, and shows this certificate if one is given.
    fn client(&self, identity: Option<&Identity>, protocols: &[&str]) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(of) => {
                let chain = CertificateDer::from_pem_slice(of.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(of.key.as_bytes()).expect("a key");
                let chain = vec![chain.expect("a certificate")];
                builder.with_client_auth_cert(chain, key).expect("usable")
            }
        };
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    }
}

impl Identity {
    fn write(&self, folder: &Path) -> TlsFiles {
        let files = TlsFiles::new(folder.join("cert.pem"), folder.join("key.pem"));
        std::fs::write(&files.certificate, &self.certificate).expect("written");
        std::fs::write(&files.key, &self.key).expect("written");
        TlsFiles {
            reread_every: Duration::from_millis(10),
            ..files
        }
    }
}

async fn started(tls: TlsFiles, change: impl FnOnce(&mut Config)) -> Server {
    let mut config = Config {
        tls: Some(tls),
        ..config()
    };
    change(&mut config);
    Server::with(config, Arc::new(MemoryStore::new())).await
}

async fn tcp(server: &Server) -> TcpStream {
    let connected = TcpStream::connect(server.handle.local_addr()).await;
    connected.expect("a connection")
}

async fn connect(server: &Server, client: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("localhost").expect("a name");
    soon(client.connect(name, tcp(server).await)).await
}

/// Returns the whole answer to `GET /info` on a connection of HTTP/1.1. It is empty if the server closes before it
/// answers.
async fn info(server: &Server, client: &TlsConnector) -> String {
    let Ok(mut stream) = connect(server, client).await else {
        return String::new();
    };
    let request = b"GET /info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut answer = Vec::new();
    // With TLS 1.3 a client learns only now that its certificate was refused.
    let _ = stream.write_all(request).await;
    let _ = soon(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// Goal: HTTP/1.1 and HTTP/2 on one port, as the client asks for it; only who knows the authority connects.
#[tokio::test]
async fn both_versions_of_http_are_spoken_over_tls() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().expect("a folder"));
    let server = started(authority.identity().write(folder.path()), |_| {}).await;
    for protocols in [&["http/1.1"][..], &[]] {
        let answer = info(&server, &authority.client(None, protocols)).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    let client = authority.client(None, &["h2", "http/1.1"]);
    let stream = connect(&server, &client).await.expect("connected");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let spoken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = soon(spoken).await.expect("HTTP/2");
    tokio::spawn(connection);
    let request = Request::get("https://localhost/info").body(Empty::<Bytes>::new());
    let answer = soon(sender.send_request(request.expect("a request"))).await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.status(), 200);
    soon(answer.into_body().collect()).await.expect("whole");
    assert_eq!(info(&server, &Authority::new().client(None, &[])).await, "");
}

/// Goal: before its certificate ends, a server says so in its log and in its metrics.
#[tokio::test]
async fn the_end_of_a_certificate_is_told() {
    let (logged, _guard) = Logged::begin();
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new();
    for (year, told) in [(4_000, ""), (2_001, "has ended")] {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let certificate = params.signed_by(&key, &authority.issuer).expect("signed");
        let files = Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
        .write(folder.path());
        let server = started(files, |_| {}).await;
        if !told.is_empty() {
            soon(async {
                while logged.with(told).is_empty() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
            continue;
        }
        let mut stream = connect(&server, &authority.client(None, &[]))
            .await
            .expect("connected");
        let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.expect("sent");
        let mut answer = String::new();
        let _ = soon(stream.read_to_string(&mut answer)).await;
        let line = answer
            .lines()
            .find(|line| line.starts_with("gesta_tls_certificate_remaining_seconds{"));
        let left = line.and_then(|line| line.rsplit(' ').next()?.parse::<i64>().ok());
        assert!(left.is_some_and(|left| left > 1_000_000_000), "{line:?}");
        assert!(logged.with("certificate of this server").is_empty());
    }
}

/// Goal: a client that speaks plain HTTP hears why nothing works.
#[tokio::test]
async fn plain_http_is_told_to_use_https() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = started(Authority::new().identity().write(folder.path()), |_| {}).await;
    let answer = server
        .raw("GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    let answer = answer.rest().await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("https://"), "{answer}");
}

/// Goal: new files are used for new connections without a restart; files that do not fit together, or are gone, change
/// nothing, and the connection that was there lives on.
#[tokio::test]
async fn files_are_read_again_when_they_change() {
    let (logged, _guard) = Logged::begin();
    let (old, new) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().expect("a folder");
    let files = old.identity().write(folder.path());
    let server = started(files.clone(), |_| {}).await;
    let mut kept = connect(&server, &old.client(None, &[]))
        .await
        .expect("connected");
    let told = |text: &'static str, times: usize| {
        let logged = &logged;
        soon(async move {
            while logged.with(text).len() < times {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    };
    // The certificate alone does not fit the key.
    let identity = new.identity();
    let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
    for (times, wrong) in [&identity.certificate, "no PEM", "", broken]
        .iter()
        .enumerate()
    {
        // In one step: an empty file on the way would be told too, and then not again as the third one.
        let next = folder.path().join("next");
        std::fs::write(&next, wrong).expect("written");
        std::fs::rename(&next, &files.certificate).expect("replaced");
        told("cannot be used", times + 1).await;
        assert_ne!(info(&server, &old.client(None, &[])).await, "");
    }
    std::fs::remove_file(&files.key).expect("removed");
    told("cannot be read", 1).await;
    assert_ne!(info(&server, &old.client(None, &[])).await, "");
    assert_eq!(logged.with("cannot be read").len(), 1);
    identity.write(folder.path());
    let taken = async {
        while info(&server, &new.client(None, &[])).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(taken).await;
    assert_eq!(info(&server, &old.client(None, &[])).await, "");
    let request = b"GET /info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    kept.write_all(request).await.expect("still there");
    let mut answer = Vec::new();
    soon(kept.read_to_end(&mut answer)).await.expect("answered");
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
}

/// Goal: with an authority for clients, only its certificates connect.
#[tokio::test]
async fn clients_must_show_a_certificate_if_one_is_asked_for() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().expect("a folder");
    let mut files = authority.identity().write(folder.path());
    let path = folder.path().join("clients.pem");
    std::fs::write(&path, &clients.pem).expect("written");
    files.client_ca = Some(path);
    let server = started(files, |_| {}).await;
    let shown = |identity: Option<Identity>| {
        let client = authority.client(identity.as_ref(), &[]);
        let server = &server;
        async move { info(server, &client).await }
    };
    assert_eq!(shown(None).await, "");
    assert_eq!(shown(Some(Authority::new().identity())).await, "");
    assert_eq!(shown(Some(authority.identity())).await, "");
    let answer = shown(Some(clients.identity())).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// Goal: what is no handshake ends the connection and nothing else; one that does not go on is closed in time.
#[tokio::test]
async fn hostile_handshakes_are_bounded() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().expect("a folder"));
    let server = started(authority.identity().write(folder.path()), |config| {
        config.handshake_max = Duration::from_millis(300);
    })
    .await;
    let seed = rand::random();
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    for _ in 0..200 {
        let mut noise = vec![0; random.random_range(1..600)];
        random.fill(&mut noise[..]);
        // Half of them begin like a handshake.
        if random.random() {
            noise.splice(..1, [22, 3, 1, 0, 200]);
        }
        let mut socket = tcp(&server).await;
        let _ = socket.write_all(&noise).await;
        let _ = socket.shutdown().await;
        let closed = soon(socket.read_to_end(&mut Vec::new())).await;
        drop(closed);
    }
    let client = authority.client(None, &[]);
    // A client of a busy machine may be late, too.
    let served = async || {
        while info(&server, &client).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    println!("seed {seed}");
    soon(served()).await;
    let mut hanging = Vec::new();
    for beginning in [&[22][..], &[]] {
        let mut socket = tcp(&server).await;
        socket.write_all(beginning).await.expect("written");
        hanging.push(socket);
    }
    for mut socket in hanging {
        let read = soon(socket.read(&mut [0; 100])).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    soon(served()).await;
    soon(server.handle.shutdown()).await;
}

/// Goal: silent clients, as many as may be, keep nobody out. What happened: each of them had a place for as long as a
/// handshake may take, and who came later was closed at once.
#[tokio::test]
async fn silent_handshakes_give_way_to_later_clients() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().expect("a folder"));
    let server = started(authority.identity().write(folder.path()), |config| {
        config.handshake_max = Duration::from_secs(3_600);
        config.handshakes_max = 4;
    })
    .await;
    let client = authority.client(None, &[]);
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(tcp(&server).await);
        let answer = info(&server, &client).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    let read = soon(silent[0].read(&mut [0])).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    soon(server.handle.shutdown()).await;
}

/// Goal: files that cannot be used are refused at the start, by name, without what stands in them.
#[tokio::test]
async fn files_that_cannot_be_used_refuse_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = Authority::new().identity().write(folder.path());
    let other = Authority::new().identity();
    for (path, text) in [
        (&files.certificate, "hunter2"),
        (&files.key, "hunter2"),
        (&files.key, &other.key),
    ] {
        let before = std::fs::read(path).expect("there");
        std::fs::write(path, text).expect("written");
        let config = Config {
            tls: Some(files.clone()),
            ..config()
        };
        let error = gesta_server::bind(config).await.expect_err("refused");
        assert!(matches!(error, StartError::Tls(_)), "{error}");
        let told = error.to_string();
        assert!(
            told.contains(".pem: ") && !told.contains("hunter2"),
            "{told}"
        );
        std::fs::write(path, before).expect("written");
    }
}
