//! Both sides of a greeting against each other, and against sides that lie.

use archipelago_base::Epoch;

use super::*;
use crate::auth::secret::tests::secret;
use crate::ids::{ClientId, NodeId};
use crate::wire::{frame_at, put_refused};

const NODE: NodeId = NodeId(5);
const EPOCH: Epoch = Epoch(6);

fn hello() -> Hello {
    Hello { client: ClientId(7), resumed: false, node: None, epoch: None, introduction: None }
}

fn whole(frame: &[u8]) -> Frame<'_> {
    frame_at(frame).expect("sound").expect("whole").0
}

fn begin(secret: Option<&Secret>) -> (ClientGreeting<'_>, Vec<u8>) {
    ClientGreeting::begin(secret, hello()).expect("random numbers")
}

fn answer(secret: Option<&Secret>, hello: &[u8]) -> Result<NodeStep, Refusal> {
    NodeGreeting::begin(secret, whole(hello).body, NODE, EPOCH)
}

/// The node's challenge for a client that knows a cluster's id.
fn challenge(secret: &Secret, hello: &[u8]) -> (NodeGreeting, Vec<u8>) {
    match answer(Some(secret), hello) {
        Ok(NodeStep::Challenge(greeting, frame)) => (*greeting, frame),
        other => panic!("no challenge: {other:?}"),
    }
}

fn prove(client: &mut ClientGreeting<'_>, challenge: &[u8]) -> Vec<u8> {
    match client.hear(&whole(challenge)) {
        Ok(ClientStep::Send(proof)) => proof,
        other => panic!("no proof: {other:?}"),
    }
}

fn welcome(admission: Admission) -> Vec<u8> {
    let welcome = admission.sign(Welcome { node: NODE, epoch: EPOCH, proof: None });
    let mut body = Vec::new();
    welcome.encode(&mut body);
    framed(Kind::Welcome, &body)
}

fn refused<T: std::fmt::Debug>(result: Result<T, Refusal>) -> Reason {
    result.expect_err("refused").reason
}

#[test]
fn sides_with_the_same_secret_accept_each_other() {
    let secret = secret(1, 2);
    let (mut client, hello) = begin(Some(&secret));
    let (node, challenge) = challenge(&secret, &hello);
    let proof = prove(&mut client, &challenge);
    let admission = node.check(&whole(&proof)).expect("the client knows the secret");
    assert_eq!(admission.hello.client, ClientId(7));
    let last = welcome(admission);
    match client.hear(&whole(&last)) {
        Ok(ClientStep::Welcomed(welcome)) => {
            assert_eq!((welcome.node, welcome.epoch), (NODE, EPOCH));
        }
        other => panic!("not welcomed: {other:?}"),
    }
}

#[test]
fn sides_without_a_secret_need_no_proof() {
    let (mut client, hello) = begin(None);
    let Ok(NodeStep::Admit(admission)) = answer(None, &hello) else { panic!("not admitted") };
    let last = welcome(admission);
    assert!(matches!(client.hear(&whole(&last)), Ok(ClientStep::Welcomed(_))));
}

#[test]
fn missing_secret_on_one_side_is_refused_by_the_other() {
    let secret = secret(1, 2);
    let (_, with) = begin(Some(&secret));
    let (_, without) = begin(None);
    assert_eq!(refused(answer(None, &with)), Reason::NodeWithoutSecret);
    assert_eq!(refused(answer(Some(&secret), &without)), Reason::ClientWithoutSecret);
    // A node that leaves the proofs out does not get a client with a secret.
    let (mut client, _) = begin(Some(&secret));
    let admission = Admission { hello: hello(), proved: None };
    let reason = refused(client.hear(&whole(&welcome(admission))));
    assert_eq!(reason, Reason::NodeWithoutSecret);
}

#[test]
fn wrong_secret_and_wrong_cluster_have_reasons_of_their_own() {
    let (ours, stolen, other) = (secret(1, 2), secret(1, 3), secret(9, 2));
    let (mut client, hello) = begin(Some(&stolen));
    let (node, challenge) = challenge(&ours, &hello);
    let proof = prove(&mut client, &challenge);
    assert_eq!(refused(node.check(&whole(&proof))), Reason::WrongSecret);
    let (_, hello) = begin(Some(&other));
    assert_eq!(refused(answer(Some(&ours), &hello)), Reason::WrongCluster);
    // A node that accepts any proof cannot make its own.
    let (mut client, hello) = begin(Some(&ours));
    let (mut node, frame) = self::challenge(&secret(1, 4), &hello);
    let proof = prove(&mut client, &frame);
    node.transcript.push(Kind::Proof, whole(&proof).body);
    let admission =
        Admission { hello: node.hello, proved: Some(Box::new((node.secret, node.transcript))) };
    assert_eq!(refused(client.hear(&whole(&welcome(admission)))), Reason::WrongSecret);
}

#[test]
fn proof_of_an_earlier_greeting_is_refused() {
    let secret = secret(1, 2);
    let (mut client, hello) = begin(Some(&secret));
    let (node, first) = challenge(&secret, &hello);
    let proof = prove(&mut client, &first);
    let welcomed = welcome(node.check(&whole(&proof)).expect("sound"));
    // The same bytes reach the node again. The node's random number is another one now.
    let (node, second) = challenge(&secret, &hello);
    assert_ne!(first, second);
    assert_eq!(refused(node.check(&whole(&proof))), Reason::WrongSecret);
    // Old messages of the node answer another greeting of the client.
    let (mut client, _) = begin(Some(&secret));
    prove(&mut client, &first);
    assert_eq!(refused(client.hear(&whole(&welcomed))), Reason::WrongSecret);
}

#[test]
fn own_proof_sent_back_is_refused() {
    let secret = secret(1, 2);
    let (mut client, hello) = begin(Some(&secret));
    let (_, frame) = challenge(&secret, &hello);
    let proof = Proof::decode(whole(&prove(&mut client, &frame)).body).expect("sound");
    let mut body = Vec::new();
    Welcome { node: NODE, epoch: EPOCH, proof: Some(proof) }.encode(&mut body);
    let reason = refused(client.hear(&whole(&framed(Kind::Welcome, &body))));
    assert_eq!(reason, Reason::WrongSecret);
}

#[test]
fn changed_bytes_of_a_greeting_are_refused() {
    let secret = secret(1, 2);
    // The client's proof covers each byte of the greeting after magic and version.
    let (_, hello) = begin(Some(&secret));
    for at in 12..whole(&hello).body.len() {
        let (mut client, hello) = begin(Some(&secret));
        let mut body = whole(&hello).body.to_vec();
        body[at] ^= 1;
        let Ok(step) = NodeGreeting::begin(Some(&secret), &body, NODE, EPOCH) else { continue };
        let NodeStep::Challenge(node, frame) = step else { panic!("admitted without a proof") };
        let proof = prove(&mut client, &frame);
        assert_eq!(refused(node.check(&whole(&proof))), Reason::WrongSecret, "byte {at}");
    }
    // The node's proof covers its id and its life in the welcome.
    for (node, epoch) in [(NodeId(4), EPOCH), (NODE, Epoch(7))] {
        let (mut client, hello) = begin(Some(&secret));
        let (greeting, frame) = challenge(&secret, &hello);
        let admission = greeting.check(&whole(&prove(&mut client, &frame))).expect("sound");
        let signed = admission.sign(Welcome { node: NODE, epoch: EPOCH, proof: None });
        let mut body = Vec::new();
        Welcome { node, epoch, ..signed }.encode(&mut body);
        let heard = client.hear(&whole(&framed(Kind::Welcome, &body)));
        assert_eq!(refused(heard), Reason::WrongSecret);
    }
}

#[test]
fn client_proves_once_and_only_for_a_challenge() {
    let secret = secret(1, 2);
    let (mut client, hello) = begin(Some(&secret));
    let (_, frame) = challenge(&secret, &hello);
    prove(&mut client, &frame);
    assert_eq!(refused(client.hear(&whole(&frame))), Reason::Protocol, "a second challenge");
    let (mut client, _) = begin(None);
    assert_eq!(refused(client.hear(&whole(&frame))), Reason::Protocol, "it has no secret");
    let (mut client, _) = begin(Some(&secret));
    assert_eq!(refused(client.hear(&whole(&hello))), Reason::Protocol);
    let mut body = Vec::new();
    put_refused(&mut body, Reason::Exhausted.into());
    let goodbye = framed(Kind::Goodbye, &body);
    assert_eq!(refused(client.hear(&whole(&goodbye))), Reason::Exhausted);
}
