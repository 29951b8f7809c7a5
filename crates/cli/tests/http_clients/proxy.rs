//! The configuration of a reverse proxy that docs/operating shows.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use gesta_rig::Child;

use crate::Consumer;
use crate::support::{self, Server, output_of, url_of, wait_until};

/// Goal: the configuration of docs/operating/proxies.md lets everything through a real nginx: names, large bodies,
/// lines, subscriptions, gRPC.
#[test]
fn a_reverse_proxy_lets_everything_through() {
    if !support::is_installed_as("nginx", "-v") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&folder.path().join("gesta.db")));
    let proxy = Proxy::start(folder.path(), server.address());
    let append = |stream: &str, data: &str| {
        let body = folder.path().join("body.json");
        let text = format!(r#"{{"events":[{{"type":"t","data":{data}}}]}}"#);
        std::fs::write(&body, text).unwrap();
        let body = format!("@{}", body.display());
        let json = "Content-Type: application/json";
        proxy.curl(stream, &["--header", json, "--data-binary", &body])
    };
    let stored = "\"last_revision\":";
    for (stream, data) in [
        ("/streams/o%2F1", "1".to_owned()),
        ("/events/streams/o%2F1", "2".to_owned()),
        ("/streams/large", format!("{:?}", "x".repeat(4 << 20))),
    ] {
        let answer = append(stream, &data);
        assert!(answer.contains(stored), "{stream}: {answer}");
    }
    let lines = ["--header", "Accept: application/x-ndjson"];
    let read = proxy.curl("/streams/o%2F1", &lines);
    assert_eq!(read.lines().count(), 2, "{read}");

    // An event is shown at once, and not when a buffer is full.
    let mut follow = proxy.command("/streams/live/subscribe", &["--no-buffer"]);
    let follower = Consumer::run(&mut follow);
    assert!(append("/streams/live", "3").contains(stored));
    let shown = || follower.lines.recv_timeout(support::PATIENCE).unwrap();
    while !shown().contains("\"stream\":\"live\"") {}
    follower.kill();

    let call = "/event_store.client.server_features.ServerFeatures/GetSupportedMethods";
    let empty = folder.path().join("empty.bin");
    std::fs::write(&empty, [0; 5]).unwrap();
    let empty = format!("@{}", empty.display());
    let mut grpc = vec![
        "--http2",
        "--include",
        "--data-binary",
        &empty,
        "--output",
        "-",
    ];
    for header in ["Content-Type: application/grpc", "TE: trailers"] {
        grpc.extend(["--header", header]);
    }
    let answer = proxy.curl(call, &grpc);
    assert!(answer.contains("grpc-status: 0"), "{answer}");
}

/// An nginx with the configuration of docs/operating/proxies.md.
struct Proxy {
    /// With its workers.
    _nginx: Child,
    url: String,
    authority: PathBuf,
}

impl Proxy {
    fn start(folder: &Path, server: &str) -> Self {
        let tls = folder.join("tls");
        let made = ["--listen", "127.0.0.1:0", "--tls-self-signed"];
        let made = [&made[..], &[tls.to_str().unwrap()]].concat();
        Server::start_with(&url_of(&folder.join("another.db")), &made).stop();
        let address = gesta_rig::free_address().unwrap();
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating/proxies.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (_, rest) = page.split_once("```nginx\n").unwrap();
        let (site, _) = rest.split_once("```").unwrap();
        let mut site = site.to_owned();
        for (of_page, here) in [
            ("127.0.0.1:2113", server.to_owned()),
            ("listen 443 ", format!("listen {address} ")),
            (
                "/etc/ssl/events.example.org.pem",
                tls.join("server.pem").display().to_string(),
            ),
            (
                "/etc/ssl/events.example.org.key",
                tls.join("server.key").display().to_string(),
            ),
        ] {
            assert!(site.contains(of_page), "{of_page}");
            site = site.replace(of_page, &here);
        }
        let scratch: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {}/{kind};\n", folder.display()))
            .concat();
        let (folder, configuration) = (folder.display(), folder.join("nginx.conf"));
        let user = if nix::unistd::geteuid().is_root() {
            "user root;"
        } else {
            ""
        };
        let text = format!(
            "{user} daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;\nevents {{}}\n\
             http {{ access_log off;\n{scratch}{site} }}\n"
        );
        std::fs::write(&configuration, text).unwrap();
        let mut command = Command::new("nginx");
        command
            .arg("-c")
            .arg(&configuration)
            .arg("-e")
            .arg(format!("{folder}/nginx.log"));
        let proxy = Self {
            _nginx: Child::spawn(&mut command).unwrap(),
            url: format!("https://{address}"),
            authority: tls.join("ca.pem"),
        };
        wait_until("nginx listens", || TcpStream::connect(address).is_ok());
        proxy
    }

    fn command(&self, path: &str, more: &[&str]) -> Command {
        let mut command = Command::new("curl");
        command
            .args(["--silent", "--show-error", "--cacert"])
            .arg(&self.authority);
        command.args(more).arg(format!("{}{path}", self.url));
        command
    }

    fn curl(&self, path: &str, more: &[&str]) -> String {
        let output = output_of(&mut self.command(path, more));
        assert!(output.status.success(), "{path}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}
