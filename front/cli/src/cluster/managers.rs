//! Requests of operators to the managers and the nodes of a cluster.
//!
//! Failure: an error names the address, and says what to do if no manager answers.
//! Cost: one connection per manager that is asked.

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::random::entropy_seed;
use archipelago_base::runtime::block_on;
use archipelago_base::{Error, ErrorKind, Result};
use archipelago_fabric::{Call, ClientId, Endpoints, Line, Reach, Route, RouteMessage, Secret};
use archipelago_flexkv::wire::{Message as FlexKvMessage, StoreStatus};
use archipelago_offload::wire::shard::ShardMessage;
use archipelago_pool::wire::Member;
use archipelago_store::nodes::wire::{StorageMember, StoreMessage};

use crate::managers::{MANAGER, managers};
use crate::secret::SecretArgs;

/// Time limit for an answer.
const DEADLINE: Duration = Duration::from_secs(3);

/// Flags of a command that asks the managers of a cluster.
#[derive(clap::Args, Debug)]
pub(crate) struct ManagersArgs {
    /// Addresses of the cluster's managers, separated by commas
    #[arg(long, value_name = "HOST:PORT,...", default_value = MANAGER)]
    manager: String,
    #[command(flatten)]
    secret: SecretArgs,
}

impl ManagersArgs {
    /// The managers that the flags name. Reads the secret.
    pub(super) fn managers(&self) -> Result<Managers> {
        Managers::of(&self.manager, &self.secret)
    }
}

/// The managers of a cluster.
pub(super) struct Managers {
    /// The addresses as the operator wrote them.
    text: String,
    /// Endpoints of the managers.
    pub(super) ways: Vec<String>,
    /// The cluster's secret.
    pub(super) secret: Option<Secret>,
    endpoints: Arc<Endpoints>,
}

impl Managers {
    /// The managers at these addresses, separated by commas. Reads the secret.
    pub(super) fn of(at: &str, secret: &SecretArgs) -> Result<Self> {
        let secret = secret.read()?;
        Ok(Self {
            text: at.to_owned(),
            ways: managers(at)?,
            endpoints: Arc::new(Endpoints::new().with_secret(secret.clone())),
            secret,
        })
    }

    /// Asks the managers one after the other, until one answers.
    pub(super) fn ask<M: RouteMessage>(&self, message: &M) -> Result<M> {
        let line = Line::new(&self.endpoints, self.ways.clone(), new_client(), None);
        // A manager that stands by does not answer.
        let mut asked = line.ask(message, DEADLINE);
        for _ in 1..self.ways.len() {
            asked = asked.or_else(|_| line.ask(message, DEADLINE));
        }
        asked.map_err(|error| self.no_answer(error))
    }

    /// Asks every manager, because each has a scheduler. Returns the answers of those that answer,
    /// one at least.
    pub(super) fn ask_each<M: RouteMessage>(&self, message: &M) -> Result<Vec<M>> {
        let (mut answers, mut failed) = (Vec::new(), None);
        for way in &self.ways {
            let line = Line::new(&self.endpoints, vec![way.clone()], new_client(), None);
            match line.ask(message, DEADLINE) {
                Ok(answer) => answers.push(answer),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if answers.is_empty() => Err(self.no_answer(error)),
            _ => Ok(answers),
        }
    }

    /// The error of a command that no manager answers.
    fn no_answer(&self, error: Error) -> Error {
        match error.kind() {
            // The error names what is wrong with the address or the secret.
            ErrorKind::InvalidArgument => error,
            _ => error.context_at(format!(
                "no manager answers at {}: start a cluster with `archipelago cluster up`, or name \
                 the managers' addresses with --manager HOST:PORT,...",
                self.text
            )),
        }
    }

    /// Status of the store over remote memory, from the coordinator in the acting manager.
    pub(super) fn ask_flexkv(&self) -> Result<StoreStatus> {
        let reach: Arc<dyn Reach> = Arc::clone(&self.endpoints) as Arc<dyn Reach>;
        let route = Route::new(&reach, new_client(), None);
        let question = FlexKvMessage::Status {}.encode();
        for _ in 0..self.ways.len() {
            let link = block_on(route.link(&self.ways, DEADLINE))?;
            let answer = link.request(Call::new(&question, DEADLINE)).wait();
            let answer = answer.map_err(|refusal| refusal.error("the store's status"))?;
            match FlexKvMessage::decode(&answer) {
                Ok(FlexKvMessage::StatusIs { status }) => return Ok(status),
                Ok(FlexKvMessage::Declined { .. }) => route.go_on(&self.ways),
                _ => break,
            }
        }
        Err(other_version("no manager knows the status of the store, or its answer"))
    }

    /// Asks the shard host of a memory node. An error says that the node does not answer.
    pub(super) fn ask_shards(
        &self,
        member: &Member,
        message: &ShardMessage,
    ) -> Result<ShardMessage> {
        let peer = Some((member.node, member.life));
        let line = Line::new(&self.endpoints, member.endpoints.clone(), new_client(), peer);
        line.ask(message, DEADLINE).map_err(|error| {
            let endpoints = member.endpoints.join(" ");
            error.context_at(format!("memory node {} at {endpoints} does not answer", member.node))
        })
    }

    /// Asks a storage node.
    pub(super) fn ask_node(
        &self,
        member: &StorageMember,
        message: &StoreMessage,
    ) -> Result<StoreMessage> {
        let peer = Some((member.node, member.life));
        let line = Line::new(&self.endpoints, member.endpoints.clone(), new_client(), peer);
        line.ask(message, DEADLINE).map_err(|error| {
            error.context_at(format!(
                "storage node {} at {} does not answer",
                member.node,
                member.endpoints.join(" ")
            ))
        })
    }
}

fn new_client() -> ClientId {
    ClientId(entropy_seed())
}

/// The error of an answer that this program does not know.
pub(super) fn other_version(what: &str) -> Error {
    Error::unsupported(format!(
        "{what} is of another version: run the program of the same version as the cluster"
    ))
}
