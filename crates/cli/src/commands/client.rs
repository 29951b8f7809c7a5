//! How commands connect to a server: which authorities they believe, and who they say they are.
//!
//! Invariant: a secret comes from the environment or from a file, never from an argument, which every user of the
//! machine can read.

use std::path::Path;

use gesta_client::{Config, Credentials, HttpStore, PlainHttp, Tls};

use crate::args::Global;
use crate::exit::{Failure, Outcome};
use crate::private_file;

/// Returns the store on a server, or on the nodes of a cluster, whose URLs are separated by spaces.
pub(super) fn store(global: &Global, urls: &str) -> Outcome<HttpStore> {
    with_config(urls, config(global)?)
}

/// Does what [`store`] does, with another configuration.
pub(super) fn with_config(urls: &str, config: Config) -> Outcome<HttpStore> {
    let urls: Vec<&str> = urls.split_whitespace().collect();
    Ok(HttpStore::connect_to_cluster(&urls, config)?)
}

/// Makes the configuration of a client from options and environment.
pub(super) fn config(global: &Global) -> Outcome<Config> {
    let ca = match &global.ca_file {
        Some(path) => Some(path.clone()),
        None => std::env::var_os("GESTA_CA_FILE").map(Into::into),
    };
    Ok(Config {
        tls: ca
            .as_deref()
            .map(believing)
            .transpose()?
            .unwrap_or_default(),
        credentials: credentials(global)?,
        plain_http: match global.plain_http {
            true => PlainHttp::Anywhere,
            false => PlainHttp::Loopback,
        },
        ..Config::default()
    })
}

/// Makes the TLS settings of a client that believes the authorities in a file.
fn believing(path: &Path) -> Outcome<Tls> {
    let refuse = |why: String| {
        Failure::usage(format!(
            "--ca-file (GESTA_CA_FILE) {}: {why}",
            path.display()
        ))
    };
    let pem = std::fs::read(path).map_err(|error| refuse(error.to_string()))?;
    let tls = Tls {
        ca_pem: Some(pem),
        ..Tls::default()
    };
    // A client is made of it for trial, because only its error tells what is wrong, and nothing tells the file later.
    let trial = Config {
        tls: tls.clone(),
        ..Config::default()
    };
    HttpStore::with_config("https://localhost", trial)
        .map_err(|error| refuse(error.to_string()))?;
    Ok(tls)
}

fn credentials(global: &Global) -> Outcome<Option<Credentials>> {
    let variable = |name: &str| std::env::var(name).ok();
    if let Some(path) = &global.token_file {
        return Ok(Some(Credentials::Token(secret(path)?)));
    }
    let ways = ["GESTA_TOKEN", "GESTA_TOKEN_FILE", "GESTA_USER"];
    let set: Vec<&str> = ways
        .into_iter()
        .filter(|name| std::env::var_os(name).is_some())
        .collect();
    if let [one, other, ..] = set[..] {
        let text = format!("{one} and {other} are both set, and say who calls: set one of them");
        return Err(Failure::usage(text));
    }
    if let Some(token) = variable("GESTA_TOKEN") {
        return Ok(Some(Credentials::Token(token.trim().to_owned())));
    }
    if let Some(path) = variable("GESTA_TOKEN_FILE") {
        return Ok(Some(Credentials::Token(secret(path.as_ref())?)));
    }
    let Some(login) = variable("GESTA_USER") else {
        return Ok(None);
    };
    let password = match variable("GESTA_PASSWORD_FILE") {
        Some(path) => secret(path.as_ref())?,
        None => {
            let text = "GESTA_USER needs GESTA_PASSWORD_FILE, a file that holds the password";
            return Err(Failure::usage(text));
        }
    };
    Ok(Some(Credentials::Password { login, password }))
}

/// Reads a secret from the first line of a file. The secret is never repeated in an error.
pub(super) fn secret(path: &Path) -> Outcome<String> {
    let refuse = |why: &str| {
        Failure::usage(format!(
            "the file of a token or a password, {}: {why}",
            path.display()
        ))
    };
    private_file::warn_of_others("a secret", path);
    let text = std::fs::read_to_string(path).map_err(|error| refuse(&error.to_string()))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(refuse("must hold a secret in its first line")),
    }
}
