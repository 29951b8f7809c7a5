//! `gesta serve`.

use std::path::PathBuf;

use clap::Args;
use gesta_core::units::Span;

use super::AccessMode;

/// `gesta serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Address and port to listen on. Default: 127.0.0.1:2113. Environment: GESTA_LISTEN.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Host and port at which clients reach this server, if that is not the address of --listen: shown to clients that
    /// ask for the nodes, and without users the only name, beside localhost, by which requests may call the server.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise_clients: Option<String>,
    /// Allow an address that is not loopback without TLS and users; the Host is checked if --advertise-clients tells
    /// it.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Allow an address that is not loopback without TLS, because a proxy in front speaks TLS to clients. Callers must
    /// say who they are.
    #[arg(long)]
    pub(crate) behind_proxy: bool,
    /// When callers must say who they are: auto (as soon as the store has a user, and on addresses that are not
    /// loopback), on, or off.
    #[arg(long, value_enum, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) access: Option<AccessMode>,
    /// Let pages of this site, such as https://app.example.org, call the server from a browser; may be repeated.
    #[arg(long = "cors-origin", value_name = "ORIGIN")]
    pub(crate) cors_origins: Vec<String>,
    /// Believe a proxy at this address, or in this network, such as 10.0.0.0/8, from whom a request came
    /// (X-Forwarded-For); may be repeated.
    #[arg(long = "trusted-proxy", value_name = "NETWORK")]
    pub(crate) trusted_proxies: Vec<String>,
    /// Speak TLS with this certificate, in PEM form, and those that lead from it to an authority.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_certificate: Option<String>,
    /// The private key of the certificate, in PEM form.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_key: Option<String>,
    /// Let only clients connect that show a certificate of an authority in this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<String>,
    /// For trying out: speak TLS with a certificate of its own, created in this folder unless it exists. Clients must
    /// be given ca.pem of the folder.
    #[arg(long, value_name = "DIR", conflicts_with = "tls_certificate")]
    pub(crate) tls_self_signed: Option<String>,
    /// Be one of several nodes on this PostgreSQL database, and listen for the others here, such as 127.0.0.1:2114.
    #[arg(long, value_name = "ADDR")]
    pub(crate) node: Option<String>,
    /// Host and port at which the other nodes reach this one, if that is not the address of --node.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    /// File with the secret that all nodes share: at least 16 bytes.
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_secret_file: Option<String>,
    /// If the database does not answer yet, or is the target of a copy or a move that is not whole, try for so long
    /// (such as 60s) instead of giving up at once.
    #[arg(long, value_name = "TIME")]
    pub(crate) wait_for_store: Option<Span>,
    /// Read settings from a TOML file; reference.toml documents each key: beside the program, or in
    /// /usr/share/doc/gesta. Environment: GESTA_CONFIG.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}
