//! Every call, and the status that each kind of caller gets.
//!
//! Tests of other crates include this file. It names nothing of the tests of this crate.

/// A body with one event.
pub(crate) const EVENT: &str = r#"{"events":[{"type":"T","data":1}]}"#;
const HASH: &str = r#"{"events":[{"type":"$user","data":{"kind":"disabled","id":"00000000-0000-0000-0000-000000000000"}}]}"#;
const ACK: &str = r#"{"consumer":"00000000-0000-0000-0000-000000000001","deliveries":[1]}"#;
/// Metadata with the rights of the stream `team`.
pub(crate) const OF_TEAM: &str =
    r#"{"$acl":{"$r":"team","$w":["team"],"$mr":"team","$d":"team","$mw":"team"}}"#;

/// A row of the table: method, target (`{n}` is a number of the caller), body, and the status for each caller: nobody,
/// a wrong password, a user, one of the group `team`, an operator, an administrator; tokens to read, to append, of an
/// administrator, and of the streams `open-`, `several` and `other` alone.
pub(crate) type Row = (&'static str, &'static str, &'static str, [u16; 10]);

/// The call is allowed to every caller, also to one who proves nothing or the wrong thing.
const ANY: [u16; 10] = [200; 10];
/// The call is allowed to callers who prove who they are.
const KNOWN: [u16; 10] = [401, 401, 200, 200, 200, 200, 200, 200, 200, 200];
const READERS: [u16; 10] = [401, 401, 200, 200, 200, 200, 200, 403, 200, 200];
const CONSUMERS: [u16; 10] = [401, 401, 200, 200, 200, 200, 403, 403, 200, 200];
const TEAM: [u16; 10] = [401, 401, 403, 200, 403, 200, 403, 403, 200, 403];
const ADMINS: [u16; 10] = [401, 401, 403, 403, 403, 200, 403, 403, 200, 403];
const WRITERS: [u16; 10] = [401, 401, 201, 201, 201, 201, 403, 201, 201, 201];
const CHANGERS: [u16; 10] = [401, 401, 200, 200, 200, 200, 403, 403, 200, 403];
const OPERATORS: [u16; 10] = [401, 401, 403, 403, 200, 200, 403, 403, 200, 403];

/// Makes the same row with another status for callers who may make the call.
fn with(status: u16, row: [u16; 10]) -> [u16; 10] {
    row.map(|found| if found == 200 { status } else { found })
}

/// Returns all calls: about the streams `open-{n}`, `team` and `$x`, and groups `g` of `open-1`, of `team` and of all
/// events.
pub(crate) fn rows() -> Vec<Row> {
    [
        calls_of_the_server(),
        calls_of_open_streams(),
        calls_of_a_stream_of_a_team(),
        calls_of_streams_of_the_system(),
        calls_of_groups(),
    ]
    .concat()
}

/// Returns calls about the server, the store, or all events.
fn calls_of_the_server() -> Vec<Row> {
    vec![
        ("GET", "/", "", ANY),
        ("GET", "/openapi.json", "", ANY),
        ("GET", "/health/live", "", ANY),
        ("HEAD", "/health/ready", "", ANY),
        ("GET", "/nowhere", "", with(404, ANY)),
        ("POST", "/all", "", with(405, ANY)),
        ("GET", "/info", "", KNOWN),
        ("GET", "/metrics", "", OPERATORS),
        ("POST", "/admin/backup", "", with(501, ADMINS)),
        ("GET", "/admin/virtual-streams", "", with(501, ADMINS)),
        (
            "PUT",
            "/admin/virtual-streams",
            r#"{"on":true}"#,
            with(501, ADMINS),
        ),
        ("GET", "/streams", "", READERS),
        ("GET", "/all", "", READERS),
        ("HEAD", "/all?limit=1", "", READERS),
        ("GET", "/all/subscribe", "", READERS),
    ]
}

/// Returns calls about streams that everybody may use.
fn calls_of_open_streams() -> Vec<Row> {
    vec![
        ("POST", "/streams/open-{n}", EVENT, WRITERS),
        ("GET", "/streams/open-{n}", "", READERS),
        ("HEAD", "/streams/open-{n}", "", READERS),
        ("GET", "/streams/open-{n}/0", "", READERS),
        ("GET", "/streams/open-{n}/metadata", "", READERS),
        ("GET", "/streams/open-{n}/subscribe", "", READERS),
        ("PUT", "/streams/open-{n}/metadata", "{}", CHANGERS),
        ("DELETE", "/streams/open-{n}", "", CHANGERS),
        (
            "POST",
            "/append",
            r#"{"appends":[{"stream":"several","events":[{"type":"T","data":1}]}]}"#,
            WRITERS,
        ),
        (
            "POST",
            "/append",
            r#"{"appends":[{"stream":"several","events":[{"type":"T","data":1}]},{"stream":"$x","events":[{"type":"T","data":1}]}]}"#,
            [401, 401, 403, 403, 403, 201, 403, 403, 201, 403],
        ),
    ]
}

/// Returns calls about the stream `team`, which one group of users may use.
fn calls_of_a_stream_of_a_team() -> Vec<Row> {
    vec![
        (
            "POST",
            "/streams/team",
            EVENT,
            [401, 401, 403, 201, 403, 201, 403, 403, 201, 403],
        ),
        ("GET", "/streams/team", "", TEAM),
        ("GET", "/streams/te%61m/0", "", TEAM),
        ("GET", "/streams/team/metadata", "", TEAM),
        ("GET", "/streams/%24%24team", "", TEAM),
        ("GET", "/streams/team/subscribe", "", TEAM),
        (
            "PUT",
            "/streams/team/metadata",
            r#"{"$acl":{"$r":"team","$w":"team","$mr":"team","$d":"team","$mw":"team"}}"#,
            [401, 401, 403, 200, 403, 200, 403, 403, 200, 403],
        ),
    ]
}

/// Returns calls about streams whose names begin with `$`, accounts among them.
fn calls_of_streams_of_the_system() -> Vec<Row> {
    vec![
        (
            "POST",
            "/streams/%24x",
            EVENT,
            [401, 401, 403, 403, 403, 201, 403, 403, 201, 403],
        ),
        ("GET", "/streams/$x", "", ADMINS),
        ("GET", "/streams/$user-user", "", ADMINS),
        ("GET", "/streams/%24user-user/0", "", ADMINS),
        ("GET", "/streams/%24%75ser-user/subscribe", "", ADMINS),
        ("GET", "/streams/$$$user-user", "", with(404, ADMINS)),
        ("GET", "/streams/$user-user/metadata", "", ADMINS),
        // What is no event of an account is refused to those who may write one.
        ("POST", "/streams/$user-user", EVENT, with(400, ADMINS)),
        ("POST", "/streams/$access", HASH, with(400, ADMINS)),
        (
            "POST",
            "/streams/%24settings",
            r#"{"events":[{"type":"T","data":{"$userStreamAcl":{"$r":"$all"}}}]}"#,
            with(201, ADMINS),
        ),
        // Not even administrators delete or hide accounts.
        ("DELETE", "/streams/$user-user", "", with(403, ADMINS)),
        (
            "DELETE",
            "/streams/$access?tombstone=true",
            "",
            with(403, ADMINS),
        ),
        (
            "PUT",
            "/streams/$settings/metadata",
            r#"{"$maxCount":1}"#,
            with(403, ADMINS),
        ),
    ]
}

/// Returns calls about groups. Groups show events: a caller who may read these may consume, by a token only if it has
/// the scope for it; a caller who may also manage groups may change groups.
fn calls_of_groups() -> Vec<Row> {
    vec![
        ("GET", "/groups", "", OPERATORS),
        ("GET", "/streams/open-1/groups", "", READERS),
        ("GET", "/streams/open-1/groups/g", "", READERS),
        ("GET", "/streams/team/groups/g", "", TEAM),
        ("GET", "/all/groups/g", "", ADMINS),
        ("GET", "/streams/open-1/groups/g/consume", "", CONSUMERS),
        ("GET", "/streams/team/groups/g/consume", "", TEAM),
        ("GET", "/all/groups/g/consume", "", ADMINS),
        (
            "POST",
            "/streams/open-1/groups/g/ack",
            ACK,
            with(404, CONSUMERS),
        ),
        ("POST", "/streams/team/groups/g/ack", ACK, with(404, TEAM)),
        (
            "POST",
            "/streams/open-1/groups/g/replay-parked",
            "{}",
            OPERATORS,
        ),
        (
            "POST",
            "/streams/open-1/groups/g/reset",
            r#"{"to":"start"}"#,
            OPERATORS,
        ),
        ("POST", "/groups/restart", "{}", OPERATORS),
        (
            "PUT",
            "/streams/open-{n}/groups/new",
            "{}",
            with(201, OPERATORS),
        ),
        ("DELETE", "/streams/open-{n}/groups/new", "", OPERATORS),
        // An operator makes no group that would show what they may not read.
        (
            "PUT",
            "/streams/team/groups/new-{n}",
            "{}",
            with(201, ADMINS),
        ),
        (
            "PUT",
            "/streams/$user-user/groups/new-{n}",
            "{}",
            with(201, ADMINS),
        ),
        ("PUT", "/all/groups/new-{n}", "{}", with(201, ADMINS)),
    ]
}
