use archipelago_base::Epoch;
use archipelago_fabric::{NodeId, RegionId, Rights};

use super::*;
use crate::wire::shard::NodeShare;

const PATIENCE: u64 = 1000;
const END: u64 = 10 * PATIENCE;

fn image() -> Vec<u8> {
    (0..5_000_000u32).map(|number| number.to_le_bytes()[1]).collect()
}

fn order(image: &[u8]) -> TransferOrder {
    TransferOrder {
        owner: OwnerStamp::default(),
        shard: ShardName { epoch: Epoch(1), memtable: 2, shard: 3 },
        info: ShardInfo::default(),
        bytes: image.len() as u64,
        records_at: 0,
        pieces: pieces(image, 0),
    }
}

fn key() -> RemoteKey {
    let (node, epoch, region, rights) = (NodeId(1), Epoch(2), RegionId(3), Rights::WRITE);
    RemoteKey { node, epoch, region, tag: 4, len: 1 << 30, rights }
}

fn landing(bytes: u64) -> ShardMessage {
    let share = NodeShare::default();
    ShardMessage::Landing { grant: 17, key: key(), at: 640, bytes, credit_bytes: 0, share }
}

fn refused(why: ShardWhy, number: u64) -> ShardMessage {
    ShardMessage::Refused { refusal: ShardRefusal::at(why, number) }
}

fn place(bytes: u64) -> ShardPlace {
    ShardPlace { key: key(), at: 0, bytes }
}

/// A transfer whose image is written.
fn registering() -> (Transfer, u64) {
    let image = image();
    let bytes = image.len() as u64;
    let mut transfer = Transfer::new(order(&image), 0, PATIENCE, END);
    assert!(matches!(transfer.begin(), TransferStep::Ask(ShardMessage::Land { .. })));
    let grant = LandingGrant { number: 17, key: key(), at: 640 };
    assert_eq!(
        transfer.on_answer(1, Some(&landing(bytes))),
        TransferStep::Write { grant, written: 0 }
    );
    let step = transfer.on_written(2, Ok(()));
    let TransferStep::Ask(ShardMessage::Register { grant: 17, pieces, .. }) = step else {
        panic!("{step:?}");
    };
    assert_eq!(pieces.iter().map(|piece| piece.len).sum::<u64>(), bytes);
    (transfer, bytes)
}

fn failure(step: TransferStep) -> NotSent {
    match step {
        TransferStep::Failed(failure) => failure.end,
        other => panic!("{other:?}"),
    }
}

#[test]
fn pieces_are_the_image() {
    let image = image();
    let mut next = 0;
    for piece in pieces(&image, 0) {
        assert_eq!(piece.at, next);
        let bytes = &image[piece.at as usize..][..piece.len as usize];
        assert_eq!(piece.sum, checksum::hash64(bytes));
        next += piece.len;
    }
    assert_eq!(next, image.len() as u64);
    assert_eq!(pieces(&image, 0).len(), 5);
}

#[test]
fn image_is_landed_written_and_registered() {
    let (mut transfer, bytes) = registering();
    let registered = ShardMessage::Registered { place: place(bytes) };
    let step = transfer.on_answer(3, Some(&registered));
    assert_eq!(step, TransferStep::Registered(place(bytes)));
}

#[test]
fn place_of_another_length_is_not_accepted() {
    let (mut transfer, bytes) = registering();
    let registered = ShardMessage::Registered { place: place(bytes - 1) };
    assert!(failure(transfer.on_answer(3, Some(&registered))).may_be_known);
    // Neither answer is a grant.
    let mut transfer = Transfer::new(order(&image()), 0, PATIENCE, END);
    assert!(failure(transfer.on_answer(1, Some(&landing(bytes - 1)))).may_be_known);
    // A registration is not accepted before the image was written.
    let mut transfer = Transfer::new(order(&image()), 0, PATIENCE, END);
    let registered = ShardMessage::Registered { place: place(bytes) };
    assert!(failure(transfer.on_answer(1, Some(&registered))).may_be_known);
}

#[test]
fn requests_are_repeated_until_the_patience_ends() {
    let (mut transfer, bytes) = registering();
    for busy in [None, Some(&refused(ShardWhy::Busy, 0))] {
        let step = transfer.on_answer(PATIENCE, busy);
        assert!(matches!(step, TransferStep::AskLater(ShardMessage::Register { .. })), "{step:?}");
    }
    // The image was written at 2, and nothing has moved since.
    assert!(failure(transfer.on_answer(PATIENCE + 2, None)).may_be_known);
    let mut transfer = Transfer::new(order(&image()), 0, PATIENCE, END);
    let step = transfer.on_answer(5, Some(&refused(ShardWhy::Busy, 0)));
    assert!(matches!(step, TransferStep::AskLater(ShardMessage::Land { .. })), "{step:?}");
    let end = failure(transfer.on_answer(PATIENCE, Some(&refused(ShardWhy::Busy, 0))));
    assert!(!end.may_be_known, "the node has refused everything");
    assert!(bytes > 0);
}

#[test]
fn transfer_that_always_moves_ends_as_well() {
    let image = image();
    let granted = landing(image.len() as u64);
    let mut transfer = Transfer::new(order(&image), 0, PATIENCE, END);
    transfer.on_answer(1, Some(&granted));
    // Each write ends without an outcome shortly before the patience ends.
    let (mut now_ns, mut tries) = (0, 0);
    loop {
        now_ns += PATIENCE - 1;
        if let TransferStep::Failed(failure) = transfer.on_written(now_ns, Err(None)) {
            assert!(failure.end.may_be_known);
            break;
        }
        tries += 1;
        assert!(tries < 20, "it ends after the time for the image");
        assert!(matches!(transfer.on_answer(now_ns, Some(&granted)), TransferStep::Write { .. }));
    }
    assert!((END..END + PATIENCE).contains(&now_ns), "{now_ns}");
}

#[test]
fn refusal_without_a_grant_leaves_nothing() {
    for (why, end) in [
        (ShardWhy::Full, NotSent { left_bytes: Some(9), ..NotSent::default() }),
        (ShardWhy::TooLarge, NotSent { image_bytes_max: Some(9), ..NotSent::default() }),
        (ShardWhy::NotBegun, NotSent::default()),
        (ShardWhy::Retired, NotSent { may_be_known: true, ..NotSent::default() }),
    ] {
        let mut transfer = Transfer::new(order(&image()), 0, PATIENCE, END);
        assert_eq!(failure(transfer.on_answer(1, Some(&refused(why, 9)))), end, "{why:?}");
    }
    // A request without an answer may have been granted.
    let mut transfer = Transfer::new(order(&image()), 0, PATIENCE, END);
    assert!(matches!(transfer.on_answer(1, None), TransferStep::AskLater(_)));
    assert!(failure(transfer.on_answer(2, Some(&refused(ShardWhy::Full, 9)))).may_be_known);
}

#[test]
fn other_bytes_at_the_node_are_written_again_a_few_times() {
    let (mut transfer, _) = registering();
    for _ in 0..REWRITES_MAX {
        let step = transfer.on_answer(3, Some(&refused(ShardWhy::BadPiece, 0)));
        assert!(matches!(step, TransferStep::Write { written: 0, .. }), "{step:?}");
        assert!(matches!(transfer.on_written(4, Ok(())), TransferStep::Ask(_)));
    }
    assert!(failure(transfer.on_answer(5, Some(&refused(ShardWhy::BadPiece, 0)))).may_be_known);
}

#[test]
fn write_without_an_outcome_asks_for_the_grant_again() {
    let image = image();
    let mut transfer = Transfer::new(order(&image), 0, PATIENCE, END);
    transfer.on_answer(1, Some(&landing(image.len() as u64)));
    let step = transfer.on_written(2, Err(None));
    assert!(matches!(step, TransferStep::AskLater(ShardMessage::Land { .. })), "{step:?}");
    let step = transfer.on_answer(3, Some(&landing(image.len() as u64)));
    assert!(matches!(step, TransferStep::Write { .. }), "{step:?}");
    let revoked = Some(Refusal::new(archipelago_fabric::Reason::Revoked));
    assert!(failure(transfer.on_written(4, Err(revoked))).may_be_known);
}

#[test]
fn records_lie_first_in_the_grant_and_the_rest_after_them() {
    let image = image();
    let records_at = 4320;
    let mut next = 0;
    let all = pieces(&image, records_at);
    for piece in &all {
        // The place in the grant, and the place in the image.
        let expected = (next + image.len() as u64 - records_at) % image.len() as u64;
        assert_eq!(piece.at, expected);
        assert_eq!(piece.sum, checksum::hash64(&image[next as usize..][..piece.len as usize]));
        next += piece.len;
    }
    assert_eq!((next, all.len()), (image.len() as u64, 6));
}

/// A transfer whose first 1000 bytes of records lie in grant 17 of 6,000,000 bytes.
fn after_ahead() -> (Transfer, LandingGrant) {
    let grant = LandingGrant { number: 17, key: key(), at: 640 };
    let ahead = AheadGrant { grant, bytes: 6_000_000, written: 1000 };
    (Transfer::new(order(&image()), 0, PATIENCE, END).after(&ahead), grant)
}

#[test]
fn records_that_were_written_ahead_are_not_written_again() {
    let (mut transfer, grant) = after_ahead();
    let step = transfer.begin();
    assert!(matches!(step, TransferStep::Ask(ShardMessage::Land { bytes: 6_000_000, .. })));
    let step = transfer.on_answer(1, Some(&landing(6_000_000)));
    assert_eq!(step, TransferStep::Write { grant, written: 1000 });
    let step = transfer.on_written(2, Ok(()));
    assert!(matches!(step, TransferStep::Ask(ShardMessage::Register { grant: 17, .. })));
    // The node has found other bytes than those of the image.
    let step = transfer.on_answer(3, Some(&refused(ShardWhy::BadPiece, 0)));
    assert_eq!(step, TransferStep::Write { grant, written: 0 });
}

#[test]
fn another_grant_has_none_of_the_records() {
    let (mut transfer, _) = after_ahead();
    let other = match landing(6_000_000) {
        ShardMessage::Landing { key, at, bytes, credit_bytes, share, .. } => {
            ShardMessage::Landing { grant: 18, key, at, bytes, credit_bytes, share }
        }
        other => other,
    };
    let step = transfer.on_answer(1, Some(&other));
    assert!(matches!(step, TransferStep::Write { written: 0, .. }), "{step:?}");
    assert_eq!(transfer.ahead_bytes(), 0);
    // A refusal for lack of room proves that the first grant has ended.
    for why in [ShardWhy::Full, ShardWhy::TooLarge] {
        let (mut transfer, _) = after_ahead();
        assert!(transfer.stopped().end.may_be_known);
        let step = transfer.on_answer(1, Some(&refused(why, 9)));
        assert!(!failure(step).may_be_known);
        let (mut transfer, _) = after_ahead();
        transfer.on_answer(1, None);
        let step = transfer.on_answer(2, Some(&refused(why, 9)));
        assert!(failure(step).may_be_known, "the first request may arrive late");
    }
}

#[test]
fn grant_that_the_owner_has_lost_track_of_is_used() {
    let bytes = image().len() as u64;
    let has_grant = |bytes| refused(ShardWhy::HasGrant, bytes);
    let mut transfer = Transfer::new(order(&image()), 0, PATIENCE, END);
    let step = transfer.on_answer(1, Some(&has_grant(bytes + 5)));
    let TransferStep::Ask(ShardMessage::Land { bytes: asked, .. }) = step else {
        panic!("{step:?}");
    };
    assert_eq!(asked, bytes + 5);
    let step = transfer.on_answer(2, Some(&landing(bytes + 5)));
    assert!(matches!(step, TransferStep::Write { written: 0, .. }), "{step:?}");
    let step = transfer.on_written(3, Ok(()));
    assert!(matches!(step, TransferStep::Ask(ShardMessage::Register { grant: 17, .. })));
    // A grant that the node does not give again must be released.
    let mut transfer = Transfer::new(order(&image()), 0, PATIENCE, END);
    assert!(failure(transfer.on_answer(1, Some(&has_grant(bytes)))).may_be_known);
    // The records of another grant are written again.
    let (mut transfer, _) = after_ahead();
    let step = transfer.on_answer(1, Some(&has_grant(bytes)));
    assert!(matches!(step, TransferStep::Ask(ShardMessage::Land { .. })), "{step:?}");
    let step = transfer.on_answer(2, Some(&landing(bytes)));
    assert!(matches!(step, TransferStep::Write { written: 0, .. }), "{step:?}");
}

#[test]
fn lost_grant_that_is_too_small_is_given_back() {
    let (image, done) = (image(), ShardMessage::Done { shards: 1, share: NodeShare::default() });
    let bytes = image.len() as u64;
    let asked = |step: TransferStep| match step {
        TransferStep::Ask(ShardMessage::Land { bytes, .. }) => bytes,
        other => panic!("{other:?}"),
    };
    // The transfer has learned the number of the lost grant, and gives it back.
    let returning = || {
        let mut transfer = Transfer::new(order(&image), 0, PATIENCE, END);
        let step = transfer.on_answer(1, Some(&refused(ShardWhy::HasGrant, bytes - 1)));
        assert_eq!(asked(step), bytes - 1);
        assert!(transfer.stopped().end.may_be_known);
        let step = transfer.on_answer(2, Some(&landing(bytes - 1)));
        let give_back = TransferStep::Ask(ShardMessage::GiveBack {
            owner: OwnerStamp::default(),
            shard: order(&image).shard,
            grant: 17,
        });
        assert_eq!(step, give_back);
        assert!(transfer.stopped().end.may_be_known);
        transfer
    };
    let mut transfer = returning();
    assert_eq!(asked(transfer.on_answer(3, Some(&done))), bytes);
    let step = transfer.on_answer(4, Some(&landing(bytes)));
    assert!(matches!(step, TransferStep::Write { written: 0, .. }), "{step:?}");
    let step = transfer.on_written(5, Ok(()));
    assert!(matches!(step, TransferStep::Ask(ShardMessage::Register { grant: 17, .. })));
    // The node has nothing after the grant came back, so the name is not released.
    let mut transfer = returning();
    transfer.on_answer(3, Some(&done));
    assert!(!failure(transfer.on_answer(4, Some(&refused(ShardWhy::Full, 9)))).may_be_known);
    // A request without an answer is repeated, and the node may execute it late.
    let mut transfer = returning();
    let step = transfer.on_answer(3, None);
    assert!(matches!(step, TransferStep::AskLater(ShardMessage::GiveBack { .. })), "{step:?}");
    transfer.on_answer(4, Some(&done));
    assert!(failure(transfer.on_answer(5, Some(&refused(ShardWhy::Full, 9)))).may_be_known);
    // The patience of the transfer bounds these steps.
    let mut transfer = Transfer::new(order(&image), 0, PATIENCE, END);
    let late = refused(ShardWhy::HasGrant, bytes - 1);
    assert!(failure(transfer.on_answer(PATIENCE, Some(&late))).may_be_known);
}

#[test]
fn refusal_after_a_grant_has_ended_leaves_nothing() {
    let bytes = image().len() as u64;
    let new = || Transfer::new(order(&image()), 0, PATIENCE, END);
    for why in [ShardWhy::Full, ShardWhy::TooLarge] {
        let full = refused(why, 9);
        // The node ends the lost grant before the transfer asks for it.
        for lost in [bytes - 1, bytes + 5] {
            let has_grant = refused(ShardWhy::HasGrant, lost);
            let mut transfer = new();
            transfer.on_answer(1, Some(&has_grant));
            assert!(transfer.stopped().end.may_be_known);
            let end = failure(transfer.on_answer(2, Some(&full)));
            assert!(!end.may_be_known, "{why:?}, {lost} bytes");
            // The node may execute a request that got no answer late.
            let mut transfer = new();
            transfer.on_answer(1, None);
            transfer.on_answer(2, Some(&has_grant));
            assert!(failure(transfer.on_answer(3, Some(&full))).may_be_known);
            let mut transfer = new();
            transfer.on_answer(1, Some(&has_grant));
            transfer.on_answer(2, None);
            assert!(failure(transfer.on_answer(3, Some(&full))).may_be_known);
        }
        // The node ends the grant of a transfer whose link went down.
        let mut transfer = new();
        transfer.on_answer(1, Some(&landing(bytes)));
        transfer.on_written(2, Err(None));
        assert!(!failure(transfer.on_answer(3, Some(&full))).may_be_known);
    }
}
