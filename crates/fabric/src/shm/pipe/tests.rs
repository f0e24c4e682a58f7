use super::*;

fn pair() -> (Pipe, Pipe) {
    let memory = Arc::new(Mapping::create("test-pipe", PIPE_BYTES).expect("memory"));
    let clock = archipelago_base::clock::SystemClock::shared();
    (Pipe::new(Arc::clone(&memory), Side::Client, &clock), Pipe::new(memory, Side::Node, &clock))
}

fn kind(result: io::Result<usize>) -> Result<usize, io::ErrorKind> {
    result.map_err(|error| error.kind())
}

#[test]
fn bytes_arrive_in_order_across_the_wrap() {
    let (client, node) = pair();
    let (mut sent, mut got) = (0_u64, 0_u64);
    let mut rng = archipelago_base::random::Rng::with_seed(7);
    let mut buffer = vec![0; 70_000];
    while got < 3 * RING_BYTES as u64 {
        let want = rng.usize(1..buffer.len());
        let bytes: Vec<u8> = (0..want).map(|at| (sent + at as u64) as u8).collect();
        if let Ok(count) = client.try_write(&bytes) {
            sent += count as u64;
        }
        let room = rng.usize(1..buffer.len());
        if let Ok(count) = node.try_read(&mut buffer[..room]) {
            assert!((0..count).all(|at| buffer[at] == (got + at as u64) as u8));
            got += count as u64;
        }
    }
}

#[test]
fn full_ring_blocks_and_end_is_read_after_the_bytes() {
    let (client, node) = pair();
    assert_eq!(kind(client.try_write(&vec![1; RING_BYTES + 9])), Ok(RING_BYTES));
    assert_eq!(kind(client.try_write(&[1])), Err(io::ErrorKind::WouldBlock));
    client.shut();
    assert_eq!(kind(client.try_write(&[1])), Err(io::ErrorKind::BrokenPipe));
    let mut buffer = vec![0; RING_BYTES];
    assert_eq!(kind(node.try_read(&mut buffer)), Ok(RING_BYTES));
    assert_eq!(kind(node.try_read(&mut buffer)), Ok(0));
}

#[test]
fn impossible_counters_break_the_pipe() {
    for lie in [RING_BYTES as u64 + 1, u64::MAX, 1 << 63] {
        let (client, node) = pair();
        // The first lie claims more bytes than the ring holds, the second more reads than writes.
        client.end.words.0.words()[0].store(lie, Ordering::SeqCst);
        assert_eq!(kind(node.try_read(&mut [0; 8])), Err(io::ErrorKind::InvalidData), "{lie}");
        client.end.words.0.words()[24].store(lie >> 1, Ordering::SeqCst);
        assert_eq!(kind(node.try_write(&[0; 8])), Err(io::ErrorKind::InvalidData), "{lie}");
    }
}

#[test]
fn spinning_stops_after_failures_and_resumes() {
    let mut patience = Patience::NEW;
    let mut long = 0;
    for _ in 0..MISSES_PAUSE * 10 {
        patience = patience.after(Some(SHORT_SLEEP_NS - 1));
        long += u32::from(patience.spins > SPINS_MIN);
    }
    assert!((40..=90).contains(&long), "{long} of 640 waits spin for long in vain");
    let found = patience.after(None);
    assert_eq!((found.after(None).spins, found.misses), (4 * patience.spins, 0));
    let settled = (0..MISSES_TRIED).fold(Patience::NEW, |patience, _| patience.after(None));
    assert_eq!(settled.spins, SPINS_MAX);
    assert_eq!(settled.after(Some(u64::MAX)).spins, SPINS_MIN, "nobody calls");
}

#[test]
fn sleeping_side_is_woken_by_bytes_nudge_and_end() {
    let (client, node) = pair();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut got = Vec::new();
            let mut buffer = [0; 16];
            loop {
                node.wait(true, false, None);
                match node.try_read(&mut buffer) {
                    Ok(0) => return got,
                    Ok(count) => got.extend_from_slice(&buffer[..count]),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
        });
        for round in 0..200 {
            client.try_write(&[round]).expect("room");
            node.nudge();
        }
        client.shut();
        assert_eq!(waiter.join().expect("no panic").len(), 200);
    });
}

/// Lengths of the messages of `seed`. Some are exactly half a ring, and some are longer than one.
fn lengths(seed: u64) -> impl Iterator<Item = usize> {
    let mut rng = archipelago_base::random::Rng::with_seed(seed);
    (0..400).map(move |_| match rng.u8(0..8) {
        0 => RING_BYTES / 2,
        1 => rng.usize(1..RING_BYTES + 99),
        _ => rng.usize(1..300),
    })
}

/// Sends all messages, and waits while there is no room.
fn pour(end: &Pipe, seed: u64) {
    let mut sent = 0_u64;
    for len in lengths(seed) {
        let bytes: Vec<u8> = (0..len).map(|at| (sent + at as u64) as u8).collect();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match end.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    end.wait(false, true, None);
                }
            }
        }
        sent += len as u64;
    }
}

/// Reads until `end` bytes have arrived, in pieces whose lengths depend on `seed`.
fn drain(pipe: &Pipe, seed: u64, end: u64) {
    let mut rng = archipelago_base::random::Rng::with_seed(seed);
    let mut buffer = vec![0; RING_BYTES];
    let mut got = 0_u64;
    while got < end {
        let room = if rng.bool() { RING_BYTES / 2 } else { rng.usize(1..buffer.len()) };
        match pipe.try_read(&mut buffer[..room]) {
            Ok(count) => {
                assert!((0..count).all(|at| buffer[at] == (got + at as u64) as u8), "{got}");
                got += count as u64;
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                pipe.wait(true, false, None);
            }
        }
    }
}

/// Checks the claims of the model on real memory with real sleeps. There is no timeout, so a lost
/// wake-up hangs the test.
#[test]
fn sides_that_sleep_for_bytes_and_room_lose_no_wake_up() {
    for seed in 0..4 {
        let (client, node) = pair();
        let length = lengths(seed).map(|len| len as u64).sum();
        std::thread::scope(|scope| {
            let echo = scope.spawn(|| {
                drain(&node, seed + 100, length);
                pour(&node, seed);
            });
            pour(&client, seed);
            drain(&client, seed + 200, length);
            echo.join().expect("no panic");
        });
    }
}
