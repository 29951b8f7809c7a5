//! The published clients, as they come from their registries, and the programs that use them.
//!
//! The programs of the guide stand on its pages, one for each client; what is run is what the page says, with the
//! address of the server in place of the page's.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::registry::{self, copy, fetch, fetch_once, folder, lock, npm};
use crate::support::{is_installed, is_installed_as};

/// The address that the pages of the guide and the published programs name.
const ADDRESSES_OF_PAGES: [&str; 2] = ["127.0.0.1:2113", "localhost:2113"];

/// Where the programs lie that use the clients.
pub(crate) fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grpc_programs")
}

/// The whole program on a page of the guide: its longest block in this language.
pub(crate) fn program_of_page(page: &str, language: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/kurrentdb");
    let text = std::fs::read_to_string(path.join(page)).unwrap();
    let blocks = blocks(&text, language).into_iter();
    blocks.max_by_key(String::len).expect("a program")
}

/// The blocks of code in this language.
pub(crate) fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}");
    let (mut found, mut block) = (Vec::new(), None::<String>);
    for line in text.lines() {
        match &mut block {
            None if line.trim_end() == fence => block = Some(String::new()),
            None => {}
            Some(_) if line.trim_end() == "```" => found.extend(block.take()),
            Some(block) => {
                block.push_str(line);
                block.push('\n');
            }
        }
    }
    found
}

/// A program with another address of the server.
pub(crate) fn addressed(program: &str, address: &str) -> String {
    let named = ADDRESSES_OF_PAGES
        .iter()
        .find(|named| program.contains(**named));
    program.replace(named.expect("the address of a server"), address)
}

/// A client, fetched by the first test of a process that wants it, while the others wait.
type Once = OnceLock<Option<Client>>;

/// A client that can be used.
pub(crate) struct Client {
    /// Where it lies.
    pub(crate) folder: PathBuf,
    /// How to run the program that checks everything; the addresses of servers are added.
    pub(crate) check: Option<Vec<OsString>>,
    /// How to run a program that is given as text, the address of the server in it.
    pub(crate) run_text: fn(&Client, &str) -> Vec<OsString>,
    /// The page of the guide, and the language of its program.
    pub(crate) page: (&'static str, &'static str),
}

impl Client {
    /// A file in the folder of the client.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// A name for a file that no other test writes at the same time.
fn fresh(extension: &str) -> String {
    format!("text-{}.{extension}", uuid::Uuid::new_v4().simple())
}

/// The Python client.
pub(crate) fn python() -> Option<&'static Client> {
    static CLIENT: Once = OnceLock::new();
    CLIENT.get_or_init(fetch_python).as_ref()
}

fn python_of(folder: &Path) -> PathBuf {
    folder.join("bin/python")
}

fn fetch_python() -> Option<Client> {
    if !is_installed("python3") {
        return None;
    }
    let requirements = std::fs::read_to_string(programs().join("requirements.txt")).unwrap();
    let (folder, _lock) = folder("python-client");
    let python = python_of(&folder);
    let is_there = fetch_once(&folder, &requirements, || {
        let install = ["-m", "pip", "install", "--quiet", "-r", "requirements.txt"];
        fetch(Command::new("python3").args(["-m", "venv"]).arg(&folder))
            && fetch(Command::new(&python).args(install).current_dir(programs()))
    });
    if !is_there {
        return None;
    }
    Some(Client {
        check: Some(vec![python.into(), programs().join("check.py").into()]),
        run_text: |client, text| {
            let program = client.write(&fresh("py"), text);
            vec![python_of(&client.folder).into(), program.into()]
        },
        page: ("python.md", "python"),
        folder,
    })
}

/// The Node client.
pub(crate) fn node() -> Option<&'static Client> {
    static CLIENT: Once = OnceLock::new();
    CLIENT.get_or_init(fetch_node).as_ref()
}

fn fetch_node() -> Option<Client> {
    let folder = npm("node-client", &programs(), &["check.mjs", "cluster.mjs"])?;
    Some(Client {
        check: Some(vec!["node".into(), "check.mjs".into()]),
        run_text: |client, text| vec!["node".into(), client.write(&fresh("mjs"), text).into()],
        page: ("node.md", "js"),
        folder,
    })
}

/// The Rust client, which is compiled with its program.
pub(crate) fn rust() -> Option<Client> {
    let (folder, _lock) = folder("rust-client");
    let mut download = Command::new("cargo");
    download.args(["fetch", "--locked", "--quiet"]);
    if !fetch(download.current_dir(programs().join("rust"))) {
        return None;
    }
    let mut build = Command::new("cargo");
    build
        .args(["build", "--locked", "--quiet", "--target-dir"])
        .arg(&folder)
        .current_dir(programs().join("rust"))
        // Its code is not ours to lint.
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    let output = build.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Some(Client {
        check: Some(vec![folder.join("debug/check").into()]),
        run_text: |client, text| {
            // An example of a copy of the package, so that what is compiled already is not compiled again.
            let _lock = lock(&client.folder);
            let package = client.folder.join("package");
            std::fs::create_dir_all(package.join("examples")).unwrap();
            std::fs::create_dir_all(package.join("src")).unwrap();
            for name in ["Cargo.toml", "Cargo.lock", "src/main.rs"] {
                copy(&programs().join("rust").join(name), &package.join(name));
            }
            let file = fresh("rs");
            client.write(&format!("package/examples/{file}"), text);
            let example = file.trim_end_matches(".rs");
            let folder = client.folder.clone().into_os_string();
            let run = [
                "cargo",
                "run",
                "--quiet",
                "--locked",
                "--example",
                example,
                "--manifest-path",
            ];
            let mut run: Vec<OsString> = run.iter().map(Into::into).collect();
            run.extend([
                package.join("Cargo.toml").into(),
                "--target-dir".into(),
                folder,
            ]);
            run
        },
        page: ("rust.md", "rust,ignore"),
        folder,
    })
}

/// The description of the Rust client that comes with it.
pub(crate) fn rust_readme() -> String {
    let mut metadata = Command::new("cargo");
    let output = metadata
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(programs().join("rust"))
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut packages = metadata["packages"].as_array().unwrap().iter();
    let package = packages
        .find(|package| package["name"] == "kurrentdb")
        .unwrap();
    let manifest = Path::new(package["manifest_path"].as_str().unwrap());
    std::fs::read_to_string(manifest.with_file_name("README.md")).unwrap()
}

/// The Java client.
pub(crate) fn java() -> Option<Client> {
    let sources = [programs().join("java/src/main/java/Check.java")];
    let with_classes = registry::java("java-client", &programs().join("java"), &sources)?;
    let (folder, _lock) = folder("java-client");
    let check = ["java", "-cp", &with_classes, "Check"];
    Some(Client {
        check: Some(check.iter().map(Into::into).collect()),
        run_text: |client, text| {
            let path = std::fs::read_to_string(client.folder.join("classpath")).unwrap();
            let program = client.write(&format!("{}/Quickstart.java", fresh("program")), text);
            let run: [OsString; 3] = ["java".into(), "-cp".into(), path.trim().into()];
            [&run[..], &[program.into()]].concat()
        },
        page: ("java.md", "java"),
        folder,
    })
}

/// The Go client.
pub(crate) fn go() -> Option<Client> {
    if !is_installed_as("go", "version") {
        return None;
    }
    let (folder, _lock) = folder("go-client");
    std::fs::create_dir_all(folder.join("check")).unwrap();
    for name in ["go.mod", "go.sum", "check/main.go"] {
        copy(&programs().join("go").join(name), &folder.join(name));
    }
    let mut download = Command::new("go");
    download.args(["mod", "download"]).current_dir(&folder);
    fetch(&mut download).then_some(Client {
        check: Some(vec!["go".into(), "run".into(), "./check".into()]),
        run_text: |client, text| {
            let program = client.write(&format!("{}/main.go", fresh("program")), text);
            vec!["go".into(), "run".into(), program.into()]
        },
        page: ("go.md", "go"),
        folder,
    })
}

/// The folder of the Go client's published programs.
pub(crate) fn go_samples(client: &Client) -> PathBuf {
    let mut list = Command::new("go");
    let module = "github.com/kurrent-io/KurrentDB-Client-Go";
    let output = list
        .args(["list", "-m", "-f", "{{.Dir}}", module])
        .current_dir(&client.folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim()).join("samples")
}
