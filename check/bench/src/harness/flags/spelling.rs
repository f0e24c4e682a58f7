//! Translates the spellings of gflags into those of clap.

use std::ffi::OsString;

use clap::CommandFactory;

use super::groups::CompareFlags;
use super::known::is_without_meaning;
use super::separation::peer_only_reason;

/// Arguments as clap wants them, and the flags that were left out because they mean nothing here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spelled {
    /// Arguments for clap, without the ignored ones.
    pub args: Vec<String>,
    /// Names of flags that have no effect on Archipelago.
    pub ignored: Vec<String>,
}

/// Turns dashes in a flag's name into underscores, for flags that only clap reads: `--skip-plain`
/// becomes `--skip_plain`.
pub fn with_underscores(arg: &OsString) -> OsString {
    let Some(flag) = arg.to_str().and_then(|arg| arg.strip_prefix("--")) else {
        return arg.clone();
    };
    match flag.split_once('=') {
        Some((name, value)) => format!("--{}={value}", name.replace('-', "_")).into(),
        None => format!("--{}", flag.replace('-', "_")).into(),
    }
}

/// `args` without the flags that only db_bench understands, and these flags with their values.
pub(super) fn without_peer_only(args: &[OsString]) -> (Vec<OsString>, Vec<String>) {
    let (mut shared, mut for_peer) = (Vec::new(), Vec::new());
    let mut args = args.iter().peekable();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        let bare = text.trim_start_matches('-');
        let (name, value) = match bare.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (bare, None),
        };
        let name = name.replace('-', "_");
        if bare.len() == text.len() || peer_only_reason(&name).is_none() {
            shared.push(arg.clone());
            continue;
        }
        let following = || args.next_if(|next| is_value(next))?.to_str().map(str::to_owned);
        match value.or_else(following) {
            Some(value) => for_peer.push(format!("--{name}={value}")),
            None => for_peer.push(format!("--{name}")),
        }
    }
    (shared, for_peer)
}

/// One dash becomes two, `--noflag` becomes `--flag=false`, and flags without effect are removed.
/// Dashes in a name count as underscores.
pub(super) fn spell(args: &[OsString]) -> Result<Spelled, String> {
    let command = CompareFlags::command();
    let is_flag = |name: &str| command.get_arguments().any(|arg| arg.get_long() == Some(name));
    let is_boolean = |name: &str| {
        let found = command.get_arguments().find(|arg| arg.get_long() == Some(name));
        found.is_some_and(|arg| arg.is_require_equals_set())
    };
    let mut spelled = Spelled::default();
    let mut args = args.iter().peekable();
    while let Some(arg) = args.next() {
        let arg = arg
            .to_str()
            .ok_or_else(|| format!("the argument {} is not valid UTF-8", arg.display()))?;
        let bare = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'));
        let Some(bare) = bare.filter(|bare| bare.starts_with(|c: char| c.is_ascii_alphabetic()))
        else {
            spelled.args.push(arg.to_owned());
            continue;
        };
        let (name, value) = match bare.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (bare, None),
        };
        let name = name.replace('-', "_");
        let negated = name.strip_prefix("no").filter(|name| value.is_none() && is_boolean(name));
        if let Some(negated) = negated {
            spelled.args.push(format!("--{negated}=false"));
        } else if is_without_meaning(&name) || ignorable_negation(&name) {
            spelled.ignored.push(name);
            let takes_next = value.is_none() && args.peek().is_some_and(|next| is_value(next));
            if takes_next {
                args.next();
            }
        } else if arg == "-h" || !is_flag(&name) {
            spelled.args.push(arg.to_owned());
        } else if let Some(value) = value {
            spelled.args.push(format!("--{name}={value}"));
        } else {
            spelled.args.push(format!("--{name}"));
        }
    }
    Ok(spelled)
}

fn ignorable_negation(name: &str) -> bool {
    name.strip_prefix("no").is_some_and(is_without_meaning)
}

/// Whether an argument is the value of the flag before it.
fn is_value(arg: &OsString) -> bool {
    let text = arg.to_string_lossy();
    let unsigned = text.strip_prefix('-').unwrap_or(&text);
    !text.starts_with('-') || unsigned.starts_with(|c: char| c.is_ascii_digit())
}
