//! Makes the rules of a compaction iterator from the spec of its job.

use archipelago_base::{Error, Result, SeqNo};

use super::iterator::Rules;
use super::stripes::Stripes;
use crate::extension::{FamilyFilter, FamilyMerge};
use crate::job::JobContext;
use crate::job::spec::Retention;
use crate::key::KeyRange;

impl Retention {
    /// The rules for the keys of `range` of the column family `family`. `InvalidArgument` if the
    /// operator or the filter is not registered in this process.
    pub(crate) fn rules<'a>(
        &'a self,
        family: &str,
        range: &'a KeyRange,
        context: &JobContext<'_>,
    ) -> Result<Rules<'a>> {
        self.below.validate()?;
        if self.visible_seq > SeqNo::MAX.0 {
            return Err(Error::invalid(
                "job spec: visible_seq exceeds the largest sequence number",
            ));
        }
        let registry = &context.registry;
        let operator = self.merge_operator.as_deref().map(|name| registry.merge_operator(name));
        let filter = self.compaction_filter.as_deref().map(|name| registry.compaction_filter(name));
        Ok(Rules {
            range,
            stripes: Stripes::new(&self.snapshots, SeqNo(self.visible_seq)),
            below: &self.below,
            now_ms: self.now_ms,
            merge_operator: operator.transpose()?.map(|found| FamilyMerge::new(found, family)),
            filter: filter.transpose()?.map(|found| FamilyFilter::new(found, family)),
        })
    }
}
