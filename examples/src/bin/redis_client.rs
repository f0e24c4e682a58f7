//! Speaks the Redis protocol with a running server. Any Redis client library does the same.
//!
//! Run it: `cargo run -p archipelago-cli -- serve` in one terminal, and in another
//! `cargo run -p archipelago-examples --bin redis_client -- 127.0.0.1:6379`

use std::error::Error;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

/// Sends one command and reads its reply as text.
fn call(server: &mut BufReader<TcpStream>, command: &[&str]) -> Result<String, Box<dyn Error>> {
    let mut request = format!("*{}\r\n", command.len());
    for word in command {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    server.get_mut().write_all(request.as_bytes())?;
    reply(server)
}

/// Reads a reply: a line, an error, a number, a string of a stated length, or an array of replies.
fn reply(server: &mut BufReader<TcpStream>) -> Result<String, Box<dyn Error>> {
    let mut line = String::new();
    server.read_line(&mut line)?;
    let (kind, rest) = (line.get(..1).ok_or("no reply")?, line[1..].trim_end());
    match kind {
        "+" | ":" => Ok(rest.to_owned()),
        "$" if rest == "-1" => Ok("(nil)".to_owned()),
        "$" => {
            let mut bytes = vec![0; rest.parse::<usize>()? + 2];
            server.read_exact(&mut bytes)?;
            bytes.truncate(bytes.len() - 2);
            Ok(String::from_utf8(bytes)?)
        }
        "*" => {
            let replies = (0..rest.parse::<usize>()?).map(|_| reply(server));
            Ok(replies.collect::<Result<Vec<_>, _>>()?.join(" "))
        }
        _ => Err(rest.into()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:6379".to_owned());
    let mut server = BufReader::new(TcpStream::connect(&address)?);
    for command in [
        &["SET", "reef:1", "coral", "EX", "60"][..],
        &["SET", "reef:2", "sponge"],
        &["GET", "reef:1"],
        &["TTL", "reef:1"],
        &["INCRBY", "visits", "5"],
        // RANGE is Archipelago's own command: keys are ordered, so a client can read a range.
        &["RANGE", "[reef:", "(reef;", "LIMIT", "10"],
        &["DEL", "reef:1", "reef:2", "visits"],
    ] {
        println!("{}: {}", command.join(" "), call(&mut server, command)?);
    }
    Ok(())
}
