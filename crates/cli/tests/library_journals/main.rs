//! Journals that other systems filled with their own libraries, as they come from their registries, and `gesta import`
//! of them: the dry run tells the right numbers, each event is found again in its order, and nothing is stored twice.
//!
//! A program of each system writes, and prints what the system itself reads back, a line for each event; that is what
//! the import is compared with. The journals of `crates/import/tests` are made by statements instead, and have what no
//! program can bring about at will. Of KurrentDB only the published client is here: it fills a server of Gesta.
//! The libraries are fetched, some compiled, so only the deep form runs these tests. A guide is followed with such a
//! journal, too; the quick form follows it with rows that statements make.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod comparison;
mod guide;
mod h2;
mod old_cinema;
#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use comparison::{Import, JournalEvent, told_by};
use gesta_rig::{find_binaries, fresh_schema, shared};
use guide::Move;
use old_cinema::{Pekko, Rows};
use support::registry::{is_deep, is_published, java, npm};
use support::{Server, cinema, output_of, patient, stderr, stdout, url_of};

/// Where the programs lie that use the libraries.
fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journal_programs")
}

/// The packages of npm, with the programs beside them.
fn packages() -> Option<PathBuf> {
    npm(
        "journal-packages",
        &programs(),
        &["emmett.mjs", "kurrentdb.mjs", "message-db.mjs"],
    )
}

/// A new database; `None` if PostgreSQL is not installed.
fn database() -> Option<String> {
    let server = shared()?;
    Some(server.create_database(&fresh_schema()).unwrap())
}

/// Runs a program to its end; it must succeed. Gives what it prints.
fn said(command: &mut Command) -> String {
    let output = output_of(command);
    assert!(output.status.success(), "{command:?} {}", stderr(&output));
    stdout(&output)
}

/// Runs one of the programs on Node; it prints what its system reads back.
fn told_by_node(packages: &Path, arguments: &[&str]) -> Vec<JournalEvent> {
    let mut node = Command::new("node");
    told_by(&said(node.args(arguments).current_dir(packages)))
}

/// Goal: what many writers of Emmett wrote, some of them late in transactions that are older than earlier events.
#[test]
fn emmett() {
    if is_deep("Emmett")
        && let Some(packages) = packages()
        && let Some(url) = database()
    {
        let told = told_by_node(&packages, &["emmett.mjs", &url]);
        Import::of("emmett", &url).brings(&told);
    }
}

/// Installs Message DB into a database by the script that comes with it.
fn install_message_db(packages: &Path, name: &str) {
    let binaries = find_binaries().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let address = shared().unwrap().addr();
    let script = "node_modules/@eventide/message-db/database/install.sh";
    let mut install = Command::new("bash");
    install
        .arg(packages.join(script))
        .env("PATH", format!("{}:{path}", binaries.display()))
        .env("PGHOST", address.ip().to_string())
        .env("PGPORT", address.port().to_string())
        .env("PGUSER", "postgres")
        .env("CREATE_DATABASE", "off")
        .env("DATABASE_NAME", name);
    said(&mut install);
}

/// Goal: what many writers wrote by the functions of Message DB, with numbers of messages that never came, and a stream
/// whose beginning is gone; read by the role that Message DB makes for programs.
#[test]
fn message_db() {
    if is_deep("Message DB")
        && let Some(packages) = packages()
        && let Some(owner) = database()
    {
        let (_, name) = owner.rsplit_once('/').unwrap();
        install_message_db(&packages, name);
        let url = owner.replacen("postgres@", "message_store@", 1);
        assert_ne!(url, owner);
        let told = told_by_node(&packages, &["message-db.mjs", &url, &owner]);
        let import = Import {
            missing: 3,
            without_beginning: 1,
            ..Import::of("message-db", &url)
        };
        import.brings(&told);
    }
}

/// Goal: what a published client of KurrentDB wrote to a server of Gesta, which stands for one of KurrentDB. In the
/// target the same client reads the same of each stream: what metadata hide, and what was deleted or closed for ever,
/// is so there, too.
#[test]
fn kurrentdb() {
    if is_deep("KurrentDB")
        && let Some(packages) = packages()
    {
        let home = tempfile::tempdir().unwrap();
        let server = Server::start(&url_of(&home.path().join("source.db")));
        let told = told_by_node(&packages, &["kurrentdb.mjs", "fill", server.address()]);
        let url = format!("kurrentdb://{}?tls=false", server.address());
        let import = Import {
            left_out: vec![
                ("metadata of streams, which were set", 5),
                ("tombstones, which were set", 1),
            ],
            is_counted: false,
            ..Import::of("kurrentdb", &url)
        };
        import.brings(&told);

        let target = Server::start(&import.store());
        let read_by_client = |server: &Server| {
            let mut node = Command::new("node");
            node.args(["kurrentdb.mjs", "read", server.address()]);
            said(node.current_dir(&packages))
        };
        assert_eq!(read_by_client(&target), read_by_client(&server));
        target.stop();
        server.stop();
    }
}

/// What the programs with Akka Persistence and Pekko Persistence leave behind: of four entities the first 20 events are
/// deleted, and of two the first three. The row of the last of them stays, so that no number is given out again.
fn imported_from_persistence(kind: &str, url: &str, snapshots: u64) -> Import {
    Import {
        left_out: vec![("deleted or archived in the source", 6)],
        missing: 4 * 19 + 2 * 2,
        without_beginning: 6,
        emptied: 1,
        snapshots: Some(snapshots),
        ..Import::of(kind, url)
    }
}

/// Runs a program with Akka Persistence or Pekko Persistence on a database, or a file; it prints what the library reads
/// back.
fn told_by_persistence(classpath: &str, main: &str, database: &str) -> Vec<JournalEvent> {
    let name = match database.split_once("://") {
        Some((_, url)) => url.split_once('/').unwrap().1,
        None => database,
    };
    let address = shared().unwrap().addr();
    let mut java = Command::new("java");
    java.args(["-cp", classpath, main])
        .arg(address.ip().to_string())
        .arg(address.port().to_string())
        .args([name, "postgres"]);
    let mut told = told_by(&said(&mut java));
    for event in &mut told {
        event.stream = Some(match event.key.split_once('|') {
            Some((category, id)) => format!("{}-{id}", category.to_lowercase()),
            None => event.key.clone(),
        });
    }
    told
}

/// Goal: what entities of Pekko wrote all at once by its JDBC plugin, with tags, snapshots and deleted events.
#[test]
fn pekko_persistence_jdbc() {
    let program = programs().join("pekko");
    let sources = [program.join("Journal.java"), program.join("Jdbc.java")];
    if is_deep("Pekko Persistence JDBC")
        && let Some(classpath) = java("pekko-jdbc", &program, &sources)
        && let Some(url) = database()
    {
        let told = told_by_persistence(&classpath, "Jdbc", &url);
        imported_from_persistence("pekko-persistence-jdbc", &url, 8).brings(&told);
    }
}

/// Goal: the same by the R2DBC plugin of Pekko, where a registry has it. Its rows of deleted events are newer than
/// events after them.
#[test]
fn pekko_persistence_r2dbc() {
    let program = programs().join("pekko-r2dbc");
    let journal = programs().join("pekko/Journal.java");
    let sources = [journal, program.join("R2dbc.java")];
    if is_deep("Pekko Persistence R2DBC")
        && is_published("org.apache.pekko:pekko-persistence-r2dbc_2.13:1.1.0")
        && let Some(classpath) = java("pekko-r2dbc", &program, &sources)
        && let Some(url) = database()
    {
        let told = told_by_persistence(&classpath, "R2dbc", &url);
        imported_from_persistence("pekko-persistence-r2dbc", &url, 4).brings(&told);
    }
}

/// Goal: the same by the plugin of Akka, from which Pekko's was made and which has the same tables.
#[test]
fn akka_persistence_r2dbc() {
    let home = tempfile::tempdir().unwrap();
    let sources = ["pekko/Journal.java", "pekko-r2dbc/R2dbc.java"].map(|name| {
        let pekko = programs().join(name);
        let akka = home.path().join(pekko.file_name().unwrap());
        let text = std::fs::read_to_string(pekko).unwrap();
        let text = text.replace("org.apache.pekko", "akka");
        std::fs::write(&akka, text.replace("pekko", "akka")).unwrap();
        akka
    });
    if is_deep("Akka Persistence R2DBC")
        && let Some(classpath) = java("akka-r2dbc", &programs().join("akka"), &sources)
        && let Some(url) = database()
    {
        let told = told_by_persistence(&classpath, "R2dbc", &url);
        imported_from_persistence("akka-persistence-r2dbc", &url, 4).brings(&told);
    }
}

/// Goal: a cinema on Pekko Persistence JDBC is moved by the guide while it is used, after having gone each way back.
#[test]
fn a_cinema_on_pekko_is_moved_by_the_guide() {
    let program = programs().join("pekko");
    let sources = ["Cinema.java", "Jdbc.java", "Journal.java"].map(|name| program.join(name));
    if is_deep("the guide with a cinema on Pekko")
        && let Some(cinema) = cinema::program()
        && let Some(classpath) = java("pekko-cinema", &program, &sources)
        && let (Some(journal), Some(store)) = (database(), database())
    {
        let mut old = Pekko::of(classpath, &journal);
        let store = patient(&store);
        let mut by_the_guide = Move::of(&mut old, &journal, &store, cinema);
        by_the_guide.begin();
        by_the_guide.go_back_from_step_2();
        by_the_guide.go_back_from_step_5();
        by_the_guide.go_back_from_step_6();
        by_the_guide.end();
    }
}

/// Goal: the commands of the guide do what it says, with a journal that statements fill.
#[test]
fn rows_of_a_cinema_are_moved_by_the_guide() {
    if let Some(cinema) = cinema::program()
        && let (Some(journal), Some(store)) = (database(), database())
    {
        let mut old = Rows::of(&journal);
        let store = patient(&store);
        let mut by_the_guide = Move::of(&mut old, &journal, &store, cinema);
        by_the_guide.begin();
        by_the_guide.go_back_from_step_2();
        by_the_guide.go_back_from_step_6();
    }
}
