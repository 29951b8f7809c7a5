//! Patroni: another member becomes the primary when it is asked for, and nothing outlives the cluster. Only where
//! Patroni and etcd are installed; `gesta-chaos --world patroni` hurts such a cluster in more ways.

use gesta_rig::{Patroni, PatroniConfig, Replication};

#[test]
fn a_primary_is_switched_over_and_nothing_outlives_the_cluster() {
    let config = PatroniConfig {
        members: 2,
        ..PatroniConfig::new(Replication::Synchronous)
    };
    let Some(cluster) = Patroni::start(config).expect("starts") else {
        return;
    };
    let old = cluster.wait_until_whole().expect("whole");
    cluster.switch_over(old).expect("switched over");
    let new = cluster.wait_until_whole().expect("whole");
    assert_ne!(new, old);
    // A hung Patroni and its server are ended as well.
    cluster.suspend_patroni(new, true).expect("suspended");
    let addresses = cluster.addresses();
    drop(cluster);
    for address in addresses {
        let connected = std::net::TcpStream::connect(address);
        assert!(connected.is_err(), "{address} still listens");
    }
}
