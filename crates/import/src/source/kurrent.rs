//! KurrentDB and EventStoreDB, over their own protocol: all events are read in the order of their log.
//!
//! What hides events comes over too, at its place: metadata of streams, deletes (which are metadata) and tombstones.
//! Other system streams and links are left out: this store makes its own. `$maxAge` goes by the time at which an event
//! was stored, which the import makes anew; so the metadata are looked at before, and what the source hides for its age
//! is left out. Not here: the frames and messages, which the crate `gesta-grpc` has.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gesta_core::{Clock, Error, ErrorKind, Result, StreamMetadata, SystemClock, Timestamp};
use gesta_grpc::frame::{Frames, framed};
use gesta_grpc::ids::read_uuid;
use gesta_grpc::messages::shared::{Empty, StreamIdentifier};
use gesta_grpc::messages::streams::read_req::options::filter_options::{
    Expression, Filter, Window,
};
use gesta_grpc::messages::streams::read_req::options::uuid_option::Content as UuidForm;
use gesta_grpc::messages::streams::read_req::options::{
    self, AllOptions, ControlOption, CountOption, FilterOption, FilterOptions, ReadDirection,
    StreamOption, UuidOption, all_options,
};
use gesta_grpc::messages::streams::read_resp::read_event::RecordedEvent;
use gesta_grpc::messages::streams::{ReadReq, ReadResp, read_req, read_resp};
use gesta_grpc::request::Bounds;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{HeaderMap, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use tokio::net::TcpStream;

use super::{PAGE_BYTES, PAGE_EVENTS, Page, Source};
use crate::event::{Place, Role, SourceEvent};
use crate::options::Options;

const READ: &str = "/event_store.client.streams.Streams/Read";
/// How long connecting, and each message of an answer, may take.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A server to read from.
pub(super) struct Kurrent {
    address: Address,
    sender: Option<SendRequest<Full<Bytes>>>,
    /// Streams whose events get too old to be read, and after how long.
    ages: HashMap<String, Duration>,
    has_ages: bool,
}

/// What a connection string says.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Address {
    host: String,
    port: u16,
    /// Whether TLS is spoken. Then the certificate is verified.
    tls: bool,
    ca_file: Option<String>,
    /// The value of the header `authorization`.
    login: Option<String>,
}

impl Address {
    fn parse(url: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::invalid(
                "source",
                format!(
                    "must be kurrentdb://USER:PASSWORD@HOST:PORT?tls=false (or esdb://…), {why}"
                ),
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

    fn named(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
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

impl Kurrent {
    pub(super) async fn open(options: &Options) -> Result<Self> {
        let mut source = Self {
            address: Address::parse(&options.url)?,
            sender: None,
            ages: HashMap::new(),
            has_ages: false,
        };
        let wanted = source.options(Place::START, 1, None);
        source.call(wanted).await?;
        Ok(source)
    }

    fn options(&self, after: Place, count: u64, prefix: Option<&str>) -> read_req::Options {
        let from = match after == Place::START {
            true => all_options::AllOption::Start(Empty {}),
            false => all_options::AllOption::Position(options::Position {
                commit_position: after.major,
                prepare_position: after.minor,
            }),
        };
        let filter = match prefix {
            None => FilterOption::NoFilter(Empty {}),
            Some(prefix) => FilterOption::Filter(FilterOptions {
                checkpoint_interval_multiplier: 1,
                filter: Some(Filter::StreamIdentifier(Expression {
                    regex: String::new(),
                    prefix: vec![prefix.to_owned()],
                })),
                window: Some(Window::Max(1_000)),
            }),
        };
        read_req::Options {
            read_direction: ReadDirection::Forwards.into(),
            resolve_links: false,
            uuid_option: Some(UuidOption {
                content: Some(UuidForm::String(Empty {})),
            }),
            control_option: Some(ControlOption { compatibility: 1 }),
            stream_option: Some(StreamOption::All(AllOptions {
                all_option: Some(from),
            })),
            count_option: Some(CountOption::Count(count)),
            filter_option: Some(filter),
        }
    }

    /// Reads a page.
    async fn call(&mut self, wanted: read_req::Options) -> Result<Vec<RecordedEvent>> {
        let named = self.address.named();
        let answer = tokio::time::timeout(ANSWER_MAX, self.exchange(wanted)).await;
        let answer = answer.unwrap_or_else(|_| {
            let text = format!("the source {named} does not answer within {ANSWER_MAX:?}");
            Err(Error::unavailable(text))
        });
        if answer.is_err() {
            self.sender = None;
        }
        answer
    }

    async fn exchange(&mut self, wanted: read_req::Options) -> Result<Vec<RecordedEvent>> {
        let named = self.address.named();
        let fail = |error: &dyn std::fmt::Display| {
            Error::unavailable(format!("the source {named}: {error}"))
        };
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => self.address.connect().await?,
        };
        let scheme = if self.address.tls { "https" } else { "http" };
        let mut request = Request::post(format!("{scheme}://{named}{READ}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            // A follower of a cluster has all events too.
            .header("requires-leader", "false");
        if let Some(login) = &self.address.login {
            request = request.header("authorization", login);
        }
        let message = ReadReq {
            options: Some(wanted),
        };
        let request = request
            .body(Full::new(framed(&message)))
            .map_err(|error| fail(&error))?;
        sender.ready().await.map_err(|error| fail(&error))?;
        let answer = sender
            .send_request(request)
            .await
            .map_err(|error| fail(&error))?;
        let (head, mut body) = answer.into_parts();
        let mut trailers = head.headers;
        let mut frames = Frames::new(Bounds {
            bytes_max: usize::MAX,
            ..Bounds::OTHERS
        });
        let (mut found, mut bytes) = (Vec::new(), 0);
        while let Some(frame) = body.frame().await {
            match frame.map_err(|error| fail(&error))?.into_data() {
                Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
                Ok(_) if bytes >= PAGE_BYTES => {
                    // The rest is the next page.
                    self.sender = Some(sender);
                    return Ok(found);
                }
                Ok(mut data) => {
                    bytes += data.len();
                    while !data.is_empty() {
                        let message = frames.next(&mut data);
                        let message = message.map_err(|refusal| fail(&format!("{refusal:?}")))?;
                        if let Some(message) = message {
                            let message =
                                ReadResp::decode(message).map_err(|error| fail(&error))?;
                            if let Some(read_resp::Content::Event(event)) = message.content {
                                found.extend(event.event);
                            }
                        }
                    }
                }
            }
        }
        self.check(head.status.as_u16(), &trailers)?;
        self.sender = Some(sender);
        Ok(found)
    }

    /// Refuses the answer of a call that has failed.
    fn check(&self, status: u16, trailers: &HeaderMap) -> Result<()> {
        let text = |name: &str| {
            let value = trailers.get(name).and_then(|value| value.to_str().ok());
            percent_encoding::percent_decode_str(value.unwrap_or(""))
                .decode_utf8_lossy()
                .into_owned()
        };
        let named = self.address.named();
        let message = format!("the source {named} answers: {}", text("grpc-message"));
        match text("grpc-status").as_str() {
            "0" => Ok(()),
            "" => Err(Error::unavailable(format!(
                "the source {named} answers with status {status} and no status of gRPC: is it a KurrentDB server?"
            ))),
            "7" | "16" => Err(ErrorKind::Unsupported(format!(
                "{message}: reading all events needs a user who may, such as an administrator"
            ))
            .into()),
            "3" | "5" | "12" => Err(ErrorKind::Unsupported(message).into()),
            _ => Err(Error::unavailable(message)),
        }
    }

    /// Reads after how long the events of which streams cannot be read any more.
    async fn read_ages(&mut self) -> Result<()> {
        let mut after = Place::START;
        loop {
            let page = self
                .call(self.options(after, PAGE_EVENTS as u64, Some("$$")))
                .await?;
            let last = page.last().map(place_of);
            for event in page {
                self.see_age(&event);
            }
            match last.filter(|last| *last > after) {
                Some(last) => after = last,
                None => return Ok(()),
            }
        }
    }

    fn see_age(&mut self, event: &RecordedEvent) {
        let stream = stream_of(event.stream_identifier.as_ref());
        let Some(of) = stream.strip_prefix("$$").filter(|of| !of.starts_with('$')) else {
            return;
        };
        if type_of(event) != "$metadata" {
            return;
        }
        let metadata = StreamMetadata::parse_event(event.data.clone());
        match metadata.ok().and_then(|(_, metadata)| metadata.max_age) {
            Some(age) => drop(self.ages.insert(of.to_owned(), age)),
            None => drop(self.ages.remove(of)),
        }
    }

    fn event(&self, event: RecordedEvent, now: Timestamp) -> Result<SourceEvent> {
        let stream = stream_of(event.stream_identifier.as_ref());
        let event_type = type_of(&event).to_owned();
        let described = stream.strip_prefix("$$").map(str::to_owned);
        let time = event
            .metadata
            .get("created")
            .and_then(|ticks| ticks.parse::<i64>().ok());
        // Tenths of a microsecond since 1970.
        let time = time.map(|ticks| Timestamp(ticks / 10));
        let is_old = self.ages.get(&stream).zip(time).is_some_and(|(age, time)| {
            let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
            now.0.saturating_sub(time.0) > age
        });
        let role = match (&described, event_type.as_str()) {
            (Some(of), "$metadata") if !of.starts_with('$') => Role::StreamMetadata,
            (Some(_), _) => Role::LeftOut("events of system streams"),
            (None, "$streamDeleted") => Role::Tombstone,
            (None, "$>") => Role::LeftOut("links"),
            (None, _) if stream.starts_with('$') => Role::LeftOut("events of system streams"),
            (None, _) if is_old => Role::LeftOut("too old by the metadata of their streams"),
            (None, _) => Role::Event,
        };
        let (id, _) = read_uuid("id", event.id.as_ref()).map_err(|refusal| {
            Error::corrupt(format!("an event of the source has no id: {refusal:?}"))
        })?;
        let place = place_of(&event);
        Ok(SourceEvent {
            key: described
                .filter(|_| role == Role::StreamMetadata)
                .unwrap_or(stream)
                .into(),
            sequence: event.stream_revision,
            place,
            id: Some(id),
            event_type: Some(event_type),
            data: event.data,
            metadata: event.custom_metadata,
            time,
            role,
            ..SourceEvent::default()
        })
    }
}

fn stream_of(identifier: Option<&StreamIdentifier>) -> String {
    identifier.map_or_else(String::new, |id| {
        String::from_utf8_lossy(&id.stream_name).into_owned()
    })
}

fn type_of(event: &RecordedEvent) -> &str {
    event.metadata.get("type").map_or("", String::as_str)
}

fn place_of(event: &RecordedEvent) -> Place {
    Place {
        major: event.commit_position,
        minor: event.prepare_position,
    }
}

#[async_trait]
impl Source for Kurrent {
    fn identity(&self) -> String {
        // A cluster answers by any of its nodes, so nothing of the address is part of what it is.
        "all".into()
    }

    async fn page(&mut self, after: Place) -> Result<Page> {
        if !std::mem::replace(&mut self.has_ages, true)
            && let Err(error) = self.read_ages().await
        {
            self.has_ages = false;
            return Err(error);
        }
        // The event at the place itself comes too.
        let wanted = PAGE_EVENTS as u64 + 1;
        let found = self.call(self.options(after, wanted, None)).await?;
        let now = SystemClock.now();
        let mut page = Page {
            place: after,
            end: true,
            ..Page::default()
        };
        for event in found {
            if after != Place::START && place_of(&event) <= after {
                continue;
            }
            page.place = place_of(&event);
            page.end = false;
            self.see_age(&event);
            page.events.push(self.event(event, now)?);
        }
        Ok(page)
    }

    async fn count(&mut self, _after: Place) -> Result<Option<u64>> {
        Ok(None)
    }
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
}
