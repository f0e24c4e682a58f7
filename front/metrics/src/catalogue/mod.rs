//! The catalogue: every metric that a process of the project offers, with its meaning.
//!
//! A metric is described once, in the table of its group. The sources ([`crate::sources`]) give
//! values to these descriptions only, so a scrape never has a metric that the catalogue lacks. The
//! page of all metrics is made from the catalogue ([`crate::page`]). Static data.
//!
//! Names follow Prometheus' conventions: a prefix, base units (`_seconds`, `_bytes`), and `_total`
//! at the end of a counter, which the encoder appends.

pub(crate) mod engine;
pub(crate) mod executors;
pub(crate) mod flexkv;
pub(crate) mod offload_jobs;
pub(crate) mod pool;
pub(crate) mod process;
pub(crate) mod redis;
pub(crate) mod remote_shards;
pub(crate) mod scheduler;
pub(crate) mod storage;
pub(crate) mod tiers;

/// What the values of a metric mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows while the process lives.
    Counter,
    /// A number that grows and shrinks.
    Gauge,
    /// Numbers of observations by upper bounds, with their sum.
    Histogram,
    /// Facts as labels. The value is always 1.
    Info,
}

impl Kind {
    /// The kind as the text format spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

/// Description of a metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name of the family, without `_total` and `_info`.
    pub name: &'static str,
    /// What its values mean.
    pub kind: Kind,
    /// Names of its labels, without the `le` of a histogram.
    pub labels: &'static [&'static str],
    /// Meaning, as lines of a comment.
    help: &'static str,
}

impl Metric {
    /// Meaning of the metric, as sentences on one line.
    #[must_use]
    pub fn help(&self) -> &'static str {
        self.help.trim()
    }

    /// Unit at the end of the name.
    #[must_use]
    pub fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes"]
            .into_iter()
            .find(|unit| self.name.strip_suffix(unit).is_some_and(|stem| stem.ends_with('_')))
    }

    /// Names of the samples in a scrape.
    #[must_use]
    pub fn sample_names(&self) -> Vec<String> {
        let with = |suffix: &str| format!("{}{suffix}", self.name);
        match self.kind {
            Kind::Counter => vec![with("_total")],
            Kind::Gauge => vec![self.name.to_owned()],
            Kind::Histogram => vec![with("_bucket"), with("_sum"), with("_count")],
            Kind::Info => vec![with("_info")],
        }
    }
}

/// Describes the metrics of a group: `NAME: kind "name" [labels];`, each after its meaning.
macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $id:ident: $kind:ident $name:literal [$($label:literal),*];)*) => {
        $(
            $(#[doc = $help])+
            pub(crate) static $id: crate::catalogue::Metric = crate::catalogue::Metric {
                name: $name,
                kind: crate::catalogue::Kind::$kind,
                labels: &[$($label),*],
                help: concat!($($help),+),
            };
        )*

        /// Every metric of the group, in the order of the page.
        pub(super) static ALL: &[&crate::catalogue::Metric] = &[$(&$id),*];
    };
}

use metrics;

/// Metrics that belong together.
#[derive(Debug)]
pub struct Group {
    /// Heading of the group on the page.
    pub title: &'static str,
    /// Processes that offer the group, as a sentence.
    pub offered_by: &'static str,
    /// The metrics, in the order of the page.
    pub metrics: &'static [&'static Metric],
}

/// Every group, in the order of the page.
#[must_use]
pub fn groups() -> [Group; 11] {
    [
        Group {
            title: "Process and endpoint",
            offered_by: "Every process with `--metrics` offers these. Those of the memory budget \
                         come from a process with a database.",
            metrics: process::ALL,
        },
        Group {
            title: "Redis server",
            offered_by: "`archipelago serve` offers these, with either engine.",
            metrics: redis::ALL,
        },
        Group {
            title: "Engine",
            offered_by: "`archipelago serve` with a database offers these.",
            metrics: engine::ALL,
        },
        Group {
            title: "Tiers",
            offered_by: "`archipelago serve` offers these if its database is on tiers.",
            metrics: tiers::ALL,
        },
        Group {
            title: "Memtables at memory nodes",
            offered_by: "`archipelago serve` offers these if its --offload-mode is memtables, flushes or \
                         all.",
            metrics: remote_shards::ALL,
        },
        Group {
            title: "Jobs in executors",
            offered_by: "`archipelago serve` offers these if its --offload-mode is compactions, \
                         flushes or all.",
            metrics: offload_jobs::ALL,
        },
        Group {
            title: "Executors",
            offered_by: "`archipelago node executor` offers these, `archipelago node memory` with \
                         --share or --store, and `archipelago node storage` and `archipelago serve` \
                         with --executor-slots.",
            metrics: executors::ALL,
        },
        Group {
            title: "Scheduler of jobs",
            offered_by: "`archipelago node manager` offers these, also while it stands by.",
            metrics: scheduler::ALL,
        },
        Group {
            title: "Pool of memory",
            offered_by: "`archipelago node memory` offers those with `memory_node` in their names, \
                         and `archipelago node manager` those with `pool`. Both offer those of the \
                         fabric.",
            metrics: pool::ALL,
        },
        Group {
            title: "FlexKV",
            offered_by: "`archipelago serve --engine flexkv` offers those with `flexkv_node` in \
                         their names, and the acting manager those with `flexkv_store`.",
            metrics: flexkv::ALL,
        },
        Group {
            title: "Storage nodes and volumes",
            offered_by: "`archipelago node storage` offers those with `storage_node` in their names, \
                         and the acting manager those with `storage_cluster`. `archipelago serve \
                         --store` offers the others. The label `node` is the identity that \
                         `archipelago cluster status` shows.",
            metrics: storage::ALL,
        },
    ]
}

/// Every metric, in the order of the page.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    groups().into_iter().flat_map(|group| group.metrics.iter().copied())
}

#[cfg(test)]
mod tests;
