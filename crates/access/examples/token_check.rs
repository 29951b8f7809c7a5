//! What it costs to ask who calls and whether an append is allowed, per call, without a network:
//!
//! ```text
//! cargo run --release --package gesta-access --example token_check
//! ```

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use gesta_access::{Access, Accounts, AddUser, Config, FirstUser, NewToken, Operation, Scope};
use gesta_core::StreamId;
use gesta_memory::MemoryStore;

/// Checks of a round.
const CHECKS: u32 = 200_000;
/// Rounds; the median is told.
const ROUNDS: usize = 9;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = Arc::new(MemoryStore::new());
    let accounts = Accounts::of(store.clone());
    accounts
        .add_user(AddUser {
            name: "shop".into(),
            password: "correct horse".into(),
            groups: vec!["$admins".into()],
            full_name: String::new(),
            first: FirstUser::RefuseRights,
        })
        .await?;
    let token = NewToken {
        user: "shop".into(),
        label: "measured".into(),
        scopes: vec![Scope::Append],
        prefixes: vec!["cart-".into()],
        expires: None,
    };
    let authorization = format!("Bearer {}", accounts.create_token(token).await?);
    let access = Access::start(store, Config::default());
    access.loaded().await;
    let from = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let streams: Vec<StreamId> = (0..1_000)
        .map(|number| StreamId::new(format!("cart-{number}")))
        .collect::<Result<_, _>>()?;
    let mut nanos = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for (_, stream) in (0..CHECKS).zip(streams.iter().cycle()) {
            let caller = access.caller([authorization.as_bytes()], from).await?;
            access.check(&caller, Operation::Append(stream)).await?;
        }
        nanos.push(begun.elapsed().as_nanos() / u128::from(CHECKS));
    }
    nanos.sort_unstable();
    println!(
        "a token and the right to append: {} ns (median of {ROUNDS} rounds, {} to {})",
        nanos[ROUNDS / 2],
        nanos[0],
        nanos[ROUNDS - 1]
    );
    Ok(())
}
