//! Addresses of the managers of a cluster, as flags name them.

use archipelago_base::Result;
use archipelago_fabric::endpoint;

/// Default address of the manager.
pub(crate) const MANAGER: &str = "127.0.0.1:7700";

/// The addresses in the value of `--manager`.
pub(crate) fn managers(text: &str) -> Result<Vec<String>> {
    text.split(',').map(endpoint).collect()
}
