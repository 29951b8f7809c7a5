//! What the peers share: one PostgreSQL server with a database for each, a folder for files, what is installed.

use std::path::{Path, PathBuf};

use gesta_report::failure::{Context, Failure, Result, fail};
use gesta_load::machine::store;
use serde::Serialize;
use tempfile::TempDir;
use tokio_postgres::Client;

/// The folder of this program's sources.
const HOME: &str = env!("CARGO_MANIFEST_DIR");

/// See the module.
#[derive(Debug)]
pub(crate) struct World {
    installed: PathBuf,
    gesta: Option<PathBuf>,
    scratch: TempDir,
    connections: u32,
    server: Option<gesta_rig::Server>,
    logs: u32,
}

/// A PostgreSQL database of a peer's own; no password is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Database {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: String,
    pub(crate) name: String,
    pub(crate) url: String,
}

/// What a commit of the PostgreSQL server means, and its version.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    pub(crate) engine: String,
    pub(crate) durability: String,
    pub(crate) durability_detail: String,
}

impl World {
    pub(crate) fn new(
        installed: Option<&Path>,
        gesta: Option<&Path>,
        connections: u32,
    ) -> Result<Self> {
        let installed = installed.map_or_else(|| Path::new(HOME).join(".peers"), Path::to_owned);
        Ok(Self {
            installed,
            gesta: gesta.map(Path::to_owned),
            scratch: tempfile::tempdir().context("a folder for the peers' files")?,
            connections,
            server: None,
            logs: 0,
        })
    }

    /// A new file name in the folder that is removed at the end.
    pub(crate) fn scratch(&mut self, name: &str) -> PathBuf {
        self.logs += 1;
        self.scratch.path().join(format!("{}-{name}", self.logs))
    }

    /// Removes the files of the peer that has ended, so that the next has the whole disk.
    pub(crate) fn clear(&self) -> Result<()> {
        for entry in std::fs::read_dir(self.scratch.path())?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                std::fs::remove_dir_all(path)?;
            } else {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Something that `./install PEER` brings.
    pub(crate) fn installed(&self, peer: &str, path: &str) -> Result<PathBuf> {
        let file = self.installed.join(peer).join(path);
        if file.exists() {
            return Ok(file);
        }
        fail(format!("not installed: run `./install {peer}`"))
    }

    /// A driver.
    pub(crate) fn driver(name: &str) -> PathBuf {
        Path::new(HOME).join("drivers").join(name)
    }

    /// Version in the `package.json` of something from npm.
    pub(crate) fn npm_version(&self, peer: &str, path: &str) -> Result<String> {
        let file = self.installed(peer, path)?;
        let text = std::fs::read_to_string(&file).context(file.display())?;
        let package: serde_json::Value = serde_json::from_str(&text).context(file.display())?;
        Ok(package["version"].as_str().unwrap_or("unknown").to_owned())
    }

    /// Version of a Python package in a virtual environment, from the name of its folder of facts.
    pub(crate) fn python_version(&self, peer: &str, package: &str) -> Result<String> {
        let lib = self.installed(peer, "lib")?;
        let pythons = std::fs::read_dir(&lib).context(lib.display())?;
        let sites = pythons
            .flatten()
            .map(|dir| dir.path().join("site-packages"));
        let names = sites
            .filter_map(|site| std::fs::read_dir(site).ok())
            .flatten()
            .flatten();
        let mut versions = names.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let rest = name.strip_prefix(package)?.strip_prefix('-')?;
            rest.strip_suffix(".dist-info").map(str::to_owned)
        });
        let found = versions.next();
        found.ok_or_else(|| {
            Failure(format!(
                "{package} is not installed: run `./install {peer}`"
            ))
        })
    }

    /// The program `gesta`.
    pub(crate) fn gesta(&self) -> Result<PathBuf> {
        if let Some(path) = &self.gesta {
            return Ok(path.clone());
        }
        let own = std::env::current_exe()?;
        let beside = own.parent().map(|dir| dir.join("gesta"));
        let built = |profile| {
            Path::new(HOME)
                .join("../target")
                .join(profile)
                .join("gesta")
        };
        let profile = gesta_report::host::BUILD;
        let found = beside
            .into_iter()
            .chain([built(profile)])
            .find(|path| path.is_file());
        found.ok_or_else(|| {
            Failure(format!(
                "there is no {profile} build of `gesta`: name the program by --gesta"
            ))
        })
    }

    /// A program of PostgreSQL, such as `psql`.
    pub(crate) fn postgres_program(name: &str) -> Result<PathBuf> {
        let dir = gesta_rig::find_binaries()
            .ok_or_else(|| Failure("PostgreSQL is not installed".into()))?;
        Ok(dir.join(name))
    }

    /// The server, started at the first call.
    fn server(&mut self) -> Result<&gesta_rig::Server> {
        if self.server.is_none() {
            let connections = self.connections;
            let server = tokio::task::block_in_place(|| store::new_server_for(connections))?;
            self.server = Some(server);
        }
        self.server
            .as_ref()
            .ok_or_else(|| Failure("no server".into()))
    }

    /// A new database.
    pub(crate) fn database(&mut self, name: &str) -> Result<Database> {
        let server = self.server()?;
        let made = tokio::task::block_in_place(|| server.create_database(name));
        let url = made.map_err(|error| Failure(format!("making database {name}: {error}")))?;
        let address = server.addr();
        Ok(Database {
            host: address.ip().to_string(),
            port: address.port(),
            user: "postgres".into(),
            name: name.to_owned(),
            url,
        })
    }

    /// Where the server would make a database of this name.
    pub(crate) fn unmade_database(&mut self, name: &str) -> Result<Database> {
        let server = self.server()?;
        let address = server.addr();
        Ok(Database {
            host: address.ip().to_string(),
            port: address.port(),
            user: "postgres".into(),
            name: name.to_owned(),
            url: server.url_for(name),
        })
    }

    /// Facts about the server.
    pub(crate) async fn engine(&mut self) -> Result<Engine> {
        let url = self.server()?.url();
        let facts = store::database_facts(&url, std::time::Duration::ZERO).await?;
        Ok(Engine {
            engine: facts.engine,
            durability: facts.durability.to_owned(),
            durability_detail: facts.durability_detail,
        })
    }

    /// Removes a peer's database, and writes out what it left behind, so that the next peer does not pay for it.
    pub(crate) fn drop_database(&mut self, database: &Database) -> Result<()> {
        let Some(server) = &self.server else {
            return Ok(());
        };
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", database.name);
        let run = |sql: &str| {
            server
                .execute(sql)
                .map_err(|error| Failure(error.to_string()))
        };
        tokio::task::block_in_place(|| run(&sql).and_then(|()| run("CHECKPOINT")))
    }
}

impl Database {
    /// A connection.
    pub(crate) async fn connect(&self) -> Result<Client> {
        let connected = gesta_rig::connect(&self.url).await;
        connected.context("connecting to PostgreSQL")
    }
}
