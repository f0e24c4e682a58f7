//! `archipelago cluster drain --executor`: an executor takes no more jobs.
//!
//! The schedulers in the managers stop giving jobs to the executor, and send it the order. The
//! executor keeps the order until the end of its process. A manager that starts later, or that did
//! not answer, learns of the order from the executor's beats.
//!
//! Failure: if no manager answers, the command ends with an error, and the drain goes on. The jobs
//! that a manager without an answer has given to the executor are not counted, and the command says
//! so at its end.
//! Cost: one request a second to each manager.

use archipelago_base::{Error, ErrorKind, Result};
use archipelago_offload::ids::ExecutorId;
use archipelago_offload::wire::{ExecutorStanding, OffloadMessage, SchedulerStatus};

use super::managers::Managers;
use super::storage::{Drain, watch};
use super::{scheduler_status as ask, scheduler_statuses as ask_each};
use crate::console::print_line;

/// Number of looks at which an executor is missing before it counts as ended. A manager that has
/// just begun to act does not know it before its next beat.
const LOOKS_WITHOUT_EXECUTOR: u32 = 5;
/// Number of looks without progress after which a drain says so.
const LOOKS_WITHOUT_PROGRESS: u32 = 30;

/// The executor that an operator names by its number or its address.
fn find<'a>(status: &'a SchedulerStatus, name: &str) -> Result<&'a ExecutorStanding> {
    let is_named = |executor: &&ExecutorStanding| {
        format!("{:x}", executor.executor.0) == name || executor.address.as_str() == name
    };
    let mut named = status.executors.iter().filter(is_named);
    match (named.next(), named.next()) {
        (Some(executor), None) => Ok(executor),
        (Some(_), Some(_)) => Err(Error::invalid(format!(
            "several executors have the address {name}: name one by its number, as archipelago \
             cluster status shows it"
        ))),
        (None, _) => Err(Error::not_found(format!(
            "no executor has the number or the address \"{name}\": archipelago cluster status \
             lists them"
        ))),
    }
}

/// Makes an executor take no more jobs, and waits until it has none, or lets it take jobs again.
pub(super) fn drain(managers: &Managers, name: &str, drain: Drain) -> Result<()> {
    let status = ask(managers, &OffloadMessage::Status {})?;
    let executor = find(&status, name)?.executor;
    let is_draining = drain != Drain::Cancel;
    ask(managers, &OffloadMessage::Drain { executor, is_draining })?;
    match drain {
        Drain::Cancel => print_line!("Executor {:x} takes jobs again", executor.0),
        Drain::Begin => print_line!(
            "Executor {:x} takes no more jobs: archipelago cluster status shows those that it has",
            executor.0
        ),
        Drain::Wait => {
            print_line!(
                "Executor {:x} takes no more jobs; Ctrl-C ends this command, and not the drain",
                executor.0
            );
            wait_until_idle(managers, executor)?;
        }
    }
    Ok(())
}

/// Shows the progress of a drain until the executor has no jobs. Errors: `Busy` if the drain was
/// cancelled meanwhile.
fn wait_until_idle(managers: &Managers, executor: ExecutorId) -> Result<()> {
    let (mut left, mut looks, mut missing) = (u32::MAX, 0, 0);
    watch(|| {
        let all = ask_each(managers, &OffloadMessage::Status {})?;
        let silent = managers.ways.len().saturating_sub(all.len());
        let status = SchedulerStatus::merged(all);
        let found = status.executors.iter().find(|standing| standing.executor == executor);
        let Some(now) = found else {
            missing += 1;
            if missing == LOOKS_WITHOUT_EXECUTOR {
                print_line!("Executor {:x} has ended", executor.0);
            }
            return Ok(missing >= LOOKS_WITHOUT_EXECUTOR);
        };
        missing = 0;
        if !now.is_draining {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "executor {:x} takes jobs again: its drain was cancelled, or the manager ended \
                     before the executor knew of it. To drain it, run the command again",
                    executor.0
                ),
            ));
        }
        if now.held < left {
            (left, looks) = (now.held, 0);
            print_line!("Executor {:x}: {left} jobs left", executor.0);
        } else {
            looks += 1;
            if looks % LOOKS_WITHOUT_PROGRESS == 0 {
                print_line!(
                    "Executor {:x}: no job has ended for {looks} s; archipelago cluster jobs shows \
                     how far they are",
                    executor.0
                );
            }
        }
        if now.held == 0 {
            print_line!("{}", end_text(executor, silent));
        }
        Ok(now.held == 0)
    })
}

/// The last line of a drain, in which `silent` managers have not answered.
fn end_text(executor: ExecutorId, silent: usize) -> String {
    match silent {
        0 => format!("Executor {:x} has no jobs: it can be stopped", executor.0),
        _ => format!(
            "Executor {:x} has no jobs of the managers that answer. {silent} do not answer, and \
             may have given it others: stop it with SIGTERM, so that it waits for these",
            executor.0
        ),
    }
}

#[cfg(test)]
mod tests {
    use archipelago_offload::failure::ShortText;

    use super::*;

    #[test]
    fn drain_says_that_jobs_of_silent_managers_are_not_counted() {
        let text = |silent| end_text(ExecutorId(0xab), silent);
        assert_eq!(text(0), "Executor ab has no jobs: it can be stopped");
        assert!(text(1).contains("1 do not answer") && !text(1).contains("can be stopped"));
    }

    #[test]
    fn executor_is_named_by_its_number_or_its_address() {
        let executor = |number, address| ExecutorStanding {
            executor: ExecutorId(number),
            address: ShortText::new(address),
            ..ExecutorStanding::default()
        };
        let executors =
            vec![executor(0xab, "reef (process 7)"), executor(1, "a"), executor(2, "a")];
        let status = SchedulerStatus { executors, ..SchedulerStatus::default() };
        let number = |name: &str| find(&status, name).map(|found| found.executor.0);
        assert_eq!(number("ab").unwrap(), 0xab);
        assert_eq!(number("reef (process 7)").unwrap(), 0xab);
        assert_eq!(number("2").unwrap(), 2);
        assert_eq!(number("a").unwrap_err().kind(), ErrorKind::InvalidArgument);
        let error = number("AB").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
}
