use super::*;
use proptest::prelude::*;

fn small() -> Limits {
    Limits { args_max: 8, bulk_bytes_max: 64, inline_bytes_max: 64, request_bytes_max: 256 }
}

/// All commands of `input`, which arrives `step` bytes at a time, or the error.
fn parse(limits: Limits, input: &[u8], step: usize) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
    let mut parser = Parser::new(limits);
    let (mut commands, mut buffer, mut start) = (Vec::new(), Vec::<u8>::new(), 0);
    for piece in input.chunks(step.max(1)) {
        buffer.extend_from_slice(piece);
        while start < buffer.len() {
            match parser.advance(&mut buffer[start..])? {
                Progress::Incomplete { wanted } => {
                    assert!(wanted > 0);
                    break;
                }
                Progress::Complete { len } => {
                    let word = |&(a, b): &Span| {
                        assert!(a <= b && b as usize <= len);
                        buffer[start + a as usize..start + b as usize].to_vec()
                    };
                    let words: Vec<Vec<u8>> = parser.spans().iter().map(word).collect();
                    if !words.is_empty() {
                        commands.push(words);
                    }
                    start += len;
                }
            }
        }
        // The connection does the same between two reads.
        buffer.drain(..start);
        start = 0;
    }
    Ok(commands)
}

fn words(input: &[u8]) -> Vec<Vec<Vec<u8>>> {
    parse(small(), input, input.len()).unwrap()
}

fn error(input: &[u8]) -> String {
    let all = parse(small(), input, input.len()).expect_err("malformed").to_string();
    let pieces = parse(small(), input, 1).expect_err("malformed in pieces").to_string();
    assert_eq!(all, pieces);
    all
}

#[test]
fn arrays_and_inline_commands_are_parsed() {
    let input =
        b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n\r\n*0\r\n*-1\r\nPING\r\n  set  a b \n*1\r\n$0\r\n\r\n";
    let expected: Vec<Vec<&[u8]>> =
        vec![vec![b"GET", b"k"], vec![b"PING"], vec![b"set", b"a", b"b"], vec![b""]];
    for step in [1, 2, 3, 7, 1000] {
        assert_eq!(parse(small(), input, step).unwrap(), expected, "{step}");
    }
}

#[test]
fn inline_quotes() {
    assert_eq!(words(b"set k \"a b\\n\\x41\\\"\"\r\n")[0][2], b"a b\nA\"");
    assert_eq!(words(b"set k 'it\\'s \\n' z\r\n")[0], [&b"set"[..], b"k", b"it's \\n", b"z"]);
    assert_eq!(words(b"set k \"\"\r\n")[0][2], b"");
    for bad in ["set \"k\r\n", "set 'k\r\n", "set \"k\"x\r\n"] {
        assert_eq!(error(bad.as_bytes()), "Protocol error: unbalanced quotes in request");
    }
}

#[test]
fn malformed_requests_are_named() {
    for (bad, what) in [
        ("*x\r\n", "invalid multibulk length"),
        ("*9\r\n", "invalid multibulk length"),
        ("*99999999999999999999\r\n", "invalid multibulk length"),
        ("*1\r\n+OK\r\n", "expected '$', got '+'"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$65\r\n", "invalid bulk length"),
        ("*1\r\n$1 \r\n", "invalid bulk length"),
        ("*1\r\n$1\r\nabc", "expected CRLF after an argument"),
        ("*1\n", "expected CRLF"),
        ("*111111111111111111111111111111111", "too big mbulk count string"),
        ("*1\r\n$11111111111111111111111111111111", "too big bulk count string"),
    ] {
        assert_eq!(error(bad.as_bytes()), format!("Protocol error: {what}"), "{bad:?}");
    }
    assert_eq!(error(&[b'a'; 70]), "Protocol error: too big inline request");
    let many = format!("*6\r\n{}", format!("$60\r\n{}\r\n", "x".repeat(60)).repeat(6));
    assert_eq!(error(many.as_bytes()), "Protocol error: too big request");
}

#[test]
fn http_is_refused_at_its_request_line_or_host() {
    for line in [
        "POST / HTTP/1.1",
        "GET /FLUSHALL HTTP/1.0",
        "PROPFIND /a HTTP/1.1",
        "PRI * HTTP/2.0",
        "set reef http/1.1",
        "GET /with a blank HTTP/1.1",
        "POST /\"quoted HTTP/1.1",
        "Host: 127.0.0.1:6379",
        "host:localhost",
        "HOST:",
    ] {
        let what = "Protocol error: this server speaks the Redis protocol, not HTTP";
        assert_eq!(error(format!("{line}\r\n").as_bytes()), what, "{line}");
        assert_eq!(error(format!("PING\r\n{line}\n").as_bytes()), what, "{line}");
    }
    for line in ["ECHO HTTP/1.1", "HTTP/1.1", "SET k HTTP", "SET k xHTTP/1.1", "hostname: x"] {
        assert_eq!(words(format!("{line}\r\n").as_bytes()).len(), 1, "{line}");
    }
    assert_eq!(words(b"*3\r\n$3\r\nSET\r\n$1\r\n/\r\n$8\r\nHTTP/1.1\r\n")[0].len(), 3);
}

#[test]
fn an_announced_length_allocates_nothing() {
    let mut parser = Parser::new(Limits::default());
    let mut input = b"*1048576\r\n$536870912\r\n".to_vec();
    let progress = parser.advance(&mut input).unwrap();
    assert_eq!(progress, Progress::Incomplete { wanted: (512 << 20) + 2 });
    assert_eq!(parser.memory_bytes(), 0);
}

fn encode(command: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", command.len()).into_bytes();
    for word in command {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

proptest! {
    #[test]
    fn encoded_commands_are_parsed_in_any_pieces(
        commands in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6), 0..6),
        step in 1usize..40,
    ) {
        let input: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        prop_assert_eq!(parse(small(), &input, step).unwrap(), commands);
    }

    #[test]
    fn any_bytes_in_any_pieces_give_the_same(
        input in prop::collection::vec(
            prop::sample::select(b"*$:-0123456789\r\n\"'\\x GETset\xff\0".to_vec()), 0..120),
        step in 1usize..20,
    ) {
        let whole = parse(small(), &input, input.len());
        let pieces = parse(small(), &input, step);
        prop_assert_eq!(whole.is_ok(), pieces.is_ok());
        if let (Ok(whole), Ok(pieces)) = (whole, pieces) {
            prop_assert_eq!(whole, pieces);
        }
    }
}

/// The corpus of the fuzz target, and thousands of damaged copies of each of its files.
#[test]
fn corpus_and_its_mutations_cause_no_panic() {
    let corpus: [&[u8]; 6] = [
        include_bytes!("../../fuzz/corpus/request/array"),
        include_bytes!("../../fuzz/corpus/request/inline"),
        include_bytes!("../../fuzz/corpus/request/pipeline"),
        include_bytes!("../../fuzz/corpus/request/quotes"),
        include_bytes!("../../fuzz/corpus/request/huge-lengths"),
        include_bytes!("../../fuzz/corpus/request/negative"),
    ];
    let mut random = fastrand::Rng::with_seed(0x5eed);
    for sample in corpus {
        for _ in 0..3000 {
            let mut input = sample.to_vec();
            for _ in 0..random.usize(1..4) {
                match random.u8(..3) {
                    0 if !input.is_empty() => {
                        let at = random.usize(..input.len());
                        input[at] ^= 1 << random.u8(..8);
                    }
                    1 => input.truncate(random.usize(..=input.len())),
                    _ => input.insert(random.usize(..=input.len()), random.u8(..)),
                }
            }
            let limits = if random.bool() { small() } else { Limits::default() };
            // Both answers are right. Only a panic or an endless loop is wrong.
            let _ = parse(limits, &input, random.usize(1..30));
        }
    }
}
