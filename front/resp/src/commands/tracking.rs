//! CLIENT TRACKING, CACHING and TRACKINGINFO, with which a client chooses the keys whose changes it
//! receives. [`crate::tracking`] implements the tracking.
//!
//! Errors have the texts of Redis. There is no pub/sub, so only connections of RESP3 can track
//! keys, and REDIRECT is refused.

use crate::args::Args;
use crate::invalidations::TrackingMode;
use crate::refusal::{Handled, Refusal};
use crate::reply::{Reply, Version};
use crate::session::Session;
use crate::store::KEY_BYTES_MAX;

/// Highest number of prefixes of one client.
const PREFIXES_MAX: usize = 1024;

/// Highest number of bytes of all prefixes of one client. The tracking table cannot evict prefixes.
const PREFIXES_BYTES_MAX: usize = 128 << 10;

/// Options of CLIENT TRACKING.
struct TrackingOptions<'a> {
    mode: TrackingMode,
    prefixes: Vec<&'a [u8]>,
}

impl<'a> TrackingOptions<'a> {
    fn parse(args: &Args<'a>) -> Result<Self, Refusal> {
        let (mut mode, mut prefixes) = (TrackingMode::ON, Vec::new());
        let mut at = 3;
        while at < args.len() {
            if args.is(at, "redirect") && at + 1 < args.len() {
                return Err(Refusal::fixed(
                    "ERR REDIRECT is not supported, because this server has no pub/sub: with HELLO 3 \
                     a connection gets its invalidations itself",
                ));
            } else if args.is(at, "bcast") {
                mode = mode.with(TrackingMode::BCAST);
            } else if args.is(at, "optin") {
                mode = mode.with(TrackingMode::OPTIN);
            } else if args.is(at, "optout") {
                mode = mode.with(TrackingMode::OPTOUT);
            } else if args.is(at, "noloop") {
                mode = mode.with(TrackingMode::NOLOOP);
            } else if args.is(at, "prefix") && at + 1 < args.len() {
                prefixes.push(args.get(at + 1));
                at += 1;
            } else {
                return Err(Refusal::SYNTAX);
            }
            at += 1;
        }
        Ok(Self { mode, prefixes })
    }

    /// Refuses options that contradict each other, or the mode that the client has.
    fn check(&self, old: TrackingMode, old_prefixes: &[Box<[u8]>]) -> Handled {
        let has = |flag| self.mode.has(flag);
        let is_broadcast = has(TrackingMode::BCAST);
        let (opts_in, opts_out) = (has(TrackingMode::OPTIN), has(TrackingMode::OPTOUT));
        if !is_broadcast && !self.prefixes.is_empty() {
            return Err(Refusal::fixed("ERR PREFIX option requires BCAST mode to be enabled"));
        }
        if old.is_on() && old.has(TrackingMode::BCAST) != is_broadcast {
            return Err(Refusal::fixed(
                "ERR You can't switch BCAST mode on/off before disabling tracking for this client, \
                 and then re-enabling it with a different mode.",
            ));
        }
        if is_broadcast && (opts_in || opts_out) {
            return Err(Refusal::fixed("ERR OPTIN and OPTOUT are not compatible with BCAST"));
        }
        if opts_in && opts_out {
            return Err(Refusal::fixed("ERR You can't specify both OPTIN mode and OPTOUT mode"));
        }
        if opts_in && old.has(TrackingMode::OPTOUT) || opts_out && old.has(TrackingMode::OPTIN) {
            return Err(Refusal::fixed(
                "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, \
                 and then re-enabling it with a different mode.",
            ));
        }
        self.check_prefixes(old_prefixes)
    }

    fn check_prefixes(&self, old: &[Box<[u8]>]) -> Handled {
        if old.len() + self.prefixes.len() > PREFIXES_MAX {
            return Err(Refusal::said(format!(
                "ERR a client can track at most {PREFIXES_MAX} prefixes"
            )));
        }
        if let Some(longest) = self.prefixes.iter().map(|prefix| prefix.len()).max()
            && longest > KEY_BYTES_MAX
        {
            return Err(Refusal::said(format!(
                "ERR a prefix of {longest} bytes is longer than any key: at most {KEY_BYTES_MAX}"
            )));
        }
        let of_old: usize = old.iter().map(|prefix| prefix.len()).sum();
        let of_new: usize = self.prefixes.iter().map(|prefix| prefix.len()).sum();
        if of_old + of_new > PREFIXES_BYTES_MAX {
            return Err(Refusal::said(format!(
                "ERR the prefixes of a client can have at most {PREFIXES_BYTES_MAX} bytes together"
            )));
        }
        let overlap = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
        let refused = |prefix: &[u8], what: &str, other: &[u8]| {
            let (prefix, other) = (String::from_utf8_lossy(prefix), String::from_utf8_lossy(other));
            Err(Refusal::said(format!(
                "ERR Prefix '{prefix}' overlaps with {what} prefix '{other}'. Prefixes for a single \
                 client must not overlap."
            )))
        };
        for (nth, prefix) in self.prefixes.iter().enumerate() {
            if let Some(other) = old.iter().find(|other| overlap(prefix, other)) {
                return refused(prefix, "an existing", other);
            }
            if let Some(other) =
                self.prefixes[nth + 1..].iter().find(|other| overlap(prefix, other))
            {
                return refused(prefix, "another provided", other);
            }
        }
        Ok(())
    }
}

/// `CLIENT TRACKING ON|OFF [PREFIX prefix…] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]`.
pub(super) fn tracking(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    if session.is_inside() {
        // ON would wait for the stripes that EXEC holds. An EXEC that fails must change nothing.
        return Err(Refusal::fixed(
            "ERR CLIENT TRACKING is not possible inside a transaction: send it before MULTI",
        ));
    }
    let options = TrackingOptions::parse(&args)?;
    if args.is(2, "off") {
        session.end_tracking();
        reply.ok();
        return Ok(());
    }
    if !args.is(2, "on") {
        return Err(Refusal::SYNTAX);
    }
    if reply.version() == Version::Resp2 {
        return Err(Refusal::fixed(
            "ERR CLIENT TRACKING needs RESP3, because this server has no pub/sub to tell RESP2 \
             clients by: send HELLO 3 first",
        ));
    }
    let old_prefixes = session.shared.tracking.prefixes_of(session.client.id);
    options.check(session.tracking.get(), &old_prefixes)?;
    // Without a prefix the mode BCAST covers all keys.
    let has_none = options.mode.has(TrackingMode::BCAST) && options.prefixes.is_empty();
    let prefixes = if has_none { vec![&b""[..]] } else { options.prefixes };
    session.begin_tracking(options.mode, &prefixes)?;
    reply.ok();
    Ok(())
}

/// `CLIENT CACHING YES|NO`. It applies to the next command, or to the next transaction.
pub(super) fn caching(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    let mode = session.tracking.get();
    if !mode.is_on() {
        return Err(Refusal::fixed(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or \
             OPTOUT mode enabled",
        ));
    }
    if args.is(2, "yes") {
        if !mode.has(TrackingMode::OPTIN) {
            return Err(Refusal::fixed(
                "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
            ));
        }
    } else if args.is(2, "no") {
        if !mode.has(TrackingMode::OPTOUT) {
            return Err(Refusal::fixed(
                "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
            ));
        }
    } else {
        return Err(Refusal::SYNTAX);
    }
    session.caching.set(true);
    reply.ok();
    Ok(())
}

/// Answers `CLIENT TRACKINGINFO`, the mode of the client.
pub(super) fn tracking_info(session: &Session, reply: &mut Reply) {
    let mode = session.tracking.get();
    let said = session.caching.get();
    let (opts_in, opts_out) = (mode.has(TrackingMode::OPTIN), mode.has(TrackingMode::OPTOUT));
    let flags = [
        ("off", !mode.is_on()),
        ("on", mode.is_on()),
        ("bcast", mode.has(TrackingMode::BCAST)),
        ("optin", opts_in),
        ("caching-yes", opts_in && said),
        ("optout", opts_out),
        ("caching-no", opts_out && said),
        ("noloop", mode.has(TrackingMode::NOLOOP)),
    ];
    let set: Vec<&str> =
        flags.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(set.len());
    set.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"redirect");
    reply.integer(if mode.is_on() { 0 } else { -1 });
    reply.bulk(b"prefixes");
    let prefixes = session.shared.tracking.prefixes_of(session.client.id);
    reply.array(prefixes.len());
    prefixes.iter().for_each(|prefix| reply.bulk(prefix));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_no_longer_than_keys_and_have_a_bound_together() {
        let check = |old: &[Box<[u8]>], prefixes: &[&[u8]]| {
            let mode = TrackingMode::ON.with(TrackingMode::BCAST);
            let options = TrackingOptions { mode, prefixes: prefixes.to_vec() };
            let checked = options.check(mode, old);
            checked.err().map(|refusal| refusal.line().into_owned()).unwrap_or_default()
        };
        let [a, b, c] = [b'a', b'b', b'c'].map(|byte| vec![byte; KEY_BYTES_MAX]);
        let too_long = vec![b'd'; KEY_BYTES_MAX + 1];
        assert_eq!(check(&[], &[&a]), "");
        assert!(check(&[], &[b"z", &too_long]).contains("bytes is longer than any key: at most"));
        assert_eq!(check(&[a.clone().into()], &[&b]), "");
        let together = "can have at most 131072 bytes together";
        assert!(check(&[], &[&a, &b, &c]).contains(together));
        assert!(check(&[a.into(), b.into()], &[&c]).contains(together));
    }
}
