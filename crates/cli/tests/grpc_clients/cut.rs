//! A way to a server that is cut, with all that is on it, whenever somebody connects to a second address.
//!
//! So a program in any language can cut its own connection: it connects there and waits until the answer ends.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};

use gesta_rig::FaultProxy;

/// The way to a server, and the address that cuts it. It ends with the process.
pub(crate) struct Cut {
    pub(crate) through: SocketAddr,
    pub(crate) cutter: SocketAddr,
}

impl Cut {
    pub(crate) fn before(server: &str) -> Self {
        let proxy = FaultProxy::start(server.parse().unwrap()).unwrap();
        let through = proxy.addr();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cutter = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for knock in listener.incoming() {
                let count = proxy.cut_all();
                // Whoever knocked may have gone.
                let _ = writeln!(knock.unwrap(), "{count}");
            }
        });
        Self { through, cutter }
    }
}
