//! Tests who may use the streams in which something is kept of other streams.

use gesta_access::Scope;
use gesta_groups::GroupId;

use super::world::{World, basic};
use super::{EVENT, OF_TEAM};

/// What happened: `$systemStreamAcl`, by which others are let to read virtual streams, let them read the snapshots of
/// entities, and the parked events of groups, whose streams were hidden from them. Goal: each kind of caller, each kind
/// of stream that is kept of others, while that key opens all it can.
#[tokio::test]
async fn what_is_kept_of_a_stream_goes_with_its_rights() {
    let world = World::new().await;
    let open = r#"{"events":[{"type":"T","data":{"$systemStreamAcl":{"$r":"$all","$w":"$all"}}}]}"#;
    let set = world
        .status("POST", "/streams/%24settings", &basic("root"), open)
        .await;
    assert_eq!(set, 201);
    let group = |source: &str| GroupId::new(source, "g").expect("valid");
    let kept_of = |source: &str| {
        let group = group(source);
        [
            group.configuration_stream(),
            group.checkpoint_stream(),
            group.parked_stream(),
        ]
        .map(|stream| stream.to_string())
    };
    let snapshot = |of: &str| [format!("$snapshot-{of}")];
    let everybody = [200, 200, 200, 200, 200];
    let (team, admins) = ([403, 200, 403, 200, 403], [403, 403, 403, 200, 403]);
    let mut streams: Vec<(String, [u16; 5])> = Vec::new();
    for (names, expected) in [
        (&snapshot("open-1")[..], everybody),
        (&kept_of("open-1"), everybody),
        (&["$mine".to_owned()], everybody),
        (&snapshot("team"), team),
        (&kept_of("team"), team),
        (&kept_of("$ce-team"), admins),
        (&kept_of("$all"), admins),
        (
            &["$timers-{team}", "$effect-mail", "$import-akka"].map(str::to_owned),
            admins,
        ),
    ] {
        streams.extend(names.iter().map(|name| (name.clone(), expected)));
    }
    for name in ["open-1", "team"] {
        world.seed(name).await;
    }
    for (name, _) in &streams {
        world.seed(name).await;
    }
    world.set_metadata("team", OF_TEAM).await;
    let read = world.token("user", &[Scope::Read], &[]).await;
    world.until("/streams/team", &basic("user"), 403).await;
    world.until("/streams/$mine", &basic("user"), 200).await;
    let callers = [
        basic("user"),
        basic("mate"),
        basic("ops"),
        basic("root"),
        read,
    ];
    for (name, expected) in &streams {
        let target = format!("/streams/{}", name.replace('{', "%7B").replace('}', "%7D"));
        for (caller, expected) in callers.iter().zip(expected) {
            let found = world.status("GET", &target, caller, "").await;
            assert_eq!(found, *expected, "{target} {caller}");
        }
        // Who may write to streams of the system plants no state of a stream to which they may not write.
        let written = world.status("POST", &target, &basic("user"), EVENT).await;
        let may = expected[0] == 200;
        assert_eq!(written, if may { 201 } else { 403 }, "{target}");
    }
    // What may not be read has no name either, in a list and among all events.
    let headers = [("authorization", &*basic("user"))];
    for target in ["/streams?prefix=$&limit=1000", "/all?limit=1000"] {
        let shown = world.server.send("GET", target, &headers, "").await.body;
        for (name, expected) in &streams {
            assert_eq!(
                shown.contains(&format!("\"{name}\"")),
                expected[0] == 200,
                "{name}: {shown}"
            );
        }
    }
}
