//! What a file may say, and how a wrong one is refused.

use std::path::Path;

use gesta_load::scenario::Scenario;

fn refused(text: &str) -> (usize, String) {
    let refusal = Scenario::parse(Path::new("shop.toml"), text).unwrap_err();
    assert_eq!(refusal.file, "shop.toml", "{refusal}");
    (refusal.line, refusal.rule)
}

/// Goal: what is wrong with a file is told with its line, the value and the rule.
#[test]
fn a_wrong_file_is_refused_with_line_and_rule() {
    let step = |line: &str| {
        format!(
            "name = \"x\"\n[[flows]]\nname = \"a\"\n[[flows.steps]]\nrequest = \"GET /\"\n{line}\n"
        )
    };
    let feeder = |line: &str| format!("[feeders]\n\n{line}\n");
    for (text, line, rule) in [
        ("", 1, "\"steps\" or \"flows\" is missing".to_owned()),
        ("name = \"x", 1, "invalid basic string".into()),
        ("name = \"a\"\nname = \"b\"", 2, "duplicate key name".into()),
        (
            "\n\nstesp = []",
            3,
            "\"stesp\" is not known here; known are feeders, flows, headers, name, setup, steps"
                .into(),
        ),
        (
            "steps = []",
            1,
            "steps must have from 1 to 1000 steps".into(),
        ),
        (
            "steps = [\n 7 ]",
            2,
            "steps[0] must be a table, not a whole number".into(),
        ),
        (
            "steps = [{ request = \"GET /\" }]\nflows = []",
            1,
            "steps and flows exclude each other".into(),
        ),
        (
            "steps = [\n {} ]",
            2,
            "\"steps[0].request\" is missing".into(),
        ),
        (
            "steps = [{ request = \"FETCH /\" }]",
            1,
            "must begin with one of GET, HEAD, POST".into(),
        ),
        (
            "steps = [{ request = \"GET\" }]",
            1,
            "must be a method, a space and a path".into(),
        ),
        (
            "steps = [{ request = \"GET carts\" }]",
            1,
            "must have a path that begins with /".into(),
        ),
        (
            "steps = [{ request = \"GET /a b\" }]",
            1,
            "visible ASCII characters without #".into(),
        ),
        (
            "steps = [{ request = \"GET /{{cart}}\" }]",
            1,
            "{{cart}} has no value".into(),
        ),
        (
            "steps = [{ request = \"GET /{{cart\" }]",
            1,
            "does not close it".into(),
        ),
        (
            "steps = [\n{ request = \"GET /{{id}}\" },\n{ request = \"GET /\", capture = { id = \"json:id\" } }]",
            2,
            "{{id}} has no value".into(),
        ),
        (
            &step("bdoy = \"\""),
            6,
            "\"flows[0].steps[0].bdoy\" is not known here; known are body, capture".into(),
        ),
        (
            &step("body = \"\"\njson = {}"),
            7,
            "json and body exclude each other".into(),
        ),
        (
            &step("repeat = 0"),
            6,
            "repeat must be from 1 to 1000000, not 0".into(),
        ),
        (
            &step("repeat = \"3\""),
            6,
            "repeat must be a whole number, not a text".into(),
        ),
        (&step("think = \"5\""), 6, "\"5\" has no unit".into()),
        (
            &step("think = [\"2s\", \"1s\"]"),
            6,
            "must be a time, or the least and the most".into(),
        ),
        (&step("think = \"2h\""), 6, "must be an hour at most".into()),
        (
            &step("check = { status = 99 }"),
            6,
            "check.status must be from 100 to 599, not 99".into(),
        ),
        (
            &step("check = { status = \"6xx\" }"),
            6,
            "or a class such as \"2xx\", not \"6xx\"".into(),
        ),
        (
            &step("check = { status = [] }"),
            6,
            "must name a status".into(),
        ),
        (
            &step("check = { json = { \"a..b\" = 1 } }"),
            6,
            "\"a..b\" is not a place in a JSON document".into(),
        ),
        (
            &step("check = { jsno = 1 }"),
            6,
            "check.jsno\" is not known here; known are contains, headers, json, status".into(),
        ),
        (
            &step("capture = { id = \"id\" }"),
            6,
            "\"id\" is neither \"json:PLACE\"".into(),
        ),
        (
            &step("capture = { run = \"json:id\" }"),
            6,
            "\"run\" is a name that always has a value".into(),
        ),
        (
            &step("headers = { \"a b\" = \"c\" }"),
            6,
            "\"a b\" is not the name of a header".into(),
        ),
        (
            &step("headers = { content-length = \"3\" }"),
            6,
            "belongs to the connection".into(),
        ),
        (
            &feeder("a = \"guid\""),
            3,
            "feeders.a must be \"uuid\", or a table".into(),
        ),
        (
            &feeder("a = { range = [2, 1] }"),
            3,
            "must be the first and the last number".into(),
        ),
        (
            &feeder("a = { range = [0, 1], uuid = true }"),
            3,
            "exactly one of csv, range".into(),
        ),
        (
            &feeder("a = { sequence = 1, order = \"random\" }"),
            3,
            "is for csv, range, ranges and values alone".into(),
        ),
        (
            &feeder("a = { range = [0, 1], order = \"any\" }"),
            3,
            "must be sequence, shuffle or random, not \"any\"".into(),
        ),
        (
            &feeder("a = { range = [0, 1], each = \"step\" }"),
            3,
            "must be pass or request, not \"step\"".into(),
        ),
        (
            &feeder("a = { range = [0, 99999999] }"),
            3,
            "must have 10000000 rows at most".into(),
        ),
        (
            &feeder("a = { range = [0, 99999], per = \"user\" }"),
            3,
            "10000 rows at most that each user goes through alone".into(),
        ),
        (
            &feeder("a = { csv = \"none.csv\" }"),
            3,
            "none.csv: the file cannot be read".into(),
        ),
        (
            &feeder("\"a b\" = \"uuid\""),
            3,
            "\"a b\" is not a name of letters, digits".into(),
        ),
        (
            "[feeders]\na = { ranges = { x = [0, 1] } }\n[[flows]]\nname = \"f\"\nsteps = [{ request = \"GET /{{a}}\" }]",
            5,
            "\"a\" is no column of a feeder; there are a.x".into(),
        ),
        (
            "steps = [{ request = \"GET /\" }]\n[feeders]\na = \"uuid\"\n[headers]\nx = \"1\"\ny = \"{{a}}\"",
            6,
            "headers.y: headers of all requests cannot use the feeder \"a\"".into(),
        ),
        (
            "[[flows]]\nname = \"f\"\nsteps = [{ request = \"GET /\" }]\n[[flows]]\nname = \"f\"\nsteps = []",
            4,
            "has the name of an earlier flow, \"f\"".into(),
        ),
    ] {
        let (found, why) = refused(text);
        assert!(
            why.contains(&rule),
            "{text}\n{found}: {why}\nand not {rule}"
        );
        assert_eq!(found, line, "{text}\n{why}");
    }
}

/// Goal: a wrong record of a CSV file is told with the line of that file.
#[test]
fn a_wrong_record_is_told_with_its_own_line() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("items.csv"), "id,name\n1,a\n2\n").unwrap();
    let path = folder.path().join("shop.toml");
    std::fs::write(
        &path,
        "steps = [{ request = \"GET /{{items.id}}\" }]\n[feeders]\nitems = { csv = \"items.csv\" }",
    )
    .unwrap();
    let refusal = Scenario::read(&path).unwrap_err();
    assert!(refusal.file.ends_with("items.csv"), "{refusal}");
    assert_eq!(
        (refusal.line, &*refusal.rule),
        (3, "the record has 1 fields and not 2 as the first line")
    );
    std::fs::write(folder.path().join("items.csv"), b"id\n1\n\xff\n").unwrap();
    let refusal = Scenario::read(&path).unwrap_err();
    assert!(refusal.file.ends_with("items.csv"), "{refusal}");
    assert_eq!((refusal.line, &*refusal.rule), (3, "the line is not UTF-8"));
    let latin = folder.path().join("latin.toml");
    std::fs::write(&latin, b"steps = [\n{ request = \"GET /\xfc\" }]").unwrap();
    let refusal = Scenario::read(&latin).unwrap_err();
    assert_eq!((refusal.line, &*refusal.rule), (2, "the line is not UTF-8"));
    let missing = Scenario::read(&folder.path().join("none.toml")).unwrap_err();
    assert!(
        missing
            .to_string()
            .contains("none.toml: the file cannot be read"),
        "{missing}"
    );
}

/// What happened: a file was read to its end whatever it said of its length, so `/dev/zero` filled the memory.
#[test]
fn what_has_no_end_is_not_read() {
    let text = "steps = [{ request = \"GET /\" }]\n[feeders]\n\nitems = { csv = \"/dev/zero\" }";
    let (line, rule) = refused(text);
    assert_eq!(line, 4, "{rule}");
    assert!(
        rule.ends_with("/dev/zero: it is not a regular file"),
        "{rule}"
    );
    let refusal = Scenario::read(Path::new("/dev/zero")).unwrap_err();
    assert_eq!(refusal.rule, "it is not a regular file");
}

/// What happened: the length of a name was counted in bytes.
#[test]
fn a_name_has_up_to_200_characters() {
    let named = |count: usize| {
        let name = "ü".repeat(count);
        format!("name = \"{name}\"\nsteps = [{{ request = \"GET /\" }}]")
    };
    assert!(Scenario::parse(Path::new("shop.toml"), &named(200)).is_ok());
    let rule = "name must be a line of 1 to 200 characters".to_owned();
    assert_eq!(refused(&named(201)), (1, rule));
}

#[test]
fn a_file_says_what_it_asks_for() {
    let text = "name = \"Shop\"\n[feeders]\ncart = \"uuid\"\n[[flows]]\nname = \"buy\"\nweight = 3\n\
                steps = [{ request = \"PUT /{{cart}}\", think = \"1s\" }, { request = \"PUT /{{cart}}\" }]\n\
                [[flows]]\nname = \"look\"\nsteps = [{ name = \"all\", request = \"GET /\" }]";
    let scenario = Scenario::parse(Path::new("x/shop.toml"), text).unwrap();
    assert_eq!(
        scenario.told(),
        "Shop: 2 flows, 3 kinds of request, 1 feeder"
    );
    assert_eq!(
        scenario.calls(),
        ["buy: PUT /{{cart}}", "buy: PUT /{{cart}} (2)", "look: all"]
    );
    // Of 7 requests 3 wait for a second.
    assert!((scenario.think_time().as_secs_f64() - 3.0 / 7.0).abs() < 1e-6);
}

/// Goal: the examples can be used, and the one of a shop has twenty lines at most.
#[test]
fn the_examples_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/scenarios");
    let mut told = Vec::new();
    for name in ["cart", "cinema-concurrent", "cinema-serial"] {
        let scenario = Scenario::read(&folder.join(format!("{name}.toml"))).unwrap();
        told.push(scenario.told());
    }
    assert_eq!(
        told,
        [
            "Shopping cart: 2 flows, 4 kinds of request, 2 feeders",
            "Cinema, concurrent: 1 flow, 2 kinds of request, 2 feeders",
            "Cinema, serial: 1 flow, 2 kinds of request, 2 feeders",
        ]
    );
}
