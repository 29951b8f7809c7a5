//! The published clients of EventStoreDB and KurrentDB against the real server, on SQLite and on PostgreSQL.
//!
//! They come from their registries, once for all runs, into the folder of what is built. Without their interpreters, or
//! without a registry, the tests are skipped loudly; with `CI=true` they fail.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use gesta_pgtest::{Server as Postgres, ServerConfig};
use support::{Server, is_installed, url_of};

/// Where the programs lie that use the clients.
fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grpc_programs")
}

/// Where the programs of the guide lie.
fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/kurrentdb")
}

/// A folder of this name for what is fetched, beside what is built.
fn fetched(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs a step of fetching; false, said aloud, if it fails, and with `CI` set that is a failure.
fn fetch(command: &mut Command) -> bool {
    let output = command.output().unwrap();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(std::env::var_os("CI").is_none(), "{command:?}: {said}");
        eprintln!("SKIPPED: {command:?} failed; what needs it was not run: {said}");
    }
    output.status.success()
}

/// The Python client.
fn python() -> Option<Client> {
    if !is_installed("python3") {
        return None;
    }
    let requirements = std::fs::read_to_string(programs().join("requirements.txt")).unwrap();
    let folder = fetched("python-client");
    let (python, done) = (folder.join("bin/python"), folder.join("fetched"));
    let is_there = std::fs::read_to_string(&done).is_ok_and(|text| text == requirements);
    if !is_there {
        let made = fetch(Command::new("python3").args(["-m", "venv"]).arg(&folder));
        let installed = made
            && fetch(
                Command::new(&python)
                    .args(["-m", "pip", "install", "--quiet", "-r", "requirements.txt"])
                    .current_dir(programs()),
            );
        if !installed {
            return None;
        }
        std::fs::write(&done, requirements).unwrap();
    }
    Some(Client {
        interpreter: python,
        folder,
        check: programs().join("check.py"),
        quickstart: guide().join("quickstart.py"),
    })
}

/// The Node client.
fn node() -> Option<Client> {
    if !is_installed("node") || !is_installed("npm") {
        return None;
    }
    let folder = fetched("node-client");
    let package = std::fs::read_to_string(programs().join("package.json")).unwrap();
    let done = folder.join("fetched");
    let is_there = std::fs::read_to_string(&done).is_ok_and(|text| text == package);
    if !is_there {
        std::fs::write(folder.join("package.json"), &package).unwrap();
        let mut install = Command::new("npm");
        install
            .args(["install", "--no-audit", "--no-fund", "--loglevel=error"])
            .current_dir(&folder);
        if !fetch(&mut install) {
            return None;
        }
        std::fs::write(&done, package).unwrap();
    }
    // Modules are looked for beside the program.
    for (from, name) in [(programs(), "check.mjs"), (guide(), "quickstart.mjs")] {
        std::fs::copy(from.join(name), folder.join(name)).unwrap();
    }
    Some(Client {
        interpreter: "node".into(),
        check: folder.join("check.mjs"),
        quickstart: folder.join("quickstart.mjs"),
        folder,
    })
}

/// A client that can be used: how to run a program with it.
struct Client {
    interpreter: PathBuf,
    folder: PathBuf,
    check: PathBuf,
    quickstart: PathBuf,
}

impl Client {
    /// Runs a program against a server; it must succeed. Gives what it prints.
    fn run(&self, program: &Path, server: &Server) -> String {
        let mut command = Command::new(&self.interpreter);
        command
            .arg(program)
            .arg(server.address())
            .current_dir(&self.folder)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let output = command.output().unwrap();
        let (said, wrong) = (support::stdout(&output), support::stderr(&output));
        assert!(output.status.success(), "{said}\n{wrong}");
        said
    }

    /// Goal: all checks pass against a server of this store, and the program of the guide does what it says.
    fn passes(&self, store: &str) {
        support::succeed(&["schema", "create", "--store", store]);
        support::succeed(&["virtual-streams", "on", "--store", store]);
        let server = Server::start(store);
        println!("{}", self.run(&self.check, &server));
        let said = self.run(&self.quickstart, &server);
        assert_eq!(
            said,
            "0 OrderCreated\n1 OrderShipped\nfollowed OrderShipped\n"
        );
        server.stop();
    }
}

/// Goal: a client passes on both databases.
fn passes_on_both(client: Option<Client>) {
    let Some(client) = client else { return };
    let folder = tempfile::tempdir().unwrap();
    client.passes(&url_of(&folder.path().join("gesta.db")));
    let Some(postgres) = Postgres::start_with(ServerConfig::default()).unwrap() else {
        return;
    };
    let address = postgres.addr();
    client.passes(&format!("postgres://postgres@{address}/postgres"));
}

#[test]
fn the_python_client_passes_all_checks() {
    passes_on_both(python());
}

#[test]
fn the_node_client_passes_all_checks() {
    passes_on_both(node());
}
