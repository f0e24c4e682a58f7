//! Tables that may ever free space, which a version lists when it is built. Pure functions.
//!
//! [`crate::compaction::pick::reclaim`] picks the jobs for them.

use super::LAST_LEVEL;
use crate::file_meta::FileMeta;
use crate::live_file::LiveFile;
use crate::options::CfOptions;

/// A rewrite is worth its bytes if at least one in this many parts of the table is garbage.
pub const GARBAGE_SHARE: u64 = 3;

/// Whether a table may ever be dropped, rewritten or taken down for space.
pub(crate) fn may_qualify(level: usize, file: &LiveFile, options: &CfOptions) -> bool {
    let content = &file.content;
    let last = level == LAST_LEVEL;
    let records = content.shadowed.saturating_add(if last { file.deletions } else { 0 });
    file.range_deletions > 0
        || content.expiring > 0
        || file.deletions == file.entries
        || is_share(records, file.entries)
        || is_share(content.shadowed_bytes, content_bytes(file))
        || (last && content.shadowed > 0 && !file.refs.is_empty())
        || (last && is_written_otherwise(file, options))
}

/// Whether a rewrite in the last level would use another compression or another compaction filter.
pub(crate) fn is_written_otherwise(file: &FileMeta, options: &CfOptions) -> bool {
    let filter = options.compaction_filter.as_ref();
    let is_filtered = filter.is_none() || filter == file.content.compaction_filter.as_ref();
    !is_filtered || file.content.compression != options.compression_last
}

/// Bytes of the keys and values of a table before encoding, separated values included.
pub(crate) fn content_bytes(file: &LiveFile) -> u64 {
    let referenced = file.compensated_bytes().saturating_sub(file.size_bytes);
    file.raw_bytes.saturating_add(referenced)
}

/// Whether the garbage in a table is worth the rewrite of all of it.
pub(crate) fn is_share(part: u64, whole: u64) -> bool {
    part > 0 && part.saturating_mul(GARBAGE_SHARE) >= whole
}
