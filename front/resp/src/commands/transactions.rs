//! MULTI, EXEC, DISCARD, WATCH and UNWATCH; [`crate::session::transaction`] describes and executes
//! them.

use crate::args::Args;
use crate::refusal::Handled;
use crate::reply::Reply;
use crate::session::Session;

pub(super) fn multi(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    session.transaction.begin(session)?;
    reply.ok();
    Ok(())
}

pub(super) fn exec(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    session.transaction.exec(session, reply)
}

pub(super) fn discard(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    session.transaction.discard(session)?;
    reply.ok();
    Ok(())
}

pub(super) fn watch(session: &Session, args: Args<'_>, reply: &mut Reply) -> Handled {
    session.transaction.watch(session, args)?;
    reply.ok();
    Ok(())
}

pub(super) fn unwatch(session: &Session, _: Args<'_>, reply: &mut Reply) -> Handled {
    session.transaction.unwatch(session);
    reply.ok();
    Ok(())
}
