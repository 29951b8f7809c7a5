//! The configuration of the server: defaults < file < environment < flags.
//!
//! How: each layer is a TOML table of the same form; a later one replaces values of an earlier one,
//! and the sum is read into [`Config`]. A variable `GESTA_SECTION_KEY` stands for `key` in `[section]`.
//! A key with its default is written once: what only the program needs here, and the keys of `[server]`, `[append]` and
//! `[groups]` as fields of the `Config` of the crate that uses them.
//! Invariants: unknown keys of a file are refused, with the line; `reference.toml` documents every key (a test
//! compares).
//! Not here: how a layer is read (`layers`).

mod layers;

pub(crate) use self::layers::mistyped;

use std::path::{Path, PathBuf};

use gesta_core::IdempotencyWindow;
use gesta_core::units::Span;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use self::layers::{leaves, merge, read_environment, read_file, refuse, table_of};
use crate::args::{AccessMode, LogFormat};
use crate::exit::{Failure, Outcome};

/// The embedded store that is used if no other is named.
pub(crate) const DEFAULT_STORE: &str = "sqlite:gesta-data/gesta.db";
/// The variable that names the configuration file.
pub(crate) const FILE_VARIABLE: &str = "GESTA_CONFIG";

/// All settings of `gesta serve`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The URL of the store. If the store has several databases, their URLs are separated by spaces.
    #[serde(deserialize_with = "urls")]
    pub(crate) store: String,
    /// The address to listen on.
    pub(crate) listen: String,
    /// The host and port at which clients reach the server. If it is empty, they reach it where they call it.
    pub(crate) advertise_clients: String,
    /// Whether an address that is not loopback is allowed without TLS and users.
    pub(crate) insecure: bool,
    /// Whether an address that is not loopback is allowed without TLS, because a proxy in front speaks TLS to clients.
    pub(crate) behind_proxy: bool,
    /// When callers must say who they are.
    pub(crate) access: AccessMode,
    /// The section `[tls]`.
    pub(crate) tls: Tls,
    /// The section `[log]`.
    pub(crate) log: Log,
    /// The section `[server]`.
    pub(crate) server: gesta_server::Config,
    /// The section `[append]`.
    pub(crate) append: gesta_append::Config,
    /// The section `[groups]`.
    pub(crate) groups: gesta_groups::Config,
    /// The section `[cluster]`.
    pub(crate) cluster: Cluster,
}

/// One URL, or a list of URLs.
#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a URL or a list of URLs")]
enum Urls {
    One(String),
    Several(Vec<String>),
}

fn urls<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(match Urls::deserialize(from)? {
        Urls::One(url) => url,
        Urls::Several(urls) => urls.join(" "),
    })
}

/// The settings of TLS. If all texts are empty, connections are not encrypted.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tls {
    /// The file with the certificate.
    pub(crate) certificate: String,
    /// The file with the private key of the certificate.
    pub(crate) key: String,
    /// The file with the authorities. Every client must show a certificate of one of them.
    pub(crate) client_ca: String,
    /// The folder with a certificate of our own, for trying out.
    pub(crate) self_signed: String,
}

/// The settings of a server that is one of several nodes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Cluster {
    /// The address to listen on for the other nodes. If it is empty, this server is no node.
    pub(crate) node: String,
    /// The host and port at which the other nodes reach this one. If it is empty, they use the address that it listens
    /// on.
    pub(crate) advertise: String,
    /// The file that holds the secret that all nodes share.
    pub(crate) secret_file: String,
    /// How many logs the node is to have, relative to the weights of the other nodes.
    pub(crate) weight: u16,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            node: String::new(),
            advertise: String::new(),
            secret_file: String::new(),
            weight: 100,
        }
    }
}

/// What is logged, and in which form.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    /// The form of the log: text or JSON.
    pub(crate) format: LogFormat,
    /// The filter that says which lines are logged.
    pub(crate) filter: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            store: DEFAULT_STORE.into(),
            listen: gesta_server::Config::default().listen.to_string(),
            advertise_clients: String::new(),
            insecure: false,
            behind_proxy: false,
            access: AccessMode::Auto,
            tls: Tls::default(),
            log: Log::default(),
            server: gesta_server::Config::default(),
            append: gesta_append::Config::default(),
            groups: gesta_groups::Config::default(),
            cluster: Cluster::default(),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            filter: "info".into(),
        }
    }
}

/// The layers of a configuration.
#[derive(Debug, Default)]
pub(crate) struct Layers<'a> {
    /// The name of the configuration file, and its text.
    pub(crate) file: Option<(&'a Path, String)>,
    /// The environment variables. Variables that are not those of Gesta are skipped.
    pub(crate) environment: Vec<(String, String)>,
    /// What the command line says.
    pub(crate) flags: Flags,
}

/// What the command line says about the configuration: a part of [`Config`].
#[derive(Debug, Default, Serialize)]
pub(crate) struct Flags {
    pub(crate) store: Option<String>,
    pub(crate) listen: Option<String>,
    pub(crate) advertise_clients: Option<String>,
    /// Left out unless the flag is given, so that a file or a variable can say it too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) insecure: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) behind_proxy: bool,
    pub(crate) access: Option<AccessMode>,
    pub(crate) tls: TlsFlags,
    pub(crate) server: ServerFlags,
    pub(crate) log: LogFlags,
    pub(crate) cluster: ClusterFlags,
}

/// What the command line says about the section `[server]`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ServerFlags {
    pub(crate) cors_origins: Option<String>,
    pub(crate) trusted_proxies: Option<String>,
}

/// What the command line says about [`Tls`].
#[derive(Debug, Default, Serialize)]
pub(crate) struct TlsFlags {
    pub(crate) certificate: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) client_ca: Option<String>,
    pub(crate) self_signed: Option<String>,
}

/// What the command line says about [`Cluster`].
#[derive(Debug, Default, Serialize)]
pub(crate) struct ClusterFlags {
    pub(crate) node: Option<String>,
    pub(crate) advertise: Option<String>,
    pub(crate) secret_file: Option<String>,
}

/// What the command line says about [`Log`].
#[derive(Debug, Default, Serialize)]
pub(crate) struct LogFlags {
    pub(crate) format: Option<LogFormat>,
    pub(crate) filter: Option<String>,
}

impl Config {
    /// Returns what a server would use that is started with the environment of this process and without flags.
    pub(crate) fn of_environment() -> Outcome<Self> {
        let path = std::env::var_os(FILE_VARIABLE).map(PathBuf::from);
        let file = match path.as_deref() {
            Some(path) => Some((path, text_of(path)?)),
            None => None,
        };
        let layers = Layers {
            file,
            environment: variables(),
            flags: Flags::default(),
        };
        Ok(Self::load(&layers)?.0)
    }

    /// Returns the sum of all layers, and warnings about variables that no key stands for.
    pub(crate) fn load(layers: &Layers<'_>) -> Outcome<(Self, Vec<String>)> {
        let mut sum = Table::new();
        if let Some((path, text)) = &layers.file {
            merge(&mut sum, read_file(path, text)?);
        }
        let (environment, warnings) = read_environment(&layers.environment)?;
        merge(&mut sum, environment);
        merge(&mut sum, table_of(&layers.flags)?);
        let config: Config = sum
            .try_into()
            .map_err(|error| refuse("configuration", &error))?;
        config.check()?;
        Ok((config, warnings))
    }

    /// Refuses zeros, and less than the contract promises.
    fn check(&self) -> Outcome {
        for (name, value) in leaves(&table_of(self)?) {
            let zero = match &value {
                Value::Integer(n) => *n == 0,
                Value::String(text) => text == "0ms" || text == "0B",
                _ => false,
            };
            if zero {
                return Err(Failure::usage(format!(
                    "configuration: {name} must be more than 0, found {value}"
                )));
            }
        }
        let promised = gesta_append::Config::default().idempotency();
        let IdempotencyWindow { time, positions } = self.append.idempotency();
        if time < promised.time || positions < promised.positions {
            return Err(Failure::usage(format!(
                "configuration: append.idempotency_time must be at least {} and append.idempotency_positions at least {}, for the \
                 contract promises that; found {} and {positions}",
                Span(promised.time),
                promised.positions,
                Span(time)
            )));
        }
        Ok(())
    }
}

/// Returns the text of a configuration file.
pub(crate) fn text_of(path: &Path) -> Outcome<String> {
    std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "--config (GESTA_CONFIG) must be a file that can be read: {}: {error}",
            path.display()
        ))
    })
}

/// Returns the environment, without what is no Unicode.
pub(crate) fn variables() -> Vec<(String, String)> {
    let variables = std::env::vars_os();
    variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const REFERENCE: &str = include_str!("../reference.toml");

    fn layers(
        file: &str,
        environment: &[(&str, &str)],
        flags: Flags,
    ) -> Outcome<(Config, Vec<String>)> {
        Config::load(&Layers {
            file: Some((Path::new("gesta.toml"), file.to_owned())),
            environment: environment
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            flags,
        })
    }

    #[test]
    fn the_reference_documents_each_key_with_its_default() {
        let reference: Table = toml::from_str(REFERENCE).expect("TOML");
        let defaults = table_of(&Config::default()).expect("table");
        assert_eq!(leaves(&reference), leaves(&defaults));
        let (config, _) = layers(REFERENCE, &[], Flags::default()).expect("valid");
        assert_eq!(table_of(&config).expect("table"), defaults);
        let undocumented: Vec<&str> = REFERENCE
            .lines()
            .zip(std::iter::once("").chain(REFERENCE.lines()))
            .filter(|(line, before)| {
                line.contains(" = ") && !line.starts_with('#') && !before.starts_with('#')
            })
            .map(|(line, _)| line)
            .collect();
        assert!(
            undocumented.is_empty(),
            "keys without a comment: {undocumented:?}"
        );
    }

    /// Goal: whatever stands for a value, the file is read, or the refusal names the key or its line.
    #[test]
    fn any_value_is_read_or_refused_where_it_stands() {
        let odd = [
            "0",
            "-1",
            "9223372036854775807",
            "1.5",
            "true",
            "\"\"",
            "\"5s\"",
            "\"18446744073709551615B\"",
            "[]",
            "1979-05-27",
        ];
        let lines: Vec<&str> = REFERENCE.lines().collect();
        let keys = lines.iter().enumerate().filter_map(|(number, line)| {
            let (key, _) = line.split_once(" = ")?;
            (!key.starts_with('#')).then_some((number, key))
        });
        for ((number, key), odd) in keys.flat_map(|key| odd.map(|odd| (key, odd))) {
            let line = format!("{key} = {odd}");
            let mut changed = lines.clone();
            changed[number] = &line;
            match layers(&changed.join("\n"), &[], Flags::default()) {
                Ok((config, _)) => {
                    let written = toml::to_string(&config).expect("TOML");
                    let again = layers(&written, &[], Flags::default());
                    let (again, _) = again.expect("what is written can be read");
                    assert_eq!(
                        table_of(&again).expect("table"),
                        table_of(&config).expect("table"),
                        "{line}"
                    );
                }
                Err(failure) => {
                    let text = failure.to_string();
                    let place = format!("gesta.toml line {}: ", number + 1);
                    assert!(
                        text.contains(key) || text.starts_with(&place),
                        "{line}: {text}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_databases_of_a_store_may_be_a_list() {
        let store = |text: &str| {
            let path = Path::new("g.toml");
            let layers = Layers {
                file: Some((path, text.to_owned())),
                environment: Vec::new(),
                flags: Flags::default(),
            };
            Config::load(&layers).map(|(config, _)| config.store)
        };
        let list = store("store = [\"postgres://a/x\", \"postgres://b/x\"]\n");
        assert_eq!(list.expect("a list"), "postgres://a/x postgres://b/x");
        assert_eq!(
            store("store = \"sqlite:a b\"\n").expect("one"),
            "sqlite:a b"
        );
        assert!(store("store = 7\n").is_err());
    }

    #[test]
    fn later_layers_win() {
        let file = "listen = \"127.0.0.1:1\"\nstore = \"sqlite:a\"\n[append]\nbatch_events_max = 7\ngive_up_after = \"9s\"\n";
        let environment = [
            ("GESTA_STORE", "sqlite:b"),
            ("GESTA_LISTEN", "127.0.0.1:2"),
            ("GESTA_APPEND_BATCH_EVENTS_MAX", "8"),
            ("GESTA_SERVER_HEARTBEAT", "2s"),
            ("HOME", "x"),
        ];
        let flags = Flags {
            listen: Some("127.0.0.1:3".into()),
            ..Flags::default()
        };
        let (config, warnings) = layers(file, &environment, flags).expect("valid");
        assert_eq!(config.listen, "127.0.0.1:3");
        assert_eq!(config.store, "sqlite:b");
        assert_eq!(config.append.batch_events_max, 8);
        assert_eq!(config.append.give_up_after, Duration::from_secs(9));
        assert_eq!(config.server.heartbeat, Duration::from_secs(2));
        assert!(warnings.is_empty());
    }

    #[test]
    fn wrong_files_are_refused_with_file_and_line() {
        for (bad, line) in [
            ("colour = 1", 1),
            ("insecure = true\n[append]\nbatch_event_max = 1\n", 3),
            ("[server]\nheartbeat = 5\n", 2),
            ("[server]\nheartbeat = \"5\"\n", 2),
            ("[append]\nbatch_events_max = -1\n", 2),
            ("[append]\nbatch_bytes_max = \"8MB\"\n", 2),
            ("store = \"postgres://u:secret@h", 1),
            ("[colour]\n", 1),
        ] {
            let failure = layers(bad, &[], Flags::default())
                .expect_err(bad)
                .to_string();
            assert!(
                failure.starts_with(&format!("gesta.toml line {line}: ")),
                "{bad}: {failure}"
            );
            assert!(!failure.contains("secret"), "{failure}");
        }
        assert!(layers("[append]\nqueue_events_max = 0\n", &[], Flags::default()).is_err());
        assert!(
            layers(
                "[append]\nidempotency_time = \"1m\"\n",
                &[],
                Flags::default()
            )
            .is_err()
        );
    }

    #[test]
    fn wrong_variables_are_refused_and_strange_ones_named() {
        for (name, value) in [
            ("GESTA_APPEND_BATCH_EVENTS_MAX", "many"),
            ("GESTA_SERVER_HEARTBEAT", "soon"),
            ("GESTA_INSECURE", "yes"),
            ("GESTA_LOG_FORMAT", "xml"),
        ] {
            let failure = layers("", &[(name, value)], Flags::default()).expect_err(name);
            assert!(failure.to_string().contains(name), "{failure}");
        }
        let (_, warnings) = layers(
            "",
            &[
                ("GESTA_APPEND_BATCH_EVENT_MAX", "1"),
                ("GESTA_PORT", "tcp://10.0.0.1:2113"),
                ("GESTA_SERVICE_HOST", "10.0.0.1"),
                ("GESTA_STORE_FILE", "url"),
                ("GESTA_LISTN", "127.0.0.1:1"),
                ("GESTA_STOR", "sqlite:a"),
            ],
            Flags::default(),
        )
        .expect("valid");
        assert_eq!(warnings.len(), 3, "{warnings:?}");
    }
}
