//! COMMAND and its subcommands, which describe the table of commands to clients.

use super::strings::check_reply_size;
use super::{find, help, list as all};
use crate::args::Args;
use crate::command::{Command, flag};
use crate::glob::Pattern;
use crate::refusal::{Handled, Refusal};
use crate::reply::Reply;
use crate::session::Session;

pub(super) fn command(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if args.len() == 1 {
        reply.array(all().len());
        all().iter().for_each(|command| describe(command, reply));
    } else if help::answers(args, "COMMAND", reply) {
    } else if args.is(1, "count") {
        reply.count(all().len());
    } else if args.is(1, "info") {
        info(session, args, reply)?;
    } else if args.is(1, "docs") {
        docs(session, args, reply)?;
    } else if args.is(1, "list") {
        list(args, reply)?;
    } else if args.is(1, "getkeys") {
        get_keys(args, reply)?;
    } else {
        return Err(Refusal::unknown_subcommand(&args.text(1), "command"));
    }
    Ok(())
}

/// The ten elements that COMMAND has of each.
fn describe(command: &Command, reply: &mut Reply) {
    reply.array(10);
    reply.bulk(command.name.as_bytes());
    reply.integer(i64::from(command.arity));
    let named = || flag::NAMES.iter().filter(|(bit, _)| command.has(*bit));
    reply.set(named().count());
    for (_, name) in named() {
        reply.simple(name);
    }
    let keys = command.keys;
    for position in [keys.first, keys.last, keys.step] {
        reply.integer(i64::from(position));
    }
    // Access categories, tips, key specifications, subcommands: none.
    reply.set(0);
    reply.array(0);
    reply.array(0);
    reply.array(0);
}

/// Refuses the reply that begins at `start` if it has become too large. A client may name one
/// command many times.
fn check_size(session: &Session, start: usize, reply: &Reply) -> Handled {
    check_reply_size(session, reply.len() - start, "ask for fewer commands at once")
}

fn info(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let start = reply.len();
    if args.len() == 2 {
        reply.array(all().len());
        all().iter().for_each(|command| describe(command, reply));
        return Ok(());
    }
    reply.array(args.len() - 2);
    for name in args.from(2) {
        match find(name) {
            Some(command) => describe(command, reply),
            None => reply.null(),
        }
        check_size(session, start, reply)?;
    }
    Ok(())
}

fn docs(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let start = reply.len();
    let asked: Vec<&Command> = match args.len() {
        2 => all().to_vec(),
        _ => args.from(2).filter_map(find).collect(),
    };
    reply.map(asked.len());
    for command in asked {
        reply.bulk(command.name.as_bytes());
        let facts = [("summary", command.summary), ("since", "0.1.0"), ("group", command.group)];
        reply.map(facts.len());
        for (key, value) in facts {
            reply.bulk(key.as_bytes());
            reply.bulk(value.as_bytes());
        }
        check_size(session, start, reply)?;
    }
    Ok(())
}

/// `COMMAND LIST [FILTERBY PATTERN pattern]`; there are no modules and no access categories.
fn list(args: Args<'_>, reply: &mut Reply) -> Handled {
    let shown: Vec<&Command> = match args.len() {
        2 => all().to_vec(),
        5 if args.is(2, "filterby") && args.is(3, "pattern") => {
            let pattern = args.get(4).to_ascii_lowercase();
            let pattern = Pattern::new(&pattern)?;
            let fits = |command: &&Command| pattern.matches(command.name.as_bytes());
            all().iter().copied().filter(fits).collect()
        }
        5 if args.is(2, "filterby") && (args.is(3, "module") || args.is(3, "aclcat")) => Vec::new(),
        _ => return Err(Refusal::SYNTAX),
    };
    reply.array(shown.len());
    for command in shown {
        reply.bulk(command.name.as_bytes());
    }
    Ok(())
}

/// `COMMAND GETKEYS command…`: which of its arguments are keys.
fn get_keys(args: Args<'_>, reply: &mut Reply) -> Handled {
    let command = find(args.get(2))
        .filter(|command| command.takes(args.len() - 2))
        .ok_or(Refusal::fixed("ERR Invalid command specified"))?;
    if command.keys.first == 0 {
        return Err(Refusal::fixed("ERR The command has no key arguments"));
    }
    // The described command begins at argument 2 of this one.
    let positions: Vec<usize> = command.keys.of(args.len() - 2).collect();
    if positions.is_empty() {
        return Err(Refusal::fixed("ERR Invalid number of arguments specified for command"));
    }
    reply.array(positions.len());
    for position in positions {
        reply.bulk(args.get(position + 2));
    }
    Ok(())
}
