//! The pages of `docs/`: their links lead somewhere, their commands run, and what they name is there.
//!
//! A page whose commands are run says so in its first lines, by the name of this file. Its blocks marked `sh` are run
//! one after the other, each by a shell that stops at the first failure, in an empty folder. `$B` is the address of a
//! server that the page has for itself, `$LISTEN` one that is free, `$DOCS` these pages, `$CLIENT` the package for
//! Python, and `$PG` the URL of an empty PostgreSQL store; a page that names `$PG` is skipped, loudly, where PostgreSQL
//! is not installed. What a page starts in the background is killed at its end, if it has noted the process in a file
//! `NAME.pid`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

#[path = "pages/site.rs"]
mod site;
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Server, output_of, patient, stderr, stdout, url_of};

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// All pages of the project's documentation, by their path and with their text.
fn pages() -> Vec<(PathBuf, String)> {
    let paths = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "clients/README.md",
        "clients/python/README.md",
        "clients/typescript/README.md",
    ]
    .map(|name| root().join(name));
    let mut all = pages_below(root().join("docs"));
    all.extend(paths.into_iter().map(with_text));
    all
}

/// All pages below a folder.
fn pages_below(folder: PathBuf) -> Vec<(PathBuf, String)> {
    let (mut folders, mut paths) = (vec![folder], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path);
            }
        }
    }
    paths.into_iter().map(with_text).collect()
}

fn with_text(path: PathBuf) -> (PathBuf, String) {
    let text = std::fs::read_to_string(&path).unwrap();
    (path, text)
}

/// All files of the project with these endings, but what is generated, with their texts.
fn files(endings: &[&str]) -> Vec<(PathBuf, String)> {
    let (mut folders, mut found) = (vec![root()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_ours = !name.starts_with('.')
                && !["target", "generated", "node_modules"].contains(&&*name);
            if path.is_dir() && is_ours {
                folders.push(path);
            } else if path.is_file() && endings.iter().any(|ending| name.ends_with(ending)) {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found
}

/// The texts between these two marks, each on one line.
fn between<'a>(text: &'a str, begin: &'a str, end: char) -> impl Iterator<Item = &'a str> {
    let after = text.split(begin).skip(1);
    after.filter_map(move |rest| rest.lines().next()?.split_once(end).map(|(found, _)| found))
}

/// Goal: links between pages lead to a file that exists, and to a heading of it.
#[test]
fn links_lead_somewhere() {
    let broken = broken_links(pages());
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Goal: so it is in the packages, which have not everything that the clone has.
#[test]
fn links_of_packed_pages_lead_somewhere() {
    if !support::is_installed("python3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut script = Command::new("python3");
    script.arg(root().join("scripts/release"));
    script.arg("--documents").arg(folder.path());
    let written = output_of(&mut script);
    assert!(written.status.success(), "{written:?}");
    for kind in ["archive", "debian"] {
        let packed = pages_below(folder.path().join(kind));
        let is_there = |name: &str| {
            let path = folder.path().join(kind).join(name);
            packed.iter().any(|(page, _)| *page == path)
        };
        assert!(is_there("README.md") && is_there("docs/guides/getting-started.md"));
        let broken = broken_links(packed);
        assert!(broken.is_empty(), "{kind}: {}", broken.join("\n"));
    }
}

/// The links of pages that lead to no file, or to no heading of it.
fn broken_links(pages: Vec<(PathBuf, String)>) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, text) in pages {
        for link in between(&text, "](", ')') {
            if link.starts_with("http") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            let leads_somewhere = match (target.is_file(), anchor) {
                (false, _) => target.is_dir(),
                (true, "") => true,
                (true, anchor) => has_heading(&std::fs::read_to_string(&target).unwrap(), anchor),
            };
            if !leads_somewhere {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    broken
}

fn has_heading(text: &str, anchor: &str) -> bool {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.into_iter().any(|heading| {
        let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        let words: String = heading
            .trim_start_matches('#')
            .trim()
            .chars()
            .filter(kept)
            .collect();
        words.to_lowercase().replace(' ', "-") == anchor
    })
}

/// Goal: a file of the code that a page names is there.
#[test]
fn files_that_pages_name_exist() {
    let (mut missing, mut files) = (Vec::new(), 0);
    for (path, text) in pages() {
        let code = text
            .lines()
            .flat_map(|line| line.split('`').skip(1).step_by(2));
        for name in code {
            let is_file = ["crates/", "scripts/", "docs/"]
                .iter()
                .any(|folder| name.starts_with(folder))
                && !name.contains([' ', '*', '<', '{', '$']);
            let file = name.split_once("::").map_or(name, |(file, _)| file);
            files += u32::from(is_file);
            if is_file && !root().join(file).exists() {
                missing.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(files > 100, "{files} names were seen");
}

/// Goal: every page is reached from the index.
#[test]
fn the_index_names_every_page() {
    let index = std::fs::read_to_string(root().join("docs/README.md")).unwrap();
    let docs = root().join("docs");
    for (path, _) in pages() {
        let Ok(name) = path.strip_prefix(&docs) else {
            continue;
        };
        let name = name.to_str().unwrap();
        let is_listed_by_its_folder = name == "README.md"
            || name.starts_with("decisions/")
            || name.starts_with("benchmarks/");
        assert!(
            is_listed_by_its_folder || index.contains(&format!("]({name})")),
            "{name} is not in docs/README.md"
        );
    }
}

/// Goal: every decision has a status and stands in the list, and every page of figures is reached from the first one.
#[test]
fn decisions_have_a_status_and_figures_are_reached() {
    let read = |name: &str| std::fs::read_to_string(root().join("docs").join(name)).unwrap();
    let (decisions, benchmarks) = (read("decisions/README.md"), read("benchmarks.md"));
    for (path, text) in pages() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let folder = path.parent().unwrap();
        if folder.ends_with("docs/decisions") && name != "README.md" {
            assert!(text.contains("\n**Status.** "), "{name} has no status");
            assert!(
                decisions.contains(&format!("]({name})")),
                "{name} is not in the list"
            );
        }
        if folder.ends_with("docs/benchmarks") {
            assert!(
                benchmarks.contains(&format!("](benchmarks/{name})")),
                "{name} is not reached"
            );
        }
    }
}

/// Goal: prose wraps at 120 characters, in every page and in every comment of the code; tables and blocks of code may
/// be wider.
#[test]
fn prose_wraps() {
    let is_long = |line: &str| line.chars().count() > 120;
    let mut long = Vec::new();
    for (path, text) in files(&[".md"]) {
        let mut is_code = false;
        for (number, line) in text.lines().enumerate() {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            let is_table = line.starts_with(['|', '#'])
                || (line.starts_with('<') && !line.starts_with("<!--"));
            if !is_code && !is_fence && !is_table && is_long(line) {
                long.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    for (path, text) in files(&[".rs"]) {
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("//") && is_long(line) {
                long.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// Goal: the commands of the pages do what the pages say, at least without an error.
#[test]
fn commands_of_the_pages_run() {
    if !support::is_installed("curl") {
        return;
    }
    let (mut run, mut matches) = (0, [0; TIME_TO_CONSUME.len()]);
    for (path, text) in pages() {
        let says_so = text
            .lines()
            .take(5)
            .any(|line| line.contains("crates/cli/tests/docs.rs"));
        if says_so {
            for block in blocks(&text, "sh") {
                for (count, (page, _)) in matches.iter_mut().zip(TIME_TO_CONSUME) {
                    *count += block.matches(page).count();
                }
            }
            run_page(&path, &text);
            run += 1;
        }
    }
    assert!(run > 0);
    assert_eq!(matches, [1; TIME_TO_CONSUME.len()], "{TIME_TO_CONSUME:?}");
}

fn run_page(path: &Path, text: &str) {
    let mut variables = Vec::new();
    if text.contains("$PG") {
        let Some(postgres) = gesta_rig::shared() else {
            return;
        };
        let schema = gesta_rig::fresh_schema();
        let url = format!("{}?schema={schema}", postgres.url());
        variables.push(("PG", patient(&url)));
    }
    let folder = tempfile::tempdir().unwrap();
    // A consumer that nobody listens to any more is noticed by the next heartbeat.
    let server = Server::start_with_variables(
        &url_of(&folder.path().join("served.db")),
        &["--listen", "127.0.0.1:0"],
        &[("GESTA_SERVER_HEARTBEAT", "1s")],
    );
    let free = gesta_rig::free_address().unwrap().to_string();
    variables.push(("LISTEN", free));
    let below = |path: &str| root().join(path).display().to_string();
    variables.push(("DOCS", below("docs")));
    variables.push(("CLIENT", below("clients/python/src")));
    // A page that a program shows: at any port that is free.
    variables.push(("PORT", "0".to_owned()));
    variables.push(("B", server.url.clone()));
    variables.push(("GESTA_STORE", server.url.clone()));
    let binary = Path::new(env!("CARGO_BIN_EXE_gesta"))
        .parent()
        .unwrap()
        .to_owned();
    let mut programs = vec![binary];
    programs.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    let _background = Background(folder.path().to_owned());
    for block in blocks(text, "sh") {
        let block = with_time_to_consume(&block);
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", &block]);
        shell
            .current_dir(folder.path())
            .env("PATH", std::env::join_paths(&programs).unwrap());
        shell.envs(variables.iter().map(|(name, value)| (name, value)));
        let output = output_of(&mut shell);
        let said = stdout(&output) + &stderr(&output);
        assert!(
            output.status.success(),
            "{}:\n{block}\n{said}",
            path.display()
        );
    }
    server.stop();
    for (number, config) in blocks(text, "toml").iter().enumerate() {
        let file = folder.path().join(format!("{number}.toml"));
        std::fs::write(&file, config).unwrap();
        let store = url_of(&folder.path().join("configured.db"));
        let more = [
            "--listen",
            "127.0.0.1:0",
            "--config",
            file.to_str().unwrap(),
        ];
        Server::start_with(&store, &more).stop();
    }
}

/// Kills what a page has started in the background, also if one of its commands has failed.
struct Background(PathBuf);

impl Drop for Background {
    fn drop(&mut self) {
        let files = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        for path in files.map(|file| file.path()) {
            let noted = std::fs::read_to_string(&path).unwrap_or_default();
            let is_noted = path.extension().is_some_and(|extension| extension == "pid");
            // Not another process that has got the number since.
            let works_here = std::fs::read_link(format!("/proc/{}/cwd", noted.trim()))
                .is_ok_and(|folder| folder == self.0);
            if let (true, true, Ok(process)) = (is_noted, works_here, noted.trim().parse()) {
                let process = nix::unistd::Pid::from_raw(process);
                let _ = nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL);
            }
        }
    }
}

/// A page cuts a consumer off after a second, since it does not end by itself. Here it has a minute, and is cut off
/// when the first delivery has come: what stands on the page, once on all pages together, and what is run instead.
const TIME_TO_CONSUME: [(&str, &str); 2] = [
    ("curl -sN --max-time 1 ", "curl -sN --max-time 60 "),
    (
        " > deliveries ",
        " | grep --max-count=1 '\"delivery\":' > deliveries ",
    ),
];

fn with_time_to_consume(block: &str) -> String {
    let replaced = |block: String, (page, here): (&str, &str)| block.replace(page, here);
    TIME_TO_CONSUME.into_iter().fold(block.to_owned(), replaced)
}

/// The blocks of a page in this language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let begin = format!("\n```{language}\n");
    let blocks = text.split(&begin).skip(1);
    let block = |rest: &str| rest.split_once("\n```").expect("a block ends").0.to_owned();
    blocks.map(block).collect()
}

/// What differs from run to run in the answers of a server, or from store to store.
const VOLATILE: [&str; 9] = [
    "checkpoint",
    "next",
    "id",
    "created",
    "incarnation",
    "backend",
    "engine",
    "durability",
    "capabilities",
];

/// Goal: the page about HTTP shows what a server answers, but for what differs from run to run.
#[test]
fn the_page_about_http_shows_what_a_server_answers() {
    if !support::is_installed("curl") {
        return;
    }
    let page = std::fs::read_to_string(root().join("docs/reference/http.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&folder.path().join("gesta.db")));
    let mut compared = 0;
    for block in blocks(&page, "console") {
        for (command, expected) in commands(&block) {
            // A subscription does not end.
            if command.contains("curl -N") {
                continue;
            }
            let mut shell = Command::new("bash");
            shell.args(["-c", &command.replacen("curl", "curl -sS", 1)]);
            shell.current_dir(folder.path()).env("B", &server.url);
            let actual = output_of(&mut shell);
            assert!(actual.status.success(), "{command}\n{}", stderr(&actual));
            let actual = stdout(&actual);
            let documents = |text: &str| -> Vec<serde_json::Value> {
                let lines = text.lines().filter(|line| line.starts_with('{'));
                lines
                    .map(|line| masked(serde_json::from_str(line).unwrap()))
                    .collect()
            };
            let (shown, answered) = (documents(&expected), documents(&actual));
            assert!(
                shown.is_empty() || shown == answered,
                "{command}\nshown: {expected}\nanswered: {actual}"
            );
            for head in expected
                .lines()
                .filter(|line| !line.starts_with('{') && !line.is_empty())
            {
                assert!(
                    actual.lines().any(|line| line == head),
                    "{command}: {head} is not in {actual}"
                );
            }
            compared += shown.len();
        }
    }
    assert!(compared > 10, "{compared} answers were compared");
    server.stop();
}

/// The commands of a block, which begin with `$ ` and go on while a quotation is open, each with what it prints.
fn commands(block: &str) -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    for line in block.lines() {
        let is_open = |text: &str| text.matches('\'').count() % 2 == 1;
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_owned(), String::new())),
            (None, Some((command, _))) if is_open(command) => *command += &format!("\n{line}"),
            (None, Some((_, printed))) => *printed += &format!("{line}\n"),
            (None, None) => panic!("a block begins with output: {line}"),
        }
    }
    commands
}

/// A document without the values that differ from run to run; whether they are there is kept.
fn masked(document: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match document {
        Value::Object(fields) => {
            let mask = |(name, value): (String, Value)| {
                let is_volatile = VOLATILE.contains(&name.as_str()) && !value.is_null();
                let value = if is_volatile {
                    Value::Bool(true)
                } else {
                    masked(value)
                };
                (name, value)
            };
            fields.into_iter().map(mask).collect()
        }
        Value::Array(values) => values.into_iter().map(masked).collect(),
        other => other,
    }
}

/// The commands that a help page lists.
fn commands_of(arguments: &[&str]) -> Vec<String> {
    let help = support::succeed(&[arguments, &["--help"]].concat());
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    // A description that goes on in the next line is indented further.
    let entries = lines
        .take_while(|line| !line.is_empty())
        .filter(|line| !line.starts_with("   "));
    let names = entries.filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// What happened: the help, two pages and two errors named different commands that create a store. Goal: the help and
/// the page name the same ones, and the other texts lead to them.
#[test]
fn the_commands_that_create_a_store_are_told_once() {
    let help = support::succeed(&["--help"]);
    let page = std::fs::read_to_string(root().join("docs/reference/cli.md")).unwrap();
    let named = |text: &str| {
        let (_, list) = text.split_once("Only serve, ").expect("a list");
        let (list, _) = list.split_once(" create a store").expect("its end");
        let list = list.replace(" and ", ", ");
        list.split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = named(&one_line(&help));
    assert_eq!(told, named(&one_line(&page.replace('`', ""))));
    assert!(told.len() > 5, "{told:?}");
    let missing = support::run(&["info", "--store", "sqlite:/nowhere/gesta.db"]);
    let text = support::stderr(&missing);
    assert!(
        text.contains("there is no store at") && text.contains("gesta --help"),
        "{text}"
    );
}

/// Goal: the page about the command line has every command.
#[test]
fn the_page_about_the_command_line_has_every_command() {
    let page = std::fs::read_to_string(root().join("docs/reference/cli.md")).unwrap();
    let mut checked = 0;
    for command in commands_of(&[]) {
        let parts = commands_of(&[&command]);
        let names = match parts.is_empty() {
            true => vec![command],
            false => parts
                .iter()
                .map(|part| format!("{command} {part}"))
                .collect(),
        };
        for name in names {
            assert!(
                page.contains(&format!("`{name}`")),
                "{name} is not on the page"
            );
            checked += 1;
        }
    }
    assert!(checked > 10, "{checked} commands were found");
}

/// The metrics that a node of two shows; `None`, said aloud, where PostgreSQL is not installed.
fn metrics_of_a_node() -> Option<String> {
    let postgres = gesta_rig::shared()?;
    let schema = gesta_rig::fresh_schema();
    let store = patient(&format!("{}?schema={schema}", postgres.url()));
    support::succeed(&["schema", "create", "--store", &store, "--logs", "2"]);
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret of the tests").unwrap();
    let node = || {
        let local = "127.0.0.1:0";
        let secret = ["--cluster-secret-file", secret.to_str().unwrap()];
        let more = [&["--listen", local, "--node", local], &secret[..]].concat();
        Server::start_with(&store, &more)
    };
    let (first, _second) = (node(), node());
    let mut metrics = String::new();
    support::wait_until("the node sees the other one", || {
        metrics = support::get(first.address(), "/metrics");
        metrics.contains("gesta_cluster_link_up")
    });
    Some(metrics)
}

/// Goal: the page about monitoring names every metric that a server or a node shows, and neither it nor the alerts name
/// another one.
#[test]
fn the_page_about_monitoring_names_every_metric() {
    let page = std::fs::read_to_string(root().join("docs/operating/monitoring.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&folder.path().join("gesta.db")));
    let append = [
        "stream",
        "append",
        "cart-1",
        "--type",
        "item-added",
        "--data",
        "{}",
    ];
    support::succeed(&[&append[..], &["--store", &server.url]].concat());
    let mut metrics = support::get(server.address(), "/metrics");
    let of_node = metrics_of_a_node();
    let has_node = of_node.is_some();
    metrics += &of_node.unwrap_or_default();
    let shown: Vec<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .collect();
    let shown: Vec<&str> = shown
        .iter()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(shown.len() > 10, "{metrics}");
    for name in &shown {
        assert!(page.contains(name), "{name} is not on the page");
    }
    let alerts = std::fs::read_to_string(root().join("docs/operating/alerts.yml")).unwrap();
    let page = page + &alerts;
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for word in page
        .split(|c| !is_part(c))
        .filter(|word| word.starts_with("gesta_"))
        .filter(|word| has_node || !word.starts_with("gesta_cluster_"))
        // A server without TLS has no certificate; the tests of the server look for this one.
        .filter(|word| !word.starts_with("gesta_tls_"))
    {
        let is_shown = shown.iter().any(|name| {
            word.strip_prefix(name)
                .is_some_and(|suffix| ["", "_total", "_bucket", "_count", "_sum"].contains(&suffix))
        });
        assert!(is_shown, "{word} is not a metric");
    }
    server.stop();
}
