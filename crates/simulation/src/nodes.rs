//! What makes a process one node of several: the calls that it forwards, those that it takes, and what it believes
//! about the owner of the log.
//!
//! The cores are those of the product: both ends of a lane (`gesta_link::cores`), and what an edge makes of an answer,
//! a route or a hint of a placement (`gesta_node::cores`). The network between them is here: it delivers the frames of
//! a lane in their order, late, or only the first ones, in each direction for itself.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use gesta_cluster::{LogPlace, Owner, Placement};
use gesta_core::registry::{LeaseEpoch, NodeId};
use gesta_core::{After, Appended, Incarnation, LogId, Result, StreamId};
use gesta_link::cores::{Credit, LinkState, Newest, Receiver, Sender};
use gesta_link::{Address, Hint, Route};
use gesta_node::cores::{Change, Here, route};
use tokio::time::Instant;

/// Nodes of a cluster.
pub const NODES: usize = 3;
/// What an owner takes on a lane: little, so that calls often wait.
pub const CREDIT: Credit = Credit {
    calls: 3,
    bytes: 400,
};
/// The log, and the only one.
pub const LOG: LogId = LogId(0);
/// Calls come back after this time without an owner.
const RETURN_AFTER: Duration = Duration::from_secs(1);

/// Whose command it is that a sequencer works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ticket {
    /// Of a caller of this process: its number in the model.
    Own(usize),
    /// Of a caller of this process, after it had been forwarded and had come back.
    Returned(usize, Here),
    /// Of another node.
    Taken(Taken),
}

/// A call of another node that was handed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The place of its lane among all lanes.
    pub lane: usize,
    /// Its number on the lane.
    pub seq: u64,
    /// Its size.
    pub bytes: usize,
    /// What it is.
    pub what: What,
}

/// What a call is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// An append.
    Append,
    /// A delete, or a change of metadata.
    Lifecycle,
    /// The question whether the state in the owner's memory is up to date, as an entity asks before it answers.
    Question(After),
}

/// What a node forwards.
#[derive(Debug, Clone)]
pub enum Payload {
    /// A change, and its form on the way, encoded once.
    Change(Change, Bytes),
    /// A confirmed read of the state of this stream.
    Question(StreamId),
}

impl Payload {
    /// The size of the call.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Change(_, body) => body.len(),
            Self::Question(stream) => stream.as_str().len(),
        }
    }
}

/// A call on its way to the owner.
#[derive(Debug)]
pub struct Forth {
    /// Its number on the lane.
    pub seq: u64,
    /// What is called.
    pub payload: Payload,
    /// Whose call it is, in the model.
    pub record: usize,
    /// The time that was left when it was written.
    pub remaining: Duration,
    /// When it was written.
    pub written_at: Instant,
}

/// An answer of an owner.
#[derive(Debug)]
pub enum Reply {
    /// To a change.
    Changed(Bytes),
    /// To a question: the state in the owner's memory, and whether it was confirmed.
    Answered(After, Result<Appended>),
}

/// What is on its way back.
#[derive(Debug)]
pub enum Back {
    /// The call was done, or refused for good.
    Reply(u64, Reply),
    /// The deadline of the call was over.
    DeadlineOver(u64),
    /// Nothing from this call on is served; those from `untaken` on were not handed over.
    NotHere {
        /// The first call that is refused.
        from: u64,
        /// The first call that was not handed over.
        untaken: u64,
        /// Who owns the log.
        hint: Hint,
    },
}

/// A node in one of its lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Living {
    /// Its number.
    pub node: usize,
    /// Counts the processes that this node has been.
    pub life: u32,
}

/// A lane, and the network under it.
#[derive(Debug)]
pub struct Lane {
    /// The number that the forwarder has given it.
    pub number: u64,
    /// The forwarder.
    pub edge: Living,
    /// The node that takes its calls.
    pub owner: Living,
    /// The owner's end.
    pub receiver: Receiver,
    /// Frames on their way to the owner.
    pub forth: VecDeque<Forth>,
    /// Frames on their way back.
    pub back: VecDeque<Back>,
    /// Bytes to the owner get lost: nothing arrives until the link breaks.
    pub is_mute_forth: bool,
    /// The same for bytes from the owner.
    pub is_mute_back: bool,
    /// The first frame has arrived.
    pub is_open: bool,
    /// The forwarder has given it up. Frames may be under way for a while.
    pub is_ended: bool,
    /// The owner has given it up.
    pub is_reset: bool,
    /// Calls that the owner has not answered.
    pub taken: Vec<Taken>,
}

impl Lane {
    /// A lane on which nothing was written.
    #[must_use]
    pub fn new(number: u64, edge: Living, owner: Living) -> Self {
        Self {
            number,
            edge,
            owner,
            receiver: Receiver::new(CREDIT),
            forth: VecDeque::new(),
            back: VecDeque::new(),
            is_mute_forth: false,
            is_mute_back: false,
            is_open: false,
            is_ended: false,
            is_reset: false,
            taken: Vec::new(),
        }
    }
}

/// What a node has beside its sequencer.
#[derive(Debug)]
pub struct Node {
    /// Its number and life.
    pub own: Living,
    /// The forwarder's core. A ticket is the number of a call in the model.
    pub sender: Sender<usize>,
    /// The open lane, by its place among all lanes.
    pub lane: Option<usize>,
    /// The calls that the forwarder has.
    pub calls: HashMap<usize, Payload>,
    /// The calls that have come back and are to be done here, in any order.
    pub returned: Vec<(usize, Payload, Here)>,
    /// Who owns the log, as this node believes.
    pub placement: Placement,
    /// The links to the other nodes.
    pub links: [LinkState; NODES],
    /// The newest lane of each forwarder.
    pub newest: HashMap<Living, Newest>,
    /// It has given its logs away, takes no more calls, and ends when it has answered those that it has.
    pub is_leaving: bool,
}

impl Node {
    /// A node that has just started.
    #[must_use]
    pub fn start(own: Living, now: Instant) -> Self {
        let placement = placement(own.node, Believed::default());
        let route = route(&placement, LOG, &address(own.node));
        Self {
            own,
            sender: Sender::new(address(own.node), RETURN_AFTER, route, now),
            lane: None,
            calls: HashMap::new(),
            returned: Vec::new(),
            placement,
            links: [LinkState::Up(CREDIT); NODES],
            newest: HashMap::new(),
            is_leaving: false,
        }
    }

    /// True if the node believes that it owns the log.
    #[must_use]
    pub fn is_mine(&self) -> bool {
        self.placement.is_mine(LOG)
    }

    /// The route that follows from what the node believes.
    #[must_use]
    pub fn route(&self) -> Route {
        route(&self.placement, LOG, &address(self.own.node))
    }
}

/// What a node may be told about the owner of the log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Believed {
    /// The owner; `None` is nobody.
    pub owner: Option<usize>,
    /// The owner is giving the log away.
    pub is_leaving: bool,
    /// The number of the ownership.
    pub epoch: u64,
}

/// What a node sees that believes this.
#[must_use]
pub fn placement(me: usize, believed: Believed) -> Placement {
    let id = |node: usize| NodeId(u32::try_from(node).unwrap_or(u32::MAX));
    let owner = believed.owner.map(|node| Owner {
        node: id(node),
        address: NAMES[node].into(),
    });
    Placement {
        version: 1,
        incarnation: Some(Incarnation(uuid::Uuid::nil())),
        cluster: None,
        me: Some(id(me)),
        logs: vec![LogPlace {
            owner,
            next_owner: None,
            epoch: LeaseEpoch(believed.epoch),
            is_mine: believed.owner == Some(me) && !believed.is_leaving,
        }],
        nodes: Vec::new(),
    }
}

/// Where the nodes are reached.
const NAMES: [&str; NODES] = ["a:1", "b:1", "c:1"];

/// Where a node is reached.
#[must_use]
pub fn address(node: usize) -> Address {
    Address::new(NAMES[node])
}

/// The node that is reached there.
#[must_use]
pub fn node_at(address: &Address) -> usize {
    let place = NAMES.iter().position(|name| *name == address.as_str());
    place.unwrap_or_default()
}
