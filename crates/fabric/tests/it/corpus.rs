//! Replays the inputs of the fuzz targets: every decoder answers every input.
//!
//! The name of an input of `body` and `ofi` states its expected result. The decoder of the kind
//! KIND reads `good_KIND`, and encodes the same bytes again. It refuses `KIND_` with the name of a
//! fault.

use archipelago_fabric::wire::{self, WireAction, ofi};
use archipelago_fabric::{Attached, BULK_BYTES_MAX, Batch, Outcome, Refusal, Secret};

const REGION: Attached = Attached::new(0, 0);

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&dir).unwrap();
    let inputs: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            #[expect(clippy::disallowed_methods, reason = "the corpus lies in the source tree")]
            let bytes = std::fs::read(&path).unwrap();
            (path.file_name().unwrap().to_string_lossy().into_owned(), bytes)
        })
        .collect();
    assert!(!inputs.is_empty(), "{} is empty", dir.display());
    inputs
}

/// A decoder, and the encoder that reverses it.
struct Codec {
    kind: &'static str,
    /// Whether the last field takes all remaining bytes, so that shorter or longer input is valid.
    open: bool,
    /// Decodes and encodes again; `None` if the input is refused.
    again: fn(&[u8]) -> Option<Vec<u8>>,
}

const BODIES: [Codec; 11] = [
    Codec {
        kind: "hello",
        open: false,
        again: |body| Some(written(wire::Hello::decode(body).ok()?, |it, out| it.encode(out))),
    },
    Codec {
        kind: "welcome",
        open: false,
        again: |body| Some(written(wire::Welcome::decode(body).ok()?, |it, out| it.encode(out))),
    },
    Codec {
        kind: "challenge",
        open: false,
        again: |body| Some(written(wire::Challenge::decode(body).ok()?, |it, out| it.encode(out))),
    },
    Codec {
        kind: "proof",
        open: false,
        again: |body| Some(written(wire::Proof::decode(body).ok()?, |it, out| it.encode(out))),
    },
    Codec { kind: "goodbye", open: true, again: goodbye_again },
    Codec {
        kind: "key",
        open: false,
        again: |body| Some(written(wire::decode_key(body).ok()?, |it, out| it.encode(out))),
    },
    Codec {
        kind: "opened",
        open: false,
        again: |body| {
            Some(written(wire::Opened::decode(body).ok()?, |it, out| {
                wire::Opened::encode(&it, out);
            }))
        },
    },
    Codec { kind: "batch", open: false, again: batch_again },
    Codec { kind: "done", open: false, again: done_again },
    Codec {
        kind: "request",
        open: true,
        again: |body| Some(written(wire::Ask::decode(body).ok()?, |it, out| it.encode(out))),
    },
    Codec {
        kind: "answer",
        open: true,
        again: |body| {
            let answer = wire::decode_answer(body, BULK_BYTES_MAX).ok()?;
            Some(written(answer, |it, out| wire::put_answer(out, &it)))
        },
    },
];

const OFI: [Codec; 3] = [
    Codec {
        kind: "endpoints",
        open: false,
        again: |body| Some(written(ofi::Endpoints::decode(body).ok()?, |it, out| it.encode(out))),
    },
    Codec {
        kind: "opened",
        open: false,
        again: |body| {
            let opened = ofi::OpenedOnCard::decode(body).ok()?;
            Some(written(opened, |it, out| ofi::OpenedOnCard::encode(&it, out)))
        },
    },
    Codec {
        kind: "message",
        open: false,
        again: |message| {
            let (header, bytes) = message.split_first_chunk()?;
            let header = ofi::Header::decode(header, message.len() as u64)?;
            assert_eq!(header.bytes as usize, bytes.len());
            Some([&header.encode()[..], bytes].concat())
        },
    },
];

fn written<T>(value: T, write: impl Fn(T, &mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(value, &mut out);
    out
}

fn put_refusal(out: &mut Vec<u8>, refusal: Refusal) {
    out.push(refusal.reason.code());
    out.extend(refusal.limit.to_le_bytes());
}

fn goodbye_again(body: &[u8]) -> Option<Vec<u8>> {
    let (refusal, text) = wire::decode_goodbye(body).ok()?;
    let mut out = written(refusal, |it, out| put_refusal(out, it));
    out.extend(text);
    Some(out)
}

fn batch_again(body: &[u8]) -> Option<Vec<u8>> {
    let mut ops = Vec::new();
    wire::decode_ops(body, &mut ops).ok()?;
    let (mut batch, mut keys) = (Batch::new(), Vec::new());
    for op in ops {
        match op.action {
            WireAction::Read(len) => batch.read(REGION, op.offset, len),
            WireAction::Write(bytes) => batch.write(REGION, op.offset, bytes),
            WireAction::CompareSwap(expect, new) => {
                batch.compare_swap(REGION, op.offset, expect, new)
            }
            WireAction::FetchAdd(add) => batch.fetch_add(REGION, op.offset, add),
        };
        keys.push((op.region, op.tag));
    }
    let mut out = Vec::new();
    wire::encode_ops(&mut out, &mut batch, &keys);
    Some(out)
}

/// Decodes outcomes of a READ of 8 bytes, a WRITE, a compare-and-swap and a fetch-and-add.
fn done_again(body: &[u8]) -> Option<Vec<u8>> {
    let mut batch = Batch::new();
    batch.read(REGION, 64, 8);
    batch.write(REGION, 72, b"coral");
    batch.compare_swap(REGION, 8, 1, 2);
    batch.fetch_add(REGION, 16, 3);
    batch.begin().unwrap();
    wire::decode_done(body, &mut batch).ok()?;
    let mut out = Vec::new();
    for index in 0..batch.len() {
        match batch.outcome(index) {
            Outcome::Refused(refusal) => {
                put_refusal(&mut out, refusal);
                break;
            }
            Outcome::Read => {
                out.push(0);
                out.extend(8_u32.to_le_bytes());
                out.extend(batch.data(index));
            }
            Outcome::Visible => out.push(0),
            Outcome::Word(word) => {
                out.push(0);
                out.extend(word.to_le_bytes());
            }
            Outcome::Pending => panic!("operation {index} has no outcome"),
        }
    }
    Some(out)
}

/// Whether `name` is `kind`, or begins with it as a word.
fn is_of(name: &str, kind: &str) -> bool {
    name.strip_prefix(kind).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

fn replay(target: &str, codecs: &[Codec]) {
    let inputs = corpus(target);
    for codec in codecs {
        let kind = codec.kind;
        let (mut good, mut bad) = (0, 0);
        for (name, bytes) in &inputs {
            let again = (codec.again)(bytes);
            if name.strip_prefix("good_").is_some_and(|name| is_of(name, kind)) {
                good += 1;
                assert_eq!(again.as_ref(), Some(bytes), "{target}/{name}");
                if !codec.open {
                    refuses_every_other_length(codec, name, bytes);
                }
            } else if is_of(name, kind) {
                bad += 1;
                assert_eq!(again, None, "{target}/{name}");
            }
        }
        assert!(good > 0 && bad > 0, "{target}: {good} good inputs and {bad} bad ones of {kind}");
    }
    for (name, _) in &inputs {
        let plain = name.strip_prefix("good_").unwrap_or(name);
        assert!(
            codecs.iter().any(|codec| is_of(plain, codec.kind)),
            "{target}/{name} is of no kind"
        );
    }
}

fn refuses_every_other_length(codec: &Codec, name: &str, bytes: &[u8]) {
    for len in 0..bytes.len() {
        assert_eq!((codec.again)(&bytes[..len]), None, "{name} cut to {len}");
    }
    assert_eq!((codec.again)(&[bytes, &[0]].concat()), None, "{name} and a byte");
}

#[test]
fn frames_are_decoded_or_refused() {
    for (name, bytes) in corpus("frame") {
        let read = wire::frame_at(&bytes);
        assert_eq!(matches!(read, Ok(Some(_))), name.starts_with("good"), "{name}: {read:?}");
    }
}

#[test]
fn bodies_are_decoded_or_refused() {
    replay("body", &BODIES);
}

#[test]
fn secrets_are_read_or_refused() {
    for (name, bytes) in corpus("secret") {
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(Secret::parse(&text).is_some(), name.starts_with("good"), "{name}");
    }
}

#[test]
fn messages_of_ofi_are_decoded_or_refused() {
    replay("ofi", &OFI);
}
