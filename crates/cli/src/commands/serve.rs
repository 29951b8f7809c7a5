//! `gesta serve`: opens the store, serves it, and on Ctrl-C, SIGTERM or SIGHUP drains and closes it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, pending};
use gesta::metrics::{ClusterMetrics, PipelineMetrics};
use gesta_access::Access;
use gesta_core::units::Span;
use gesta_core::{
    Clock, ErrorKind, EventStore, HostPort, LastingFault, StoreInfo, SystemClock, warn_once,
};
use gesta_server::StartError;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::address::{resolve, who_has};
use super::node::{self, OfNode};
use super::served::Served;
use super::supervisor::{Supervisor, look_at};
use super::{access, open_files, tls};
use crate::args::{Global, Serve};
use crate::config::{
    ClusterFlags, Config, DEFAULT_STORE, FILE_VARIABLE, Flags, Layers, LogFlags, ServerFlags,
    TlsFlags, text_of, variables,
};
use crate::exit::{Code, Failure, Outcome};
use crate::named_store::{self, Named};
use crate::private_file;
use crate::process::ProcessMetrics;
use crate::version;

/// A node that has beaten in the last minute is taken for alive when a server warns that it is no node.
const ALIVE_MICROS: i64 = 60_000_000;
/// The pause between two attempts to open a store that is waited for.
const WAIT_PAUSE: Duration = Duration::from_millis(500);

pub(super) async fn run(global: Global, serve: Serve, store_file: Option<PathBuf>) -> Outcome {
    let named_by = match (&global.store_file, global.store_urls()) {
        (None, Some(_)) => "--store",
        (None, None) if std::env::var_os("GESTA_STORE").is_some() => "GESTA_STORE",
        _ => "the configuration",
    };
    let (config, warnings) = load(global, &serve)?;
    if config.store != DEFAULT_STORE {
        named_store::set(Named::new(config.store.as_str(), store_file));
    }
    if super::is_server(&config.store) {
        return Err(Failure::usage(format!(
            "serve needs a database; {named_by} names a server, {}: give --store sqlite:PATH or postgres://…",
            // Some write a password before the host.
            config.store.rsplit('@').next().unwrap_or_default()
        )));
    }
    super::start_log(config.log.format, &config.log.filter)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let advertised = advertised(&config)?;
    let listen = resolve("listen", 2113, &config.listen).await?;
    let mut config = config;
    config.server.connections_max = open_files::fitting(config.server.connections_max);
    let tls = tls::files(&config.tls, listen, advertised.as_ref())?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let bound = gesta_server::bind(server_config(&config, listen, advertised.clone(), tls)).await;
    let bound = match bound {
        Ok(bound) => bound,
        Err(error) => return Err(cannot_listen(&error).await),
    };
    let mut options = options(&config);
    let wrong_password = access::wrong_admin_password(&config)?;
    if wrong_password.is_some() {
        options = options.missing(gesta::Missing::Refuse);
    }
    let node = node::prepare(&config).await?;
    let database = open_database(&config, &options, serve.wait_for_store).await;
    let database = database.map_err(|failure| match (&failure, wrong_password) {
        // Whether the store is missing or not as it should be, both are true.
        (Failure::Store(error), Some(wrong)) if matches!(error.kind(), ErrorKind::Schema(_)) => {
            Failure::usage(format!("{wrong} ({error})"))
        }
        _ => failure,
    })?;
    let node = match node {
        Some(node) => Some(node.join(&options, &database).await?),
        None => None,
    };
    let store = match &node {
        Some(node) => Arc::clone(node.store()),
        None => {
            warn_of_nodes(&database).await;
            database.start(&options)?
        }
    };
    let membership_ended = match &node {
        Some(node) => node.ended_by_itself(),
        None => pending().boxed(),
    };
    let mut registry = gesta_server::Registry::default();
    registry.register_collector(Box::new(ProcessMetrics::new()));
    registry.register_collector(Box::new(PipelineMetrics::new(Arc::clone(&store))));
    registry.register(
        "gesta_build_info",
        "The version of the program, and the commit that it was built from",
        build_info(),
    );
    let served = Arc::new(Served {
        database,
        store: Arc::clone(&store),
    });
    let bound = bound.with_backups(Arc::clone(&served) as _);
    let mut bound = bound.with_maintenance(served);
    let shared: Arc<dyn EventStore> = match node {
        Some(node) => {
            let address = match &advertised {
                Some(address) => address.to_string(),
                None => node::client_address(&node, bound.local_addr()),
            };
            node.set_client_address(&address);
            registry.register_collector(Box::new(ClusterMetrics::new(Arc::clone(&node))));
            bound = bound.with_cluster(Arc::new(OfNode(Arc::clone(&node))));
            node
        }
        None => store,
    };
    let info = shared.info().await?;
    let access = access::start(&config, listen, &shared).await?;
    let asks = access.as_ref().is_some_and(Access::is_on);
    if asks && scheme == "http" && !config.behind_proxy && !listen.ip().is_loopback() {
        tracing::warn!(
            %listen,
            "passwords and tokens travel as plain text to this address: speak TLS (--tls-certificate), or let a proxy in \
             front do so and say --behind-proxy"
        );
    }
    if let Some(access) = &access {
        bound = bound.with_access(access.clone());
    }
    let server = bound.serve(Arc::clone(&shared), registry);
    // Signals are received before the address is told, since whoever reads the address may stop the server at once.
    let stops = Stops::new()?;
    let asks_who_calls = access.as_ref().is_some_and(Access::is_on);
    greet(&info, &config.store, scheme, server.local_addr());
    let is_new = info.heads.iter().all(|head| head.0 == 0);
    if is_new && scheme == "http" && !asks_who_calls && listen.ip().is_loopback() {
        suggest(server.local_addr());
    }
    let supervisor = Supervisor::of_environment();
    if let Some(supervisor) = &supervisor {
        supervisor.is_ready(&format!("listening on {scheme}://{}", server.local_addr()));
        // Ends with the process, for the server is alive as long as it stops.
        let store = Arc::clone(&shared);
        tokio::spawn(Arc::clone(supervisor).watch(move || look_at(&store)));
    }
    until_stopped(stops, membership_ended, async move {
        if let Some(supervisor) = &supervisor {
            supervisor.is_stopping();
        }
        server.shutdown().await;
        if let Some(access) = &access {
            access.stop().await;
        }
        shared.shutdown().await
    })
    .await
}

/// The signals that ask for an orderly stop, but for Ctrl-C.
struct Stops {
    terminate: Signal,
    /// The terminal was closed; `None` if the process was told to outlive it, such as by `nohup`.
    hang_up: Option<Signal>,
}

impl Stops {
    /// Begins to receive the signals, which no longer end the process by themselves.
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            hang_up: match ignores_hang_up() {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
        })
    }

    /// Waits for one of the signals.
    async fn received(&mut self) {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = hang_up => {}
        }
    }
}

/// Tells whether whoever started this process told it to ignore the end of its terminal.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // SIGHUP is signal 1, the lowest bit.
    ignored.is_some_and(|mask| mask & 1 == 1)
}

/// Waits until the process is to stop, and stops it. Returns the reason as a failure if nobody asked for the stop.
async fn until_stopped(
    mut stops: Stops,
    membership_ended: BoxFuture<'static, String>,
    stop: impl Future<Output = gesta_core::Result<()>>,
) -> Outcome {
    let why = tokio::select! {
        _ = tokio::signal::ctrl_c() => Ok(()),
        () = stops.received() => Ok(()),
        sentence = membership_ended => Err(Failure::other(sentence)),
    };
    tracing::info!(
        "stopping: running requests finish, queued appends are stored; once more stops at once"
    );
    tokio::select! {
        outcome = stop => outcome?,
        _ = tokio::signal::ctrl_c() => return Err(stopped_at_once()),
        () = stops.received() => return Err(stopped_at_once()),
    }
    tracing::info!("stopped");
    why
}

fn stopped_at_once() -> Failure {
    Failure::Message(Code::Interrupted, "stopped at once".into())
}

/// Tells why a server does not listen, and how it listens elsewhere if another program has the address. Settings that
/// never work are wrong usage, which nobody tries again.
async fn cannot_listen(error: &StartError) -> Failure {
    match error {
        StartError::NotLoopback(_) | StartError::Tls(_) | StartError::Config(_) => {
            Failure::usage(error.to_string())
        }
        StartError::Listen { source, address }
            if source.kind() == std::io::ErrorKind::AddrInUse =>
        {
            let who = who_has(*address).await;
            Failure::other(format!(
                "{error}; {who}; --listen HOST:PORT names another address"
            ))
        }
        _ => Failure::other(error.to_string()),
    }
}

/// Opens the database. If it does not answer yet, waits for it for as long as was asked for.
async fn open_database(
    config: &Config,
    options: &gesta::Options,
    wait: Option<Span>,
) -> Outcome<gesta::Database> {
    let deadline = Instant::now() + wait.map_or(Duration::ZERO, |wait| wait.0);
    let mut told = LastingFault::default();
    loop {
        let error = match gesta::Database::open(&config.store, options).await {
            Ok(database) => return Ok(database),
            Err(error) => error,
        };
        let may_pass = matches!(error.kind(), ErrorKind::Unavailable(_))
            || gesta_copy::is_unfinished_copy(&error);
        if !may_pass || Instant::now() >= deadline {
            return Err(error.into());
        }
        warn_once!(told, %error, "waiting for the store");
        tokio::time::sleep(WAIT_PAUSE).await;
    }
}

/// Warns if nodes share the store that this server opens alone. Mostly a flag was forgotten.
async fn warn_of_nodes(database: &gesta::Database) {
    // One process alone uses a store on SQLite.
    let Ok(registries) = database.registries() else {
        return;
    };
    let alive_since = SystemClock.now().0.saturating_sub(ALIVE_MICROS);
    let mut nodes = BTreeSet::new();
    for registry in registries {
        // A database that does not answer is told when the store opens.
        if let Ok(look) = registry.look().await {
            let alive = look
                .nodes
                .iter()
                .filter(|node| node.beat_at.0 > alive_since);
            nodes.extend(alive.map(|node| node.info.address.to_string()));
        }
    }
    if !nodes.is_empty() {
        let status = named_store::completed("`gesta cluster status`");
        tracing::warn!(
            ?nodes,
            "nodes share this store, and this server is none of them (--node): it appends beside the owners of the \
             logs, which is slow for both; {status} shows them"
        );
    }
}

/// Returns the gauge that is always 1, and whose labels say which build this is.
fn build_info() -> Family<[(&'static str, &'static str); 2], Gauge> {
    let family = Family::default();
    let labels = [("version", version::VERSION), ("commit", version::COMMIT)];
    // For the type of the number there are two.
    let gauge: Gauge = family.get_or_create_owned(&labels);
    gauge.set(1);
    family
}

fn load(global: Global, serve: &Serve) -> Outcome<(Config, Vec<String>)> {
    let path = serve
        .config
        .clone()
        .or_else(|| std::env::var_os(FILE_VARIABLE).map(Into::into));
    let file = match &path {
        None => None,
        Some(path) => Some((path.as_path(), text_of(path)?)),
    };
    let wide = file.as_ref().and_then(|(path, text)| {
        let what = "a configuration with a password";
        private_file::told_of_others(what, path).filter(|_| holds_password(text))
    });
    let (config, mut warnings) = Config::load(&Layers {
        file,
        environment: variables(),
        flags: Flags {
            store: global.store_urls(),
            listen: serve.listen.clone(),
            advertise_clients: serve.advertise_clients.clone(),
            insecure: serve.insecure,
            behind_proxy: serve.behind_proxy,
            access: serve.access,
            log: LogFlags {
                format: global.log_format,
                filter: global.log_filter,
            },
            server: ServerFlags {
                cors_origins: (!serve.cors_origins.is_empty())
                    .then(|| serve.cors_origins.join(" ")),
                trusted_proxies: (!serve.trusted_proxies.is_empty())
                    .then(|| serve.trusted_proxies.join(" ")),
            },
            tls: TlsFlags {
                certificate: serve.tls_certificate.clone(),
                key: serve.tls_key.clone(),
                client_ca: serve.tls_client_ca.clone(),
                self_signed: serve.tls_self_signed.clone(),
            },
            cluster: ClusterFlags {
                node: serve.node.clone(),
                advertise: serve.advertise.clone(),
                secret_file: serve.cluster_secret_file.clone(),
            },
        },
    })?;
    warnings.extend(wide);
    Ok((config, warnings))
}

/// Returns whether a text has a URL with a password.
fn holds_password(text: &str) -> bool {
    text.split("://").skip(1).any(|rest| {
        let authority = rest.split(['/', '"', '\'', ' ', '\n']).next();
        let user = authority.and_then(|authority| authority.rsplit_once('@'));
        user.is_some_and(|(user, _)| user.contains(':'))
    })
}

/// Returns the address at which clients reach the server, if it was told one.
fn advertised(config: &Config) -> Outcome<Option<HostPort>> {
    match config.advertise_clients.as_str() {
        "" => Ok(None),
        text => HostPort::parse(text).map(Some).map_err(|why| {
            Failure::usage(format!(
                "--advertise-clients (advertise_clients) must be HOST:PORT at which clients reach this server, such as \
                 db.example.org:2113: {why}, found {text:?}"
            ))
        }),
    }
}

fn options(config: &Config) -> gesta::Options {
    gesta::Options::creating().config(gesta::Config {
        append: config.append.clone(),
        ..gesta::Config::default()
    })
}

fn server_config(
    config: &Config,
    listen: SocketAddr,
    advertise: Option<HostPort>,
    tls: Option<gesta_server::TlsFiles>,
) -> gesta_server::Config {
    gesta_server::Config {
        listen,
        advertise,
        insecure: config.insecure,
        behind_proxy: config.behind_proxy,
        requires_access: access::is_required(config, listen),
        tls,
        groups: config.groups.clone(),
        ..config.server.clone()
    }
}

/// Writes to the log what runs and where.
fn greet(info: &StoreInfo, store: &str, scheme: &str, address: SocketAddr) {
    tracing::info!(
        version = version::LONG,
        store = %place_of(store),
        backend = %info.backend,
        engine = %info.engine,
        logs = info.logs,
        incarnation = %info.incarnation,
        durability = info.durability.name(),
        settings = info.durability.detail(),
        "store open"
    );
    tracing::info!("listening on {scheme}://{address}");
}

/// Writes a first call to the log, for a server that everybody on this machine may call.
fn suggest(address: SocketAddr) {
    tracing::info!(
        "try: curl -d '{{\"events\":[{{\"type\":\"hello\",\"data\":{{}}}}]}}' -H 'content-type: application/json' http://{address}/streams/first"
    );
}

/// Returns where a store is, for people: the absolute path of its file, or the hosts and databases without users and
/// passwords.
pub(super) fn place_of(store: &str) -> String {
    if let Some(path) = store.strip_prefix("sqlite:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return match std::path::absolute(path) {
            Ok(absolute) if path != ":memory:" => format!("sqlite:{}", absolute.display()),
            _ => store.to_owned(),
        };
    }
    let places = store.split_whitespace().map(|url| {
        let url = url.split('?').next().unwrap_or(url);
        match (url.split_once("://"), url.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{place}"),
            _ => url.to_owned(),
        }
    });
    places.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_shows_no_password() {
        let here = std::env::current_dir().expect("a folder");
        assert_eq!(
            place_of("sqlite:a/g.db"),
            format!("sqlite:{}", here.join("a/g.db").display())
        );
        // What happened: this was told as a place from the root.
        assert_eq!(place_of("sqlite://a/g.db"), place_of("sqlite:a/g.db"));
        assert_eq!(place_of("sqlite:///a/g.db"), "sqlite:/a/g.db");
        assert_eq!(place_of("sqlite::memory:"), "sqlite::memory:");
        assert_eq!(
            place_of("postgres://u:p%40@w@one:1/db?password=secret postgres://two/db"),
            "postgres://one:1/db postgres://two/db"
        );
    }

    #[test]
    fn a_password_in_a_configuration_is_found() {
        let file = |url: &str| format!("listen = \"127.0.0.1:1\"\nstore = \"{url}\"\n");
        for (url, expected) in [
            ("postgres://u:secret@host/db", true),
            ("postgres://u@host:5432/db", false),
            ("postgres://host/db?options=a:b@c", false),
            ("sqlite:a:b@c", false),
        ] {
            assert_eq!(holds_password(&file(url)), expected, "{url}");
        }
    }
}
