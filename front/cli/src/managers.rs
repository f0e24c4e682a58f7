//! Addresses of the managers of a cluster, as flags name them.

use archipelago_base::Result;
use archipelago_fabric::endpoint;

/// Default address of the manager.
pub(crate) const MANAGER: &str = "127.0.0.1:7700";

/// The addresses in the value of `--manager`, each once. An owner or an executor takes each address
/// for a manager with a scheduler of its own.
pub(crate) fn managers(text: &str) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for manager in text.split(',') {
        let manager = endpoint(manager)?;
        if !all.contains(&manager) {
            all.push(manager);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_manager_counts_once() {
        let all = managers("127.0.0.1:7700,127.0.0.1:7701,127.0.0.1:7700").unwrap();
        assert_eq!(all, ["tcp:127.0.0.1:7700", "tcp:127.0.0.1:7701"]);
    }
}
