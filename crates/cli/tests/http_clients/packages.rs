//! The packages of `clients/`, built and installed as their users do.
//!
//! That is done once for all runs, into the folder of what is built, and again when a file of the package has changed.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::{is_installed, output_of};

/// A package that is installed.
pub(crate) struct Package {
    /// Where its source lies.
    pub(crate) source: PathBuf,
    /// Runs programs that use the package.
    pub(crate) interpreter: PathBuf,
    /// Where the programs of the guide lie that use the package, in which they are run.
    pub(crate) programs: PathBuf,
    /// Checks of the package itself: each command must succeed.
    pub(crate) own_tests: Vec<Command>,
    /// The programs that make every call, and that lose a node.
    pub(crate) check: PathBuf,
    pub(crate) cluster: PathBuf,
}

/// A package, built by the first test of a process that wants it, while the others wait.
type Once = OnceLock<Option<Package>>;

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// The Python package, in an environment of its own.
pub(crate) fn python() -> Option<&'static Package> {
    static PACKAGE: Once = OnceLock::new();
    PACKAGE.get_or_init(build_python).as_ref()
}

fn build_python() -> Option<Package> {
    if !is_installed("python3") {
        return None;
    }
    let source = root().join("clients/python");
    let folder = folder("python-package");
    let python = folder.join("bin/python");
    let is_built = once(&folder, &[&source], || {
        let tools = source.join("requirements-dev.txt");
        let pip = |arguments: &[&str]| {
            let mut pip = Command::new(&python);
            pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]);
            pip.args(arguments);
            pip
        };
        let (tools, wheels) = (tools.to_str().unwrap(), folder.join("wheels"));
        let (package, wheels) = (source.to_str().unwrap(), wheels.to_str().unwrap());
        // What it is built with is installed already, in a fixed version.
        let build = [
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            wheels,
            package,
        ];
        let install = [
            "install",
            "--no-index",
            "--force-reinstall",
            "--find-links",
            wheels,
            "gesta-client",
        ];
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))
            && run(&mut pip(&["install", "-r", tools]))
            && run(&mut pip(&build))
            && run(&mut pip(&install))
    });
    let own_tests = || {
        let mut mypy = Command::new(&python);
        mypy.args(["-m", "mypy", "--cache-dir"])
            .arg(folder.join("mypy"));
        let mut unit = Command::new(&python);
        unit.args(["-W", "error", "tests/test_client.py"]);
        [mypy, unit].map(|mut command| {
            command
                .current_dir(&source)
                .env("PYTHONDONTWRITEBYTECODE", "1");
            command
        })
    };
    is_built.then(|| Package {
        own_tests: own_tests().into(),
        check: source.join("tests/check.py"),
        cluster: source.join("tests/cluster.py"),
        programs: root().join("docs/guides/clients"),
        interpreter: python.clone(),
        source: source.clone(),
    })
}

/// The TypeScript package, in a folder with the programs, since modules are looked for beside them.
pub(crate) fn typescript() -> Option<&'static Package> {
    static PACKAGE: Once = OnceLock::new();
    PACKAGE.get_or_init(build_typescript).as_ref()
}

fn build_typescript() -> Option<Package> {
    if !is_installed("node") || !is_installed("npm") {
        return None;
    }
    let (source, programs) = (
        root().join("clients/typescript"),
        root().join("docs/guides/clients"),
    );
    let folder = folder("typescript-package");
    let (package, user) = (folder.join("package"), folder.join("user"));
    let npm = |folder: &Path, arguments: &[&str]| {
        let mut npm = Command::new("npm");
        npm.args(["--no-audit", "--no-fund", "--loglevel=error"]);
        npm.args(arguments).current_dir(folder);
        npm
    };
    let is_built = once(&folder, &[&source, &programs], || {
        for (from, to) in [
            (&source, &package),
            (&source.join("test"), &user),
            (&programs, &user),
        ] {
            copy(from, to);
        }
        std::fs::write(
            user.join("package.json"),
            r#"{"private": true, "type": "module"}"#,
        )
        .unwrap();
        let pack = ["pack", "--pack-destination", folder.to_str().unwrap()];
        let install = ["install", "../gesta-client-0.1.0.tgz"];
        run(&mut npm(&package, &["ci"]))
            && run(&mut npm(&package, &pack))
            && run(&mut npm(&user, &install))
    });
    let own_tests = || {
        let compiler = package.join("node_modules/typescript/bin/tsc");
        let mut types = Command::new("node");
        types.arg(compiler).args([
            "--noEmit", "--strict", "--module", "nodenext", "--target", "es2022",
        ]);
        types
            .arg("--typeRoots")
            .arg(package.join("node_modules/@types"))
            .arg("types.ts");
        let mut unit = Command::new("node");
        unit.args(["--test", "client.test.mjs"]);
        [types, unit].map(|mut command| {
            command.current_dir(&user);
            command
        })
    };
    is_built.then(|| Package {
        own_tests: own_tests().into(),
        check: user.join("check.mjs"),
        cluster: user.join("cluster.mjs"),
        programs: user.clone(),
        interpreter: "node".into(),
        source: source.clone(),
    })
}

/// A folder of this name, beside what is built.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Does this unless it was done with these very sources. Two processes do not do it at a time. False if it failed.
fn once(folder: &Path, sources: &[&Path], build: impl FnOnce() -> bool) -> bool {
    let lock = File::create(folder.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let mut text = String::new();
    for file in sources.iter().flat_map(|source| files(source)) {
        let content = std::fs::read(&file).unwrap();
        writeln!(
            text,
            "{}\n{}",
            file.display(),
            String::from_utf8_lossy(&content)
        )
        .unwrap();
    }
    let done = folder.join("built-of");
    if std::fs::read_to_string(&done).is_ok_and(|of| of == text) {
        return true;
    }
    let is_built = build();
    if is_built {
        std::fs::write(done, text).unwrap();
    }
    is_built
}

/// The files of a folder, but what its tools have left there.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_source = !name.starts_with('.')
            && !["node_modules", "dist", "build", "__pycache__"].contains(&&*name);
        if path.is_dir() && is_source {
            found.extend(files(&path));
        } else if path.is_file() && is_source {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(&file, target).unwrap();
    }
}

/// Runs a step; false, said aloud, if it fails, and with `CI` set that is a failure.
fn run(command: &mut Command) -> bool {
    let output = output_of(command);
    if !output.status.success() {
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(std::env::var_os("CI").is_none(), "{command:?}: {said}");
        eprintln!("SKIPPED: {command:?} failed; what needs it was not run: {said}");
    }
    output.status.success()
}
