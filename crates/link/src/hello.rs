//! The hello: two nodes prove to each other that they know the cluster's secret, and find out whether they fit.
//!
//! It goes over the bare connection, before HTTP/2 begins, so that a stranger never speaks to more code than this file.
//! D dials, L listens:
//!
//! 1. D → L: a magic word and a fresh nonce.
//! 2. L → D: a fresh nonce. A stranger gets nothing else.
//! 3. D → L: D's introduction and D's proof.
//! 4. L → D: a verdict: welcome with L's introduction, or a refusal with a sentence, and L's proof; to one who does not
//!    know the secret only that.
//!
//! A proof is HMAC-SHA256 by the secret over the role, both nonces and everything that was said since, the store's id
//! among it. So a proof is good for one connection, one store and one direction. The secret never travels, and proofs
//! are compared in constant time. What follows on the connection is neither encrypted nor signed: that is for TLS or a
//! trusted network.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use uuid::Uuid;

use crate::config::{Secret, StoreIdentity};
use crate::sending::Credit;

/// Versions of the protocol that this build speaks. Neighbouring builds share at least one.
pub(crate) const PROTOCOLS: Protocols = Protocols { min: 1, max: 1 };

const MAGIC: [u8; 8] = *b"GESTALNK";
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
/// Longest introduction or sentence.
const TEXT_BYTES_MAX: usize = 512;
const BUILD_BYTES_MAX: usize = 64;

const WELCOME: u8 = 0;
const REFUSED: u8 = 1;
const UNPROVEN: u8 = 2;

type Nonce = [u8; NONCE_BYTES];

/// A range of protocol versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Protocols {
    pub(crate) min: u16,
    pub(crate) max: u16,
}

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Introduction {
    pub(crate) protocols: Protocols,
    pub(crate) store: StoreIdentity,
    /// A random id of this life of the process.
    pub(crate) process: Uuid,
    /// What it takes on each lane.
    pub(crate) credit: Credit,
    pub(crate) build: String,
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HelloError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A sentence that names the rule that was broken.
    #[error("{0}")]
    Refused(String),
}

fn refused(sentence: impl Into<String>) -> HelloError {
    HelloError::Refused(sentence.into())
}

/// Dials: returns what the other node says of itself.
pub(crate) async fn dial<S>(
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
        return Err(refused("the secrets of the two nodes differ"));
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

/// Listens: returns what the other node says of itself.
pub(crate) async fn listen<S>(
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

    /// Adds a part; its length goes before it, so that parts cannot be cut otherwise.
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

    /// Compares in constant time.
    fn is_proof(&self, role: &str, proof: &[u8; PROOF_BYTES]) -> bool {
        let hmac = self.proof_of(role);
        hmac.is_some_and(|hmac| hmac.verify_slice(proof).is_ok())
    }
}

impl Introduction {
    fn encode(&self) -> Vec<u8> {
        let mut build = self.build.as_str();
        while build.len() > BUILD_BYTES_MAX {
            build = build
                .char_indices()
                .next_back()
                .map_or("", |(at, _)| &build[..at]);
        }
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
        bytes
    }

    /// What comes after the known fields is of a later build, and skipped.
    fn decode(bytes: &[u8]) -> Option<Self> {
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
        Some(Self {
            protocols: Protocols { min, max },
            store: StoreIdentity { id, logs },
            process,
            credit: Credit {
                calls,
                bytes: credit_bytes,
            },
            build,
        })
    }

    /// Whether the two nodes fit; both check it. The sentence names the rule.
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
