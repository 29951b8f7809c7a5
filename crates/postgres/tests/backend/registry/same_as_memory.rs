//! The registry in PostgreSQL and the one in memory, which the simulation of leases rests on, give the same answers.

use super::*;

/// The node of an address in a registry, and the last generations that were tried for it.
struct Known {
    ids: [Option<NodeId>; 2],
    generation: i64,
}

/// What a look shows, with addresses for numbers and without times.
fn shown(look: &Look, known: &[Known], side: usize) -> String {
    let name = |id: NodeId| known.iter().position(|known| known.ids[side] == Some(id));
    let mut nodes: Vec<_> = look
        .nodes
        .iter()
        .map(|node| {
            (
                name(node.id),
                &node.info,
                node.generation,
                node.beat,
                (node.state, node.held),
                &node.unreachable,
            )
        })
        .collect();
    nodes.sort_by_key(|node| node.0);
    let leases: Vec<_> = look
        .leases
        .iter()
        .map(|lease| {
            let [owner, next, pinned] =
                [lease.owner, lease.next_owner, lease.pinned].map(|id| id.map(name));
            (
                lease.log,
                owner,
                lease.generation,
                lease.epoch,
                next,
                pinned,
                lease.frozen,
            )
        })
        .collect();
    format!(
        "{} {} {nodes:?} {leases:?}",
        look.is_registered, look.version
    )
}

/// Goal: random statements give the same answers and the same rows as those of the simplest registry.
#[tokio::test]
async fn random_statements_do_the_same_as_in_memory() {
    let Some(server) = shared() else { return };
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let (database, _) = registry(server).await;
    let memory: Arc<dyn Registry> = Arc::new(MemoryRegistry::new(LOGS));
    let both = [memory, database];
    let mut known: Vec<Known> = (0..3)
        .map(|_| Known {
            ids: [None, None],
            generation: 0,
        })
        .collect();
    for step in 0..depth::count(300, 5_000) {
        let node = random.random_range(0..known.len());
        let statement = random.random_range(0..14);
        if statement == 0 || known[node].ids[0].is_none() {
            known[node].generation = i64::from(step) + 1;
        }
        let details: [u32; 4] = random.random();
        let mut answers = Vec::new();
        for (side, registry) in both.iter().enumerate() {
            answers.push(answer(&**registry, statement, node, details, &mut known, side).await);
        }
        assert_eq!(answers[0], answers[1], "step {step}, statement {statement}");
    }
}

/// A statement that a node makes, and what it is about.
struct Statement {
    number: u32,
    id: NodeId,
    generation: Generation,
    /// Of one log, and perhaps an outdated one.
    tenure: Tenure,
    /// Another node, perhaps.
    other: Option<NodeId>,
    details: [u32; 4],
}

async fn answer(
    registry: &dyn Registry,
    number: u32,
    node: usize,
    details: [u32; 4],
    known: &mut [Known],
    side: usize,
) -> String {
    let Known { ids, generation } = known[node];
    let Some(id) = ids[side].filter(|_| number > 0) else {
        let joined = registry.join(&join(node, generation)).await;
        known[node].ids[side] = Some(joined.expect("answers"));
        return "joined".to_owned();
    };
    // Sometimes what an older process of the node would say.
    let generation = Generation(generation - i64::from(details[0].is_multiple_of(8)));
    let look = registry.look().await.expect("answers");
    let log = LogId(u16::try_from(details[1] % u32::from(LOGS)).expect("fits"));
    let present = look.leases[usize::from(log.0)].epoch.0;
    let epoch = LeaseEpoch(present.saturating_sub(u64::from(details[2].is_multiple_of(8))));
    let statement = Statement {
        number,
        id,
        generation,
        tenure: Tenure {
            log,
            owner: id,
            generation,
            epoch,
        },
        other: known[usize::try_from(details[3] % 3).expect("fits")].ids[side],
        details,
    };
    match number {
        1..=4 => about_node(registry, &statement, &look, known, side).await,
        5..=10 => about_lease(registry, &statement, &look).await,
        _ => about_cluster(registry, &statement, known, side).await,
    }
}

/// Beats, and changes of the state of a node.
async fn about_node(
    registry: &dyn Registry,
    statement: &Statement,
    look: &Look,
    known: &[Known],
    side: usize,
) -> String {
    let Statement {
        id,
        generation,
        details,
        ..
    } = *statement;
    match statement.number {
        1 | 2 => {
            let mut beat = beat(id, generation.0, i64::from(details[3]));
            beat.unreachable
                .truncate(usize::try_from(details[1] % 3).expect("fits"));
            let look = registry.beat(&beat).await.expect("answers");
            shown(&registry.look().await.expect("answers"), known, side)
                + &format!("{}", look.is_registered)
        }
        3 => {
            let beat = look
                .node(id)
                .map_or(0, |row| row.beat - i64::from(details[3] % 2));
            let suspect = Suspect {
                node: id,
                generation,
                beat,
            };
            format!("{:?}", registry.declare_dead(suspect).await)
        }
        _ => {
            let states = [NodeState::Up, NodeState::Draining, NodeState::Left];
            let state = states[usize::try_from(details[1] % 3).expect("fits")];
            format!("{:?}", registry.set_state(id, generation, state).await)
        }
    }
}

/// Who owns logs, and who will.
async fn about_lease(registry: &dyn Registry, statement: &Statement, look: &Look) -> String {
    let Statement { tenure, other, .. } = *statement;
    let (log, epoch) = (tenure.log, tenure.epoch);
    match statement.number {
        5..=7 => {
            let leases = look.leases.iter();
            let claims = leases.filter(|lease| lease.log.0 % 2 == log.0 % 2);
            let claims = claims.map(|lease| {
                let seen = if lease.log == log { epoch } else { lease.epoch };
                let more = 1 + u64::from(statement.details[3] % 3);
                Claim {
                    seen,
                    tenure: Tenure {
                        log: lease.log,
                        epoch: LeaseEpoch(lease.epoch.0 + more),
                        ..tenure
                    },
                }
            });
            let claims: Vec<Claim> = claims.collect();
            let mut got = registry.claim(&claims).await.expect("answers");
            got.sort();
            format!("{got:?}")
        }
        8 => format!("{:?}", registry.set_next_owner(log, epoch, other).await),
        9 => {
            let hand_over = HandOver {
                from: tenure,
                to: other.unwrap_or(statement.id),
                to_generation: statement.generation,
                reason: MoveReason::Drain,
            };
            format!("{:?}", registry.hand_over(hand_over).await)
        }
        _ => format!("{:?}", registry.release(tenure).await),
    }
}

/// What people say about addresses, versions and logs, and the history.
async fn about_cluster(
    registry: &dyn Registry,
    statement: &Statement,
    known: &[Known],
    side: usize,
) -> String {
    let details = statement.details;
    match statement.number {
        11 => {
            let address = format!("node-{}:4000", details[1] % 4);
            let is_held = details[3].is_multiple_of(2);
            format!("{:?}", registry.hold(&address, is_held).await)
        }
        12 => {
            let [from, to] = [details[1] % 3, details[2] % 3]
                .map(|version| ClusterVersion(u16::try_from(version).expect("fits") + 1));
            format!("{:?}", registry.finalize(from, to).await)
        }
        _ => {
            let (log, frozen) = (statement.tenure.log, details[0].is_multiple_of(2));
            registry.pin(log, statement.other).await.expect("answers");
            registry.freeze(frozen).await.expect("answers");
            let name = |id: NodeId| known.iter().position(|known| known.ids[side] == Some(id));
            let moves = registry.moves().await.expect("answers");
            let mut moves: Vec<_> = moves
                .iter()
                .map(|moved| {
                    let (from, to) = (moved.from.map(name), moved.to.map(name));
                    (moved.log, moved.epoch, moved.reason, from, to)
                })
                .collect();
            moves.sort_by_key(|moved| (moved.0, moved.1));
            format!("{moves:?}")
        }
    }
}
