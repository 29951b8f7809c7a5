//! The hello: two nodes prove to each other that they know the cluster's secret, and find out whether they fit.
//!
//! The hello is exchanged over the bare connection, before HTTP/2 begins, so that a stranger never reaches more code
//! than this file. D dials, L listens:
//!
//! 1. D → L: a magic word and a fresh nonce.
//! 2. L → D: a fresh nonce. A stranger gets nothing else.
//! 3. D → L: D's introduction and D's proof.
//! 4. L → D: a verdict and L's proof. The verdict is welcome, with L's introduction, or a refusal, with a sentence. A
//!    node that does not know the secret gets only the verdict that says so.
//!
//! A proof is HMAC-SHA256 by the secret over the role, both nonces and everything that was said since, the id of the
//! store included. So a proof is good for one connection, one store and one direction. Both introductions name the
//! address at which L is reached, as each knows it: D names the address that it dialled. Both addresses must be equal,
//! so a process that listens at the address of one node and passes the bytes on to another node gets no link. The
//! secret is never sent, and proofs are compared in constant time. What follows on the connection is neither encrypted
//! nor signed: that is the task of TLS or a trusted network.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use uuid::Uuid;

use crate::config::{ADDRESS_BYTES_MAX, Protocols, Secret, StoreIdentity};
use crate::route::Address;
use crate::sending::Credit;

const MAGIC: [u8; 8] = *b"GESTALNK";
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
/// The greatest length of an introduction or a sentence, in bytes.
const TEXT_BYTES_MAX: usize = 1_024;
const BUILD_BYTES_MAX: usize = 64;

const WELCOME: u8 = 0;
const REFUSED: u8 = 1;
const UNPROVEN: u8 = 2;

type Nonce = [u8; NONCE_BYTES];

/// What a node says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Introduction {
    pub(crate) protocols: Protocols,
    pub(crate) store: StoreIdentity,
    /// A random id of this life of the process.
    pub(crate) process: Uuid,
    /// What the node takes on each lane.
    pub(crate) credit: Credit,
    pub(crate) build: String,
    /// The address that was dialled, as the dialling node or the listening node knows it.
    pub(crate) address: Address,
}

/// The reason why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The node that was dialled has said that the proof of this one is none: one of the two has another secret.
    #[error(
        "the secrets of the two nodes differ: all nodes of a cluster need the same one (--cluster-secret-file)"
    )]
    OtherSecret,
    /// The hello was refused. The sentence names the rule that was broken.
    #[error("{0}")]
    Refused(String),
}

fn refused(sentence: impl Into<String>) -> HelloError {
    HelloError::Refused(sentence.into())
}

/// Does the hello as the node that dials. Returns what the other node says about itself.
///
/// # Errors
/// If the connection fails, or one of the two nodes refuses the other.
pub async fn dial<S>(
    io: &mut S,
    secret: &Secret,
    own: &Introduction,
) -> Result<Introduction, HelloError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let nonce: Nonce = rand::random();
    io.write_all(&[&MAGIC[..], &nonce].concat()).await?;
    let mut challenge: Nonce = [0; NONCE_BYTES];
    io.read_exact(&mut challenge).await?;
    let mut said = Said::new(secret, &nonce, &challenge);

    let text = own.encode();
    said.say(&text);
    let proof = said.proof("dials");
    io.write_all(&[&framed(&text)[..], &proof].concat()).await?;

    let verdict = io.read_u8().await?;
    if verdict == UNPROVEN {
        return Err(HelloError::OtherSecret);
    }
    let text = read_text(io).await?;
    said.say(&[verdict]);
    said.say(&text);
    let mut proof = [0; PROOF_BYTES];
    io.read_exact(&mut proof).await?;
    if !said.is_proof("listens", &proof) {
        return Err(refused(
            "the node at this address does not know the secret of the cluster",
        ));
    }
    match verdict {
        WELCOME => {
            let other = Introduction::decode(&text).ok_or_else(unreadable)?;
            own.check(&other)?;
            Ok(other)
        }
        REFUSED => Err(refused(String::from_utf8_lossy(&text))),
        _ => Err(unreadable()),
    }
}

/// Does the hello as the node that listens. Returns what the other node says about itself.
///
/// # Errors
/// If the connection fails, or one of the two nodes refuses the other.
pub async fn listen<S>(
    io: &mut S,
    secret: &Secret,
    own: &Introduction,
) -> Result<Introduction, HelloError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut start = [0; MAGIC.len() + NONCE_BYTES];
    io.read_exact(&mut start).await?;
    let (magic, nonce) = start.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(refused("it does not speak the protocol of links"));
    }
    let challenge: Nonce = rand::random();
    io.write_all(&challenge).await?;
    let mut said = Said::new(secret, nonce, &challenge);

    let text = read_text(io).await?;
    said.say(&text);
    let mut proof = [0; PROOF_BYTES];
    io.read_exact(&mut proof).await?;
    if !said.is_proof("dials", &proof) {
        io.write_all(&[UNPROVEN]).await?;
        return Err(refused("it does not know the secret of the cluster"));
    }
    let other = Introduction::decode(&text).ok_or_else(unreadable);
    let result = other.and_then(|other| own.check(&other).map(|()| other));
    let (verdict, text) = match &result {
        Ok(_) => (WELCOME, own.encode()),
        Err(error) => (REFUSED, error.to_string().into_bytes()),
    };
    said.say(&[verdict]);
    said.say(&text);
    let proof = said.proof("listens");
    io.write_all(&[&[verdict][..], &framed(&text), &proof].concat())
        .await?;
    result
}

fn unreadable() -> HelloError {
    refused("the hello cannot be read")
}

fn framed(text: &[u8]) -> Vec<u8> {
    let text = &text[..text.len().min(TEXT_BYTES_MAX)];
    let length = u16::try_from(text.len()).unwrap_or(0);
    [&length.to_be_bytes()[..], text].concat()
}

async fn read_text<S: AsyncRead + Unpin>(io: &mut S) -> Result<Vec<u8>, HelloError> {
    let length = usize::from(io.read_u16().await?);
    if length > TEXT_BYTES_MAX {
        return Err(refused("the hello is too long"));
    }
    let mut text = vec![0; length];
    io.read_exact(&mut text).await?;
    Ok(text)
}

/// Everything that was said on a connection, as a proof covers it.
struct Said {
    hmac: Option<Hmac<Sha256>>,
}

impl Said {
    fn new(secret: &Secret, nonce: &[u8], challenge: &[u8]) -> Self {
        // HMAC takes keys of any length; if it did not, no proof would be good.
        let hmac = Hmac::<Sha256>::new_from_slice(secret.bytes()).ok();
        let mut said = Self { hmac };
        said.say(b"gesta link");
        said.say(nonce);
        said.say(challenge);
        said
    }

    /// Adds a part. Its length goes before it, so that parts cannot be divided in another way.
    fn say(&mut self, part: &[u8]) {
        if let Some(hmac) = &mut self.hmac {
            hmac.update(&(part.len() as u64).to_be_bytes());
            hmac.update(part);
        }
    }

    fn proof_of(&self, role: &str) -> Option<Hmac<Sha256>> {
        let mut with_role = Self {
            hmac: self.hmac.clone(),
        };
        with_role.say(role.as_bytes());
        with_role.hmac
    }

    fn proof(&self, role: &str) -> [u8; PROOF_BYTES] {
        self.proof_of(role)
            .map_or([0; PROOF_BYTES], |hmac| hmac.finalize().into_bytes().into())
    }

    /// Compares a proof with the right one, in constant time.
    fn is_proof(&self, role: &str, proof: &[u8; PROOF_BYTES]) -> bool {
        let hmac = self.proof_of(role);
        hmac.is_some_and(|hmac| hmac.verify_slice(proof).is_ok())
    }
}

impl Introduction {
    /// Writes the introduction. A build or an address that is too long is cut.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let build = &self.build[..self.build.floor_char_boundary(BUILD_BYTES_MAX)];
        let mut bytes = Vec::new();
        bytes.extend(self.protocols.min.to_be_bytes());
        bytes.extend(self.protocols.max.to_be_bytes());
        bytes.extend(self.store.id.as_bytes());
        bytes.extend(self.store.logs.to_be_bytes());
        bytes.extend(self.process.as_bytes());
        bytes.extend(self.credit.calls.to_be_bytes());
        bytes.extend(self.credit.bytes.to_be_bytes());
        bytes.push(u8::try_from(build.len()).unwrap_or(0));
        bytes.extend(build.as_bytes());
        // One that is too long is no node's. What is left of it can be read.
        let address = self.address.as_str();
        let address = &address[..address.floor_char_boundary(ADDRESS_BYTES_MAX)];
        bytes.extend(u16::try_from(address.len()).unwrap_or(0).to_be_bytes());
        bytes.extend(address.as_bytes());
        bytes
    }

    /// Reads an introduction. What comes after the known fields is of a later build, and skipped.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut take = |count: usize| -> Option<&[u8]> { rest.split_off(..count) };
        let min = u16::from_be_bytes(take(2)?.try_into().ok()?);
        let max = u16::from_be_bytes(take(2)?.try_into().ok()?);
        let id = Uuid::from_slice(take(16)?).ok()?;
        let logs = u16::from_be_bytes(take(2)?.try_into().ok()?);
        let process = Uuid::from_slice(take(16)?).ok()?;
        let calls = u32::from_be_bytes(take(4)?.try_into().ok()?);
        let credit_bytes = u32::from_be_bytes(take(4)?.try_into().ok()?);
        let length = usize::from(*take(1)?.first()?);
        let build = std::str::from_utf8(take(length)?).ok()?.to_owned();
        let length = u16::from_be_bytes(take(2)?.try_into().ok()?);
        let address = std::str::from_utf8(take(usize::from(length))?).ok()?;
        Some(Self {
            protocols: Protocols { min, max },
            store: StoreIdentity { id, logs },
            process,
            credit: Credit {
                calls,
                bytes: credit_bytes,
            },
            build,
            address: Address::new(address),
        })
    }

    /// Checks whether the two nodes fit. Both nodes check this. The sentence of the error names the rule.
    fn check(&self, other: &Self) -> Result<(), HelloError> {
        if self.store.id != other.store.id {
            return Err(refused(format!(
                "nodes of one cluster must serve the same store: one serves {}, the other {}",
                self.store.id, other.store.id
            )));
        }
        if self.store.logs != other.store.logs {
            return Err(refused(format!(
                "nodes of one cluster must know the same number of logs: one knows {}, the other {}",
                self.store.logs, other.store.logs
            )));
        }
        if self.address != other.address {
            return Err(refused(format!(
                "a node must be dialled at its own address: one side says {}, the other {}",
                self.address, other.address
            )));
        }
        let (own, others) = (self.protocols, other.protocols);
        if own.max.min(others.max) < own.min.max(others.min) {
            return Err(refused(format!(
                "nodes of one cluster must share a version of the link protocol: build {} speaks {} to {}, build {} \
                 speaks {} to {}",
                self.build, own.min, own.max, other.build, others.min, others.max
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::new(text.as_bytes()).expect("long enough")
    }

    fn node(process: u128) -> Introduction {
        Introduction {
            protocols: Protocols::THIS,
            store: StoreIdentity {
                id: Uuid::from_u128(7),
                logs: 16,
            },
            process: Uuid::from_u128(process),
            credit: Credit { calls: 5, bytes: 6 },
            build: "1.2.3".to_owned(),
            address: Address::new("node-a:1"),
        }
    }

    type Met = (
        Result<Introduction, HelloError>,
        Result<Introduction, HelloError>,
    );

    async fn meet(secrets: [&str; 2], nodes: [&Introduction; 2]) -> Met {
        let (mut a, mut b) = duplex(4_096);
        let (dials, listens) = (secret(secrets[0]), secret(secrets[1]));
        tokio::join!(
            dial(&mut a, &dials, nodes[0]),
            listen(&mut b, &listens, nodes[1])
        )
    }

    fn sentence(result: Result<Introduction, HelloError>) -> String {
        result.expect_err("refused").to_string()
    }

    const SAME: [&str; 2] = ["0123456789abcdef"; 2];

    #[tokio::test]
    async fn nodes_with_the_same_secret_meet() {
        let (a, b) = (node(1), node(2));
        let (dialled, listened) = meet(SAME, [&a, &b]).await;
        assert_eq!(dialled.expect("welcome"), b);
        assert_eq!(listened.expect("welcome"), a);
    }

    #[tokio::test]
    async fn nodes_with_other_secrets_do_not() {
        let nodes = [&node(1), &node(2)];
        let (dialled, listened) = meet(["0123456789abcdef", "0123456789abcdeg"], nodes).await;
        assert!(
            matches!(dialled, Err(HelloError::OtherSecret)),
            "{dialled:?}"
        );
        assert!(sentence(dialled).starts_with("the secrets of the two nodes differ: "));
        assert!(sentence(listened).contains("does not know the secret"));
    }

    #[tokio::test]
    async fn another_store_another_number_of_logs_other_versions_and_another_address_are_refused() {
        let own = node(1);
        let mut store = node(2);
        store.store.id = Uuid::from_u128(8);
        let mut logs = node(2);
        logs.store.logs = 17;
        let mut versions = node(2);
        versions.protocols = Protocols { min: 2, max: 3 };
        let mut address = node(2);
        address.address = Address::new("node-b:1");
        let cases = [
            (address, "at its own address"),
            (store, "the same store"),
            (logs, "number of logs"),
            (versions, "a version"),
        ];
        for (other, rule) in cases {
            for nodes in [[&own, &other], [&other, &own]] {
                let (dialled, listened) = meet(SAME, nodes).await;
                let (dialled, listened) = (sentence(dialled), sentence(listened));
                assert!(dialled.contains(rule), "{dialled}");
                assert!(listened.contains(rule), "{listened}");
            }
        }
    }

    #[tokio::test]
    async fn neighbouring_builds_meet() {
        let mut next = node(2);
        next.protocols = Protocols { min: 1, max: 2 };
        next.build = "ß".repeat(100);
        let (dialled, listened) = meet(SAME, [&node(1), &next]).await;
        assert_eq!(dialled.expect("welcome").build, "ß".repeat(32), "cut");
        assert!(listened.is_ok());
    }

    /// Goal: what a node said once is worth nothing on another connection, nor sent back to it.
    #[tokio::test]
    async fn a_hello_cannot_be_replayed_or_reflected() {
        let (mut a, mut wire) = duplex(4_096);
        let (key, own) = (secret(SAME[0]), node(1));
        let dials = dial(&mut a, &key, &own);
        let records = async {
            let mut start = [0; 40];
            wire.read_exact(&mut start).await.expect("a start");
            wire.write_all(&[9; NONCE_BYTES]).await.expect("sent");
            let text = read_text(&mut wire).await.expect("an introduction");
            let mut proof = [0; PROOF_BYTES];
            wire.read_exact(&mut proof).await.expect("a proof");
            // Reflected: the dialler's own words come back as a welcome.
            let back = [&[WELCOME][..], &framed(&text), &proof].concat();
            wire.write_all(&back).await.expect("sent");
            [&start[..], &framed(&text), &proof].concat()
        };
        let (dialled, recorded) = tokio::join!(dials, records);
        assert!(sentence(dialled).contains("does not know the secret"));

        let (mut stranger, mut b) = duplex(4_096);
        stranger.write_all(&recorded).await.expect("sent");
        let refused = listen(&mut b, &key, &own).await;
        assert!(sentence(refused).contains("does not know the secret"));
        let mut got = vec![0; NONCE_BYTES + 1];
        stranger
            .read_exact(&mut got)
            .await
            .expect("challenge, verdict");
        assert_eq!(got[NONCE_BYTES], UNPROVEN);
    }

    async fn feed(stranger: &mut DuplexStream, bytes: &[u8]) {
        // The other end may have closed already.
        let _ = stranger.write_all(bytes).await;
        let _ = stranger.shutdown().await;
    }

    proptest! {
        #[test]
        fn hostile_hellos_are_refused(
            knows_magic in any::<bool>(),
            noise in prop::collection::vec(any::<u8>(), 0..700),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let mut bytes = noise;
                if knows_magic && bytes.len() > MAGIC.len() {
                    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
                }
                let (key, own) = (secret(SAME[0]), node(1));
                let (mut stranger, mut b) = duplex(4_096);
                let (result, ()) = tokio::join!(listen(&mut b, &key, &own), feed(&mut stranger, &bytes));
                assert!(result.is_err());
                let (mut a, mut impostor) = duplex(4_096);
                let (result, ()) = tokio::join!(dial(&mut a, &key, &own), feed(&mut impostor, &bytes));
                assert!(result.is_err());
            });
        }

        #[test]
        fn introductions_come_out_as_they_went_in_or_not_at_all(noise in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(read) = Introduction::decode(&noise) {
                assert!(noise.starts_with(&read.encode()[..46]));
            }
            let own = node(1);
            let longer = [own.encode(), noise].concat();
            prop_assert_eq!(Introduction::decode(&longer), Some(own), "later fields are skipped");
        }
    }
}
