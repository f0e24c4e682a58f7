//! Flags of a database in a volume of a storage cluster.

use std::path::PathBuf;

use clap::Args;

/// The volume with the database of a run. db_bench has none.
#[derive(Clone, Debug, Args)]
#[command(rename_all = "snake_case", next_help_heading = "Storage cluster")]
pub(crate) struct VolumeFlags {
    /// Managers of a storage cluster; the database lies in a volume there, and --db is not used
    /// (not in db_bench)
    #[arg(long, value_name = "HOST:PORT,...", requires = "volume",
          conflicts_with_all = ["db", "device", "tiers"])]
    pub(crate) store: Option<String>,
    /// Volume with the database, which is created if it does not exist (not in db_bench)
    #[arg(long, value_name = "NAME", requires = "store")]
    pub(crate) volume: Option<String>,
    /// File with the secret of the storage cluster (not in db_bench)
    #[arg(long, value_name = "FILE", requires = "store")]
    pub(crate) secret_file: Option<PathBuf>,
}
