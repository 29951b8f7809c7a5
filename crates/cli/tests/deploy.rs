//! The files by which others start the program (`deploy/`): what they say is what the program understands, and what
//! they
//! start serves.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use support::{
    PATIENCE, Server, code, gesta, get, is_installed, output_of, patient, run, stderr, stdout,
    succeed, url_of,
};
use tempfile::TempDir;
use yaml_rust2::{Yaml, YamlLoader};

/// Where packages and the image have the program.
const PROGRAM: &str = "/usr/bin/gesta";
/// Where the files have their secrets.
const SECRETS: &str = "/run/secrets/gesta";
/// How long a server takes to stop at most: running requests (8 s), queued appends (30 s).
const STOP_SECONDS: i64 = 38;

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

fn text_of(name: &str) -> String {
    let path = root().join("deploy").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn documents(name: &str) -> Vec<Yaml> {
    YamlLoader::load_from_str(&text_of(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The document of this kind and name in a file.
fn document(file: &str, kind: &str, name: &str) -> Yaml {
    let is_it = |document: &Yaml| {
        document["kind"].as_str() == Some(kind)
            && document["metadata"]["name"].as_str() == Some(name)
    };
    let found = documents(file).into_iter().find(is_it);
    found.unwrap_or_else(|| panic!("{kind} {name} in {file}"))
}

/// A scalar as text.
fn scalar(value: &Yaml) -> String {
    match value {
        Yaml::String(text) => text.clone(),
        Yaml::Integer(number) => number.to_string(),
        other => panic!("no scalar: {other:?}"),
    }
}

fn list(value: &Yaml) -> Vec<String> {
    value.as_vec().into_iter().flatten().map(scalar).collect()
}

/// What is common to the ways by which a container is started.
#[derive(Debug, Default)]
struct Container {
    arguments: Vec<String>,
    variables: BTreeMap<String, String>,
    /// The numbers of its ports, by name.
    ports: BTreeMap<String, i64>,
    /// Where folders are mounted.
    mounts: Vec<String>,
}

impl Container {
    /// One of a pod.
    fn of_pod(container: &Yaml) -> Self {
        let entries = |key: &str| container[key].as_vec().cloned().unwrap_or_default();
        let variables = entries("env").into_iter().map(|entry| {
            let value = match &entry["value"] {
                // What the cluster fills in.
                Yaml::BadValue => "gesta-0".to_owned(),
                value => scalar(value),
            };
            (scalar(&entry["name"]), value)
        });
        let ports = entries("ports").into_iter();
        let ports = ports.map(|port| {
            (
                scalar(&port["name"]),
                port["containerPort"].as_i64().unwrap(),
            )
        });
        let mounts = entries("volumeMounts").into_iter();
        Self {
            arguments: list(&container["args"]),
            variables: variables.collect(),
            ports: ports.collect(),
            mounts: mounts.map(|mount| scalar(&mount["mountPath"])).collect(),
        }
    }

    /// Lets it run here: files lie in a folder, listeners have loopback addresses, and the store is this one.
    fn moved_here(mut self, folder: &Path, store: &str) -> Self {
        let is_mounted = |path: &str| {
            self.mounts
                .iter()
                .any(|mount| path.starts_with(mount.as_str()))
        };
        let mut here = BTreeMap::new();
        for (name, value) in &self.variables {
            let value = match name.as_str() {
                "GESTA_STORE" => store.to_owned(),
                "GESTA_LISTEN" => {
                    assert_eq!(
                        value, "0.0.0.0:2113",
                        "the port that services and probes name"
                    );
                    gesta_rig::free_address().unwrap().to_string()
                }
                "GESTA_CLUSTER_NODE" => {
                    assert_eq!(
                        value, "0.0.0.0:2114",
                        "the port that the other service names"
                    );
                    gesta_rig::free_address().unwrap().to_string()
                }
                _ if value.starts_with(SECRETS) => {
                    assert!(is_mounted(value), "{value} is not mounted");
                    let file = folder.join(value.rsplit_once('/').unwrap().1);
                    let text = match name.as_str() {
                        "GESTA_STORE_FILE" => store,
                        _ => "a secret of the tests",
                    };
                    std::fs::write(&file, text).unwrap();
                    private(&file);
                    file.to_str().unwrap().to_owned()
                }
                _ => value.clone(),
            };
            here.insert(name.clone(), value);
        }
        if let Some(node) = here.get("GESTA_CLUSTER_NODE").cloned() {
            here.insert("GESTA_CLUSTER_ADVERTISE".into(), node);
        }
        self.variables = here;
        self
    }

    /// The program with its variables, and these arguments.
    fn command(&self, arguments: &[String]) -> Command {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = gesta(&arguments);
        command.envs(&self.variables);
        command
    }

    fn start(&self) -> Server {
        let server = Server::spawn(&mut self.command(&self.arguments));
        let ignored = server.logged("means nothing");
        assert!(ignored.is_empty(), "{ignored:?}");
        let wide = server.logged("other users of this machine");
        assert!(wide.is_empty(), "{wide:?}");
        server
    }

    /// Runs a command of the file, which names the program by its place in the image.
    fn hook(&self, command: &[String]) -> String {
        let (program, arguments) = command.split_first().expect("a command");
        assert_eq!(program, PROGRAM);
        let output = output_of(&mut self.command(arguments));
        assert!(output.status.success(), "{command:?}: {output:?}");
        stdout(&output)
    }
}

fn private(file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// The status line of the answer to a GET.
fn status(server: &Server, path: &str) -> String {
    let (_, authority) = server.url.split_once("://").unwrap();
    status_at(server, path, authority)
}

/// The status of a request that calls the server by this host.
fn status_at(server: &Server, path: &str, host: &str) -> String {
    let mut curl = Command::new("curl");
    let host = format!("Host: {host}");
    let url = format!("{}{path}", server.url);
    curl.args([
        "--silent",
        "--output",
        "/dev/null",
        "--write-out",
        "%{http_code}",
        "--header",
        &host,
        &url,
    ]);
    stdout(&output_of(&mut curl))
}

/// Checks the probes of a container against a server that it has started.
fn check_probes(container: &Yaml, ports: &BTreeMap<String, i64>, server: &Server) {
    for (probe, path) in [
        ("startupProbe", "/health/live"),
        ("livenessProbe", "/health/live"),
        ("readinessProbe", "/health/ready"),
    ] {
        let http = &container[probe]["httpGet"];
        assert_eq!(http["path"].as_str(), Some(path), "{probe}");
        assert_eq!(ports.get(&scalar(&http["port"])), Some(&2113), "{probe}");
        support::wait_until(path, || status(server, path) == "200");
    }
    let ready = &container["readinessProbe"]["timeoutSeconds"];
    assert!(ready.as_i64() > Some(5), "a look takes 5 s at most");
}

/// Checks that a service leads to the port of this name.
fn check_service(service: &Yaml, pods: &Yaml, ports: &BTreeMap<String, i64>) {
    let labels = &pods["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&service["spec"]["selector"], labels);
    assert_eq!(&pods["spec"]["selector"]["matchLabels"], labels);
    let port = &service["spec"]["ports"][0];
    let target = scalar(&port["targetPort"]);
    assert_eq!(ports.get(&target).copied(), port["port"].as_i64());
}

/// The image of `deploy/container/Dockerfile`: its variables, and the words of its lists.
fn image() -> (Container, BTreeMap<String, Vec<String>>) {
    let text = text_of("container/Dockerfile").replace("\\\n", " ");
    let mut container = Container::default();
    let mut lists = BTreeMap::new();
    for line in text.lines() {
        let (instruction, rest) = line.split_once(' ').unwrap_or((line, ""));
        match instruction {
            "ENV" => {
                let pairs = rest
                    .split_whitespace()
                    .map(|pair| pair.split_once('=').unwrap());
                let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
                container.variables.extend(pairs);
            }
            "EXPOSE" => drop(container.ports.insert("http".into(), rest.parse().unwrap())),
            "VOLUME" => container.mounts.push(rest.to_owned()),
            _ => {}
        }
        if let Some(at) = rest.find('[') {
            let words: Vec<String> = serde_json::from_str(&rest[at..]).unwrap();
            lists.insert(instruction.to_owned(), words);
        }
    }
    (container, lists)
}

/// Goal: what a container of the image is told starts a server whose health can be asked, and it listens for everybody
/// only if it is told that this is meant.
#[test]
fn the_image_serves_and_tells_its_health() {
    let folder = tempfile::tempdir().unwrap();
    let (mut container, lists) = image();
    assert_eq!(lists["ENTRYPOINT"], [PROGRAM]);
    container.arguments.clone_from(&lists["CMD"]);
    assert_eq!(container.ports["http"], 2113);
    assert!(container.variables["GESTA_STORE"].starts_with("sqlite:/data/"));
    assert_eq!(container.mounts, ["/data"]);

    let store = url_of(&folder.path().join("gesta.db"));
    let mut refused = container.command(&container.arguments);
    let refused = output_of(refused.env("GESTA_STORE", &store));
    assert_eq!(code(&refused), 2, "{refused:?}");
    assert!(stderr(&refused).contains("--insecure"), "{refused:?}");

    container
        .variables
        .insert("GESTA_INSECURE".into(), "true".into());
    let container = container.moved_here(folder.path(), &store);
    let server = container.start();
    assert_eq!(container.hook(&lists["HEALTHCHECK"]), "live\n");
    server.stop();
    let (_, arguments) = lists["HEALTHCHECK"].split_first().unwrap();
    assert_eq!(code(&output_of(&mut container.command(arguments))), 5);
}

/// Goal: with a certificate of its own, the health of a container is asked by https.
#[test]
fn the_health_of_a_server_with_tls_is_asked_by_https() {
    let folder = tempfile::tempdir().unwrap();
    let (mut container, lists) = image();
    container.arguments.clone_from(&lists["CMD"]);
    let tls = folder.path().join("tls");
    let variable = |path: PathBuf| path.to_str().unwrap().to_owned();
    container.variables.extend([
        ("GESTA_TLS_SELF_SIGNED".into(), variable(tls.clone())),
        ("GESTA_CA_FILE".into(), variable(tls.join("ca.pem"))),
    ]);
    let store = url_of(&folder.path().join("gesta.db"));
    let container = container.moved_here(folder.path(), &store);
    let server = container.start();
    assert!(server.url.starts_with("https://"), "{}", server.url);
    assert_eq!(container.hook(&lists["HEALTHCHECK"]), "live\n");
    server.stop();
}

/// Goal: the manifests and the composition name the image of this version.
#[test]
fn the_files_name_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    for folder in ["sqlite", "three-nodes"] {
        let file = format!("kubernetes/{folder}/kustomization.yaml");
        let kustomization = documents(&file).remove(0);
        assert_eq!(kustomization["images"][0]["newTag"].as_str(), Some(version));
        for name in list(&kustomization["resources"]) {
            assert!(!documents(&format!("kubernetes/{folder}/{name}")).is_empty());
        }
    }
    let compose = documents("compose.yaml").remove(0);
    let image = scalar(&compose["services"]["gesta"]["image"]);
    assert_eq!(image, format!("gesta:{version}"));
}

/// Goal: the pod with a SQLite store serves, with users, and its probes succeed.
#[test]
fn the_pod_with_sqlite_serves() {
    if !is_installed("curl") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let pods = document("kubernetes/sqlite/statefulset.yaml", "StatefulSet", "gesta");
    assert_eq!(pods["spec"]["replicas"].as_i64(), Some(1));
    let pod = &pods["spec"]["template"]["spec"];
    let manifest = &pod["containers"][0];
    let container = Container::of_pod(manifest);
    let path = container.variables["GESTA_STORE"].strip_prefix("sqlite:");
    assert!(path.unwrap().starts_with("/data/") && container.mounts.contains(&"/data".into()));
    let service = document("kubernetes/sqlite/service.yaml", "Service", "gesta");
    check_service(&service, &pods, &container.ports);
    assert!(pod["terminationGracePeriodSeconds"].as_i64() > Some(STOP_SECONDS));

    let ports = container.ports.clone();
    let container = container.moved_here(folder.path(), &url_of(&folder.path().join("gesta.db")));
    let server = container.start();
    check_probes(manifest, &ports, &server);
    assert_eq!(status(&server, "/streams/cart-1"), "401", "users are on");
    server.stop();
}

/// Goal: pods on PostgreSQL make the store with its logs, whoever comes first, and join as nodes; the hook before a
/// stop empties the node, which goes on answering.
#[test]
fn the_pods_on_postgresql_are_nodes_that_hand_over_before_they_stop() {
    let Some(postgres) = gesta_rig::shared() else {
        return;
    };
    if !is_installed("curl") {
        return;
    }
    let schema = gesta_rig::fresh_schema();
    let store = patient(&format!("{}?schema={schema}", postgres.url()));
    let file = "kubernetes/three-nodes/statefulset.yaml";
    let pods = document(file, "StatefulSet", "gesta");
    let pod = &pods["spec"]["template"]["spec"];
    let manifest = &pod["containers"][0];
    let of_pod = Container::of_pod(manifest);
    let services = "kubernetes/three-nodes/services.yaml";
    check_service(
        &document(services, "Service", "gesta"),
        &pods,
        &of_pod.ports,
    );
    let others = document(services, "Service", "gesta-nodes");
    check_service(&others, &pods, &of_pod.ports);
    assert_eq!(pods["spec"]["serviceName"], others["metadata"]["name"]);
    assert_eq!(
        others["spec"]["publishNotReadyAddresses"].as_bool(),
        Some(true)
    );
    let advertised = "$(POD_NAME).gesta-nodes:2114";
    assert_eq!(of_pod.variables["GESTA_CLUSTER_ADVERTISE"], advertised);

    let folders: [TempDir; 2] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let init = Container::of_pod(&pod["initContainers"][0]);
    let init = init.moved_here(folders[0].path(), &store);
    for _ in 0..2 {
        let output = output_of(&mut init.command(&init.arguments));
        assert!(output.status.success(), "{output:?}");
    }
    let fewer = [
        "schema",
        "create",
        "--if-missing",
        "--logs",
        "4",
        "--store",
        &store,
    ];
    let fewer = run(&fewer);
    assert_eq!(code(&fewer), 1, "{fewer:?}");
    assert!(stderr(&fewer).contains("has 16 logs, not 4"), "{fewer:?}");

    let containers = folders.each_ref().map(|folder| {
        let container = Container::of_pod(manifest);
        container.moved_here(folder.path(), &store)
    });
    let [first, second] = containers.each_ref().map(Container::start);
    for server in [&first, &second] {
        check_probes(manifest, &of_pod.ports, server);
    }
    let hook = list(&manifest["lifecycle"]["preStop"]["exec"]["command"]);
    let told = containers[0].hook(&hook);
    assert!(told.contains("is draining and has 0 logs"), "{told}");
    assert_eq!(
        status(&first, "/health/live"),
        "200",
        "it goes on answering"
    );
    let seconds_of = |flag: &str| -> i64 {
        let at = hook.iter().position(|word| word == flag).unwrap();
        hook[at + 1].strip_suffix('s').unwrap().parse().unwrap()
    };
    let grace = pod["terminationGracePeriodSeconds"].as_i64().unwrap();
    assert!(grace > seconds_of("--wait") + seconds_of("--linger") + STOP_SECONDS);
    first.stop();
    second.stop();

    let nowhere = run(&["cluster", "drain", "--this-node", "--store", &store]);
    assert_eq!(code(&nowhere), 2, "{nowhere:?}");
    assert!(
        stderr(&nowhere).contains("GESTA_CLUSTER_ADVERTISE"),
        "{nowhere:?}"
    );
}

/// Goal: the composition serves a store on PostgreSQL, at a port that only its machine reaches.
#[test]
fn the_composition_serves() {
    let Some(postgres) = gesta_rig::shared() else {
        return;
    };
    let schema = gesta_rig::fresh_schema();
    let store = patient(&format!("{}?schema={schema}", postgres.url()));
    let folder = tempfile::tempdir().unwrap();
    let compose = documents("compose.yaml").remove(0);
    let service = &compose["services"]["gesta"];
    assert_eq!(list(&service["ports"]), ["127.0.0.1:2113:2113"]);
    let variables = service["environment"].as_hash().unwrap().iter();
    let container = Container {
        arguments: list(&service["command"]),
        variables: variables
            .map(|(name, value)| (scalar(name), scalar(value)))
            .collect(),
        ..Container::default()
    };
    let url = &container.variables["GESTA_STORE"];
    let (_, database) = url.split_once('@').unwrap();
    assert_eq!(database, "postgres:5432/gesta");
    let postgres = &compose["services"]["postgres"]["environment"];
    assert_eq!(postgres["POSTGRES_DB"].as_str(), Some("gesta"));
    assert!(
        url.contains(&scalar(&postgres["POSTGRES_PASSWORD"])),
        "{url}"
    );

    let container = container.moved_here(folder.path(), &store);
    let server = container.start();
    let health = list(&service["healthcheck"]["test"]);
    let (how, command) = health.split_first().unwrap();
    assert_eq!(how, "CMD");
    assert_eq!(container.hook(command), "ready\n");
    // Pages of other sites do not reach it, though their names may lead here.
    if is_installed("curl") {
        assert_eq!(status_at(&server, "/info", "localhost:2113"), "200");
        assert_eq!(status_at(&server, "/info", "other.example.org"), "421");
    }
    server.stop();
}

/// The value of a setting of the unit, the last one if there are several.
fn setting(unit: &str, name: &str) -> String {
    let lines = unit.lines().filter_map(|line| line.split_once('='));
    let mut values = lines
        .filter(|(key, _)| *key == name)
        .map(|(_, value)| value.to_owned());
    values
        .next_back()
        .unwrap_or_else(|| panic!("{name} in the unit"))
}

/// Goal: the unit starts a server with the settings of the package, and the server tells systemd when it listens, that
/// it lives, and when it stops.
#[test]
fn the_unit_starts_a_server_that_tells_how_it_is() {
    let (unit, settings) = (
        text_of("systemd/gesta.service"),
        text_of("systemd/gesta.toml"),
    );
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(setting(&unit, "Type"), "notify");
    let place = format!("/var/lib/{}/", setting(&unit, "StateDirectory"));
    let store = format!("{}/", folder.path().display());
    assert!(
        settings.contains(&format!("store = \"sqlite:{place}")),
        "{settings}"
    );
    let here = settings
        .replace(&place, &store)
        .replace("127.0.0.1:2113", "127.0.0.1:0");
    let file = folder.path().join("gesta.toml");
    std::fs::write(&file, here).unwrap();
    private(&file);
    let (name, from) = setting(&unit, "LoadCredential")
        .split_once(':')
        .map(|(name, from)| (name.to_owned(), from.to_owned()))
        .unwrap();
    assert_eq!(
        (name.as_str(), from.as_str()),
        ("gesta.toml", "/etc/gesta/gesta.toml")
    );
    let start = setting(&unit, "ExecStart");
    let start = start.replace("${CREDENTIALS_DIRECTORY}", folder.path().to_str().unwrap());
    let arguments = start.strip_prefix(&format!("{PROGRAM} ")).unwrap();
    let arguments: Vec<&str> = arguments.split_whitespace().collect();

    let path = folder.path().join("notify");
    let supervisor = UnixDatagram::bind(&path).unwrap();
    supervisor.set_read_timeout(Some(PATIENCE)).unwrap();
    let received = || {
        let mut buffer = [0; 1_024];
        let bytes = supervisor.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..bytes]).into_owned()
    };
    let mut command = gesta(&arguments);
    command
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "400000");
    let mut server = Server::spawn(&mut command);
    let message = received();
    assert!(message.starts_with("READY=1\n"), "{message}");
    assert!(message.ends_with(&server.url), "{message}");
    assert!(get(server.address(), "/health/live").contains("live"));
    assert_eq!(received(), "WATCHDOG=1\nSTATUS=ready");
    assert_eq!(received(), "WATCHDOG=1");
    server.signal(Signal::SIGTERM);
    let mut message = received();
    while message.starts_with("WATCHDOG=1") {
        message = received();
    }
    assert!(message.starts_with("STOPPING=1\n"), "{message}");
    assert!(server.wait().success());

    // What does not pass by itself is not tried again.
    let wrong = run(&[
        "serve",
        "--config",
        folder.path().join("nothing").to_str().unwrap(),
    ]);
    let never = setting(&unit, "RestartPreventExitStatus");
    assert!(
        never
            .split(' ')
            .any(|status| status == code(&wrong).to_string())
    );
}

/// Goal: systemd understands the unit, and finds little that the service could do beyond its work.
#[test]
fn systemd_takes_the_unit_for_safe() {
    if !is_installed("systemd-analyze") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("gesta.service");
    // The program is not installed here.
    let here = text_of("systemd/gesta.service").replace(PROGRAM, env!("CARGO_BIN_EXE_gesta"));
    std::fs::write(&unit, here).unwrap();
    let analyze = |arguments: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        output_of(command.args(arguments).arg(&unit))
    };
    let output = analyze(&["security", "--offline=true", "--threshold=20"]);
    assert!(output.status.success(), "{output:?}");
    let output = analyze(&["verify", "--man=no"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stderr(&output), "", "{output:?}");
}

/// Goal: each command has a manual page, and the version says what the program was built from.
#[test]
fn packages_get_manual_pages_and_a_version() {
    let folder = tempfile::tempdir().unwrap();
    succeed(&["man", folder.path().to_str().unwrap()]);
    for (page, text) in [
        ("gesta.1", "serve"),
        ("gesta-serve.1", "wait\\-for\\-store"),
        ("gesta-stream-append.1", "expected"),
    ] {
        let found = std::fs::read_to_string(folder.path().join(page)).unwrap();
        assert!(found.contains(text), "{page}: {found}");
    }
    let version = env!("CARGO_PKG_VERSION");
    let said = succeed(&["--version"]);
    assert!(said.starts_with(&format!("gesta {version} (")), "{said}");
    assert_eq!(succeed(&["version"]), said);
    let json = succeed(&["version", "--output", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["version"], version);
    assert!(json.get("commit").is_some(), "{json}");
}
