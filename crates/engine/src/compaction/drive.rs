//! The loop of every job: it passes records from the iterator to the outputs.

use archipelago_base::Result;

use super::iterator::CompactionIterator;
use crate::iter::InternalIterator;
use crate::job::JobContext;
use crate::job::output::{OutputWriter, Written};
use crate::sst::RecordRole;

/// Writes every record that `input` yields. `check` sees the counts before the outputs are declared
/// good; if it fails, the outputs are removed.
pub(crate) fn drive<I: InternalIterator>(
    input: &mut CompactionIterator<'_, I>,
    mut writer: OutputWriter<'_>,
    context: &JobContext<'_>,
    check: impl FnOnce(&CompactionIterator<'_, I>) -> Result<()>,
) -> Result<Written> {
    context.check_cancelled()?;
    input.start()?;
    while input.valid() {
        let role = RecordRole {
            starts_key: input.starts_key(),
            is_warm: context.warm || input.is_warm(),
            is_shadowed: input.is_shadowed(),
        };
        writer.add(input.key(), input.value()?, role)?;
        input.advance()?;
    }
    check(input)?;
    writer.finish()
}
