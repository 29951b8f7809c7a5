//! The example programs, as somebody meets them who begins with the README: they compile without a warning in a new
//! crate with the lines of the README, they run, and the pages show what is in the files.
#![cfg(all(feature = "sqlite", feature = "client"))]
#![expect(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The programs that need nothing but the lines of the README.
const PROGRAMS: [&str; 4] = ["append", "follow", "group", "entity"];
/// Those for which pages name another line.
const MORE: [&str; 2] = ["several_nodes", "count_items"];

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the project")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The blocks of a page that are marked so.
fn blocks(page: &str, mark: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line == format!("```{mark}") {
            let block = lines.by_ref().take_while(|line| *line != "```");
            found.push(block.collect::<Vec<&str>>().join("\n"));
        }
    }
    found
}

/// Makes a crate of these programs and dependencies, as `cargo new` and the README do, and returns where they are
/// built.
fn build(name: &str, dependencies: &str, programs: &[&str]) -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("new-crates");
    let folder = home.join(name);
    let source = folder.join("src/bin");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&source).expect("made");
    let here = root().join("crates/gesta");
    let as_written = "path = \"../gesta/crates/gesta\"";
    assert!(dependencies.contains(as_written), "{dependencies}");
    let dependencies = dependencies.replace(as_written, &format!("path = {here:?}"));
    let manifest = format!(
        "[package]\nname = \"{name}\"\nedition = \"2024\"\n\n{dependencies}\n\n[lints.rust]\nwarnings = \"deny\"\n\n[workspace]\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest).expect("written");
    // The versions that all tests use, so that nothing is fetched.
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).expect("copied");
    for program in programs {
        let file = format!("{program}.rs");
        fs::copy(here.join("examples").join(&file), source.join(&file)).expect("copied");
    }
    let built = home.join("target");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--offline", "--bins", "--target-dir"])
        .arg(&built)
        .current_dir(&folder)
        // What a developer of this project may have set is not what somebody has who begins.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("CARGO_BUILD_TARGET_DIR");
    let output = cargo.output().expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}");
    assert!(!said.contains("warning:"), "{name}: {said}");
    built.join("debug")
}

/// Runs a program in a folder, which must succeed, and returns what it prints.
fn run(program: &Path, folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", program.display());
    String::from_utf8(output.stdout).expect("text")
}

/// Goal: who copies the lines and the programs of the pages meets no warning and no error, and sees something. It
/// compiles all of the library from nothing, so only the deep form runs it.
#[test]
fn the_programs_compile_and_run_in_a_crate_with_the_lines_of_the_readme() {
    let readme = read(root().join("README.md"));
    let lines = blocks(&readme, "toml");
    let [lines] = lines.as_slice() else {
        panic!("the README has one block of dependencies: {lines:?}");
    };
    programs_work(&build("shop", lines, &PROGRAMS));
    let more = lines.replace(
        "crates/gesta\" }",
        "crates/gesta\", features = [\"client\"] }\nserde_json = \"1\"",
    );
    assert_ne!(&more, lines);
    programs_of_clients_work(&build("clients", &more, &MORE));
}

/// Goal: the programs of the pages print what the pages say, also the second time.
#[test]
fn the_programs_run() {
    // `target/debug/deps/examples-…`: cargo builds the examples of a package beside its tests.
    let this = std::env::current_exe().expect("this program");
    let built = this.ancestors().nth(2).expect("a folder").join("examples");
    programs_work(&built);
    programs_of_clients_work(&built);
}

/// Goal: the program with timers prints what fires, and nothing of what was cancelled.
#[cfg(feature = "timers")]
#[test]
fn the_program_with_timers_runs() {
    let this = std::env::current_exe().expect("this program");
    let built = this.ancestors().nth(2).expect("a folder").join("examples");
    let folder = tempfile::tempdir().expect("a folder");
    let said = run(&built.join("timers"), folder.path(), &[]);
    assert_eq!(said, "order-7 is cancelled: seven books\n");
}

fn programs_work(built: &Path) {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = |program: &str| run(&built.join(program), folder.path(), &[]);
    assert_eq!(runs("append"), "0 item-added book\n");
    assert_eq!(runs("append"), "0 item-added book\n1 item-added book\n");
    let carts = "cart-1 item-added book\n".repeat(2);
    assert_eq!(runs("follow"), format!("{carts}cart-2 item-added pen\n"));
    assert_eq!(runs("follow"), "cart-2 item-added pen\n");
    for _ in 0..2 {
        assert_eq!(runs("group"), "a mail about book 7\n");
    }
    let full = "Err(Rejected(\"it is full\"))";
    assert_eq!(
        runs("entity"),
        format!("book: Ok(())\npen: Ok(())\nlamp: {full}\n")
    );
    assert_eq!(
        runs("entity"),
        format!("book: {full}\npen: {full}\nlamp: {full}\n")
    );
}

fn programs_of_clients_work(built: &Path) {
    let folder = tempfile::tempdir().expect("a folder");
    appends_through_several_servers(&built.join("several_nodes"), folder.path());
    counts_and_goes_on(&built.join("count_items"), folder.path());
}

fn appends_through_several_servers(program: &Path, folder: &Path) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (store, server) = runtime.block_on(async {
        let store = gesta::open("sqlite::memory:").await.expect("opened");
        let config = gesta_server::Config {
            listen: ([127, 0, 0, 1], 0).into(),
            ..gesta_server::Config::default()
        };
        let started = gesta_server::start(config, store.event_store(), Default::default());
        (store, started.await.expect("a free port"))
    });
    let dead = gesta_rig::free_address().expect("a port");
    let servers = format!("http://{dead} http://{}", server.local_addr());
    let printed = run(program, folder, &[&servers]);
    assert!(printed.starts_with("cart-1 item-added "), "{printed}");
    runtime.block_on(async {
        server.shutdown().await;
        let events = store.read_whole_stream("cart-1").await.expect("readable");
        assert_eq!(events.len(), 1);
        store.shutdown().await.expect("shut down");
    });
}

/// It is killed, and counts nothing twice when it is started again.
fn counts_and_goes_on(program: &Path, folder: &Path) {
    for times in 1..=2_u64 {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let url = format!("sqlite:{}", folder.join("counted.db").display());
            let store = gesta::open(&url).create().await.expect("opened");
            let item = std::collections::HashMap::from([("item", "lamp")]);
            let added = gesta::EventData::new("item-added", &item).expect("valid");
            let any = gesta::ExpectedRevision::Any;
            store
                .append_to("cart-3", any, [added])
                .await
                .expect("stored");
            store.shutdown().await.expect("shut down");
        });
        let mut command = Command::new(program);
        command
            .arg("sqlite:counted.db")
            .current_dir(folder)
            .stdout(Stdio::null());
        let _running = gesta_rig::Child::spawn(&mut command).expect("it runs");
        let counted = || {
            let text = fs::read_to_string(folder.join("counts.json")).unwrap_or_default();
            text.contains(&format!("\"lamp\":{times}"))
        };
        let complaint = format!("it has not counted {times}");
        gesta_rig::wait_until(&complaint, counted).expect("it counts");
    }
}

fn without_indent(lines: &[&str]) -> Vec<String> {
    let indent = |line: &&&str| line.len() - line.trim_start().len();
    let least = lines
        .iter()
        .filter(|line| !line.is_empty())
        .map(|line| indent(&line))
        .min();
    let cut = |line: &&str| line.get(least.unwrap_or(0)..).unwrap_or("").to_owned();
    lines.iter().map(cut).collect()
}

/// Goal: a program on a page is a part of a file that is compiled and run, line by line, and hides nothing.
#[test]
fn what_pages_show_is_what_the_files_hold() {
    let folders = ["crates/gesta/examples", "proof/chaos/examples"];
    let files: Vec<String> = folders
        .iter()
        .flat_map(|folder| fs::read_dir(root().join(folder)).expect("examples"))
        .map(|entry| read(entry.expect("a file").path()))
        .collect();
    let is_part = |block: &str| {
        let block = without_indent(&block.lines().collect::<Vec<&str>>());
        files.iter().any(|file| {
            let lines: Vec<&str> = file.lines().collect();
            lines
                .windows(block.len())
                .any(|part| without_indent(part) == block)
        })
    };
    let guides = fs::read_dir(root().join("docs/guides")).expect("guides");
    let guides = guides.map(|entry| entry.expect("an entry").path());
    let pages = guides.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let mut shown = 0;
    for page in pages.chain([root().join("README.md")]) {
        let text = read(&page);
        // Whole programs that documentation tests compile, and must not run.
        let compiled = blocks(&text, "rust,no_run").into_iter();
        let whole = compiled.filter(|block| block.starts_with("//! "));
        for block in blocks(&text, "rust").into_iter().chain(whole) {
            assert!(
                is_part(&block),
                "{}: no file has this:\n{block}",
                page.display()
            );
            shown += 1;
        }
    }
    assert!(shown >= 5, "{shown}");
    for program in PROGRAMS.iter().chain(&MORE[..1]) {
        let lines = read(root().join(format!("crates/gesta/examples/{program}.rs")))
            .lines()
            .count();
        assert!(lines <= 40, "{program} has {lines} lines");
    }
}
